//! A file as one context uses it: requests become operations on the context's ring.
//!
//! Invariants:
//! * `parts[slot]` holds what the kernel may refer to for the request in that slot (vectors,
//!   bounce buffer) and is changed only while nothing of it is with the ring.
//! * A request ends on the opening of the file that it began on ([`Use`]). A queue has at most two:
//!   no file is opened anew before everybody has left the one before.
//! * Requests end well only by [`DriverQueue::ending`] or [`FileQueue::ended_at_once`], which see
//!   that the file was not cut short (`length`). Those that change it are counted in `mark` from
//!   before they are issued.
//! * A request has one operation with the ring at a time; `progress` of its bytes are done.

use super::length::Mark;
use super::opened::Opened;
use super::shared::FileShared;
use drystone_core::buf::{IoBuf, copy_from_segments, copy_to_segments};
use drystone_core::mistake;
use drystone_core::primitive::Ordering::*;
use drystone_core::ring::polled::PolledRing;
use drystone_core::ring::{FileOp, RingEvent, RingFile};
use drystone_core::{BioFlags, Env, Op, Status};
use drystone_queue::{DriverQueue, Issue, Request, Slots};
use std::sync::Arc;

/// Zeroes are written this many bytes at a time where the file system cannot zero by itself.
const ZERO_CHUNK: u64 = 1 << 20;

/// Vectors that a slot has room for from the start; a request of more bios allocates once.
const VECTORS: usize = 16;

/// The memory that one request needs besides that of its bios.
struct Part {
    iovecs: Vec<libc::iovec>,
    bounce: Option<IoBuf>,
    progress: u64,
    /// Zeroes are being written by hand.
    by_hand: bool,
    /// The exchange of the file by which it was begun.
    epoch: u64,
}

impl Part {
    fn new() -> Self {
        Part {
            iovecs: Vec::with_capacity(VECTORS),
            bounce: None,
            progress: 0,
            by_hand: false,
            epoch: 0,
        }
    }
}

/// An opening of the file, as a queue uses it.
struct Use {
    opened: Arc<Opened>,
    file: RingFile,
    mark: Mark,
    /// Requests that were begun on it and have not ended.
    in_flight: u32,
}

impl Use {
    fn new(opened: Arc<Opened>, env: &mut Env) -> Self {
        let (file, mark) = (env.ring.register(opened.fd()), Mark::new(opened.length.clone()));
        Use { opened, file, mark, in_flight: 0 }
    }

    /// For what has ended, before it is acknowledged: whether the file was cut short.
    fn look(&mut self) -> bool {
        self.mark.look(&**self.opened.backing)
    }
}

/// One context's queue of a file.
pub struct FileQueue {
    shared: Arc<FileShared>,
    /// The opening that new requests begin on, and its exchange.
    now: Use,
    epoch: u64,
    /// The opening before, while requests are under way on it.
    before: Option<Use>,
    channel: u32,
    parts: Vec<Part>,
    zeroes: Option<IoBuf>,
    /// For polled reads and writes, where the device below has poll queues.
    polled: Option<PolledRing>,
    polled_events: Vec<RingEvent>,
}

// SAFETY: the iovecs point at memory of bios and buffers that the same queue's requests own.
unsafe impl Send for FileQueue {}

impl FileQueue {
    pub(super) fn new(shared: Arc<FileShared>, env: &mut Env, channel: u32, slots: u32) -> Self {
        let (epoch, opened) = shared.current(&env.locks);
        FileQueue {
            now: Use::new(opened, env),
            epoch,
            before: None,
            shared,
            channel,
            parts: (0..slots).map(|_| Part::new()).collect(),
            zeroes: None,
            polled: None,
            polled_events: Vec::new(),
        }
    }

    /// The opening that the request in `slot` was begun on.
    fn use_of(&self, slot: u32) -> &Use {
        match &self.before {
            Some(before) if self.parts[slot as usize].epoch != self.epoch => before,
            _ => &self.now,
        }
    }

    fn use_of_mut(&mut self, slot: u32) -> &mut Use {
        match &mut self.before {
            Some(before) if self.parts[slot as usize].epoch != self.epoch => before,
            _ => &mut self.now,
        }
    }

