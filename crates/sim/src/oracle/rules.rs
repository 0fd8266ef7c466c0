//! The rules of the oracle: which write supersedes which, what a read may return and what it
//! settles.
//!
//! **Superseded.** Write `w` is superseded for a reader that began at `rb` if a write `w2` was
//! acknowledged with `w.end < w2.begin` and `w2.end < rb`: then `w2` happened after `w` and before
//! the read. So it is enough to know the latest begin of all such `w2`, here called a bound:
//! `w` is superseded if it ended before the bound. For a power cut the same holds with writes
//! that are durable.
//!
//! **Settled.** A read `[rb, re]` returned `x`, so at some moment `t` in it the sector held `x`.
//! Another candidate `y` that had ended before `rb` had its moment, if any, before `t`, and at `t`
//! the sector held `x` and not `y`: a read that begins after `re` never gets `y` again. This needs
//! no word about other writes in flight. But:
//! * If `x` itself was in flight at `rb`, nothing is settled, although an ideal register would: a
//!   mirror of two disks may show a write on its way in one read and not in the next.
//! * Other reads in flight may have had their moment before `t`: then nothing is settled.
//! * If a device dropped something after `rb`, `t` may lie before that: then nothing is settled.
//! * If several candidates have what was read (zeroes), `x` may be each of them; a candidate that
//!   differs from all is out.
//! * `y` is not gone, it is *hidden*: a device may have it where a power cut brings it back. Only
//!   if both `x` and `y` are what a power cut left, `y` is gone: nothing of before the cut is in
//!   any cache.
//! * A discard promises neither zeroes nor the old contents: it is not settled and settles nothing.
//!
//! **Pruned.** An entry that is hidden or superseded for every reader that may still end, and
//! superseded for power cuts, is forgotten. The write that superseded it may be forgotten later by
//! the same rule; a write that supersedes that one supersedes the first one too.

use super::candidates::{Entry, Held};
use super::stamp::{self, SECTOR};
use super::violation::Reason;
use super::writes::{Kind, Time, Write, Writes};
use super::{Oracle, Read, Violation};
use std::ops::Range;

/// The data that the rules need besides the entries of a sector.
#[derive(Clone, Copy)]
pub(super) struct Books<'a> {
    pub writes: &'a Writes,
    pub flushed: Time,
    pub lies: &'a [(Range<u64>, Time)],
}

impl Books<'_> {
    /// True if an acknowledged write is durable in a sector.
    #[inline]
    pub fn is_durable(&self, write: &Write, sector: u64) -> bool {
        let lied = self.lied_until(sector);
        write.is_sure()
            && (write.fua && write.begin >= lied
                || write.end < self.flushed && self.flushed >= lied)
    }

    fn lied_until(&self, sector: u64) -> Time {
        let told = self.lies.iter().rev().find(|(range, _)| range.contains(&sector));
        told.map_or(0, |(_, until)| *until)
    }

    /// Every write that ended before this is superseded at a power cut.
    #[inline]
    fn cut_bound(&self, entries: &[Entry], sector: u64) -> Time {
        let sure = entries.iter().filter(|entry| !entry.is(Entry::UNSURE));
        let writes = sure.map(|entry| self.writes.get(entry.id()));
        let durable = writes.filter(|write| self.is_durable(write, sector));
        durable.map(|write| write.begin).max().unwrap_or(0)
    }

    /// Forgets entries that no read can return any more. At least one entry stays: the one that
    /// supersedes.
    #[inline]
    fn prune(&self, entries: &mut Vec<Entry>, sector: u64, oldest_read: Time) {
        let cut = self.cut_bound(entries, sector);
        if cut == 0 {
            return;
        }
        let seen = self.writes.read_bound(entries, oldest_read);
        entries.retain(|entry| {
            let end = self.writes.get(entry.id()).end;
            end >= cut || end >= seen && !entry.is(Entry::HIDDEN)
        });
    }

    /// After a loss each entry that no durable write supersedes may be in the sector, and only a
    /// durable one is sure. An entry that is past for all but old reads stays so.
    fn lose(&self, entries: &mut Vec<Entry>, sector: u64, flags: u32, oldest_read: Time) {
        self.prune(entries, sector, oldest_read);
        let bound = self.cut_bound(entries, sector);
        for entry in entries {
            let write = self.writes.get(entry.id());
            if write.end >= bound {
                entry.clear(Entry::HIDDEN);
                let unsure = if self.is_durable(write, sector) { 0 } else { Entry::UNSURE };
                entry.set(flags | unsure);
            }
        }
    }
}

