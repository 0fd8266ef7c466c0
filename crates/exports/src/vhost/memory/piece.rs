//! A range of guest memory that was found in a region.

use std::ops::Range;

/// A range that lies in one region of one map. Only that map can use it, since another may have
/// another region in that place: what keeps a piece keeps its map beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the region in its map.
    pub(super) part: u16,
    /// The number of its map.
    pub(super) map: u16,
    bytes: u32,
    /// The first byte, from the start of the region.
    pub(super) at: usize,
}

impl Piece {
    pub(super) fn new(map: u16, part: u16, at: usize, bytes: u32) -> Self {
        Self { part, map, bytes, at }
    }

    /// Its length, bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The bytes `range` of it.
    ///
    /// # Panics
    /// If it has fewer: a mistake of the caller.
    #[inline]
    pub fn part_of(&self, range: Range<u32>) -> Self {
        assert!(range.start <= range.end && range.end <= self.bytes);
        let at = self.at + range.start as usize;
        Self { at, bytes: range.end - range.start, ..*self }
    }
}

/// The parts of pieces that hold the bytes `range` of them all, in order. None is empty.
pub fn within(pieces: &[Piece], range: Range<u64>) -> impl Iterator<Item = Piece> {
    let mut place = 0;
    pieces.iter().filter_map(move |piece| {
        let (start, end) = (place, place + u64::from(piece.bytes));
        place = end;
        let (first, last) = (range.start.max(start), range.end.min(end));
        // Both are in the piece, whose length has 32 bits.
        (first < last).then(|| piece.part_of((first - start) as u32..(last - start) as u32))
    })
}
