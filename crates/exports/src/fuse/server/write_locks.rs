//! The locks on ranges of volumes that a session's writes hold, and the writes that wait for one.
//!
//! ```text
//!   whole blocks:    shared lock    -- blocked by others' unaligned writes --> keeps its bio
//!   parts of blocks: exclusive lock -- one at a time of a session and volume --> in line
//! ```
//!
//! A device writes whole blocks. So a write of parts of blocks reads, merges and writes back, and
//! no other write to these blocks may come between, whichever front end it comes by
//! ([`drystone_core::range_lock`]).
//!
//! Invariants:
//! * At most one unaligned write of a volume has begun. It is the first in line, and only the first
//!   holds or waits for an exclusive lock.
//! * `waiting` counts the blocked writes and all unaligned ones, those that have begun too.
//! * The slot of the range lock is the number of the operation.

use super::mount::Mount;
use super::op::IN_FLIGHT_MAX;
use crate::server::{OpId, Work};
use drystone_core::Bio;
use drystone_core::range_lock::RangeUser;
use std::collections::VecDeque;
use std::ops::Range;

/// The locks of one volume.
struct VolumeLocks {
    lock: RangeUser,
    /// Writes of whole blocks that wait for their range, each with its bio.
    blocked: VecDeque<(OpId, Box<Bio>)>,
    /// Writes of parts of blocks, in the order in which they came, with all their blocks.
    line: VecDeque<(OpId, Range<u64>)>,
    /// True if the first in line has begun.
    has_begun: bool,
}

/// A write that has its range now.
pub(super) enum Granted {
    /// A write of whole blocks, whose bio is submitted next.
    Whole(Box<Bio>),
    /// An unaligned write: it begins.
    Unaligned(OpId),
}

/// A write that gave up before it had its range.
pub(super) struct Left {
    /// Its bio, if it is one of whole blocks.
    pub(super) bio: Option<Box<Bio>>,
    /// The unaligned write that begins instead of it.
    pub(super) next: Option<OpId>,
}

/// The locks of a session's writes.
pub(super) struct WriteLocks {
    volumes: Vec<VolumeLocks>,
    waiting: usize,
    /// Granted slots of the range lock, in reverse order.
    granted: Vec<usize>,
}

impl VolumeLocks {
    fn new(mount: &Mount, volume: usize, work: &Work) -> Self {
        let lock = &mount.shared(volume).volume.write_lock;
        let (thread, counters) = (work.cx.handle().clone(), work.locks.clone());
        VolumeLocks {
            lock: lock.join(IN_FLIGHT_MAX as usize, thread, counters),
            blocked: VecDeque::with_capacity(IN_FLIGHT_MAX as usize),
            line: VecDeque::with_capacity(IN_FLIGHT_MAX as usize),
            has_begun: false,
        }
    }

    /// Lets the first in line begin if its range is free; otherwise it waits for the range.
    fn lock_first(&mut self) -> Option<OpId> {
        let (id, blocks) = self.line.front()?;
        self.has_begun = self.lock.lock_exclusive(id.index(), blocks);
        self.has_begun.then_some(*id)
    }

    /// The position of an operation in line, if it has not begun.
    fn position(&self, id: OpId) -> Option<usize> {
        let at = self.line.iter().position(|(of, _)| *of == id)?;
        (at >= usize::from(self.has_begun)).then_some(at)
    }

    fn take_blocked(&mut self, id: OpId) -> Option<Box<Bio>> {
        let at = self.blocked.iter().position(|(of, _)| *of == id)?;
        self.blocked.remove(at).map(|(_, bio)| bio)
    }
}

impl WriteLocks {
    /// The locks of a session of `mount`.
    pub(super) fn new(mount: &Mount, work: &Work) -> Self {
        let volumes = 0..mount.volume_count();
        WriteLocks {
            volumes: volumes.map(|volume| VolumeLocks::new(mount, volume, work)).collect(),
            waiting: 0,
            granted: Vec::with_capacity(IN_FLIGHT_MAX as usize),
        }
    }

    /// True while a write waits for its range, or an unaligned one is under way.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// True if a write that waited may have its range now.
    pub(super) fn has_news(&self) -> bool {
        self.waiting > 0 && self.volumes.iter().any(|of| of.lock.has_news())
    }

    /// True while operation `id` waits for its range.
    pub(super) fn is_blocked(&self, volume: usize, id: OpId) -> bool {
        let of = &self.volumes[volume];
        of.blocked.iter().any(|(blocked, _)| *blocked == id) || of.position(id).is_some()
    }

