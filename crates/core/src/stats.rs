//! Per-context statistics of a device, summed only when read: the fields of `/proc/diskstats`
//! (Linux `Documentation/admin-guide/iostats.rst`) and a latency histogram for each group.
//!
//! Invariants:
//! * Each [`ChannelStats`] has one writer at a time (the owner of its channel) and stands on
//!   cache lines of its own; nothing here is read-modify-write.
//! * In flight is a difference of two monotonic counters, summed over contexts. The reader
//!   takes the ended ones first, so the difference is never negative.
//! * The busy time is the one shared word; it is written at most once a millisecond.

use crate::clock::Ns;
use crate::failures::Failures;
use crate::histogram::{Histogram, Snapshot, bucket_of};
use crate::op::{OP_GROUPS, OpGroup};
use crate::sync::{Lock, LockClass, LockCounters};
use crate::units::SECTOR_SHIFT;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// Counters of one group of operations.
#[derive(Default)]
struct GroupCells {
    started: AtomicU64,
    completed: AtomicU64,
    merged: AtomicU64,
    sectors: AtomicU64,
    time_ns: AtomicU64,
}

#[inline]
fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(by), Release);
}

/// The counts of one context for one device.
#[derive(Default)]
pub struct ChannelStats {
    groups: [CachePadded<GroupCells>; OP_GROUPS],
    histograms: [Histogram; OP_GROUPS],
}

impl ChannelStats {
    /// `n` requests of `group` were handed to the driver or scheduler.
    #[inline]
    pub fn started(&self, group: OpGroup, n: u64) {
        bump(&self.groups[group as usize].started, n);
    }

    /// A bio of `group` was merged into a request.
    #[inline]
    pub fn merged(&self, group: OpGroup) {
        bump(&self.groups[group as usize].merged, 1);
    }

    /// `n` requests of `group` ended, each `latency` ns after its start.
    #[inline]
    pub fn ended(&self, group: OpGroup, n: u64, bytes: u64, latency: Ns) {
        let cells = &self.groups[group as usize];
        bump(&cells.sectors, bytes >> SECTOR_SHIFT);
        bump(&cells.time_ns, latency.wrapping_mul(n));
        self.histograms[group as usize].add(bucket_of(latency), n);
        bump(&cells.completed, n);
    }

    /// Add this context's counts to `sum`.
    pub fn add_to(&self, sum: &mut DiskStats) {
        for (cells, s) in self.groups.iter().zip(sum.groups.iter_mut()) {
            s.completed += cells.completed.load(Acquire);
            s.merged += cells.merged.load(Relaxed);
            s.sectors += cells.sectors.load(Relaxed);
            s.time_ns += cells.time_ns.load(Relaxed);
            s.started += cells.started.load(Acquire);
        }
    }

    /// Add this context's latencies of `group` to `sum`.
    pub fn add_latencies(&self, group: OpGroup, sum: &mut Snapshot) {
        self.histograms[group as usize].add_to(sum);
    }
}

/// Bios that a channel has started in this call and not published yet: one write to the statistics
/// for all of a group.
#[derive(Debug, Default)]
pub struct StartedCounts([u64; OP_GROUPS]);

impl StartedCounts {
    /// `n` more of `group` have started.
    #[inline]
    pub fn add(&mut self, group: OpGroup, n: u64) {
        self.0[group as usize] += n;
    }

    /// Count them in `stats`, or forget them without.
    #[inline]
    pub fn publish(&mut self, stats: Option<&ChannelStats>) {
        for group in OpGroup::ALL {
            let n = std::mem::take(&mut self.0[group as usize]);
            if let Some(stats) = stats.filter(|_| n != 0) {
                stats.started(group, n);
            }
        }
    }
}

/// The statistics of a device: those of all its channels, also of channels that are gone.
pub struct DeviceStats {
    channels: Lock<Vec<Arc<ChannelStats>>>,
    /// Counts the lock of `channels`: written only while it is held.
    locks: Arc<LockCounters>,
    /// Time with anything in flight.
    pub busy: BusyTime,
    /// The failures, until somebody tells them.
    pub failures: Failures,
}

impl DeviceStats {
    /// Those of a device without channels. `locks` must be used for nothing else.
    pub fn new(locks: Arc<LockCounters>) -> Self {
        let channels = Lock::new(LockClass::Control, Vec::new());
        let (busy, failures) = Default::default();
        DeviceStats { channels, locks, busy, failures }
    }

    /// Counters for a new channel: those of a channel that is gone, which go on from where they
    /// were, or new ones. So there are never more than there were channels at once.
    pub fn for_channel(&self) -> Arc<ChannelStats> {
        let mut all = self.channels.lock(&self.locks);
        if let Some(free) = all.iter().find(|stats| Arc::strong_count(stats) == 1) {
            // Pairs with the release of the former owner's reference: its last counts are seen.
            fence(Acquire);
            return free.clone();
        }
        let stats = Arc::new(ChannelStats::default());
        all.push(stats.clone());
        stats
    }

