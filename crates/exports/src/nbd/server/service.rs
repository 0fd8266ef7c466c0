//! Requests of a connection become bios, completed bios become replies.
//!
//! Invariants:
//! * An operation ([`Op`]) lives from its request until its reply is queued; its bios name it by
//!   its number, so a number is not used again before all of them are back.
//! * Exactly one reply is queued for each operation.

use super::stream::Stream;
use crate::nbd::extents::{Extent as StatusExtent, ReadChunk, ReadChunks, StatusQuery};
use crate::nbd::proto::{Command, CommandFlags, ErrorCode};
use crate::nbd::reply::{ReplyStyle, ReplyTag};
use crate::nbd::request::{Refusal, Request};
use crate::server::{DATA_AT, NBD, Pool, Tag};
use drystone_core::ring::SendPart;
use drystone_core::{Bio, BioFlags, BioList, Device, IoBuf, Op as BioOp, Sector, Status};
use std::ops::Range;
use std::sync::Arc;

/// A read at least this long is looked up for holes first, where the reply can tell of them.
const SPARSE_READ_BYTES: u64 = 64 << 10;
/// Zeroes in runs shorter than this are sent as data: a chunk, a bio and a part of a send of
/// their own cost more than moving so few bytes.
const MIN_HOLE_BYTES: u64 = 64 << 10;
/// Most extents that one request asks the device for.
const EXTENTS_MAX: usize = 1024;
/// A cache request reads at most this much; what is beyond it is advice not taken.
const CACHE_BYTES: u64 = 1 << 20;

/// A request that is being carried out.
struct Op {
    request: Request,
    /// Bios that are not back.
    pending: u32,
    status: Status,
    /// Chunks of a read that has holes, with their data as it comes.
    chunks: Vec<(ReadChunk, Option<IoBuf>)>,
    /// Data of a read without holes.
    data: Option<IoBuf>,
}

/// What one connection has under way with its device.
pub(super) struct Service {
    device: Arc<dyn Device>,
    style: ReplyStyle,
    min_block: u32,
    /// The wire number of each selected context, by place.
    context_ids: Vec<u32>,
    ops: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Tag for `user_data`: the connection's number.
    connection: u64,
}

/// Bits of `user_data` for the chunk and the operation.
const CHUNK_BITS: u32 = 16;
const OP_BITS: u32 = 20;

/// The connection's number in a bio's `user_data`.
pub(super) fn connection_of(bio: &Bio) -> usize {
    (Tag::rest_of_bio(bio.user_data) >> (CHUNK_BITS + OP_BITS)) as usize
}

/// The `user_data` of all bios of connection `number`.
pub(super) fn user_data_of(number: usize) -> Range<u64> {
    let bits = CHUNK_BITS + OP_BITS;
    NBD.bio() | (number as u64) << bits..NBD.bio() | (number as u64 + 1) << bits
}

impl Service {
    pub(super) fn new(
        device: Arc<dyn Device>,
        style: ReplyStyle,
        min_block: u32,
        context_ids: Vec<u32>,
        connection: usize,
    ) -> Self {
        let connection = NBD.bio() | (connection as u64) << (CHUNK_BITS + OP_BITS);
        Service {
            device,
            style,
            min_block,
            context_ids,
            ops: Vec::new(),
            free: Vec::new(),
            connection,
        }
    }

