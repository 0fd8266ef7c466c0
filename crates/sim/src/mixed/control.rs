//! The administrator of the running stack: changes its devices, volumes and groups, and puts faults
//! on the disks.

use super::flushes::Outcome;
use super::plan::{FaultPlan, Target};
use super::run::Run;
use super::started::{PATHS, Started};
use crate::stack::one;
use drystone_core::context::PollMode;
use drystone_core::{Bio, IoBuf, Op, Sector, Status};
use drystone_stack::live::LiveRuntime;
use drystone_stack::runtime::{Change, Runtime};
use drystone_throttle as throttle;
use fastrand::Rng;
use std::rc::Rc;

/// Rates in bytes or I/Os a second: none is so small that a bio waits for minutes.
const RATES: [Option<u64>; 6] =
    [None, None, Some(2_000), Some(1_000_000), Some(50_000_000), Some(u64::MAX)];
/// Attributes of leaves, each with values.
const ATTRIBUTES: [(&str, &[&str]); 11] = [
    ("queue/scheduler", &["none", "mq-deadline"]),
    ("queue/nr_requests", &["1", "3", "16", "64"]),
    ("queue/hw_queues", &["1", "2", "4"]),
    ("queue/nomerges", &["0", "1", "2"]),
    ("queue/max_sectors_kb", &["4", "16", "0"]),
    ("queue/io_timeout", &["60", "1000", "30000"]),
    ("queue/iosched/straight", &["0", "1"]),
    ("queue/iosched/fifo_batch", &["1", "16"]),
    ("queue/iosched/async_depth", &["1", "4"]),
    ("queue/iostats", &["0", "1"]),
    ("queue/iosched/read_expire", &["0", "1", "500"]),
];
const SUSPENDED_NS: u64 = 3_000_000;
/// Sectors at the beginning of a disk in which bad ones are.
const USED_SECTORS: u64 = 600;
const WITHIN_NS: u64 = 2_000_000_000;

/// The fiber that makes the changes.
pub(super) struct Control {
    pub(super) run: Rc<Run>,
    start: Rc<Started>,
    rng: Rng,
    runtime: LiveRuntime,
    /// The number of devices made so far, for their names.
    made: u64,
}

impl Control {
    pub(super) fn new(run: Rc<Run>, start: Rc<Started>, seed: u64) -> Self {
        let world = run.world.clone();
        let runtime = start.stack().runtime(Box::new(move |ns| world.sleep(ns)));
        Control { run, start, rng: Rng::with_seed(seed), runtime, made: 0 }
    }

    /// Make changes during the start's share of the work. The first start has at least one reload
    /// and one fault.
    pub(super) fn run(mut self, first: bool) {
        let changes = self.run.plan.changes;
        let begin = self.run.progress.begun();
        // The loads may have done all I/Os before this fiber begins.
        let share = self.start.limit().saturating_sub(begin);
        if first {
            // A reload may fail because of faults.
            let reloads = |run: &Run| run.counts.borrow().get("reload");
            for _ in 0..8 {
                if reloads(&self.run) == 0 && self.start.goes_on(&self.run) {
                    self.reload();
                }
            }
            let plan = self.run.plan.faults.clone();
            if !plan.cuts {
                (0..self.run.world.disks()).for_each(|disk| self.chances(disk, &plan));
            }
        }
        for change in 1..=changes {
            let at = begin + share * change / (changes + 1);
            self.start.wait_for(&self.run, at);
            if !self.start.goes_on(&self.run) {
                break;
            }
            self.change();
        }
        self.calm();
        drop(self.runtime);
        self.start.end_control();
    }

    pub(super) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// One of the disks.
    pub(super) fn disk(&mut self) -> usize {
        self.rng.u64(0..self.run.world.disks() as u64) as usize
    }

    pub(super) fn count(&self, what: &str) {
        self.run.world.note(|| what.to_owned());
        self.run.counts.borrow_mut().add(what, 1);
    }

    fn change(&mut self) {
        if self.run.plan.faults.cuts {
            return self.cut_off();
        }
        match self.rng.u32(0..20) {
            0..3 => self.reload(),
            3 => self.suspend(),
            4..8 => self.set_attribute(),
            8 => self.switch_polling(),
            9 | 10 => self.limit(),
            11 => self.group(),
            12 => self.grow(),
            13 => self.come_and_go(),
            15 | 16 => self.move_volume(),
            14 => self.look(),
            _ => self.bad_luck(),
        }
    }

