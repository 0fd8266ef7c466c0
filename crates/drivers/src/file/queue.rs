//! One context's queue of a file: requests become operations on the context's ring.
//!
//! Invariants:
//! * `transfers[slot]` holds the memory that the kernel may refer to for the request in that slot
//!   ([`Transfer`]).
//! * A request ends on the opening of the file that it began on ([`OpeningsInUse`]).
//! * Requests succeed only by [`DriverQueue::ending`] or [`FileQueue::end_inline`], which check
//!   that the file was not cut short (`length`). A request that changes the file is counted before
//!   it is issued.
//! * A request has at most one operation in the ring at a time.

use super::in_use::OpeningsInUse;
use super::opened::Opened;
use super::shared::FileShared;
use super::transfer::{Transfer, ZERO_CHUNK};
use drystone_core::buf::IoBuf;
use drystone_core::mistake;
use drystone_core::primitive::Ordering::*;
use drystone_core::ring::polled::PolledRing;
use drystone_core::ring::{FileOp, RingEvent};
use drystone_core::{Bio, BioFlags, ChannelId, Env, Op, Pipe, Status};
use drystone_queue::{DriverQueue, Issue, Request, Slots};
use std::sync::Arc;

/// One context's queue of a file.
pub struct FileQueue {
    shared: Arc<FileShared>,
    openings: OpeningsInUse,
    channel: ChannelId,
    transfers: Vec<Transfer>,
    zeroes: Option<IoBuf>,
    /// For polled reads and writes, where the device below has poll queues.
    polled: Option<PolledRing>,
    polled_events: Vec<RingEvent>,
}

impl FileQueue {
    pub(super) fn new(
        shared: Arc<FileShared>,
        env: &mut Env,
        channel: ChannelId,
        slots: u32,
    ) -> Self {
        FileQueue {
            openings: OpeningsInUse::new(&shared, env),
            shared,
            channel,
            transfers: (0..slots).map(|_| Transfer::new()).collect(),
            zeroes: None,
            polled: None,
            polled_events: Vec::new(),
        }
    }

    fn transfer(&mut self, rq: &Request) -> &mut Transfer {
        &mut self.transfers[rq.slot() as usize]
    }

    /// The opening that the request was begun on.
    fn opened(&self, rq: &Request) -> &Opened {
        self.openings.of(self.transfers[rq.slot() as usize].epoch()).opened()
    }

    /// Start a polled read or write. False if it has to use the ordinary ring.
    fn start_polled(&mut self, rq: &Request, op: FileOp) -> bool {
        let plain = matches!(op, FileOp::Read { .. } | FileOp::Write { dsync: false, .. });
        let wanted = rq.unit.flags.contains(BioFlags::POLLED) && self.opened(rq).poll_queues;
        if !wanted || !plain {
            return false;
        }
        if self.polled.is_none() {
            self.polled = PolledRing::open().ok();
        }
        let fd = self.opened(rq).fd();
        let Some(ring) = &mut self.polled else { return false };
        let token = Env::token(self.channel, rq.slot().into());
        // SAFETY: as in `start`.
        unsafe { ring.start(fd, op, token) }
    }

    /// Sends a request by the ordinary ring, because the file cannot be polled after all.
    fn polled_refused(&mut self, env: &mut Env, event: RingEvent, slots: &mut Slots) {
        let slot = event.token.value() as u32;
        let Some(rq) = slots.in_flight(slot) else { return };
        let op = self.data_op(rq);
        self.start(env, slot, op);
    }

    /// Take the result of an operation, and continue the request or end it.
    fn operation_ended(
        &mut self,
        env: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        let slot = event.token.value() as u32;
        let Some(rq) = slots.in_flight(slot) else { return };
        let status = match self.advance(rq, event.result) {
            Ok(Some(op)) => {
                self.start(env, slot, op);
                return;
            }
            Ok(None) if self.flush_lost(rq) => Status::IoError,
            Ok(None) => Status::Ok,
            Err(status) => status,
        };
        self.finish(rq, status);
        rq.status = status;
        done.push(slot);
    }

    /// Read or write synchronously, without the ring, on a file system in memory. Such a call never
    /// waits for a device. The ring would hand each operation to another thread, because tmpfs does
    /// not support `RWF_NOWAIT`. `None` if a part is left, which then uses the ring.
    fn in_memory(&self, rq: &Request) -> Option<Status> {
        let segment = rq.single_segment().filter(|_| self.opened(rq).memory_fs)?;
        let (fd, offset) = (self.opened(rq).fd(), rq.offset() as i64);
        // SAFETY: the memory belongs to the request's bio for the length of the call.
        let done = unsafe {
            match rq.unit.op {
                Op::Read => libc::pread(fd, segment.ptr.cast(), segment.len, offset),
                Op::Write => libc::pwrite(fd, segment.ptr.cast(), segment.len, offset),
                _ => return None,
            }
        };
        (done == segment.len as isize).then_some(Status::Ok)
    }

