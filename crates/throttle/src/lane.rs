//! A lane: the queue of all bios of one direction that share their topmost limit on a device. The
//! dispatcher ([`crate::dispatcher`]) moves bios through it.
//!
//! Invariants:
//! * A channel publishes its bios at the lane's [`TurnLock`] and asks for the turn. The holder of
//!   the turn takes the bios in, and dispatches all bios that may go, also those of other channels.
//! * While bios wait, one of the channels with waiting bios is the *keeper*: it wakes when the next
//!   bio may go (`due`), and its doorbell rings if that time moves forward. The other channels
//!   recheck [`GRACE_NS`] later, because the keeper's owner may be away.
//! * A lane is closed when its structure changes. From then on the holder of the turn sends the
//!   lane's bios on to the lanes that the rules name; until new rules are published, it parks them.
//! * The data path waits for the turn only to withdraw bios.
//! * [`Lane::close`], [`Lane::wait`] and [`Lane::change_limits`] may consume another thread's
//!   request for a recheck. So the caller must run the lane after each of them.

use crate::budget::{ns_of, ticks_of};
use crate::group::GroupId;
use crate::meter::Step;
use crate::tree::Tree;
use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use drystone_core::sync::{Guard, LockClass, LockCounters};
use drystone_core::turn::{InsertAt, TurnLock};
use drystone_core::{Bio, BioList, PortId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The time after the keeper's wake-up at which the other channels recheck.
pub(crate) const GRACE_NS: Ns = 5_000_000;
/// Bios that may go within this time go together. It is much shorter than the burst, so no time is
/// lost.
const QUANTUM_NS: Ns = 500_000;
/// No channel.
const NOBODY: PortId = PortId(u32::MAX);
/// The due time while no bio waits.
pub(crate) const NEVER: Ns = Ns::MAX;

/// See the module's text. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Lane {
    /// The group that has the topmost limit.
    top: GroupId,
    /// A channel was dropped, and its bios must leave.
    purge: AtomicBool,
    due: AtomicU64,
    keeper: AtomicU32,
    turn: TurnLock<Waiting>,
}

/// The turn at a lane, which gives access to its waiting bios.
pub(crate) type Turn<'a> = Guard<'a, Waiting>;

/// The waiting bios of a lane. The turn guards them.
#[derive(Default)]
pub(crate) struct Waiting {
    tree: Tree,
    /// The number of bios in the tree, by the channel that they came through.
    ports: BTreeMap<PortId, usize>,
    closed: bool,
    parked: BioList,
}

impl Waiting {
    /// True if the lane's structure has changed: its bios are sent on to other lanes.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Add `bio`, which waits from `now` on; `steps` are its path to the top.
    pub(crate) fn push(&mut self, steps: &[Step], bio: Box<Bio>, now: Ns) {
        *self.ports.entry(bio.port).or_default() += 1;
        self.tree.push(steps, bio, ticks_of(now));
    }

    /// Take a bio that may go at `now`. Fails with the time at which to try again.
    pub(crate) fn pop(&mut self, now: Ns) -> Result<Box<Bio>, Ns> {
        match self.tree.pop(ticks_of(now)) {
            Ok(bio) => {
                self.count_out(&bio);
                Ok(bio)
            }
            Err(_) if self.tree.is_empty() => Err(NEVER),
            Err(at) => Err(ns_of(at).max(now + QUANTUM_NS)),
        }
    }

    /// Take the bios in the tree for which `is_one` is true; each group's bios keep their order.
    pub(crate) fn take(&mut self, is_one: impl Fn(&Bio) -> bool) -> BioList {
        let bios = self.tree.take(is_one);
        bios.iter().for_each(|bio| self.count_out(bio));
        bios
    }

    /// True if `ports` lists channels with bios in the tree.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Take all bios that wait for new rules.
    pub(crate) fn take_parked(&mut self) -> BioList {
        self.parked.take()
    }

