//! A group, its number, and membership in it.

use drystone_core::Bio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bits of a group's number that are its slot in tables; the other bits distinguish the groups
/// that have had the slot one after another.
const SLOT_BITS: u32 = 20;
/// The most groups that can exist.
pub(crate) const GROUPS_MAX: usize = 1 << SLOT_BITS;

/// The number of a group, which its bios carry ([`drystone_core::Bio::group`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u32);

impl GroupId {
    /// The root, which has no limits.
    pub const ROOT: GroupId = GroupId(0);

    /// The group of `bio`.
    #[inline]
    pub fn of(bio: &Bio) -> Self {
        GroupId(bio.group)
    }

    /// The number, as bios carry it.
    #[inline]
    pub fn as_u32(self) -> u32 {
        self.0
    }

    /// The group's slot in tables of groups: a small number that no other group has at the same
    /// time.
    #[inline]
    pub fn slot(self) -> usize {
        (self.0 & (GROUPS_MAX as u32 - 1)) as usize
    }

    /// The first group in `slot`; `None` if the slot is beyond the limit.
    pub(crate) fn first_in_slot(slot: usize) -> Option<Self> {
        (slot < GROUPS_MAX).then_some(GroupId(slot as u32))
    }

    /// The next group in the same slot.
    pub(crate) fn next_in_slot(self) -> Self {
        GroupId(self.0.wrapping_add(GROUPS_MAX as u32))
    }
}

/// A group.
#[derive(Debug)]
pub struct Group {
    path: String,
    id: GroupId,
    members: AtomicUsize,
}

impl Group {
    pub(crate) fn new(path: &str, id: GroupId) -> Arc<Self> {
        Arc::new(Group { path: path.to_owned(), id, members: AtomicUsize::new(0) })
    }

    /// The path in the tree: `tenants/a`; the root's is empty.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its number.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The present number of members.
    pub(crate) fn members(&self) -> usize {
        self.members.load(Relaxed)
    }

    pub(crate) fn join(self: &Arc<Self>) -> Member {
        self.members.fetch_add(1, Relaxed);
        Member { group: self.clone() }
    }
}

/// Membership in a group: a group with members is not removed. From any thread.
#[derive(Debug)]
pub struct Member {
    group: Arc<Group>,
}

impl Member {
    /// The number that the bios of the group carry.
    #[inline]
    pub fn id(&self) -> GroupId {
        self.group.id
    }

    /// The group's path in the tree.
    pub fn path(&self) -> &str {
        &self.group.path
    }
}

impl Clone for Member {
    fn clone(&self) -> Self {
        self.group.join()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.members.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_follow_one_another_in_a_slot_have_numbers_of_their_own() {
        let first = GroupId::first_in_slot(GROUPS_MAX - 1).unwrap();
        let next = first.next_in_slot();
        assert!(first != next && first.slot() == next.slot());
        assert_eq!(GroupId::first_in_slot(GROUPS_MAX), None);
        let last = (0..4095).fold(first, |id, _| id.next_in_slot());
        assert_eq!(last.next_in_slot(), first, "numbers are used again in the end");
    }
}
