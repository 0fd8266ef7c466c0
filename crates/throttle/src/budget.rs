//! One limit without a lock: the generic cell rate algorithm (GCRA, ITU-T I.371) as virtual
//! scheduling.
//!
//! The state is the *theoretical arrival time* (`tat`): the time at which the limit would have let
//! all charges pass. It may run ahead of the clock by [`BURST_NS`], no further. A context with much
//! I/O takes a **lease** with a charge: an amount beyond its present need, charged at once and
//! spent later without a write to shared memory ([`crate::credit`]).
//!
//! Invariants:
//! * An I/O passes when its cost, less the burst, is paid. So after its charge `tat` is at most the
//!   burst ahead of the clock. An I/O that costs more than the burst is paid while it waits.
//! * While I/Os wait, the clock may run ahead of `tat`. An I/O may pass late because of limits
//!   above, or because a channel polled late; it loses no time by that, up to a slice. So a large
//!   I/O can use the time that small ones left unused. But the clock runs ahead by no more than the
//!   cost of the largest I/O and the rest of the slice.
//! * `leased` is at least the amount that contexts have leased and not spent, and at most the
//!   amount that passes in [`LEASE_NS`]. A lease has no end time; it counts until its context takes
//!   the next one or gives it back.
//! * So in any time T at most `limit * (T + SLICE)` plus one I/O passes: all I/O that passes was
//!   charged within T, or was paid by a lease from before.
//! * A change of the limit converts the debt to the new limit; no debt is forgiven.
//!
//! Memory order: every change of a value is a read-modify-write of one word. No other data is
//! published through these values.

use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicU64, Ordering::*};

/// Sixteenths of a nanosecond.
pub(crate) type Ticks = u64;

const TICKS_A_NS: u64 = 16;
const TICKS_A_SECOND: u128 = 1_000_000_000 * TICKS_A_NS as u128;

/// The time by which `tat` may run ahead of the clock.
pub(crate) const BURST_NS: Ns = 50_000_000;
/// The most that all contexts together may have leased.
pub(crate) const LEASE_NS: Ns = 30_000_000;
/// The slice: the time whose amount may pass in addition to limit times time.
pub const SLICE_NS: Ns = BURST_NS + LEASE_NS;

pub(crate) const BURST: Ticks = ticks_of(BURST_NS);
/// The delay by which a waiting I/O may pass late without losing time, in addition to the burst.
const LATE: Ticks = ticks_of(SLICE_NS) - BURST;

/// The highest cost of one I/O, which is nine years.
const COST_MAX: u128 = 1 << 62;

/// The amount that a context may spend without a limit before it asks again.
pub(crate) const UNLIMITED: u64 = 1 << 62;

pub(crate) const fn ticks_of(ns: Ns) -> Ticks {
    ns.saturating_mul(TICKS_A_NS)
}

/// `at` in nanoseconds, rounded up.
pub(crate) const fn ns_of(at: Ticks) -> Ns {
    at.div_ceil(TICKS_A_NS)
}

/// The cost of `amount` units: the time that they take at `rate`, rounded up.
pub(crate) fn cost_ticks(amount: u64, rate: u64) -> Ticks {
    let exact = (u128::from(amount) * TICKS_A_SECOND).div_ceil(u128::from(rate));
    exact.min(COST_MAX) as Ticks
}