    /// Operations that have bios under way.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len() - self.free.len()
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
            Command::WriteZeroes => self.bare(request, BioOp::WriteZeroes, pool, bios),
            Command::Cache => self.cache(request, pool, stream, bios),
            Command::BlockStatus => self.block_status(request, pool, stream),
            Command::Disc => unreachable!("ends the connection before it gets here"),
        }
    }

    fn add(&mut self, request: Request, pending: u32) -> u32 {
        let op = Op { request, pending, status: Status::Ok, chunks: Vec::new(), data: None };
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

    fn user_data(&self, op: u32, chunk: usize) -> u64 {
        self.connection | u64::from(op) << CHUNK_BITS | chunk as u64
    }

    #[inline]
    fn read(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream, bios: &mut BioList) {
        if request.length >= SPARSE_READ_BYTES
            && self.style != ReplyStyle::Simple
            && self.sparse_read(&request, pool, bios)
        {
            return;
        }
        let Some(buf) = pool.take(request.length as usize) else {
            return self.out_of_memory(request, pool, stream);
        };
        let op = self.add(request, 1);
        let mut bio = pool.bio();
        bio.op = BioOp::Read;
        bio.flags = BioFlags::SYNC;
        bio.sector = Sector::from_bytes(request.offset);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + request.length as usize));
        bio.user_data = self.user_data(op, 0);
        bios.push(bio);
    }

    /// Start a read that skips holes. False if there are none, or memory is short.
    fn sparse_read(&mut self, request: &Request, pool: &mut Pool, bios: &mut BioList) -> bool {
        let Some(extents) = self.extents(request) else { return false };
        if !extents.iter().any(|e| e.zero) {
            return false;
        }
        let mut chunks = Vec::new();
        for chunk in ReadChunks::new(request, self.style, &extents, MIN_HOLE_BYTES) {
            let buf = if chunk.hole { None } else { pool.take(chunk.length as usize) };
            if !chunk.hole && buf.is_none() || chunks.len() >= 1 << CHUNK_BITS {
                return false;
            }
            chunks.push((chunk, buf));
        }
        let op = self.add(*request, 1);
        let mut started = 0;
        for (index, (chunk, buf)) in chunks.iter_mut().enumerate() {
            let Some(buf) = buf.take() else { continue };
            let mut bio = pool.bio();
            bio.op = BioOp::Read;
            bio.flags = BioFlags::SYNC;
            bio.sector = Sector::from_bytes(chunk.offset);
            bio.set_buf(buf, Some(DATA_AT..DATA_AT + chunk.length as usize));
            bio.user_data = self.user_data(op, index);
            bios.push(bio);
            started += 1;
        }
        if started == 0 {
            // Nothing but a hole: a flush-free bio of no bytes ends at once and replies.
            let mut bio = pool.bio();
            bio.op = BioOp::Read;
            bio.flags = BioFlags::empty();
            (bio.sector, bio.bytes) = (Sector::from_bytes(request.offset), 0);
            bio.user_data = self.user_data(op, 0);
            bios.push(bio);
            started = 1;
        }
        if let Some(op) = &mut self.ops[op as usize] {
            (op.pending, op.chunks) = (started, chunks);
        }
        true
    }

    fn extents(&self, request: &Request) -> Option<Vec<StatusExtent>> {
        let found = self.device.extents(request.offset, request.length, EXTENTS_MAX).ok()?;
        let convert = |e: &drystone_core::Extent| StatusExtent {
            length: e.length,
            data: e.allocated,
            zero: e.zero,
        };
        Some(found.iter().map(convert).collect())
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
        bio.user_data = self.user_data(op, 0);
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
        bio.user_data = self.user_data(op, 0);
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
        bio.user_data = self.user_data(op, 0);
        bios.push(bio);
    }

    fn block_status(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream) {
        let extents = self.extents(&request).unwrap_or_default();
        let query = StatusQuery::new(&request, self.min_block);
        let most = self.style.status_bytes(EXTENTS_MAX);
        let last = request.contexts.len();
        for (n, place) in request.contexts.iter().enumerate() {
            let (id, done) = (self.context_ids[place], n + 1 == last);
            stream.queue_small(pool, most, |out| {
                self.style.status_chunk(out, request.tag(), id, &extents, query, done)
            });
        }
        stream.reply_queued(request.length.min(CACHE_BYTES));
    }

    fn out_of_memory(&mut self, request: Request, pool: &mut Pool, stream: &mut Stream) {
        let tag = request.tag();
        queue_error(self.style, tag, ErrorCode::Enomem, "memory is short", pool, stream);
        stream.reply_queued(request_bytes(&request));
    }

    /// A bio came back. When it was the last of its operation, the reply is queued.
    #[inline]
    pub(super) fn completed(&mut self, bio: Box<Bio>, pool: &mut Pool, stream: &mut Stream) {
        let index = (bio.user_data >> CHUNK_BITS) as u32 & ((1 << OP_BITS) - 1);
        let chunk = bio.user_data as usize & ((1 << CHUNK_BITS) - 1);
        let (status, buf) = (bio.status, pool.give_bio(bio));
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        if op.status.is_ok() {
            op.status = status;
        }
        match op.chunks.get_mut(chunk) {
            Some((c, data)) if !c.hole => *data = buf,
            _ => op.data = buf,
        }
        op.pending -= 1;
        if op.pending == 0
            && let Some(op) = self.ops[index as usize].take()
        {
            self.free.push(index);
            self.reply(op, pool, stream);
        }
    }

    #[inline]
    fn reply(&mut self, op: Op, pool: &mut Pool, stream: &mut Stream) {
        let (style, tag) = (self.style, op.request.tag());
        let bytes = request_bytes(&op.request);
        if !op.status.is_ok() {
            self.reply_error(op, pool, stream);
        } else if op.request.command != Command::Read {
            op.data.into_iter().for_each(|buf| pool.give(buf));
            stream.queue_small(pool, style.success_bytes(), |out| style.success(out, tag));
        } else if op.chunks.is_empty() {
            if let Some(buf) = op.data {
                queue_data(style, tag, op.request.length as usize, buf, stream);
            }
        } else {
            for (chunk, buf) in op.chunks {
                match buf {
                    Some(buf) => queue_chunk(style, tag, chunk, buf, stream),
                    None => stream.queue_small(pool, 64, |out| chunk.encode(style, out, tag)),
                }
            }
        }
        stream.reply_queued(bytes);
    }

    #[cold]
    fn reply_error(&mut self, op: Op, pool: &mut Pool, stream: &mut Stream) {
        let bufs = op.chunks.into_iter().filter_map(|(_, buf)| buf).chain(op.data);
        bufs.for_each(|buf| pool.give(buf));
        let error = ErrorCode::from_errno(op.status.errno());
        let message = op.status.to_string();
        queue_error(self.style, op.request.tag(), error, &message, pool, stream);
    }
}

/// Bytes that a request counts for in its connection's bound.
pub(super) fn request_bytes(request: &Request) -> u64 {
    match request.command {
        Command::Read | Command::Write => request.length,
        _ => request.length.min(CACHE_BYTES),
    }
}

fn write_flags(request: &Request) -> BioFlags {
    let mut flags = BioFlags::empty();
    flags.set(BioFlags::FUA, request.flags.contains(CommandFlags::FUA));
    flags.set(BioFlags::NOUNMAP, request.flags.contains(CommandFlags::NO_HOLE));
    flags.set(BioFlags::FAST_ZERO, request.flags.contains(CommandFlags::FAST_ZERO));
    flags
}

/// Queue the reply of a read without holes: header and data stand in one buffer.
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

fn queue_chunk(
    style: ReplyStyle,
    tag: ReplyTag,
    chunk: ReadChunk,
    mut buf: IoBuf,
    stream: &mut Stream,
) {
    let start = DATA_AT - style.read_header_bytes();
    chunk.encode(style, &mut buf[start..DATA_AT], tag);
    stream.queue_part(SendPart { buf, range: start..DATA_AT + chunk.length as usize });
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
    stream.reply_queued(0);
}
