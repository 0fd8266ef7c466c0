//! Operations in flight: begun, finished, cancelled, and ended by outages.
//!
//! Invariants:
//! * An id names one operation for ever: its slot's generation grows when the operation ends.
//! * An operation that has a result has taken effect already, if at all.

use super::faults::{Fate, Faults, Kind};
use super::media::{Entry, Media};
use super::{DiskCounts, DiskOptions, ENODEV};
use drystone_core::clock::Ns;
use fastrand::Rng;

/// An operation that a disk is asked to do. Offsets and lengths are bytes.
#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Read; a read past the end is short.
    Read {
        /// First byte.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Write; a write past the end writes what fits, or gets ENOSPC.
    Write {
        /// First byte.
        offset: u64,
        /// The data to write; [`Disk::buffer`] gives a buffer without allocating.
        data: Vec<u8>,
        /// True if the write must be durable when it has finished.
        fua: bool,
    },
    /// Make all finished writes durable.
    Flush,
    /// Punch a hole: reads give zeroes, and units that lie wholly in it become free.
    Discard {
        /// First byte.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Write zeroes; the range that they cover is allocated.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
}

/// A file that was cut off.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The offset from which on the old bytes are lost.
    at: u64,
    /// The present end of the file; writes beyond it make the file longer again.
    end: u64,
}

/// An operation in flight on one disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId {
    slot: u32,
    generation: u32,
}

impl std::fmt::Debug for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "operation {}.{}", self.slot, self.generation)
    }
}

/// The end of an operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<'a> {
    /// As of a system call: bytes moved (0 for a flush, the whole length for a discard or a write
    /// of zeroes), or a negative errno.
    pub result: i64,
    /// The data that was read: as many bytes as the result says. Empty for everything else.
    pub data: &'a [u8],
}

#[derive(Clone, Debug)]
struct Flight {
    op: DiskOp,
    fate: Fate,
    /// For a flush: the number of the newest effect when it began.
    newest: u64,
    stalled: bool,
    /// The result, and the data of a read, if the operation took effect when it began.
    early: Option<(i64, Vec<u8>)>,
}

#[derive(Clone, Debug)]
struct Slot {
    generation: u32,
    flight: Option<Flight>,
}

/// Where the data of a read is.
#[derive(Debug)]
pub(super) enum Source {
    None,
    Scratch,
}

/// A simulated disk. It does nothing by itself: the simulation calls [`Disk::begin`] and, when
/// the operation is due, [`Disk::finish`].
#[derive(Clone, Debug)]
pub struct Disk {
    pub(super) options: DiskOptions,
    pub(super) media: Media,
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    pub(super) counts: DiskCounts,
    slots: Vec<Slot>,
    free: Vec<u32>,
    pub(super) is_on: bool,
    cut: Option<Cut>,
    /// Data of a read that differs from the cache.
    pub(super) scratch: Vec<u8>,
}

impl Disk {
    /// A disk of zeroes, switched on, nothing of it allocated. Its size must be a multiple of its
    /// physical block, which must be a power of two.
    pub fn new(options: DiskOptions, seed: u64) -> Self {
        let block = options.physical_block;
        assert!(block.is_power_of_two(), "a physical block of {block} bytes is no power of two");
        assert!(options.size.is_multiple_of(u64::from(block)), "a disk has whole blocks");
        let media = Media::new(options.size, block);
        Self::with_media(options, media, seed)
    }

    pub(super) fn with_media(options: DiskOptions, media: Media, seed: u64) -> Self {
        Disk {
            options,
            media,
            rng: Rng::with_seed(seed),
            faults: Faults::default(),
            counts: DiskCounts::default(),
            slots: Vec::new(),
            free: Vec::new(),
            is_on: true,
            cut: None,
            scratch: Vec::new(),
        }
    }

    /// Starts an operation; returns its id and the time at which [`Disk::finish`] is due. Latency,
    /// stalls and fate are decided here. The disk owns the operation's data from now on.
    pub fn begin(&mut self, now: Ns, op: DiskOp) -> (OpId, Ns) {
        let kind = self.count_begin(&op);
        let fate = self.faults.fate(kind, &mut self.rng);
        let stall = self.faults.stall(&mut self.rng);
        let (latency, slow) = self.latency(&op);
        self.counts.slow += u64::from(slow);
        self.counts.stalls += u64::from(stall.is_some());
        let newest = self.media.newest();
        let mut flight = Flight { op, fate, newest, stalled: stall.is_some(), early: None };
        let can_be_early = fate == Fate::Normal && stall.is_none() && self.is_on;
        if can_be_early && self.rng.u32(0..1_000_000) < self.options.early_ppm {
            self.perform_early(&mut flight);
        }
        (self.keep(flight), now + latency + stall.unwrap_or(0))
    }

