//! The contents of a disk: the cache that reads see, the media below it, and the log between them.
//!
//! Invariants:
//! * `cached` is `media` with the whole log applied in order, but for the `phantoms`.
//! * `log` has the effects that may not be durable yet, in their order; their numbers grow and are
//!   at most `newest`.
//! * `durable[b]` is the number of the newest effect that the media of physical block `b` holds;
//!   entries of the log up to it no longer matter to the block.
//! * A unit that is not `allocated` reads as zeroes.

use super::UNIT;
use super::bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Buffers kept for the next writes.
const FREE_MAX: usize = 256;

/// A write or discard that took effect, or might.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its number in the order of effect.
    pub seq: u64,
    pub offset: u64,
    pub length: u64,
    /// The data; `None` stands for zeroes.
    pub data: Option<Vec<u8>>,
}

impl Entry {
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The contents of a disk.
#[derive(Clone, Debug)]
pub(super) struct Media {
    /// A physical block is `1 << shift` bytes.
    shift: u32,
    cached: Bytes,
    media: Bytes,
    durable: Vec<u64>,
    log: VecDeque<Entry>,
    log_bytes: u64,
    newest: u64,
    /// A bit for each unit.
    allocated: Vec<u64>,
    /// Blocks whose contents in the cache will never reach the media.
    phantoms: Vec<u64>,
    free: Vec<Vec<u8>>,
}

impl Media {
    /// All zeroes, nothing allocated.
    pub fn new(size: u64, block: u32) -> Self {
        let blocks = (size / u64::from(block)) as usize;
        Media {
            shift: block.trailing_zeros(),
            cached: Bytes::new(size as usize),
            media: Bytes::new(size as usize),
            durable: vec![0; blocks],
            log: VecDeque::new(),
            log_bytes: 0,
            newest: 0,
            allocated: vec![0; size.div_ceil(UNIT * 64) as usize],
            phantoms: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn size(&self) -> u64 {
        self.cached.len() as u64
    }

    pub fn grow(&mut self, size: u64) {
        self.cached.grow(size as usize);
        self.media.grow(size as usize);
        self.durable.resize((size >> self.shift) as usize, 0);
        self.allocated.resize(size.div_ceil(UNIT * 64) as usize, 0);
    }

    pub fn cached(&self) -> &Bytes {
        &self.cached
    }

    pub fn media(&self) -> &Bytes {
        &self.media
    }

    /// The number of the newest effect.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Physical blocks that a range touches.
    pub fn blocks(&self, offset: u64, length: u64) -> Range<u64> {
        if length == 0 {
            return 0..0;
        }
        offset >> self.shift..((offset + length - 1) >> self.shift) + 1
    }

    /// The bytes of a physical block.
    pub fn block_bytes(&self, block: u64) -> Range<u64> {
        block << self.shift..(block + 1) << self.shift
    }

    /// An empty buffer that held the data of an earlier write, if there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.free.len() < FREE_MAX {
            buffer.clear();
            self.free.push(buffer);
        }
    }

    /// A write takes effect. It must lie within the disk.
    pub fn write(&mut self, offset: u64, data: Vec<u8>, durable: bool) {
        let length = data.len() as u64;
        if length == 0 {
            return self.recycle(data);
        }
        self.cached.put(offset as usize, &data);
        self.allocate(offset, length);
        self.effect(offset, length, Some(data), durable);
    }

    /// Zeroes take effect; `free` also deallocates their units. They must lie within the disk.
    pub fn zero(&mut self, offset: u64, length: u64, durable: bool, free: bool) {
        if length == 0 {
            return;
        }
        self.cached.zero(span(offset, length));
        if free {
            self.release(offset, length);
        } else {
            self.allocate(offset, length);
        }
        self.effect(offset, length, None, durable);
    }

    fn effect(&mut self, offset: u64, length: u64, data: Option<Vec<u8>>, durable: bool) {
        self.newest += 1;
        if durable {
            self.make_durable(offset, length);
            if let Some(data) = data {
                self.recycle(data);
            }
        } else {
            self.log_bytes += length;
            self.log.push_back(Entry { seq: self.newest, offset, length, data });
        }
    }

    /// The newest version of each block that the range touches is durable.
    fn make_durable(&mut self, offset: u64, length: u64) {
        let blocks = self.blocks(offset, length);
        let bytes =
            self.block_bytes(blocks.start).start as usize..(blocks.end << self.shift) as usize;
        self.media.copy_from(&self.cached, bytes);
        self.durable[blocks.start as usize..blocks.end as usize].fill(self.newest);
    }

    /// Makes every effect up to number `seq` durable.
    pub fn flush(&mut self, seq: u64) {
        while self.log.front().is_some_and(|entry| entry.seq <= seq) {
            self.settle_oldest();
        }
    }

