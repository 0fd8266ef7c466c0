//! The scenario `raid-metadata`: an array is stopped in order, some of its members are edited, and
//! it is started again. The array must start with the data that it held, or refuse and change
//! nothing.
//!
//! Invariants:
//! * Each round begins with the disks and the oracles as the stop left them.

use super::array::Admin;
use super::boot::start_once;
use super::compare::compare;
use super::edits::Edits;
use super::load::spawn_loads;
use super::plan::{chance, stack_file};
use super::run::Run;
use super::shutdown::{Shutdown, end};
use super::started::Started;
use crate::disk::Disk;
use crate::oracle::Oracle;
use crate::stack;
use drystone_raid::array::Command;
use fastrand::Rng;
use std::rc::Rc;

/// The edits of the members of a seed.
const ROUNDS: u32 = 6;
/// I/Os of a start.
const USE: u64 = 40;
const SECTOR: usize = 512;

/// The state with which each round begins.
struct Base {
    disks: Vec<Disk>,
    oracles: Vec<Oracle>,
}

/// The operator of an array whose members are edited.
struct Edited {
    run: Rc<Run>,
    rng: Rng,
}

/// Make an array, use and stop it, and start it on edited members again and again.
pub(super) fn operate(run: Rc<Run>, seed: u64) {
    Edited { run, rng: Rng::with_seed(seed) }.operate();
}

impl Edited {
    /// Make an array, use and stop it, and start it on edited members again and again.
    fn operate(mut self) {
        if !self.use_and_stop(false) {
            return;
        }
        let before = self.disks();
        if !self.use_and_stop(true) {
            return;
        }
        let base = Base { disks: self.disks(), oracles: self.run.oracles.borrow().clone() };
        for _ in 0..ROUNDS {
            self.round(&before);
            if self.run.world.failure().is_some() {
                return;
            }
            self.put_back(&base);
        }
    }

    fn disks(&self) -> Vec<Disk> {
        let world = &self.run.world;
        (0..world.disks()).map(|disk| world.disk(disk, |disk| disk.clone())).collect()
    }

    fn put_back(&self, base: &Base) {
        for (number, disk) in base.disks.iter().enumerate() {
            self.run.world.disk(number, |own| *own = disk.clone());
        }
        self.run.oracles.borrow_mut().clone_from(&base.oracles);
    }

    /// Runs one start, which ends in order; sometimes a member fails in it. False if the run has
    /// failed.
    fn use_and_stop(&mut self, may_fail: bool) -> bool {
        let Some(start) = start_once(&self.run, false, false) else { return false };
        let fails = may_fail && chance(&mut self.rng, 25);
        if let Some(admin) = Admin::new(&self.run, &start)
            && admin.wait_until_settled()
            && fails
        {
            let disk = self.rng.u64(0..self.run.world.disks() as u64) as usize;
            let _ = admin.order("fail", Command::Fail(Admin::name(disk)));
        }
        self.work_on(&start);
        end(&self.run, start);
        self.run.world.failure().is_none()
    }

    fn work_on(&mut self, start: &Rc<Started>) {
        start.set_limit(self.run.progress.begun() + USE);
        spawn_loads(&self.run, start, &mut self.rng);
        Shutdown::new(&self.run, start).finish_work();
        if let Some(admin) = Admin::new(&self.run, start) {
            admin.wait_until_settled();
        }
    }

    /// Edit members, start the array, use it, stop it, and start it once more.
    fn round(&mut self, before: &[Disk]) {
        Edits::new(&self.run, &mut self.rng).edit_members(before);
        let run_too = self.rng.bool();
        let written = self.written();
        let Some(start) = self.start_edited(run_too) else { return };
        self.count("edited: started");
        self.work_on(&start);
        compare(&self.run, &start);
        self.judge_left_out(&start, &written);
        end(&self.run, start);
        if self.run.world.failure().is_some() {
            return;
        }
        if let Some(start) = self.start_edited(true) {
            end(&self.run, start);
        }
    }

    /// The number of times that each disk has been written so far.
    fn written(&self) -> Vec<u64> {
        let writes = |disk: &mut Disk| {
            let counts = disk.counts();
            counts.writes + counts.discards + counts.write_zeroes
        };
        (0..self.run.world.disks()).map(|disk| self.run.world.disk(disk, writes)).collect()
    }

    /// Start the array and compare all its data. `None` if it refuses to start.
    fn start_edited(&mut self, run_too: bool) -> Option<Rc<Started>> {
        self.run.faults.restart_counts();
        let (disks, written) = (self.disks(), self.written());
        let mut text = stack_file(&self.run.plan.text, &self.run.volumes.borrow());
        if run_too {
            text = text.replace("[device.a]\n", "[device.a]\nrun = true\n");
        }
        let stack = match stack::open(&self.run.world, text) {
            Ok(stack) => stack,
            Err(why) => {
                self.refused(&why, &disks, &written);
                return None;
            }
        };
        let start = Started::new(&self.run, stack);
        if start.device("a").info().size_bytes / SECTOR as u64 >= self.run.sectors(0) {
            compare(&self.run, &start);
            return Some(start);
        }
        self.run.world.fail("the array is smaller than it was");
        end(&self.run, start);
        None
    }

    /// Judges a refusal: no disk may have changed. A write of equal bytes is allowed, because the
    /// array replays a log to find out whether the disk is writable.
    fn refused(&self, why: &str, disks: &[Disk], written: &[u64]) {
        self.count("edited: refused");
        self.run.world.note(|| format!("refused: {why}"));
        let has_changed = |disk: &usize| {
            let now = self.run.world.disk(*disk, |disk| disk.contents());
            now != disks[*disk].contents()
        };
        let now = self.written();
        let mut written = (0..disks.len()).filter(|disk| now[*disk] != written[*disk]);
        if let Some(disk) = written.find(has_changed) {
            self.run.world.fail(format!("the array is refused, and d{disk} has changed: {why}"));
        }
    }

    /// Checks that a start writes nothing to a disk that is left out.
    fn judge_left_out(&self, start: &Rc<Started>, written: &[u64]) {
        let Some(admin) = Admin::new(&self.run, start) else { return };
        let status = admin.status();
        for (disk, (before, now)) in written.iter().zip(self.written()).enumerate() {
            if Admin::state(&status, disk).is_some() {
                continue;
            }
            self.count("edited: a member left out");
            if *before != now {
                self.run.world.fail(format!("d{disk} is left out of the array, and is written"));
            }
        }
    }

    fn count(&self, what: &str) {
        self.run.world.note(|| what.to_owned());
        self.run.counts.borrow_mut().add(what, 1);
    }
}
