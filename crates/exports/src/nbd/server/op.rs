//! The operations of a connection: requests that bios carry out.
//!
//! ```text
//!   user_data:  NBD | number of the connection | operation (20 bits)
//! ```
//!
//! Invariants:
//! * An operation lives from its request until its reply is queued. Its bios name it by its
//!   [`OpId`], so a number is not used again before all of them are back.
//! * The first status other than `Ok` stays.

use super::unaligned::Unaligned;
use crate::nbd::proto::Command;
use crate::nbd::request::Request;
use crate::server::{NBD, Tag, ZeroWrites};
use drystone_core::{Bio, IoBuf, Slab, Status};
use std::ops::Range;

/// Bits of `user_data` for the operation.
const OP_BITS: u32 = 20;

/// The number of an operation in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpId(pub(super) u32);

impl OpId {
    /// The number as an index.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    /// The operation of a bio.
    #[inline]
    pub(super) fn of(bio: &Bio) -> Self {
        OpId(bio.user_data as u32 & ((1 << OP_BITS) - 1))
    }
}

/// An operation under way.
pub(super) struct Op {
    pub(super) request: Request,
    /// Bios that are not back.
    pub(super) pending: u32,
    pub(super) status: Status,
    /// The buffer of the bio that is back.
    pub(super) data: Option<IoBuf>,
    /// The rest to be zeroed by plain writes.
    pub(super) zeroes: Option<ZeroWrites>,
    /// The steps of a request for parts of blocks.
    pub(super) unaligned: Option<Box<Unaligned>>,
    /// It has a range locked, or waits for that.
    pub(super) locked: bool,
    /// Its bio, while it waits for its range, or for its turn to ask for it.
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
            zeroes: None,
            unaligned: None,
            locked: false,
            blocked: None,
        }
    }

    /// True for a request that makes zeroes of its range, or may.
    pub(super) fn is_zeroing(&self) -> bool {
        matches!(self.request.command, Command::Trim | Command::WriteZeroes)
    }
}

/// The number of the connection in a bio's `user_data`.
pub(super) fn connection_of(bio: &Bio) -> u32 {
    (Tag::rest_of_bio(bio.user_data) >> OP_BITS) as u32
}

/// The `user_data` of all bios of connection `number`.
pub(super) fn user_data_of(number: u32) -> Range<u64> {
    base_of(number)..base_of(number + 1)
}

fn base_of(number: u32) -> u64 {
    NBD.bio() | u64::from(number) << OP_BITS
}

/// The operations of a connection that are under way.
pub(super) struct OpTable {
    /// The connection's bits of `user_data`.
    base: u64,
    ops: Slab<Op>,
}

impl OpTable {
    /// The table of connection `number`.
    pub(super) fn new(number: u32) -> Self {
        OpTable { base: base_of(number), ops: Slab::new() }
    }

    /// The number of operations.
    pub(super) fn count(&self) -> usize {
        self.ops.len()
    }

    /// Adds an operation.
    #[inline]
    pub(super) fn add(&mut self, op: Op) -> OpId {
        OpId(self.ops.insert(op))
    }

    /// Takes an operation out.
    #[inline]
    pub(super) fn remove(&mut self, id: OpId) -> Option<Op> {
        self.ops.remove(id.0)
    }

    /// The operation.
    #[inline]
    pub(super) fn op(&self, id: OpId) -> Option<&Op> {
        self.ops.get(id.0)
    }

    /// The operation, to be changed.
    #[inline]
    pub(super) fn op_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(id.0)
    }

    /// All operations.
    pub(super) fn iter(&self) -> impl Iterator<Item = (OpId, &Op)> {
        self.ops.iter().map(|(number, op)| (OpId(number), op))
    }

    /// The `user_data` of an operation's bios.
    #[inline]
    pub(super) fn user_data(&self, id: OpId) -> u64 {
        debug_assert!(id.0 < 1 << OP_BITS);
        self.base | u64::from(id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::proto::CommandFlags;
    use crate::nbd::request::ContextSet;

    fn op(cookie: u64) -> Op {
        let (flags, contexts) = (CommandFlags::empty(), ContextSet::default());
        let request =
            Request { command: Command::Read, flags, contexts, cookie, offset: 0, length: 512 };
        Op::new(request)
    }

    #[test]
    fn numbers_are_used_again_only_after_their_operation() {
        let mut table = OpTable::new(2);
        let ids = [1, 2, 3].map(|cookie| table.add(op(cookie)));
        assert_eq!(table.remove(ids[1]).map(|op| op.request.cookie), Some(2));
        assert!(table.remove(ids[1]).is_none() && table.op(ids[1]).is_none());
        assert_eq!((table.count(), table.add(op(4)), table.count()), (2, ids[1], 3));
        let cookies: Vec<u64> = table.iter().map(|(_, op)| op.request.cookie).collect();
        assert_eq!(cookies, [1, 4, 3]);
    }

    #[test]
    fn a_bio_finds_its_connection_and_operation() {
        let mut bio = Bio::flush();
        for number in [0, 1, 5000] {
            for id in [0, 1, (1 << OP_BITS) - 1] {
                bio.user_data = OpTable::new(number).user_data(OpId(id));
                assert_eq!((connection_of(&bio), OpId::of(&bio)), (number, OpId(id)));
                assert!(user_data_of(number).contains(&bio.user_data));
                assert!(!user_data_of(number + 1).contains(&bio.user_data));
            }
        }
    }
}
