//! Truncated files: `ftruncate`, and `open` with `O_TRUNC`.
//!
//! ```text
//!             size asked for       end of the device
//!   |.............[rrrrr|wwwwwwwwwwwwwwww]     r: the rest of a block, w: whole blocks
//! ```
//!
//! A device keeps its size. But a client that truncates a file, and perhaps extends it again,
//! relies on zeroes behind the new end: a copy program leaves out zeroes. So the zeroes are written
//! before the answer. One exception: an export may say that opening a file with `O_TRUNC` changes
//! nothing ([`crate::fuse::server::MountOptions::ignore_truncate`]).
//!
//! Invariant: the answer has the requested size, marked as not cacheable. Because it differs from
//! the old size, the kernel drops the pages behind it from its cache. The next query gets the
//! device's size.

use super::{Session, marked_bio};
use crate::fuse::proto;
use crate::fuse::server::buffers::Buffers;
use crate::fuse::server::channel::{KernelChannel, data_bytes_max};
use crate::fuse::server::mount::{Mount, handle_in};
use crate::fuse::server::op::{Caller, Op, OpKind, ReplyTo};
use crate::fuse::server::truncate::Truncate;
use crate::fuse::server::unaligned::UnalignedWrite;
use crate::fuse::server::volumes::Target;
use crate::server::{DATA_AT, Geometry, OpId, Work, errno};
use drystone_core::{Bio, BioFlags, Op as BioOp, Sector, Status};
use std::ops::Range;

impl Session {
    /// Starts a truncation to `size`.
    pub(super) fn start_truncate(
        &mut self,
        caller: &Caller,
        handle: Option<u64>,
        size: u64,
        work: &mut Work,
    ) {
        // The largest number makes it query the size.
        let target = match self.volumes.target(&self.mount, caller.node, u64::MAX) {
            Ok(target) if target.read_only => Err(errno::EROFS),
            Ok(target) if size > target.size => Err(errno::EFBIG),
            result => result,
        };
        let target = match target {
            Ok(target) => target,
            Err(error) => return self.channel.answer(caller.reply, error),
        };
        // No handle: `open`, whose `O_TRUNC` the kernel makes a request of its own, or `truncate`.
        let is_ignored = size == 0 && handle.is_none() && self.mount.options().ignore_truncate;
        if size == target.size || is_ignored {
            return self.attributes(caller);
        }
        let handle = self.handle_of_truncation(caller, handle, target.volume);
        let edge = size..size.next_multiple_of(target.block);
        if !edge.is_empty() {
            return self.start_truncate_edge(caller, handle, &target, target.blocks(&edge));
        }
        let kind = OpKind::Truncate(self.truncation(&target, size, size, caller.reply));
        self.truncate_blocks(Op::new(kind, caller, target.volume, handle), work);
    }

    /// A truncation to `size` that zeroes whole blocks from `start` on.
    fn truncation(&self, target: &Target, size: u64, start: u64, to: ReplyTo) -> Truncate {
        let limits = self.mount.shared(target.volume).volume.shape().limits;
        let by_writes = limits.max_write_zeroes_bytes == 0;
        let longest = by_writes.then(|| data_bytes_max(to.entry));
        Truncate::new(size, start..target.size, longest)
    }

    /// The handle whose throttle group the truncation belongs to. `O_TRUNC` and `truncate` come
    /// without one: they belong to the group that a handle of the asker would have.
    fn handle_of_truncation(&self, caller: &Caller, handle: Option<u64>, volume: usize) -> u64 {
        handle.unwrap_or_else(|| handle_in(self.mount.group_for(volume, caller.uid)))
    }

    /// Goes on with whole blocks: the rest of a block is zeroed.
    pub(super) fn truncate_after_edge(
        &mut self,
        mut op: Op,
        write: Box<UnalignedWrite>,
        work: &mut Work,
    ) {
        let Range { start, end } = write.blocks().range();
        self.give_unaligned(op.reply, write);
        let target = Target::of(op.volume, self.volumes.refresh(&self.mount, op.volume));
        op.kind = OpKind::Truncate(self.truncation(&target, start, end, op.reply));
        self.truncate_blocks(op, work);
    }

    /// Begins with whole blocks, like any write of whole blocks.
    fn truncate_blocks(&mut self, mut op: Op, work: &mut Work) {
        let OpKind::Truncate(truncate) = &op.kind else { return };
        let range = truncate.rest();
        op.stop_if_interrupted();
        if !op.status.is_ok() {
            return self.answer_op(op);
        }
        match next_zeroes(&mut op, &self.mount, &mut self.channel, &mut self.buffers) {
            Ok(Some(bio)) => {
                op.pending = 1;
                self.submit_write(op, bio, &range, work);
            }
            Ok(None) => self.answer_op(op),
            Err(status) => {
                op.status = status;
                self.answer_op(op);
            }
        }
    }

    /// Takes the next step of a truncation whose bio is back: the next bio, or the answer.
    pub(super) fn step_truncate(&mut self, id: OpId, work: &mut Work) {
        let is_open = self.is_open();
        let Some(op) = self.ops.op_mut(id) else { return };
        if matches!(&op.kind, OpKind::Truncate(truncate) if !truncate.is_complete()) {
            op.stop_if_interrupted();
        }
        let next = match op.status.is_ok() && is_open {
            true => next_zeroes(op, &self.mount, &mut self.channel, &mut self.buffers),
            false => Ok(None),
        };
        if let Err(status) = next {
            op.status = status;
        }
        let (bio, volume) = (next.ok().flatten(), op.volume);
        op.pending = u32::from(bio.is_some());
        match bio {
            Some(mut bio) => {
                bio.user_data = self.ops.user_data(id, 0);
                self.submit(volume, bio, work);
            }
            None => self.finish(id),
        }
    }

    pub(super) fn answer_truncate(&mut self, to: ReplyTo, volume: usize, truncate: &Truncate) {
        self.mount.note_truncation(volume);
        let geometry = Geometry { size: truncate.size(), ..self.volumes.geometry(volume) };
        let attributes = self.mount.file_attributes(self.mount.node_of(volume), &geometry);
        self.channel.answer_with(to, |out| proto::passing_attributes(out, &attributes));
    }
}

/// Makes the bio for the next blocks of a truncation, or for all of them; `None` when all blocks
/// have their bio.
fn next_zeroes(
    op: &mut Op,
    mount: &Mount,
    channel: &mut KernelChannel,
    buffers: &mut Buffers,
) -> Result<Option<Box<Bio>>, Status> {
    let OpKind::Truncate(truncate) = &mut op.kind else { return Ok(None) };
    if truncate.is_complete() {
        return Ok(None);
    }
    let (target, flags) = ((op.volume, op.group), BioFlags::empty());
    let Some(bytes) = truncate.buffer_bytes() else {
        let Range { start, end } = truncate.take_rest();
        let mut bio = marked_bio(mount, buffers, target, (BioOp::WriteZeroes, flags));
        (bio.sector, bio.bytes) = (Sector::from_bytes(start), end - start);
        return Ok(Some(bio));
    };
    let take_zeroes = || {
        let mut buf = channel.take_room(op.reply.entry, bytes, buffers)?;
        buf[DATA_AT..DATA_AT + bytes].fill(0);
        Some(buf)
    };
    let buf = op.buf.take().or_else(take_zeroes).ok_or(Status::Resource)?;
    let mut bio = marked_bio(mount, buffers, target, (BioOp::Write, flags));
    truncate.fill_next(&mut bio, buf);
    Ok(Some(bio))
}
