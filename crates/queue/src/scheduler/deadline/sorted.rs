//! The sort order of one class and direction: units by first sector, equal ones by insertion.
//!
//! ```text
//!    chunks:  [...] [...]   at   [ 21 .. ] [ .. ]        (none while one chunk is enough)
//!                            |
//!                here:  [ 12 14 - - - 17 18 _ _ _ ]
//!                               ^ the hole: what was dispatched last, one after the other
//! ```
//!
//! The order is cut into chunks, each a sorted array. Dispatch goes through it upwards, so what it
//! takes leaves a hole that grows at its upper end, and only the next insertion closes it.
//!
//! Entries that are inserted while nothing is there, and those that follow them, stay [`Loose`]
//! until a caller needs the order.
//!
//! Invariants:
//! * Either all entries are in `loose`, or all in the chunks.
//! * Entries in chunks are in order, in each one and from one to the next.
//! * `chunks` is empty, `at` is 0 and `here` holds everything; or `chunks` holds all chunks, at
//!   least two, of which none is empty, and `here` is taken out of place `at`.
//! * Only `here` has a hole: `low` is `high` in the others, and in `here` after an insertion.
//! * There are as many `lows` as `chunks`. Each is at most the first entry of its chunk, and at
//!   least the last one of the chunk before; the first is 0.
//! * If `next_of` is a sector, the first entry of that sector or more is the one above the hole.
//! * Chunks in `spare` are empty, and are kept for later, so that as many entries as there were
//!   once need no allocation.

use super::loose::{Entry, LOOSE_MAX, Loose};
use std::mem;

/// Entries of a chunk: 1 KiB, of which an insertion moves half in the mean.
const CHUNK: usize = 64;
const HALF: usize = CHUNK / 2;
const _: () = assert!(LOOSE_MAX <= CHUNK, "what is loose fits one chunk");

/// Entries by sector.
#[derive(Default)]
pub(super) struct Sorted {
    here: Chunk,
    chunks: Vec<Chunk>,
    lows: Vec<u64>,
    at: usize,
    spare: Vec<Chunk>,
    loose: Option<Box<Loose>>,
    next_of: Option<u64>,
}

/// Its entries are `entries[..low]` and `entries[high..end]`. By default it has no memory.
#[derive(Default)]
struct Chunk {
    entries: Box<[Entry]>,
    low: usize,
    high: usize,
    end: usize,
}

impl Chunk {
    fn with_memory() -> Self {
        Chunk { entries: vec![Entry::default(); CHUNK].into(), ..Chunk::default() }
    }

    fn is_empty(&self) -> bool {
        self.low + self.end == self.high
    }

    fn first(&self) -> Entry {
        self.entries[if self.low > 0 { 0 } else { self.high }]
    }

    fn last(&self) -> Entry {
        self.entries[if self.high < self.end { self.end } else { self.low } - 1]
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let (below, above) = self.entries.split_at_mut(self.high);
        below[..self.low].iter_mut().chain(above[..self.end - self.high].iter_mut())
    }

    /// Close the hole; where it was does not matter any more.
    #[inline]
    fn close(&mut self) {
        if self.low < self.high {
            self.close_hole();
        }
    }

    #[inline]
    fn close_hole(&mut self) {
        if self.high < self.end {
            self.entries.copy_within(self.high..self.end, self.low);
        }
        self.end -= self.high - self.low;
        self.high = self.low;
    }

    /// The index of the first entry of sector `from` or more, without a hole.
    #[inline]
    fn lower_bound(&self, from: u64) -> usize {
        self.entries[..self.end].partition_point(|e| e.sector < from)
    }

    /// Insert at `index`; there is no hole, and room for one more.
    fn insert(&mut self, index: usize, entry: Entry) {
        self.entries.copy_within(index..self.end, index + 1);
        self.entries[index] = entry;
        self.end += 1;
    }

    /// Have a hole, of no width, before the first entry of sector `from` or more.
    #[inline]
    fn seek(&mut self, from: u64) {
        self.close();
        self.low = self.lower_bound(from);
        self.high = self.low;
    }

    /// The entry above the hole.
    #[inline]
    fn above(&self) -> Option<Entry> {
        if self.high < self.end { self.entries.get(self.high).copied() } else { None }
    }
}

impl Sorted {
    /// The entries out of order, if another may be appended to them: all or none are there.
    #[inline]
    pub fn loose(&mut self) -> Option<&mut Loose> {
        if self.loose.is_none() {
            self.prepare();
        }
        self.next_of = None;
        let loose = self.loose.as_deref_mut()?;
        let only = !loose.is_empty() || self.chunks.is_empty() && self.here.is_empty();
        (only && !loose.is_full()).then_some(loose)
    }

    /// Get memory, when it is used for the first time.
    #[cold]
    fn prepare(&mut self) {
        (self.here, self.loose) = (Chunk::with_memory(), Some(Box::default()));
    }

    /// Bring all entries into order.
    #[inline]
    fn settle(&mut self) {
        if let Some(loose) = &mut self.loose
            && !loose.is_empty()
        {
            let end = loose.sort_into(&mut self.here.entries);
            (self.here.low, self.here.high, self.here.end) = (0, 0, end);
        }
    }

    /// The index for an entry of `sector` in [`Sorted::insert`]: behind equal ones.
    pub fn index_for(&mut self, sector: u64) -> usize {
        self.settle();
        self.next_of = None;
        self.here.close();
        let behind = sector.saturating_add(1);
        if !self.chunks.is_empty() {
            self.seek_chunk(behind);
        }
        self.here.lower_bound(behind)
    }

