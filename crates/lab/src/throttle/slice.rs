//! Linux's arithmetic of a limit (6.12): the permitted amount is counted in slices of 100 ms, the
//! present one rounded up. Times are ns instead of jiffies.
//!
//! Invariants:
//! * `bytes` and `ios` are the charges since `start`.
//! * A slice lasts as long as a bio waits for it. Otherwise the next one begins without charges:
//!   unused budget is lost, and overdrawn budget is forgiven.

use drystone_core::clock::Ns;

/// A slice (Linux: `DFL_THROTL_SLICE`, HZ / 10).
pub(super) const SLICE_NS: Ns = 100_000_000;

const SLICES_A_SECOND: u64 = 10;

/// See the module's text: one limit of bytes and I/Os in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice {
    start: Ns,
    end: Ns,
    bytes: u64,
    ios: u64,
    waits: bool,
}

/// Bytes and I/Os a second.
pub(super) type Rates = (Option<u64>, Option<u64>);

/// The amount that passes at `rate` in so many slices.
fn allowed(rate: u64, slices: u64) -> u64 {
    rate.saturating_mul(slices) / SLICES_A_SECOND
}

/// The time that `amount` takes at `rate`.
fn time_of(amount: u64, rate: u64) -> Ns {
    let exact = u128::from(amount) * 1_000_000_000 / u128::from(rate);
    exact.min(u128::from(u64::MAX / 2)) as Ns
}

impl Slice {
    /// The time that an I/O of `bytes` has to wait at `now`; 0 if it may pass.
    pub(super) fn wait(&mut self, now: Ns, rates: Rates, bytes: u64) -> Ns {
        self.extend(now);
        let elapsed = now.saturating_sub(self.start);
        let by_bytes = rates.0.map_or(0, |rate| self.wait_bytes(elapsed, rate, bytes));
        let by_ios = rates.1.map_or(0, |rate| self.wait_ios(elapsed, rate));
        let wait = by_bytes.max(by_ios);
        self.waits = wait > 0;
        self.end = self.end.max(now.saturating_add(wait));
        wait
    }

    fn extend(&mut self, now: Ns) {
        let is_used = now < self.start || now > self.end;
        // If a waiter was cancelled, no thread came when its time was up.
        let is_left = now > self.end.saturating_add(SLICE_NS);
        if is_used && !self.waits || is_left {
            *self = Slice { start: now, end: now + SLICE_NS, ..Slice::default() };
        } else if self.end < now + SLICE_NS {
            self.end = (now + SLICE_NS).next_multiple_of(SLICE_NS);
        }
    }

    fn wait_bytes(&self, elapsed: Ns, rate: u64, bytes: u64) -> Ns {
        let slices = elapsed.div_ceil(SLICE_NS).max(1);
        let missing = self.bytes.saturating_add(bytes).saturating_sub(allowed(rate, slices));
        match missing {
            0 => 0,
            _ => time_of(missing, rate).max(1).saturating_add(slices * SLICE_NS - elapsed),
        }
    }

    fn wait_ios(&self, elapsed: Ns, rate: u64) -> Ns {
        let slices = elapsed / SLICE_NS + 1;
        match self.ios < allowed(rate, slices) {
            true => 0,
            false => (slices * SLICE_NS - elapsed).max(time_of(1, rate) + 1),
        }
    }

    /// Charge an I/O of `bytes` that passes at `now`, and drop the charges of past slices.
    pub(super) fn charge(&mut self, now: Ns, rates: Rates, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.ios += 1;
        self.waits = false;
        self.end = (now + SLICE_NS).next_multiple_of(SLICE_NS);
        let elapsed = now.saturating_sub(self.start);
        if elapsed < SLICE_NS {
            return;
        }
        let settled = elapsed / SLICE_NS;
        let left = |charged: u64, rate: Option<u64>| {
            rate.map_or(0, |rate| charged.saturating_sub(allowed(rate, settled)))
        };
        (self.bytes, self.ios) = (left(self.bytes, rates.0), left(self.ios, rates.1));
        self.start += settled * SLICE_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    /// The time at which each of `count` I/Os of `bytes` passes; they come one after the other from
    /// 0 on.
    fn passed(count: u64, rates: Rates, bytes: u64) -> Vec<Ns> {
        let (mut slice, mut now) = (Slice::default(), 0);
        let pass = |_| {
            while let wait @ 1.. = slice.wait(now, rates, bytes) {
                now += wait;
            }
            slice.charge(now, rates, bytes);
            now
        };
        (0..count).map(pass).collect()
    }

    fn ms(at: Ns) -> Ns {
        at / 1_000_000
    }

    /// The times of the public test-suite `blktests`, group throtl, in whole slices.
    #[test]
    fn a_second_of_a_limit_takes_a_second_but_for_the_first_slice() {
        let by_bytes = passed(256, (Some(KIB * KIB), None), 4 * KIB);
        assert!((880..=1000).contains(&ms(by_bytes[255])), "{by_bytes:?}");
        let by_ios = passed(256, (None, Some(256)), 4 * KIB);
        assert!((880..=1100).contains(&ms(by_ios[255])), "{by_ios:?}");
        let both = passed(256, (Some(KIB * KIB), Some(128)), 4 * KIB);
        assert!((1880..=2200).contains(&ms(both[255])), "the lower one holds: {both:?}");
    }

    #[test]
    fn one_io_beyond_a_slice_waits_for_all_of_it() {
        let large = passed(3, (Some(KIB * KIB), None), KIB * KIB);
        assert_eq!(large.iter().map(|at| at / 100_000_000).collect::<Vec<_>>(), [10, 20, 30]);
        let seldom = passed(3, (None, Some(1)), 512);
        assert_eq!(seldom.iter().map(|at| ms(*at) / 100).collect::<Vec<_>>(), [10, 20, 30]);
    }

    #[test]
    fn a_slice_that_is_over_is_followed_by_a_new_one() {
        let (mut slice, rates) = (Slice::default(), (None, Some(100)));
        (0..10).for_each(|_| {
            assert_eq!(slice.wait(0, rates, 512), 0);
            slice.charge(0, rates, 512);
        });
        assert!(slice.wait(0, rates, 512) > 0, "ten in a tenth of a second");
        let later = 10 * SLICE_NS;
        let burst = (0..100).take_while(|_| {
            let passes = slice.wait(later, rates, 512) == 0;
            slice.charge(later, rates, 512);
            passes
        });
        assert_eq!(burst.count(), 10, "nothing was saved up");
    }
}
