//! Reports of violations, which show a person the reason.

use super::candidates::{Entry, Held};
use super::stamp::{Content, identify};
use super::writes::{Ended, Kind, Time, Write};
use super::{Oracle, Read};
use std::fmt;

/// The reason why the data of a read is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The sector must not hold this.
    NotPermitted,
    /// The sector and its neighbours hold parts of different writes, each of which is whole or
    /// not there.
    Torn,
}

/// The judgement of an oracle on a write for one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The read might have returned it.
    Permitted,
    /// A later write was acknowledged before the read began.
    Superseded,
    /// An earlier read has shown that the sector holds something else.
    SettledOtherwise,
}

/// A write, as seen by one sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its stamp; 0 is the initial content.
    pub id: u64,
    /// The content that it leaves: its data, zeroes, a discard, or anything.
    pub leaves: &'static str,
    /// When it began.
    pub begin: Time,
    /// When it ended; nothing if it is in flight.
    pub end: Option<Time>,
    /// The way it ended; `None` if it is in flight, or was when the power went or its user died.
    pub ended: Option<Ended>,
    /// True if it was FUA.
    pub fua: bool,
    /// True if it is durable.
    pub durable: bool,
    /// True if it may have been lost: at a power cut, or because a device dropped it.
    pub may_be_lost: bool,
    /// Whether the read might have returned it.
    pub state: State,
}

/// A sector whose data a read must not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The reason why it is wrong.
    pub reason: Reason,
    /// The volume.
    pub volume: u32,
    /// The sector, of 512 bytes.
    pub sector: u64,
    /// When the read began.
    pub begin: Time,
    /// When the read ended.
    pub end: Time,
    /// The content that was found.
    pub found: Content,
    /// The write that was found, if it is one of this sector.
    pub found_write: Option<Candidate>,
    /// All candidates of the sector in the oracle's books, also those that only a power cut may
    /// bring back.
    pub candidates: Vec<Candidate>,
}

impl Oracle {
    pub(super) fn violation(
        &self,
        reason: Reason,
        read: &Read,
        sector: u64,
        bytes: &[u8],
    ) -> Box<Violation> {
        let single;
        let entries = match self.candidates.held(sector) {
            Held::One(id) => {
                single = [Entry::new(id)];
                &single[..]
            }
            Held::Many(entries) => entries,
        };
        let bound = self.writes.read_bound(entries, read.begin);
        let candidates: Vec<Candidate> = entries
            .iter()
            .map(|&entry| self.candidate(entry, sector, state(entry, self.end(entry), bound)))
            .collect();
        let found = identify(bytes, self.volume, sector);
        let found_write = self.found_write(&found, &candidates, sector);
        let (volume, begin, end) = (self.volume, read.begin, self.now);
        Box::new(Violation { reason, volume, sector, begin, end, found, found_write, candidates })
    }

    fn end(&self, entry: Entry) -> Time {
        self.writes.get(entry.id()).end
    }

    fn found_write(&self, found: &Content, known: &[Candidate], sector: u64) -> Option<Candidate> {
        let Content::Stamp { id } = *found else { return None };
        if let Some(known) = known.iter().find(|candidate| candidate.id == id) {
            return Some(known.clone());
        }
        self.writes.find(id)?;
        Some(self.candidate(Entry::new(id as u32), sector, State::Superseded))
    }

    fn candidate(&self, entry: Entry, sector: u64, state: State) -> Candidate {
        let write: &Write = self.writes.get(entry.id());
        Candidate {
            id: u64::from(entry.id()),
            leaves: match write.kind {
                Kind::Data => "its stamp",
                Kind::Zeroes => "zeroes",
                Kind::Discard => "zeroes or what was there",
                Kind::Anything => "anything",
            },
            begin: write.begin,
            end: (write.end != Time::MAX).then_some(write.end),
            ended: write.ended,
            fua: write.fua,
            durable: !entry.is(Entry::UNSURE) && self.books().is_durable(write, sector),
            may_be_lost: entry.is(Entry::UNSURE),
            state,
        }
    }
}

fn state(entry: Entry, end: Time, bound: Time) -> State {
    if entry.is(Entry::HIDDEN) {
        State::SettledOtherwise
    } else if end < bound {
        State::Superseded
    } else {
        State::Permitted
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { volume, sector, begin, end, found, .. } = self;
        let what = match self.reason {
            Reason::NotPermitted => "must not hold what was read",
            Reason::Torn => "and its neighbours hold parts of different whole writes",
        };
        writeln!(f, "volume {volume}, sector {sector} {what}")?;
        writeln!(f, "  read:  from {begin} to {end}")?;
        writeln!(f, "  found: {found}")?;
        if let Some(write) = &self.found_write {
            writeln!(f, "         {write}")?;
        }
        for candidate in &self.candidates {
            writeln!(f, "  knows: {candidate}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} ({}), begun {}, ", self.id, self.leaves, self.begin)?;
        match (self.end, self.ended) {
            (None, _) => f.write_str("in flight")?,
            (Some(end), None) => write!(f, "cut off at {end}")?,
            (Some(end), Some(how)) => write!(f, "ended {end} {how:?}")?,
        }
        f.write_str(if self.fua { ", FUA" } else { "" })?;
        f.write_str(if self.durable { ", durable" } else { ", not durable" })?;
        f.write_str(if self.may_be_lost { ", may have been lost" } else { "" })?;
        f.write_str(match self.state {
            State::Permitted => ": permitted",
            State::Superseded => ": superseded",
            State::SettledOtherwise => ": an earlier read found something else",
        })
    }
}

impl std::error::Error for Violation {}