    /// The status of a request that ended without the ring.
    fn end_inline(&mut self, rq: &Request, status: Status) -> Status {
        self.over(rq);
        let epoch = self.transfer(rq).epoch();
        let opening = self.openings.of_mut(epoch);
        opening.end(1);
        let is_cut = opening.check_length();
        if is_cut && status.is_ok() { Status::Offline } else { status }
    }

    /// Note that the kernel has nothing of the request any more.
    fn over(&mut self, rq: &Request) {
        if rq.unit.op != Op::Read {
            let epoch = self.transfer(rq).epoch();
            self.openings.of_mut(epoch).end_change();
        }
    }

    /// Do the request, or start it.
    fn issue(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        if let Some(status) = self.in_memory(rq) {
            return Issue::Done(status);
        }
        let op = match rq.unit.op {
            Op::Read | Op::Write => self.data_op(rq),
            Op::Flush => FileOp::DataSync,
            Op::Discard => discard_op(self.opened(rq), rq),
            Op::WriteZeroes => match self.zero_op(rq) {
                Some(op) => op,
                None => return Issue::Done(Status::NotSupported),
            },
        };
        if !self.start_polled(rq, op) {
            self.start(env, rq.slot(), op);
        }
        Issue::Started
    }

    fn start(&self, env: &mut Env, slot: u32, op: FileOp) {
        let opening = self.openings.of(self.transfers[slot as usize].epoch());
        let file = opening.file();
        // SAFETY: the memory belongs to the request's bios or to `transfers[slot]`, both kept until
        // the request is given back, which happens only in `ring_event`; the descriptor lives
        // in the opening, which this queue keeps while requests are in flight on it.
        unsafe {
            let token = Env::token(self.channel, slot.into());
            match op {
                FileOp::Write { .. } if opening.opened().writes_wait => {
                    env.ring.waiting_file(file, op, token);
                }
                _ => env.ring.file(file, op, token),
            }
        }
    }

    /// The operation that moves a long read's pages into the pipe that came with it.
    fn splice_op(&mut self, rq: &mut Request) -> Option<FileOp> {
        let (offset, bytes) = (rq.offset(), rq.unit.bytes);
        if rq.unit.op != Op::Read || !Pipe::takes(offset, bytes) {
            return None;
        }
        if !self.opened(rq).has_page_cache() || !self.shared.splices.load(Relaxed) {
            return None;
        }
        let pipe = rq.only_bio()?.pipe_to_fill()?.begin();
        let transfer = self.transfer(rq);
        transfer.begin_splice(pipe);
        transfer.splice_op(rq)
    }

    /// The operation that reads to memory, because the rest does not go into the pipe.
    #[cold]
    fn read_instead(&mut self, rq: &mut Request, result: i32) -> FileOp {
        let is_of_now = self.transfer(rq).epoch() == self.openings.epoch();
        if is_of_now && Pipe::is_refusal(-result) {
            self.shared.splices.store(false, Relaxed);
        }
        self.transfer(rq).end_splice();
        self.data_op(rq)
    }

    fn data_op(&mut self, rq: &mut Request) -> FileOp {
        if let Some(op) = self.splice_op(rq) {
            return op;
        }
        let write = rq.unit.op == Op::Write;
        let dsync = rq.unit.flags.contains(BioFlags::FUA) && !mistake!("fua_forgotten");
        let offset = rq.offset();
        if let Some(segment) =
            rq.single_segment().filter(|segment| self.opened(rq).alignment.takes(*segment))
        {
            return match write {
                true => FileOp::Write { segment, offset, dsync },
                false => FileOp::Read { segment, offset },
            };
        }
        let alignment = self.opened(rq).alignment;
        let transfer = self.transfer(rq);
        transfer.gather(rq, alignment);
        transfer.vectored_op(rq)
    }

    fn zero_op(&mut self, rq: &Request) -> Option<FileOp> {
        let s = self.opened(rq);
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let range = |mode| FileOp::Allocate { mode, offset: rq.offset(), length: rq.unit.bytes };
        if !rq.unit.flags.contains(BioFlags::NOUNMAP) && s.punch_hole.load(Relaxed) {
            return Some(range(libc::FALLOC_FL_PUNCH_HOLE | keep));
        }
        if s.zero_range.load(Relaxed) {
            return Some(range(libc::FALLOC_FL_ZERO_RANGE | keep));
        }
        if rq.unit.flags.contains(BioFlags::FAST_ZERO) {
            return None;
        }
        Some(self.zero_by_hand(rq))
    }