    /// Let `bio` wait for new rules.
    pub(crate) fn park(&mut self, bio: Box<Bio>) {
        self.parked.push(bio);
    }

    fn count_out(&mut self, bio: &Bio) {
        let Some(count) = self.ports.get_mut(&bio.port) else { return };
        *count -= 1;
        if *count == 0 {
            self.ports.remove(&bio.port);
        }
    }
}

impl Lane {
    pub(crate) fn new(top: GroupId) -> Arc<Self> {
        Arc::new(Lane {
            top,
            purge: AtomicBool::new(false),
            due: AtomicU64::new(NEVER),
            keeper: AtomicU32::new(NOBODY.0),
            turn: TurnLock::new(LockClass::Throttle, Waiting::default()),
        })
    }

    /// The group that has the topmost limit.
    pub(crate) fn top(&self) -> GroupId {
        self.top
    }

    /// Publish `bios`, whose `port` is set, to the holder of the turn, and empty the list. The
    /// caller must run the lane afterwards.
    pub(crate) fn publish(&self, locks: &LockCounters, bios: &mut BioList) {
        self.turn.leave_to_others(locks, bios, InsertAt::Tail);
    }

    /// Take the published bios in the order of their publication. With the turn.
    pub(crate) fn take_published(&self) -> BioList {
        let [(mut head, _), (mut tail, _)] = self.turn.take();
        head.append(&mut tail);
        head
    }

    /// The time at which channel `port`, which has bios here, must recheck. [`NEVER`] if it is not
    /// known yet.
    pub(crate) fn due(&self, port: PortId) -> Ns {
        let due = self.due.load(Relaxed);
        match self.keeper.load(Relaxed) == port.0 {
            true => due,
            false => due.saturating_add(GRACE_NS),
        }
    }

    /// True if bios wait here; the answer may be outdated.
    pub(crate) fn has_bios(&self) -> bool {
        self.due.load(Relaxed) != NEVER || self.turn.has_published()
    }

    /// Have the bios of dropped channels leave. The caller must run the lane afterwards.
    pub(crate) fn purge(&self) {
        self.purge.store(true, Release);
    }

    /// True once after each [`Lane::purge`]. With the turn.
    pub(crate) fn take_purge(&self) -> bool {
        self.purge.swap(false, AcqRel)
    }

