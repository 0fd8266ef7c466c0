//! The bytes of a disk, in pages that copies share until a write (copy on write). A copy of a disk
//! costs only the pages that change afterwards, so the simulator can try a crash at each moment of
//! a large disk.
//!
//! Invariant: an absent page reads as zeroes.

use std::ops::Range;
use std::sync::Arc;

const PAGE: usize = 4096;

type Page = [u8; PAGE];

/// A fixed number of bytes; all are zeroes at first.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    pages: Vec<Option<Arc<Page>>>,
    size: usize,
}

impl Bytes {
    pub fn new(size: usize) -> Self {
        Bytes { pages: vec![None; size.div_ceil(PAGE)], size }
    }

    pub fn len(&self) -> usize {
        self.size
    }

    pub fn grow(&mut self, size: usize) {
        self.pages.resize(size.div_ceil(PAGE), None);
        self.size = size;
    }

    /// The pieces of a range: pages, and the part of each.
    fn pieces(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        pages.map(move |page| {
            let first = page * PAGE;
            (page, range.start.max(first) - first..range.end.min(first + PAGE) - first)
        })
    }

    fn page(&mut self, page: usize) -> &mut Page {
        Arc::make_mut(self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Add the bytes of a range to `to`.
    pub fn read(&self, range: Range<usize>, to: &mut Vec<u8>) {
        for (page, part) in Self::pieces(range) {
            match &self.pages[page] {
                Some(page) => to.extend_from_slice(&page[part]),
                None => to.resize(to.len() + part.len(), 0),
            }
        }
    }

    pub fn put(&mut self, offset: usize, mut data: &[u8]) {
        for (page, part) in Self::pieces(offset..offset + data.len()) {
            let (here, rest) = data.split_at(part.len());
            self.page(page)[part].copy_from_slice(here);
            data = rest;
        }
    }

    pub fn zero(&mut self, range: Range<usize>) {
        for (page, part) in Self::pieces(range) {
            if part.len() == PAGE {
                self.pages[page] = None;
            } else if self.pages[page].is_some() {
                self.page(page)[part].fill(0);
            }
        }
    }

    /// Copies a range from `other`.
    pub fn copy_from(&mut self, other: &Bytes, range: Range<usize>) {
        for (page, part) in Self::pieces(range) {
            match &other.pages[page] {
                theirs if part.len() == PAGE => self.pages[page] = theirs.clone(),
                Some(theirs) => self.page(page)[part.clone()].copy_from_slice(&theirs[part]),
                None => self.zero(page * PAGE + part.start..page * PAGE + part.end),
            }
        }
    }

    pub fn is_zero(&self, range: Range<usize>) -> bool {
        let is_zero = |(page, part): (usize, Range<usize>)| {
            self.pages[page].as_ref().is_none_or(|page| page[part].iter().all(|byte| *byte == 0))
        };
        Self::pieces(range).all(is_zero)
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.size);
        self.read(0..self.size, &mut all);
        all
    }
}
