//! The groups whose bios came through one channel: their local credit, and their bios that wait.
//!
//! Invariants:
//! * A group's entry stands in the slot of its number. An entry whose slot another group has by now
//!   is a *former* one, which stays while bios of it wait.
//! * While a bio of a group and direction waits, `waiting` counts it, and so does the lane of its
//!   path ([`Visited`]).
//! * Credit goes back to the limits when the rules change, when a bio has to wait, and when the
//!   entry goes.

use super::visited::Visited;
use crate::counts::GroupCounts;
use crate::credit::LocalCredit;
use crate::device::DeviceThrottle;
use crate::group::GroupId;
use crate::lane::Lane;
use crate::limits::{Direction, counted_at};
use crate::rules::{Path, Rules};
use drystone_core::Bio;
use drystone_core::clock::Ns;
use std::sync::Arc;

/// A group in one direction.
struct Side {
    credit: LocalCredit,
    path: Option<Arc<Path>>,
    /// Bios that wait.
    waiting: usize,
}

impl Side {
    fn new(path: Option<Arc<Path>>) -> Self {
        let credit = match path {
            None => LocalCredit::unlimited(),
            Some(_) => LocalCredit::default(),
        };
        Side { credit, path, waiting: 0 }
    }

    /// False if there was nothing to give.
    fn give_back(&mut self) -> bool {
        self.path.as_ref().is_some_and(|path| self.credit.give_back(path))
    }

    /// Pay for an I/O of `bytes` that finds no credit. False if it has to wait.
    fn pay(&mut self, now: Ns, bytes: u64) -> bool {
        self.give_back();
        match &self.path {
            None => {
                self.credit = LocalCredit::unlimited();
                self.credit.try_spend(bytes)
            }
            Some(path) => {
                let waits = self.waiting > 0 || path.meters().any(|meter| meter.is_blocked());
                !waits && self.credit.fill(path, now, bytes)
            }
        }
    }
}

/// A group as this channel uses it.
pub(super) struct Entry {
    group: GroupId,
    counts: Arc<GroupCounts>,
    sides: [Side; 2],
}

impl Entry {
    #[inline(always)]
    fn side(&mut self, direction: Direction) -> &mut Side {
        &mut self.sides[direction as usize]
    }

    /// The group's credit in `direction`, and its counts.
    #[inline(always)]
    pub(super) fn credit(&mut self, direction: Direction) -> (&mut LocalCredit, &GroupCounts) {
        (&mut self.sides[direction as usize].credit, &self.counts)
    }

    /// `bio` passes.
    #[inline(always)]
    pub(super) fn count(&self, bio: &Bio) {
        self.counts.passed(counted_at(bio), bio.bytes, 1);
    }

    /// Pay for an I/O of `bytes`, by credit or at the limits. False if it has to wait.
    pub(super) fn pay(&mut self, direction: Direction, now: Ns, bytes: u64) -> bool {
        let side = self.side(direction);
        side.credit.try_spend(bytes) || side.pay(now, bytes)
    }

    /// A bio waits from now on. Its lane.
    pub(super) fn begin_waiting(&mut self, direction: Direction) -> Arc<Lane> {
        let side = self.side(direction);
        side.give_back();
        side.waiting += 1;
        side.path.as_ref().expect("something limits it").lane.clone()
    }

    fn has_waiting(&self) -> bool {
        self.sides.iter().any(|side| side.waiting > 0)
    }

    /// Go by `rules`. False if they have no such group any more. Lanes that may let bios go
    /// earlier, because credit went back, are `given`; lanes where bios wait are `visited`.
    fn refresh(
        &mut self,
        rules: &Rules,
        visited: &mut Visited,
        given: &mut Vec<Arc<Lane>>,
    ) -> bool {
        let ruled = rules.get(self.group);
        for direction in Direction::ALL {
            let side = self.side(direction);
            let gave = side.give_back();
            let path = ruled.and_then(|ruled| ruled.path(direction)).cloned();
            if path.is_some() || side.waiting == 0 {
                *side = Side { waiting: side.waiting, ..Side::new(path) };
            }
            // Else new bios go the way of those that still wait, behind them.
            given.extend(side.path.iter().filter(|_| gave).map(|path| path.lane.clone()));
            if let Some(path) = side.path.as_ref().filter(|_| side.waiting > 0) {
                visited.add(&path.lane, side.waiting);
            }
        }
        ruled.is_some()
    }

