//! Counts of the I/O of groups: each context counts for itself, and a reader sums.
//!
//! Invariants:
//! * A [`GroupCounts`] has one writer at a time, the owner of its channel. No other thread writes
//!   to it, so no update is a read-modify-write. It has cache lines of its own.
//! * The counts of a channel stay when the channel is dropped.
//! * A reset does not write the writers' counts: it stores the present sums, and a reader shows the
//!   difference. So the reset needs no lock against writers and loses no later update. (The patches
//!   of 2011 that this follows zeroed the writers' counters, and could lose updates: "blk-cgroup:
//!   Make cgroup stat reset path blkg->lock free for dispatch stats", Vivek Goyal.)

use crate::limits::IoStat;
#[cfg(any(test, target_pointer_width = "32"))]
use drystone_core::primitive::{AtomicU32, fence};
use drystone_core::primitive::{AtomicU64, Ordering::*};
#[cfg(any(test, target_pointer_width = "32"))]
use drystone_core::sync::between_polls;
use std::sync::Arc;

/// A 64-bit number with one writer, which readers never see torn.
pub(crate) trait Count: Default {
    /// Add to it; only its writer calls this.
    fn add(&self, by: u64);
    fn get(&self) -> u64;
}

impl Count for AtomicU64 {
    #[inline]
    fn add(&self, by: u64) {
        self.store(self.load(Relaxed).wrapping_add(by), Relaxed);
    }

    fn get(&self) -> u64 {
        self.load(Relaxed)
    }
}

/// The same for processors that write 32 bits at a time (Linux `u64_stats_sync`): two halves, and a
/// sequence number that is odd while they are written.
///
/// Memory order: a reader that sees a half of an update also sees the odd number or a later one.
/// The writer writes the halves after the number (release fence), and the reader reads them before
/// it reads the number again (acquire fence).
#[cfg(any(test, target_pointer_width = "32"))]
#[derive(Default)]
pub(crate) struct Halves {
    sequence: AtomicU32,
    low: AtomicU32,
    high: AtomicU32,
}

#[cfg(any(test, target_pointer_width = "32"))]
impl Count for Halves {
    fn add(&self, by: u64) {
        let value = u64::from(self.high.load(Relaxed)) << 32 | u64::from(self.low.load(Relaxed));
        let next = value.wrapping_add(by);
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Relaxed);
        if !drystone_core::mutated!("halves_write_fence") {
            fence(Release);
        }
        self.low.store(next as u32, Relaxed);
        self.high.store((next >> 32) as u32, Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Release);
    }

    fn get(&self) -> u64 {
        let mut tries = 0;
        loop {
            let before = self.sequence.load(Acquire);
            let (low, high) = (self.low.load(Relaxed), self.high.load(Relaxed));
            if !drystone_core::mutated!("halves_read_fence") {
                fence(Acquire);
            }
            let is_whole = before & 1 == 0 && self.sequence.load(Relaxed) == before;
            if is_whole || drystone_core::mutated!("halves_sequence") {
                return u64::from(high) << 32 | u64::from(low);
            }
            // The writer is between its two stores.
            between_polls(&mut tries);
        }
    }
}

#[cfg(target_pointer_width = "32")]
type Cell = Halves;
#[cfg(not(target_pointer_width = "32"))]
type Cell = AtomicU64;

/// The counts of one context for one group on one device.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct GroupCounts {
    values: [Cell; 6],
}

impl GroupCounts {
    /// Count I/Os of `bytes` that passed; `at` is their kind.
    #[inline]
    pub(crate) fn passed(&self, at: usize, bytes: u64, ios: u64) {
        self.values[at].add(bytes);
        self.values[at + 1].add(ios);
    }

    fn get(&self) -> IoStat {
        IoStat::from_values(std::array::from_fn(|at| self.values[at].get()))
    }
}

/// The counts of all contexts for one group on one device.
#[derive(Default)]
pub(crate) struct Counted {
    channels: Vec<Arc<GroupCounts>>,
    /// The counts of dropped channels.
    retired: IoStat,
    /// The sums at the last reset.
    reset: IoStat,
}

impl Counted {
    pub(crate) fn for_channel(&mut self) -> Arc<GroupCounts> {
        let counts = Arc::<GroupCounts>::default();
        self.channels.push(counts.clone());
        counts
    }

    /// Keep the counts of a channel that will not count any more.
    pub(crate) fn retire(&mut self, counts: &Arc<GroupCounts>) {
        self.retired += counts.get();
        self.channels.retain(|other| !Arc::ptr_eq(other, counts));
    }

    fn sum(&self) -> IoStat {
        self.channels.iter().fold(self.retired, |mut sum, counts| {
            sum += counts.get();
            sum
        })
    }

    pub(crate) fn get(&self) -> IoStat {
        self.sum().since(&self.reset)
    }

    /// Start the shown counts from zero. Returns the counts up to now.
    pub(crate) fn reset(&mut self) -> IoStat {
        let sum = self.sum();
        sum.since(&std::mem::replace(&mut self.reset, sum))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn halves_count_like_a_whole() {
        let (halves, whole) = (Halves::default(), AtomicU64::new(0));
        for by in [1, u64::from(u32::MAX), 7, 1 << 40, u64::MAX - 5] {
            halves.add(by);
            whole.add(by);
            assert_eq!(halves.get(), whole.get());
        }
    }

    #[test]
    fn a_reset_loses_nothing_that_comes_after_it() {
        let mut counted = Counted::default();
        let (one, other) = (counted.for_channel(), counted.for_channel());
        one.passed(0, 512, 1);
        other.passed(4, 4096, 1);
        assert_eq!(
            counted.get(),
            IoStat { rbytes: 512, rios: 1, dbytes: 4096, dios: 1, ..IoStat::default() }
        );
        counted.reset();
        assert_eq!(counted.get(), IoStat::default());
        one.passed(2, 1024, 1);
        counted.retire(&one);
        other.passed(0, 512, 1);
        assert_eq!(
            counted.get(),
            IoStat { wbytes: 1024, wios: 1, rbytes: 512, rios: 1, ..IoStat::default() }
        );
    }
}
