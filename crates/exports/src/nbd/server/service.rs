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
//! * Whatever changes blocks has them locked from its first bio to its reply, at the place of its number: shared
//!   if it covers whole blocks, otherwise alone ([`super::ragged`]). An operation that waits for that has its
//!   bio in `waits`. Zeroes have all of their blocks alone while edges are written, and what is inside shared, by
//!   pieces where it is written.
//! * One that covers parts of blocks asks for them when it is the first of `turns`: so one of a connection is before
//!   others at most, however slow its throttle group is. The rest of `turns` has nothing locked, and its bios in `waits`.

use super::ragged::{self, Next, Ragged};
use super::stream::Stream;
use super::window::{BARE_BYTES, Cost};
use crate::nbd::extents::{Extent as StatusExtent, StatusQuery};
use crate::nbd::proto::{Command, CommandFlags, ErrorCode};
use crate::nbd::reply::{ReplyStyle, ReplyTag};
use crate::nbd::request::{Refusal, Request};
use crate::server::{Blocks, Clients, DATA_AT, NBD, Pool, Tag, ZeroWrites};
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::range_lock::RangeUser;
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

/// Zeroing of more than this a device may do piece by piece, and end before its time.
const LONG_BYTES: u64 = 4 << 20;

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
    /// How far it has come with its edges, if it covers parts of blocks.
    ragged: Option<Box<Ragged>>,
    /// It has a range locked, or waits for that.
    locked: bool,
    /// Its bio, while it waits for its range, or for its turn to ask for it.
    waits: Option<Box<Bio>>,
}

/// How an operation has its blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Shared,
    Alone,
}

