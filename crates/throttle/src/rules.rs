//! The rules that bind groups on a device, as contexts read them: published as a whole, never
//! changed in place.
//!
//! A group's *path* in a direction leads from the group up to the topmost of its ancestors that has
//! a limit there. That ancestor's lane is where its bios wait. So groups that share no limit share
//! no lane, whatever their names have in common.

use crate::group::GroupId;
use crate::lane::Lane;
use crate::limits::Direction;
use crate::meter::{Meter, Step};
use std::sync::Arc;

/// The way of a group's bios in a direction: its own step first.
pub(crate) struct Path {
    pub(crate) steps: Box<[Step]>,
    pub(crate) lane: Arc<Lane>,
}

impl Path {
    /// The limits on the way, nearest first.
    pub(crate) fn meters(&self) -> impl Iterator<Item = &Arc<Meter>> + Clone {
        self.steps.iter().filter_map(|step| step.meter.as_ref())
    }
}

/// A group with its paths by direction; none where nothing limits it.
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

    /// True if there is no group but the root.
    pub(crate) fn is_plain(&self) -> bool {
        self.groups.is_empty()
    }

    /// The lanes, each once: the topmost group of a lane has a path there.
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