    /// Try to take the turn for channel `me`. If another thread has it, that thread rechecks.
    pub(crate) fn enter(&self, locks: &LockCounters, me: Option<PortId>) -> Option<Turn<'_>> {
        self.turn.enter_to_recheck(locks, me.unwrap_or(NOBODY))
    }

    /// Leave the turn. True if the caller must enter it again.
    #[must_use]
    pub(crate) fn leave(&self, turn: Turn<'_>) -> bool {
        self.turn.leave(turn)
    }

    /// Wait for the turn. No thread holds it for long.
    pub(crate) fn wait(&self, locks: &LockCounters) -> Turn<'_> {
        self.turn.wait(locks)
    }

    /// Note that the next bio may go at `due`, and choose the keeper, the channel that wakes at
    /// that time. The keeper stays if it wakes early enough, so that no channel wakes for nothing;
    /// otherwise channel `me` becomes the keeper, if bios of it wait. Returns the keeper if its
    /// doorbell must ring. With the turn.
    pub(crate) fn keep_time(
        &self,
        waiting: &Waiting,
        me: Option<PortId>,
        now: Ns,
        due: Ns,
    ) -> Option<PortId> {
        let before = (PortId(self.keeper.load(Relaxed)), self.due.load(Relaxed));
        let has_bios = |port: &PortId| waiting.ports.contains_key(port);
        let stays = now < before.1 && before.1 <= due;
        let stays = stays.then_some(before.0);
        let keeper = (stays.into_iter().chain(me).chain([before.0]).find(has_bios))
            .or_else(|| waiting.ports.keys().next().copied());
        self.due.store(due, Relaxed);
        let keeper = keeper?;
        self.keeper.store(keeper.0, Relaxed);
        (keeper != before.0 || due < before.1).then_some(keeper)
    }

    /// Close the lane, because its structure changes. No bio goes until the new rules are
    /// published; then all go on by those. For the control plane, which may wait.
    pub(crate) fn close(&self, locks: &LockCounters) {
        let mut waiting = self.turn.wait(locks);
        waiting.closed = true;
        let mut bios = waiting.tree.move_all();
        bios.append(&mut self.take_published());
        waiting.parked.append(&mut bios);
        waiting.ports.clear();
        self.due.store(NEVER, Relaxed);
        _ = self.turn.leave(waiting);
    }

    /// Make a `change` of limits while no bio goes. For the control plane.
    pub(crate) fn change_limits(&self, locks: &LockCounters, change: impl FnOnce()) {
        let mut waiting = self.turn.wait(locks);
        change();
        waiting.tree.forget_service();
        _ = self.turn.leave(waiting);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::meter::Meter;
    use drystone_core::clock::ManualClock;
    use drystone_core::{IoBuf, Sector};

    const FIRST: PortId = PortId(1);
    const SECOND: PortId = PortId(2);
    const OTHER: PortId = PortId(3);

    fn bio(port: PortId) -> Box<Bio> {
        let mut bio = Bio::read(Sector(0), IoBuf::zeroed(512));
        bio.port = port;
        bio
    }

    /// A lane with a limit of one read in a second, which is used up; one bio of each channel
    /// waits.
    fn lane(ports: &[PortId]) -> (Arc<Lane>, Arc<LockCounters>) {
        let locks = LockCounters::new(ManualClock::new(1));
        let meter = Arc::new(Meter::default());
        meter.set_rates(ticks_of(1), None, Some(1));
        let steps = [Step { group: GroupId::ROOT, meter: Some(meter) }];
        let lane = Lane::new(GroupId::ROOT);
        let mut waiting = lane.wait(&locks);
        ports.iter().for_each(|port| waiting.push(&steps, bio(*port), 1));
        while waiting.pop(1).is_ok() {}
        assert!(!lane.leave(waiting));
        (lane, locks)
    }

    #[test]
    fn the_keeper_stays_while_it_wakes_early_enough() {
        let (lane, locks) = lane(&[FIRST, FIRST, SECOND, SECOND]);
        let waiting = lane.wait(&locks);
        assert_eq!(lane.keep_time(&waiting, Some(SECOND), 10, 1000), Some(SECOND));
        assert_eq!((lane.due(SECOND), lane.due(FIRST)), (1000, 1000 + GRACE_NS));
        assert_eq!(lane.keep_time(&waiting, Some(FIRST), 20, 2000), None, "it wakes anyway");
        let told = lane.keep_time(&waiting, Some(FIRST), 20, 500);
        assert_eq!(told, Some(FIRST), "the other would wake too late");
        _ = lane.leave(waiting);
    }

    #[test]
    fn a_channel_without_bios_does_not_keep_time() {
        let (lane, locks) = lane(&[FIRST, FIRST]);
        let waiting = lane.wait(&locks);
        assert_eq!(lane.keep_time(&waiting, Some(OTHER), 10, 1000), Some(FIRST));
        _ = lane.leave(waiting);
    }

    #[test]
    fn a_closed_lane_parks_its_bios() {
        let (lane, locks) = lane(&[FIRST; 3]);
        lane.close(&locks);
        let mut waiting = lane.wait(&locks);
        assert!(waiting.is_closed() && waiting.pop(u64::MAX / 2).is_err());
        assert!(!waiting.take_parked().is_empty() && !lane.has_bios());
        _ = lane.leave(waiting);
    }

    #[test]
    fn a_purge_is_taken_once() {
        let (lane, _) = lane(&[]);
        lane.purge();
        assert!(lane.take_purge() && !lane.take_purge());
    }
}
