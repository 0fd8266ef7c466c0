//! Ranges of bytes, and the blocks that they touch: a device reads and writes whole blocks only.
//!
//! ```text
//!   block      |.........|.........|.........|
//!   range           [=================)
//!   all        |==============================|  read for a read of the range
//!   edges      |r...wwwww|         |wwww...r.|   read, changed, written back
//!   inside               |wwwwwwwww|             written as it is
//! ```
//!
//! Another client may write the rest of an edge block. So a write of parts of blocks locks all
//! blocks that it touches exclusively meanwhile ([`drystone_core::range_lock`]).

use std::ops::Range;

/// A range of bytes, which is not empty, and its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    range: Range<u64>,
    block: u64,
}

impl Blocks {
    /// The blocks of `range` on a device whose blocks have `block` bytes, a power of two.
    #[inline]
    pub(crate) fn of(range: Range<u64>, block: u64) -> Self {
        debug_assert!(block.is_power_of_two(), "a block of {block} bytes");
        Blocks { range, block }
    }

    /// The range.
    #[inline]
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Bytes of the range.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> usize {
        self.block as usize
    }

    /// True if the range is whole blocks.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        (self.range.start | self.range.end) & (self.block - 1) == 0
    }

    /// All blocks that the range touches.
    #[inline]
    pub(crate) fn all(&self) -> Range<u64> {
        let mask = self.block - 1;
        self.range.start & !mask..(self.range.end + mask) & !mask
    }

    /// Bytes of all blocks that the range touches.
    #[inline]
    pub(crate) fn all_bytes(&self) -> usize {
        let all = self.all();
        (all.end - all.start) as usize
    }

    /// Bytes from the beginning of the first block to the range.
    #[inline]
    pub(crate) fn skip(&self) -> usize {
        (self.range.start & (self.block - 1)) as usize
    }

    /// The begin of each block that the range covers in part: the first and the last, or just the
    /// first if there is only one block.
    pub(crate) fn edges(&self) -> [Option<u64>; 2] {
        let (all, is_one) = (self.all(), self.all_bytes() as u64 == self.block);
        let (starts, ends) = (self.range.start == all.start, self.range.end == all.end);
        let first = !starts || is_one && !ends;
        [first.then_some(all.start), (!ends && !is_one).then_some(all.end - self.block)]
    }

    /// The blocks that the range covers as a whole; empty if there are none.
    pub(crate) fn inside(&self) -> Range<u64> {
        let all = self.all();
        let [first, last] = self.edges();
        let start = first.map_or(all.start, |at| at + self.block);
        start..last.unwrap_or(all.end).max(start)
    }

    /// The part of the block that begins at `block`, in bytes from there, that the range covers.
    pub(crate) fn covered(&self, block: u64) -> Range<usize> {
        let start = self.range.start.max(block) - block;
        let end = self.range.end.min(block + self.block) - block;
        start as usize..end as usize
    }

    /// Completes a block: copies the bytes outside the range from `read`, the contents of the block
    /// that begins at `block`, to `all`, the bytes of all blocks.
    pub(crate) fn complete(&self, all: &mut [u8], block: u64, read: &[u8]) {
        let covered = self.covered(block);
        let at = (block - self.all().start) as usize;
        let written = &mut all[at..at + self.block as usize];
        written[..covered.start].copy_from_slice(&read[..covered.start]);
        written[covered.end..].copy_from_slice(&read[covered.end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares all ranges of some blocks with a list of bytes.
    #[test]
    fn blocks_are_those_of_the_bytes() {
        const BLOCK: u64 = 4;
        for start in 0..3 * BLOCK {
            for end in start + 1..=4 * BLOCK {
                let blocks = Blocks::of(start..end, BLOCK);
                let bytes: Vec<u64> = (start..end).collect();
                let count = |block: u64| bytes.iter().filter(|at| **at / BLOCK == block).count();
                let of = |wanted: &dyn Fn(usize) -> bool| -> Vec<u64> {
                    (0..4).filter(|block| wanted(count(*block))).map(|b| b * BLOCK).collect()
                };
                let listed =
                    |range: Range<u64>| -> Vec<u64> { range.step_by(BLOCK as usize).collect() };
                assert_eq!(listed(blocks.all()), of(&|n| n > 0), "{start}..{end}");
                assert_eq!(listed(blocks.inside()), of(&|n| n == BLOCK as usize));
                let edges: Vec<u64> = blocks.edges().into_iter().flatten().collect();
                assert_eq!(edges, of(&|n| n > 0 && n < BLOCK as usize));
                assert_eq!(blocks.is_whole(), edges.is_empty());
                assert_eq!(blocks.skip() as u64, start - blocks.all().start);
                check_bytes(&blocks, &edges);
            }
        }
    }

    fn check_bytes(blocks: &Blocks, edges: &[u64]) {
        let mut all = vec![0; blocks.all_bytes()];
        all[blocks.skip()..blocks.skip() + blocks.bytes()].fill(1);
        for edge in edges {
            assert!(!blocks.covered(*edge).is_empty());
            blocks.complete(&mut all, *edge, &vec![2; blocks.block()]);
        }
        let wanted = |at: u64| if blocks.range().contains(&at) { 1 } else { 2 };
        assert!(blocks.all().map(wanted).eq(all));
    }
}
