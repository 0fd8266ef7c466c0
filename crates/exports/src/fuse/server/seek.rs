//! A search for data or a hole: `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
//!
//! Invariants:
//! * The search asks for the range from [`Seek::range`] on, whose start only grows.
//! * A range without an answer of the device counts as data. So does all the rest after
//!   [`ASKS_MAX`] answers.

use drystone_core::extent::Extent;
use std::ops::Range;

/// Most answers of the device to one search: a bound for files of many small pieces.
const ASKS_MAX: u32 = 256;

/// The progress of a search.
pub(super) struct Seek {
    /// The search has covered everything before this offset.
    at: u64,
    /// The search is for a hole, not data.
    hole: bool,
    /// The size of the file: behind it there is a hole.
    size: u64,
    asks: u32,
    found: Option<u64>,
}

impl Seek {
    /// A search for a hole, or else data, from `at` on in a file of `size` bytes.
    pub(super) fn new(at: u64, hole: bool, size: u64) -> Self {
        Seek { at, hole, size, asks: 0, found: None }
    }

    /// The range to ask the device for.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.size
    }

    /// The place that was found.
    pub(super) fn found(&self) -> Option<u64> {
        self.found
    }

    /// Takes the device's answer for [`Seek::range`]. True when the search is over.
    pub(super) fn advance(&mut self, extents: &[Extent]) -> bool {
        self.asks += 1;
        if let Some(found) = extents.iter().find(|extent| extent.zero == self.hole) {
            self.found = Some(found.offset.max(self.at));
            return true;
        }
        let end = extents.last().map_or(self.at, |last| last.offset.saturating_add(last.length));
        if end >= self.size {
            self.found = self.hole.then_some(self.size);
        } else if end <= self.at || self.asks == ASKS_MAX {
            // The device does not know, or the small pieces have no end: the rest counts as data.
            self.found = Some(if self.hole { self.size } else { self.at });
        } else {
            self.at = end;
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn extent(offset: u64, length: u64, zero: bool) -> Extent {
        Extent { offset, length, allocated: !zero, zero }
    }

    /// The result of a search in a file of data, a hole from 4096 to 8192, and data.
    fn search(at: u64, hole: bool) -> Option<u64> {
        let map = [(0, 4096, false), (4096, 4096, true), (8192, SIZE - 8192, false)];
        let mut seek = Seek::new(at, hole, SIZE);
        for _ in 0..map.len() {
            let from = seek.range().start;
            let (offset, length, zero) = *map.iter().find(|it| it.0 + it.1 > from).expect("in it");
            if seek.advance(&[extent(offset, length, zero)]) {
                return seek.found();
            }
        }
        panic!("the search goes past the end");
    }

    #[test]
    fn it_finds_what_a_map_of_the_file_says() {
        assert_eq!([search(0, false), search(0, true)], [Some(0), Some(4096)]);
        assert_eq!([search(5000, false), search(5000, true)], [Some(8192), Some(5000)]);
        assert_eq!([search(9000, false), search(9000, true)], [Some(9000), Some(SIZE)]);
    }

    #[test]
    fn no_data_follows_a_hole_to_the_end() {
        let mut seek = Seek::new(100, false, SIZE);
        assert!(seek.advance(&[extent(0, SIZE, true)]));
        assert_eq!(seek.found(), None);
    }

    #[test]
    fn unknown_ranges_are_data() {
        for (hole, wanted) in [(false, 100), (true, SIZE)] {
            let mut seek = Seek::new(100, hole, SIZE);
            assert!(seek.advance(&[]), "nothing more will be told");
            assert_eq!(seek.found(), Some(wanted));
        }
    }

    #[test]
    fn a_search_has_an_end() {
        let mut seek = Seek::new(0, true, u64::MAX);
        let asks = (0..).find(|at| seek.advance(&[extent(at * 512, 512, false)]));
        assert_eq!((asks, seek.found()), (Some(u64::from(ASKS_MAX) - 1), Some(u64::MAX)));
    }
}
