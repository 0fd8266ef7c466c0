//! A group, and belonging to one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A group. Its number is what its bios carry ([`drystone_core::Bio::group`]).
#[derive(Debug)]
pub struct Group {
    path: String,
    id: u32,
    members: AtomicUsize,
}

impl Group {
    pub(crate) fn new(path: &str, id: u32) -> Arc<Self> {
        Arc::new(Group { path: path.to_owned(), id, members: AtomicUsize::new(0) })
    }

    /// Where it stands in the tree: `tenants/a`; the root's is empty.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Who belongs to it now.
    pub(crate) fn members(&self) -> usize {
        self.members.load(Relaxed)
    }

    pub(crate) fn join(self: &Arc<Self>) -> Member {
        self.members.fetch_add(1, Relaxed);
        Member { group: self.clone() }
    }
}

/// Belonging to a group: while anybody has one the group is not removed. From any thread.
#[derive(Debug)]
pub struct Member {
    group: Arc<Group>,
}

impl Member {
    /// What the bios of the group carry.
    #[inline]
    pub fn id(&self) -> u32 {
        self.group.id
    }

    /// Where the group stands in the tree.
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
