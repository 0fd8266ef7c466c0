//! The log that all contexts share: the entries, their places and their order.
//!
//! ```text
//! a write completes -> unflushed -> (flush, FUA, mark, bound) -> placed -> in place -> in the
//! super
//! ```
//!
//! Invariants:
//! * `unflushed` holds completed entries that are not placed, in the order of completion.
//!   `completed` counts all entries that were ever added to it; an entry's number is that count.
//! * Entries are placed one after another, and each placing takes from the front of `unflushed`. So
//!   a replay up to any entry gives contents that the device could have had at some time.
//! * The context that places entries carries them: it writes them. The bio that had them placed (a
//!   flush, a FUA write, a mark) waits until a super block in place counts them.
//! * `batches` are the placed runs of entries that are not in place, in order; `in_place` counts
//!   the entries before the first of them. A super block says `in_place`, never more. One super
//!   block is written at a time (`super_under_way`), and the first one before any entry. So a
//!   reader of the log finds a run of complete entries at any time.
//! * Every waiting carrier is woken. A carrier that cannot go on is among `waiters`, and all of
//!   these are woken when a super block has been written or the log has failed. One of the two
//!   follows each batch that gets into place.
//! * After `failed` nothing is written.
//!
//! Every method holds the lock for a few instructions, without I/O. Memory order: the lock orders
//! everything. Readers of the atomics need no order, and nothing else relies on these.

use super::format::{LOG_END_MARK, LOG_HEADER_BYTES, LogEntry, LogFlags, LogSuper};
use drystone_core::mailbox::Message;
use drystone_core::primitive::{AtomicBool, AtomicU64, Ordering::Relaxed};
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_core::{IoBuf, SECTOR_SIZE};
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes, and the most entries, that stay unflushed. A busy disk writes the bytes in some
/// tenths of a second. A FUA write is compared with all entries, which takes some tens of
/// microseconds.
const UNFLUSHED_BYTES_MAX: u64 = 64 << 20;
const UNFLUSHED_MAX: usize = 16384;

/// An I/O that is to be logged.
pub(crate) struct Logged {
    pub(crate) entry: LogEntry,
    /// The data of a write.
    pub(crate) data: Option<IoBuf>,
    text: Vec<u8>,
}

impl Logged {
    pub(crate) fn new(entry: LogEntry, data: Option<IoBuf>) -> Self {
        Logged { entry, data, text: Vec::new() }
    }

    fn mark(text: &str) -> Self {
        let entry = LogEntry {
            flags: LogFlags::MARK,
            text_bytes: text.len() as u64,
            ..LogEntry::default()
        };
        Logged { entry, data: None, text: text.into() }
    }

    fn bytes(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }
}

/// An I/O that has completed on the device.
pub(crate) enum Completed {
    /// A write or discard.
    Write(Logged),
    /// A flush, with the number of I/Os that had completed when it was sent
    /// ([`Log::completed_so_far`]).
    Fua(Logged),
    /// A flush that was sent when so many others had completed ([`Log::completed_so_far`]).
    Flush(u64),
}

/// A write to the log device.
pub struct LogWrite {
    /// The place, in sectors of 512 bytes.
    pub sector: u64,
    /// The data, in whole blocks of the logged device.
    pub data: IoBuf,
}

/// The next step of the owner of a carrier ([`super::WriteLog::step`]).
pub enum LogStep {
    /// Write these in any order, and call again when all have ended.
    Write(Vec<LogWrite>),
    /// Call again when the doorbell rings.
    Wait,
    /// The carrier is done.
    Done,
}

/// Entries on their way into the log, owned by the context that writes them.
pub struct LogCarrier {
    phase: Phase,
    batch: u64,
    /// The number of log entries up to the last carried one.
    end: u64,
    writes: Vec<LogWrite>,
    failed: bool,
}

impl LogCarrier {
    /// Note that a write of [`LogStep::Write`] has failed.
    pub fn fail(&mut self) {
        self.failed = true;
    }
}

#[derive(Clone, Copy)]
enum Phase {
    /// The entries have places, but are not written.
    Placed,
    /// The entries are being written.
    Entries,
    /// The entries are in place.
    InPlace,
    /// A super block with this number of entries is being written.
    Super(u64),
}

struct Batch {
    end: u64,
    is_in_place: bool,
}

struct State {
    unflushed: VecDeque<Logged>,
    unflushed_bytes: u64,
    completed: u64,
    entries: u64,
    /// The next free sector.
    next: u64,
    batches: VecDeque<Batch>,
    /// The number of the first batch.
    first_batch: u64,
    in_place: u64,
    /// The number of entries in the last super block; `None` before the first was written.
    in_super: Option<u64>,
    super_under_way: bool,
    /// The number of entries when the log was ended last; `None` if it never was.
    ended: Option<u64>,
    failed: bool,
    waiters: Vec<Arc<Message>>,
}

