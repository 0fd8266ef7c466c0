//! The names of groups as a tree. Plain data; who changes it holds the lock of [`crate::Groups`].

use crate::group::Group;
use crate::rules::{GROUPS_MAX, ROOT, Ruled, next_in_slot, slot_of};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most levels below the root: what binds a bio is looked at on each of them.
pub(crate) const DEPTH_MAX: usize = 16;

pub(crate) struct Named {
    pub(crate) group: Arc<Group>,
    parent: u32,
    pub(crate) children: BTreeMap<String, u32>,
    /// What a device without any limit knows of it.
    pub(crate) free: Arc<Ruled>,
}

/// See the module's text. A group's number is used again last of all.
pub(crate) struct Hierarchy {
    slots: Vec<Option<Named>>,
    /// Numbers of slots that are free.
    free: VecDeque<u32>,
}

impl Hierarchy {
    /// The root alone.
    pub(crate) fn new() -> Self {
        let mut hierarchy = Hierarchy { slots: Vec::new(), free: VecDeque::new() };
        hierarchy.place(ROOT, "", ROOT);
        hierarchy
    }

    fn place(&mut self, id: u32, path: &str, parent: u32) {
        let named = Named {
            group: Group::new(path, id),
            parent,
            children: BTreeMap::new(),
            free: Arc::new(Ruled { id, paths: [None, None] }),
        };
        if self.slots.len() <= slot_of(id) {
            self.slots.resize_with(slot_of(id) + 1, || None);
        }
        self.slots[slot_of(id)] = Some(named);
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Named> {
        self.slots.get(slot_of(id))?.as_ref().filter(|named| named.group.id() == id)
    }

    /// The number of the group at `path`.
    pub(crate) fn find(&self, path: &str) -> Option<u32> {
        let names = path.split('/').filter(|_| !path.is_empty());
        names.into_iter().try_fold(ROOT, |at, name| self.get(at)?.children.get(name).copied())
    }

    /// Make the group `path` as child `name` of `parent`; `None` if there are as many as there can
    /// be.
    pub(crate) fn insert(&mut self, parent: u32, name: &str, path: &str) -> Option<u32> {
        let id = match self.free.pop_front() {
            Some(id) => id,
            None if self.slots.len() < GROUPS_MAX => self.slots.len() as u32,
            None => return None,
        };
        self.place(id, path, parent);
        let parent = self.slots[slot_of(parent)].as_mut().expect("the parent was found");
        parent.children.insert(name.to_owned(), id);
        Some(id)
    }

    /// Remove a group without children.
    pub(crate) fn remove(&mut self, id: u32) {
        let Some(named) = self.slots[slot_of(id)].take() else { return };
        self.free.push_back(next_in_slot(id));
        if let Some(parent) = self.slots[slot_of(named.parent)].as_mut() {
            parent.children.retain(|_, child| *child != id);
        }
    }

    /// The group and its ancestors below the root.
    pub(crate) fn chain(&self, id: u32) -> Vec<u32> {
        let parent = |id: &u32| self.get(*id).map(|named| named.parent);
        let below = |id: &u32| *id != ROOT;
        std::iter::successors(Some(id).filter(below), |id| parent(id).filter(below)).collect()
    }

    /// The group and all below it, a parent before its children, by name.
    pub(crate) fn subtree(&self, id: u32) -> Vec<u32> {
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
