//! The groups whose bios came through one channel: their local credit and their waiting bios.
//!
//! Invariants:
//! * The entry of a group is in the slot of the group's number. If another group has got the slot,
//!   the entry is a *former* one, which stays while bios of its group wait.
//! * While a bio of a group and direction waits, `waiting` counts it, and so does the lane of its
//!   path ([`Visited`]).
//! * Credit goes back to the limits when the rules change, when a bio has to wait, and when the
//!   entry is dropped.

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
    /// The number of bios that wait.
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

    /// Give the credit back. False if there was none.
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

    /// Count `bio`, which passes.
    #[inline(always)]
    pub(super) fn count(&self, bio: &Bio) {
        self.counts.passed(counted_at(bio), bio.bytes, 1);
    }

    /// Pay for an I/O of `bytes`, by credit or at the limits. False if it has to wait.
    pub(super) fn pay(&mut self, direction: Direction, now: Ns, bytes: u64) -> bool {
        let side = self.side(direction);
        side.credit.try_spend(bytes) || side.pay(now, bytes)
    }

    /// Note that a bio waits from now on. Returns its lane.
    pub(super) fn begin_waiting(&mut self, direction: Direction) -> Arc<Lane> {
        let side = self.side(direction);
        side.give_back();
        side.waiting += 1;
        side.path.as_ref().expect("something limits it").lane.clone()
    }

    fn has_waiting(&self) -> bool {
        self.sides.iter().any(|side| side.waiting > 0)
    }

    /// Follow `rules`. False if they do not have this group any more. `given` gets the lanes that
    /// may let bios go earlier because credit was given back; `visited` gets the lanes where bios
    /// wait.
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
            // With a new path new bios take it. Without one they use the old path, behind the bios
            // that wait.
            given.extend(side.path.iter().filter(|_| gave).map(|path| path.lane.clone()));
            if let Some(path) = side.path.as_ref().filter(|_| side.waiting > 0) {
                visited.add(&path.lane, side.waiting);
            }
        }
        ruled.is_some()
    }

    /// Give the credit and the counters back, because the entry is dropped.
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

    /// The entry of `group`, made if there is none. `None` if `rules` do not have the group.
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

    /// Follow `rules`. `visited`, which is empty, gets the lanes where bios wait. Returns the lanes
    /// that may let bios go earlier because credit was given back.
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

    /// Note that `bio` does not wait any more. Returns its entry.
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

    /// Drop the former entries without waiting bios.
    pub(super) fn retire_former(&mut self, device: &DeviceThrottle) {
        for mut entry in self.former.extract_if(.., |entry| !entry.has_waiting()) {
            entry.retire(device);
        }
    }

    /// Drop all entries, because the channel is dropped.
    pub(super) fn retire_all(&mut self, device: &DeviceThrottle) {
        let current = self.current.drain(..).flatten().map(|entry| *entry);
        current.chain(self.former.drain(..)).for_each(|mut entry| entry.retire(device));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::testing::{NOW, Scene, free, group, limited};
    use super::*;
    use crate::rules::Ruled;
    use Direction::Write;

    /// The entries of a channel, and the lanes where its bios wait.
    struct Fixture {
        scene: Scene,
        entries: Entries,
        visited: Visited,
    }

    fn fixture(scene: Scene) -> Fixture {
        Fixture { scene, entries: Entries::default(), visited: Visited::default() }
    }

    impl Fixture {
        /// Change the rules. Returns the lanes to which credit was given back.
        fn refresh(&mut self, scene: Scene) -> Vec<Arc<Lane>> {
            self.scene = scene;
            self.visited.clear();
            self.entries.refresh(&self.scene.rules, &self.scene.device, &mut self.visited)
        }

        fn entry(&mut self, id: GroupId) -> &mut Entry {
            let made = self.entries.find_or_make(id, &self.scene.rules, &self.scene.device);
            made.expect("the rules have the group")
        }

        /// Let a write of a group wait.
        fn queue(&mut self, id: GroupId) {
            let lane = self.entry(id).begin_waiting(Write);
            self.visited.add_new(&lane);
        }

        /// End the wait of a write of a group. Returns the group of its entry.
        fn grant(&mut self, id: GroupId) -> GroupId {
            let bio = self.scene.bio(id);
            self.entries.end_waiting(&bio, &self.scene.rules, &mut self.visited).group
        }
    }

    #[test]
    fn an_entry_stands_in_the_slot_of_its_group_alone() {
        let (one, next) = (group(3, 0), group(3, 1));
        let mut it = fixture(Scene::new(&[free(one)]));
        assert!(it.entries.find(one).is_none());
        assert_eq!(it.entry(one).group, one);
        assert!(it.entries.find(one).is_some() && it.entries.find(next).is_none());
        let none = it.entries.find_or_make(next, &it.scene.rules, &it.scene.device);
        assert!(none.is_none(), "the rules do not have it");
        it.refresh(Scene::new(&[free(next)]));
        assert!(it.entry(next).group == next && it.entries.find(one).is_none());
    }

    #[test]
    fn a_former_entry_stays_while_bios_of_it_wait() {
        let (before, next) = (group(3, 0), group(3, 1));
        let mut it = fixture(Scene::new(&[limited(before)]));
        it.queue(before);
        it.queue(before);
        it.refresh(Scene::new(&[limited(next)]));
        it.queue(next);
        assert_eq!(it.grant(before), before);
        it.entries.retire_former(&it.scene.device);
        assert_eq!((it.grant(before), it.grant(next)), (before, next));
        it.entries.retire_former(&it.scene.device);
        assert!(it.entries.former.is_empty());
    }

    #[test]
    fn a_group_that_is_no_more_keeps_its_entry_until_no_bio_waits() {
        let (idle, waits) = (group(1, 0), group(2, 0));
        let mut it = fixture(Scene::new(&[limited(idle), limited(waits)]));
        it.entry(idle);
        it.queue(waits);
        it.refresh(Scene::new(&[]));
        assert!(it.entries.find(idle).is_none() && it.entries.find(waits).is_some());
        assert_eq!(it.grant(waits), waits);
        it.refresh(Scene::new(&[]));
        assert!(it.entries.find(waits).is_none());
    }

    #[test]
    fn a_lane_counts_the_bios_of_all_groups_that_wait_there() {
        let (one, other) = (group(1, 0), group(2, 0));
        let parent = limited(one);
        let child = Arc::new(Ruled { id: other, paths: parent.paths.clone() });
        let rules = || Scene::new(&[parent.clone(), child.clone()]);
        let mut it = fixture(rules());
        it.queue(one);
        it.queue(other);
        it.queue(other);
        assert_eq!(it.visited.counts(), [3]);
        it.grant(other);
        assert_eq!(it.visited.counts(), [2]);
        it.refresh(rules());
        assert_eq!(it.visited.counts(), [2]);
    }

    #[test]
    fn bios_wait_on_where_others_wait_when_the_limit_is_gone() {
        let id = group(1, 0);
        let mut it = fixture(Scene::new(&[limited(id)]));
        it.queue(id);
        it.refresh(Scene::new(&[free(id)]));
        assert_eq!(it.visited.counts(), [1]);
        assert!(!it.entry(id).credit(Write).0.is_unlimited(), "they do not overtake");
        it.grant(id);
        assert!(it.entry(id).credit(Write).0.is_unlimited());
    }

    #[test]
    fn credit_goes_back_to_the_limit_when_it_is_of_no_more_use() {
        let id = group(1, 0);
        let rules = limited(id);
        let scene = || Scene::new(std::slice::from_ref(&rules));
        let ends: [fn(&mut Fixture, GroupId, Scene); 3] = [
            |it, id, _| it.queue(id),
            |it, _, scene| assert_eq!(it.refresh(scene).len(), 1),
            |it, _, _| it.entries.retire_all(&it.scene.device),
        ];
        for end in ends {
            let mut it = fixture(scene());
            let before = it.scene.owed(id);
            assert!(it.entry(id).pay(Write, NOW, 512));
            let leased = it.scene.owed(id) - before;
            end(&mut it, id, scene());
            let paid = it.scene.owed(id) - before;
            assert!(paid > 0 && 2 * paid < leased, "{paid} is paid of {leased}");
            assert!(it.refresh(scene()).is_empty(), "there is nothing more to give back");
        }
    }
}
