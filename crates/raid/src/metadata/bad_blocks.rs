//! The bad block list of a member: sectors that cannot be read or written; and the log on disk that
//! keeps it (`block/badblocks.c`, `drivers/md/md.c`).
//!
//! Invariants: ranges are sorted, do not touch one another, consist of whole units, and take at
//! most [`ENTRIES_MAX`] entries of the log. Sectors are sectors of the device: they include the
//! member's data offset.

use super::places::Places;
use super::raw::BAD_BLOCK_LOG_BYTES;
use super::superblock::{Features, Superblock};
use super::{MetadataError, invalid, put, u64_at};
use std::fmt;
use std::ops::Range;

/// Bytes of the log.
pub const LOG_BYTES: usize = BAD_BLOCK_LOG_BYTES;
/// Entries of the log, and so of the list.
pub const ENTRIES_MAX: usize = LOG_BYTES / 8;
/// Most units of an entry: its length has ten bits.
const ENTRY_UNITS_MAX: u64 = 512;
/// Marks the end of the entries.
const END: u64 = u64::MAX;

/// The list has no room: the member has to fail instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The bad block list of a device of `device_sectors` sectors; empty if the superblock says so.
/// `read` returns a number of bytes from a sector of the device on.
///
/// # Errors
/// The log cannot be read, or is damaged.
pub fn read<E: fmt::Display>(
    own: &Superblock,
    places: &Places,
    device_sectors: u64,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<BadBlocks, MetadataError> {
    let is_any = own.feature_map.contains(Features::BAD_BLOCKS);
    let Some(area) = places.bad_blocks().filter(|_| is_any) else {
        // Linux ignores the unit of an empty list (`super_1_load`), so later entries count in
        // sectors.
        return Ok(BadBlocks::default());
    };
    let log = read(area.start, LOG_BYTES);
    let log = log.map_err(|error| invalid(format!("the bad block log cannot be read: {error}")))?;
    BadBlocks::parse(&log, own.bblog_shift, device_sectors)
}

/// Bad sectors of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    ranges: Vec<Range<u64>>,
    /// Log2 of the unit in sectors.
    shift: u8,
}

impl BadBlocks {
    /// An empty list with units of `1 << shift` sectors (a superblock's `bblog_shift`).
    ///
    /// # Errors
    /// The unit is larger than any device.
    pub fn new(shift: u8) -> Result<Self, MetadataError> {
        if shift > 32 {
            return Err(invalid(format!("bblog_shift is {shift}, expected up to 32")));
        }
        Ok(BadBlocks { ranges: Vec::new(), shift })
    }

    /// The list in a log, on a device of `device_sectors` sectors. A log of zeroes was never
    /// written and counts as empty: a superblock with a non-empty log is written after that log,
    /// and if that write failed, nothing relies on it.
    ///
    /// # Errors
    /// The unit is larger than any device, or an entry is empty or not on the device.
    pub fn parse(log: &[u8], shift: u8, device_sectors: u64) -> Result<Self, MetadataError> {
        let mut list = Self::new(shift)?;
        if log.iter().all(|byte| *byte == 0) {
            return Ok(list);
        }
        let entries = (0..log.len().min(LOG_BYTES) / 8).map(|index| u64_at(log, index * 8));
        // The last unit of the device may be incomplete.
        let units_max = device_sectors.min(u64::MAX >> 9).div_ceil(1 << shift);
        for (index, entry) in entries.take_while(|entry| *entry != END).enumerate() {
            let (start, units) = (entry >> 10, entry & 0x3FF);
            let end = start.checked_add(units).filter(|end| *end <= units_max);
            let end = end.filter(|_| (1..=ENTRY_UNITS_MAX).contains(&units)).ok_or_else(|| {
                invalid(format!(
                    "entry {index} of the bad block log is {units} units at {start}, expected 1 to \
                     {ENTRY_UNITS_MAX} on the device, which has {units_max}"
                ))
            })?;
            // Joining never makes more entries.
            list.ranges.push(start << shift..end << shift);
        }
        list.ranges = joined(list.ranges);
        Ok(list)
    }

    /// Log2 of the unit in sectors, for the superblock that describes the log.
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// The log's bytes.
    pub fn to_bytes(&self) -> [u8; LOG_BYTES] {
        let mut out = [0xFF; LOG_BYTES];
        for (index, (start, units)) in self.entries().enumerate() {
            put(&mut out, index * 8, &(start << 10 | units).to_le_bytes());
        }
        out
    }