    /// One of the volumes.
    fn volume(&mut self) -> Option<Target> {
        let all: Vec<_> = self.run.plan.targets.iter().filter(|t| !t.tables.is_empty()).collect();
        let n = self.rng.u64(0..all.len().max(1) as u64) as usize;
        all.get(n).copied().cloned()
    }

    fn reload(&mut self) {
        let Some(mut target) = self.volume() else { return };
        if target.moves.is_some() {
            target.tables = vec![self.run.table_of(&target.name)];
        }
        let number = self.run.plan.targets.iter().position(|t| t.name == target.name);
        let grown = number.is_some_and(|n| self.run.sectors(n) > target.sectors);
        let tables = if grown { &target.tables[..0] } else { &target.tables[..] };
        let n = self.rng.u64(0..tables.len().max(1) as u64) as usize;
        let longer = target.longer.as_ref().map(|longer| &longer.0);
        let Some(table) = tables.get(n).or(longer) else { return };
        let change = Change::Reload { table, force: true, resume_within: Some(WITHIN_NS) };
        let done = self.runtime.change(&target.name, &change);
        self.count(if done.is_ok() { "reload" } else { "reload refused" });
        if done.is_err() {
            let _ = self.runtime.change(&target.name, &Change::Clear);
        }
    }

    fn suspend(&mut self) {
        let Some(target) = self.volume() else { return };
        let within = self.rng.bool().then_some(WITHIN_NS);
        let done = self.runtime.change(&target.name, &Change::Suspend { within });
        self.count(if done.is_ok() { "suspend" } else { "suspend refused" });
        let ns = self.rng.u64(0..SUSPENDED_NS);
        self.run.world.sleep(ns);
        self.resume(&target.name);
    }

    /// Moves a volume to other sectors: suspends it, copies its data, flushes, and resumes it with
    /// another table.
    fn move_volume(&mut self) {
        let all = self.run.plan.targets.iter().filter(|target| target.moves.is_some());
        let all: Vec<Target> = all.cloned().collect();
        let n = self.rng.u64(0..all.len().max(1) as u64) as usize;
        let Some(target) = all.get(n) else { return };
        let Some(mut places) = target.moves.clone() else { return };
        let table =
            |(leaf, at): &(String, u64)| format!("0 {} linear {leaf} {at}\n", target.sectors);
        if self.run.table_of(&target.name) != table(&places[0]) {
            places.swap(0, 1);
        }
        let suspend = Change::Suspend { within: Some(WITHIN_NS) };
        if self.runtime.change(&target.name, &suspend).is_err() {
            self.count("suspend refused");
            let _ = self.runtime.change(&target.name, &Change::Resume { within: WITHIN_NS });
            return;
        }
        let copied = self.copy(&places, target.sectors);
        if copied {
            let table = table(&places[1]);
            let load = Change::Reload { table: &table, force: true, resume_within: None };
            if self.runtime.change(&target.name, &load).is_ok() {
                self.run.set_table(&target.name, &table);
            }
        }
        self.count(if copied { "move" } else { "move given up" });
        self.resume(&target.name);
    }

    /// Copy the data of the first place to the second one, and flush.
    fn copy(&self, [from, to]: &[(String, u64); 2], sectors: u64) -> bool {
        let mut cx = self.start.context(&self.run.world);
        let mut io = |leaf: &str, bio| match cx.open(&self.start.device(leaf)) {
            Ok(index) => one(&mut cx, index, bio),
            Err(_) => {
                let mut failed = Bio::flush();
                failed.status = Status::IoError;
                failed
            }
        };
        let read = io(&from.0, Bio::read(Sector(from.1), IoBuf::zeroed(sectors as usize * 512)));
        let (ok, mut read) = (read.status == Status::Ok && read.op == Op::Read, read);
        let Some(data) = read.take_buf().filter(|_| ok) else { return false };
        let written = io(&to.0, Bio::write(Sector(to.1), data)).status;
        written == Status::Ok && io(&to.0, Bio::flush()).status == Status::Ok
    }

    /// Resumes a suspended volume; otherwise its I/Os would wait for ever.
    fn resume(&self, volume: &str) {
        for _ in 0..100 {
            let resumed = self.runtime.change(volume, &Change::Resume { within: WITHIN_NS });
            if resumed.is_ok() || self.run.off.get() {
                return;
            }
        }
        self.run.world.fail(format!("{volume} cannot be resumed"));
    }