    fn opened(&self, rq: &Request) -> &Opened {
        &self.use_of(rq.slot()).opened
    }

    /// Takes the new opening over: the file was opened again.
    #[cold]
    fn follow(&mut self, env: &mut Env) {
        debug_assert!(
            self.before.is_none(),
            "everybody leaves an opening before the next exchange"
        );
        let (epoch, opened) = self.shared.current(&env.locks);
        self.before = Some(std::mem::replace(&mut self.now, Use::new(opened, env)));
        self.epoch = epoch;
        self.leave(env);
    }

    /// Gives up the opening before, once nothing is under way on it.
    #[cold]
    fn leave(&mut self, env: &mut Env) {
        if let Some(before) = self.before.take_if(|before| before.in_flight == 0) {
            self.now.opened.is_cut_short();
            env.ring.unregister(before.file);
        }
    }

    /// Start a polled read or write. False if it has to go the ordinary way.
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

    /// The file cannot be polled after all: the request goes the ordinary way.
    fn polled_refused(&mut self, env: &mut Env, event: RingEvent, slots: &mut Slots) {
        let slot = event.token.value() as u32;
        let Some(rq) = slots.in_flight(slot) else { return };
        let op = self.data_op(rq);
        self.start(env, slot, op);
    }

    /// The result of an operation is there: go on with the request, or end it.
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

    /// Read or write at once, without the ring, on a file system that is memory: it never waits
    /// for a device, and the ring would hand each operation to another thread (tmpfs cannot say
    /// "not now"). `None` when not all was done: then the ring does it.
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
    fn ended_at_once(&mut self, rq: &Request, status: Status) -> Status {
        self.over(rq);
        let used = self.use_of_mut(rq.slot());
        used.in_flight -= 1;
        let is_cut = used.look();
        if is_cut && status.is_ok() { Status::Offline } else { status }
    }

    /// Nothing of the request is with the kernel any more.
    fn over(&mut self, rq: &Request) {
        if rq.unit.op != Op::Read {
            self.use_of_mut(rq.slot()).mark.change_ended();
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
        // SAFETY: the memory belongs to the request's bios or to `parts[slot]`, both kept until
        // the request is given back, which happens only in `ring_event`; the descriptor lives
        // in the opening, which this queue keeps while requests are in flight on it.
        unsafe { env.ring.file(self.use_of(slot).file, op, Env::token(self.channel, slot.into())) }
    }

    fn data_op(&mut self, rq: &Request) -> FileOp {
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
        self.gather(rq);
        self.vectored_op(rq)
    }

    /// Collect the request's vectors, through a bounce buffer if memory is not aligned.
    fn gather(&mut self, rq: &Request) {
        let alignment = self.opened(rq).alignment;
        let part = &mut self.parts[rq.slot() as usize];
        part.iovecs.clear();
        let mut aligned = true;
        rq.each_segment(|s| {
            aligned &= alignment.takes(s);
            part.iovecs.push(libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len });
        });
        if aligned {
            return;
        }
        let bounce = IoBuf::zeroed(rq.unit.bytes as usize);
        if rq.unit.op == Op::Write {
            fill_bounce(rq, &bounce);
        }
        let whole = libc::iovec { iov_base: bounce.as_ptr().cast(), iov_len: bounce.len() };
        part.iovecs.clear();
        part.iovecs.push(whole);
        part.bounce = Some(bounce);
    }

    /// The operation for what is left of a request whose vectors were gathered.
    fn vectored_op(&mut self, rq: &Request) -> FileOp {
        let part = &mut self.parts[rq.slot() as usize];
        let (iovecs, count) = (part.iovecs.as_ptr(), part.iovecs.len() as u32);
        let offset = rq.offset() + part.progress;
        match rq.unit.op {
            Op::Read => FileOp::Readv { iovecs, count, offset },
            _ => FileOp::Writev {
                iovecs,
                count,
                offset,
                dsync: rq.unit.flags.contains(BioFlags::FUA),
            },
        }
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
        let part = &mut self.parts[rq.slot() as usize];
        part.by_hand = true;
        let length = (rq.unit.bytes - part.progress).min(ZERO_CHUNK);
        let dsync = rq.unit.flags.contains(BioFlags::FUA);
        FileOp::Write {
            segment: zeroes.segment(0..length as usize),
            offset: rq.offset() + part.progress,
            dsync,
        }
    }