    fn zero_by_hand(&mut self, rq: &Request) -> FileOp {
        let zeroes = self.zeroes.get_or_insert_with(|| IoBuf::zeroed(ZERO_CHUNK as usize));
        self.transfers[rq.slot() as usize].zero_op(rq, zeroes)
    }

    /// Takes the result of an operation: `Ok(None)` when the request is done,
    /// `Ok(Some)` to go on with another operation.
    fn advance(&mut self, rq: &mut Request, result: i32) -> Result<Option<FileOp>, Status> {
        let is_refused = result <= 0 && !matches!(-result, libc::EINTR | libc::ECANCELED);
        if is_refused && self.transfer(rq).is_spliced() && !rq_cancelled(rq) {
            return Ok(Some(self.read_instead(rq, result)));
        }
        match -result {
            // The kernel also cancels the operations of a thread that ends, and that thread may
            // have been a visitor.
            libc::EINTR | libc::EAGAIN | libc::ECANCELED if !rq_cancelled(rq) => {
                // Another request may have found meanwhile that the file system does not support
                // the operation.
                return self.again(rq).map(Some).ok_or(Status::NotSupported);
            }
            e if e > 0 => return self.failed(rq, e),
            _ => {}
        }
        match rq.unit.op {
            Op::Read | Op::Write => self.moved(rq, result as u64),
            Op::WriteZeroes if self.transfer(rq).is_by_hand() => {
                match self.transfer(rq).advance_zeroes(rq, result as u64) && result > 0 {
                    true => Ok(Some(self.zero_by_hand(rq))),
                    false if result == 0 => Err(Status::IoError),
                    false => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// The same operation once more; `None` if the file system has none that does it.
    fn again(&mut self, rq: &mut Request) -> Option<FileOp> {
        match rq.unit.op {
            Op::Flush => Some(FileOp::DataSync),
            Op::Discard => Some(discard_op(self.opened(rq), rq)),
            Op::WriteZeroes => self.zero_op(rq),
            _ if self.transfer(rq).is_spliced() => self.transfer(rq).splice_op(rq),
            _ if self.transfer(rq).is_gathered() => Some(self.transfer(rq).vectored_op(rq)),
            _ => Some(self.data_op(rq)),
        }
    }

    fn failed(&mut self, rq: &mut Request, errno: i32) -> Result<Option<FileOp>, Status> {
        let s = self.opened(rq);
        let unsupported = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV);
        match rq.unit.op {
            // The kernel had not begun the flush, so nothing is lost.
            Op::Flush if errno == libc::ECANCELED => {}
            Op::Flush if mistake!("flush_failure_forgotten") => {}
            Op::Flush => s.flush_failed.store(true, Release),
            // Discard was offered, and it is only advice: report success.
            Op::Discard if unsupported => return Ok(None),
            Op::WriteZeroes if unsupported && !self.transfers[rq.slot() as usize].is_by_hand() => {
                let unmap = !rq.unit.flags.contains(BioFlags::NOUNMAP);
                let flag =
                    if unmap && s.punch_hole.load(Relaxed) { &s.punch_hole } else { &s.zero_range };
                flag.store(false, Relaxed);
                return self.zero_op(rq).map(Some).ok_or(Status::NotSupported);
            }
            // The kernel reports an error of other writes only once, and this may be it.
            _ if errno == libc::EIO && rq.unit.flags.contains(BioFlags::FUA) => {
                s.flush_failed.store(true, Release);
            }
            _ => {}
        }
        Err(Status::from_errno(errno))
    }

    /// Note that `n` more bytes were read or written.
    fn moved(&mut self, rq: &Request, n: u64) -> Result<Option<FileOp>, Status> {
        let progress = self.transfer(rq).progress() + n;
        let is_cut = self.transfer(rq).is_spliced() && mistake!("short_move_is_all");
        if progress >= rq.unit.bytes || is_cut {
            return Ok(None);
        }
        let s = self.opened(rq);
        if n == 0 || s.alignment.is_direct() && !progress.is_multiple_of(s.block_size.into()) {
            // The file ends before the device does, so another program cut it short.
            return Err(match s.is_cut_short() {
                true => Status::Offline,
                false => Status::IoError,
            });
        }
        let alignment = s.alignment;
        let transfer = self.transfer(rq);
        transfer.advance(rq, n, alignment);
        Ok(Some(transfer.splice_op(rq).unwrap_or_else(|| transfer.vectored_op(rq))))
    }

    /// Ends a request: copies bounced data back, and forgets its memory.
    fn finish(&mut self, rq: &mut Request, status: Status) {
        self.over(rq);
        if self.transfer(rq).is_spliced() && status.is_ok() {
            let bytes = rq.unit.bytes as usize;
            let pipe = rq.only_bio().and_then(Bio::pipe_mut);
            pipe.expect("it came with one").filled(bytes);
        }
        self.transfer(rq).end(rq, status.is_ok());
        if matches!(rq.unit.op, Op::Discard | Op::WriteZeroes) {
            self.opened(rq).holes.made();
        }
    }

    /// True if the request writes the last block: the write would give a file that was cut short
    /// its length again.
    fn ends_with_device(&self, rq: &Request) -> bool {
        let writes = matches!(rq.unit.op, Op::Write | Op::WriteZeroes);
        writes && rq.offset() + rq.unit.bytes >= self.opened(rq).length.bytes()
    }

    fn flush_lost(&self, rq: &Request) -> bool {
        let durable = rq.unit.op == Op::Flush || rq.unit.flags.contains(BioFlags::FUA);
        durable && self.opened(rq).flush_failed.load(Acquire)
    }
}

impl FileQueue {
    /// The same while requests are in flight on the previous opening, too.
    #[cold]
    fn ending_on_both(&mut self, env: &mut Env, slots: &mut Slots, done: &[u32]) {
        for slot in done {
            self.openings.of_mut(self.transfers[*slot as usize].epoch()).end(1);
        }
        let (is_cut, was_cut) = self.openings.check_lengths();
        for slot in done {
            let is_of_now = self.transfers[*slot as usize].epoch() == self.openings.epoch();
            if if is_of_now { is_cut } else { was_cut } {
                end_offline(slots, *slot);
            }
        }
        self.openings.leave(env);
    }
}

/// Fails a request whose file was cut short.
fn end_offline(slots: &mut Slots, slot: u32) {
    if let Some(rq) = slots.in_flight(slot).filter(|rq| rq.status.is_ok()) {
        rq.status = Status::Offline;
    }
}

/// True if the operation was cancelled, so it is not tried again.
fn rq_cancelled(rq: &Request) -> bool {
    rq.driver_data == CANCELLED
}

/// The mark in `driver_data` of a request whose operation was asked to end early.
const CANCELLED: u64 = 1;

fn discard_op(opened: &Opened, rq: &Request) -> FileOp {
    let (offset, length) = (rq.offset(), rq.unit.bytes);
    if opened.discard.is_some_and(|discard| discard.is_of_device) {
        return FileOp::Discard { offset, length };
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    FileOp::Allocate { mode, offset, length }
}

impl DriverQueue for FileQueue {
    fn close(&mut self, env: &mut Env) {
        self.openings.close(env);
    }

    fn refresh(&mut self, env: &mut Env) {
        if self.shared.epoch() != self.openings.epoch() {
            self.openings.follow(&self.shared, env);
        }
    }

    fn queue_rq(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        rq.driver_data = 0;
        let epoch = self.openings.epoch();
        self.transfer(rq).begin(epoch);
        if self.flush_lost(rq) {
            return Issue::Done(Status::IoError);
        }
        // The request begins on the present opening, and ends there.
        let opened = self.opened(rq);
        if opened.length.was_cut_short() || self.ends_with_device(rq) && opened.is_cut_short() {
            return Issue::Done(Status::Offline);
        }
        self.openings.now().begin(rq.unit.op != Op::Read);
        match self.issue(env, rq) {
            Issue::Done(status) => Issue::Done(self.end_inline(rq, status)),
            issue => issue,
        }
    }

    fn ring_event(
        &mut self,
        env: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        self.operation_ended(env, event, slots, done);
    }

    fn ending(&mut self, env: &mut Env, slots: &mut Slots, done: &[u32]) {
        if self.openings.has_two() {
            return self.ending_on_both(env, slots, done);
        }
        let opening = self.openings.now();
        opening.end(done.len() as u32);
        if !opening.check_length() {
            return;
        }
        done.iter().for_each(|slot| end_offline(slots, *slot));
    }

    fn poll(&mut self, env: &mut Env, slots: &mut Slots, done: &mut Vec<u32>) {
        let Some(ring) = &mut self.polled else { return };
        let mut events = std::mem::take(&mut self.polled_events);
        ring.poll(&mut events);
        for event in events.drain(..) {
            if event.result == -libc::EOPNOTSUPP {
                self.polled_refused(env, event, slots);
            } else {
                self.operation_ended(env, event, slots, done);
            }
        }
        self.polled_events = events;
    }

    fn must_poll(&self) -> bool {
        self.polled.as_ref().is_some_and(|ring| ring.in_flight() > 0)
    }

    fn timed_out(&mut self, env: &mut Env, rq: &mut Request) {
        rq.driver_data = CANCELLED;
        env.ring.cancel(Env::token(self.channel, rq.slot().into()));
    }
}
