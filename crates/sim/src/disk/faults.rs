//! The faults that are switched on. The workload changes them while a disk is in use.
//!
//! Chances are per million operations. Chance gives an operation at most one fate; the sets of
//! sectors and the switches apply in addition. A read never gets a fate that is made for writes,
//! and a write none that is made for reads.

use super::SECTOR;
use drystone_core::clock::Ns;
use fastrand::Rng;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The faults that are switched on: by default none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Reads that end with EIO, per million.
    pub read_error_ppm: u32,
    /// Writes, discards and writes of zeroes that end with EIO, per million.
    pub write_error_ppm: u32,
    /// Flushes that end with EIO, per million.
    pub flush_error_ppm: u32,
    /// A failed flush loses data that was not durable: each block keeps some version. Some losses
    /// show at once, and some only after a power cut, as with a page cache whose pages are wrongly
    /// clean.
    pub flush_error_drops: bool,
    /// Operations that take 1 to 60 s, per million.
    pub stall_ppm: u32,
    /// Reads and writes that transfer less than they should, per million: reads whole sectors,
    /// writes whole physical blocks.
    pub short_ppm: u32,
    /// Operations that end with EINTR, per million.
    pub interrupted_ppm: u32,
    /// Operations that end with EAGAIN, per million.
    pub again_ppm: u32,
    /// 512-byte sectors whose reading fails until they are repaired.
    pub bad_reads: BTreeSet<u64>,
    /// 512-byte sectors whose writing fails.
    pub bad_writes: BTreeSet<u64>,
    /// True if a write of the whole of a bad sector repairs it for reading.
    pub write_repairs: bool,
    /// Every read fails with EIO.
    pub reads_fail: bool,
    /// Every write and every flush fails with EIO; the writes change nothing.
    pub writes_fail: bool,
    /// An operation that would have to allocate space gets ENOSPC.
    pub full: bool,
    /// Reads that give the data of another place, per million. The place is whole blocks away.
    pub misdirect_read_ppm: u32,
    /// Writes that succeed in another place, per million.
    pub misdirect_write_ppm: u32,
    /// Reads that give data with a wrong bit, per million.
    pub corrupt_read_ppm: u32,
    /// Writes that store a wrong bit, per million.
    pub corrupt_write_ppm: u32,
    /// Writes that succeed and store nothing, per million.
    pub lost_write_ppm: u32,
}

/// The fate that chance gives an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Normal,
    Error,
    Short,
    Interrupted,
    Again,
    Misdirect,
    Corrupt,
    Lost,
    /// The operation took effect in part: its user died meanwhile.
    Partial,
}

/// The kinds of operations that the chances tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    /// Discard and write of zeroes.
    Zero,
}

/// The range of the length of a stall.
const STALL: RangeInclusive<Ns> = 1_000_000_000..=60_000_000_000;

impl Faults {
    /// Draws the fate of an operation. Uses one random number at most.
    pub(super) fn fate(&self, kind: Kind, rng: &mut Rng) -> Fate {
        let table = self.table(kind);
        let sum: u32 = table.iter().map(|(ppm, _)| ppm).sum();
        if sum == 0 {
            return Fate::Normal;
        }
        let mut left = rng.u32(0..1_000_000.max(sum));
        for (ppm, fate) in table {
            if left < ppm {
                return fate;
            }
            left -= ppm;
        }
        Fate::Normal
    }

    fn table(&self, kind: Kind) -> [(u32, Fate); 7] {
        let (error, short, misdirect, corrupt, lost) = match kind {
            Kind::Read => (
                self.read_error_ppm,
                self.short_ppm,
                self.misdirect_read_ppm,
                self.corrupt_read_ppm,
                0,
            ),
            Kind::Write => (
                self.write_error_ppm,
                self.short_ppm,
                self.misdirect_write_ppm,
                self.corrupt_write_ppm,
                self.lost_write_ppm,
            ),
            Kind::Flush => (self.flush_error_ppm, 0, 0, 0, 0),
            Kind::Zero => (self.write_error_ppm, 0, 0, 0, 0),
        };
        [
            (error, Fate::Error),
            (short, Fate::Short),
            (self.interrupted_ppm, Fate::Interrupted),
            (self.again_ppm, Fate::Again),
            (misdirect, Fate::Misdirect),
            (corrupt, Fate::Corrupt),
            (lost, Fate::Lost),
        ]
    }

    /// The time that the operation stalls, if it does.
    pub(super) fn stall(&self, rng: &mut Rng) -> Option<Ns> {
        let stalls = self.stall_ppm > 0 && rng.u32(0..1_000_000) < self.stall_ppm;
        stalls.then(|| rng.u64(STALL))
    }

    /// True if a range of bytes holds a sector that cannot be read.
    pub(super) fn is_bad_read(&self, offset: u64, length: u64) -> bool {
        holds(&self.bad_reads, offset, length)
    }

    /// True if a range of bytes holds a sector that cannot be written.
    pub(super) fn is_bad_write(&self, offset: u64, length: u64) -> bool {
        holds(&self.bad_writes, offset, length)
    }

    /// Repairs the bad sectors that lie wholly in a range of bytes that was written. Returns how
    /// many.
    pub(super) fn repair(&mut self, offset: u64, length: u64) -> u64 {
        if !self.write_repairs || self.bad_reads.is_empty() {
            return 0;
        }
        let (from, to) = (offset.div_ceil(SECTOR), (offset + length) / SECTOR);
        let before = self.bad_reads.len();
        self.bad_reads.retain(|sector| !(from..to).contains(sector));
        (before - self.bad_reads.len()) as u64
    }
}

fn holds(sectors: &BTreeSet<u64>, offset: u64, length: u64) -> bool {
    if sectors.is_empty() || length == 0 {
        return false;
    }
    let (from, to) = (offset / SECTOR, (offset + length).div_ceil(SECTOR));
    sectors.range(from..to).next().is_some()
}
