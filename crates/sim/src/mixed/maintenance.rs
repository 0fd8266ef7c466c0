//! Events of an array during a crash enumeration, beside its load: a member fails, or goes and
//! comes back, or the array is checked or repaired.
//!
//! Invariants:
//! * At most one event is on at a time, and the run's health names it while it lasts.
//! * A member counts as hurt from before its fault until it is whole again.
//! * The fiber counts as a control of the start until it has dropped its administrator.

use super::array::Admin;
use super::plan::ArrayEvent;
use super::run::Run;
use super::started::Started;
use drystone_core::clock::Ns;
use drystone_raid::SyncAction;
use drystone_raid::array::{ArrayState, ArrayStatus, Command, DiskState};
use fastrand::Rng;
use std::rc::Rc;

/// The speed of a synchronisation beside the load, in KiB a second: so high that the load does not
/// slow it.
const FAST: u64 = 1 << 20;
/// The pause between two checks whether the array is dirty: less than a write takes.
const LOOK_NS: Ns = 10_000;
/// Checks or repairs, at most.
const ROUNDS: u32 = 6;

/// The fiber that causes the plan's event.
struct Maintenance {
    run: Rc<Run>,
    start: Rc<Started>,
    admin: Admin,
    rng: Rng,
}

/// Spawn the fiber that causes the plan's event, if the plan has an array.
pub(super) fn spawn_maintenance(run: &Rc<Run>, start: &Rc<Started>, rng: &mut Rng) {
    let Some(admin) = Admin::new(run, start) else { return };
    let (run, rng) = (run.clone(), Rng::with_seed(rng.u64(..)));
    let (world, start) = (run.world.clone(), start.clone());
    start.begin_control();
    let maintenance = Maintenance { run, start, admin, rng };
    world.spawn("maintenance", move || maintenance.run());
}

impl Maintenance {
    fn run(mut self) {
        match self.run.plan.array_event {
            ArrayEvent::Nothing | ArrayEvent::Degraded => {}
            ArrayEvent::Fails => self.fail(),
            ArrayEvent::Returns => self.come_back(false),
            ArrayEvent::Replaced => self.come_back(true),
            ArrayEvent::Check => self.synchronise("checked", SyncAction::Check),
            ArrayEvent::Repair => self.synchronise("repaired", SyncAction::Repair),
            ArrayEvent::Copied => self.copy(),
        }
        drop(self.admin);
        self.start.end_control();
    }

    /// Waits until so many quarters of the I/Os have begun from now on.
    fn let_pass(&mut self, quarters: u64) {
        let ahead = self.run.progress.begun() + self.run.plan.ios * quarters / 4;
        self.start.wait_for(&self.run, ahead.min(self.start.limit()));
    }

    /// Picks a member, which counts as hurt from now on.
    fn hurt_member(&mut self) -> usize {
        let disk = self.member();
        self.run.health.hurt(disk);
        disk
    }

    fn member(&mut self) -> usize {
        let status = self.admin.status();
        let is_member =
            |disk: &usize| matches!(Admin::state(&status, *disk), Some((DiskState::InSync(_), _)));
        let members: Vec<_> = (0..self.run.world.disks()).filter(is_member).collect();
        members[self.rng.u64(0..members.len() as u64) as usize]
    }

    fn fail(&mut self) {
        let quarters = self.rng.u64(0..3);
        self.let_pass(quarters);
        // A write of data must meet the fault first, not the write of the superblock that makes the
        // array dirty.
        while self.admin.status().state != ArrayState::Active && self.start.goes_on(&self.run) {
            self.run.world.sleep(LOOK_NS);
        }
        let disk = self.hurt_member();
        self.run.health.set_event(Some("a member failed"));
        self.run.world.disk(disk, |disk| disk.faults().writes_fail = true);
    }

    fn come_back(&mut self, is_new: bool) {
        let _ = self.admin.order("speed", Command::Speed { min: Some(FAST), max: Some(FAST) });
        self.let_pass(1);
        let disk = self.hurt_member();
        let _ = self.admin.order("fail", Command::Fail(Admin::name(disk)));
        self.run.health.set_event(Some("a member was away"));
        self.let_pass(1);
        self.run.health.set_event(Some(if is_new {
            "a new member came"
        } else {
            "a member came back"
        }));
        self.admin.back(disk, is_new);
        let is_whole = |status: &ArrayStatus| status.degraded() == 0 && status.sync.is_none();
        if self.admin.wait("whole", is_whole) {
            self.run.health.heal(disk);
            self.run.health.set_event(None);
        }
    }