/// What one connection has under way with its device.
pub(super) struct Service {
    device: Arc<dyn Device>,
    clients: Clients,
    style: ReplyStyle,
    /// Bytes of a block of the device.
    pub(super) block: u64,
    /// What is written, at places of the operations' numbers.
    locks: RangeUser,
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
    /// Operations that wait for their range.
    waiting: usize,
    /// Operations on parts of blocks, in the order in which they came: the first is under way.
    turns: VecDeque<u32>,
    /// Places that hold what they waited for, while they are looked at.
    granted: Vec<usize>,
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
        locks: RangeUser,
        style: ReplyStyle,
        context_ids: Vec<u32>,
        connection: usize,
    ) -> Self {
        let connection = NBD.bio() | (connection as u64) << OP_BITS;
        let limits = device.info().limits;
        let zeroes_itself = limits.max_write_zeroes_bytes > 0;
        Service {
            device,
            clients,
            style,
            block: limits.logical_block_size.into(),
            locks,
            context_ids,
            ops: Vec::new(),
            free: Vec::new(),
            queries: VecDeque::new(),
            asked: None,
            next: BioList::new(),
            waiting: 0,
            turns: VecDeque::new(),
            granted: Vec::new(),
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
        if self.waiting > 0 {
            self.let_go(bios);
        }
    }

    /// Push the bios of operations that have waited for their range, and hold it now.
    #[cold]
    fn let_go(&mut self, bios: &mut BioList) {
        if !self.locks.has_news() {
            return;
        }
        self.locks.take_granted(&mut self.granted);
        for place in self.granted.drain(..) {
            let op = self.ops[place].as_mut();
            if let Some(bio) = op.and_then(|op| op.waits.take()) {
                self.waiting -= 1;
                bios.push(bio);
            }
        }
    }

    /// Operations wait for others that write the same blocks: the thread is woken when one may go on.
    #[inline]
    pub(super) fn waits_for_range(&self) -> bool {
        self.waiting > 0
    }

    /// One of them may.
    pub(super) fn has_range(&self) -> bool {
        self.locks.has_news()
    }

    /// Go on with nothing: the client has gone.
    pub(super) fn give_up(&mut self, pool: &mut Pool) {
        while let Some(index) = self.leave_turns(pool) {
            self.remove(index);
        }
        while let Some(bio) = self.next.pop() {
            let index = op_of(&bio);
            pool.give_bio(bio).into_iter().for_each(|buf| pool.give(buf));
            if let Some(op) = self.remove(index) {
                debug_assert_eq!(op.pending, 1, "whatever goes on has one bio");
            }
        }
        if self.waiting > 0 {
            self.give_up_waiting(pool);
        }
    }

    #[cold]
    fn give_up_waiting(&mut self, pool: &mut Pool) {
        for index in 0..self.ops.len() as u32 {
            let Some(op) = self.ops[index as usize].as_mut() else { continue };
            let Some(bio) = op.waits.take() else { continue };
            debug_assert!(op.locked, "nothing waits for its turn any more");
            pool.give_bio(bio).into_iter().for_each(|buf| pool.give(buf));
            self.waiting -= 1;
            self.remove(index);
        }
    }

    /// Take the last of the operations that wait for their turn away from there, and its bio.
    fn leave_turns(&mut self, pool: &mut Pool) -> Option<u32> {
        if self.turns.len() < 2 {
            return None;
        }
        let index = self.turns.pop_back()?;
        let bio = self.ops[index as usize].as_mut().and_then(|op| op.waits.take());
        let buf = bio.and_then(|bio| pool.give_bio(bio));
        buf.into_iter().for_each(|buf| pool.give(buf));
        Some(index)
    }

    /// From now on operations end with the bios that are under way.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    /// The server stops.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// The `user_data` of the bios that may zero for long.
    pub(super) fn long_zeroing(&self) -> impl Iterator<Item = u64> {
        let is_long = |op: &Op| {
            let zeroes = matches!(op.request.command, Command::Trim | Command::WriteZeroes);
            zeroes && op.request.length > LONG_BYTES && op.pending > 0
        };
        let ops = (0..).zip(&self.ops);
        let long = ops.filter(move |(_, op)| op.as_ref().is_some_and(is_long));
        long.map(|(index, _)| self.user_data(index))
    }

    /// Bytes of the buffer that `request` takes for its data.
    pub(super) fn buffer_bytes(&self, request: &Request) -> usize {
        let blocks = self.blocks(request);
        match request.command {
            Command::Read => blocks.all_bytes(),
            Command::Write if blocks.is_whole() => blocks.all_bytes(),
            Command::Write => ragged::buffer_bytes(&blocks, request.command),
            Command::Cache => blocks.all_bytes().min(CACHE_BYTES as usize),
            Command::WriteZeroes => {
                let inside = blocks.inside();
                let piece = (inside.end - inside.start).min(ZERO_BYTES) as usize;
                piece.max(ragged::buffer_bytes(&blocks, request.command))
            }
            Command::Flush | Command::Trim | Command::BlockStatus | Command::Disc => 0,
        }
    }

    /// Where the data of a write begins in its buffer: its first block begins at [`DATA_AT`].
    pub(super) fn payload_at(&self, request: &Request) -> usize {
        DATA_AT + self.blocks(request).skip()
    }

    /// Carry `request` out: push its bios to `bios`, or reply at once. `payload` holds a write's
    /// data from [`Service::payload_at`] on.
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
            Command::Flush => self.flush(request, pool, bios),
            Command::Trim => self.trim(request, pool, stream, bios),
            Command::WriteZeroes => self.write_zeroes(request, pool, stream, bios),
            Command::Cache => self.cache(request, pool, stream, bios),
            Command::BlockStatus => self.block_status(request, pool, bios),
            Command::Disc => unreachable!("ends the connection before it gets here"),
        }
    }

    fn add(&mut self, request: Request, pending: u32) -> u32 {
        let op = Op {
            request,
            pending,
            status: Status::Ok,
            data: None,
            zeroes: None,
            ragged: None,
            locked: false,
            waits: None,
        };
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

    /// The operation is over, and so is what it holds.
    #[inline]
    fn remove(&mut self, index: u32) -> Option<Op> {
        let op = self.ops[index as usize].take()?;
        self.free.push(index);
        if op.locked {
            self.unlock(index);
        }
        Some(op)
    }

    /// An operation needs what it has locked no more, nor its turn if it has that.
    #[inline]
    fn unlock(&mut self, index: u32) {
        self.locks.unlock(index as usize);
        if self.turns.front() == Some(&index) {
            self.next_turn();
        }
    }

    /// The first operation on parts of blocks is over: begin with the next, behind those who wait already.
    #[cold]
    fn next_turn(&mut self) {
        self.turns.pop_front();
        let Some(index) = self.turns.front().copied() else { return };
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        let (request, Some(bio)) = (op.request, op.waits.take()) else { return };
        let (all, mut bios) = (self.blocks(&request).all(), BioList::new());
        self.change(index, bio, (Hold::Alone, all), &mut bios);
        self.next.append(&mut bios);
    }

    /// Push the first bio of an operation that changes `range`, once that is locked.
    #[inline]
    fn change(
        &mut self,
        index: u32,
        mut bio: Box<Bio>,
        (hold, range): (Hold, Range<u64>),
        bios: &mut BioList,
    ) {
        bio.user_data = self.user_data(index);
        let place = index as usize;
        let goes = match hold {
            Hold::Shared => self.locks.lock_shared(place, &range),
            Hold::Alone => self.locks.lock_exclusive(place, &range),
        };
        let Some(op) = self.ops[place].as_mut() else { return };
        op.locked = true;
        if goes {
            return bios.push(bio);
        }
        op.waits = Some(bio);
        self.waiting += 1;
    }

    fn user_data(&self, op: u32) -> u64 {
        self.connection | u64::from(op)
    }

    #[inline]
    fn read(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream, bios: &mut BioList) {
        let blocks = self.blocks(&request);
        let Some(buf) = pool.take(blocks.all_bytes()) else {
            return self.out_of_memory(request, pool, stream);
        };
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::SYNC;
        bio.sector = Sector::from_bytes(blocks.all().start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + blocks.all_bytes()));
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
        let blocks = self.blocks(&request);
        if !blocks.is_whole() {
            return self.start_ragged(request, blocks, buf, pool, bios);
        }
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Write;
        // Nobody else has the buffer.
        bio.flags = write_flags(&request) | BioFlags::STABLE;
        bio.sector = Sector::from_bytes(request.offset);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + request.length as usize));
        self.change(op, bio, (Hold::Shared, blocks.range()), bios);
    }

    /// A write, or zeroes, that cover parts of blocks: begin with its edges, when it is its turn.
    #[cold]
    fn start_ragged(
        &mut self,
        request: Request,
        blocks: Blocks,
        buf: IoBuf,
        pool: &mut Pool,
        bios: &mut BioList,
    ) {
        let all = blocks.all();
        let (ragged, bio) = Ragged::begin(blocks, &request, buf, pool);
        let index = self.add(request, 1);
        let op = self.ops[index as usize].as_mut().expect("it was added");
        op.ragged = Some(Box::new(ragged));
        self.turns.push_back(index);
        if self.turns.len() > 1 {
            op.waits = Some(bio);
            return;
        }
        self.change(index, bio, (Hold::Alone, all), bios);
    }

    /// Everything that was written so far becomes durable.
    fn flush(&mut self, request: Request, pool: &mut Pool, bios: &mut BioList) {
        let op = self.add(request, 1);
        let mut bio = bare(&request, BioOp::Flush, 0..0, pool);
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// Advice, taken for whole blocks.
    fn trim(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream, bios: &mut BioList) {
        let (inside, op) = (self.blocks(&request).inside(), self.add(request, 1));
        if inside.is_empty() {
            return self.end(op, pool, stream);
        }
        let bio = bare(&request, BioOp::Discard, inside.clone(), pool);
        self.change(op, bio, (Hold::Shared, inside), bios);
    }

    fn write_zeroes(
        &mut self,
        request: Request,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        let fast = request.flags.contains(CommandFlags::FAST_ZERO);
        let blocks = self.blocks(&request);
        let is_whole = blocks.is_whole();
        if !is_whole && fast {
            // Edges are read and written, which is no faster than a write.
            let why = (ErrorCode::Enotsup, "zeroes for parts of blocks are not fast");
            return self.refuse(request, why, pool, stream);
        }
        // One that has to be fast fails at the device rather than being slow.
        let by_itself = is_whole && (self.zeroes_itself || fast);
        let buf = if by_itself { None } else { pool.take(self.buffer_bytes(&request)) };
        match buf {
            None if !by_itself => self.out_of_memory(request, pool, stream),
            Some(buf) if !is_whole => self.start_ragged(request, blocks, buf, pool, bios),
            buf => {
                let index = self.add(request, 1);
                let bio = self.zero_inside(index, buf, pool);
                let range = range_of(&bio);
                self.change(index, bio, (Hold::Shared, range), bios);
            }
        }
    }

    /// The first bio that zeroes the whole blocks of an operation: by writes if there is a buffer, which has room
    /// for a piece.
    fn zero_inside(&mut self, index: u32, buf: Option<IoBuf>, pool: &mut Pool) -> Box<Bio> {
        let op = self.ops[index as usize].as_mut().expect("it is not over");
        let request = &op.request;
        let inside =
            Blocks::of(request.offset..request.offset + request.length, self.block).inside();
        let Some(mut buf) = buf else { return bare(request, BioOp::WriteZeroes, inside, pool) };
        let mut zeroes = ZeroWrites::new(inside, ZERO_BYTES);
        buf[DATA_AT..DATA_AT + zeroes.room()].fill(0);
        let mut bio = pool.bio();
        zeroes.fill(&mut bio, buf, write_flags(request) & BioFlags::FUA);
        op.zeroes = Some(zeroes);
        bio
    }

    /// Cache: read the beginning of the range, so that what caches below has it.
    fn cache(
        &mut self,
        request: Request,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        let (blocks, length) = (self.blocks(&request), self.buffer_bytes(&request));
        let Some(buf) = pool.take(length) else {
            return self.out_of_memory(request, pool, stream);
        };
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::BACKGROUND;
        bio.sector = Sector::from_bytes(blocks.all().start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + length));
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// Let the query pass the limits of its group, as an I/O of no bytes.
    fn block_status(&mut self, request: Request, pool: &mut Pool, bios: &mut BioList) {
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        (bio.op, bio.flags) = (BioOp::Read, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector::from_bytes(self.blocks(&request).all().start), 0);
        bio.user_data = self.user_data(op);
        bios.push(bio);
    }

    /// The query to ask next, if none is being asked: [`Service::answered`] takes its answer.
    pub(super) fn next_query(&mut self) -> Option<ExtentQuery> {
        if self.asked.is_some() {
            return None;
        }
        let index = self.queries.pop_front()?;
        let blocks = self.blocks(&self.ops[index as usize].as_ref()?.request);
        let (offset, length) = (blocks.all().start, blocks.all_bytes() as u64);
        self.asked = Some(index);
        Some(ExtentQuery { device: self.device.clone(), offset, length, max: EXTENTS_MAX })
    }

    /// The device said what it knows; nothing when a thread to ask it was not to be had.
    pub(super) fn answered(&mut self, found: &[Extent], pool: &mut Pool, stream: &mut Stream) {
        let Some(index) = self.asked.take() else { return };
        let Some(op) = self.remove(index) else { return };
        let mut before = self.blocks(&op.request).skip() as u64;
        let convert = |e: &Extent| {
            let cut = before.min(e.length);
            before -= cut;
            StatusExtent { length: e.length - cut, data: e.allocated, zero: e.zero }
        };
        let extents: Vec<_> = found.iter().map(convert).collect();
        self.reply_status(&op.request, &extents, pool, stream);
    }

    /// Nobody waits for the answers of queries any more: those that were not asked end.
    pub(super) fn drop_queries(&mut self) {
        while let Some(index) = self.queries.pop_front() {
            self.remove(index);
        }
    }

    fn reply_status(
        &mut self,
        request: &Request,
        extents: &[StatusExtent],
        pool: &mut Pool,
        stream: &mut Stream,
    ) {
        let whole = self.blocks(request).is_whole();
        let query = StatusQuery::new(request, if whole { self.block as u32 } else { 1 });
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
        self.refuse(request, (ErrorCode::Enomem, "memory is short"), pool, stream);
    }

    fn refuse(
        &mut self,
        request: Request,
        (error, message): (ErrorCode, &str),
        pool: &mut Pool,
        stream: &mut Stream,
    ) {
        queue_error(self.style, request.tag(), error, message, pool, stream);
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
        if op.ragged.is_some() {
            return self.stepped(index, pool, stream);
        }
        if op.pending == 0 && op.request.command == Command::WriteZeroes {
            return self.zeroed(index, pool, stream);
        }
        if op.pending == 0 {
            self.end(index, pool, stream);
        }
    }

    /// All of an operation is done: reply.
    #[inline]
    fn end(&mut self, index: u32, pool: &mut Pool, stream: &mut Stream) {
        if let Some(op) = self.remove(index) {
            self.reply(op, pool, stream);
        }
    }

    /// Go on with an operation by `bio`.
    fn push_next(&mut self, index: u32, mut bio: Box<Bio>) {
        if let Some(op) = &mut self.ops[index as usize] {
            op.pending = 1;
        }
        bio.user_data = self.user_data(index);
        self.next.push(bio);
    }

    /// A step of a request for parts of blocks has ended: the next, or the reply.
    #[cold]
    fn stepped(&mut self, index: u32, pool: &mut Pool, stream: &mut Stream) {
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        if !op.status.is_ok() {
            // The reply gives the buffer back.
            return self.end(index, pool, stream);
        }
        let (Some(ragged), Some(buf)) = (&mut op.ragged, op.data.take()) else {
            unreachable!("each step of it has the buffer");
        };
        match ragged.next(&op.request, buf, pool) {
            Next::Bio(bio) => self.push_next(index, bio),
            Next::Inside(buf) => {
                op.ragged = None;
                self.zero_rest(index, buf, pool);
            }
            Next::Done(buf) => {
                op.data = Some(buf);
                self.end(index, pool, stream);
            }
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

    /// The edges of a request for zeroes are done: nobody else has to wait for what is inside, which may take long.
    #[cold]
    fn zero_rest(&mut self, index: u32, buf: IoBuf, pool: &mut Pool) {
        let buf = match self.zeroes_itself {
            true => {
                pool.give(buf);
                None
            }
            false => Some(buf),
        };
        let bio = self.zero_inside(index, buf, pool);
        self.zero_next(index, bio);
    }

    /// Go on with zeroes by `bio`, with nothing but its range locked.
    fn zero_next(&mut self, index: u32, bio: Box<Bio>) {
        self.unlock(index);
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        op.pending = 1;
        let (range, mut bios) = (range_of(&bio), BioList::new());
        self.change(index, bio, (Hold::Shared, range), &mut bios);
        self.next.append(&mut bios);
    }

    /// A step of a request for zeroes has ended: the next, or the reply.
    fn zeroed(&mut self, index: u32, pool: &mut Pool, stream: &mut Stream) {
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        let unable = op.status == Status::NotSupported && op.zeroes.is_none();
        let may_be_slow = !op.request.flags.contains(CommandFlags::FAST_ZERO);
        if unable && may_be_slow {
            return self.zero_by_writes_after_all(index, pool, stream);
        }
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
            return self.zero_next(index, bio);
        }
        self.end(index, pool, stream);
    }

    /// The device's limits said otherwise when the client connected, or still do.
    fn zero_by_writes_after_all(&mut self, index: u32, pool: &mut Pool, stream: &mut Stream) {
        self.zeroes_itself = false;
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        op.status = Status::Ok;
        let (held, request) = (op.data.take(), op.request);
        let Some(buf) = held.or_else(|| pool.take(self.buffer_bytes(&request))) else {
            self.remove(index);
            return self.out_of_memory(request, pool, stream);
        };
        let bio = self.zero_inside(index, Some(buf), pool);
        self.zero_next(index, bio);
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
            let data = DATA_AT + self.blocks(&op.request).skip();
            queue_data(style, tag, data..data + op.request.length as usize, buf, stream);
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

/// The bytes that a bio is for.
fn range_of(bio: &Bio) -> Range<u64> {
    let start = bio.sector.bytes();
    start..start + bio.bytes
}

/// A bio without data, with the request's flags.
fn bare(request: &Request, kind: BioOp, range: Range<u64>, pool: &mut Pool) -> Box<Bio> {
    let mut bio = pool.bio();
    bio.op = kind;
    bio.flags = write_flags(request);
    bio.sector = Sector::from_bytes(range.start);
    bio.bytes = range.end - range.start;
    bio
}

pub(super) fn write_flags(request: &Request) -> BioFlags {
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
    data: Range<usize>,
    mut buf: IoBuf,
    stream: &mut Stream,
) {
    let start = data.start - style.read_header_bytes();
    style.read_header(&mut buf[start..data.start], tag, data.len() as u32);
    stream.queue_part(SendPart { buf, range: start..data.end });
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