    /// Starts and lengths of the log's entries, in units.
    fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().flat_map(|range| {
            let (start, end) = (range.start >> self.shift, range.end >> self.shift);
            let starts = (start..end).step_by(ENTRY_UNITS_MAX as usize);
            starts.map(move |at| (at, (end - at).min(ENTRY_UNITS_MAX)))
        })
    }

    /// Entries of the log that the list takes.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(|range| self.entries_of(range)).sum()
    }

    fn entries_of(&self, range: &Range<u64>) -> usize {
        ((range.end - range.start) >> self.shift).div_ceil(ENTRY_UNITS_MAX) as usize
    }

    /// True if no sector is bad.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Start and length, in sectors, of each entry of the log, as `--examine-badblocks` lists them.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.entries().map(|(start, units)| (start << self.shift, units << self.shift))
    }

    /// Marks these sectors as bad, and with them the whole units that they lie in.
    ///
    /// # Errors
    /// [`Full`]: the list is unchanged.
    pub fn add(&mut self, sectors: Range<u64>) -> Result<(), Full> {
        if sectors.is_empty() {
            return Ok(());
        }
        let unit = 1 << self.shift;
        let end = sectors.end.checked_next_multiple_of(unit).ok_or(Full)?;
        let mut ranges = self.ranges.clone();
        ranges.push(sectors.start & !(unit - 1)..end);
        self.replace(joined(ranges))
    }

    /// Marks these sectors as good. A unit becomes good only if all of it is among them.
    ///
    /// # Errors
    /// [`Full`]: the rest would take more entries than there are; the list is unchanged.
    pub fn clear(&mut self, sectors: Range<u64>) -> Result<(), Full> {
        let unit = 1 << self.shift;
        let start = sectors.start.checked_next_multiple_of(unit).unwrap_or(sectors.end);
        let end = sectors.end & !(unit - 1);
        if start >= end {
            return Ok(());
        }
        let left = self
            .ranges
            .iter()
            .flat_map(|range| [range.start..range.end.min(start), range.start.max(end)..range.end]);
        self.replace(left.filter(|range| !range.is_empty()).collect())
    }

    fn replace(&mut self, ranges: Vec<Range<u64>>) -> Result<(), Full> {
        if ranges.iter().map(|range| self.entries_of(range)).sum::<usize>() > ENTRIES_MAX {
            return Err(Full);
        }
        self.ranges = ranges;
        Ok(())
    }

    /// The first bad sectors among these.
    pub fn overlap(&self, sectors: Range<u64>) -> Option<Range<u64>> {
        let first = self.ranges.partition_point(|range| range.end <= sectors.start);
        let range = self.ranges.get(first)?;
        let both = range.start.max(sectors.start)..range.end.min(sectors.end);
        (!both.is_empty()).then_some(both)
    }
}

/// The ranges sorted, with those that touch joined.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_long_range_takes_several_entries() {
        let mut list = BadBlocks::default();
        list.add(8192..8792).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [(8192, 512), (8704, 88)]);
        assert_eq!(u64_at(&list.to_bytes(), 8), 8912984);
        assert_eq!(BadBlocks::parse(&list.to_bytes(), 0, 8792), Ok(list));
    }

    #[test]
    fn a_full_list_stays_as_it_was() {
        let mut list = BadBlocks::default();
        for index in 0..ENTRIES_MAX as u64 {
            list.add(index * 16..index * 16 + 8).unwrap();
        }
        let before = list.clone();
        assert_eq!(list.add(100_000..100_001), Err(Full));
        assert_eq!(list.clear(2..4), Err(Full));
        assert_eq!(list, before);
        // A range that joins two others makes room for one.
        list.add(8..16).unwrap();
        list.add(100_000..100_001).unwrap();
        assert_eq!(list.len(), ENTRIES_MAX);
    }

    #[test]
    fn a_log_that_was_never_written_is_empty() {
        for (byte, shift) in [(0, 0), (0, 3), (0xFF, 3)] {
            let list = BadBlocks::parse(&[byte; LOG_BYTES], shift, 16384).unwrap();
            assert!(list.is_empty() && list.shift() == shift, "{list:?}");
        }
        let mut log = [0; LOG_BYTES];
        log[LOG_BYTES - 1] = 1;
        assert!(BadBlocks::parse(&log, 0, 16384).is_err(), "an entry of no length before others");
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let at = |start: u64, units: u64| start << 10 | units;
        let beyond =
            [(at(7, 0), 0), (600, 0), (at(!0 >> 10, 1), 32), (at(993, 8), 0), (at(124, 2), 3)];
        for (entry, shift) in beyond {
            let error = BadBlocks::parse(&entry.to_le_bytes(), shift, 1000).unwrap_err();
            assert!(error.message().contains("expected 1 to 512 on the device"), "{error}");
        }
        let error = BadBlocks::parse(&at(1, 8).to_le_bytes(), 200, 1000).unwrap_err();
        assert!(error.message().contains("bblog_shift is 200, expected up to 32"), "{error}");
        // One range ends with the device; another has a unit that the device holds in part.
        for (entry, shift) in [(at(992, 8), 0), (at(62, 1), 4), (at(0, 1), 10)] {
            assert!(BadBlocks::parse(&entry.to_le_bytes(), shift, 1000).is_ok(), "{shift}");
        }
    }

    proptest! {
        /// Compared with a set of sectors.
        #[test]
        fn it_is_a_set_of_sectors(
            steps in prop::collection::vec((any::<bool>(), 0u64..3000, 0u64..900), 1..40),
            shift in 0u8..4,
        ) {
            let mut list = BadBlocks::new(shift).unwrap();
            let mut set = BTreeSet::new();
            let unit = 1u64 << shift;
            for (add, start, len) in steps {
                let end = start + len;
                if add {
                    list.add(start..end).unwrap();
                    set.extend((start..end).flat_map(|s| {
                        let first = s / unit * unit;
                        first..first + unit
                    }));
                } else {
                    list.clear(start..end).unwrap();
                    let whole = |s: u64| s / unit * unit >= start && s / unit * unit + unit <= end;
                    set.retain(|s| !whole(*s));
                }
                let listed: BTreeSet<u64> = list.iter().flat_map(|(s, n)| s..s + n).collect();
                prop_assert_eq!(&listed, &set);
                let read = BadBlocks::parse(&list.to_bytes(), shift, 4096);
                prop_assert_eq!(read, Ok(list.clone()));
                let asked = start / 2..start / 2 + 40;
                let first = set.range(asked.clone()).next().copied();
                prop_assert_eq!(list.overlap(asked).map(|range| range.start), first);
            }
        }
    }
}