    /// Writes back the oldest writes while the log has more than `bytes_max`. Returns how many.
    pub fn write_back(&mut self, bytes_max: u64) -> u64 {
        let mut written = 0;
        while self.log_bytes > bytes_max {
            self.settle_oldest();
            written += 1;
        }
        written
    }

    fn settle_oldest(&mut self) {
        let Some(entry) = self.log.pop_front() else { return };
        self.log_bytes -= entry.length;
        let blocks = self.blocks(entry.offset, entry.length);
        let numbers = &mut self.durable[blocks.start as usize..blocks.end as usize];
        if numbers.iter().all(|&durable| durable < entry.seq) {
            numbers.fill(entry.seq);
            put(&mut self.media, &entry, entry.offset..entry.end());
        } else {
            for block in blocks {
                self.settle_block(block, &entry);
            }
        }
        if let Some(data) = entry.data {
            self.recycle(data);
        }
    }

    fn settle_block(&mut self, block: u64, entry: &Entry) {
        let bytes = self.block_bytes(block);
        let durable = &mut self.durable[block as usize];
        if *durable < entry.seq {
            *durable = entry.seq;
            put(&mut self.media, entry, bytes);
        }
    }

    /// Takes the log: the effects that are not durable, oldest first.
    pub fn take_log(&mut self) -> Vec<Entry> {
        self.log_bytes = 0;
        self.log.drain(..).collect()
    }

    /// The number of the newest effect that a block's media holds.
    pub fn durable(&self, block: u64) -> u64 {
        self.durable[block as usize]
    }

    /// Puts the versions of a block on its media, in order. The cache does not change.
    pub fn put_versions<'a>(&mut self, block: u64, versions: impl Iterator<Item = &'a Entry>) {
        let bytes = self.block_bytes(block);
        for entry in versions {
            put(&mut self.media, entry, bytes.clone());
        }
        self.durable[block as usize] = self.newest;
    }

    /// The cache forgets a block and reads it from the media. Contents that a lost discard brings
    /// back are allocated.
    pub fn forget(&mut self, block: u64) {
        let bytes = self.block_bytes(block);
        let span = bytes.start as usize..bytes.end as usize;
        self.cached.copy_from(&self.media, span.clone());
        if !self.media.is_zero(span) {
            self.allocate(bytes.start, bytes.end - bytes.start);
        }
    }

    /// The cache keeps a block that will never reach the media.
    pub fn keep_phantom(&mut self, block: u64) {
        self.phantoms.push(block);
    }

    /// The cache forgets all phantoms and reads them from the media.
    pub fn forget_phantoms(&mut self) {
        for block in std::mem::take(&mut self.phantoms) {
            self.forget(block);
        }
    }

    /// Changes bytes as if they had always been so.
    pub fn poke(&mut self, offset: u64, data: &[u8]) {
        let length = data.len() as u64;
        self.cached.put(offset as usize, data);
        self.media.put(offset as usize, data);
        self.allocate(offset, length);
    }

    fn allocate(&mut self, offset: u64, length: u64) {
        for unit in offset / UNIT..(offset + length).div_ceil(UNIT) {
            self.allocated[(unit / 64) as usize] |= 1 << (unit % 64);
        }
    }

    /// Deallocates the units that lie wholly in the range; the disk's end may cut the last unit.
    fn release(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let last = if end == self.size() { end.div_ceil(UNIT) } else { end / UNIT };
        for unit in offset.div_ceil(UNIT)..last {
            self.allocated[(unit / 64) as usize] &= !(1 << (unit % 64));
        }
    }

    fn is_allocated(&self, unit: u64) -> bool {
        self.allocated[(unit / 64) as usize] >> (unit % 64) & 1 == 1
    }

    /// The first offset from `at` on, before `end`, whose allocation is as asked; otherwise `end`.
    pub fn next(&self, at: u64, end: u64, allocated: bool) -> u64 {
        let end = end.min(self.size());
        let mut units = at / UNIT..end.div_ceil(UNIT);
        let found = units.find(|&unit| self.is_allocated(unit) == allocated);
        found.map_or(end, |unit| (unit * UNIT).max(at)).min(end)
    }
}

/// The bytes of a range as indexes.
fn span(offset: u64, length: u64) -> Range<usize> {
    offset as usize..(offset + length) as usize
}

/// Copies the part of an entry that lies in the range of bytes.
pub(super) fn put(media: &mut Bytes, entry: &Entry, bytes: Range<u64>) {
    let (from, to) = (bytes.start.max(entry.offset), bytes.end.min(entry.end()));
    if from >= to {
        return;
    }
    match &entry.data {
        Some(data) => media.put(from as usize, &data[span(from - entry.offset, to - from)]),
        None => media.zero(span(from, to - from)),
    }
}
