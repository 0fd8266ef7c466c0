//! Requests of a connection become bios, completed bios become replies.
//!
//! Invariants:
//! * An operation ([`Op`]) lives from its request until its reply is queued; its bios name it by
//!   its number, so a number is not used again before all of them are back.
//! * Exactly one reply is queued for each operation.
//! * A block status query goes to the device as a read of no bytes, so that throttle groups count it, and
//!   then to a helper thread (`Ring::query`): nothing here asks a file system, least of all before
//!   a read. One query of a connection is asked at a time, the others wait in `queries`.
//! * What has to be submitted because something ended waits in `next` until [`Service::go_on`], which is
//!   called before anything else is done with the connection.

use super::stream::Stream;
use super::window::{BARE_BYTES, Cost};
use crate::nbd::extents::{Extent as StatusExtent, StatusQuery};
use crate::nbd::proto::{Command, CommandFlags, ErrorCode};
use crate::nbd::reply::{ReplyStyle, ReplyTag};
use crate::nbd::request::{Refusal, Request};
use crate::server::{Clients, DATA_AT, NBD, Pool, Tag, ZeroWrites};
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::ring::SendPart;
use drystone_core::{Bio, BioFlags, BioList, Device, IoBuf, Op as BioOp, Sector, Status};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Most extents that one query asks the device for: a file system is asked twice for each, about 1 us
/// a time on ext4. The client asks on from where the answer ends.
const EXTENTS_MAX: usize = 256;
/// A cache request reads at most this much; what is beyond it is advice not taken.
const CACHE_BYTES: u64 = BARE_BYTES;

/// Zeroes are written in pieces of this where the device does not do it by itself.
const ZERO_BYTES: u64 = BARE_BYTES;

/// A request that is being carried out.
struct Op {
    request: Request,
    /// Bios that are not back.
    pending: u32,
    status: Status,
    /// Data of a read.
    data: Option<IoBuf>,
    /// What is still to be zeroed by plain writes.
    zeroes: Option<ZeroWrites>,
}

/// What one connection has under way with its device.
pub(super) struct Service {
    device: Arc<dyn Device>,
    clients: Clients,
    style: ReplyStyle,
    min_block: u32,
    /// The wire number of each selected context, by place.
    context_ids: Vec<u32>,
    ops: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Operations whose query may be asked, in the order in which they came.
    queries: VecDeque<u32>,
    /// The one whose query is being asked.
    asked: Option<u32>,
    /// Bios that go on with an operation of which others have ended.
    next: BioList,
    /// The device zeroes by itself.
    zeroes_itself: bool,
    /// The server stops: operations end with the bios that are under way.
    stopping: bool,
    /// Tag for `user_data`: the connection's number.
    connection: u64,
}

/// Bits of `user_data` for the operation.
const OP_BITS: u32 = 20;

/// The connection's number in a bio's `user_data`.
pub(super) fn connection_of(bio: &Bio) -> usize {
    (Tag::rest_of_bio(bio.user_data) >> OP_BITS) as usize
}

/// The `user_data` of all bios of connection `number`.
pub(super) fn user_data_of(number: usize) -> Range<u64> {
    NBD.bio() | (number as u64) << OP_BITS..NBD.bio() | (number as u64 + 1) << OP_BITS
}

impl Service {
    pub(super) fn new(
        (device, clients): (Arc<dyn Device>, Clients),
        style: ReplyStyle,
        min_block: u32,
        context_ids: Vec<u32>,
        connection: usize,
    ) -> Self {
        let connection = NBD.bio() | (connection as u64) << OP_BITS;
        let zeroes_itself = device.info().limits.max_write_zeroes_bytes > 0;
        Service {
            device,
            clients,
            style,
            min_block,
            context_ids,
            ops: Vec::new(),
            free: Vec::new(),
            queries: VecDeque::new(),
            asked: None,
            next: BioList::new(),
            zeroes_itself,
            stopping: false,
            connection,
        }
    }

    /// How the client wants its replies.
    pub(super) fn style(&self) -> ReplyStyle {
        self.style
    }