    fn set_attribute(&mut self) {
        let leaves = &self.run.plan.leaves;
        let leaf = leaves[self.rng.u64(0..leaves.len() as u64) as usize].clone();
        let (name, values) = ATTRIBUTES[self.rng.u64(0..ATTRIBUTES.len() as u64) as usize];
        let value = values[self.rng.u64(0..values.len() as u64) as usize];
        // Some leaves have no scheduler, or not as many tags.
        let done = self.start.device(&leaf).set_attribute(name, value);
        let refused = if done.is_ok() { "" } else { " refused" };
        self.count(&format!("set {name}{refused}"));
    }

    fn switch_polling(&mut self) {
        let mode = PollMode::ALL[self.rng.u64(0..PollMode::ALL.len() as u64) as usize];
        self.start.stack().poll_switch().set(mode);
        self.count("poll mode");
        if self.run.plan.leaves.iter().any(|leaf| leaf == "n") {
            let value = if self.rng.bool() { "1" } else { "0" };
            let done = self.start.device("n").set_attribute("queue/io_poll", value);
            self.count(if done.is_ok() {
                "set queue/io_poll"
            } else {
                "set queue/io_poll refused"
            });
        }
        self.reopen_failed();
    }

    fn rate(&mut self) -> Option<Option<u64>> {
        let rate = RATES[self.rng.u64(0..RATES.len() as u64) as usize];
        self.rng.bool().then_some(rate)
    }

    fn limit(&mut self) {
        let path = PATHS[self.rng.u64(0..4) as usize];
        let devices = self.runtime.devices();
        let device = &devices[self.rng.u64(0..devices.len() as u64) as usize].name;
        let at_least = |rate: Option<Option<u64>>, least: u64| {
            rate.map(|rate| rate.map(|rate| rate.max(least)))
        };
        let (rbps, wbps) = (self.rate(), self.rate());
        let change = throttle::Change {
            rbps: at_least(rbps, 1_000_000),
            wbps: at_least(wbps, 1_000_000),
            riops: self.rate(),
            wiops: self.rate(),
        };
        let done = self.start.stack().groups().set_max(path, device, &change);
        self.count(if done.is_ok() { "limit" } else { "limit refused" });
    }

    fn group(&mut self) {
        let (path, groups) = (PATHS[self.rng.u64(0..4) as usize], self.start.stack().groups());
        if self.rng.u32(0..3) == 0 {
            let done = groups.remove(path).is_ok();
            return self.count(if done { "group removed" } else { "group not removed" });
        }
        if let Ok(group) = groups.create(path) {
            self.start.add_group(group.id().as_u32());
            self.count("group created");
        }
    }

    /// Grows a disk and the volume over it.
    fn grow(&mut self) {
        let all = self.run.plan.targets.iter().enumerate();
        let longer = all.filter_map(|(n, t)| Some((n, t.name.clone(), t.longer.clone()?)));
        let Some((n, name, (table, sectors, leaf, bytes))) = longer.into_iter().next() else {
            return;
        };
        let grown = self.start.device(&leaf).set_attribute("size_bytes", &bytes.to_string());
        let change = Change::Reload { table: &table, force: true, resume_within: Some(WITHIN_NS) };
        if grown.is_err() || self.runtime.change(&name, &change).is_err() {
            return self.count("growth refused");
        }
        self.count("growth");
        self.run.grown(n, sectors);
    }

    fn come_and_go(&mut self) {
        self.made += 1;
        let name = format!("w{}", self.made);
        let table = Some("0 8 zero\n8 8 error\n");
        let create = Change::Create { table, read_only: false, force: false };
        let made = self.runtime.change(&name, &create).is_ok();
        self.count(if made { "create" } else { "create refused" });
        if made && self.runtime.change(&name, &Change::Remove).is_ok() {
            self.count("remove");
        }
        self.reopen_failed();
    }

    /// Reopens the file of a disk, twice. The driver may learn of an earlier flush failure only by
    /// the first reopen, and the failure counts for the new file, too.
    fn reopen(&self, disk: usize) {
        let name = format!("d{disk}");
        let has_failed = self.start.device(&name).attribute("flush_failed").as_deref() == Some("1");
        self.run.faults.reopen(disk, &self.run.progress, || {
            let done = [(); 2].map(|()| self.runtime.reopen(&name, false));
            self.count(match &done[0] {
                Ok(_) if has_failed => "reopen after a failed flush",
                Ok(_) => "reopen",
                Err(_) => "reopen refused",
            });
            match done {
                [Ok(true), Ok(true)] => Outcome::Reopened,
                [Err(_), Err(_)] => Outcome::Refused,
                _ => Outcome::Doubtful,
            }
        });
    }

