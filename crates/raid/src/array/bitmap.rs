//! The write-intent bitmap: as it must be, and how far the members have it.
//!
//! Invariants:
//! * A page that is not dirty is durable on all members with its present content, except on members
//!   that must be given the whole bitmap (`Disk::wants_bitmap`).
//! * The header says how fresh the bits are. So it is written after the bits that were set before,
//!   and before the bits that are cleared.

use super::disk::Disk;
use super::io::Io;
use super::status::BitmapStatus;
use crate::engine::Bitmap;
use crate::metadata::assemble::{Assembly, BitmapUse};
use crate::metadata::bitmap::{BitmapHeader, HEADER_BYTES, byte_of};
use crate::metadata::places::Places;
use drystone_core::clock::Ns;
use drystone_core::{Error, Result, SECTOR_SIZE};
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a page, the unit of writing.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bits of a page of Linux's counters, of 16 bits each.
const PAGE_BITS: u64 = 2048;
/// The most pages of one write.
const RUN_PAGES_MAX: usize = 32;

/// See the module's text.
pub(crate) struct BitmapStorage {
    header: BitmapHeader,
    /// Header and bits, in whole pages.
    image: Vec<u8>,
    /// By page.
    dirty: Vec<bool>,
    pub(crate) words: Arc<Bitmap>,
    /// The number of words with a set bit, by the page in which their first bit lies.
    set: Vec<usize>,
    /// The time of the next pass that clears unused bits.
    pub(crate) next_pass: Option<Ns>,
}

impl BitmapStorage {
    /// The bitmap of an array that will be written; `assembly` says how far its bits count.
    /// `headers` are those of `disks`.
    ///
    /// # Errors
    /// No member in sync has a readable bitmap, or the bitmap's size is not possible. The message
    /// is one sentence.
    pub(crate) fn load(
        io: &mut Io,
        disks: &[Disk],
        headers: &[Option<BitmapHeader>],
        assembly: &Assembly,
    ) -> Result<Option<Self>> {
        let is_stale = match assembly.bitmap {
            BitmapUse::Good => false,
            BitmapUse::Stale => true,
            BitmapUse::None | BitmapUse::Bad(_) | BitmapUse::Unknown(_) => return Ok(None),
        };
        let unreadable = || Error::invalid("no member in sync has a bitmap that can be read");
        let headers = headers.iter().map(Option::as_ref);
        // The bitmap of a member that was forced in does not mark the writes that this member
        // missed.
        let is_of_age = |events: u64| events.saturating_add(1) >= assembly.fresh.events;
        let in_sync = disks
            .iter()
            .zip(headers)
            .filter(|(disk, _)| disk.member().is_in_sync() && is_of_age(disk.superblock.events));
        let mut found = in_sync.filter_map(|(disk, header)| read(io, disk, header?, assembly));
        let (header, image) = found.next().ok_or_else(unreadable)??;
        for disk in disks {
            check_room(disk, &header)?;
        }
        let mut storage = BitmapStorage::new(header, image);
        if is_stale {
            storage.set_all(assembly.fresh.events);
        }
        storage.find_set(assembly.resync_from.is_some());
        Ok(Some(storage))
    }

    fn new(header: BitmapHeader, image: Vec<u8>) -> Self {
        let words = Arc::new(Bitmap::new(header.sync_size, header.chunk_sectors()));
        let dirty = vec![false; image.len() / PAGE_BYTES];
        let set = vec![0; header.bits().div_ceil(PAGE_BITS) as usize];
        BitmapStorage { header, image, dirty, words, set, next_pass: None }
    }

    /// Set all bits, because the bits on the members are too old.
    fn set_all(&mut self, events: u64) {
        self.image[HEADER_BYTES..].fill(0xFF);
        self.dirty.fill(true);
        self.header.events_cleared = events;
    }

    fn find_set(&mut self, is_dirty: bool) {
        for bit in self.header.set_bits(&self.image[HEADER_BYTES..]) {
            let word = self.words.word_of(self.header.sectors_of(bit).start);
            let page = self.page_of(word);
            self.set[page] += usize::from(!self.words.is_set(word));
            self.words.found_set(word);
            self.words.set_needed(word, is_dirty);
        }
    }

    /// Member sectors whose bits are set: ordered ranges that do not touch.
    pub(crate) fn set_sectors(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for bit in self.header.set_bits(&self.image[HEADER_BYTES..]) {
            let sectors = self.header.sectors_of(bit);
            match runs.last_mut() {
                Some(run) if run.end == sectors.start => run.end = sectors.end,
                _ => runs.push(sectors),
            }
        }
        runs
    }

    pub(crate) fn header(&self) -> &BitmapHeader {
        &self.header
    }

    /// Some bit is set.
    pub(crate) fn has_set(&self) -> bool {
        self.set.iter().any(|words| *words > 0)
    }