    /// Operations that have bios under way.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len() - self.free.len()
    }

    /// Push the bios that go on with what has come a step further to `bios`.
    #[inline]
    pub(super) fn go_on(&mut self, bios: &mut BioList) {
        bios.append(&mut self.next);
    }

    /// Go on with nothing: the client has gone.
    pub(super) fn give_up(&mut self, pool: &mut Pool) {
        while let Some(bio) = self.next.pop() {
            let index = op_of(&bio);
            pool.give_bio(bio).into_iter().for_each(|buf| pool.give(buf));
            if let Some(op) = self.ops[index as usize].take() {
                debug_assert_eq!(op.pending, 1, "whatever goes on has one bio");
                self.free.push(index);
            }
        }
    }

    /// From now on operations end with the bios that are under way.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Bytes of the buffer that `request` takes for its data.
    pub(super) fn buffer_bytes(request: &Request) -> u64 {
        match request.command {
            Command::Read | Command::Write => request.length,
            Command::Cache => request.length.min(CACHE_BYTES),
            Command::WriteZeroes => request.length.min(ZERO_BYTES),
            Command::Flush | Command::Trim | Command::BlockStatus | Command::Disc => 0,
        }
    }

    /// Carry `request` out: push its bios to `bios`, or reply at once. `payload` holds a write's
    /// data from [`DATA_AT`] on.
    pub(super) fn start(
        &mut self,
        request: Request,
        payload: Option<IoBuf>,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        match request.command {
            Command::Read => self.read(request, pool, stream, bios),
            Command::Write => self.write(request, payload, pool, stream, bios),
            Command::Flush => self.bare(request, BioOp::Flush, pool, bios),
            Command::Trim => self.bare(request, BioOp::Discard, pool, bios),
            // One that has to be fast fails at the device rather than being slow.
            Command::WriteZeroes
                if self.zeroes_itself || request.flags.contains(CommandFlags::FAST_ZERO) =>
            {
                self.bare(request, BioOp::WriteZeroes, pool, bios)
            }
            Command::WriteZeroes => self.zero_by_writes(request, pool, stream, bios),
            Command::Cache => self.cache(request, pool, stream, bios),
            Command::BlockStatus => self.block_status(request, pool, bios),
            Command::Disc => unreachable!("ends the connection before it gets here"),
        }
    }

    fn add(&mut self, request: Request, pending: u32) -> u32 {
        let op = Op { request, pending, status: Status::Ok, data: None, zeroes: None };
        match self.free.pop() {
            Some(index) => {
                self.ops[index as usize] = Some(op);
                index
            }
            None => {
                self.ops.push(Some(op));
                self.ops.len() as u32 - 1
            }
        }
    }

    fn user_data(&self, op: u32) -> u64 {
        self.connection | u64::from(op)
    }

    #[inline]
    fn read(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream, bios: &mut BioList) {
        let Some(buf) = pool.take(request.length as usize) else {
            return self.out_of_memory(request, pool, stream);
        };
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::SYNC;
        bio.sector = Sector::from_bytes(request.offset);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + request.length as usize));
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    #[inline]
    fn write(
        &mut self,
        request: Request,
        payload: Option<IoBuf>,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        let Some(buf) = payload else { return self.out_of_memory(request, pool, stream) };
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Write;
        // Nobody else has the buffer.
        bio.flags = write_flags(&request) | BioFlags::STABLE;
        bio.sector = Sector::from_bytes(request.offset);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + request.length as usize));
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// An operation without data.
    fn bare(&mut self, request: Request, kind: BioOp, pool: &mut Pool, bios: &mut BioList) {
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = kind;
        bio.flags = write_flags(&request);
        bio.sector = Sector::from_bytes(request.offset);
        bio.bytes = request.length;
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// Write zeroes as plain data, one piece after the other.
    fn zero_by_writes(
        &mut self,
        request: Request,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        let range = request.offset..request.offset + request.length;
        let mut zeroes = ZeroWrites::new(range, ZERO_BYTES);
        let room = zeroes.room();
        let Some(mut buf) = pool.take(room) else {
            return self.out_of_memory(request, pool, stream);
        };
        buf[DATA_AT..DATA_AT + room].fill(0);
        let mut bio = pool.bio();
        zeroes.fill(&mut bio, buf, write_flags(&request) & BioFlags::FUA);
        let op = self.add(request, 1);
        bio.user_data = self.user_data(op);
        if let Some(op) = &mut self.ops[op as usize] {
            op.zeroes = Some(zeroes);
        }
        bios.push(bio);
    }

    /// Cache: read the beginning of the range, so that what caches below has it.
    fn cache(
        &mut self,
        request: Request,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        let length = request.length.min(CACHE_BYTES) as usize;
        let Some(buf) = pool.take(length) else {
            return self.out_of_memory(request, pool, stream);
        };
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::BACKGROUND;
        bio.sector = Sector::from_bytes(request.offset);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + length));
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// Let the query pass the limits of its group, as an I/O of no bytes.
    fn block_status(&mut self, request: Request, pool: &mut Pool, bios: &mut BioList) {
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        (bio.op, bio.flags) = (BioOp::Read, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector::from_bytes(request.offset), 0);
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// The query to ask next, if none is being asked: [`Service::answered`] takes its answer.
    pub(super) fn next_query(&mut self) -> Option<ExtentQuery> {
        if self.asked.is_some() {
            return None;
        }
        let index = self.queries.pop_front()?;
        let Request { offset, length, .. } = self.ops[index as usize].as_ref()?.request;
        self.asked = Some(index);
        Some(ExtentQuery { device: self.device.clone(), offset, length, max: EXTENTS_MAX })
    }

    /// The device said what it knows; nothing when a thread to ask it was not to be had.
    pub(super) fn answered(&mut self, found: &[Extent], pool: &mut Pool, stream: &mut Stream) {
        let Some(index) = self.asked.take() else { return };
        let Some(op) = self.ops[index as usize].take() else { return };
        self.free.push(index);
        let convert =
            |e: &Extent| StatusExtent { length: e.length, data: e.allocated, zero: e.zero };
        let extents: Vec<_> = found.iter().map(convert).collect();
        self.reply_status(&op.request, &extents, pool, stream);
    }

    /// Nobody waits for the answers of queries any more: those that were not asked end.
    pub(super) fn drop_queries(&mut self) {
        for index in self.queries.drain(..) {
            self.ops[index as usize] = None;
            self.free.push(index);
        }
    }

    fn reply_status(
        &mut self,
        request: &Request,
        extents: &[StatusExtent],
        pool: &mut Pool,
        stream: &mut Stream,
    ) {
        let query = StatusQuery::new(request, self.min_block);
        let most = self.style.status_bytes(EXTENTS_MAX);
        let last = request.contexts.len();
        for (n, place) in request.contexts.iter().enumerate() {
            let (id, done) = (self.context_ids[place], n + 1 == last);
            stream.queue_small(pool, most, |out| {
                self.style.status_chunk(out, request.tag(), id, extents, query, done)
            });
        }
        stream.reply_queued(Cost::of(request));
    }

    fn out_of_memory(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream) {
        let tag = request.tag();
        queue_error(self.style, tag, ErrorCode::Enomem, "memory is short", pool, stream);
        stream.reply_queued(Cost::of(&request));
    }

    /// A bio came back. When it was the last of its operation, the reply is queued.
    #[inline]
    pub(super) fn completed(&mut self, bio: Box<Bio>, pool: &mut Pool, stream: &mut Stream) {
        let index = op_of(&bio);
        if !bio.status.is_ok() {
            self.failed(index, &bio);
        }
        let buf = pool.give_bio(bio);
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        op.data = buf;
        op.pending -= 1;
        if op.request.command == Command::BlockStatus && op.status.is_ok() {
            return self.queries.push_back(index);
        }
        if op.pending == 0 && op.request.command == Command::WriteZeroes {
            return self.zeroed(index, pool, stream);
        }
        if op.pending == 0
            && let Some(op) = self.ops[index as usize].take()
        {
            self.free.push(index);
            self.reply(op, pool, stream);
        }
    }

    /// A bio of operation `index` failed: so does the operation, by the first that does.
    #[cold]
    fn failed(&mut self, index: u32, bio: &Bio) {
        if let Some(op) = self.ops[index as usize].as_mut().filter(|op| op.status.is_ok()) {
            op.status = bio.status;
            self.clients.note_failure(bio);
        }
    }

    /// A step of a request for zeroes has ended: the next, or the reply.
    fn zeroed(&mut self, index: u32, pool: &mut Pool, stream: &mut Stream) {
        let Some(mut op) = self.ops[index as usize].take() else { return };
        let unable = op.status == Status::NotSupported && op.zeroes.is_none();
        let may_be_slow = !op.request.flags.contains(CommandFlags::FAST_ZERO);
        let rest = op.zeroes.as_ref().is_some_and(|zeroes| !zeroes.is_over());
        if op.status.is_ok() && rest && self.stopping {
            // As much as was done is there; the client is told that it is not all.
            op.status = Status::Cancelled;
        }
        if op.status.is_ok()
            && rest
            && let (Some(zeroes), Some(buf)) = (&mut op.zeroes, op.data.take())
        {
            let mut bio = pool.bio();
            zeroes.fill(&mut bio, buf, write_flags(&op.request) & BioFlags::FUA);
            bio.user_data = self.user_data(index);
            op.pending = 1;
            self.ops[index as usize] = Some(op);
            return self.next.push(bio);
        }
        self.free.push(index);
        if unable && may_be_slow {
            // Its limits said otherwise when the client connected, or still do.
            self.zeroes_itself = false;
            let mut bios = BioList::new();
            self.zero_by_writes(op.request, pool, stream, &mut bios);
            return self.next.append(&mut bios);
        }
        self.reply(op, pool, stream);
    }

    #[inline]
    fn reply(&mut self, op: Op, pool: &mut Pool, stream: &mut Stream) {
        let (style, tag) = (self.style, op.request.tag());
        let cost = Cost::of(&op.request);
        if !op.status.is_ok() {
            self.reply_error(op, pool, stream);
        } else if op.request.command != Command::Read {
            op.data.into_iter().for_each(|buf| pool.give(buf));
            stream.queue_small(pool, style.success_bytes(), |out| style.success(out, tag));
        } else if let Some(buf) = op.data {
            queue_data(style, tag, op.request.length as usize, buf, stream);
        }
        stream.reply_queued(cost);
    }

    #[cold]
    fn reply_error(&mut self, op: Op, pool: &mut Pool, stream: &mut Stream) {
        op.data.into_iter().for_each(|buf| pool.give(buf));
        let error = match op.status {
            Status::Cancelled if self.stopping => ErrorCode::Eshutdown,
            status => ErrorCode::from_errno(status.errno()),
        };
        let message = op.status.to_string();
        queue_error(self.style, op.request.tag(), error, &message, pool, stream);
    }
}

