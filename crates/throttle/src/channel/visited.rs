//! The lanes where bios of one channel wait.
//!
//! Invariants:
//! * Each lane is listed once, with the number of the channel's bios that wait there.
//! * [`Visited::drop_idle`] drops lanes without waiting bios, after all granted bios are taken.

use crate::dispatcher::Dispatcher;
use crate::lane::{Lane, NEVER};
use drystone_core::clock::Ns;
use drystone_core::{Bio, BioList, PortId};
use std::sync::Arc;

/// The delay of a recheck of a lane whose next time is not known, because another thread is just
/// taking the bios in.
const RECHECK_NS: Ns = 1_000_000;

struct Visit {
    lane: Arc<Lane>,
    bios: usize,
    /// Bios were published there in this call.
    is_new: bool,
    /// The time of a recheck if the time of the next bio is not known.
    recheck: Ns,
}

impl Visit {
    fn due(&self, port: PortId) -> Ns {
        match self.lane.due(port) {
            NEVER => self.recheck,
            due => due,
        }
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Visited(Vec<Visit>);

impl Visited {
    fn visit(&mut self, lane: &Arc<Lane>) -> &mut Visit {
        let known = self.0.iter().position(|visit| Arc::ptr_eq(&visit.lane, lane));
        let at = known.unwrap_or_else(|| {
            self.0.push(Visit { lane: lane.clone(), bios: 0, is_new: false, recheck: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Add `bios` more bios that wait at `lane`.
    pub(super) fn add(&mut self, lane: &Arc<Lane>, bios: usize) {
        self.visit(lane).bios += bios;
    }

    /// Add a bio that waits at `lane`, where it was just published.
    pub(super) fn add_new(&mut self, lane: &Arc<Lane>) {
        let visit = self.visit(lane);
        visit.bios += 1;
        visit.is_new = true;
    }

    /// Remove one bio that does not wait at `lane` any more.
    pub(super) fn take(&mut self, lane: &Arc<Lane>) {
        self.visit(lane).bios -= 1;
    }

    /// Forget all lanes.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Forget the lanes without waiting bios.
    pub(super) fn drop_idle(&mut self) {
        self.0.retain(|visit| visit.bios > 0);
    }

    /// The number of bios that wait at each lane.
    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> Vec<usize> {
        self.0.iter().map(|visit| visit.bios).collect()
    }

    /// The time at which the channel of `port` must run the first of the lanes, if there are any.
    pub(super) fn due(&self, port: PortId) -> Option<Ns> {
        self.0.iter().map(|visit| visit.due(port)).min()
    }

    /// Run the lanes that are due for the caller's channel `port`.
    pub(super) fn run_due(&mut self, dispatcher: &mut Dispatcher<'_>, port: PortId) {
        let now = dispatcher.now();
        self.run(dispatcher, |visit| visit.due(port) <= now);
    }

    /// Run the lanes where bios were published in this call.
    pub(super) fn run_new(&mut self, dispatcher: &mut Dispatcher<'_>) {
        self.run(dispatcher, |visit| visit.is_new);
    }

    /// Run all lanes, so that the bios of dropped channels leave them.
    pub(super) fn purge(&mut self, dispatcher: &mut Dispatcher<'_>) {
        self.0.iter().for_each(|visit| visit.lane.purge());
        self.run(dispatcher, |_| true);
    }

    fn run(&mut self, dispatcher: &mut Dispatcher<'_>, wants: impl Fn(&Visit) -> bool) {
        for visit in self.0.iter_mut().filter(|visit| wants(visit)) {
            dispatcher.run(&visit.lane);
            visit.is_new = false;
            visit.recheck = dispatcher.now().saturating_add(RECHECK_NS);
        }
    }

    /// Take the bios out of all lanes for which `is_one` says true.
    pub(super) fn take_out(
        &self,
        dispatcher: &mut Dispatcher<'_>,
        is_one: impl Fn(&Bio) -> bool,
    ) -> BioList {
        let mut bios = BioList::new();
        for visit in &self.0 {
            bios.append(&mut dispatcher.take_out(&visit.lane, &is_one));
            // A channel that found the turn taken meanwhile relies on this run.
            dispatcher.run(&visit.lane);
        }
        bios
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::testing::{NOW, Scene, group, limited};
    use super::*;
    use crate::group::GroupId;

    const A: GroupId = GroupId::ROOT;

    fn lanes<const N: usize>() -> [Arc<Lane>; N] {
        std::array::from_fn(|_| Lane::new(A))
    }

    #[test]
    fn a_lane_stands_once_with_the_bios_that_wait_there() {
        let ([one, other], mut visited) = (lanes(), Visited::default());
        visited.add(&one, 2);
        visited.add_new(&other);
        visited.add_new(&one);
        assert_eq!(visited.counts(), [3, 1]);
        visited.take(&one);
        assert_eq!(visited.counts(), [2, 1]);
    }

    #[test]
    fn a_lane_without_bios_stays_until_idle_ones_are_dropped() {
        let ([one, other], mut visited) = (lanes(), Visited::default());
        visited.add(&one, 1);
        visited.add(&other, 1);
        visited.take(&one);
        assert_eq!(visited.counts(), [0, 1]);
        visited.drop_idle();
        assert_eq!(visited.counts(), [1]);
    }

    #[test]
    fn a_lane_whose_time_is_not_known_is_rechecked() {
        let (scene, [lane], mut visited) = (Scene::new(&[]), lanes(), Visited::default());
        let port = scene.port.id();
        assert_eq!(visited.due(port), None);
        visited.add(&lane, 1);
        assert_eq!(visited.due(port), Some(0));
        for now in [NOW, NOW + RECHECK_NS, NOW + RECHECK_NS + 1] {
            visited.run_due(&mut scene.dispatcher(now), port);
        }
        assert_eq!(visited.due(port), Some(NOW + 2 * RECHECK_NS), "it was not due the third time");
    }

    #[test]
    fn lanes_are_run_once_where_bios_were_just_published() {
        let (old, new) = (group(1, 0), group(2, 0));
        let (scene, mut visited) = (Scene::new(&[limited(old), limited(new)]), Visited::default());
        let mut granted_by_new_run = || {
            [old, new].iter().for_each(|id| scene.publish(*id));
            visited.run_new(&mut scene.dispatcher(NOW));
            let mut granted = scene.port.granted.take();
            let bios = std::iter::from_fn(|| granted.pop().map(|bio| GroupId::of(&bio)));
            let bios: Vec<_> = bios.collect();
            visited.add_new(&scene.lane(new));
            bios
        };
        assert!(granted_by_new_run().is_empty());
        assert_eq!(granted_by_new_run(), [new, new]);
        visited.run_new(&mut scene.dispatcher(NOW));
        visited.add(&scene.lane(old), 1);
        scene.publish(new);
        visited.run_new(&mut scene.dispatcher(NOW));
        assert!(scene.port.granted.take().is_empty(), "the channel published nothing since");
    }
}