    /// Locks `range`, whole blocks, for a write. Returns its bio if it has the lock; else the bio
    /// waits for it here.
    #[inline]
    pub(super) fn lock(
        &mut self,
        volume: usize,
        id: OpId,
        range: &Range<u64>,
        bio: Box<Bio>,
    ) -> Option<Box<Bio>> {
        let of = &mut self.volumes[volume];
        if of.lock.lock_shared(id.index(), range) {
            return Some(bio);
        }
        of.blocked.push_back((id, bio));
        self.waiting += 1;
        None
    }

    /// Unlocks the range of a write of whole blocks, or stops waiting for it.
    #[inline]
    pub(super) fn unlock(&mut self, volume: usize, id: OpId) {
        self.volumes[volume].lock.unlock(id.index());
    }

    /// Puts an unaligned write in line for all its `blocks`. True if it begins now.
    pub(super) fn line_up(&mut self, volume: usize, id: OpId, blocks: Range<u64>) -> bool {
        self.waiting += 1;
        let of = &mut self.volumes[volume];
        of.line.push_back((id, blocks));
        of.line.len() == 1 && of.lock_first().is_some()
    }

    /// Ends the unaligned write that has begun, and frees its blocks. Returns the next that begins,
    /// if any may.
    pub(super) fn end_first(&mut self, volume: usize, may_begin: bool) -> Option<OpId> {
        let of = &mut self.volumes[volume];
        debug_assert!(of.has_begun);
        let (id, _) = of.line.pop_front()?;
        self.waiting -= 1;
        of.has_begun = false;
        of.lock.unlock(id.index());
        if may_begin { of.lock_first() } else { None }
    }

    /// Collects the writes of a volume that have their range now; [`WriteLocks::take_granted`]
    /// returns them.
    pub(super) fn collect_granted(&mut self, volume: usize) {
        let lock = &mut self.volumes[volume].lock;
        if lock.has_news() {
            lock.take_granted(&mut self.granted);
            self.granted.reverse();
        }
    }

    /// Takes the next write that was collected of this volume.
    pub(super) fn take_granted(&mut self, volume: usize) -> Option<Granted> {
        let id = OpId(self.granted.pop()? as u32);
        let of = &mut self.volumes[volume];
        if let Some(bio) = of.take_blocked(id) {
            self.waiting -= 1;
            return Some(Granted::Whole(bio));
        }
        debug_assert!(of.line.front().is_some_and(|(first, _)| *first == id));
        of.has_begun = true;
        of.line.front().map(|(first, _)| Granted::Unaligned(*first))
    }

    /// Lets operation `id` leave if it waits for its range; `None` if it does not. A write of whole
    /// blocks is unlocked by its caller.
    pub(super) fn leave(&mut self, volume: usize, id: OpId, may_begin: bool) -> Option<Left> {
        let of = &mut self.volumes[volume];
        let bio = of.take_blocked(id);
        let mut next = None;
        if bio.is_none() {
            let at = of.position(id)?;
            of.line.remove(at);
            if at == 0 {
                of.lock.unlock(id.index());
                next = if may_begin { of.lock_first() } else { None };
            }
        }
        self.waiting -= 1;
        Some(Left { bio, next })
    }

    /// The last write of any volume that waits for its range. If the writes leave in this order,
    /// none of them gets its turn meanwhile.
    pub(super) fn last_blocked(&self) -> Option<(usize, OpId)> {
        self.volumes.iter().enumerate().find_map(|(volume, of)| {
            let last = of.line.back().map(|(id, _)| *id).filter(|id| of.position(*id).is_some());
            let last = last.or_else(|| of.blocked.back().map(|(id, _)| *id))?;
            Some((volume, last))
        })
    }

