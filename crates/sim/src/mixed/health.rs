//! The operator's knowledge of an array's disks, beyond the status of the array itself.
//!
//! Invariants:
//! * A disk is hurt from before its first fault until it is known to be a whole member again.
//! * A wiped disk belongs to no array until it was added and the operator knows of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// See the module's text. In a run without an array it stays empty.
#[derive(Default)]
pub(super) struct ArrayHealth {
    hurt: RefCell<BTreeSet<usize>>,
    wiped: RefCell<BTreeSet<usize>>,
    is_adding: Cell<bool>,
    was_hurt: Cell<bool>,
    rebuilt: Cell<Option<(usize, u64)>>,
    event: Cell<Option<&'static str>>,
}

/// The knowledge when the power goes.
#[derive(Clone)]
pub(super) struct HealthSnapshot {
    was_hurt: bool,
    wiped: BTreeSet<usize>,
    is_adding: bool,
    event: Option<&'static str>,
}

impl ArrayHealth {
    /// Counts the disk as hurt.
    pub(super) fn hurt(&self, disk: usize) {
        self.hurt.borrow_mut().insert(disk);
    }

    /// The disk is a whole member again.
    pub(super) fn heal(&self, disk: usize) {
        self.hurt.borrow_mut().remove(&disk);
    }

    /// A start begins: no disk is hurt any more.
    pub(super) fn heal_all(&self) {
        self.hurt.borrow_mut().clear();
    }

    /// True if the disk is not a whole member, or may soon not be one.
    pub(super) fn is_hurt(&self, disk: usize) -> bool {
        self.hurt.borrow().contains(&disk)
    }

    /// All disks that are hurt, by number.
    pub(super) fn hurt_disks(&self) -> Vec<usize> {
        self.hurt.borrow().iter().copied().collect()
    }

    /// The disk is wiped, and belongs to no array.
    pub(super) fn wipe(&self, disk: usize) {
        self.wiped.borrow_mut().insert(disk);
    }

    /// Drops the wiped disks that have become members by `is_member`. Returns the others.
    pub(super) fn retain_wiped(&self, is_member: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut wiped = self.wiped.borrow_mut();
        wiped.retain(|disk| !is_member(*disk));
        wiped.iter().copied().collect()
    }

    /// A disk is being added: the other superblocks may call it a member before the operator knows.
    pub(super) fn begin_adding(&self) {
        self.is_adding.set(true);
    }

    /// The addition has ended. The disk that was `added` is no longer a wiped one.
    pub(super) fn end_adding(&self, added: Option<usize>) {
        self.is_adding.set(false);
        added.iter().for_each(|disk| _ = self.wiped.borrow_mut().remove(disk));
    }

    /// True if a disk was being added when the power went.
    pub(super) fn is_adding(&self) -> bool {
        self.is_adding.get()
    }

    /// Sets whether the array lacked a member, or was about to, when the power went.
    pub(super) fn set_was_hurt(&self, was_hurt: bool) {
        self.was_hurt.set(was_hurt);
    }

    /// True if the array lacked a member, or was about to, when the power went.
    pub(super) fn was_hurt(&self) -> bool {
        self.was_hurt.get()
    }

    /// Notes that a member was rebuilt up to a sector when the array was stopped.
    pub(super) fn stop_rebuild(&self, disk: usize, done: u64) {
        self.rebuilt.set(Some((disk, done)));
    }

    /// Takes the disk on which a member was being rebuilt when the array was stopped, and its
    /// rebuilt sectors.
    pub(super) fn take_rebuilt(&self) -> Option<(usize, u64)> {
        self.rebuilt.take()
    }

    /// Notes that an event of the array besides its load begins or ends.
    pub(super) fn set_event(&self, event: Option<&'static str>) {
        self.event.set(event);
    }

    /// The knowledge now, for a start after a cut. `is_used` keeps the event: I/Os are in flight
    /// beside it.
    pub(super) fn snapshot(&self, is_used: bool) -> HealthSnapshot {
        HealthSnapshot {
            was_hurt: !self.hurt.borrow().is_empty(),
            wiped: self.wiped.borrow().clone(),
            is_adding: self.is_adding.get(),
            event: self.event.get().filter(|_| is_used),
        }
    }

    /// Restores the knowledge from when the power went. Returns the event that was on beside I/Os.
    pub(super) fn restore(&self, known: HealthSnapshot) -> Option<&'static str> {
        self.was_hurt.set(known.was_hurt);
        self.wiped.replace(known.wiped);
        self.is_adding.set(known.is_adding);
        known.event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_wiped_until_it_was_added() {
        let health = ArrayHealth::default();
        health.wipe(3);
        health.wipe(1);
        health.begin_adding();
        assert!(health.is_adding());
        health.end_adding(None);
        assert_eq!(health.retain_wiped(|_| false), [1, 3]);
        health.end_adding(Some(3));
        assert_eq!(health.retain_wiped(|_| false), [1]);
        assert!(health.retain_wiped(|disk| disk == 1).is_empty());
    }

    #[test]
    fn a_start_after_a_cut_knows_what_was_known() {
        let before = ArrayHealth::default();
        before.hurt(2);
        before.wipe(0);
        before.set_event(Some("checked"));
        let after = ArrayHealth::default();
        assert_eq!(after.restore(before.snapshot(true)), Some("checked"));
        assert!(after.was_hurt() && !after.is_hurt(2), "faults end with the power");
        assert_eq!(after.retain_wiped(|_| false), [0]);
        assert_eq!(after.restore(before.snapshot(false)), None);
    }

    #[test]
    fn a_disk_is_hurt_until_it_is_whole_or_the_stack_starts() {
        let health = ArrayHealth::default();
        [2, 0, 1].iter().for_each(|disk| health.hurt(*disk));
        health.heal(0);
        assert!(!health.is_hurt(0) && health.is_hurt(1));
        assert_eq!(health.hurt_disks(), [1, 2]);
        health.heal_all();
        assert!(health.hurt_disks().is_empty());
    }

    #[test]
    fn a_rebuild_that_was_stopped_is_told_once() {
        let health = ArrayHealth::default();
        health.stop_rebuild(1, 800);
        assert_eq!((health.take_rebuilt(), health.take_rebuilt()), (Some((1, 800)), None));
    }
}
