//! Events of an array under load: members fail and come back, disks have faults, and the array is
//! checked, repaired and changed.

use super::array::Admin;
use super::run::Run;
use super::started::Started;
use crate::disk::Faults;
use drystone_core::clock::Ns;
use drystone_raid::SyncAction;
use drystone_raid::array::Command;
use fastrand::Rng;
use std::rc::Rc;

/// The longest that a disk has a fault.
const FAULT_NS: Ns = 200_000_000;
/// The sectors among which bad ones are drawn: all that a small array uses, and its metadata.
const DISK_SECTORS: u64 = 4096;

/// The events of one start.
pub(super) struct Life {
    pub(super) run: Rc<Run>,
    start: Rc<Started>,
    pub(super) admin: Admin,
    pub(super) rng: Rng,
}

impl Life {
    pub(super) fn new(run: &Rc<Run>, start: &Rc<Started>, seed: u64) -> Option<Self> {
        let admin = Admin::new(run, start)?;
        let (run, start) = (run.clone(), start.clone());
        Some(Life { run, start, admin, rng: Rng::with_seed(seed) })
    }

    /// Causes events until the start's share of the work is done, or the power goes.
    pub(super) fn run(mut self) {
        self.run.counts.borrow_mut().add("array: start", 1);
        // Early, before most of the sectors to be written are allocated.
        if self.run.plan.faults.full {
            self.fill();
        }
        for _ in 0..self.run.plan.changes {
            self.let_pass(100);
            if !self.start.goes_on(&self.run) {
                break;
            }
            self.something();
        }
        drop(self.admin);
        self.start.end_control();
    }

    /// Waits until a few more I/Os have begun, fewer than `most`.
    fn let_pass(&mut self, most: u64) {
        let ahead = self.run.progress.begun() + self.rng.u64(0..most);
        self.start.wait_for(&self.run, ahead.min(self.start.limit()));
    }

    fn something(&mut self) {
        if self.run.plan.faults.cuts {
            return self.cut_off();
        }
        match self.rng.u32(0..22) {
            0 => self.order("check asked", Command::Sync(SyncAction::Check)),
            1 => self.order("repair asked", Command::Sync(SyncAction::Repair)),
            2 => self.order("idle", Command::Idle),
            3 => self.freeze(),
            4 => self.speed(),
            5 => self.resize(),
            6 => self.replace(),
            7 | 8 => self.lose(),
            9..13 => self.rebuild_with_errors(),
            13 if self.run.plan.faults.full => self.fill(),
            _ => self.fault(),
        }
    }

    pub(super) fn order(&self, what: &str, command: Command) {
        let _ = self.admin.order(what, command);
    }

    fn freeze(&mut self) {
        self.order("frozen", Command::Freeze(true));
        let ns = self.rng.u64(0..FAULT_NS);
        self.run.world.sleep(ns);
        self.order("not frozen", Command::Freeze(false));
    }

    fn speed(&mut self) {
        let min = [100, 1000, 100_000][self.rng.u64(0..3) as usize];
        self.order("speed", Command::Speed { min: Some(min), max: None });
    }

    fn resize(&mut self) {
        let stripes = ["17", "18", "40", "300"][self.rng.u64(0..4) as usize];
        let level = ["0", "1", "2"][self.rng.u64(0..3) as usize];
        for (name, value) in [("md/stripe_cache_size", stripes), ("md/rmw_level", level)] {
            if let Err(error) = self.start.device("a").set_attribute(name, value) {
                self.run.world.fail(format!("{name}={value} is refused: {error}"));
            }
        }
        self.run.counts.borrow_mut().add("array: cache resized", 1);
    }

    pub(super) fn disk(&mut self) -> usize {
        self.rng.u64(0..self.run.world.disks() as u64) as usize
    }

    fn replace(&mut self) {
        let disk = self.disk();
        self.admin.replace(disk);
    }

    /// Fails a member, and later brings it back, or a new one.
    fn lose(&mut self) {
        let disk = self.disk();
        if !self.admin.hurt_if_spared(disk) {
            return;
        }
        self.order("fail", Command::Fail(format!("d{disk}")));
        self.let_pass(80);
        self.admin.heal(disk);
    }

    /// Puts faults on a disk for a while, and perhaps longer.
    fn fault(&mut self) {
        let disk = self.disk();
        if !self.admin.hurt_if_spared(disk) {
            return;
        }
        let kind = self.rng.u32(0..8);
        let what = self.hurt(disk, kind);
        self.run.world.note(|| format!("disk {disk}: {what}"));
        self.run.counts.borrow_mut().add(&format!("array: {what}"), 1);
        let ns = self.rng.u64(0..FAULT_NS);
        self.run.world.sleep(ns);
        if self.rng.u32(0..4) > 0 {
            self.admin.heal(disk);
        }
    }

    fn hurt(&mut self, disk: usize, kind: u32) -> &'static str {
        let ppm = 1 + self.rng.u32(0..300_000);
        let sectors: Vec<u64> = (0..20).map(|_| self.rng.u64(0..DISK_SECTORS)).collect();
        let world = &self.run.world;
        let faults = |change: &mut dyn FnMut(&mut Faults)| {
            world.disk(disk, |disk| {
                disk.faults().write_repairs = true;
                change(disk.faults());
            });
        };
        match kind {
            0 => faults(&mut |faults| faults.read_error_ppm = ppm),
            1 => faults(&mut |faults| faults.write_error_ppm = ppm),
            2 => faults(&mut |faults| faults.flush_error_ppm = ppm),
            3 => faults(&mut |faults| faults.bad_reads.extend(&sectors)),
            4 => faults(&mut |faults| faults.bad_writes.extend(&sectors)),
            5 => faults(&mut |faults| faults.writes_fail = true),
            6 => faults(&mut |faults| (faults.reads_fail, faults.writes_fail) = (true, true)),
            _ => world.disk(disk, |disk| disk.vanish()),
        }
        let what = ["read errors", "write errors", "flush errors", "bad to read", "bad to write"];
        what.get(kind as usize).copied().unwrap_or(match kind {
            5 => "writes fail",
            6 => "a disk fails",
            _ => "a disk vanishes",
        })
    }
}
