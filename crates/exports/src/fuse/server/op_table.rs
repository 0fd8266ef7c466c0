//! The operations of a session, and which of them are ready for their next step.
//!
//! Invariants:
//! * The table allocates only when it is made, as long as at most [`IN_FLIGHT_MAX`] operations are
//!   in it.
//! * An operation is ready when its bios are back and its next step has not been taken.

use super::op::{IN_FLIGHT_MAX, Op};
use crate::server::{FUSE, OpId, OpTable as Table, SessionId};
use std::ops::{Deref, DerefMut};

/// The operations of a session that are under way.
pub(super) struct OpTable {
    table: Table<Op>,
    ready: Vec<OpId>,
}

impl Deref for OpTable {
    type Target = Table<Op>;

    #[inline]
    fn deref(&self) -> &Table<Op> {
        &self.table
    }
}

impl DerefMut for OpTable {
    #[inline]
    fn deref_mut(&mut self) -> &mut Table<Op> {
        &mut self.table
    }
}

impl OpTable {
    /// The table of a session.
    pub(super) fn new(session: SessionId) -> Self {
        let count = IN_FLIGHT_MAX as usize;
        OpTable { table: Table::new(FUSE, session, count), ready: Vec::with_capacity(count) }
    }

    /// True at the bound of requests in flight.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() >= IN_FLIGHT_MAX as usize
    }

    /// The operation that answers request `unique`.
    pub(super) fn find(&self, unique: u64) -> Option<OpId> {
        self.iter().find(|(_, op)| op.reply.unique == unique).map(|(id, _)| id)
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
    fn a_full_table_has_room_when_an_operation_is_answered() {
        let mut table = OpTable::new(SessionId(3));
        let ids: Vec<OpId> = (0..u64::from(IN_FLIGHT_MAX)).map(|at| table.add(op(at))).collect();
        assert!(table.is_full() && !table.is_empty());
        assert_eq!(table.find(5), Some(ids[5]));
        assert_eq!(table.remove(ids[5]).map(|op| op.reply.unique), Some(5));
        assert!(!table.is_full());
        assert_eq!((table.find(5), table.add(op(500))), (None, ids[5]));
        assert!(table.is_full() && table.op(ids[7]).is_some_and(|op| op.reply.unique == 7));
    }

    #[test]
    fn the_latest_that_is_ready_goes_first() {
        let mut table = OpTable::new(SessionId(0));
        let ids = [1, 2].map(|unique| table.add(op(unique)));
        ids.iter().for_each(|id| table.make_ready(*id));
        let taken = [table.take_ready(), table.take_ready(), table.take_ready()];
        assert_eq!(taken, [Some(ids[1]), Some(ids[0]), None]);
    }
}
