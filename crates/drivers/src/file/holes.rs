//! A cache of known data of a file, for the allocation query ([`super::extents`]).
//!
//! Invariants:
//! * The cache never remembers a hole, so a query sees each write that has ended. "Data" is always
//!   a permitted answer, so the cache remembers the last run of data. The search for the end of a
//!   long run takes time in proportion to its length (tmpfs looks at each page), and a client that
//!   goes through a file asks for it again and again.
//! * The cache remembers a run only if no hole was made since its search began.

use drystone_core::primitive::{AtomicU64, Ordering::*};
use std::ops::Range;

/// The known data of a file, and whether queries ask the file system.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    /// True if queries ask the file system; otherwise all is data.
    detect: bool,
    /// The last run of data that was found, in whole MiB: its begin in the upper half, its end in
    /// the lower half. Empty if nothing is known.
    known: AtomicU64,
}

/// The unit of remembered runs, 1 MiB: a search for shorter runs is fast anyway.
const UNIT_BITS: u32 = 20;
/// The value during a search: an empty run, which a hole made meanwhile overwrites.
const ASKING: u64 = 1;

impl Holes {
    /// An empty cache; `detect`: queries ask the file system.
    pub(crate) fn new(detect: bool) -> Self {
        Holes { detect, known: AtomicU64::new(0) }
    }

    /// True if the file system is asked for holes.
    pub(crate) fn is_detected(&self) -> bool {
        self.detect
    }

    /// Forgets the known data, because a hole was made. Called by all operations that make holes.
    pub(crate) fn made(&self) {
        if self.known.load(Relaxed) != 0 {
            self.known.store(0, Relaxed);
        }
    }

    /// The end of the known data that `at` lies in.
    pub(super) fn data_from(&self, at: u64) -> Option<u64> {
        let known = self.known.load(Relaxed);
        let run = (known >> 32) << UNIT_BITS..(known & u64::from(u32::MAX)) << UNIT_BITS;
        (known != ASKING && run.contains(&at)).then_some(run.end)
    }

    /// Notes that the file system is being asked for a run of data.
    pub(super) fn begin_asking(&self) {
        self.known.store(ASKING, Relaxed);
    }

    /// Remembers a run that was found since [`Holes::begin_asking`]. If two threads search at once,
    /// one run is remembered. A wrong run makes a copy less sparse, but never incorrect.
    pub(super) fn remember(&self, run: Range<u64>) {
        let (from, to) = (run.start.div_ceil(1 << UNIT_BITS), run.end >> UNIT_BITS);
        if to > from && to <= u64::from(u32::MAX) {
            let _ = self.known.compare_exchange(ASKING, from << 32 | to, Relaxed, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << UNIT_BITS;

    #[test]
    fn whole_units_of_a_run_are_remembered() {
        let holes = Holes::new(true);
        assert_eq!(holes.data_from(0), None);
        holes.begin_asking();
        assert_eq!(holes.data_from(0), None, "nothing is known yet");
        holes.remember(MIB / 2..3 * MIB + 1);
        let known = [MIB / 2, MIB, 3 * MIB - 1, 3 * MIB].map(|at| holes.data_from(at));
        assert_eq!(known, [None, Some(3 * MIB), Some(3 * MIB), None]);
    }

    #[test]
    fn a_hole_made_meanwhile_keeps_a_run_from_being_remembered() {
        let holes = Holes::new(true);
        holes.begin_asking();
        holes.made();
        holes.remember(0..4 * MIB);
        assert_eq!(holes.data_from(0), None);
        holes.begin_asking();
        holes.remember(0..4 * MIB);
        assert_eq!(holes.data_from(0), Some(4 * MIB));
        holes.made();
        assert_eq!(holes.data_from(0), None);
    }
}
