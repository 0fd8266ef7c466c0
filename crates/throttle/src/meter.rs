//! The limits of one group on one device in one direction, and whether bios wait for them.
//!
//! Invariants:
//! * A meter lives as long as its group on its device, whatever happens to the limits.
//! * `blocked` is a hint for channels that pass without the turn. It is true while bios are known
//!   to wait for this meter itself, so that others do not overtake them.

use crate::budget::{Budget, Ticks, cost_ticks};
use crate::group::GroupId;
use drystone_core::primitive::{AtomicBool, Ordering::*};
use std::sync::Arc;

/// See the module's text. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    pub(crate) bps: Budget,
    pub(crate) iops: Budget,
    blocked: AtomicBool,
}

impl Meter {
    pub(crate) fn is_limited(&self) -> bool {
        self.bps.rate().is_some() || self.iops.rate().is_some()
    }

    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Relaxed)
    }

    pub(crate) fn set_blocked(&self) {
        self.blocked.store(true, Relaxed);
    }

    /// Note that bios wait that must pass here. Callers of this and the functions below have the
    /// turn of the meter's lane.
    pub(crate) fn begin_waiting(&self, now: Ticks) {
        self.bps.begin_waiting(now);
        self.iops.begin_waiting(now);
    }

    /// Note that no bio waits any more. With `moves` the bios go on to wait in another lane.
    pub(crate) fn end_waiting(&self, moves: bool) {
        self.blocked.store(false, Relaxed);
        if !moves {
            self.bps.end_waiting();
            self.iops.end_waiting();
        }
    }

    /// The time at which a waiting I/O of `bytes` may pass here.
    pub(crate) fn when(&self, bytes: u64) -> Ticks {
        self.bps.when(bytes).max(self.iops.when(1))
    }

    /// Charge a waiting I/O of `bytes` that passes now.
    pub(crate) fn charge(&self, now: Ticks, bytes: u64) {
        self.bps.charge(now, bytes);
        self.iops.charge(now, 1);
    }

    /// The cost of an I/O of `bytes` here.
    pub(crate) fn cost(&self, bytes: u64) -> Ticks {
        let bytes = self.bps.rate().map_or(0, |rate| cost_ticks(bytes, rate));
        bytes.max(self.iops.rate().map_or(0, |rate| cost_ticks(1, rate)))
    }

    /// Change the limits, even while the meter is in no lane.
    pub(crate) fn set_rates(&self, now: Ticks, bps: Option<u64>, iops: Option<u64>) {
        self.bps.set_rate(now, bps);
        self.iops.set_rate(now, iops);
    }
}

/// A group on a path to the top, with its limits if it has any in that direction.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) group: GroupId,
    pub(crate) meter: Option<Arc<Meter>>,
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.meter, &other.meter) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        same && self.group == other.group
    }
}
