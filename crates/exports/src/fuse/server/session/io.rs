//! Turns requests for data into bios, and completed bios into answers.

use super::Session;
use crate::fuse::proto::{self, falloc, open_flags};
use crate::fuse::server::channel::data_bytes_max;
use crate::fuse::server::op::{Caller, Op, OpKind, ReplyTo};
use crate::server::{DATA_AT, OpId, Work, errno};
use drystone_core::{Bio, BioFlags, IoBuf, Op as BioOp, Sector};
use std::ops::Range;

impl Session {
    #[inline]
    pub(super) fn start_read(
        &mut self,
        caller: &Caller,
        handle: u64,
        offset: u64,
        length: u32,
        work: &mut Work,
    ) {
        let end = offset.saturating_add(length.into());
        let target = match self.volumes.target(&self.mount, caller.node, end) {
            Ok(_) if length > data_bytes_max(caller.reply.entry) => {
                return self.channel.answer(caller.reply, errno::EINVAL);
            }
            Ok(target) => target,
            Err(error) => return self.channel.answer(caller.reply, error),
        };
        let range = offset.min(target.size)..end.min(target.size);
        if range.is_empty() {
            return self.channel.answer(caller.reply, 0);
        }
        let blocks = target.blocks(&range);
        let bytes = blocks.all_bytes();
        let Some(buf) = self.channel.take_room(caller.reply.entry, bytes, &mut self.buffers) else {
            return self.channel.answer(caller.reply, errno::ENOMEM);
        };
        let what = OpKind::Read { skip: blocks.skip(), length: blocks.bytes() as u32 };
        let op = Op::new(what, caller, target.volume, handle);
        let mut bio = self.bio(target.volume, op.group, BioOp::Read, BioFlags::SYNC);
        bio.sector = Sector::from_bytes(blocks.all().start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes));
        let id = self.add(op);
        bio.user_data = self.ops.user_data(id, 0);
        self.submit(target.volume, bio, work);
    }

    #[inline]
    pub(super) fn start_write(
        &mut self,
        caller: &Caller,
        handle: u64,
        (offset, length, flags): (u64, u32, u32),
        work: &mut Work,
    ) {
        let end = offset.saturating_add(length.into());
        // If a file is open with direct I/O, this flag alone shows O_DSYNC: no sync request
        // follows.
        let is_synced = flags & open_flags::DSYNC != 0;
        let durable = if is_synced { BioFlags::FUA } else { BioFlags::empty() };
        let target = match self.volumes.target(&self.mount, caller.node, end) {
            Ok(target) if target.read_only => {
                return self.channel.answer(caller.reply, errno::EROFS);
            }
            Ok(target) => target,
            Err(error) => return self.channel.answer(caller.reply, error),
        };
        if offset >= target.size && length > 0 {
            return self.channel.answer(caller.reply, errno::ENOSPC);
        }
        let range = offset..end.min(target.size);
        if length == 0 {
            return self.channel.answer_with(caller.reply, |out| proto::written(out, 0));
        }
        let blocks = target.blocks(&range);
        if !blocks.is_whole() {
            return self.start_unaligned_write(caller, handle, &target, (blocks, durable));
        }
        let bytes = (range.end - range.start) as u32;
        let Some(buf) =
            self.channel.take_data(caller.reply.entry, bytes as usize, &mut self.buffers)
        else {
            return self.channel.answer(caller.reply, errno::ENOMEM);
        };
        let op = Op::new(OpKind::Write { length: bytes }, caller, target.volume, handle);
        let flags = BioFlags::STABLE | durable;
        let mut bio = self.bio(target.volume, op.group, BioOp::Write, flags);
        bio.sector = Sector::from_bytes(range.start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes as usize));
        self.submit_write(op, bio, &range, work);
    }

    /// Submits the first bio of an operation that changes `range`, whole blocks, unless it has to
    /// wait for unaligned writes of others.
    #[inline]
    pub(super) fn submit_write(
        &mut self,
        op: Op,
        mut bio: Box<Bio>,
        range: &Range<u64>,
        work: &mut Work,
    ) {
        let volume = op.volume;
        let id = self.add(Op { locked: true, ..op });
        bio.user_data = self.ops.user_data(id, 0);
        match self.locks.lock(volume, id, range, bio) {
            Some(bio) => self.submit(volume, bio, work),
            None => self.watch_if_interrupted(id),
        }
    }

    pub(super) fn start_sync(&mut self, caller: &Caller, handle: u64, work: &mut Work) {
        let target = match self.volumes.target(&self.mount, caller.node, 0) {
            Ok(target) => target,
            Err(error) => return self.channel.answer(caller.reply, error),
        };
        if target.read_only {
            return self.channel.answer(caller.reply, 0);
        }
        let op = Op::new(OpKind::Bare, caller, target.volume, handle);
        let mut bio = self.bio(target.volume, op.group, BioOp::Flush, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector(0), 0);
        let id = self.add(op);
        bio.user_data = self.ops.user_data(id, 0);
        self.submit(target.volume, bio, work);
    }

    pub(super) fn start_allocate(
        &mut self,
        caller: &Caller,
        handle: u64,
        range: Range<u64>,
        mode: u32,
        work: &mut Work,
    ) {
        let target = match self.volumes.target(&self.mount, caller.node, range.end) {
            Ok(target) if target.read_only => {
                return self.channel.answer(caller.reply, errno::EROFS);
            }
            Ok(target) => target,
            Err(error) => return self.channel.answer(caller.reply, error),
        };
        let flags = match zeroing(mode) {
            _ if range.is_empty() => return self.channel.answer(caller.reply, errno::EINVAL),
            Err(error) => return self.channel.answer(caller.reply, error),
            Ok(_) if mode & falloc::PUNCH_HOLE != 0 && self.mount.refuses_holes() => {
                return self.channel.answer(caller.reply, errno::EOPNOTSUPP);
            }
            Ok(_) if grows(mode) && range.end > target.size => {
                return self.channel.answer(caller.reply, errno::ENOSPC);
            }
            Ok(None) => return self.channel.answer(caller.reply, 0),
            Ok(Some(flags)) => flags,
        };
        let range = range.start.min(target.size)..range.end.min(target.size);
        if range.is_empty() {
            return self.channel.answer(caller.reply, 0);
        }
        let blocks = target.blocks(&range);
        if !blocks.is_whole() {
            return self.start_unaligned_zeroes(caller, handle, &target, (blocks, flags));
        }
        let op = Op::new(OpKind::Bare, caller, target.volume, handle);
        let mut bio = self.bio(target.volume, op.group, BioOp::WriteZeroes, flags);
        (bio.sector, bio.bytes) = (Sector::from_bytes(range.start), range.end - range.start);
        self.submit_write(op, bio, &range, work);
    }

    /// Answers an operation whose bios are all back.
    #[inline]
    pub(super) fn finish(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(id) else { return };
        if op.locked {
            self.locks.unlock(op.volume, id);
        }
        self.answer_op(op);
    }

    #[inline]
    pub(super) fn answer_op(&mut self, op: Op) {
        let (to, errno) = (op.reply, op.errno());
        if errno != 0 {
            return self.refuse_op(op, errno);
        }
        if let (OpKind::Read { skip, length }, Some(_)) = (&op.kind, &op.buf) {
            let start = DATA_AT + *skip;
            let range = start..start + *length as usize;
            let Some(buf) = op.buf else { return };
            return self.channel.answer_data(to, buf, range, &mut self.buffers);
        }
        self.give(to, op.buf);
        match op.kind {
            OpKind::Write { length } => {
                self.channel.answer_with(to, |out| proto::written(out, length));
            }
            OpKind::Unaligned(write) => self.answer_unaligned(to, write),
            OpKind::Truncate(truncate) => self.answer_truncate(to, op.volume, &truncate),
            OpKind::Seek(seek) => self.answer_seek(to, &seek),
            OpKind::Read { .. } | OpKind::Bare => self.channel.answer(to, 0),
        }
    }

    #[cold]
    fn refuse_op(&mut self, op: Op, errno: i32) {
        self.give(op.reply, op.buf);
        if let OpKind::Unaligned(write) = op.kind {
            self.give_unaligned(op.reply, write);
        }
        self.channel.answer(op.reply, errno);
    }

    #[inline]
    fn give(&mut self, to: ReplyTo, buf: Option<IoBuf>) {
        if let Some(buf) = buf {
            self.channel.give(to.entry, buf, &mut self.buffers);
        }
    }
}

/// The flags of a bio that zeroes as `fallocate`'s mode says; `None` if it does not zero.
fn zeroing(mode: u32) -> Result<Option<BioFlags>, i32> {
    let punch = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
    match mode {
        0 | falloc::KEEP_SIZE => Ok(None),
        _ if mode == punch => Ok(Some(BioFlags::empty())),
        _ if mode & !falloc::KEEP_SIZE == falloc::ZERO_RANGE => Ok(Some(BioFlags::NOUNMAP)),
        _ => Err(errno::EOPNOTSUPP),
    }
}

/// True if the mode extends a file, which a volume does not support. A reservation of space behind
/// its end is useless, too.
fn grows(mode: u32) -> bool {
    mode == falloc::KEEP_SIZE || mode & falloc::KEEP_SIZE == 0
}
