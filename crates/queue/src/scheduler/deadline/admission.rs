//! Admission: how many units may be with the scheduler and the driver at once, and which bios wait.
//!
//! It stands for the scheduler's tags in Linux, of which there are `nr_requests`. mq-deadline gives
//! at most `async_depth` of them to anything else than synchronous reads (Linux 6.12,
//! `dd_limit_depth`).
//!
//! Invariants:
//! * Bios of one list go in in the order in which they came.
//! * While both lists have a bio that may go in, reads go first, but not more than
//!   `writes_starved` of them in a row: then the other list has a turn. So neither waits for ever.
//! * This is no unit's keeper and counts nothing: its user says how many units there are.

use drystone_core::{Bio, BioFlags, BioList, Op, PortId};
use std::collections::VecDeque;

/// The number of units, and may be.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Units kept or in flight.
    pub units: u32,
    /// Those of them that are no synchronous reads.
    pub others: u32,
    /// `queue/nr_requests`: at most so many units may be kept or in flight.
    pub nr_requests: u32,
    /// `queue/iosched/async_depth`: at most so many of them that are no synchronous reads.
    pub async_depth: u32,
    /// `queue/iosched/writes_starved`: so many reads may go in before others that wait.
    pub writes_starved: u32,
}

impl Load {
    /// True if another unit may be inserted.
    #[inline]
    pub fn has_room(&self, is_sync_read: bool) -> bool {
        self.units < self.nr_requests && (is_sync_read || self.others < self.async_depth)
    }
}

/// True if `op` is what the async depth does not count: a read. To Linux every read is
/// synchronous, whatever its flags (`op_is_sync`), and no write is a read, synchronous or not.
#[inline]
pub fn is_sync_read(op: Op) -> bool {
    op == Op::Read
}

/// The outcome of an offer of a bio.
#[derive(Debug)]
pub enum Offered {
    /// It may be inserted now.
    Now(Box<Bio>),
    /// It waits here until [`Admission::next`] gives it.
    Waits,
    /// It would have to wait, but said NOWAIT: it ends with [`drystone_core::Status::Again`].
    Again(Box<Bio>),
}

type Waiting = VecDeque<(PortId, Box<Bio>)>;

/// The bios that wait for admission. Any thread may use it, one at a time.
#[derive(Debug, Default)]
pub struct Admission {
    reads: Waiting,
    others: Waiting,
    /// Reads that went in since others, which could have gone in too, had a turn.
    passed: u32,
}

impl Admission {
    /// Number of synchronous reads and of other bios that wait.
    pub fn waiting(&self) -> (usize, usize) {
        (self.reads.len(), self.others.len())
    }

    /// True while no bio waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.others.is_empty()
    }

    /// Ask for `bio`, of `port`. It may go in at once if nothing of its kind waits, there is room,
    /// and no bio of the other kind has the turn.
    #[inline]
    pub fn offer(&mut self, port: PortId, bio: Box<Bio>, load: &Load) -> Offered {
        let is_read = is_sync_read(bio.op);
        let waits = if is_read { &self.reads } else { &self.others };
        let (reads, others) = (!self.reads.is_empty(), !self.others.is_empty());
        if waits.is_empty() && self.turn(reads | is_read, others | !is_read, load) == Some(is_read)
        {
            self.goes_in(is_read, others, load);
            return Offered::Now(bio);
        }
        self.wait(port, bio)
    }

    #[cold]
    fn wait(&mut self, port: PortId, bio: Box<Bio>) -> Offered {
        if bio.flags.contains(BioFlags::NOWAIT) {
            return Offered::Again(bio);
        }
        let list = if is_sync_read(bio.op) { &mut self.reads } else { &mut self.others };
        list.push_back((port, bio));
        Offered::Waits
    }

    /// The bio that may be inserted next, if there is room for one. After each the load is another.
    pub fn next(&mut self, load: &Load) -> Option<(PortId, Box<Bio>)> {
        let (reads, others) = (!self.reads.is_empty(), !self.others.is_empty());
        let is_read = self.turn(reads, others, load)?;
        self.goes_in(is_read, others, load);
        if is_read { self.reads.pop_front() } else { self.others.pop_front() }
    }

    /// The kind of bio whose turn it is: true is a read, false is another, `None` is neither.
    fn turn(&self, read: bool, other: bool, load: &Load) -> Option<bool> {
        match (read && load.has_room(true), other && load.has_room(false)) {
            (true, true) => Some(self.passed < load.writes_starved),
            (true, false) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }

    /// A bio goes in; `others` says whether others wait.
    fn goes_in(&mut self, is_read: bool, others: bool, load: &Load) {
        if !is_read {
            self.passed = 0;
        } else if others && load.has_room(false) {
            self.passed += 1;
        }
    }

    /// Take out the bios of `port`.
    pub fn expel(&mut self, port: PortId, out: &mut BioList) {
        for list in [&mut self.reads, &mut self.others] {
            let all = std::mem::take(list).into_iter();
            let (mine, others) = all.partition(|(owner, _)| *owner == port);
            *list = others;
            let mine: Waiting = mine;
            out.extend(mine.into_iter().map(|(_, bio)| bio));
        }
    }

    /// Take out everything, for another scheduler: always the bio with the earlier submission of
    /// the first two, of equal ones the read.
    pub fn take_all(&mut self, mut each: impl FnMut(PortId, Box<Bio>)) {
        loop {
            let start = |list: &Waiting| list.front().map_or(u64::MAX, |(_, bio)| bio.start_ns);
            let read_first = start(&self.reads) <= start(&self.others) && !self.reads.is_empty();
            let list = if read_first { &mut self.reads } else { &mut self.others };
            let Some((port, bio)) = list.pop_front() else { return };
            each(port, bio);
        }
    }
}
