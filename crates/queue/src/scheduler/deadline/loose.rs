//! Entries that are not in order yet: what is inserted while nothing else is there. Sorting a
//! batch at once costs less than inserting its bios one by one.
//!
//! Invariants: the first `len` keys, ends and places belong together, in order of insertion; keys
//! behind them are above all sectors. `edges` is set for these keys and ends, and nothing else.

use drystone_core::Bio;

/// A unit in the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its first sector.
    pub sector: u64,
    /// Its place in the FIFO, by which it is known.
    pub place: u32,
}

/// Most entries: a full plug. Sorting takes time by the square of their number.
pub(super) const LOOSE_MAX: usize = 32;
/// Above all sectors.
const ABOVE: u64 = u64::MAX;
/// Size of the filter, as a power of two. With 16 units in it, 6 of 100 bios are compared with
/// all of them though they adjoin none.
const EDGES: u32 = 10;

/// At most [`LOOSE_MAX`] entries.
pub(super) struct Loose {
    /// First sectors.
    keys: [u64; LOOSE_MAX],
    /// First sectors behind the units.
    ends: [u64; LOOSE_MAX],
    places: [u32; LOOSE_MAX],
    len: usize,
    edges: [bool; 1 << EDGES],
    /// For sorting: how far the keys are from the first.
    narrow: Fours,
}

/// Four at a time.
type Fours = [[i32; 4]; LOOSE_MAX / 4];

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

/// The bit of `sector` in the filter. Fibonacci hashing spreads sectors that are evenly spaced.
#[inline]
fn edge(sector: u64) -> usize {
    (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - EDGES)) as usize
}

impl Default for Loose {
    fn default() -> Self {
        Loose {
            keys: [ABOVE; LOOSE_MAX],
            ends: [0; LOOSE_MAX],
            places: [0; LOOSE_MAX],
            len: 0,
            edges: [false; 1 << EDGES],
            narrow: Fours::default(),
        }
    }
}

impl Loose {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == LOOSE_MAX
    }

    /// Append `entry`, whose `unit` this is. There is room.
    #[inline]
    pub fn push(&mut self, entry: Entry, unit: &Extent) {
        let at = self.len;
        self.keys[at] = entry.sector;
        self.ends[at] = unit.end;
        self.places[at] = entry.place;
        self.len = at + 1;
        self.edges[unit.edges[0]] = true;
        self.edges[unit.edges[1]] = true;
    }

    /// True if `unit` adjoins one of these.
    #[inline]
    pub fn adjoins(&self, unit: &Extent) -> bool {
        let maybe = self.edges[unit.edges[0]] | self.edges[unit.edges[1]];
        maybe && self.adjoins_indeed(unit.start, unit.end)
    }

    #[inline(never)]
    fn adjoins_indeed(&self, start: u64, end: u64) -> bool {
        let mut units = self.keys.iter().zip(&self.ends).take(self.len);
        units.any(|(key, behind)| (*key == end) | (*behind == start))
    }

    /// Put the entries into `sorted`, equal ones as they were inserted. Returns how many.
    pub fn sort_into(&mut self, sorted: &mut [Entry]) -> usize {
        let len = std::mem::take(&mut self.len);
        self.edges.fill(false);
        match len {
            0..=4 => self.rank_few::<4>(len, sorted),
            5..=8 => self.rank_few::<8>(len, sorted),
            _ if self.narrow(len) && self.rank_narrow(len, sorted) => {}
            _ => self.sort_any(len, sorted),
        }
        self.keys[..len].fill(ABOVE);
        len
    }

    /// Compare each of the first `M` with all others to find its rank. There is nothing in it
    /// that the processor could guess wrong.
    fn rank_few<const M: usize>(&self, len: usize, sorted: &mut [Entry]) {
        let keys: &[u64; M] = self.keys.first_chunk().expect("room for more");
        for index in 0..M {
            let key = keys[index];
            let is_before = |other: usize| match other < index {
                true => keys[other] <= key,
                false => keys[other] < key,
            };
            let rank: usize = (0..M).map(|other| usize::from(is_before(other))).sum();
            if index < len {
                sorted[rank] = Entry { sector: key, place: self.places[index] };
            }
        }
    }

    /// Fill `narrow`, and after the keys up to a multiple of four with what is above all. False if
    /// a key is further than a TiB from the first.
    fn narrow(&mut self, len: usize) -> bool {
        let narrow = self.narrow.as_flattened_mut();
        let base = self.keys[0];
        let mut wide = 0;
        for (narrow, key) in narrow.iter_mut().zip(&self.keys[..len]) {
            let apart = key.wrapping_sub(base) as i64;
            *narrow = apart as i32;
            wide |= apart ^ i64::from(apart as i32);
        }
        narrow[len..len.next_multiple_of(4)].fill(i32::MAX);
        wide == 0
    }

    /// The same for sectors that are not far apart, four comparisons at a time. If some are equal
    /// it fails: they find the same rank, and the sum of the ranks tells of it.
    fn rank_narrow(&self, len: usize, sorted: &mut [Entry]) -> bool {
        let fours = &self.narrow[..len.div_ceil(4)];
        let mut sum = 0;
        for (index, key) in self.narrow.as_flattened()[..len].iter().enumerate() {
            let mut below = [0; 4];
            for four in fours {
                for (below, other) in below.iter_mut().zip(four) {
                    *below += i32::from(other < key);
                }
            }
            let rank = below.iter().sum::<i32>() as usize;
            sorted[rank] = Entry { sector: self.keys[index], place: self.places[index] };
            sum += rank;
        }
        sum == len * (len - 1) / 2
    }

    fn sort_any(&self, len: usize, sorted: &mut [Entry]) {
        let entries = self.keys.iter().zip(&self.places);
        for (sorted, (sector, place)) in sorted[..len].iter_mut().zip(entries) {
            *sorted = Entry { sector: *sector, place: *place };
        }
        sorted[..len].sort_by_key(|entry| entry.sector);
    }

    /// The places, to change them.
    pub fn places_mut(&mut self) -> &mut [u32] {
        &mut self.places[..self.len]
    }
}
