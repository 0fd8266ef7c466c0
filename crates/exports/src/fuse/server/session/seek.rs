//! `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
//!
//! ```text
//!   request -> bio of no bytes -> query (a helper thread asks the device) -> answer
//!                   ^                              |
//!                   +------- not found yet --------+
//! ```
//!
//! The bio makes the throttle group count each query as an I/O. During a query its operation counts
//! as pending, so its session stays.

use super::Session;
use crate::fuse::proto::{self, seek};
use crate::fuse::server::event::Event;
use crate::fuse::server::op::{Caller, Op, OpKind, ReplyTo};
use crate::fuse::server::seek::Seek;
use crate::server::{OpId, Work, errno};
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::{BioFlags, Op as BioOp, Sector};

/// The most extents of a query: the device joins adjacent extents of one kind, so few suffice.
const EXTENTS_MAX: usize = 16;

impl Session {
    /// Starts a search for the next byte from `offset` on that is in a hole, or is not.
    pub(super) fn start_seek(
        &mut self,
        caller: &Caller,
        handle: u64,
        offset: u64,
        whence: u32,
        work: &mut Work,
    ) {
        if whence != seek::DATA && whence != seek::HOLE {
            return self.channel.answer(caller.reply, errno::EINVAL);
        }
        // The largest number makes it query the size.
        let target = match self.volumes.target(&self.mount, caller.node, u64::MAX) {
            Ok(target) if offset >= target.size => Err(errno::ENXIO),
            result => result,
        };
        let target = match target {
            Ok(target) => target,
            Err(error) => return self.channel.answer(caller.reply, error),
        };
        let seek = Seek::new(offset, whence == seek::HOLE, target.size);
        let id = self.add(Op::new(OpKind::Seek(seek), caller, target.volume, handle));
        self.count_query(id, work);
    }

    /// Lets a query pass the limits of its group, as an I/O of no bytes.
    fn count_query(&mut self, id: OpId, work: &mut Work) {
        let Some(op) = self.ops.op(id) else { return };
        let (volume, group) = (op.volume, op.group);
        let mut bio = self.bio(volume, group, BioOp::Read, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector(0), 0);
        bio.user_data = self.ops.user_data(id, 0);
        self.submit(volume, bio, work);
    }

    /// Starts a query that has passed the limits.
    pub(super) fn step_seek(&mut self, id: OpId, work: &mut Work) {
        let is_open = self.is_open();
        let Some(op) = self.ops.op_mut(id) else { return };
        let OpKind::Seek(seek) = &op.kind else { return };
        if !op.status.is_ok() || !is_open {
            return self.finish(id);
        }
        op.pending = 1;
        let range = seek.range();
        let device = self.mount.shared(op.volume).volume.device.clone();
        let (offset, length) = (range.start, range.end - range.start);
        let query = ExtentQuery { device, offset, length, max: EXTENTS_MAX };
        work.cx.start_query(query, Event::Extents(id).value(self.ops.session()));
    }

    /// Takes the answer of the device to a query.
    pub(in crate::fuse::server) fn end_query(
        &mut self,
        id: OpId,
        extents: &[Extent],
        work: &mut Work,
    ) {
        let is_open = self.is_open();
        let Some(op) = self.ops.op_mut(id) else { return };
        let OpKind::Seek(seek) = &mut op.kind else { return };
        if seek.advance(extents) || !is_open {
            self.finish(id);
        } else {
            self.count_query(id, work);
        }
    }

    pub(super) fn answer_seek(&mut self, to: ReplyTo, seek: &Seek) {
        match seek.found() {
            Some(at) => self.channel.answer_with(to, |out| proto::number(out, at)),
            None => self.channel.answer(to, errno::ENXIO),
        }
    }
}
