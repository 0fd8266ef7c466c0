//! The lanes where bios of one channel wait.
//!
//! Invariants:
//! * Each lane stands here once, with how many bios of the channel wait there.
//! * A lane without any is dropped by [`Visited::drop_idle`], after all bios that were granted are
//!   taken.

use crate::dispatcher::Dispatcher;
use crate::lane::{Lane, NEVER};
use drystone_core::Bio;
use drystone_core::BioList;
use drystone_core::clock::Ns;
use std::sync::Arc;

/// When a channel rechecks a lane whose next time is not known, because another thread is just
/// taking the bios in.
const RECHECK_NS: Ns = 1_000_000;

struct Visit {
    lane: Arc<Lane>,
    bios: usize,
    /// Bios were published there in this call.
    is_new: bool,
    /// When to recheck if it is not known when bios may go.
    recheck: Ns,
}

impl Visit {
    fn due(&self, port: u32) -> Ns {
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

    /// So many bios more wait at `lane`.
    pub(super) fn add(&mut self, lane: &Arc<Lane>, bios: usize) {
        self.visit(lane).bios += bios;
    }

    /// One more bio waits at `lane`, where it was just published.
    pub(super) fn add_new(&mut self, lane: &Arc<Lane>) {
        let visit = self.visit(lane);
        visit.bios += 1;
        visit.is_new = true;
    }

    /// One bio less waits at `lane`.
    pub(super) fn take(&mut self, lane: &Arc<Lane>) {
        self.visit(lane).bios -= 1;
    }

    /// Forget all lanes.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Forget the lanes where nothing waits any more.
    pub(super) fn drop_idle(&mut self) {
        self.0.retain(|visit| visit.bios > 0);
    }

    /// The time at which channel `port` must run the first of the lanes, if there are any.
    pub(super) fn due(&self, port: u32) -> Option<Ns> {
        self.0.iter().map(|visit| visit.due(port)).min()
    }

    /// Run the lanes that are due by the caller's clock for its channel `port`.
    pub(super) fn run_due(&mut self, dispatcher: &mut Dispatcher<'_>, port: u32) {
        let now = dispatcher.now();
        self.run(dispatcher, |visit| visit.due(port) <= now);
    }

    /// Run the lanes where bios were published in this call.
    pub(super) fn run_new(&mut self, dispatcher: &mut Dispatcher<'_>) {
        self.run(dispatcher, |visit| visit.is_new);
    }

    /// Run all lanes, so that all bios of channels that are gone leave them.
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
            // A channel that found the turn taken meanwhile relies on us.
            dispatcher.run(&visit.lane);
        }
        bios
    }
}
