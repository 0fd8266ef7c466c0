//! Interrupts that one session of a mount has read and another session must obey.
//!
//! Invariants:
//! * The list has an interrupt before the count includes it.
//! * The oldest interrupt is dropped when the list has [`REMEMBERED_MAX`]. The kernel does not
//!   reuse numbers of requests, so an interrupt that comes after the answer does no harm.

use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The most remembered interrupts: more than the processes that are interrupted at one moment while
/// another session reads their requests.
const REMEMBERED_MAX: usize = 1024;

/// Interrupts of requests that their reader does not have. Any thread may use it.
pub(super) struct Interrupts {
    /// The number of interrupts so far. The adder stores it (Release) after it has put the
    /// interrupt into the list. A session that loads it (Acquire) finds the interrupt there.
    count: AtomicU64,
    recent: Lock<VecDeque<u64>>,
}

impl Interrupts {
    /// A list without interrupts.
    pub(super) fn new() -> Self {
        let recent = Lock::new(LockClass::Control, VecDeque::new());
        Interrupts { count: AtomicU64::new(0), recent }
    }

    /// Remembers the interrupt of request `unique`.
    pub(super) fn add(&self, unique: u64, user: &LockCounters) {
        let mut recent = self.recent.lock(user);
        if recent.len() == REMEMBERED_MAX {
            recent.pop_front();
        }
        recent.push_back(unique);
        self.count.fetch_add(1, Release);
    }

    /// The number of interrupts so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// True if request `unique` was interrupted.
    pub(super) fn has(&self, unique: u64, user: &LockCounters) -> bool {
        self.count() > 0 && self.recent.lock(user).contains(&unique)
    }

    /// The interrupts after the first `seen`, as far as they are remembered, and their number so
    /// far.
    pub(super) fn since(&self, seen: u64, user: &LockCounters) -> (Vec<u64>, u64) {
        let recent = self.recent.lock(user);
        let count = self.count();
        let new = usize::try_from(count - seen).unwrap_or(usize::MAX).min(recent.len());
        (recent.range(recent.len() - new..).copied().collect(), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    #[test]
    fn each_is_told_once() {
        let user = LockCounters::new(ManualClock::new(1));
        let interrupts = Interrupts::new();
        assert_eq!(interrupts.since(0, &user), (vec![], 0));
        (1..=3).for_each(|unique| interrupts.add(unique, &user));
        assert_eq!(interrupts.since(0, &user), (vec![1, 2, 3], 3));
        assert_eq!(interrupts.since(2, &user), (vec![3], 3));
        assert_eq!(interrupts.since(3, &user), (vec![], 3));
        let many = REMEMBERED_MAX as u64 + 3;
        (4..=many).for_each(|unique| interrupts.add(unique, &user));
        let (new, count) = interrupts.since(1, &user);
        assert_eq!(
            (new.len(), new[0], count),
            (REMEMBERED_MAX, 4, many),
            "the oldest are forgotten"
        );
        assert!(interrupts.has(4, &user) && !interrupts.has(3, &user));
    }
}