    fn page_of(&self, word: usize) -> usize {
        (self.header.bit_of(word as u64 * self.words.chunk_sectors()) / PAGE_BITS) as usize
    }

    /// The status that users see.
    pub(crate) fn status(&self) -> BitmapStatus {
        BitmapStatus {
            pages_used: self.set.iter().filter(|words| **words > 0).count(),
            pages: self.set.len(),
            chunk_bytes: self.header.chunk_bytes.into(),
        }
    }

    /// Set the bits of a word whose bits were clear, or clear those of one whose bits were set.
    pub(crate) fn put(&mut self, word: usize, is_set: bool) {
        let page = self.page_of(word);
        self.set[page] = if is_set { self.set[page] + 1 } else { self.set[page] - 1 };
        let start = word as u64 * self.words.chunk_sectors();
        let end = (start + self.words.chunk_sectors()).min(self.header.sync_size);
        for bit in self.header.bit_of(start)..self.header.bit_of(end - 1) + 1 {
            let (byte, mask) = byte_of(bit);
            let at = HEADER_BYTES + byte as usize;
            match is_set {
                true => self.image[at] |= mask,
                false => self.image[at] &= !mask,
            }
            self.dirty[at / PAGE_BYTES] = true;
        }
    }

    /// Note that the superblocks are about to be written with `events`.
    pub(crate) fn note_events(&mut self, events: u64) {
        // The array may take an event back; `events_cleared` must go back with it.
        let cleared = self.header.events_cleared.min(events);
        // A header that is one event ahead counts as fresh too. Keeping it saves a write.
        let is_good = matches!(self.header.events.checked_sub(events), Some(0 | 1));
        let at = if is_good { self.header.events } else { events };
        self.set_events(at, cleared);
    }

    /// Note that no member lacks any write up to `events`. True if the header changes by that.
    pub(crate) fn note_whole(&mut self, events: u64) -> bool {
        let is_news = self.header.events_cleared != events;
        self.set_events(self.header.events, events);
        is_news
    }

    fn set_events(&mut self, events: u64, cleared: u64) {
        let is_new = self.header.events != events;
        // If the array only took an event back, the header is written with the next change.
        let is_more = self.header.events_cleared < cleared;
        (self.header.events, self.header.events_cleared) = (events, cleared);
        self.dirty[0] |= is_new || is_more;
    }