    /// The sums of all channels.
    pub fn sum(&self) -> DiskStats {
        let mut sum = DiskStats { io_ticks_ms: self.busy.total_ms(), ..DiskStats::default() };
        self.channels.lock(&self.locks).iter().for_each(|stats| stats.add_to(&mut sum));
        sum
    }

    /// Latencies of `group`, summed over all channels.
    pub fn latencies(&self, group: OpGroup) -> Snapshot {
        let mut sum = Snapshot::default();
        let all = self.channels.lock(&self.locks);
        all.iter().for_each(|stats| stats.add_latencies(group, &mut sum));
        sum
    }
}

/// Sums for one group of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Requests started.
    pub started: u64,
    /// Requests completed.
    pub completed: u64,
    /// Bios merged into requests.
    pub merged: u64,
    /// Sectors of 512 bytes moved.
    pub sectors: u64,
    /// Nanoseconds from submission to completion, summed over requests.
    pub time_ns: u64,
}

/// The statistics of a device, as `/proc/diskstats` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Read, write, discard, flush.
    pub groups: [GroupStats; OP_GROUPS],
    /// Milliseconds in which something was in flight.
    pub io_ticks_ms: u64,
}

impl DiskStats {
    /// The sums of a group.
    pub fn group(&self, group: OpGroup) -> &GroupStats {
        &self.groups[group as usize]
    }

    /// Reads and writes (with discards) in flight, as sysfs `inflight` has them.
    pub fn in_flight(&self) -> (u64, u64) {
        let of = |g: OpGroup| {
            let s = self.group(g);
            s.started.saturating_sub(s.completed)
        };
        (of(OpGroup::Read), of(OpGroup::Write) + of(OpGroup::Discard))
    }

    /// The seventeen fields of `/proc/diskstats` behind the name, in its units.
    pub fn fields(&self) -> [u64; 17] {
        let [r, w, d, f] = &self.groups;
        let ms = |g: &GroupStats| g.time_ns / 1_000_000;
        let (reads, writes) = self.in_flight();
        let weighted = ms(r) + ms(w) + ms(d) + ms(f);
        [
            r.completed,
            r.merged,
            r.sectors,
            ms(r),
            w.completed,
            w.merged,
            w.sectors,
            ms(w),
            reads + writes,
            self.io_ticks_ms,
            weighted,
            d.completed,
            d.merged,
            d.sectors,
            ms(d),
            f.completed,
            ms(f),
        ]
    }
}

/// Time in which a device had something in flight. Contexts that start or end I/O keep it (Linux
/// `update_io_ticks`): inexact for overlapping I/O longer than a millisecond, which is accepted.
#[derive(Default)]
pub struct BusyTime {
    stamp_ms: AtomicU64,
    ticks_ms: AtomicU64,
}

impl BusyTime {
    /// Something starts (`ended` false) or ended at `now`.
    #[inline]
    pub fn update(&self, now: Ns, ended: bool, in_flight: bool) {
        let now_ms = now >> 20;
        let stamp = self.stamp_ms.load(Relaxed);
        if stamp < now_ms {
            self.advance(stamp, now_ms, ended || in_flight);
        }
    }

    #[cold]
    fn advance(&self, stamp: u64, now_ms: u64, busy: bool) {
        let won = self.stamp_ms.compare_exchange(stamp, now_ms, Relaxed, Relaxed).is_ok();
        if won && busy && stamp != 0 {
            self.ticks_ms.fetch_add(now_ms - stamp, Relaxed);
        }
    }

    /// Milliseconds so far. A tick is 2^20 ns, turned into milliseconds here.
    pub fn total_ms(&self) -> u64 {
        (u128::from(self.ticks_ms.load(Relaxed)) * (1 << 20) / 1_000_000) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_fields() {
        let (a, b) = (ChannelStats::default(), ChannelStats::default());
        a.started(OpGroup::Read, 3);
        a.ended(OpGroup::Read, 2, 1024, 5_000_000);
        b.started(OpGroup::Write, 1);
        b.merged(OpGroup::Write);
        b.ended(OpGroup::Write, 1, 4096, 7_000_000);
        let mut sum = DiskStats { io_ticks_ms: 9, ..DiskStats::default() };
        a.add_to(&mut sum);
        b.add_to(&mut sum);
        assert_eq!(sum.in_flight(), (1, 0));
        let f = sum.fields();
        assert_eq!(f, [2, 0, 2, 10, 1, 1, 8, 7, 1, 9, 17, 0, 0, 0, 0, 0, 0]);
        let mut h = Snapshot::default();
        a.add_latencies(OpGroup::Read, &mut h);
        assert_eq!(h.total(), 2);
    }

    #[test]
    fn busy_time_counts_only_while_busy() {
        let t = BusyTime::default();
        let ms = |n: u64| n << 20;
        t.update(ms(10), false, false);
        t.update(ms(13), true, false);
        t.update(ms(50), false, false);
        t.update(ms(52), false, true);
        assert_eq!(t.ticks_ms.load(Relaxed), 5);
    }
}
