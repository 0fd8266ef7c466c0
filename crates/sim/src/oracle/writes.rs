//! Every write that ever began: when, where, how it ended.
//!
//! Invariants:
//! * The index of a write is its id and its stamp; 0 is the initial content: zeroes.
//! * A write that has ended does not change any more.

use super::candidates::Entry;
use std::ops::Range;

/// Logical time of an oracle: a counter. [`Time::MAX`] is the end of a write in flight.
pub type Time = u64;

/// The most writes of an oracle: the other bits of a candidate's entry are flags.
const WRITES_MAX: usize = 1 << 29;

/// A write of one volume, and the stamp of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

impl WriteId {
    pub(super) fn new(index: u32) -> Self {
        WriteId(u64::from(index))
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    /// The id that goes into the data, see [`fill`](super::fill); never 0.
    pub fn stamp(self) -> u64 {
        self.0
    }
}

/// The way a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was acknowledged.
    Ok,
    /// It failed: each sector of it may have happened.
    Failed,
    /// It was cancelled: each sector of it may have happened.
    Cancelled,
}

/// The contents of new sectors of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grown {
    /// Zeroes.
    Zeroes,
    /// Anything, until they are written.
    Anything,
}

/// The content that a write leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its stamp.
    Data,
    Zeroes,
    /// Zeroes or the old contents.
    Discard,
    /// No write: contents that nobody knows.
    Anything,
}

#[derive(Clone, Debug)]
pub(super) struct Write {
    pub begin: Time,
    /// [`Time::MAX`] while it is in flight.
    pub end: Time,
    pub first: u64,
    pub sectors: u32,
    pub kind: Kind,
    pub fua: bool,
    /// The way it ended; nothing if it is in flight or was when all ended.
    pub ended: Option<Ended>,
}

impl Write {
    /// True if the write, once ended, surely supersedes the writes that had ended before it began.
    pub fn is_sure(&self) -> bool {
        self.ended == Some(Ended::Ok) && self.kind != Kind::Discard
    }

    /// True if its contents tell, once it has ended, that a sector holds it.
    pub fn can_settle(&self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Zeroes)
    }

    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.first <= range.start && range.end <= self.first + u64::from(self.sectors)
    }
}

/// All writes.
#[derive(Clone, Debug)]
pub(super) struct Writes {
    all: Vec<Write>,
    in_flight: Vec<u32>,
}

impl Writes {
    pub fn new() -> Self {
        let zeroes = Write {
            begin: 0,
            end: 0,
            first: 0,
            sectors: u32::MAX,
            kind: Kind::Zeroes,
            fua: true,
            ended: Some(Ended::Ok),
        };
        Writes { all: vec![zeroes], in_flight: Vec::new() }
    }

    #[inline]
    pub fn get(&self, id: u32) -> &Write {
        &self.all[id as usize]
    }

    /// The write with a stamp, if there is one.
    pub fn find(&self, stamp: u64) -> Option<&Write> {
        self.all.get(usize::try_from(stamp).ok()?)
    }

    /// The bound of a reader that began at `rb`: `entries` supersede each write that ended before
    /// it.
    #[inline]
    pub fn read_bound(&self, entries: &[Entry], rb: Time) -> Time {
        let sure = entries.iter().filter(|entry| !entry.is(Entry::UNSURE));
        let before = sure.map(|entry| self.get(entry.id())).filter(|w| w.end < rb && w.is_sure());
        before.map(|write| write.begin).max().unwrap_or(0)
    }

    pub fn begin(&mut self, range: Range<u64>, kind: Kind, fua: bool, now: Time) -> u32 {
        let id = self.add(range, kind, fua, now);
        self.in_flight.push(id);
        id
    }

    fn add(&mut self, range: Range<u64>, kind: Kind, fua: bool, now: Time) -> u32 {
        assert!(self.all.len() < WRITES_MAX, "an oracle knows {WRITES_MAX} writes at the most");
        let sectors = (range.end - range.start).min(u64::from(u32::MAX)) as u32;
        let first = range.start;
        let id = self.all.len() as u32;
        self.all.push(Write { begin: now, end: Time::MAX, first, sectors, kind, fua, ended: None });
        id
    }

    /// Adds unknown contents, as if they had been written just now.
    pub fn add_anything(&mut self, range: Range<u64>, now: Time) -> u32 {
        let id = self.add(range, Kind::Anything, true, now);
        let write = &mut self.all[id as usize];
        (write.end, write.ended) = (now, Some(Ended::Ok));
        id
    }

    pub fn end(&mut self, id: u32, how: Ended, now: Time) {
        let Some(at) = self.in_flight.iter().position(|&other| other == id) else { return };
        self.in_flight.swap_remove(at);
        let write = &mut self.all[id as usize];
        (write.end, write.ended) = (now, Some(how));
    }

    /// Ends all operations in flight, with unknown results.
    pub fn end_all(&mut self, now: Time) {
        for id in self.in_flight.drain(..) {
            self.all[id as usize].end = now;
        }
    }
}