    /// Takes the result of an operation: `Ok(None)` when the request is done,
    /// `Ok(Some)` to go on with another operation.
    fn advance(&mut self, rq: &mut Request, result: i32) -> Result<Option<FileOp>, Status> {
        match -result {
            // The kernel also cancels what a thread started when that thread ends, and that may
            // have been a visitor's.
            libc::EINTR | libc::EAGAIN | libc::ECANCELED if !rq_cancelled(rq) => {
                // Another request may have found out meanwhile that the file system cannot do it.
                return self.again(rq).map(Some).ok_or(Status::NotSupported);
            }
            e if e > 0 => return self.failed(rq, e),
            _ => {}
        }
        match rq.unit.op {
            Op::Read | Op::Write => self.moved(rq, result as u64),
            Op::WriteZeroes if self.parts[rq.slot() as usize].by_hand => {
                let part = &mut self.parts[rq.slot() as usize];
                part.progress += result as u64;
                match part.progress < rq.unit.bytes && result > 0 {
                    true => Ok(Some(self.zero_by_hand(rq))),
                    false if result == 0 => Err(Status::IoError),
                    false => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// The same operation once more; `None` if there is none any more that does it.
    fn again(&mut self, rq: &Request) -> Option<FileOp> {
        match rq.unit.op {
            Op::Flush => Some(FileOp::DataSync),
            Op::Discard => Some(discard_op(self.opened(rq), rq)),
            Op::WriteZeroes => self.zero_op(rq),
            _ if self.parts[rq.slot() as usize].iovecs.is_empty() => Some(self.data_op(rq)),
            _ => Some(self.vectored_op(rq)),
        }
    }

    fn failed(&mut self, rq: &mut Request, errno: i32) -> Result<Option<FileOp>, Status> {
        let s = self.opened(rq);
        let unsupported = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV);
        match rq.unit.op {
            // The kernel had not begun: nothing is lost.
            Op::Flush if errno == libc::ECANCELED => {}
            Op::Flush if mistake!("flush_failure_forgotten") => {}
            Op::Flush => s.flush_failed.store(true, Release),
            // It was offered, and is advice.
            Op::Discard if unsupported => return Ok(None),
            Op::WriteZeroes if unsupported && !self.parts[rq.slot() as usize].by_hand => {
                let unmap = !rq.unit.flags.contains(BioFlags::NOUNMAP);
                let flag =
                    if unmap && s.punch_hole.load(Relaxed) { &s.punch_hole } else { &s.zero_range };
                flag.store(false, Relaxed);
                return self.zero_op(rq).map(Some).ok_or(Status::NotSupported);
            }
            // The error may be that of other writes, which the kernel reports only once.
            _ if errno == libc::EIO && rq.unit.flags.contains(BioFlags::FUA) => {
                s.flush_failed.store(true, Release);
            }
            _ => {}
        }
        Err(Status::from_errno(errno))
    }

    /// `n` more bytes were read or written.
    fn moved(&mut self, rq: &Request, n: u64) -> Result<Option<FileOp>, Status> {
        let slot = rq.slot() as usize;
        let progress = self.parts[slot].progress + n;
        if progress >= rq.unit.bytes {
            return Ok(None);
        }
        let s = self.opened(rq);
        if n == 0 || s.alignment.is_direct() && !progress.is_multiple_of(s.block_size.into()) {
            // The file ends before the device does: it was cut short below us.
            return Err(match s.is_cut_short() {
                true => Status::Offline,
                false => Status::IoError,
            });
        }
        if self.parts[slot].iovecs.is_empty() {
            self.gather(rq);
            self.skip(slot, progress as usize);
        } else {
            self.skip(slot, n as usize);
        }
        self.parts[slot].progress = progress;
        Ok(Some(self.vectored_op(rq)))
    }

    /// Drop the first `n` bytes of the gathered vectors.
    fn skip(&mut self, slot: usize, mut n: usize) {
        let iovecs = &mut self.parts[slot].iovecs;
        let whole = iovecs.iter().take_while(|v| {
            let fits = v.iov_len <= n;
            n -= if fits { v.iov_len } else { 0 };
            fits
        });
        let whole = whole.count();
        iovecs.drain(..whole);
        if let Some(first) = iovecs.first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(n);
            first.iov_len -= n;
        }
    }

    /// The request is over: copy back what was bounced, forget what it needed.
    fn finish(&mut self, rq: &Request, status: Status) {
        self.over(rq);
        let part = &mut self.parts[rq.slot() as usize];
        if let Some(bounce) = part.bounce.take()
            && status.is_ok()
            && rq.unit.op == Op::Read
        {
            empty_bounce(rq, &bounce);
        }
        part.iovecs.clear();
        (part.progress, part.by_hand) = (0, false);
        if matches!(rq.unit.op, Op::Discard | Op::WriteZeroes) {
            self.opened(rq).holes.made();
        }
    }

    /// It writes the last block: a file that was cut short would have its length again.
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
    /// The same while requests are under way on the opening before.
    #[cold]
    fn ending_on_both(&mut self, env: &mut Env, slots: &mut Slots, done: &[u32]) {
        done.iter().for_each(|slot| self.use_of_mut(*slot).in_flight -= 1);
        let is_cut = self.now.look();
        let was_cut = self.before.as_mut().is_some_and(Use::look);
        for slot in done {
            let is_of_now = self.parts[*slot as usize].epoch == self.epoch;
            if if is_of_now { is_cut } else { was_cut } {
                end_offline(slots, *slot);
            }
        }
        self.leave(env);
    }
}

/// A request whose file was cut short has not ended well.
fn end_offline(slots: &mut Slots, slot: u32) {
    if let Some(rq) = slots.in_flight(slot).filter(|rq| rq.status.is_ok()) {
        rq.status = Status::Offline;
    }
}

/// A cancelled operation is not tried again.
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

fn fill_bounce(rq: &Request, bounce: &IoBuf) {
    let mut at = 0;
    rq.each_segment(|s| {
        let to = bounce.segment(at..at + s.len);
        // SAFETY: the bio's memory is vouched for until it completes, the bounce buffer is ours
        // and nobody else looks at it yet.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to.ptr, to.len);
            copy_from_segments(&[s], 0, to);
        }
        at += s.len;
    });
}

fn empty_bounce(rq: &Request, bounce: &IoBuf) {
    let mut at = 0;
    rq.each_segment(|s| {
        // SAFETY: the bio's memory is vouched for until it completes.
        unsafe { copy_to_segments(&[s], 0, &bounce[at..at + s.len]) };
        at += s.len;
    });
}

impl DriverQueue for FileQueue {
    fn close(&mut self, env: &mut Env) {
        env.ring.unregister(self.now.file);
        if let Some(before) = self.before.take() {
            env.ring.unregister(before.file);
        }
    }

    fn refresh(&mut self, env: &mut Env) {
        if self.shared.epoch() != self.epoch {
            self.follow(env);
        }
    }

    fn queue_rq(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        rq.driver_data = 0;
        self.parts[rq.slot() as usize].epoch = self.epoch;
        if self.flush_lost(rq) {
            return Issue::Done(Status::IoError);
        }
        let opened = &self.now.opened;
        if opened.length.was_cut_short() || self.ends_with_device(rq) && opened.is_cut_short() {
            return Issue::Done(Status::Offline);
        }
        if rq.unit.op != Op::Read {
            self.now.mark.change_begins();
        }
        self.now.in_flight += 1;
        match self.issue(env, rq) {
            Issue::Done(status) => Issue::Done(self.ended_at_once(rq, status)),
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
        if self.before.is_some() {
            return self.ending_on_both(env, slots, done);
        }
        self.now.in_flight -= done.len() as u32;
        if !self.now.look() {
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
