//! Zeroes: by the device itself, or by writes of one buffer of zeroes.
//!
//! Invariant: a piece of zeroes locks only its own range, shared.

use super::Service;
use crate::nbd::proto::{CommandFlags, ErrorCode};
use crate::nbd::request::Request;
use crate::nbd::server::bios::{bare, range_of, write_flags};
use crate::nbd::server::layout::ZERO_BYTES;
use crate::nbd::server::op::Op;
use crate::nbd::server::stream::Stream;
use crate::nbd::server::write_locks::Hold;
use crate::server::{DATA_AT, OpId, Pool, ZeroWrites};
use drystone_core::{Bio, BioFlags, BioList, IoBuf, Op as BioOp, Status};

impl Service {
    pub(super) fn write_zeroes(
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
        // A request with the fast flag must fail at the device rather than be slow.
        let by_itself = is_whole && (self.zeroes_itself || fast);
        let buf = if by_itself { None } else { pool.take(self.layout.buffer_bytes(&request)) };
        match buf {
            None if !by_itself => self.out_of_memory(request, pool, stream),
            Some(buf) if !is_whole => self.start_unaligned(request, blocks, buf, pool, bios),
            buf => {
                let id = self.ops.add(Op::new(request));
                let bio = self.zero_inside(id, buf, pool);
                let range = range_of(&bio);
                self.change(id, bio, (Hold::Shared, range), bios);
            }
        }
    }

    /// Makes the first bio that zeroes the whole blocks of an operation: by writes if there is a
    /// buffer, which has room for a piece.
    fn zero_inside(&mut self, id: OpId, buf: Option<IoBuf>, pool: &mut Pool) -> Box<Bio> {
        let op = self.ops.op_mut(id).expect("it is not over");
        let request = &op.request;
        let inside = self.layout.blocks(request).inside();
        let Some(mut buf) = buf else { return bare(request, BioOp::WriteZeroes, inside, pool) };
        let mut zeroes = ZeroWrites::new(inside, ZERO_BYTES);
        buf[DATA_AT..DATA_AT + zeroes.room()].fill(0);
        let mut bio = pool.bio();
        zeroes.fill(&mut bio, buf, write_flags(request) & BioFlags::FUA);
        op.zeroes = Some(zeroes);
        bio
    }

    /// Continues with the inner blocks after the edges. Other writers do not wait for the inner
    /// blocks, which may take long.
    #[cold]
    pub(super) fn zero_rest(&mut self, id: OpId, buf: IoBuf, pool: &mut Pool) {
        let buf = match self.zeroes_itself {
            true => {
                pool.give(buf);
                None
            }
            false => Some(buf),
        };
        let bio = self.zero_inside(id, buf, pool);
        self.zero_next(id, bio);
    }

    /// Continues with zeroes by `bio`, with only its range locked.
    fn zero_next(&mut self, id: OpId, bio: Box<Bio>) {
        self.unlock(id);
        let Some(op) = self.ops.op_mut(id) else { return };
        op.pending = 1;
        let (range, mut bios) = (range_of(&bio), BioList::new());
        self.change(id, bio, (Hold::Shared, range), &mut bios);
        self.next.append(&mut bios);
    }

    /// Takes the next step of a request for zeroes, or replies.
    pub(super) fn step_zeroes(&mut self, id: OpId, pool: &mut Pool, stream: &mut Stream) {
        let Some(op) = self.ops.op_mut(id) else { return };
        let unable = op.status == Status::NotSupported && op.zeroes.is_none();
        let may_be_slow = !op.request.flags.contains(CommandFlags::FAST_ZERO);
        if unable && may_be_slow {
            return self.zero_by_writes_after_all(id, pool, stream);
        }
        let rest = op.zeroes.as_ref().is_some_and(|zeroes| !zeroes.is_over());
        if op.status.is_ok() && rest && self.stopping {
            // The pieces so far are written; the error tells the client that the rest is not.
            op.status = Status::Cancelled;
        }
        if op.status.is_ok()
            && rest
            && let (Some(zeroes), Some(buf)) = (&mut op.zeroes, op.data.take())
        {
            let mut bio = pool.bio();
            zeroes.fill(&mut bio, buf, write_flags(&op.request) & BioFlags::FUA);
            return self.zero_next(id, bio);
        }
        self.end(id, pool, stream);
    }

    /// Zeroes by writes, although the device's limits offered write-zeroes when the client
    /// connected, or still do.
    fn zero_by_writes_after_all(&mut self, id: OpId, pool: &mut Pool, stream: &mut Stream) {
        self.zeroes_itself = false;
        let Some(op) = self.ops.op_mut(id) else { return };
        op.status = Status::Ok;
        let (held, request) = (op.data.take(), op.request);
        let Some(buf) = held.or_else(|| pool.take(self.layout.buffer_bytes(&request))) else {
            self.remove(id);
            return self.out_of_memory(request, pool, stream);
        };
        let bio = self.zero_inside(id, Some(buf), pool);
        self.zero_next(id, bio);
    }
}
