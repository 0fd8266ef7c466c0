//! The names of groups as a tree. Plain data, changed under the lock of [`crate::Groups`].

use crate::group::{Group, GroupId};
use crate::rules::Ruled;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The most levels below the root: each level may have limits that a bio must pass.
pub(crate) const DEPTH_MAX: usize = 16;

pub(crate) struct Named {
    pub(crate) group: Arc<Group>,
    parent: GroupId,
    pub(crate) children: BTreeMap<String, GroupId>,
    /// Its entry in the rules of a device on which it has no limits.
    pub(crate) free: Arc<Ruled>,
}

/// See the module's text. A free number is used again as late as possible.
pub(crate) struct Hierarchy {
    slots: Vec<Option<Named>>,
    /// The next numbers of the free slots.
    free: VecDeque<GroupId>,
}

impl Hierarchy {
    /// A tree with the root only.
    pub(crate) fn new() -> Self {
        let mut hierarchy = Hierarchy { slots: Vec::new(), free: VecDeque::new() };
        hierarchy.place(GroupId::ROOT, "", GroupId::ROOT);
        hierarchy
    }

    fn place(&mut self, id: GroupId, path: &str, parent: GroupId) {
        let named = Named {
            group: Group::new(path, id),
            parent,
            children: BTreeMap::new(),
            free: Arc::new(Ruled { id, paths: [None, None] }),
        };
        if self.slots.len() <= id.slot() {
            self.slots.resize_with(id.slot() + 1, || None);
        }
        self.slots[id.slot()] = Some(named);
    }

    pub(crate) fn get(&self, id: GroupId) -> Option<&Named> {
        self.slots.get(id.slot())?.as_ref().filter(|named| named.group.id() == id)
    }

    /// The number of the group at `path`.
    pub(crate) fn find(&self, path: &str) -> Option<GroupId> {
        let names = path.split('/').filter(|_| !path.is_empty());
        names
            .into_iter()
            .try_fold(GroupId::ROOT, |at, name| self.get(at)?.children.get(name).copied())
    }

    /// Make the group `path` as child `name` of `parent`; `None` if there are too many groups.
    pub(crate) fn insert(&mut self, parent: GroupId, name: &str, path: &str) -> Option<GroupId> {
        let id = match self.free.pop_front() {
            Some(id) => id,
            None => GroupId::first_in_slot(self.slots.len())?,
        };
        self.place(id, path, parent);
        let parent = self.slots[parent.slot()].as_mut().expect("the parent was found");
        parent.children.insert(name.to_owned(), id);
        Some(id)
    }

    /// Remove a group without children.
    pub(crate) fn remove(&mut self, id: GroupId) {
        let Some(named) = self.slots[id.slot()].take() else { return };
        self.free.push_back(id.next_in_slot());
        if let Some(parent) = self.slots[named.parent.slot()].as_mut() {
            parent.children.retain(|_, child| *child != id);
        }
    }

    /// The group and its ancestors, without the root.
    pub(crate) fn chain(&self, id: GroupId) -> Vec<GroupId> {
        let parent = |id: &GroupId| self.get(*id).map(|named| named.parent);
        let below = |id: &GroupId| *id != GroupId::ROOT;
        std::iter::successors(Some(id).filter(below), |id| parent(id).filter(below)).collect()
    }

    /// The group and its descendants, parents before children, by name.
    pub(crate) fn subtree(&self, id: GroupId) -> Vec<GroupId> {
        let mut all = Vec::new();
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            let Some(named) = self.get(id) else { continue };
            all.push(id);
            left.extend(named.children.values().rev());
        }
        all
    }
}
