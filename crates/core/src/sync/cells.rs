//! Counts and times that one owner writes and anybody reads, also since a reset.
//!
//! Invariants:
//! * Only the owner (one thread at a time) adds, with plain stores. If two ever add at once a
//!   count may be lost, never more.
//! * A reset changes nothing that the owner writes. Counts and sums only grow: a reset
//!   remembers what they were ([`Count::base`]) and readers subtract it, so each update is in
//!   exactly one of the figures that are read on resetting and those read after.
//! * Shortest and longest cannot be subtracted, so they belong to a *period*. A reset begins a new
//!   one; the owner begins them again at its first time in it, and readers leave out those of an
//!   older period. An update that goes on during the reset may thus be missing in them, one that
//!   begins after it never.
//!
//! Memory order: [`Times`] publishes its first shortest and longest by the release store of their
//! period, which readers acquire. Nothing else is ordered: a reading beside the owner may be one
//! update apart from figure to figure.

use super::LockTimes;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// A count, or a sum of nanoseconds, that only grows.
#[derive(Default)]
pub(super) struct Count {
    now: AtomicU64,
    /// The count at the last reset. Resets write it, one at a time.
    base: AtomicU64,
}

impl Count {
    /// For the owner.
    #[inline]
    pub(super) fn add(&self, by: u64) {
        self.now.store(self.now.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// Since it was made.
    pub(super) fn ever(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Since the last reset, and from now on since this one if `reset`.
    pub(super) fn read(&self, reset: bool) -> u64 {
        let base = self.base.load(Relaxed);
        let now = self.ever();
        if reset {
            self.base.store(now, Relaxed);
        }
        // Less only if another thread resets between the two loads.
        now.saturating_sub(base)
    }
}

/// Times: how many, their sum, the shortest and the longest.
#[derive(Default)]
pub(super) struct Times {
    count: Count,
    total_ns: Count,
    /// The period of the shortest and the longest; 0 is none.
    period: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Times {
    /// For the owner, with the period that goes on.
    pub(super) fn add(&self, ns: u64, period: u64) {
        if self.period.load(Relaxed) == period {
            self.min_ns.store(self.min_ns.load(Relaxed).min(ns), Relaxed);
            self.max_ns.store(self.max_ns.load(Relaxed).max(ns), Relaxed);
        } else {
            self.min_ns.store(ns, Relaxed);
            self.max_ns.store(ns, Relaxed);
            self.period.store(period, Release);
        }
        self.total_ns.add(ns);
        self.count.add(1);
    }

    /// The sum since it was made.
    pub(super) fn ever_ns(&self) -> u64 {
        self.total_ns.ever()
    }

    /// As [`Count::read`]; `period` is the one that ends if `reset`.
    pub(super) fn read(&self, period: u64, reset: bool) -> LockTimes {
        let count = self.count.read(reset);
        let total_ns = self.total_ns.read(reset);
        let known = count > 0 && self.period.load(Acquire) == period;
        let known = |cell: &AtomicU64| known.then(|| cell.load(Relaxed));
        LockTimes { count, total_ns, min_ns: known(&self.min_ns), max_ns: known(&self.max_ns) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_its_own_shortest_and_longest() {
        let times = Times::default();
        assert_eq!(times.read(1, false), LockTimes::default());
        [30, 10, 20].into_iter().for_each(|ns| times.add(ns, 1));
        let first = LockTimes { count: 3, total_ns: 60, min_ns: Some(10), max_ns: Some(30) };
        assert_eq!(times.read(1, false), first);
        assert_eq!(times.read(1, true), first);
        assert_eq!(times.read(2, false), LockTimes::default());
        times.add(15, 2);
        let second = LockTimes { count: 1, total_ns: 15, min_ns: Some(15), max_ns: Some(15) };
        assert_eq!(times.read(2, false), second);
        assert_eq!(times.ever_ns(), 75, "what was counted is not taken back");
    }

    #[test]
    fn a_time_of_the_old_period_is_counted_without_its_extremes() {
        let times = Times::default();
        times.read(1, true);
        // The owner has looked at the period just before the reset.
        times.add(7, 1);
        let late = LockTimes { count: 1, total_ns: 7, min_ns: None, max_ns: None };
        assert_eq!(times.read(2, false), late);
        times.add(9, 2);
        let both = LockTimes { count: 2, total_ns: 16, min_ns: Some(9), max_ns: Some(9) };
        assert_eq!(times.read(2, false), both);
    }
}
