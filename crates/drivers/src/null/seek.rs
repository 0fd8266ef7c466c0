//! A disk with one head: the time to move it, and when it is free.
//!
//! Invariants:
//! * A request is served when the previous one has ended, from where that one left the head.
//! * The sum of all service times is exact, however many contexts submit at once. Two requests of
//!   the same moment may end in another order than the head moved: the place and the time are two
//!   words, each changed by one atomic operation.

use drystone_core::Op;
use drystone_core::clock::Ns;
use drystone_queue::unit::Unit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time that a head moves. Over `distance` sectors of a device of `size`:
///
/// ```text
/// 0                                                       if distance = 0
/// min_ns + (max_ns - min_ns) * sqrt(distance / size)      else, rounded down
/// ```
///
/// The head accelerates over the first half of its way and brakes over the other half, hence the
/// root. The least time is its settling time (C. Ruemmler and J. Wilkes, "An introduction to disk
/// drive modeling", IEEE Computer, March 1994).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seek {
    /// The shortest movement, ns: settling.
    pub min_ns: Ns,
    /// The longest, ns: over the whole device.
    pub max_ns: Ns,
}

impl Seek {
    /// The time, in nanoseconds, to move over `distance` of `size` sectors.
    pub fn time(&self, distance: u64, size: u64) -> Ns {
        if distance == 0 {
            return 0;
        }
        let share = (distance as f64 / size as f64).sqrt();
        self.min_ns + ((self.max_ns - self.min_ns) as f64 * share) as Ns
    }
}

/// The head of a device, shared by its queues.
pub(crate) struct Head {
    seek: Seek,
    size_sectors: u64,
    /// The sector behind the last request.
    sector: AtomicU64,
    /// The time when that request ends.
    free_at: AtomicU64,
}

impl Head {
    pub(crate) fn new(seek: Seek, size_bytes: u64) -> Self {
        let size_sectors = (size_bytes >> drystone_core::SECTOR_SHIFT).max(1);
        Head { seek, size_sectors, sector: AtomicU64::new(0), free_at: AtomicU64::new(0) }
    }

    /// Serves the request `unit`, which comes at `now` and takes `base_ns` once the head is there.
    /// Returns the time when it ends.
    pub(crate) fn serve(&self, unit: &Unit, now: Ns, base_ns: Ns) -> Ns {
        // A flush has no place.
        let distance = match unit.op {
            Op::Flush => 0,
            _ => {
                let (first, end) = (unit.sector.0, unit.end_sector().0);
                self.sector.swap(end, Relaxed).abs_diff(first)
            }
        };
        let service = base_ns + self.seek.time(distance, self.size_sectors);
        let end = |free_at: Ns| free_at.max(now).saturating_add(service);
        end(self.free_at.update(Relaxed, Relaxed, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_movement_takes_from_settling_to_the_whole_way() {
        let seek = Seek { min_ns: 1_000, max_ns: 9_000 };
        assert_eq!([0, 1, 25, 100].map(|d| seek.time(d, 100)), [0, 1_800, 5_000, 9_000]);
        let level = Seek { min_ns: 7, max_ns: 7 };
        assert_eq!([0, 1, 50, 100].map(|d| level.time(d, 100)), [0, 7, 7, 7]);
    }

    #[test]
    fn the_sum_is_exact_whoever_submits() {
        let head = Head::new(Seek { min_ns: 5, max_ns: 5 }, 1 << 20);
        let unit = |sector| {
            let mut unit = Unit::default();
            (unit.sector, unit.bytes) = (drystone_core::Sector(sector), 512);
            unit
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (head, unit) = (&head, &unit);
                // No request ends when another one does.
                let body = move || {
                    (0..1000)
                        .for_each(|n| _ = head.serve(&unit(2 + thread * 2 + n % 2 * 64), 1, 10))
                };
                scope.spawn(body);
            }
        });
        assert_eq!(head.free_at.load(Relaxed), 1 + 4000 * 15);
    }
}
