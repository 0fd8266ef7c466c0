//! Turns a connection's requests into bios, and completed bios into replies.
//!
//! Its state has three parts: the table of operations ([`OpTable`]), the locks of their writes
//! ([`WriteLocks`]) and the queries for block status ([`Queries`]).
//!
//! Invariants:
//! * Exactly one reply is queued for each operation.
//! * A bio that continues an operation waits in `next` until [`Service::go_on`], which is called
//!   before any other call for the connection.
//! * A request for zeroes has all of its blocks locked exclusively while its edges are written. The
//!   inner blocks are then locked shared, piece by piece as they are written.

mod reply;
mod status;
mod unaligned;
mod zeroes;

pub(super) use reply::queue_refusal;

use super::bios::{bare, give_back, write_flags};
use super::layout::DataLayout;
use super::op::Op;
use super::queries::Queries;
use super::stream::Stream;
use super::write_locks::{Hold, WriteLocks};
use crate::nbd::proto::Command;
use crate::nbd::reply::ReplyStyle;
use crate::nbd::request::Request;
use crate::server::{Blocks, Clients, DATA_AT, NBD, OpId, OpTable, Pool, SessionId};
use drystone_core::range_lock::RangeUser;
use drystone_core::{Bio, BioFlags, BioList, Device, IoBuf, Op as BioOp, Pipe, Sector};
use std::ops::Range;
use std::sync::Arc;

/// The most bytes that a device zeroes at once. It may zero a longer range piece by piece, and end
/// early.
const LONG_BYTES: u64 = 4 << 20;

/// The requests of one connection. All calls are made by its worker's thread.
pub(super) struct Service {
    device: Arc<dyn Device>,
    clients: Clients,
    style: ReplyStyle,
    layout: DataLayout,
    /// The wire number of each selected context, by index.
    context_ids: Vec<u32>,
    ops: OpTable<Op>,
    locks: WriteLocks,
    queries: Queries,
    /// Bios that continue operations whose earlier bios have ended.
    next: BioList,
    /// True if long reads may end in pipes.
    uses_pipes: bool,
    /// True if the device zeroes by itself.
    zeroes_itself: bool,
    /// True if the server stops: an operation then ends with its bios in flight.
    stopping: bool,
}

impl Service {
    /// The service of connection `id` on `device`.
    pub(super) fn new(
        (device, clients): (Arc<dyn Device>, Clients),
        locks: RangeUser,
        style: ReplyStyle,
        context_ids: Vec<u32>,
        id: SessionId,
    ) -> Self {
        let limits = device.info().limits;
        Service {
            layout: DataLayout::new(limits.logical_block_size),
            device,
            clients,
            style,
            context_ids,
            ops: OpTable::new(NBD, id, 0),
            locks: WriteLocks::new(locks),
            queries: Queries::default(),
            next: BioList::new(),
            uses_pipes: false,
            zeroes_itself: limits.max_write_zeroes_bytes > 0,
            stopping: false,
        }
    }

    /// The form of the client's replies.
    pub(super) fn style(&self) -> ReplyStyle {
        self.style
    }

    /// The place of data in the buffers of requests.
    pub(super) fn layout(&self) -> DataLayout {
        self.layout
    }

    /// The number of operations under way.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// The blocks of a request.
    #[inline]
    fn blocks(&self, request: &Request) -> Blocks {
        self.layout.blocks(request)
    }

    /// Pushes the bios of operations that go on to `bios`.
    #[inline]
    pub(super) fn go_on(&mut self, bios: &mut BioList) {
        bios.append(&mut self.next);
        if self.locks.is_blocked() {
            let ops = &mut self.ops;
            self.locks.take_granted(|id| {
                let bio = ops.op_mut(id).and_then(|op| op.blocked.take());
                bio.into_iter().for_each(|bio| bios.push(bio));
            });
        }
    }

    /// True while operations wait for other writes of the same blocks. The thread is woken when one
    /// may go on.
    #[inline]
    pub(super) fn waits_for_range(&self) -> bool {
        self.locks.is_blocked()
    }

    /// True if one of these operations may go on.
    pub(super) fn has_range(&self) -> bool {
        self.locks.has_news()
    }