    fn count_begin(&mut self, op: &DiskOp) -> Kind {
        let (count, kind) = match op {
            DiskOp::Read { .. } => (&mut self.counts.reads, Kind::Read),
            DiskOp::Write { fua, .. } => {
                self.counts.fua_writes += u64::from(*fua);
                (&mut self.counts.writes, Kind::Write)
            }
            DiskOp::Flush => (&mut self.counts.flushes, Kind::Flush),
            DiskOp::Discard { .. } => (&mut self.counts.discards, Kind::Zero),
            DiskOp::WriteZeroes { .. } => (&mut self.counts.write_zeroes, Kind::Zero),
        };
        *count += 1;
        kind
    }

    fn latency(&mut self, op: &DiskOp) -> (Ns, bool) {
        let latency = &self.options.latency;
        let (base, length) = match op {
            DiskOp::Read { length, .. } => (latency.read, *length),
            DiskOp::Write { data, .. } => (latency.write, data.len() as u64),
            DiskOp::Flush => (latency.flush, 0),
            DiskOp::Discard { .. } | DiskOp::WriteZeroes { .. } => (latency.write, 0),
        };
        latency.draw(base, length, &mut self.rng)
    }

    fn perform_early(&mut self, flight: &mut Flight) {
        self.counts.early += 1;
        let op = std::mem::replace(&mut flight.op, DiskOp::Flush);
        let (result, source) = self.perform(op, Fate::Normal, flight.newest);
        let data = match source {
            Source::None => Vec::new(),
            Source::Scratch => std::mem::take(&mut self.scratch),
        };
        flight.early = Some((result, data));
    }

