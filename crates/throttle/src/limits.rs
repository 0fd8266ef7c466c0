//! Limits and counts of a group on a device: the numbers of `io.max` and `io.stat`.
//!
//! Source: `Documentation/admin-guide/cgroup-v2.rst`, "IO Interface Files".

use drystone_core::Bio;
use drystone_core::op::{Op, OpGroup};

/// The limits of a group on a device; `None` is `max`. Each limit is at least 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes read per second.
    pub rbps: Option<u64>,
    /// Bytes written per second.
    pub wbps: Option<u64>,
    /// Reads per second.
    pub riops: Option<u64>,
    /// Writes per second.
    pub wiops: Option<u64>,
}

impl Limits {
    /// True if there is no limit.
    pub fn is_unlimited(&self) -> bool {
        *self == Limits::default()
    }

    /// These limits after `change`.
    #[must_use]
    pub fn changed(mut self, change: &Change) -> Limits {
        let Change { rbps, wbps, riops, wiops } = *change;
        self.rbps = rbps.unwrap_or(self.rbps);
        self.wbps = wbps.unwrap_or(self.wbps);
        self.riops = riops.unwrap_or(self.riops);
        self.wiops = wiops.unwrap_or(self.wiops);
        self
    }

    /// The limits of bytes and I/Os per second in a direction.
    pub(crate) fn of(&self, direction: Direction) -> (Option<u64>, Option<u64>) {
        match direction {
            Direction::Read => (self.rbps, self.riops),
            Direction::Write => (self.wbps, self.wiops),
        }
    }
}

/// A change of limits: `None` keeps a limit, `Some(None)` sets it to `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bytes read per second.
    pub rbps: Option<Option<u64>>,
    /// Bytes written per second.
    pub wbps: Option<Option<u64>>,
    /// Reads per second.
    pub riops: Option<Option<u64>>,
    /// Writes per second.
    pub wiops: Option<Option<u64>>,
}

/// The I/O of a group on a device, counted when its bios pass the throttle. The bytes of a bio are
/// counted once; each part of it that the device takes at once counts as an I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStat {
    /// Bytes read.
    pub rbytes: u64,
    /// Bytes written; write zeroes count with their length.
    pub wbytes: u64,
    /// Reads.
    pub rios: u64,
    /// Writes.
    pub wios: u64,
    /// Bytes discarded.
    pub dbytes: u64,
    /// Discards.
    pub dios: u64,
}

impl IoStat {
    pub(crate) fn from_values([rbytes, rios, wbytes, wios, dbytes, dios]: [u64; 6]) -> Self {
        IoStat { rbytes, wbytes, rios, wios, dbytes, dios }
    }

    fn values(&self) -> [u64; 6] {
        [self.rbytes, self.rios, self.wbytes, self.wios, self.dbytes, self.dios]
    }

    /// The difference from the earlier counts `before`.
    #[must_use]
    pub fn since(&self, before: &IoStat) -> IoStat {
        let (mut now, before) = (self.values(), before.values());
        now.iter_mut().zip(before).for_each(|(now, before)| *now = now.wrapping_sub(before));
        IoStat::from_values(now)
    }
}

impl std::ops::AddAssign for IoStat {
    fn add_assign(&mut self, other: Self) {
        let (mut sum, other) = (self.values(), other.values());
        sum.iter_mut().zip(other).for_each(|(sum, other)| *sum = sum.wrapping_add(other));
        *self = IoStat::from_values(sum);
    }
}

/// The direction of an I/O. Reads and writes have separate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
}

impl Direction {
    pub(crate) const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    /// The direction in which `bio` is charged. Every operation that changes the device's data is a
    /// write.
    #[inline]
    pub(crate) fn of(bio: &Bio) -> Direction {
        if bio.op.is_write() { Direction::Write } else { Direction::Read }
    }
}

/// The bytes that a discard of any length is charged (Linux `throtl_bio_data_size`).
const DISCARD_BYTES: u64 = 512;

/// The bytes that `bio` is charged.
#[inline]
pub(crate) fn charged_bytes(bio: &Bio) -> u64 {
    if bio.op == Op::Discard { DISCARD_BYTES } else { bio.bytes }
}

/// The index among the values of [`IoStat`] at which the bytes of `bio` are counted; its I/O is
/// counted at the next index.
#[inline]
pub(crate) fn counted_at(bio: &Bio) -> usize {
    match bio.op.group() {
        OpGroup::Read | OpGroup::Flush => 0,
        OpGroup::Write => 2,
        OpGroup::Discard => 4,
    }
}
