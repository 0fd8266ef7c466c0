//! Writes and zeroing that do not cover whole blocks ([`UnalignedWrite`]), in the line of their
//! volume ([`crate::fuse::server::write_locks`]).

use super::Session;
use crate::fuse::proto;
use crate::fuse::server::op::{Caller, Op, OpKind, ReplyTo};
use crate::fuse::server::unaligned::{Step, UnalignedWrite};
use crate::fuse::server::volumes::Target;
use crate::fuse::server::write_locks::{Granted, Left};
use crate::server::{Blocks, DATA_AT, OpId, Work, errno};
use drystone_core::{Bio, BioFlags, Op as BioOp, Sector, Status};

impl Session {
    pub(super) fn start_unaligned_write(
        &mut self,
        caller: &Caller,
        handle: u64,
        target: &Target,
        (blocks, flags): (Blocks, BioFlags),
    ) {
        let place = (blocks.all_bytes(), blocks.skip(), blocks.bytes());
        let data = self.channel.take_data_at(caller.reply.entry, place, &mut self.buffers);
        let Some(data) = data else {
            return self.channel.answer(caller.reply, errno::ENOMEM);
        };
        let write = UnalignedWrite::write(blocks, flags, data);
        self.start_unaligned(caller, handle, target, write);
    }

    pub(super) fn start_unaligned_zeroes(
        &mut self,
        caller: &Caller,
        handle: u64,
        target: &Target,
        (blocks, flags): (Blocks, BioFlags),
    ) {
        self.start_unaligned(caller, handle, target, UnalignedWrite::zeroes(blocks, flags));
    }

    pub(super) fn start_truncate_edge(
        &mut self,
        caller: &Caller,
        handle: u64,
        target: &Target,
        blocks: Blocks,
    ) {
        self.start_unaligned(caller, handle, target, UnalignedWrite::truncate(blocks));
    }

    fn start_unaligned(
        &mut self,
        caller: &Caller,
        handle: u64,
        target: &Target,
        write: UnalignedWrite,
    ) {
        let (volume, blocks) = (target.volume, write.blocks().all());
        let kind = OpKind::Unaligned(self.buffers.unaligned(write));
        let id = self.add(Op { pending: 0, ..Op::new(kind, caller, volume, handle) });
        match self.locks.line_up(volume, id, blocks) {
            true => self.ops.make_ready(id),
            false => self.watch_if_interrupted(id),
        }
    }

    /// Goes on with writes that have waited for others, and takes the next step of all operations
    /// that are ready.
    pub(in crate::fuse::server) fn step(&mut self, work: &mut Work) {
        if self.locks.is_waiting() {
            (0..self.locks.volume_count()).for_each(|volume| self.go_on_granted(volume, work));
        }
        while let Some(id) = self.ops.take_ready() {
            match self.ops.op(id).map(|op| &op.kind) {
                Some(OpKind::Truncate(_)) => self.step_truncate(id, work),
                Some(OpKind::Seek(_)) => self.step_seek(id, work),
                _ => self.step_unaligned(id, work),
            }
        }
    }

    /// Goes on with the writes of a volume that have their range now.
    fn go_on_granted(&mut self, volume: usize, work: &mut Work) {
        self.locks.collect_granted(volume);
        while let Some(granted) = self.locks.take_granted(volume) {
            match granted {
                Granted::Whole(bio) => self.submit(volume, bio, work),
                Granted::Unaligned(id) => self.ops.make_ready(id),
            }
        }
    }

    fn step_unaligned(&mut self, id: OpId, work: &mut Work) {
        let is_over = !self.is_open();
        let Some(op) = self.ops.op_mut(id) else { return };
        if !matches!(&op.kind, OpKind::Unaligned(write) if write.is_writing()) {
            op.stop_if_interrupted();
        }
        let OpKind::Unaligned(write) = &mut op.kind else { return };
        match write.advance(!op.status.is_ok() || is_over) {
            Step::ReadEdges => self.read_edges(id, work),
            Step::WriteBack => self.write_back(id, work),
            Step::End => self.end_unaligned(id, work),
        }
    }

    fn unaligned(&mut self, id: OpId) -> Option<&mut UnalignedWrite> {
        match &mut self.ops.op_mut(id)?.kind {
            OpKind::Unaligned(write) => Some(write),
            _ => None,
        }
    }

