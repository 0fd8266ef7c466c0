//! What binds groups on a device, as contexts read it: published as a whole, never changed in
//! place.
//!
//! A group's *path* in a direction leads from the group up to the topmost of its ancestors that has
//! a limit there. That ancestor's lane is where its bios wait. So groups that share no limit share
//! no lane, whatever their names have in common.

use crate::lane::Lane;
use crate::limits::Direction;
use crate::meter::{Meter, Step};
use std::sync::Arc;

/// The root's number; it has no limits.
pub(crate) const ROOT: u32 = 0;

/// Bits of a group's number that say where it stands in tables; the others tell those apart that
/// stood there one after the other.
const SLOT_BITS: u32 = 20;
/// Most groups that there can be.
pub(crate) const GROUPS_MAX: usize = 1 << SLOT_BITS;

/// Where group number `group` stands in tables of groups: a small number, which no other group has
/// at the same time.
#[inline]
pub fn slot_of(group: u32) -> usize {
    (group & (GROUPS_MAX as u32 - 1)) as usize
}

/// The number of the next group in the same place.
pub(crate) fn next_in_slot(group: u32) -> u32 {
    group.wrapping_add(GROUPS_MAX as u32)
}

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
    pub(crate) id: u32,
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
    pub(crate) fn get(&self, group: u32) -> Option<&Arc<Ruled>> {
        self.groups.get(slot_of(group))?.as_ref().filter(|ruled| ruled.id == group)
    }

    pub(crate) fn path(&self, group: u32, direction: Direction) -> Option<&Arc<Path>> {
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
        let slot = slot_of(ruled.id);
        if self.groups.len() <= slot {
            self.groups.resize(slot + 1, None);
        }
        self.groups[slot] = Some(ruled);
    }

    pub(crate) fn remove(&mut self, group: u32) {
        if let Some(place) = self.groups.get_mut(slot_of(group)) {
            *place = None;
        }
        if self.groups.iter().all(Option::is_none) {
            self.groups.clear();
        }
    }
}