/// The operation that a bio is of.
fn op_of(bio: &Bio) -> u32 {
    bio.user_data as u32 & ((1 << OP_BITS) - 1)
}

fn write_flags(request: &Request) -> BioFlags {
    let mut flags = BioFlags::empty();
    flags.set(BioFlags::FUA, request.flags.contains(CommandFlags::FUA));
    flags.set(BioFlags::NOUNMAP, request.flags.contains(CommandFlags::NO_HOLE));
    flags.set(BioFlags::FAST_ZERO, request.flags.contains(CommandFlags::FAST_ZERO));
    flags
}

/// Queue the reply of a read: header and data stand in one buffer.
#[inline]
fn queue_data(
    style: ReplyStyle,
    tag: ReplyTag,
    length: usize,
    mut buf: IoBuf,
    stream: &mut Stream,
) {
    let start = DATA_AT - style.read_header_bytes();
    style.read_header(&mut buf[start..DATA_AT], tag, length as u32);
    stream.queue_part(SendPart { buf, range: start..DATA_AT + length });
}

/// Queue an error reply.
fn queue_error(
    style: ReplyStyle,
    tag: ReplyTag,
    error: ErrorCode,
    message: &str,
    pool: &mut Pool,
    stream: &mut Stream,
) {
    let most = style.error_bytes(message);
    stream.queue_small(pool, most, |out| style.error(out, tag, error, message));
}

/// Queue the reply to a request that the parser refused.
pub(super) fn queue_refusal(
    style: ReplyStyle,
    refusal: &Refusal,
    pool: &mut Pool,
    stream: &mut Stream,
) {
    queue_error(style, refusal.tag, refusal.error, refusal.message, pool, stream);
    stream.reply_queued(Cost::REFUSAL);
}