    /// Replaces a member. The array stays whole all the while, so no disk is hurt.
    fn copy(&mut self) {
        let _ = self.admin.order("speed", Command::Speed { min: Some(FAST), max: Some(FAST) });
        self.let_pass(1);
        let disk = self.member();
        self.run.health.set_event(Some("a member was replaced"));
        if self.admin.order("replace", Command::Replace(Admin::name(disk))).is_ok() {
            let is_member =
                |status: &ArrayStatus| Admin::state(status, disk).map(|(state, _)| state);
            let has_left =
                |status: &ArrayStatus| !matches!(is_member(status), Some(DiskState::InSync(_)));
            self.admin.wait("replaced", |status| has_left(status) && status.sync.is_none());
        }
        self.run.health.set_event(None);
    }

    fn synchronise(&mut self, what: &'static str, action: SyncAction) {
        let _ = self.admin.order("speed", Command::Speed { min: Some(FAST), max: Some(FAST) });
        for _ in 0..ROUNDS {
            if self.admin.order(what, Command::Sync(action)).is_ok() {
                self.run.health.set_event(Some(what));
            }
            self.admin.wait_until_settled();
            self.run.health.set_event(None);
            if !self.start.goes_on(&self.run) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::boot::start_once;
    use super::super::plan::Plan;
    use super::super::shutdown::{Shutdown, end};
    use super::super::testing::{array, on_fiber, run_of};
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;

    /// Causes `array_event` on an array without load. Returns the run, and the events that were on
    /// meanwhile.
    fn maintained(array_event: ArrayEvent) -> (Rc<Run>, BTreeSet<&'static str>) {
        let run = run_of(Plan { array_event, ..array() });
        let (events, over) = (Rc::new(Cell::new(BTreeSet::new())), Rc::new(Cell::new(false)));
        let (seen, ends) = (events.clone(), over.clone());
        let ended = on_fiber(&run, move |run| {
            let start = start_once(run, false, false).expect("it starts");
            Admin::new(run, &start).expect("an array").wait_until_settled();
            let watched = run.clone();
            run.world.spawn("watcher", move || {
                while !over.get() {
                    let mut all = seen.take();
                    all.extend(watched.health.restore(watched.health.snapshot(true)));
                    seen.set(all);
                    watched.world.sleep(LOOK_NS);
                }
            });
            spawn_maintenance(run, &start, &mut Rng::with_seed(1));
            assert_eq!(start.controls(), 1);
            Shutdown::new(run, &start).finish_work();
            ends.set(true);
            end(run, start);
        });
        ended.expect("all is well");
        (run, events.take())
    }

    /// True if no disk is known to be hurt.
    fn is_well(run: &Run) -> bool {
        run.health.hurt_disks().is_empty() && run.health.retain_wiped(|_| false).is_empty()
    }

    #[test]
    fn a_member_that_comes_back_is_hurt_until_it_is_whole() {
        let (run, events) = maintained(ArrayEvent::Returns);
        assert_eq!(events, BTreeSet::from(["a member came back"]));
        let (run_new, events) = maintained(ArrayEvent::Replaced);
        assert_eq!(events, BTreeSet::from(["a new member came"]));
        for run in [run, run_new] {
            let counts = run.counts.borrow();
            assert_eq!((counts.get("array: fail"), counts.get("array: add")), (1, 1));
            assert!(is_well(&run) && run.health.restore(run.health.snapshot(true)).is_none());
        }
    }

    #[test]
    fn a_member_that_fails_is_hurt_for_good() {
        let (run, events) = maintained(ArrayEvent::Fails);
        assert!(events.contains("a member failed"), "{events:?}");
        assert_eq!(run.health.hurt_disks().len(), 1);
    }

    #[test]
    fn a_check_hurts_no_member() {
        let (run, _) = maintained(ArrayEvent::Check);
        assert!(is_well(&run) && run.counts.borrow().get("array: checked") > 0);
    }
}
