//! The operations of one session of a front end, by number, and the numbers that their bios carry.
//!
//! ```text
//!   user_data:  tag of the front end | number of the session | operation (20 bits) | part (4 bits)
//! ```
//!
//! Invariants:
//! * An operation's number is used again only after [`OpTable::remove`]. Its bios name it, so its
//!   owner removes it when all of them are back.
//! * The table allocates nothing while it has at most as many operations as it was made for.

use super::tag::Tag;
use drystone_core::{Bio, Slab};
use std::ops::Range;

/// Bits of `user_data` for the part and the operation.
const PART_BITS: u32 = 4;
const OP_BITS: u32 = 20;

/// The number of a session in its front end on a worker: a connection of NBD, or a session of FUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(pub(crate) u32);

impl SessionId {
    /// The session of a bio.
    #[inline]
    pub(crate) fn of(bio: &Bio) -> Self {
        SessionId((Tag::rest_of_bio(bio.user_data) >> (PART_BITS + OP_BITS)) as u32)
    }

    /// The `user_data` of all bios of this session of a front end.
    pub(crate) fn user_data(self, tag: Tag) -> Range<u64> {
        base_of(tag, self)..base_of(tag, SessionId(self.0 + 1))
    }
}

/// The number of an operation of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(pub(crate) u32);

impl OpId {
    /// The operation of a bio.
    #[inline]
    pub(crate) fn of(bio: &Bio) -> Self {
        OpId((bio.user_data >> PART_BITS) as u32 & ((1 << OP_BITS) - 1))
    }

    /// The part of its operation that a bio is.
    #[inline]
    pub(crate) fn part_of(bio: &Bio) -> usize {
        bio.user_data as usize & ((1 << PART_BITS) - 1)
    }

    /// The number as an index.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

fn base_of(tag: Tag, session: SessionId) -> u64 {
    tag.bio() | u64::from(session.0) << (PART_BITS + OP_BITS)
}

/// The operations of a session that are under way.
pub(crate) struct OpTable<T> {
    /// The session's bits of `user_data`.
    base: u64,
    session: SessionId,
    ops: Slab<T>,
}

impl<T> OpTable<T> {
    /// The table of a session, made for `capacity` operations; it grows beyond them.
    pub(crate) fn new(tag: Tag, session: SessionId, capacity: usize) -> Self {
        OpTable { base: base_of(tag, session), session, ops: Slab::with_capacity(capacity) }
    }

    /// The session.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// The number of operations.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// True when no operation is under way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Adds an operation.
    #[inline]
    pub(crate) fn add(&mut self, op: T) -> OpId {
        OpId(self.ops.insert(op))
    }

    /// Takes an operation out.
    #[inline]
    pub(crate) fn remove(&mut self, id: OpId) -> Option<T> {
        self.ops.remove(id.0)
    }

    /// The operation.
    #[inline]
    pub(crate) fn op(&self, id: OpId) -> Option<&T> {
        self.ops.get(id.0)
    }

    /// The operation, to be changed.
    #[inline]
    pub(crate) fn op_mut(&mut self, id: OpId) -> Option<&mut T> {
        self.ops.get_mut(id.0)
    }

    /// All operations.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpId, &T)> {
        self.ops.iter().map(|(number, op)| (OpId(number), op))
    }

    /// The `user_data` of the bio that is that part of an operation.
    #[inline]
    pub(crate) fn user_data(&self, id: OpId, part: usize) -> u64 {
        debug_assert!(part < 1 << PART_BITS && id.0 < 1 << OP_BITS);
        self.base | u64::from(id.0) << PART_BITS | part as u64
    }

    /// The `user_data` of all bios of an operation.
    pub(crate) fn user_data_of(&self, id: OpId) -> Range<u64> {
        let first = self.user_data(id, 0);
        first..first + (1 << PART_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{FUSE, NBD};

    #[test]
    fn numbers_are_used_again_only_after_their_operation() {
        let mut table = OpTable::new(NBD, SessionId(3), 2);
        let ids: Vec<OpId> = (1..=3).map(|op| table.add(op)).collect();
        assert_eq!((table.remove(ids[1]), table.len()), (Some(2), 2));
        assert!(table.remove(ids[1]).is_none() && table.op(ids[1]).is_none());
        assert_eq!((table.add(4), table.len()), (ids[1], 3));
        table.op_mut(ids[0]).into_iter().for_each(|op| *op = 5);
        assert_eq!(table.iter().map(|(_, op)| *op).collect::<Vec<u64>>(), [5, 4, 3]);
        ids.iter().for_each(|id| _ = table.remove(*id));
        assert!(table.is_empty() && table.op(OpId(100)).is_none(), "a number that never was");
    }

    #[test]
    fn a_bio_finds_its_session_operation_and_part() {
        let mut bio = Bio::flush();
        for (tag, session) in [(NBD, 0), (FUSE, 1), (NBD, 5000)].map(|(t, c)| (t, SessionId(c))) {
            let table: OpTable<()> = OpTable::new(tag, session, 0);
            assert_eq!(table.session(), session);
            for (op, part) in [(0, 0), ((1 << OP_BITS) - 1, 2), (7, (1 << PART_BITS) - 1)] {
                bio.user_data = table.user_data(OpId(op), part);
                let found = (SessionId::of(&bio), OpId::of(&bio), OpId::part_of(&bio));
                assert_eq!(found, (session, OpId(op), part));
                assert_eq!(Tag::of_bio(bio.user_data), tag);
                assert!(table.user_data_of(OpId(op)).contains(&bio.user_data));
                if op + 1 < 1 << OP_BITS {
                    assert!(!table.user_data_of(OpId(op + 1)).contains(&bio.user_data));
                }
                assert!(session.user_data(tag).contains(&bio.user_data));
                assert!(!SessionId(session.0 + 1).user_data(tag).contains(&bio.user_data));
            }
        }
    }
}
