//! The locks on ranges of its device that a connection's writes hold, and the order of its
//! unaligned writes.
//!
//! ```text
//!   whole blocks:    shared lock ------------------------> free: goes; else blocked
//!   parts of blocks: in line --> first: exclusive lock --> free: goes; else blocked
//! ```
//!
//! Invariants:
//! * An operation that changes blocks has them locked from its first bio to its reply, at the slot
//!   of its number: shared if it covers whole blocks, otherwise exclusively.
//! * An unaligned write asks for its lock when it is the first in line. So a connection keeps other
//!   clients waiting with at most one, however slow its throttle group is. The others in line have
//!   nothing locked.
//! * `blocked` counts the operations that have asked for a lock and do not hold it.

use crate::server::OpId;
use drystone_core::range_lock::RangeUser;
use std::collections::VecDeque;
use std::ops::Range;

/// The mode in which an operation locks its blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Shared with other writes of whole blocks.
    Shared,
    /// Exclusive.
    Exclusive,
}

/// The locks of a connection's writes.
pub(super) struct WriteLocks {
    locks: RangeUser,
    blocked: usize,
    /// Unaligned writes in the order in which they came. The first is under way.
    line: VecDeque<OpId>,
    /// Slots that were granted, while they are taken out.
    granted: Vec<usize>,
}

impl WriteLocks {
    /// The locks of a connection that uses `locks`.
    pub(super) fn new(locks: RangeUser) -> Self {
        WriteLocks { locks, blocked: 0, line: VecDeque::new(), granted: Vec::new() }
    }

    /// True while an operation waits for its range. The thread is woken when one has it.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked > 0
    }

    /// True if an operation that waited may have its range now.
    pub(super) fn has_news(&self) -> bool {
        self.locks.has_news()
    }

    /// Asks for a lock. True if the operation holds it; else it is blocked.
    #[inline]
    pub(super) fn lock(&mut self, id: OpId, hold: Hold, range: &Range<u64>) -> bool {
        let is_held = match hold {
            Hold::Shared => self.locks.lock_shared(id.index(), range),
            Hold::Exclusive => self.locks.lock_exclusive(id.index(), range),
        };
        self.blocked += usize::from(!is_held);
        is_held
    }

    /// Frees the range of an operation, or withdraws its request for one. Returns the unaligned
    /// write whose turn comes if the operation was the first in line: that one asks for its lock
    /// next.
    #[inline]
    pub(super) fn unlock(&mut self, id: OpId) -> Option<OpId> {
        self.locks.unlock(id.index());
        if self.line.front() == Some(&id) { self.next_turn() } else { None }
    }

    #[cold]
    fn next_turn(&mut self) -> Option<OpId> {
        self.line.pop_front();
        self.line.front().copied()
    }

    /// Puts an unaligned write in line. True if it is the first: it asks for its lock next.
    pub(super) fn line_up(&mut self, id: OpId) -> bool {
        self.line.push_back(id);
        self.line.len() == 1
    }

    /// Takes the last unaligned write that waits for its turn out of the line.
    pub(super) fn leave_line(&mut self) -> Option<OpId> {
        if self.line.len() < 2 { None } else { self.line.pop_back() }
    }

    /// Hands the operations that have waited for their range, and hold it now, to `go_on`.
    #[cold]
    pub(super) fn take_granted(&mut self, mut go_on: impl FnMut(OpId)) {
        if self.locks.has_news() {
            self.locks.take_granted(&mut self.granted);
            self.blocked -= self.granted.len();
            self.granted.drain(..).for_each(|place| go_on(OpId(place as u32)));
        }
    }

    /// Notes that a blocked operation gives up; its caller unlocks it.
    pub(super) fn give_up_blocked(&mut self) {
        self.blocked -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::ContextSet;
    use drystone_core::clock::ManualClock;
    use drystone_core::range_lock::RangeLock;
    use drystone_core::ring::Engine;
    use drystone_core::sync::LockCounters;

    /// The locks of a connection, and another user of the device.
    fn locks() -> (WriteLocks, RangeUser) {
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).expect("a context");
        let lock = RangeLock::new();
        let join = || lock.join(8, cx.handle().clone(), LockCounters::new(ManualClock::new(1)));
        (WriteLocks::new(join()), join())
    }

    fn granted(locks: &mut WriteLocks) -> Vec<u32> {
        let mut granted = Vec::new();
        locks.take_granted(|id| granted.push(id.0));
        granted
    }

    #[test]
    fn writes_of_whole_blocks_go_together() {
        let (mut locks, mut other) = locks();
        for id in 0..3 {
            assert!(locks.lock(OpId(id), Hold::Shared, &(0..512)));
        }
        assert!(!locks.is_blocked() && !other.lock_exclusive(0, &(0..512)));
        assert!((0..3).all(|id| locks.unlock(OpId(id)).is_none()));
        assert!(other.has_news());
    }

    #[test]
    fn a_blocked_write_goes_on_when_the_range_is_free() {
        let (mut locks, mut other) = locks();
        assert!(other.lock_exclusive(0, &(0..512)));
        assert!(!locks.lock(OpId(4), Hold::Shared, &(0..1024)));
        assert!(locks.lock(OpId(5), Hold::Shared, &(512..1024)), "another block");
        assert!(locks.is_blocked() && granted(&mut locks).is_empty());
        other.unlock(0);
        assert!(locks.has_news());
        assert_eq!((granted(&mut locks), locks.is_blocked()), (vec![4], false));
    }

    #[test]
    fn unaligned_writes_ask_one_after_the_other() {
        let (mut locks, mut other) = locks();
        assert!(locks.line_up(OpId(1)) && !locks.line_up(OpId(2)) && !locks.line_up(OpId(3)));
        assert!(locks.lock(OpId(1), Hold::Exclusive, &(0..512)));
        assert_eq!(locks.unlock(OpId(7)), None, "not the first in line");
        assert_eq!(locks.leave_line(), Some(OpId(3)));
        assert_eq!(locks.unlock(OpId(1)), Some(OpId(2)));
        assert!(locks.lock(OpId(2), Hold::Exclusive, &(0..512)));
        assert_eq!(locks.leave_line(), None, "the first is under way");
        assert!(!other.lock_exclusive(0, &(0..512)));
        assert_eq!(locks.unlock(OpId(2)), None);
        assert!(other.has_news());
    }
}
