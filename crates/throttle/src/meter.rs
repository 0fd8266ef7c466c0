//! The limits of one group on one device in one direction, and whether bios wait for them.
//!
//! Invariants:
//! * A meter lives as long as its group on its device, whatever its limits become.
//! * `since` is written only with the turn of the lane in which the meter stands, or while the meter
//!   stands in none.
//! * `blocked` is a hint for those who pass without the turn: it is true while bios are known to wait
//!   for this very meter, which others then do not overtake.

use crate::budget::{BURST, Budget, Pays, Ticks, rescaled, worth};
use drystone_core::primitive::{AtomicBool, AtomicU64, Ordering::*};

/// See the module's text. On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    pub(crate) bps: Budget,
    pub(crate) iops: Budget,
    /// From when on an I/O that is worth more than the burst has been paid for; 0 is none.
    since: AtomicU64,
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

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Relaxed);
    }

    /// When an I/O of `bytes` may pass here, if nothing else passes before; not after `now` if it
    /// may at once. With the turn.
    pub(crate) fn when(&self, now: Ticks, bytes: u64, pays: Pays) -> Ticks {
        self.when_bytes(now, bytes, pays).max(match self.iops.rate() {
            Some(_) => free_at(self.iops.tat()),
            None => 0,
        })
    }

    fn when_bytes(&self, now: Ticks, bytes: u64, pays: Pays) -> Ticks {
        let Some(rate) = self.bps.rate() else { return 0 };
        let (tat, cost) = (self.bps.tat(), worth(bytes, rate));
        match pays {
            Pays::After => free_at(tat),
            Pays::First if cost <= BURST => tat.saturating_add(cost).saturating_sub(BURST),
            Pays::First => {
                if self.since.load(Relaxed) == 0 {
                    self.since.store(tat.max(now), Relaxed);
                }
                tat.max(self.since.load(Relaxed)).saturating_add(cost) - BURST
            }
        }
    }

    /// Charge an I/O of `bytes` that passes now. With the turn.
    pub(crate) fn charge(&self, now: Ticks, bytes: u64, pays: Pays) {
        self.iops.charge(now, 1);
        let cost = self.bps.rate().map_or(0, |rate| worth(bytes, rate));
        let base = match pays {
            // It has been paid for a while, but it cannot have been for longer than it is worth.
            Pays::First if cost > BURST => {
                self.since.swap(0, Relaxed).max(now.saturating_sub(cost - BURST)).min(now)
            }
            _ => now,
        };
        self.bps.charge(base, bytes);
    }

    /// What an I/O of `bytes` is worth here.
    pub(crate) fn worth(&self, bytes: u64) -> Ticks {
        let bytes = self.bps.rate().map_or(0, |rate| worth(bytes, rate));
        bytes.max(self.iops.rate().map_or(0, |rate| worth(1, rate)))
    }

    /// An I/O of `bytes` that pays first takes longer than the burst.
    pub(crate) fn saves_for(&self, bytes: u64) -> bool {
        self.bps.rate().is_some_and(|rate| worth(bytes, rate) > BURST)
    }

    /// Change the limits. With the turn, or while the meter stands in no lane.
    pub(crate) fn set_rates(&self, now: Ticks, bps: Option<u64>, iops: Option<u64>) {
        let before = self.bps.set_rate(now, bps);
        self.iops.set_rate(now, iops);
        let since = match (before, bps, self.since.load(Relaxed)) {
            (Some(before), Some(bps), since) if since > 0 => {
                rescaled(since, now, before, bps).max(1)
            }
            _ => 0,
        };
        self.since.store(since, Relaxed);
    }
}

/// When nothing is owed beyond the burst.
fn free_at(tat: Ticks) -> Ticks {
    tat.saturating_add(1).saturating_sub(BURST)
}