    /// The entry goes.
    fn retire(&mut self, device: &DeviceThrottle) {
        self.sides.iter_mut().for_each(|side| _ = side.give_back());
        device.retire(self.group, &self.counts);
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Entries {
    /// By slot.
    current: Vec<Option<Box<Entry>>>,
    former: Vec<Entry>,
}

impl Entries {
    /// The entry of `group`, if it has one.
    #[inline(always)]
    pub(super) fn find(&mut self, group: GroupId) -> Option<&mut Entry> {
        let entry = self.current.get_mut(group.slot())?.as_deref_mut()?;
        (entry.group == group).then_some(entry)
    }

    /// The entry of `group`, made if need be. `None` if `rules` have no such group.
    pub(super) fn find_or_make(
        &mut self,
        group: GroupId,
        rules: &Rules,
        device: &DeviceThrottle,
    ) -> Option<&mut Entry> {
        if self.find(group).is_none() {
            self.make(group, rules, device)?;
        }
        self.find(group)
    }

    fn make(&mut self, group: GroupId, rules: &Rules, device: &DeviceThrottle) -> Option<()> {
        let ruled = rules.get(group)?;
        let slot = group.slot();
        if self.current.len() <= slot {
            self.current.resize_with(slot + 1, || None);
        }
        if let Some(entry) = self.current[slot].take() {
            self.former.push(*entry);
            self.retire_former(device);
        }
        let sides = Direction::ALL.map(|direction| Side::new(ruled.path(direction).cloned()));
        let counts = device.counts(group);
        self.current[slot] = Some(Box::new(Entry { group, counts, sides }));
        Some(())
    }

    /// Go by `rules`. `visited`, which is empty, gets the lanes where bios wait. The lanes that may
    /// let bios go earlier, because credit went back to limits there.
    pub(super) fn refresh(
        &mut self,
        rules: &Rules,
        device: &DeviceThrottle,
        visited: &mut Visited,
    ) -> Vec<Arc<Lane>> {
        let mut given = Vec::new();
        for slot in &mut self.current {
            let Some(entry) = slot else { continue };
            let exists = entry.refresh(rules, visited, &mut given);
            if !exists && !entry.has_waiting() {
                entry.retire(device);
                *slot = None;
            }
        }
        for entry in &mut self.former {
            entry.refresh(rules, visited, &mut given);
        }
        given
    }

    /// `bio`, which waited, waits no more. Its entry.
    pub(super) fn end_waiting(
        &mut self,
        bio: &Bio,
        rules: &Rules,
        visited: &mut Visited,
    ) -> &mut Entry {
        let (group, direction) = (GroupId::of(bio), Direction::of(bio));
        let former = self.former.iter_mut().position(|entry| entry.group == group);
        let entry = match former {
            Some(at) => Some(&mut self.former[at]),
            None => self.find(group),
        };
        let entry = entry.expect("it stays while bios of it wait");
        let side = entry.side(direction);
        visited.take(&side.path.as_ref().expect("something limited it").lane);
        side.waiting -= 1;
        if side.waiting == 0 && rules.path(group, direction).is_none() {
            *side = Side::new(None);
        }
        entry
    }

    /// Retire the former entries of which no bio waits any more.
    pub(super) fn retire_former(&mut self, device: &DeviceThrottle) {
        for mut entry in self.former.extract_if(.., |entry| !entry.has_waiting()) {
            entry.retire(device);
        }
    }

    /// Retire all entries: the channel goes.
    pub(super) fn retire_all(&mut self, device: &DeviceThrottle) {
        let current = self.current.drain(..).flatten().map(|entry| *entry);
        current.chain(self.former.drain(..)).for_each(|mut entry| entry.retire(device));
    }
}