/// A write log.
pub(crate) struct Log {
    state: Lock<State>,
    /// Bytes of a sector of the log.
    sector_bytes: u32,
    /// Sectors of the log device.
    size: u64,
    /// The log takes no more entries: it is full, or has failed.
    is_off: AtomicBool,
    /// `entries` and `next`, for the status.
    entries: AtomicU64,
    next: AtomicU64,
}

impl Log {
    /// An empty log with sectors of `sector_bytes` bytes, on a device of `size` sectors.
    pub(crate) fn new(sector_bytes: u32, size: u64) -> Self {
        let next = u64::from(sector_bytes) / SECTOR_SIZE;
        let state = State {
            unflushed: VecDeque::new(),
            unflushed_bytes: 0,
            completed: 0,
            entries: 0,
            next,
            batches: VecDeque::new(),
            first_batch: 0,
            in_place: 0,
            in_super: None,
            super_under_way: false,
            ended: None,
            failed: false,
            waiters: Vec::new(),
        };
        Log {
            state: Lock::new(LockClass::WriteLog, state),
            sector_bytes,
            size,
            is_off: AtomicBool::new(false),
            entries: AtomicU64::new(0),
            next: AtomicU64::new(next),
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.is_off.load(Relaxed)
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// The words of `dmsetup status`.
    pub(crate) fn status(&self) -> String {
        let off = if self.is_off() { " logging_disabled" } else { "" };
        format!(" {} {}{off}", self.entries.load(Relaxed), self.next.load(Relaxed) - 1)
    }

    fn lock(&self, locks: &LockCounters) -> Guard<'_, State> {
        self.state.lock(locks)
    }

    /// The number of I/Os that have completed, which a flush that is sent now covers.
    pub(crate) fn completed_so_far(&self, locks: &LockCounters) -> u64 {
        self.lock(locks).completed
    }

    /// Take a completed I/O. Returns the entries that must be written now, if there are any.
    pub(crate) fn take(&self, what: Completed, locks: &LockCounters) -> Option<LogCarrier> {
        if self.is_off() {
            return None;
        }
        let mut state = self.lock(locks);
        let (number, last) = match what {
            Completed::Write(logged) => {
                state.push(logged);
                let number = if state.is_over_bound() { usize::MAX } else { 0 };
                (number, None)
            }
            // An older write to the same sectors must not be placed behind this one.
            Completed::Fua(logged) => {
                let older = state.unflushed.iter().any(|old| old.entry.overlaps(&logged.entry));
                (if older { usize::MAX } else { 0 }, Some(logged))
            }
            Completed::Flush(until) => {
                let entry = LogEntry { flags: LogFlags::FLUSH, ..LogEntry::default() };
                (state.number_until(until), Some(Logged::new(entry, None)))
            }
        };
        self.place(state, number, last)
    }

    /// Place a mark behind all placed entries. `None` if the log takes no more entries.
    pub(crate) fn mark(&self, text: &str, locks: &LockCounters) -> Option<LogCarrier> {
        let state = self.lock(locks);
        self.place(state, 0, Some(Logged::mark(text)))
    }

    /// Place all unflushed entries, and the mark that ends the log. `None` if the log is ended and
    /// nothing came since.
    pub(crate) fn end(&self, locks: &LockCounters) -> Option<LogCarrier> {
        let state = self.lock(locks);
        if state.ended == Some(state.entries) && state.unflushed.is_empty() {
            return None;
        }
        let carrier = self.place(state, usize::MAX, Some(Logged::mark(LOG_END_MARK)))?;
        self.lock(locks).ended = Some(carrier.end);
        Some(carrier)
    }

    /// Place the first `number` unflushed entries, then `last`.
    fn place(
        &self,
        mut state: Guard<'_, State>,
        number: usize,
        last: Option<Logged>,
    ) -> Option<LogCarrier> {
        if state.failed || self.is_off() {
            return None;
        }
        let number = number.min(state.unflushed.len());
        let mut taken: Vec<Logged> = state.unflushed.drain(..number).collect();
        state.unflushed_bytes -= taken.iter().map(Logged::bytes).sum::<u64>();
        taken.extend(last);
        let placed: Vec<(u64, Logged)> = taken
            .into_iter()
            .map_while(|logged| Some((self.room(&mut state, &logged)?, logged)))
            .collect();
        self.entries.store(state.entries, Relaxed);
        self.next.store(state.next, Relaxed);
        if placed.is_empty() {
            return None;
        }
        let end = state.entries;
        state.batches.push_back(Batch { end, is_in_place: false });
        let batch = state.first_batch + state.batches.len() as u64 - 1;
        drop(state);
        let (writes, failed) = match self.writes(placed) {
            Some(writes) => (writes, false),
            None => (Vec::new(), true),
        };
        Some(LogCarrier { phase: Phase::Placed, batch, end, writes, failed })
    }

    /// The place of an entry. If there is no room, the log takes no more entries.
    fn room(&self, state: &mut State, logged: &Logged) -> Option<u64> {
        if self.is_off() {
            return None;
        }
        let (sector, block) = (state.next, u64::from(self.sector_bytes) / SECTOR_SIZE);
        let sectors = (1 + logged.entry.data_sectors()) * block;
        if sector + sectors > self.size {
            self.stop(state);
            return None;
        }
        state.next += sectors;
        state.entries += 1;
        Some(sector)
    }

    /// The writes that put entries into the log. `None` if memory is short.
    fn writes(&self, placed: Vec<(u64, Logged)>) -> Option<Vec<LogWrite>> {
        let mut writes = Vec::with_capacity(placed.len() * 2);
        for (sector, Logged { entry, data, text }) in placed {
            let mut header = IoBuf::try_zeroed(self.sector_bytes as usize)?;
            entry.encode(&mut header);
            header[LOG_HEADER_BYTES..LOG_HEADER_BYTES + text.len()].copy_from_slice(&text);
            writes.push(LogWrite { sector, data: header });
            let behind = sector + u64::from(self.sector_bytes) / SECTOR_SIZE;
            writes.extend(data.map(|data| LogWrite { sector: behind, data }));
        }
        Some(writes)
    }

    /// Take no more entries.
    fn stop(&self, state: &mut State) {
        self.is_off.store(true, Relaxed);
        state.unflushed = VecDeque::new();
        state.unflushed_bytes = 0;
    }

    fn fail(&self, state: &mut State, wakes: &mut Vec<Arc<Message>>) {
        state.failed = true;
        self.stop(state);
        wakes.append(&mut state.waiters);
    }

    /// Write nothing any more, whatever is under way. The caller must then send `wakes`.
    pub(crate) fn give_up(&self, locks: &LockCounters, wakes: &mut Vec<Arc<Message>>) {
        self.fail(&mut self.lock(locks), wakes);
    }

    /// The next step of `carrier`. The owner calls this for a new carrier, and again when the
    /// carrier's writes have ended or its `doorbell` rings. The owner must then send `wakes`.
    pub(crate) fn step(
        &self,
        carrier: &mut LogCarrier,
        doorbell: Option<&Arc<Message>>,
        locks: &LockCounters,
        wakes: &mut Vec<Arc<Message>>,
    ) -> LogStep {
        let mut state = self.lock(locks);
        if let Phase::Super(entries) = carrier.phase {
            state.super_under_way = false;
            carrier.phase = if carrier.writes.is_empty() { Phase::InPlace } else { Phase::Placed };
            if !carrier.failed {
                state.in_super = Some(entries);
                wakes.append(&mut state.waiters);
            }
        }
        if carrier.failed && !state.failed {
            self.fail(&mut state, wakes);
        }
        if state.failed {
            return LogStep::Done;
        }
        if matches!(carrier.phase, Phase::Entries) {
            state.finish_batch(carrier.batch);
            carrier.phase = Phase::InPlace;
        }
        match carrier.phase {
            Phase::Placed if state.in_super.is_some() => {
                carrier.phase = Phase::Entries;
                LogStep::Write(std::mem::take(&mut carrier.writes))
            }
            _ if state.in_super >= Some(carrier.end) => LogStep::Done,
            Phase::InPlace if state.in_place < carrier.end => state.wait(doorbell),
            _ if state.super_under_way => state.wait(doorbell),
            _ => {
                state.super_under_way = true;
                carrier.phase = Phase::Super(state.in_place);
                drop(state);
                self.write_super(carrier)
            }
        }
    }

    fn write_super(&self, carrier: &mut LogCarrier) -> LogStep {
        let Phase::Super(entries) = carrier.phase else { return LogStep::Done };
        let Some(mut data) = IoBuf::try_zeroed(self.sector_bytes as usize) else {
            // This counts as a failed write of the super block.
            carrier.failed = true;
            return LogStep::Write(Vec::new());
        };
        LogSuper { entries, sector_bytes: self.sector_bytes }.encode(&mut data);
        LogStep::Write(vec![LogWrite { sector: 0, data }])
    }
}

impl State {
    fn push(&mut self, logged: Logged) {
        self.unflushed_bytes += logged.bytes();
        self.unflushed.push_back(logged);
        self.completed += 1;
    }

    fn is_over_bound(&self) -> bool {
        self.unflushed_bytes > UNFLUSHED_BYTES_MAX || self.unflushed.len() > UNFLUSHED_MAX
    }

    /// The number of unflushed entries whose own number is at most `until`.
    fn number_until(&self, until: u64) -> usize {
        let before = self.completed - self.unflushed.len() as u64;
        until.saturating_sub(before) as usize
    }

    /// Note that all entries of a batch were written.
    fn finish_batch(&mut self, batch: u64) {
        self.batches[(batch - self.first_batch) as usize].is_in_place = true;
        while let Some(first) = self.batches.pop_front_if(|batch| batch.is_in_place) {
            self.first_batch += 1;
            self.in_place = first.end;
        }
    }

    fn wait(&mut self, doorbell: Option<&Arc<Message>>) -> LogStep {
        self.waiters.extend(doorbell.cloned());
        LogStep::Wait
    }
}
