//! The operator: starts the stack, lets fibers load and change it, and ends each start, until the
//! work of a run is done.
//!
//! Invariant: the operator draws its random numbers in the order of its actions, and lends its
//! generator to each part that it calls.

use super::array::Admin;
use super::boot::{is_hurt, start_stack};
use super::control::Control;
use super::examine::examine;
use super::life::Life;
use super::load::spawn_loads;
use super::nbd::spawn_server;
use super::run::Run;
use super::shutdown::{Shutdown, end};
use super::started::Started;
use super::stops::stop_in_order;
use crate::disk::Disk;
use fastrand::Rng;
use std::rc::Rc;

/// See the module's text.
pub(super) struct Operator {
    run: Rc<Run>,
    rng: Rng,
}

impl Operator {
    pub(super) fn new(run: Rc<Run>, seed: u64) -> Self {
        Operator { run, rng: Rng::with_seed(seed) }
    }

    pub(super) fn operate(mut self) {
        let starts = self.run.plan.starts;
        for number in 1..=starts {
            let Some(start) = start_stack(&self.run, &mut self.rng, number > 1) else { return };
            let (begun, ios) = (self.run.progress.begun(), self.run.plan.ios);
            let share = ios / starts;
            let limit = if number < starts { begun + share } else { ios.max(begun + share / 2) };
            start.set_limit(limit);
            self.spawn(&start, number == 1);
            if number == starts {
                self.finish(&start);
            } else if self.run.has_array() && self.rng.u32(0..3) == 0 {
                stop_in_order(&self.run, &start, &mut self.rng);
            } else {
                self.cut_at(&start, limit, number > 1);
            }
            end(&self.run, start);
        }
        // A last start compares all data that was flushed before.
        if let Some(start) = start_stack(&self.run, &mut self.rng, true) {
            end(&self.run, start);
        }
    }

    fn spawn(&mut self, start: &Rc<Started>, first: bool) {
        let run = self.run.clone();
        match run.plan.nbd {
            Some(_) => spawn_server(&run, start, &mut self.rng),
            None => spawn_loads(&run, start, &mut self.rng),
        }
        start.begin_control();
        let (run, start, seed) = (run.clone(), start.clone(), self.rng.u64(..));
        let world = run.world.clone();
        match Life::new(&run, &start, seed) {
            Some(life) => world.spawn("control", move || life.run()),
            None => world.spawn("control", move || Control::new(run, start, seed).run(first)),
        }
    }

    /// Let the loads work, and cut the power at a random moment.
    fn cut_at(&mut self, start: &Rc<Started>, limit: u64, may_kill: bool) {
        let begin = self.run.progress.begun();
        let left = limit.saturating_sub(begin);
        let at = begin + self.rng.u64(left / 2..=left);
        Shutdown::new(&self.run, start).watch(|run| run.progress.begun() >= at.min(limit));
        let ns = self.rng.u64(0..2_000_000);
        self.run.world.sleep(ns);
        self.cut(start, may_kill);
        start.stack().stop();
    }

    fn cut(&mut self, start: &Started, may_kill: bool) {
        let run = &self.run;
        run.health.set_was_hurt(is_hurt(run, start.stack()));
        // A vanished disk has lost its power already: then the cut must not be a kill, which keeps
        // caches.
        let gone = |disk| !run.world.disk(disk, |disk: &mut Disk| disk.is_on());
        let kill = may_kill && self.rng.u32(0..4) == 0 && !(0..run.world.disks()).any(gone);
        run.power_off(kill);
    }

    /// Finishes the last start: its work is done, and an array is examined.
    fn finish(&mut self, start: &Rc<Started>) {
        Shutdown::new(&self.run, start).finish_work();
        if let Some(admin) = Admin::new(&self.run, start) {
            examine(&admin, &mut self.rng);
        }
        self.cut(start, true);
        start.stack().stop();
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::super::testing::{on_fiber, run_of, two_disks};
    use super::*;

    /// A run of three starts, and its digest and number of events.
    fn operated(seed: u64) -> (Rc<Run>, (u64, u64)) {
        let run = run_of(Plan { ios: 60, starts: 3, ..two_disks() });
        let ended = on_fiber(&run, move |run| Operator::new(run.clone(), seed).operate());
        ended.expect("all is well");
        let sum = run.world.sum();
        (run, sum)
    }

    #[test]
    fn each_start_ends_without_power_and_a_last_one_looks() {
        let (run, _) = operated(5);
        let counts = run.counts.borrow();
        assert_eq!(counts.get("start"), 4);
        assert_eq!(counts.get("power cut") + counts.get("kill"), 3);
        assert!(run.progress.begun() >= 60 && run.progress.open() == 0);
    }

    #[test]
    fn the_seed_decides_all() {
        let (one, same, other) = (operated(5).1, operated(5).1, operated(6).1);
        assert!(one == same && one != other, "{one:?}, {same:?}, {other:?}");
    }
}
