//! The oracle: the contents that each 512-byte sector of a volume may rightly hold, through all
//! crashes.
//!
//! The workload tells the oracle when each operation begins and how it ends. Each sector is a
//! register by itself:
//!
//! ```text
//!   time ->      w1 begin --- end ok       w2 begin -------- end ok
//!                                   read begin ---- end
//!                                   may return w1 or w2, not what was there before w1
//! ```
//!
//! * A read may return any write that began before the read ended and is not superseded. A write
//!   *supersedes* another if it began after the other's end and was acknowledged before the read
//!   began.
//! * A failed or cancelled write may have happened, each sector for itself, until its end and not
//!   later. It supersedes nothing.
//! * A read that ended settles which of several candidates the sector holds: no later read returns
//!   one that is now known not to be the latest (`rules` has the argument).
//! * An acknowledged write is durable if it was FUA, or if a flush that began after its end ended
//!   well. After a power cut a sector may hold whatever began before the cut and is not superseded
//!   by a durable write. The first read afterwards settles it.
//! * A kill of the user loses nothing that was acknowledged.
//! * A discard leaves old contents or zeroes, each sector for itself, and is never settled.
//!
//! The oracle is lenient where the rules leave room: each violation that it reports is real.
//!
//! Time is a counter of the oracle: events happen in the order in which the oracle is told.
//! Everything belongs to the one thread of a simulation. Memory: 4 bytes a sector, 32 bytes for
//! each write that ever began, and a list for each sector that may hold several contents.

mod candidates;
mod rules;
pub mod stamp;
mod violation;
mod writes;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use stamp::{Content, SECTOR, fill, identify};
pub use violation::{Candidate, Reason, State, Violation};
pub use writes::{Ended, Grown, Time, WriteId};

use candidates::{Candidates, Held};
use std::ops::Range;
use writes::{Kind, Writes};

/// A read that the oracle knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadId(Time);

/// A flush that the oracle knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushId(Time);

/// Counts of what an oracle has seen, for coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OracleCounts {
    /// Reads checked.
    pub reads: u64,
    /// Sectors checked.
    pub sectors: u64,
    /// Of these, sectors with several candidates.
    pub open_sectors: u64,
    /// Sectors that a read settled.
    pub settled: u64,
    /// Writes begun, of all kinds.
    pub writes: u64,
    /// Flushes that ended well.
    pub flushes: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Deaths of the process.
    pub kills: u64,
    /// The most candidates that a sector had at a read or at a cut.
    pub candidates_max: u64,
}

#[derive(Clone, Debug)]
struct Read {
    begin: Time,
    range: Range<u64>,
}

/// The contents that one volume may rightly hold. Ranges are of 512-byte sectors.
#[derive(Clone, Debug)]
pub struct Oracle {
    volume: u32,
    now: Time,
    writes: Writes,
    candidates: Candidates,
    reads: Vec<Read>,
    /// The latest begin of a flush that ended well.
    flushed: Time,
    /// The last time when the process died or the power went: an operation that began before never
    /// ends.
    restarted: Time,
    /// The last time when a device dropped data: reads that began before it settle nothing.
    dropped: Time,
    /// Ranges in which flushes did not count, and until when; the last entry for a sector is valid.
    lies: Vec<(Range<u64>, Time)>,
    /// The size, in sectors, of aligned groups that a power cut never tears.
    atomic: u64,
    counts: OracleCounts,
}

impl Oracle {
    /// A volume of zeroes, all durable. The number of the volume is part of its stamps.
    pub fn new(volume: u32, sectors: u64) -> Self {
        Oracle {
            volume,
            now: 0,
            writes: Writes::new(),
            candidates: Candidates::new(sectors),
            reads: Vec::new(),
            flushed: 0,
            restarted: 0,
            dropped: 0,
            lies: Vec::new(),
            atomic: 1,
            counts: OracleCounts::default(),
        }
    }

    /// The number of sectors.
    pub fn sectors(&self) -> u64 {
        self.candidates.sectors()
    }

    /// The number of the volume.
    pub fn volume(&self) -> u32 {
        self.volume
    }

    /// Counts of the events so far.
    pub fn counts(&self) -> &OracleCounts {
        &self.counts
    }

    /// No power cut, kill or failure tears an aligned group of so many sectors: it takes effect
    /// wholly or not at all if a write covers it. The size is 1 at first.
    pub fn set_atomic(&mut self, sectors: u64) {
        assert!(sectors > 0, "a group has at least one sector");
        self.atomic = sectors;
    }

    /// The volume is larger from now on.
    pub fn grow(&mut self, sectors: u64, with: Grown) {
        let old = self.sectors();
        assert!(sectors >= old, "a volume of {old} sectors cannot grow to {sectors}");
        let now = self.tick();
        let id = match with {
            Grown::Zeroes => 0,
            Grown::Anything => self.writes.add_anything(old..sectors, now),
        };
        self.candidates.grow(sectors, id);
    }

    /// A write begins. Its data must be filled with the stamp of its id.
    pub fn write_begins(&mut self, range: Range<u64>, fua: bool) -> WriteId {
        self.begins(range, Kind::Data, fua)
    }

    /// A write of zeroes begins.
    pub fn zeroes_begin(&mut self, range: Range<u64>, fua: bool) -> WriteId {
        self.begins(range, Kind::Zeroes, fua)
    }

