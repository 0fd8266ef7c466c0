//! How an operation takes effect, with all faults that are switched on.
//!
//! The checks have this order: no device, the whole device, the end of the device, chance, bad
//! sectors, space. The first check that fails decides the result.

use super::crash;
use super::faults::Fate;
use super::flight::{Disk, DiskOp, Source};
use super::{EAGAIN, EINTR, EIO, ENODEV, ENOSPC, SECTOR};

/// The longest distance of a misdirected transfer, in physical blocks.
const MISDIRECT_BLOCKS_MAX: u64 = 16;

/// The effect of a write of any kind.
#[derive(Debug)]
struct Change {
    offset: u64,
    length: u64,
    /// `None` are zeroes.
    data: Option<Vec<u8>>,
    fua: bool,
    /// True if the change deallocates units.
    frees: bool,
}

impl Disk {
    /// Performs an operation. Returns its result, and where the data of a read is.
    pub(super) fn perform(&mut self, op: DiskOp, fate: Fate, newest: u64) -> (i64, Source) {
        if !self.is_on {
            self.counts.no_device += 1;
            return (-ENODEV, Source::None);
        }
        if let Some(result) = self.not_now(fate) {
            return (result, Source::None);
        }
        let change = match op {
            DiskOp::Read { offset, length } => return self.read(offset, length, fate),
            DiskOp::Flush => return (self.flush(fate, newest), Source::None),
            DiskOp::Write { offset, data, fua } => {
                Change { offset, length: data.len() as u64, data: Some(data), fua, frees: false }
            }
            DiskOp::Discard { offset, length } => {
                Change { offset, length, data: None, fua: false, frees: true }
            }
            DiskOp::WriteZeroes { offset, length } => {
                Change { offset, length, data: None, fua: false, frees: false }
            }
        };
        (self.change(change, fate), Source::None)
    }

    fn not_now(&mut self, fate: Fate) -> Option<i64> {
        match fate {
            Fate::Interrupted => {
                self.counts.interrupted += 1;
                Some(-EINTR)
            }
            Fate::Again => {
                self.counts.again += 1;
                Some(-EAGAIN)
            }
            _ => None,
        }
    }