    /// Go to the chunk in which the first entry of sector `from` or more is, or the one before.
    #[inline(never)]
    fn seek_chunk(&mut self, from: u64) {
        let chunk = self.lows.partition_point(|low| *low < from).saturating_sub(1);
        if chunk != self.at {
            self.enter(chunk);
        }
    }

    fn enter(&mut self, chunk: usize) {
        self.here.close();
        mem::swap(&mut self.here, &mut self.chunks[self.at]);
        mem::swap(&mut self.here, &mut self.chunks[chunk]);
        self.at = chunk;
    }

    /// The entries before and behind `index`.
    pub fn around(&self, index: usize) -> (Option<Entry>, Option<Entry>) {
        let entries = &self.here.entries[..self.here.end];
        let before = || Some(self.chunks.get(self.at.wrapping_sub(1))?.last());
        let behind = || Some(self.chunks.get(self.at + 1)?.first());
        let lower = entries.get(index.wrapping_sub(1)).copied();
        (lower.or_else(before), entries.get(index).copied().or_else(behind))
    }

    /// Insert `entry` at the `index` that [`Sorted::index_for`] gave for its sector.
    pub fn insert(&mut self, index: usize, entry: Entry) {
        if self.here.end == self.here.entries.len() {
            return self.split_and_insert(entry);
        }
        self.here.insert(index, entry);
    }

    #[cold]
    fn split_and_insert(&mut self, entry: Entry) {
        self.split();
        let index = self.index_for(entry.sector);
        self.here.insert(index, entry);
    }

    /// Move the upper half of `here`, which is full, to a chunk of its own behind it.
    fn split(&mut self) {
        let mut upper = self.spare.pop().unwrap_or_else(Chunk::with_memory);
        upper.entries[..CHUNK - HALF].copy_from_slice(&self.here.entries[HALF..]);
        (upper.low, upper.high, upper.end) = (0, 0, CHUNK - HALF);
        (self.here.low, self.here.high, self.here.end) = (0, 0, HALF);
        if self.chunks.is_empty() {
            self.chunks.push(Chunk::default());
            self.lows.push(0);
        }
        self.lows.insert(self.at + 1, upper.first().sector);
        self.chunks.insert(self.at + 1, upper);
    }

    /// The first entry of sector `from` or more. [`Sorted::remove_next`] may follow.
    #[inline]
    pub fn next(&mut self, from: u64) -> Option<Entry> {
        if self.next_of == Some(from) {
            let next = self.here.above();
            if next.is_some() || self.chunks.is_empty() {
                return next;
            }
        }
        self.seek(from)
    }

    #[inline(never)]
    fn seek(&mut self, from: u64) -> Option<Entry> {
        self.settle();
        if !self.chunks.is_empty() {
            self.seek_chunk(from);
        }
        self.here.seek(from);
        self.next_of = Some(from);
        self.here.above().or_else(|| self.first_of_next())
    }

    fn first_of_next(&mut self) -> Option<Entry> {
        if self.at + 1 >= self.chunks.len() {
            return None;
        }
        self.enter(self.at + 1);
        (self.here.low, self.here.high) = (0, 0);
        Some(self.here.first())
    }

    /// Remove what [`Sorted::next`] or [`Sorted::find`] found.
    #[inline]
    pub fn remove_next(&mut self, entry: Entry) {
        debug_assert_eq!(self.here.above(), Some(entry));
        self.here.high += 1;
        // Entries below the hole are less than what was looked for, so they are less than this too.
        self.next_of = self.next_of.map(|_| entry.sector);
        if !self.chunks.is_empty() {
            self.drop_if_empty();
        }
    }

    #[inline(never)]
    fn drop_if_empty(&mut self) {
        if !self.here.is_empty() {
            return;
        }
        self.chunks.remove(self.at);
        self.lows.remove(self.at);
        self.lows[0] = 0;
        self.at = self.at.min(self.chunks.len() - 1);
        let next = mem::take(&mut self.chunks[self.at]);
        self.next_of = None;
        self.spare.push(mem::replace(&mut self.here, next));
        if self.chunks.len() == 1 {
            self.chunks.clear();
            self.lows.clear();
            self.at = 0;
        }
    }

    /// Find the entry of the unit at `place` of the FIFO, which begins at `sector`.
    ///
    /// # Panics
    /// If it is not there.
    pub fn find(&mut self, sector: u64, place: u32) -> &mut Entry {
        let mut next = self.next(sector);
        while next.expect("the entry is there").place != place {
            next = self.step();
        }
        &mut self.here.entries[self.here.high]
    }

    /// Leave the entry that was found, and go to the one behind it.
    fn step(&mut self) -> Option<Entry> {
        let here = &mut self.here;
        here.entries[here.low] = here.entries[here.high];
        (here.low, here.high) = (here.low + 1, here.high + 1);
        self.next_of = None;
        self.here.above().or_else(|| self.first_of_next())
    }

    /// Units have other places now: what `moved` says of their old ones.
    pub fn renumber(&mut self, moved: &dyn Fn(u32) -> u32) {
        let chunks = self.chunks.iter_mut().chain([&mut self.here]);
        let sorted = chunks.flat_map(Chunk::iter_mut).map(|entry| &mut entry.place);
        let loose = self.loose.iter_mut().flat_map(|loose| loose.places_mut());
        sorted.chain(loose).for_each(|place| *place = moved(*place));
    }

    /// Entries that there is memory for.
    #[cfg(all(test, not(loom)))]
    pub fn memory(&self) -> usize {
        (self.chunks.len().max(1) + self.spare.len()) * CHUNK
    }
}
