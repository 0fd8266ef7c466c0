//! The rules by which groups are limited on a device, as contexts read them. They are published as
//! a whole, and never changed in place.
//!
//! A group's *path* in a direction leads from the group up to its topmost ancestor with a limit in
//! that direction. The group's bios wait in that ancestor's lane. So groups that share no limit
//! share no lane, even if they have common ancestors.

use crate::group::GroupId;
use crate::lane::Lane;
use crate::limits::Direction;
use crate::meter::{Meter, Step};
use std::sync::Arc;

/// The path of a group's bios in a direction; its own step comes first.
pub(crate) struct Path {
    pub(crate) steps: Box<[Step]>,
    pub(crate) lane: Arc<Lane>,
}

impl Path {
    /// The limits on the path, nearest first.
    pub(crate) fn meters(&self) -> impl Iterator<Item = &Arc<Meter>> + Clone {
        self.steps.iter().filter_map(|step| step.meter.as_ref())
    }
}

/// A group with its path in each direction; `None` where it has no limit.
#[derive(Default)]
pub(crate) struct Ruled {
    pub(crate) id: GroupId,
    pub(crate) paths: [Option<Arc<Path>>; 2],
}

impl Ruled {
    pub(crate) fn path(&self, direction: Direction) -> Option<&Arc<Path>> {
        self.paths[direction as usize].as_ref()
    }
}

/// All groups, by slot.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(crate) groups: Vec<Option<Arc<Ruled>>>,
}

impl Rules {
    pub(crate) fn get(&self, group: GroupId) -> Option<&Arc<Ruled>> {
        self.groups.get(group.slot())?.as_ref().filter(|ruled| ruled.id == group)
    }

    pub(crate) fn path(&self, group: GroupId, direction: Direction) -> Option<&Arc<Path>> {
        self.get(group)?.path(direction)
    }

    /// True if the root is the only group.
    pub(crate) fn is_plain(&self) -> bool {
        self.groups.is_empty()
    }

    /// The lanes, each once: the topmost group of a lane has a path in it.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let all = self.groups.iter().flatten();
        let own = |ruled: &Ruled, lane: &Lane| lane.top() == ruled.id;
        all.flat_map(move |ruled| {
            let lanes = ruled.paths.iter().flatten().map(|path| &path.lane);
            lanes.filter(move |lane| own(ruled, lane))
        })
    }

    pub(crate) fn set(&mut self, ruled: Arc<Ruled>) {
        let slot = ruled.id.slot();
        if self.groups.len() <= slot {
            self.groups.resize(slot + 1, None);
        }
        self.groups[slot] = Some(ruled);
    }

    pub(crate) fn remove(&mut self, group: GroupId) {
        if let Some(ruled) = self.groups.get_mut(group.slot()) {
            *ruled = None;
        }
        if self.groups.iter().all(Option::is_none) {
            self.groups.clear();
        }
    }
}