/// True if a write may be in a sector whose stamp claims the id `claimed`.
#[inline]
fn fits(id: u32, write: &Write, claimed: u64) -> bool {
    match write.kind {
        Kind::Data => claimed == u64::from(id),
        Kind::Zeroes | Kind::Discard => claimed == 0,
        Kind::Anything => true,
    }
}

/// The facts of one read that settle its sectors.
struct Seen<'a> {
    begin: Time,
    claimed: u64,
    writes: &'a Writes,
}

impl Seen<'_> {
    /// Hides or drops the entries that the read has shown to be past. True if there were any.
    /// `others` says whether other reads of the sector are in flight, so that nothing can be
    /// settled.
    fn settle(&self, entries: &mut Vec<Entry>, others: impl FnOnce() -> bool) -> bool {
        let bound = self.writes.read_bound(entries, self.begin);
        let (mut is_open, mut all_cut) = (false, true);
        for entry in entries.iter().filter(|entry| self.may_be(**entry, bound)) {
            let write = self.writes.get(entry.id());
            let is_past = write.end < self.begin && write.can_settle();
            if !fits(entry.id(), write, self.claimed) {
                is_open |= is_past;
            } else if is_past {
                all_cut &= entry.is(Entry::CUT);
            } else {
                return false;
            }
        }
        if !is_open || others() {
            return false;
        }
        entries.retain_mut(|entry| self.keeps(entry, bound, all_cut));
        true
    }

    fn may_be(&self, entry: Entry, bound: Time) -> bool {
        !entry.is(Entry::HIDDEN) && self.writes.get(entry.id()).end >= bound
    }

    fn keeps(&self, entry: &mut Entry, bound: Time, all_cut: bool) -> bool {
        let write = self.writes.get(entry.id());
        let is_past = write.end < self.begin && write.can_settle();
        if !self.may_be(*entry, bound) || !is_past || fits(entry.id(), write, self.claimed) {
            return true;
        }
        if all_cut && entry.is(Entry::CUT) {
            return false;
        }
        entry.set(Entry::HIDDEN);
        true
    }
}