    /// The number of volumes.
    pub(super) fn volume_count(&self) -> usize {
        self.volumes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::server::testing::{mount_of, work};
    use drystone_core::clock::ManualClock;
    use drystone_core::range_lock::RangeLock;
    use drystone_core::sync::LockCounters;
    use std::sync::Arc;

    const ALL: Range<u64> = 0..1 << 20;

    /// The locks of a session of one volume, and another user of the volume.
    struct Fixture {
        locks: WriteLocks,
        other: RangeUser,
    }

    fn fixture() -> Fixture {
        let (work, lock) = (work(), RangeLock::new());
        let locks = WriteLocks::new(&mount_of(&lock), &work);
        Fixture { locks, other: join(&lock, &work) }
    }

    fn join(lock: &Arc<RangeLock>, work: &Work) -> RangeUser {
        let counters = LockCounters::new(ManualClock::new(1));
        lock.join(1, work.cx.handle().clone(), counters)
    }

    impl Fixture {
        fn lock(&mut self, id: u32, range: Range<u64>) -> bool {
            let mut bio = Bio::flush();
            bio.user_data = id.into();
            self.locks.lock(0, OpId(id), &range, bio).is_some()
        }

        fn line_up(&mut self, id: u32, range: Range<u64>) -> bool {
            self.locks.line_up(0, OpId(id), range)
        }

        /// Numbers of the writes that are granted, in order; those of whole blocks from their bios.
        fn granted(&mut self) -> Vec<(u64, bool)> {
            self.locks.collect_granted(0);
            let next = || self.locks.take_granted(0);
            let number = |granted| match granted {
                Granted::Whole(bio) => (bio.user_data, true),
                Granted::Unaligned(id) => (id.0.into(), false),
            };
            std::iter::from_fn(next).map(number).collect()
        }

        fn try_all(&mut self) -> bool {
            let is_free = self.other.lock_exclusive(0, &ALL);
            self.other.unlock(0);
            is_free && !self.locks.is_waiting()
        }
    }

    #[test]
    fn unaligned_writes_take_turns_in_the_order_in_which_they_came() {
        let mut it = fixture();
        assert!(it.line_up(1, 0..512) && !it.line_up(2, 4096..4608) && !it.line_up(3, 0..512));
        assert!(!it.locks.is_blocked(0, OpId(1)) && it.locks.is_blocked(0, OpId(2)));
        assert_eq!(it.locks.end_first(0, true), Some(OpId(2)));
        assert_eq!(it.locks.end_first(0, false), None, "the session is over");
        assert!(it.locks.is_blocked(0, OpId(3)));
        assert_eq!(it.locks.last_blocked(), Some((0, OpId(3))));
        let left = it.locks.leave(0, OpId(3), false).expect("it waits");
        assert!(left.bio.is_none() && left.next.is_none() && it.try_all());
    }

    #[test]
    fn a_write_of_whole_blocks_waits_only_for_its_own_range() {
        let mut it = fixture();
        assert!(it.line_up(1, 0..512));
        assert!(it.lock(2, 512..1024) && !it.lock(3, 0..1024) && !it.lock(4, 0..512));
        assert!(it.granted().is_empty());
        assert_eq!(it.locks.end_first(0, true), None);
        assert!(it.locks.has_news());
        assert_eq!(it.granted(), [(3, true), (4, true)]);
        assert!(!it.locks.has_news() && !it.locks.is_waiting());
        (2..5).for_each(|id| it.locks.unlock(0, OpId(id)));
        assert!(it.try_all());
    }

    #[test]
    fn an_unaligned_write_begins_when_others_end() {
        let mut it = fixture();
        assert!(it.other.lock_exclusive(0, &(0..512)));
        assert!(!it.line_up(1, 0..512) && it.locks.is_blocked(0, OpId(1)));
        it.other.unlock(0);
        assert!(it.locks.has_news());
        assert_eq!(it.granted(), [(1, false)]);
        assert!(!it.locks.is_blocked(0, OpId(1)));
        assert!(it.locks.leave(0, OpId(1), true).is_none(), "it has begun");
        assert_eq!(it.locks.end_first(0, true), None);
        assert!(it.try_all());
    }

    #[test]
    fn the_next_begins_when_the_first_leaves() {
        let mut it = fixture();
        assert!(it.other.lock_exclusive(0, &(0..512)));
        assert!(!it.line_up(1, 0..512) && !it.line_up(2, 4096..4608) && !it.lock(3, 0..512));
        let left = it.locks.leave(0, OpId(3), true).expect("it waits");
        assert!(left.bio.is_some_and(|bio| bio.user_data == 3) && left.next.is_none());
        it.locks.unlock(0, OpId(3));
        let left = it.locks.leave(0, OpId(1), true).expect("it waits");
        assert_eq!(left.next, Some(OpId(2)), "its blocks are free");
        assert_eq!(it.locks.last_blocked(), None);
        it.locks.end_first(0, true);
        it.other.unlock(0);
        assert!(it.try_all());
    }
}
