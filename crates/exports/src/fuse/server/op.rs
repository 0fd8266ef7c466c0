//! An operation: a request of the kernel that bios carry out.
//!
//! Invariants:
//! * An operation lives from its request until its answer. Its bios name it by its
//!   [`OpId`](crate::server::OpId), so the id is not used again before all of them are back.
//! * `pending` counts its bios and queries that have not come back. The operation goes on at 0.
//! * The first status other than `Ok` stays.

use super::mount::group_of;
use super::seek::Seek;
use super::truncate::Truncate;
use super::unaligned::UnalignedWrite;
use crate::fuse::proto::{Operation, Request};
use crate::server::errno;
use drystone_core::{IoBuf, Status};

/// Most requests in flight of a session.
pub const IN_FLIGHT_MAX: u32 = 128;

/// Where an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTo {
    /// The kernel's number of the request.
    pub(super) unique: u64,
    /// The ring entry that it came in; `None` if it came by the descriptor.
    pub(super) entry: Option<usize>,
}

/// The asker of a request.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) reply: ReplyTo,
    /// The inode that it asks about.
    pub(super) node: u64,
    pub(super) uid: u32,
    /// The thread that waits for the answer.
    task: u32,
    is_long: bool,
}

impl Caller {
    /// The asker of `request`, which came in that entry of the ring, if in any.
    #[inline]
    pub(super) fn of(request: &Request<'_>, entry: Option<usize>) -> Self {
        let Request { unique, node, uid, task, .. } = *request;
        Caller { reply: ReplyTo { unique, entry }, node, uid, task, is_long: is_long(request) }
    }
}

/// The work of an operation.
pub(super) enum OpKind {
    /// A read whose data begins `skip` bytes behind that of the bio.
    Read { skip: usize, length: u32 },
    /// A write of whole blocks.
    Write { length: u32 },
    /// An operation whose answer has no data.
    Bare,
    /// The end of a file becomes zeroes.
    Truncate(Truncate),
    /// A search for data or a hole.
    Seek(Seek),
    /// A write, or zeroing, of parts of blocks.
    Unaligned(Box<UnalignedWrite>),
}

/// An operation under way.
pub(super) struct Op {
    pub(super) reply: ReplyTo,
    /// The thread that waits for the answer.
    pub(super) asker: u32,
    pub(super) volume: usize,
    /// The throttle group of its bios.
    pub(super) group: u32,
    pub(super) kind: OpKind,
    /// Bios and queries that are not back.
    pub(super) pending: u32,
    pub(super) status: Status,
    /// Its data, once the bio is back.
    pub(super) buf: Option<IoBuf>,
    /// True if it has a range of its volume locked, or waits for the lock.
    pub(super) locked: bool,
    /// True if it may take long, so that it ends early when its asker is killed.
    pub(super) is_long: bool,
    /// True if it ends early, because its asker was killed.
    pub(super) interrupted: bool,
}

impl Op {
    /// An operation with one bio for `caller`, through that handle of a file.
    #[inline]
    pub(super) fn new(kind: OpKind, caller: &Caller, volume: usize, handle: u64) -> Self {
        Op {
            reply: caller.reply,
            asker: caller.task,
            volume,
            group: group_of(handle),
            kind,
            pending: 1,
            status: Status::Ok,
            buf: None,
            locked: false,
            is_long: caller.is_long,
            interrupted: false,
        }
    }

    /// Takes back the buffer of a bio that was part `part` of the operation. True if no other bio
    /// is pending.
    #[inline]
    pub(super) fn end_bio(&mut self, part: usize, buf: Option<IoBuf>) -> bool {
        match &mut self.kind {
            OpKind::Unaligned(write) => write.put(part, buf),
            _ => self.buf = buf.or(self.buf.take()),
        }
        self.pending -= 1;
        self.pending == 0
    }

    /// True if the operation may have a next step when its bios are back.
    #[inline]
    pub(super) fn has_steps(&self) -> bool {
        matches!(self.kind, OpKind::Unaligned(_) | OpKind::Truncate(_) | OpKind::Seek(_))
    }

    /// True if `status` is that of a bio that was withdrawn because the operation ends early.
    pub(super) fn is_interrupted_by(&self, status: Status) -> bool {
        self.interrupted && status == Status::Cancelled
    }

    /// Cancels the rest of the operation if it ends early.
    pub(super) fn stop_if_interrupted(&mut self) {
        if self.interrupted && self.status.is_ok() {
            self.status = Status::Cancelled;
        }
    }

    /// The errno of the answer; 0 on success.
    pub(super) fn errno(&self) -> i32 {
        match self.status {
            Status::Ok => 0,
            status if self.is_interrupted_by(status) => errno::EINTR,
            Status::Permission => errno::EROFS,
            Status::Cancelled | Status::Medium | Status::Offline | Status::Invalid => errno::EIO,
            status => status.errno(),
        }
    }
}

/// True if a request may take long, so that it ends early when its asker is killed.
fn is_long(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::SetAttributes { .. } | Operation::Allocate { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Blocks, DATA_AT};
    use drystone_core::BioFlags;

    fn op(kind: OpKind) -> Op {
        let operation = Operation::Sync { handle: 0 };
        let request = Request { unique: 2, node: 1, uid: 0, task: 7, operation };
        Op::new(kind, &Caller::of(&request, None), 0, 5 << 32 | 1)
    }

    #[test]
    fn an_operation_goes_on_after_its_last_bio() {
        let mut op = op(OpKind::Read { skip: 0, length: 512 });
        assert_eq!((op.asker, op.group), (7, 5), "the upper half of a handle is the group");
        op.pending = 2;
        assert!(!op.end_bio(0, Some(IoBuf::zeroed(512))));
        assert!(op.end_bio(0, None));
        assert!(op.buf.is_some(), "a bio without a buffer leaves the other's");
        assert!(!op.has_steps());
    }

    #[test]
    fn an_unaligned_write_keeps_the_buffer_of_each_part() {
        let write = UnalignedWrite::zeroes(Blocks::of(100..612, 512), BioFlags::empty());
        let mut op = op(OpKind::Unaligned(Box::new(write)));
        op.pending = 2;
        for part in 0..2 {
            op.end_bio(part, Some(IoBuf::zeroed(DATA_AT + 512)));
        }
        assert!(op.has_steps() && op.buf.is_none());
        let OpKind::Unaligned(mut write) = op.kind else { unreachable!() };
        assert_eq!(write.take_bufs().count(), 2);
    }

    #[test]
    fn only_a_withdrawn_bio_of_an_interrupted_operation_is_an_interrupt() {
        let mut op = op(OpKind::Bare);
        op.stop_if_interrupted();
        assert_eq!((op.status, op.errno()), (Status::Ok, 0));
        op.status = Status::Cancelled;
        assert_eq!(op.errno(), errno::EIO, "cancelled for another reason");
        op.interrupted = true;
        assert_eq!(op.errno(), errno::EINTR);
        op.status = Status::Medium;
        op.stop_if_interrupted();
        assert_eq!(op.errno(), errno::EIO, "the first failure stays");
    }
}
