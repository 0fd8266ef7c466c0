//! A few sectors, put in order all at once: that costs less than inserting them one by one.
//!
//! Invariants: the first `len` keys and places belong together, in the order in which they came;
//! keys behind them are above all sectors.

use super::sorted::Entry;

/// Most entries: a full plug. Sorting takes time by the square of their number.
pub(super) const SORTER_MAX: usize = 32;
/// Above all sectors.
const ABOVE: u64 = u64::MAX;

/// At most [`SORTER_MAX`] entries.
pub(super) struct Sorter {
    /// First sectors.
    keys: [u64; SORTER_MAX],
    places: [u32; SORTER_MAX],
    len: usize,
    /// For sorting: how far the keys are from the first.
    narrow: Fours,
}

/// Four at a time.
type Fours = [[i32; 4]; SORTER_MAX / 4];

impl Default for Sorter {
    fn default() -> Self {
        Sorter {
            keys: [ABOVE; SORTER_MAX],
            places: [0; SORTER_MAX],
            len: 0,
            narrow: Fours::default(),
        }
    }
}

impl Sorter {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == SORTER_MAX
    }

    /// First sectors, in the order in which they came.
    #[inline]
    pub fn keys(&self) -> &[u64] {
        &self.keys[..self.len]
    }

    /// Append `entry`. There is room.
    #[inline]
    pub fn push(&mut self, entry: Entry) {
        let at = self.len;
        self.keys[at] = entry.sector;
        self.places[at] = entry.place;
        self.len = at + 1;
    }

    /// Put the entries into `sorted`, equal ones as they came, and forget them. Returns how many.
    pub fn sort_into(&mut self, sorted: &mut [Entry]) -> usize {
        let len = std::mem::take(&mut self.len);
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
