//! Entries that are not in order yet: what is inserted while nothing else is there.
//!
//! Invariants: the first ends belong to the entries of the sorter; `edges` is set for their keys
//! and ends, and nothing else.

use super::sorted::Entry;
use super::sorter::{SORTER_MAX, Sorter};
use drystone_core::Bio;

/// Size of the filter, as a power of two. With 16 units in it, 6 of 100 bios are compared with
/// all of them though they adjoin none.
const EDGES: u32 = 10;

/// At most [`SORTER_MAX`] entries.
pub(super) struct Loose {
    sorter: Sorter,
    /// First sectors behind the units.
    ends: [u64; SORTER_MAX],
    edges: [bool; 1 << EDGES],
}

/// The place of a unit: sectors from `start` to before `end`, and where these are in the filter.
pub(super) struct Extent {
    start: u64,
    end: u64,
    edges: [usize; 2],
}

impl Extent {
    #[inline]
    pub fn of(bio: &Bio) -> Self {
        let (start, end) = (bio.sector.0, bio.end_sector().0);
        Extent { start, end, edges: [edge(start), edge(end)] }
    }
}

/// Where `sector` is in the filter. Fibonacci hashing spreads what is evenly spaced.
#[inline]
fn edge(sector: u64) -> usize {
    (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - EDGES)) as usize
}

impl Default for Loose {
    fn default() -> Self {
        let sorter = Sorter::default();
        Loose { sorter, ends: [0; SORTER_MAX], edges: [false; 1 << EDGES] }
    }
}

impl Loose {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sorter.len() == 0
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.sorter.is_full()
    }

    /// Append `entry`, whose `unit` this is. There is room.
    #[inline]
    pub fn push(&mut self, entry: Entry, unit: &Extent) {
        self.ends[self.sorter.len()] = unit.end;
        self.sorter.push(entry);
        self.edges[unit.edges[0]] = true;
        self.edges[unit.edges[1]] = true;
    }

    /// Whether `unit` adjoins one of these.
    #[inline]
    pub fn adjoins(&self, unit: &Extent) -> bool {
        let maybe = self.edges[unit.edges[0]] | self.edges[unit.edges[1]];
        maybe && self.adjoins_indeed(unit.start, unit.end)
    }

    #[inline(never)]
    fn adjoins_indeed(&self, start: u64, end: u64) -> bool {
        let mut units = self.sorter.keys().iter().zip(&self.ends);
        units.any(|(key, behind)| (*key == end) | (*behind == start))
    }

    /// Put the entries into `sorted`, equal ones as they were inserted. Returns how many.
    pub fn sort_into(&mut self, sorted: &mut [Entry]) -> usize {
        self.edges.fill(false);
        self.sorter.sort_into(sorted)
    }

    /// The places of the units, to change them.
    pub fn places_mut(&mut self) -> &mut [u32] {
        self.sorter.places_mut()
    }
}
