//! Latency histograms with fixed log-linear buckets: 16 to an octave, so a value is known to
//! 6.25 % or better, from 0 ns to 2^40 ns (18 minutes); longer ones fall into the last bucket.
//!
//! Invariant: one writer at a time (the owner of the channel), so counting is a plain relaxed
//! load and store; readers may look at any time and see each bucket whole.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
const OCTAVES: usize = 40 - SUB_BITS as usize;
/// Number of buckets.
pub const BUCKETS: usize = SUB * (OCTAVES + 1);

/// The bucket of a value.
#[inline]
pub fn bucket_of(ns: u64) -> usize {
    let octave = 63 - (ns | SUB as u64).leading_zeros() - SUB_BITS;
    let bucket = octave as usize * SUB + (ns >> octave) as usize;
    bucket.min(BUCKETS - 1)
}

/// The largest value that falls into `bucket`.
pub fn bucket_top(bucket: usize) -> u64 {
    if bucket < 2 * SUB {
        return bucket as u64;
    }
    let octave = bucket / SUB - 1;
    let sub = (bucket % SUB + SUB) as u64;
    ((sub + 1) << octave) - 1
}

/// Whole cache lines, so that no writer shares one with another.
#[repr(align(64))]
struct Buckets([AtomicU64; BUCKETS]);

/// A histogram that its one writer fills while others read.
pub struct Histogram {
    buckets: Box<Buckets>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: Box::new(Buckets([const { AtomicU64::new(0) }; BUCKETS])) }
    }
}

impl Histogram {
    /// Count `n` values of `bucket`. Only the owner may call this.
    #[inline]
    pub fn add(&self, bucket: usize, n: u64) {
        let cell = &self.buckets.0[bucket];
        cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Add what was counted so far to `sum`.
    pub fn add_to(&self, sum: &mut Snapshot) {
        for (cell, s) in self.buckets.0.iter().zip(sum.counts.iter_mut()) {
            *s += cell.load(Relaxed);
        }
    }
}

/// A histogram as it was at one moment, summed over contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    counts: Vec<u64>,
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot { counts: vec![0; BUCKETS] }
    }
}

impl Snapshot {
    /// Number of values.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(a, b)| a.wrapping_sub(*b));
        Snapshot { counts: counts.collect() }
    }

    /// Add another snapshot's counts.
    pub fn merge(&mut self, other: &Snapshot) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
    }

    /// Upper bound of the value below which `percent` (0 to 100) of all lie; `None` if empty.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let total = self.total();
        let rank = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(bucket_top(bucket));
            }
        }
        None
    }

    /// The least value's bucket, as its lower bound; `None` if empty.
    pub fn min(&self) -> Option<u64> {
        let first = self.counts.iter().position(|c| *c > 0)?;
        Some(if first == 0 { 0 } else { bucket_top(first - 1) + 1 })
    }

    /// The greatest value's bucket, as its upper bound; `None` if empty.
    pub fn max(&self) -> Option<u64> {
        self.counts.iter().rposition(|c| *c > 0).map(bucket_top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_tight() {
        assert_eq!(bucket_of(0), 0);
        for bucket in 0..BUCKETS - 1 {
            let top = bucket_top(bucket);
            assert_eq!(bucket_of(top), bucket, "top of {bucket} is {top}");
            assert_eq!(bucket_of(top + 1), bucket + 1);
            let low = if bucket == 0 { 0 } else { bucket_top(bucket - 1) + 1 };
            assert!(top - low <= low / 16, "bucket {bucket}: {low} to {top}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn two_histograms_share_no_line() {
        let all: Vec<_> = (0..16).map(|_| Histogram::default()).collect();
        let lines = |h: &Histogram| {
            let start = h.buckets.0.as_ptr().addr();
            (start / 64, (start + BUCKETS * 8 - 1) / 64)
        };
        let mut ranges: Vec<_> = all.iter().map(lines).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0), "{ranges:?}");
    }

    #[test]
    fn percentiles_bound_the_values() {
        let h = Histogram::default();
        for v in 1..=1000u64 {
            h.add(bucket_of(v), 1);
        }
        let mut s = Snapshot::default();
        assert_eq!((s.percentile(50.0), s.min(), s.max()), (None, None, None));
        h.add_to(&mut s);
        assert_eq!(s.total(), 1000);
        for p in [1.0, 50.0, 90.0, 99.0, 100.0] {
            let exact = (p * 10.0) as u64;
            let got = s.percentile(p).unwrap();
            assert!(got >= exact && got <= exact + exact / 16 + 1, "p{p}: {got}");
        }
        assert_eq!(s.min(), Some(1));
        assert_eq!(s.since(&s).total(), 0);
    }
}