impl Oracle {
    pub(super) fn books(&self) -> Books<'_> {
        Books { writes: &self.writes, flushed: self.flushed, lies: &self.lies }
    }

    /// Begin of the oldest read in flight that touches the range, or now.
    fn oldest_read(&self, range: &Range<u64>) -> Time {
        let touching = self.reads.iter().filter(|read| touches(&read.range, range));
        touching.map(|read| read.begin).min().unwrap_or(self.now)
    }

    /// A write that began just now is a candidate for each of its sectors.
    pub(super) fn add_candidate(&mut self, range: Range<u64>, id: u32, kind: Kind) {
        let oldest_read = self.oldest_read(&range);
        let books = Books { writes: &self.writes, flushed: self.flushed, lies: &self.lies };
        for sector in range {
            self.candidates.push(sector, id, |entries| {
                books.prune(entries, sector, oldest_read);
                if kind == Kind::Discard {
                    // One of many discards is enough: all permit the same, and the last one permits
                    // it longest.
                    let is_over = |write: &Write| write.kind == kind && write.end != Time::MAX;
                    entries.retain(|entry| !is_over(books.writes.get(entry.id())));
                }
            });
        }
    }

    /// Judges the data of a read that ends now, and learns from it.
    pub(super) fn judge(&mut self, read: &Read, data: &[u8]) -> Result<(), Box<Violation>> {
        let open = self.check(read, data)?;
        self.counts.sectors += (data.len() / SECTOR) as u64;
        self.counts.open_sectors += open;
        if open > 0 {
            if self.atomic > 1 {
                self.check_groups(read, data)?;
            }
            self.settle(read, data);
        }
        Ok(())
    }

    /// Checks each sector. Returns how many have several candidates.
    fn check(&self, read: &Read, data: &[u8]) -> Result<u64, Box<Violation>> {
        let mut open = 0;
        for (bytes, sector) in data.chunks_exact(SECTOR).zip(read.range.clone()) {
            let is_right = match self.candidates.held(sector) {
                Held::One(id) => self.is_of(bytes, sector, id),
                Held::Many(entries) => {
                    open += 1;
                    self.is_one_of(bytes, sector, entries, read.begin)
                }
            };
            if !is_right {
                return Err(self.violation(Reason::NotPermitted, read, sector, bytes));
            }
        }
        Ok(open)
    }

    #[inline]
    fn is_of(&self, bytes: &[u8], sector: u64, id: u32) -> bool {
        match self.writes.get(id).kind {
            Kind::Data => stamp::is_stamp(bytes, self.volume, sector, u64::from(id)),
            Kind::Zeroes | Kind::Discard => stamp::is_zero(bytes),
            Kind::Anything => true,
        }
    }

    #[inline]
    fn is_one_of(&self, bytes: &[u8], sector: u64, entries: &[Entry], rb: Time) -> bool {
        let bound = self.writes.read_bound(entries, rb);
        let claimed = stamp::claimed(bytes);
        let fitting = |entry: &&Entry| {
            let write = self.writes.get(entry.id());
            let may_be = !entry.is(Entry::HIDDEN) && write.end >= bound;
            may_be && fits(entry.id(), write, claimed)
        };
        // All entries that fit have the same contents, apart from `Anything`.
        entries.iter().filter(fitting).any(|entry| self.is_of(bytes, sector, entry.id()))
    }

    /// Checks that no group of sectors holds parts of two writes each of which covers it.
    fn check_groups(&self, read: &Read, data: &[u8]) -> Result<(), Box<Violation>> {
        let (range, group) = (&read.range, self.atomic);
        let mut first = range.start.next_multiple_of(group);
        while first + group <= range.end {
            let sector = |at: u64| &data[(first + at - range.start) as usize * SECTOR..][..SECTOR];
            let claimed = stamp::claimed(sector(0));
            let other = (1..group).find(|&at| stamp::claimed(sector(at)) != claimed);
            if let Some(at) = other.filter(|_| self.is_whole(first..first + group, read.begin)) {
                return Err(self.violation(Reason::Torn, read, first + at, sector(at)));
            }
            first += group;
        }
        Ok(())
    }

    /// True if each candidate of a group covers the whole group and has ended.
    fn is_whole(&self, group: Range<u64>, rb: Time) -> bool {
        let Held::Many(entries) = self.candidates.held(group.start) else { return false };
        let is_whole = entries.iter().all(|entry| {
            let write = self.writes.get(entry.id());
            write.end < rb && write.can_settle() && write.covers(&group)
        });
        let is_same = |sector| {
            let held = self.candidates.held(sector);
            matches!(held, Held::Many(others) if others == entries)
        };
        is_whole && group.clone().all(is_same)
    }

    /// Learns from the data of a read.
    fn settle(&mut self, read: &Read, data: &[u8]) {
        let oldest_read = self.oldest_read(&read.range);
        let is_late = read.begin <= self.dropped;
        let books = Books { writes: &self.writes, flushed: self.flushed, lies: &self.lies };
        let (counts, reads) = (&mut self.counts, &self.reads);
        for (bytes, sector) in data.chunks_exact(SECTOR).zip(read.range.clone()) {
            let claimed = stamp::claimed(bytes);
            let seen = Seen { begin: read.begin, claimed, writes: &self.writes };
            self.candidates.edit(sector, |entries| {
                counts.candidates_max = counts.candidates_max.max(entries.len() as u64);
                let others = || is_late || reads.iter().any(|read| read.range.contains(&sector));
                counts.settled += u64::from(seen.settle(entries, others));
                books.prune(entries, sector, oldest_read);
            });
        }
    }

    /// The power went: each sector may hold every entry that no durable write supersedes.
    pub(super) fn lose_all(&mut self) {
        let books = Books { writes: &self.writes, flushed: self.flushed, lies: &self.lies };
        let (counts, now) = (&mut self.counts, self.now);
        self.candidates.edit_all(|sector, entries| {
            books.lose(entries, sector, Entry::CUT, now);
            counts.candidates_max = counts.candidates_max.max(entries.len() as u64);
        });
    }

    /// As [`Oracle::lose_all`] in a range, but without a cut: caches may hold anything.
    pub(super) fn lose(&mut self, range: Range<u64>) {
        let books = Books { writes: &self.writes, flushed: self.flushed, lies: &self.lies };
        let oldest_read = self.oldest_read(&range);
        for sector in range {
            self.candidates.edit(sector, |entries| {
                books.lose(entries, sector, 0, oldest_read);
            });
        }
    }
}

fn touches(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