/// The amount that passes in `time` at `rate`, rounded down.
fn amount(time: Ticks, rate: u64) -> u64 {
    (u128::from(time) * u128::from(rate) / TICKS_A_SECOND).min(u128::from(UNLIMITED)) as u64
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Budget {
    /// Units a second; 0 is no limit.
    rate: AtomicU64,
    tat: AtomicU64,
    leased: AtomicU64,
    /// The time since which bios have been waiting here; 0 if none wait. Written only with the
    /// lane's turn.
    since: AtomicU64,
    /// The largest I/O, in units, that has waited since then. Written only with the lane's turn.
    largest: AtomicU64,
}

impl Budget {
    /// The limit, in units a second.
    #[inline]
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Acquire)).filter(|rate| *rate > 0)
    }

    /// Charge `least` units at `now` if they may pass, and a lease with them. Returns the lease;
    /// `None` if the units may not pass.
    pub(crate) fn take(&self, now: Ticks, least: u64) -> Option<u64> {
        loop {
            let Some(rate) = self.rate() else { return Some(UNLIMITED) };
            let tat = self.tat.load(Acquire);
            let (base, end) = (tat.max(now), now + BURST);
            let charged = base.saturating_add(cost_ticks(least, rate));
            if charged > end {
                return None;
            }
            let lease = self.lease(rate, end - charged, least);
            let next = charged + cost_ticks(lease, rate);
            if self.tat.compare_exchange(tat, next, AcqRel, Relaxed).is_err() {
                self.unlease(lease);
            } else if self.rate.load(Acquire) != rate {
                // The charge followed a limit that has changed meanwhile.
                self.unlease(lease);
                self.lower(next - base);
            } else {
                return Some(lease);
            }
        }
    }

    /// Lease half of `room` and at most half of what is left for all contexts. Returns 0 if that
    /// would be too little to be of use.
    fn lease(&self, rate: u64, room: Ticks, least: u64) -> u64 {
        let wanted = amount(room / 2, rate);
        if wanted < least.saturating_mul(2) {
            return 0;
        }
        let most = amount(ticks_of(LEASE_NS), rate);
        let mut leased = self.leased.load(Relaxed);
        loop {
            let free = match drystone_core::mutated!("budget_lease_bound") {
                true => most,
                false => most.saturating_sub(leased),
            };
            let lease = wanted.min(free / 2);
            if lease == 0 {
                return 0;
            }
            match self.leased.compare_exchange(leased, leased + lease, Relaxed, Relaxed) {
                Ok(_) => return lease,
                Err(now) => leased = now,
            }
        }
    }

    fn unlease(&self, lease: u64) {
        if lease > 0 {
            change(&self.leased, |leased| leased.saturating_sub(lease));
        }
    }

    fn lower(&self, by: Ticks) {
        if by > 0 {
            change(&self.tat, |tat| tat.saturating_sub(by));
        }
    }

    /// Give back `unspent` units that were charged, and end `lease` units of a lease.
    pub(crate) fn give_back(&self, unspent: u64, lease: u64) {
        self.unlease(lease);
        if let Some(rate) = self.rate() {
            // The time is rounded down, so that spent units stay paid.
            let exact = u128::from(unspent) * TICKS_A_SECOND / u128::from(rate);
            self.lower(exact.min(COST_MAX) as Ticks);
        }
    }

    /// Note that bios wait here from `now` on, unless others waited already.
    pub(crate) fn begin_waiting(&self, now: Ticks) {
        if self.since.load(Relaxed) == 0 {
            self.since.store(now, Relaxed);
        }
    }

    pub(crate) fn end_waiting(&self) {
        self.since.store(0, Relaxed);
        self.largest.store(0, Relaxed);
    }

    /// The time at which `units` that wait may pass if nothing else passes before. With the turn.
    pub(crate) fn when(&self, units: u64) -> Ticks {
        let Some(rate) = self.rate() else { return 0 };
        self.largest.store(self.largest.load(Relaxed).max(units), Relaxed);
        let base = self.tat.load(Acquire).max(self.since.load(Relaxed));
        base.saturating_add(cost_ticks(units, rate)).saturating_sub(BURST)
    }

    /// Charge `units` that have waited and pass at `now`. With the turn.
    pub(crate) fn charge(&self, now: Ticks, units: u64) {
        let Some(rate) = self.rate() else { return };
        let late = cost_ticks(self.largest.load(Relaxed), rate).saturating_add(LATE);
        let base = self.since.load(Relaxed).max(now.saturating_sub(late));
        change(&self.tat, |tat| tat.max(base).saturating_add(cost_ticks(units, rate)));
    }

    /// Change the limit at `now`. A debt is converted to the new limit; if a limit is added or
    /// removed, there is no debt. With the turn, or while no bios wait here.
    pub(crate) fn set_rate(&self, now: Ticks, rate: Option<u64>) {
        let before = self.rate();
        self.rate.store(rate.unwrap_or(0), Release);
        change(&self.tat, |tat| match (before, rate) {
            (Some(before), Some(rate)) => rescaled(tat, now, before, rate),
            _ => now.min(tat),
        });
        if let (Some(before), Some(rate), since @ 1..) = (before, rate, self.since.load(Relaxed)) {
            self.since.store(rescaled(since, now, before, rate).max(1), Relaxed);
        }
    }
}

fn change(cell: &AtomicU64, mut to: impl FnMut(u64) -> u64) {
    let mut value = cell.load(Acquire);
    while let Err(now) = cell.compare_exchange(value, to(value), AcqRel, Acquire) {
        value = now;
    }
}

/// Move the time `at` so that the time between `now` and it is worth the same amount at another
/// limit.
fn rescaled(at: Ticks, now: Ticks, before: u64, rate: u64) -> Ticks {
    let scale = |time: Ticks| {
        let scaled = (u128::from(time) * u128::from(before)).div_ceil(u128::from(rate));
        scaled.min(COST_MAX) as Ticks
    };
    match at.checked_sub(now) {
        Some(owed) => now.saturating_add(scale(owed)),
        None => now.saturating_sub(scale(now - at)),
    }
}