    /// Makes a bio of the operation, over blocks from `start` on, and submits it when `fill` is
    /// done.
    fn submit_part(
        &mut self,
        (id, part): (OpId, usize),
        (op, start): (BioOp, u64),
        fill: impl FnOnce(&mut Bio),
        work: &mut Work,
    ) {
        let Some(of) = self.ops.op_mut(id) else { return };
        of.pending += 1;
        let (volume, group) = (of.volume, of.group);
        let mut bio = self.bio(volume, group, op, BioFlags::empty());
        bio.sector = Sector::from_bytes(start);
        bio.user_data = self.ops.user_data(id, part);
        fill(&mut bio);
        self.submit(volume, bio, work);
    }

    fn read_edges(&mut self, id: OpId, work: &mut Work) {
        let Some(write) = self.unaligned(id) else { return };
        let (edges, bytes) = (write.edge_reads(), write.blocks().block());
        for (part, block) in edges.into_iter().enumerate() {
            let Some(start) = block else { continue };
            let buf = self.buffers.take_edge();
            let buf = buf.expect("there are two for the one under way of each volume");
            let fill = |bio: &mut Bio| bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes));
            self.submit_part((id, part), (BioOp::Read, start), fill, work);
        }
    }

    fn write_back(&mut self, id: OpId, work: &mut Work) {
        while let Some(back) = self.unaligned(id).and_then(UnalignedWrite::next_write) {
            let bytes = back.range.end - back.range.start;
            let op = if back.data.is_some() { BioOp::Write } else { BioOp::WriteZeroes };
            let fill = |bio: &mut Bio| {
                bio.flags = back.flags;
                match back.data {
                    Some(buf) => bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes as usize)),
                    None => bio.bytes = bytes,
                }
            };
            self.submit_part((id, back.part), (op, back.range.start), fill, work);
        }
    }

    /// Ends an unaligned write, so that others may write its blocks.
    fn end_unaligned(&mut self, id: OpId, work: &mut Work) {
        let Some(op) = self.ops.remove(id) else { return };
        let next = self.locks.end_first(op.volume, self.is_open());
        next.into_iter().for_each(|id| self.ops.make_ready(id));
        self.answer_or_go_on(op, work);
    }

    /// Answers an unaligned write; the edge of a truncation goes on with whole blocks.
    fn answer_or_go_on(&mut self, mut op: Op, work: &mut Work) {
        let goes_on = op.status.is_ok() && self.is_open();
        match op.kind {
            OpKind::Unaligned(write) if goes_on && write.is_truncation() => {
                op.kind = OpKind::Bare;
                self.truncate_after_edge(op, write, work);
            }
            kind => self.answer_op(Op { kind, ..op }),
        }
    }

    pub(super) fn answer_unaligned(&mut self, to: ReplyTo, write: Box<UnalignedWrite>) {
        let (bytes, is_write) = (write.blocks().bytes() as u32, write.is_write());
        self.give_unaligned(to, write);
        match is_write {
            true => self.channel.answer_with(to, |out| proto::written(out, bytes)),
            false => self.channel.answer(to, 0),
        }
    }

    /// Gives an unaligned write and its buffers back.
    pub(super) fn give_unaligned(&mut self, to: ReplyTo, mut write: Box<UnalignedWrite>) {
        write.take_bufs().for_each(|buf| self.channel.give(to.entry, buf, &mut self.buffers));
        self.buffers.give_unaligned(write);
    }

    /// Ends an operation that waits for its range: it leaves the line, and gets the answer of an
    /// interrupted one. False if it does not wait.
    pub(super) fn leave_line(&mut self, id: OpId) -> bool {
        let may_begin = self.is_open();
        let Some(op) = self.ops.op_mut(id) else { return false };
        let Some(Left { bio, next }) = self.locks.leave(op.volume, id, may_begin) else {
            return false;
        };
        (op.interrupted, op.status) = (true, Status::Cancelled);
        let buf = bio.and_then(|bio| self.buffers.give_bio(bio));
        op.buf = buf.or(op.buf.take());
        next.into_iter().for_each(|id| self.ops.make_ready(id));
        self.finish(id);
        true
    }

    /// Ends all writes that wait for their range: the session is over, so they never begin.
    pub(super) fn drop_blocked(&mut self) {
        while let Some((_, id)) = self.locks.last_blocked() {
            let has_left = self.leave_line(id);
            debug_assert!(has_left);
            if !has_left {
                return;
            }
        }
    }
}
