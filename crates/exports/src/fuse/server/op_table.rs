//! The operations of a session, by number, and the numbers that their bios carry.
//!
//! ```text
//!   user_data:  FUSE | place of the session | operation (20 bits) | part (4 bits)
//! ```
//!
//! Invariants:
//! * Nothing is allocated after the table was made, while at most [`IN_FLIGHT_MAX`] are in it.
//! * A number is used again only after [`OpTable::remove`].
//! * An operation is ready when its bios are back and its next step has not been taken.

use super::op::{IN_FLIGHT_MAX, Op, OpId};
use crate::server::{FUSE, Tag};
use drystone_core::{Bio, Slab};
use std::ops::Range;

/// Bits of `user_data` for the part and the operation.
const PART_BITS: u32 = 4;
const OP_BITS: u32 = 20;

/// The operations of a session that are under way.
pub(super) struct OpTable {
    /// The session's bits of `user_data`.
    base: u64,
    ops: Slab<Op>,
    ready: Vec<OpId>,
}

/// The place of the session in a bio's `user_data`.
#[inline]
pub(super) fn session_of(bio: &Bio) -> u32 {
    (Tag::rest_of_bio(bio.user_data) >> (PART_BITS + OP_BITS)) as u32
}

/// The operation of a bio, and the part of it that the bio is.
#[inline]
pub(super) fn op_of(bio: &Bio) -> (OpId, usize) {
    let op = (bio.user_data >> PART_BITS) as u32 & ((1 << OP_BITS) - 1);
    (OpId(op), bio.user_data as usize & ((1 << PART_BITS) - 1))
}

/// The `user_data` of all bios of the session at `place`.
pub(super) fn user_data_of_session(place: u32) -> Range<u64> {
    base_of(place)..base_of(place + 1)
}

fn base_of(place: u32) -> u64 {
    FUSE.bio() | u64::from(place) << (PART_BITS + OP_BITS)
}

impl OpTable {
    /// The table of the session at `place` of its worker.
    pub(super) fn new(place: u32) -> Self {
        let count = IN_FLIGHT_MAX as usize;
        OpTable {
            base: base_of(place),
            ops: Slab::with_capacity(count),
            ready: Vec::with_capacity(count),
        }
    }

    /// True at the bound of requests in flight.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.ops.len() >= IN_FLIGHT_MAX as usize
    }

    /// True when no operation is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    /// Adds an operation.
    #[inline]
    pub(super) fn add(&mut self, op: Op) -> OpId {
        OpId(self.ops.insert(op))
    }

    /// Takes an operation out, whose answer is written next.
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

    /// The operation that answers request `unique`.
    pub(super) fn find(&self, unique: u64) -> Option<OpId> {
        let mut ops = self.ops.iter();
        ops.find(|(_, op)| op.reply.unique == unique).map(|(number, _)| OpId(number))
    }

    /// The `user_data` of the bio that is that part of an operation.
    #[inline]
    pub(super) fn user_data(&self, id: OpId, part: usize) -> u64 {
        debug_assert!(part < 1 << PART_BITS && id.0 < 1 << OP_BITS);
        self.base | u64::from(id.0) << PART_BITS | part as u64
    }

    /// The `user_data` of all bios of an operation.
    pub(super) fn user_data_of(&self, id: OpId) -> Range<u64> {
        let first = self.user_data(id, 0);
        first..first + (1 << PART_BITS)
    }

    /// The place of the session in its worker.
    pub(super) fn session_place(&self) -> u32 {
        (Tag::rest_of_bio(self.base) >> (PART_BITS + OP_BITS)) as u32
    }

    /// Marks an operation ready for its next step.
    #[inline]
    pub(super) fn make_ready(&mut self, id: OpId) {
        self.ready.push(id);
    }

    /// Takes an operation that is ready, the latest first.
    #[inline]
    pub(super) fn take_ready(&mut self) -> Option<OpId> {
        self.ready.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::proto::{Operation, Request};
    use crate::fuse::server::op::{Caller, OpKind};

    fn op(unique: u64) -> Op {
        let operation = Operation::Sync { handle: 0 };
        let request = Request { unique, node: 1, uid: 0, task: 1, operation };
        Op::new(OpKind::Bare, &Caller::of(&request, None), 0, 0)
    }

    #[test]
    fn numbers_are_used_again_only_after_their_operation() {
        let mut table = OpTable::new(3);
        let ids: Vec<OpId> = (0..u64::from(IN_FLIGHT_MAX)).map(|at| table.add(op(at))).collect();
        assert!(table.is_full() && !table.is_idle());
        assert_eq!(table.find(5), Some(ids[5]));
        assert_eq!(table.remove(ids[5]).map(|op| op.reply.unique), Some(5));
        assert!(table.remove(ids[5]).is_none() && table.op(ids[5]).is_none());
        assert!(!table.is_full());
        assert_eq!((table.find(5), table.add(op(500))), (None, ids[5]));
        assert!(table.is_full() && table.op(ids[7]).is_some_and(|op| op.reply.unique == 7));
        ids.iter().for_each(|id| drop(table.remove(*id)));
        assert!(table.is_idle());
        assert!(table.op(OpId(IN_FLIGHT_MAX)).is_none(), "a number that never was");
    }

    #[test]
    fn a_bio_finds_its_session_operation_and_part() {
        let mut bio = Bio::flush();
        for place in [0, 1, 1000] {
            let table = OpTable::new(place);
            assert_eq!(table.session_place(), place);
            for (op, part) in [(0, 0), (IN_FLIGHT_MAX - 1, 2), (7, (1 << PART_BITS) - 1)] {
                bio.user_data = table.user_data(OpId(op), part);
                assert_eq!((session_of(&bio), op_of(&bio)), (place, (OpId(op), part)));
                assert!(table.user_data_of(OpId(op)).contains(&bio.user_data));
                assert!(!table.user_data_of(OpId(op + 1)).contains(&bio.user_data));
                assert!(user_data_of_session(place).contains(&bio.user_data));
                assert!(!user_data_of_session(place + 1).contains(&bio.user_data));
            }
        }
    }
}