    /// A discard begins.
    pub fn discard_begins(&mut self, range: Range<u64>) -> WriteId {
        self.begins(range, Kind::Discard, false)
    }

    fn begins(&mut self, range: Range<u64>, kind: Kind, fua: bool) -> WriteId {
        self.assert_within(&range);
        self.counts.writes += 1;
        let now = self.tick();
        let id = self.writes.begin(range.clone(), kind, fua, now);
        self.add_candidate(range, id, kind);
        WriteId::new(id)
    }

    /// A write, a write of zeroes or a discard ends. Nothing happens if it had ended with its
    /// process or with the power.
    pub fn write_ends(&mut self, id: WriteId, how: Ended) {
        let now = self.tick();
        self.writes.end(id.index(), how, now);
    }

    /// A read begins.
    pub fn read_begins(&mut self, range: Range<u64>) -> ReadId {
        self.assert_within(&range);
        let begin = self.tick();
        self.reads.push(Read { begin, range });
        ReadId(begin)
    }

    /// A read ends well with these bytes, all that it asked for.
    ///
    /// # Errors
    /// The first sector that may not hold what was read. Nothing happens if the read had ended
    /// with its process or with the power.
    pub fn read_ends_ok(&mut self, id: ReadId, data: &[u8]) -> Result<(), Box<Violation>> {
        self.tick();
        let Some(read) = self.take_read(id) else { return Ok(()) };
        let bytes = (read.range.end - read.range.start) * SECTOR as u64;
        assert_eq!(data.len() as u64, bytes, "a read gives all that it asked for");
        self.counts.reads += 1;
        self.judge(&read, data)
    }

    /// A query that is not a read (such as block status) ends, and reports that parts of its range
    /// read as zeroes. It says nothing of the other parts.
    ///
    /// # Errors
    /// The first sector that may not be zeroes, as for [`Oracle::read_ends_ok`].
    pub fn read_tells_zeroes(
        &mut self,
        id: ReadId,
        parts: &[Range<u64>],
    ) -> Result<(), Box<Violation>> {
        self.tick();
        let Some(read) = self.take_read(id) else { return Ok(()) };
        for part in parts {
            let range = part.start.max(read.range.start)..part.end.min(read.range.end);
            let data = vec![0; range.end.saturating_sub(range.start) as usize * SECTOR];
            self.judge(&Read { begin: read.begin, range }, &data)?;
        }
        Ok(())
    }

    /// A read ends without data.
    pub fn read_failed(&mut self, id: ReadId) {
        self.take_read(id);
    }

    fn take_read(&mut self, id: ReadId) -> Option<Read> {
        let at = self.reads.iter().position(|read| read.begin == id.0)?;
        Some(self.reads.swap_remove(at))
    }

    /// A flush begins.
    pub fn flush_begins(&mut self) -> FlushId {
        FlushId(self.tick())
    }

    /// A flush ends. Nothing happens if it had ended with its process or with the power.
    pub fn flush_ends(&mut self, id: FlushId, ok: bool) {
        self.tick();
        if ok && id.0 > self.restarted {
            self.counts.flushes += 1;
            self.flushed = self.flushed.max(id.0);
        }
    }

    /// The power went: data that is not durable may be lost, and each operation in flight may have
    /// happened.
    pub fn power_cut(&mut self) {
        self.counts.cuts += 1;
        self.restart();
        self.lose_all();
    }

    /// The user was killed: each operation in flight may have happened.
    pub fn process_killed(&mut self) {
        self.counts.kills += 1;
        self.restart();
    }

    fn restart(&mut self) {
        self.restarted = self.tick();
        self.writes.end_all(self.restarted);
        self.reads.clear();
    }

    /// A device dropped data of the range, as after a failed flush: what is not durable may be lost
    /// from now on, also writes in flight. Later writes are not affected.
    pub fn drop_undurable(&mut self, range: Range<u64>) {
        self.assert_within(&range);
        self.dropped = self.tick();
        self.lose(range);
    }

    /// True if one of the `sectors` from `at` on has several candidates. Sectors beyond the end are
    /// ignored.
    pub fn is_open(&self, at: u64, sectors: u64) -> bool {
        let end = self.sectors().min(at + sectors);
        (at..end).any(|sector| matches!(self.candidates.held(sector), Held::Many(_)))
    }

    /// The contents of the `sectors` from `at` on become unknown: an event outside the oracle has
    /// spoilt them. Sectors beyond the end are ignored.
    pub fn permit_anything(&mut self, at: u64, sectors: u64) {
        let range = at.min(self.sectors())..self.sectors().min(at + sectors);
        let now = self.tick();
        let id = self.writes.add_anything(range.clone(), now);
        for sector in range {
            self.candidates.settle(sector, id);
        }
    }

    /// From now on no flush and no FUA makes anything in the range durable: the device lies.
    pub fn distrust_flushes(&mut self, range: Range<u64>) {
        self.assert_within(&range);
        self.lies.push((range, Time::MAX));
    }

    /// From now on flushes and FUA count again in the range.
    pub fn trust_flushes(&mut self, range: Range<u64>) {
        self.assert_within(&range);
        let now = self.tick();
        self.lies.push((range, now));
    }

    fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    fn assert_within(&self, range: &Range<u64>) {
        let sectors = self.sectors();
        assert!(
            range.start <= range.end && range.end <= sectors,
            "sectors {range:?} are not within a volume of {sectors}"
        );
    }
}
