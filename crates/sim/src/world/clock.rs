//! The simulated clock.

use drystone_core::clock::{Clock, Ns};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time when a simulation begins. Not zero, which the block layer takes for "no reading".
pub const START_NS: Ns = 1_000_000_000;

/// The clock, which only the simulation moves.
pub(super) struct SimClock {
    now: AtomicU64,
}

impl SimClock {
    pub(super) fn new() -> Self {
        SimClock { now: AtomicU64::new(START_NS) }
    }

    /// Move the clock to `at`, unless it is later already.
    pub(super) fn move_to(&self, at: Ns) {
        self.now.fetch_max(at, Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Ns {
        self.now.load(Relaxed)
    }

    fn cycles(&self) -> Option<u64> {
        Some(self.now())
    }

    fn cycles_in(&self, ns: Ns) -> u64 {
        ns
    }
}