    /// Reopens the file of each disk whose flushes fail, as an administrator would.
    fn reopen_failed(&self) {
        for disk in 0..self.run.world.disks() {
            let device = self.start.device(&format!("d{disk}"));
            if device.attribute("flush_failed").as_deref() == Some("1") {
                self.reopen(disk);
            }
        }
    }

    /// Reads status and statistics, which the data path writes all the time.
    fn look(&mut self) {
        let _ = self.runtime.diskstats();
        let _ = self.runtime.group_stats(None, false);
        let _ = self.runtime.locks().stats();
        let _ = self.runtime.volumes();
        for device in self.runtime.devices() {
            let _ = self.runtime.device(&device.name);
        }
        self.count("look");
        self.reopen_failed();
    }

    /// Puts faults on a disk.
    fn bad_luck(&mut self) {
        let plan = self.run.plan.faults.clone();
        let disks = self.run.world.disks() as u64;
        let disk = self.rng.u64(0..disks) as usize;
        let kind = self.rng.u32(0..10);
        // Early, before most of the sectors to be written are allocated.
        let fills = plan.full && self.run.counts.borrow().get("disk full") == 0;
        match if fills { 6 } else { kind } {
            0..5 => self.chances(disk, &plan),
            5 if plan.bad_sectors => self.bad_sector(disk),
            6 if plan.full => self.for_a_while(disk, "disk full", |faults| faults.full = true),
            7 if plan.device_errors => {
                let (reads, writes) = (self.rng.bool(), self.rng.bool());
                self.for_a_while(disk, "disk fails", move |faults| {
                    (faults.reads_fail, faults.writes_fail) = (reads, writes);
                });
            }
            8 if plan.vanish => {
                self.run.world.disk(disk, |disk| disk.vanish());
                self.count("disk vanishes");
            }
            9 => {
                self.run.world.disk(disk, |disk| *disk.faults() = Default::default());
                self.count("faults end");
                self.reopen(disk);
            }
            _ => self.chances(disk, &plan),
        }
    }

    fn chances(&mut self, disk: usize, plan: &FaultPlan) {
        self.run.world.disk(disk, |disk| {
            let faults = disk.faults();
            faults.read_error_ppm = plan.read_error_ppm;
            faults.write_error_ppm = plan.write_error_ppm;
            faults.flush_error_ppm = plan.flush_error_ppm;
            faults.flush_error_drops = plan.flush_error_drops;
            faults.stall_ppm = plan.stall_ppm;
            faults.short_ppm = plan.short_ppm;
            // Each seed gets at least one kind of fault.
            faults.interrupted_ppm = plan.interrupted_ppm.max(20_000);
            faults.again_ppm = plan.again_ppm;
            faults.write_repairs = true;
        });
        if plan.bad_sectors {
            (0..6).for_each(|_| self.bad_sector(disk));
        }
        self.count("faults begin");
    }

    /// Makes a sector bad, most likely where volumes begin.
    fn bad_sector(&mut self, disk: usize) {
        let (sector, reads) = (self.rng.u64(0..USED_SECTORS), self.rng.bool());
        self.run.world.disk(disk, |disk| {
            let faults = disk.faults();
            let set = if reads { &mut faults.bad_reads } else { &mut faults.bad_writes };
            set.insert(sector);
        });
        self.run.faults.spoil(disk, sector);
        self.count("bad sector");
    }

    fn for_a_while(&mut self, disk: usize, what: &str, act: impl FnOnce(&mut crate::disk::Faults)) {
        self.run.world.disk(disk, |disk| act(disk.faults()));
        self.count(what);
        let ns = self.rng.u64(0..20_000_000);
        self.run.world.sleep(ns);
        self.run.world.disk(disk, |disk| {
            let faults = disk.faults();
            (faults.full, faults.reads_fail, faults.writes_fail) = (false, false, false);
        });
    }

    fn calm(&mut self) {
        for disk in 0..self.run.world.disks() {
            self.run.world.disk(disk, |disk| *disk.faults() = Default::default());
        }
    }
}