    fn keep(&mut self, flight: Flight) -> OpId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, flight: None });
            self.slots.len() as u32 - 1
        });
        let kept = &mut self.slots[slot as usize];
        kept.flight = Some(flight);
        OpId { slot, generation: kept.generation }
    }

    fn take(&mut self, id: OpId) -> Option<Flight> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let flight = slot.flight.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(flight)
    }

    /// Ends an operation that is due; it takes effect now at the latest. The id must be of an
    /// operation in flight: not finished, cancelled or ended by [`Disk::process_killed`].
    pub fn finish(&mut self, id: OpId) -> Done<'_> {
        let Some(flight) = self.take(id) else { panic!("{id:?} is not in flight") };
        let (result, source) = match flight.early {
            None => self.perform(flight.op, flight.fate, flight.newest),
            Some((result, data)) => {
                let old = std::mem::replace(&mut self.scratch, data);
                self.media.recycle(old);
                (result, Source::Scratch)
            }
        };
        let data = match source {
            Source::None => &[],
            Source::Scratch => &self.scratch[..],
        };
        Done { result, data }
    }

    /// Asks an operation to end early. True: the disk had not begun it, so it had no effect and has
    /// ended (as with ECANCELED, not with [`Disk::finish`]). False: it goes on.
    pub fn cancel(&mut self, id: OpId) -> bool {
        let Some(slot) = self.slots.get(id.slot as usize) else { return false };
        if slot.generation != id.generation {
            return false;
        }
        let Some(flight) = &slot.flight else { return false };
        let cancels = flight.early.is_none() && (flight.stalled || self.rng.bool());
        if !cancels {
            self.counts.cancels_refused += 1;
            return false;
        }
        self.counts.cancelled += 1;
        self.take(id).is_some()
    }

    /// True if the operation is in flight.
    pub fn is_in_flight(&self, id: OpId) -> bool {
        self.slots
            .get(id.slot as usize)
            .is_some_and(|slot| slot.generation == id.generation && slot.flight.is_some())
    }

    /// The number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The present size of its file in bytes.
    pub fn size(&self) -> u64 {
        self.cut.map_or(self.media.size(), |cut| cut.end)
    }

    /// Truncates the file to so many bytes, whole units: the bytes behind are lost for good.
    ///
    /// A later write beyond the end makes the file longer again, with a hole. But the file never
    /// gets its last unit back: with its full length again nobody could tell that it was cut.
    pub fn cut_off(&mut self, size: u64) {
        assert!(self.cut.is_none(), "it was cut off before");
        assert!(size < self.media.size() && size.is_multiple_of(super::UNIT));
        self.counts.cuts += 1;
        self.end_at(Cut { at: size, end: size });
    }

    /// The offset at which the file was cut off, if it was.
    pub fn cut_at(&self) -> Option<u64> {
        self.cut.map(|cut| cut.at)
    }

    /// Gives a file that was cut off its full length again. It reads as zeroes where nothing was
    /// written since.
    pub fn restore_length(&mut self) {
        self.cut = None;
    }

    /// Takes note of a write up to `end`: a file that was cut off is at least that long now.
    pub(super) fn note_write_up_to(&mut self, end: u64) {
        if let Some(cut) = self.cut.filter(|cut| cut.end < end) {
            self.end_at(Cut { end: end.min(self.media.size() - super::UNIT), ..cut });
        }
    }

    fn end_at(&mut self, cut: Cut) {
        self.media.zero(cut.end, self.media.size() - cut.end, true, true);
        self.cut = Some(cut);
    }

    /// The options that it was made with.
    pub fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// The disk is larger from now on; the new part reads as zeroes. It never shrinks.
    pub fn grow(&mut self, size: u64) {
        assert!(size >= self.size() && size.is_multiple_of(u64::from(self.options.physical_block)));
        self.media.grow(size);
        self.options.size = size;
    }

    /// The faults that are switched on.
    pub fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// Counts of the disk's operations and faults.
    pub fn counts(&self) -> &DiskCounts {
        &self.counts
    }

    /// An empty buffer for the data of a write, recycled from an earlier one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.media.buffer()
    }

    /// The bytes that reads see now.
    pub fn contents(&self) -> Vec<u8> {
        self.media.cached().to_vec()
    }

    /// The bytes that a read of a range would see, filled up with zeroes behind the end of the
    /// disk.
    pub fn contents_of(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let (mut bytes, size) = (Vec::new(), self.media.size() as usize);
        self.media.cached().read(range.start.min(size)..range.end.min(size), &mut bytes);
        bytes.resize(range.len(), 0);
        bytes
    }

    /// The bytes that a power cut leaves where it keeps no newer version.
    pub fn durable(&self) -> Vec<u8> {
        self.media.media().to_vec()
    }

    /// Changes bytes as if they had always been so: no operation, no cache, no fault.
    pub fn poke(&mut self, offset: u64, data: &[u8]) {
        self.media.poke(offset, data);
    }

    /// True if nothing but zeroes was ever written.
    pub fn is_blank(&self) -> bool {
        self.media.cached().is_zero(0..self.size() as usize)
    }

    /// The first byte from `at` on that is in an allocated unit; `end`, or the size, if none is.
    pub fn next_data(&self, at: u64, end: u64) -> u64 {
        self.media.next(at, end, true)
    }

    /// The first byte from `at` on that is in a hole, which surely reads as zeroes; `end`, or the
    /// size, if none is.
    pub fn next_hole(&self, at: u64, end: u64) -> u64 {
        self.media.next(at, end, false)
    }

    /// True if the disk is present and switched on.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The power is back.
    pub fn power_on(&mut self) {
        self.is_on = true;
    }

    /// A device that vanished is plugged in again.
    pub fn come_back(&mut self) {
        self.is_on = true;
    }

    /// Ends everything in flight with ENODEV; returns the writes that had no effect yet.
    pub(super) fn end_flights(&mut self) -> Vec<Entry> {
        let size = self.media.size();
        let mut entries = Vec::new();
        for flight in self.slots.iter_mut().filter_map(|slot| slot.flight.as_mut()) {
            if flight.early.is_none() && flight.fate != Fate::Lost {
                entries.extend(entry_of(&mut flight.op, size));
            }
            flight.early = Some((-ENODEV, Vec::new()));
        }
        entries
    }

    /// The process that used the disk was killed: the cache stays. Each operation in flight takes
    /// effect wholly, not at all or in part, and ends here. Its id is no longer in flight.
    pub fn process_killed(&mut self) {
        self.counts.kills += 1;
        let mut flights: Vec<Flight> =
            self.slots.iter_mut().filter_map(|slot| slot.flight.take()).collect();
        self.free = (0..self.slots.len() as u32).rev().collect();
        for slot in &mut self.slots {
            slot.generation = slot.generation.wrapping_add(1);
        }
        // No flush fails here: no user would learn of the data that it dropped.
        let fails = |flight: &Flight| {
            matches!(flight.op, DiskOp::Flush)
                && (flight.fate == Fate::Error || self.faults.writes_fail)
        };
        flights.retain(|flight| flight.early.is_none() && self.is_on && !fails(flight));
        self.rng.shuffle(&mut flights);
        for flight in flights {
            let fate = if self.rng.bool() { flight.fate } else { Fate::Partial };
            self.perform(flight.op, fate, flight.newest);
        }
    }
}

/// The effect that an operation in flight would have on a disk of `size` bytes. Takes the
/// operation's data.
fn entry_of(op: &mut DiskOp, size: u64) -> Option<Entry> {
    let (offset, data, length) = match op {
        DiskOp::Write { offset, data, .. } => {
            let data = std::mem::take(data);
            let length = data.len() as u64;
            (*offset, Some(data), length)
        }
        DiskOp::Discard { offset, length } | DiskOp::WriteZeroes { offset, length } => {
            (*offset, None, *length)
        }
        DiskOp::Read { .. } | DiskOp::Flush => return None,
    };
    let length = length.min(size.saturating_sub(offset));
    (length > 0).then_some(Entry { seq: u64::MAX, offset, length, data })
}