    fn read(&mut self, offset: u64, length: u64, fate: Fate) -> (i64, Source) {
        let mut length = self.clip(offset, length, self.size());
        if self.faults.reads_fail {
            self.counts.device_read_errors += 1;
            return (-EIO, Source::None);
        }
        if fate == Fate::Error {
            self.counts.read_errors += 1;
            return (-EIO, Source::None);
        }
        if self.faults.is_bad_read(offset, length) {
            self.counts.bad_reads += 1;
            return (-EIO, Source::None);
        }
        if fate == Fate::Short {
            length = self.shorten(length, SECTOR);
        }
        let from = if fate == Fate::Misdirect { self.misdirect(offset, length) } else { offset };
        self.counts.misdirected_reads += u64::from(from != offset);
        let range = from as usize..(from + length) as usize;
        self.scratch.clear();
        self.media.cached().read(range, &mut self.scratch);
        if fate == Fate::Corrupt && length > 0 {
            self.counts.corrupted_reads += 1;
            let bit = self.rng.u64(0..length * 8);
            self.scratch[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        (length as i64, Source::Scratch)
    }

    /// The part of a range that lies on a disk of `size` bytes.
    fn clip(&mut self, offset: u64, length: u64, size: u64) -> u64 {
        let clipped = length.min(size.saturating_sub(offset));
        self.counts.past_end += u64::from(clipped < length);
        clipped
    }

    /// The length of a short transfer: whole units, at least one; all if there is only one.
    fn shorten(&mut self, length: u64, unit: u64) -> u64 {
        let units = length.div_ceil(unit);
        if units < 2 {
            return length;
        }
        self.counts.shorts += 1;
        self.rng.u64(1..units) * unit
    }

    /// The offset of a misdirected transfer, whole blocks away; the same offset if the disk is too
    /// small.
    fn misdirect(&mut self, offset: u64, length: u64) -> u64 {
        let shift = self.rng.u64(1..=MISDIRECT_BLOCKS_MAX) * u64::from(self.options.physical_block);
        let back = offset.checked_sub(shift);
        let forth = Some(offset + shift).filter(|at| at + length <= self.media.size());
        let (first, second) = if self.rng.bool() { (back, forth) } else { (forth, back) };
        first.or(second).unwrap_or(offset)
    }

    fn flush(&mut self, fate: Fate, newest: u64) -> i64 {
        if self.faults.writes_fail {
            self.counts.device_write_errors += 1;
            return self.flush_fails();
        }
        if fate == Fate::Error {
            self.counts.flush_errors += 1;
            return self.flush_fails();
        }
        if fate == Fate::Partial {
            return -EIO;
        }
        if self.options.lying {
            self.counts.lies += 1;
            return 0;
        }
        if self.options.forgetful {
            self.counts.lies += 1;
            self.media.flush(newest.saturating_sub(1));
            return 0;
        }
        // The flush may cover effects that came after its begin, or not.
        let more = self.media.newest() - newest;
        let covered = if self.rng.bool() { newest } else { newest + self.rng.u64(0..=more) };
        self.media.flush(covered);
        0
    }

    fn flush_fails(&mut self) -> i64 {
        if self.faults.flush_error_drops {
            self.counts.dropped_blocks += crash::drop_unflushed(&mut self.media, &mut self.rng);
        }
        -EIO
    }

    fn change(&mut self, mut change: Change, fate: Fate) -> i64 {
        if self.faults.writes_fail {
            self.counts.device_write_errors += 1;
            return self.give_up(change, -EIO);
        }
        let length = self.clip(change.offset, change.length, self.media.size());
        if length == 0 && change.length > 0 {
            self.counts.no_space += 1;
            return self.give_up(change, -ENOSPC);
        }
        change.cut(length);
        if self.meets_bad_luck(&change, fate) {
            self.change_partly(change);
            return -EIO;
        }
        // Only writes can be short: the calls that zero or free a range do so as a whole or fail.
        if fate == Fate::Short && change.data.is_some() {
            let block = u64::from(self.options.physical_block);
            let length = self.shorten(change.length, block);
            change.cut(length);
        }
        if self.faults.full && !change.frees {
            let room = self.media.next(change.offset, change.end(), false) - change.offset;
            self.counts.no_space += u64::from(room < change.length);
            if room < change.length && change.data.is_none() {
                self.change_partly(change);
                return -ENOSPC;
            }
            if room == 0 && change.length > 0 {
                return self.give_up(change, -ENOSPC);
            }
            change.cut(room);
        }
        self.change_all(change, fate)
    }

    /// True if it fails, by chance or by a bad sector.
    fn meets_bad_luck(&mut self, change: &Change, fate: Fate) -> bool {
        if fate == Fate::Error {
            self.counts.write_errors += 1;
            return true;
        }
        let bad = self.faults.is_bad_write(change.offset, change.length);
        self.counts.bad_writes += u64::from(bad);
        bad || fate == Fate::Partial
    }

    fn give_up(&mut self, change: Change, result: i64) -> i64 {
        if let Some(data) = change.data {
            self.media.recycle(data);
        }
        result
    }

    /// Applies a change that succeeds, or seems to.
    fn change_all(&mut self, mut change: Change, fate: Fate) -> i64 {
        let result = change.length as i64;
        match fate {
            Fate::Lost => {
                self.counts.lost_writes += 1;
                return self.give_up(change, result);
            }
            Fate::Misdirect => {
                let offset = self.misdirect(change.offset, change.length);
                self.counts.misdirected_writes += u64::from(offset != change.offset);
                change.offset = offset;
            }
            Fate::Corrupt => self.corrupt(&mut change),
            _ => {}
        }
        self.counts.repaired += self.faults.repair(change.offset, change.length);
        self.counts.lies += u64::from(self.options.lying && change.fua);
        let durable = !self.options.cache || change.fua && !self.options.lying;
        self.put(change, durable);
        result
    }

    fn corrupt(&mut self, change: &mut Change) {
        let Some(data) = change.data.as_mut().filter(|data| !data.is_empty()) else { return };
        let bit = self.rng.u64(0..data.len() as u64 * 8);
        data[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.counts.corrupted_writes += 1;
    }

    fn put(&mut self, change: Change, durable: bool) {
        let (offset, end) = (change.offset, change.end());
        match change.data {
            Some(data) => {
                self.media.write(offset, data, durable);
                self.note_write_up_to(end);
            }
            None => self.media.zero(change.offset, change.length, durable, change.frees),
        }
        if !durable {
            let written = self.media.write_back(self.options.cache_bytes_max);
            self.counts.written_back += written;
        }
    }

    /// Applies a part of a change that fails: nothing, all, a first part, or random blocks.
    fn change_partly(&mut self, change: Change) {
        let blocks = self.media.blocks(change.offset, change.length);
        let mut left = self.rng.u64(0..=blocks.end - blocks.start);
        let way = self.rng.u32(0..4);
        let mut happened = false;
        for block in blocks {
            let does = match way {
                0 => false,
                1 => true,
                2 => left > 0,
                _ => self.rng.bool(),
            };
            left = left.saturating_sub(1);
            if does {
                happened = true;
                self.put_block(&change, block);
            }
        }
        self.counts.partial_writes += u64::from(happened);
        self.give_up(change, 0);
    }

    /// Applies one physical block of a change, unless that needs space and the disk has none.
    fn put_block(&mut self, change: &Change, block: u64) {
        let bytes = self.media.block_bytes(block);
        let (from, to) = (bytes.start.max(change.offset), bytes.end.min(change.end()));
        if self.faults.full && self.media.next(from, to, false) < to {
            return;
        }
        let data = change.data.as_ref().map(|data| {
            let part = (from - change.offset) as usize..(to - change.offset) as usize;
            let mut copy = self.media.buffer();
            copy.extend_from_slice(&data[part]);
            copy
        });
        let part = Change { offset: from, length: to - from, data, ..*change };
        self.put(part, !self.options.cache);
    }
}

impl Change {
    fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Shortens the change to its first `length` bytes.
    fn cut(&mut self, length: u64) {
        self.length = length;
        if let Some(data) = &mut self.data {
            data.truncate(length as usize);
        }
    }
}