    /// Ends the operations that have no bio in flight, because the client has gone.
    pub(super) fn give_up(&mut self, pool: &mut Pool) {
        while let Some(id) = self.locks.leave_line() {
            self.take_blocked(id, pool);
            self.remove(id);
        }
        while let Some(bio) = self.next.pop() {
            let id = OpId::of(&bio);
            give_back(bio, pool);
            if let Some(op) = self.remove(id) {
                debug_assert_eq!(op.pending, 1, "an operation that goes on has one bio");
            }
        }
        if self.locks.is_blocked() {
            self.give_up_blocked(pool);
        }
    }

    #[cold]
    fn give_up_blocked(&mut self, pool: &mut Pool) {
        let blocked = self.ops.iter().filter(|(_, op)| op.blocked.is_some());
        let blocked: Vec<OpId> = blocked.map(|(id, _)| id).collect();
        for id in blocked {
            debug_assert!(self.ops.op(id).is_some_and(|op| op.locked), "none waits for its turn");
            self.take_blocked(id, pool);
            self.locks.give_up_blocked();
            self.remove(id);
        }
    }

    fn take_blocked(&mut self, id: OpId, pool: &mut Pool) {
        let bio = self.ops.op_mut(id).and_then(|op| op.blocked.take());
        bio.into_iter().for_each(|bio| give_back(bio, pool));
    }

    /// Makes operations end with their bios in flight.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    /// True once the server stops.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// The `user_data` of the bios that may zero for long.
    pub(super) fn long_zeroing(&self) -> impl Iterator<Item = u64> {
        let is_long = |op: &Op| op.is_zeroing() && op.request.length > LONG_BYTES && op.pending > 0;
        let long = self.ops.iter().filter(move |(_, op)| is_long(op));
        long.map(|(id, _)| self.ops.user_data(id, 0))
    }

    /// Starts `request`: pushes its bios to `bios`, or replies at once. `payload` holds a write's
    /// data from [`DataLayout::payload_at`] on.
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

    /// Takes an ended operation out, and frees its range.
    #[inline]
    fn remove(&mut self, id: OpId) -> Option<Op> {
        let op = self.ops.remove(id)?;
        if op.locked {
            self.unlock(id);
        }
        Some(op)
    }

    /// Frees the range of an operation, and its turn in the line if it has one.
    #[inline]
    fn unlock(&mut self, id: OpId) {
        if let Some(next) = self.locks.unlock(id) {
            self.begin_turn(next);
        }
    }

    /// Pushes the first bio of an operation that changes `range`, once that is locked.
    #[inline]
    fn change(
        &mut self,
        id: OpId,
        mut bio: Box<Bio>,
        (hold, range): (Hold, Range<u64>),
        bios: &mut BioList,
    ) {
        bio.user_data = self.ops.user_data(id, 0);
        let Some(op) = self.ops.op_mut(id) else { return };
        op.locked = true;
        match self.locks.lock(id, hold, &range) {
            true => bios.push(bio),
            false => op.blocked = Some(bio),
        }
    }

