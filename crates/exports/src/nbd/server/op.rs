//! The operations of a connection: requests that bios carry out.
//!
//! Invariants:
//! * An operation lives from its request until its reply is queued. Its bios name it by its
//!   [`OpId`](crate::server::OpId), so a number is not used again before all of them are back.
//! * The first status other than `Ok` stays.

use super::unaligned::Unaligned;
use crate::nbd::proto::Command;
use crate::nbd::request::Request;
use crate::server::ZeroWrites;
use drystone_core::{Bio, IoBuf, Pipe, Status};

/// An operation under way.
pub(super) struct Op {
    pub(super) request: Request,
    /// Bios that have not come back.
    pub(super) pending: u32,
    pub(super) status: Status,
    /// The buffer of the bio that has come back; with a pipe it has room for the header.
    pub(super) data: Option<IoBuf>,
    /// The pipe that has the data of a read instead.
    pub(super) pipe: Option<Box<Pipe>>,
    /// The rest to be zeroed by plain writes.
    pub(super) zeroes: Option<ZeroWrites>,
    /// The steps of a request for parts of blocks.
    pub(super) unaligned: Option<Box<Unaligned>>,
    /// True if it has a range locked, or waits for the lock.
    pub(super) locked: bool,
    /// Its bio, while it waits for its range or for its turn in the line.
    pub(super) blocked: Option<Box<Bio>>,
}

impl Op {
    /// An operation with one bio.
    #[inline]
    pub(super) fn new(request: Request) -> Self {
        Op {
            request,
            pending: 1,
            status: Status::Ok,
            data: None,
            pipe: None,
            zeroes: None,
            unaligned: None,
            locked: false,
            blocked: None,
        }
    }

    /// True for a request that zeroes its range, or may do so.
    pub(super) fn is_zeroing(&self) -> bool {
        matches!(self.request.command, Command::Trim | Command::WriteZeroes)
    }
}