    /// The dirty runs of bytes, or all runs if `all`: first the runs of bits, then the header.
    pub(crate) fn rounds(&self, all: bool) -> [Vec<Range<usize>>; 2] {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in (1..self.dirty.len()).filter(|page| all || self.dirty[*page]) {
            match runs.last_mut() {
                Some(run) if run.end == page && run.len() < RUN_PAGES_MAX => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        let bytes = |run: Range<usize>| run.start * PAGE_BYTES..run.end * PAGE_BYTES;
        let first = (all || self.dirty[0]).then_some(0..1);
        [runs.into_iter().map(bytes).collect(), first.into_iter().map(bytes).collect()]
    }

    /// The bytes of a run, as far as the disk's area reaches.
    pub(crate) fn bytes(&mut self, disk: &Disk, run: &Range<usize>) -> &[u8] {
        if run.start == 0 {
            self.image[..HEADER_BYTES].copy_from_slice(&self.header.to_bytes());
        }
        let end = bytes_on(disk, &self.header).min(self.image.len());
        &self.image[run.start..run.end.min(end)]
    }

    /// Note that all dirty pages were written.
    pub(crate) fn set_written(&mut self) {
        self.dirty.fill(false);
    }
}

/// Read the bitmap of a member. `None` if it cannot be read, or belongs to another array.
fn read(
    io: &mut Io,
    disk: &Disk,
    header: &BitmapHeader,
    assembly: &Assembly,
) -> Option<Result<(BitmapHeader, Vec<u8>)>> {
    let mut header = header.clone();
    if header.uuid != assembly.fresh.set_uuid {
        return None;
    }
    (header.sync_size, header.state) = (assembly.used(), 0);
    if let Err(error) = check_room(disk, &header) {
        return Some(Err(error));
    }
    let start = disk.bitmap_sector()?;
    let bytes = bytes_on(disk, &header);
    let mut image = Vec::with_capacity(bytes.next_multiple_of(PAGE_BYTES));
    while image.len() < bytes {
        let len = (bytes - image.len()).min(RUN_PAGES_MAX * PAGE_BYTES);
        let sector = start + image.len() as u64 / SECTOR_SIZE;
        image.extend_from_slice(&io.read(disk.index, sector, len).ok()?);
    }
    // The bytes behind the bitmap belong to something else.
    image.resize(bytes.next_multiple_of(PAGE_BYTES), 0);
    Some(Ok((header, image)))
}

/// The bytes that the bitmap takes on a device: a multiple of the device's block.
fn bytes_on(disk: &Disk, header: &BitmapHeader) -> usize {
    let bytes = header.sectors_for(header.sync_size) * SECTOR_SIZE;
    bytes.next_multiple_of(disk.block_bytes()) as usize
}

/// Check that the bits do not overlap other areas. Every member is given the bitmap of `header`,
/// whatever its own header says.
fn check_room(disk: &Disk, header: &BitmapHeader) -> Result<()> {
    let wrong = |error| Error::invalid(format!("{}: {error}", disk.name));
    if disk.places.bitmap().map_err(wrong)?.is_none() {
        return Ok(());
    }
    let (sectors, reserved) = (header.sectors_for(header.sync_size), header.sectors_reserved);
    if reserved != 0 && sectors > reserved.into() {
        return Err(Error::invalid(format!(
            "the bitmap of {} has chunks of {} bytes, for which its bits need {sectors} sectors, \
             and {reserved} are kept for it",
            disk.name, header.chunk_bytes
        )));
    }
    let device_sectors = disk.device.info().size_bytes / SECTOR_SIZE;
    let places = Places::of(&disk.superblock, device_sectors, Some(header)).map_err(wrong)?;
    if disk.places.bad_blocks().is_some() && places.bad_blocks().is_none() {
        return Err(Error::invalid(format!(
            "the bitmap of {}, whose bits need {sectors} sectors, reaches into its bad block log",
            disk.name
        )));
    }
    check_places(disk, &places)
}

/// Check that the bitmap's blocks on the device hold nothing else, because whole blocks are
/// written.
pub(super) fn check_blocks(disk: &Disk) -> Result<()> {
    check_places(disk, &disk.places)
}

fn check_places(disk: &Disk, places: &Places) -> Result<()> {
    let wrong = |error| Error::invalid(format!("{}: {error}", disk.name));
    places.bitmap().map_err(wrong)?;
    match places.bitmap_in_blocks(&disk.superblock, disk.block_bytes() / SECTOR_SIZE) {
        Some(error) => Err(wrong(error)),
        None => Ok(()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::metadata::Uuid;

    fn storage(sectors: u64, chunk_bytes: u32) -> BitmapStorage {
        let header = BitmapHeader::new(Uuid([7; 16]), sectors, chunk_bytes);
        let image = vec![0; (header.area_sectors() * SECTOR_SIZE) as usize];
        BitmapStorage::new(header, image)
    }

    fn spans(storage: &BitmapStorage, all: bool) -> [Vec<(usize, usize)>; 2] {
        storage.rounds(all).map(|runs| runs.iter().map(|run| (run.start, run.end)).collect())
    }

    #[test]
    fn the_header_goes_after_the_bits_that_it_vouches_for() {
        // 80000 bits are three pages.
        let mut storage = storage(80_000 * 8, 4096);
        assert_eq!(spans(&storage, false), [vec![], vec![]]);
        assert_eq!(spans(&storage, true), [vec![(4096, 12288)], vec![(0, 4096)]]);
        storage.put(79_999, true);
        storage.put(0, true);
        let status = storage.status();
        assert_eq!((status.pages_used, status.pages, status.chunk_bytes), (2, 40, 4096));
        assert_eq!(spans(&storage, false), [vec![(8192, 12288)], vec![(0, 4096)]]);
        assert_eq!(storage.image[HEADER_BYTES], 1);
        storage.set_written();
        storage.put(40_000, true);
        assert_eq!(spans(&storage, false), [vec![(4096, 8192)], vec![]]);
        storage.find_set(true);
        assert_eq!(storage.status().pages_used, 3);
        assert!([0, 40_000, 79_999].iter().all(|word| storage.words.is_needed(*word)));
        assert!(!storage.words.is_set(1));
    }

    #[test]
    fn events_follow_the_array_and_are_written_when_they_say_more() {
        let mut storage = storage(1 << 20, 65536);
        let is_dirty = |storage: &BitmapStorage| storage.rounds(false)[1].len() == 1;
        storage.note_events(7);
        assert!(is_dirty(&storage));
        storage.set_written();
        assert!(storage.note_whole(7) && is_dirty(&storage));
        storage.set_written();
        // The array becomes clean, which takes one event back; then it becomes dirty.
        storage.note_events(6);
        assert_eq!((storage.header.events, storage.header.events_cleared), (7, 6));
        storage.note_events(7);
        assert!(!is_dirty(&storage));
        storage.note_events(8);
        assert!(is_dirty(&storage));
        assert_eq!((storage.header.events, storage.header.events_cleared), (8, 6));
    }

    #[test]
    fn a_word_that_stands_for_several_bits_sets_them_all() {
        let mut storage = storage(60, 512);
        storage.put(1, true);
        assert_eq!(storage.image[HEADER_BYTES..HEADER_BYTES + 3], [0, 0xFF, 0]);
        storage.put(7, true);
        assert_eq!(storage.image[HEADER_BYTES + 7], 0x0F, "as many as there are");
        storage.put(1, false);
        assert!(storage.image[HEADER_BYTES + 1] == 0 && storage.has_set());
    }
}