    #[inline]
    fn read(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream, bios: &mut BioList) {
        let blocks = self.blocks(&request);
        let Some(buf) = pool.take(blocks.all_bytes()) else {
            return self.out_of_memory(request, pool, stream);
        };
        let id = self.ops.add(Op::new(request));
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::SYNC;
        bio.sector = Sector::from_bytes(blocks.all().start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + blocks.all_bytes()));
        bio.user_data = self.ops.user_data(id, 0);
        if self.uses_pipes && request.length >= Pipe::BYTES_MIN && self.may_use_pipe(&blocks) {
            pool.take_pipe().into_iter().for_each(|pipe| bio.set_pipe(pipe));
        }
        bios.push(bio);
    }

    /// True if a long read may end in a pipe.
    #[cold]
    fn may_use_pipe(&self, blocks: &Blocks) -> bool {
        let (start, bytes) = (blocks.all().start, blocks.all_bytes() as u64);
        blocks.is_whole() && Pipe::takes(start, bytes) && self.device.fills_pipes()
    }

    /// Lets long reads end in pipes, from which only replies in the clear can be sent.
    pub(super) fn use_pipes(&mut self) {
        self.uses_pipes = true;
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
            return self.start_unaligned(request, blocks, buf, pool, bios);
        }
        let id = self.ops.add(Op::new(request));
        let mut bio = pool.bio();
        bio.op = BioOp::Write;
        // Only the operation has the buffer, so its contents are stable.
        bio.flags = write_flags(&request) | BioFlags::STABLE;
        bio.sector = Sector::from_bytes(request.offset);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + request.length as usize));
        self.change(id, bio, (Hold::Shared, blocks.range()), bios);
    }

    /// Starts a flush, which makes all earlier writes durable.
    fn flush(&mut self, request: Request, pool: &mut Pool, bios: &mut BioList) {
        let id = self.ops.add(Op::new(request));
        let mut bio = bare(&request, BioOp::Flush, 0..0, pool);
        bio.user_data = self.ops.user_data(id, 0);
        bios.push(bio);
    }

    /// Discards the whole blocks of the range: trim is advice.
    fn trim(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream, bios: &mut BioList) {
        let (inside, id) = (self.blocks(&request).inside(), self.ops.add(Op::new(request)));
        if inside.is_empty() {
            return self.end(id, pool, stream);
        }
        let bio = bare(&request, BioOp::Discard, inside.clone(), pool);
        self.change(id, bio, (Hold::Shared, inside), bios);
    }

    /// Reads the first part of the range into a cache below.
    fn cache(
        &mut self,
        request: Request,
        pool: &mut Pool,
        stream: &mut Stream,
        bios: &mut BioList,
    ) {
        let (blocks, length) = (self.blocks(&request), self.layout.buffer_bytes(&request));
        let Some(buf) = pool.take(length) else {
            return self.out_of_memory(request, pool, stream);
        };
        let id = self.ops.add(Op::new(request));
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::BACKGROUND;
        bio.sector = Sector::from_bytes(blocks.all().start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + length));
        bio.user_data = self.ops.user_data(id, 0);
        bios.push(bio);
    }

    /// Takes a bio back. The last one of its operation queues the reply, or the next bio.
    #[inline]
    pub(super) fn completed(&mut self, mut bio: Box<Bio>, pool: &mut Pool, stream: &mut Stream) {
        let id = OpId::of(&bio);
        if !bio.status.is_ok() {
            self.note_failure(id, &bio);
        }
        let pipe = bio.take_pipe().and_then(|pipe| pool.data_of(pipe, &bio));
        let buf = pool.give_bio(bio);
        let Some(op) = self.ops.op_mut(id) else {
            debug_assert!(false, "an operation lives until its bios are back");
            return;
        };
        (op.data, op.pipe) = (buf, pipe);
        op.pending -= 1;
        if op.request.command == Command::BlockStatus && op.status.is_ok() {
            return self.queries.push(id);
        }
        if op.unaligned.is_some() {
            return self.step_unaligned(id, pool, stream);
        }
        if op.pending == 0 && op.request.command == Command::WriteZeroes {
            return self.step_zeroes(id, pool, stream);
        }
        if op.pending == 0 {
            self.end(id, pool, stream);
        }
    }

    /// Replies to an operation that is done.
    #[inline]
    fn end(&mut self, id: OpId, pool: &mut Pool, stream: &mut Stream) {
        if let Some(op) = self.remove(id) {
            self.reply(op, pool, stream);
        }
    }

    /// Goes on with an operation by `bio`.
    fn push_next(&mut self, id: OpId, mut bio: Box<Bio>) {
        if let Some(op) = self.ops.op_mut(id) {
            op.pending = 1;
        }
        bio.user_data = self.ops.user_data(id, 0);
        self.next.push(bio);
    }

    /// Fails an operation with the first of its bios that does.
    #[cold]
    fn note_failure(&mut self, id: OpId, bio: &Bio) {
        if let Some(op) = self.ops.op_mut(id).filter(|op| op.status.is_ok()) {
            op.status = bio.status;
            self.clients.note_failure(bio);
        }
    }
}
