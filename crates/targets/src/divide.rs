//! Division of sectors by an invariant number, with one multiplication.
//!
//! For `n` below 2^55 and `d` below 2^32, `n / d` is `n * m >> k` with `k` = 55 + ceil(log2 d) and
//! `m` = ceil(2^k / d). This is the upper half of `(n << 9) * m`, shifted by ceil(log2 d). The
//! relative error of `m` is less than 2^ceil(log2 d) / 2^k, which is too small to reach the next
//! quotient (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", PLDI
//! 1994, theorem 4.2).

/// A divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    value: u64,
    magic: u64,
    shift: u32,
}

impl Divisor {
    /// The bits of a dividend: enough for every sector of a 63-bit byte offset.
    const BITS: u32 = 55;

    /// # Panics
    /// If `value` is 0.
    pub(crate) fn new(value: u32) -> Self {
        let shift = u64::from(value).next_power_of_two().trailing_zeros();
        let magic = (1u128 << (Self::BITS + shift)).div_ceil(u128::from(value)) as u64;
        Divisor { value: value.into(), magic, shift }
    }

    #[inline]
    pub(crate) fn value(self) -> u64 {
        self.value
    }

    /// Quotient and remainder of `n`, which must be below 2^55.
    #[inline]
    pub(crate) fn divide(self, n: u64) -> (u64, u64) {
        debug_assert!(n >> Self::BITS == 0);
        let product = u128::from(n << (64 - Self::BITS)) * u128::from(self.magic);
        let quotient = (product >> 64) as u64 >> self.shift;
        (quotient, n - quotient * self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agrees(n: u64, d: u32) {
        assert_eq!(Divisor::new(d).divide(n), (n / u64::from(d), n % u64::from(d)), "{n} / {d}");
    }

    #[test]
    fn edges() {
        for d in [1, 2, 3, 5, 7, 8, 127, 128, 129, 65_537, u32::MAX - 1, u32::MAX] {
            let around = |n: u64| [n.saturating_sub(1), n, (n + 1).min((1 << 55) - 1)];
            for n in [0, d.into(), u64::from(d) * 3, (1 << 55) / u64::from(d) * u64::from(d) - 1] {
                around(n).into_iter().for_each(|n| agrees(n.min((1 << 55) - 1), d));
            }
            agrees((1 << 55) - 1, d);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn as_the_processor(n in 0u64..1 << 55, d in 1u32.., near in 0u64..1 << 23) {
            agrees(n, d);
            agrees(n, d >> 20 | 1);
            let multiple = (near * u64::from(d)).min((1 << 55) - 1);
            agrees(multiple, d);
            agrees(multiple.saturating_sub(1), d);
        }
    }
}
