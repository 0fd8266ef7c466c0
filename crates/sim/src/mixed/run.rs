//! One run: starts of one stack on one set of disks, until a power cut, a kill or the end.
//!
//! Invariants:
//! * `off` is raised in the same instant in which the disks lose their power: what the block layer
//!   does after that is heard by nobody, and only has to come to an end.
//! * Nothing borrowed from here is kept across a pause.

use super::control::Control;
use super::disk_faults::DiskFaults;
use super::flushes::Flush;
use super::health::ArrayHealth;
use super::io::Io;
use super::life::Life;
use super::load::Load;
use super::nbd::{self, Served};
use super::plan::{DeviceKind, Plan, Target};
use super::progress::Progress;
use crate::counts::Counts;
use crate::disk::Disk;
use crate::oracle::{Grown, Oracle};
use crate::order::Keep;
pub(super) use crate::stack::one;
use crate::world::World;
use drystone_core::clock::Ns;
use drystone_core::context::Handle;
use drystone_core::{
    Bio, BioFlags, Context, ContextSet, DevIndex, Device, IoBuf, Op, Sector, Status,
};
use drystone_stack::live::{LiveStack, SleepFn};
use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Time without an I/O that ends, although some could, after which nothing goes on any more: longer
/// than the longest stall and the slowest limit together.
const PATIENCE_NS: Ns = 600_000_000_000;
/// And pauses of fibers meanwhile: time leaps where nothing happens, which makes nobody slow.
const PATIENCE_PAUSES: u64 = 2_000_000;
/// How often the operator looks.
const LOOK_NS: Ns = 200_000;
/// Sectors that are read at once to compare everything.
const COMPARED: u64 = 64;
/// How often it is tried again to stop an array.
const STOPS: u32 = 10;
/// How often a read that timed out is tried again then.
const TRIES: u32 = 20;

/// What all fibers of a run share.
pub(super) struct Run {
    pub(super) world: World,
    pub(super) plan: Rc<Plan>,
    pub(super) oracles: RefCell<Vec<Oracle>>,
    /// The volumes with the tables that a start gives them.
    pub(super) volumes: RefCell<Vec<(String, String)>>,
    /// Sectors of each target by now.
    pub(super) sizes: RefCell<Vec<u64>>,
    /// The power is off.
    pub(super) off: Cell<bool>,
    pub(super) counts: RefCell<Counts>,
    pub(super) progress: Progress,
    pub(super) faults: DiskFaults,
    pub(super) health: ArrayHealth,
    /// The I/O that something is wrong with.
    pub(super) culprit: Cell<Option<u64>>,
}

/// A stack that runs.
pub(super) struct Started {
    pub(super) stack: LiveStack,
    pub(super) set: Arc<ContextSet>,
    pub(super) handles: RefCell<Vec<Arc<Handle>>>,
    /// Numbers of groups, of which some are no more.
    pub(super) groups: RefCell<Vec<u32>>,
    /// Fibers that have not ended.
    pub(super) loads: Cell<u64>,
    pub(super) controls: Cell<u64>,
    pub(super) served: Served,
    /// I/Os of contexts that were dropped: nobody learns how they end.
    pub(super) orphans: RefCell<Vec<Io>>,
    /// Begun I/Os at which its share is done.
    pub(super) limit: Cell<u64>,
}

impl Started {
    pub(super) fn limit(&self) -> u64 {
        self.limit.get()
    }

    pub(super) fn device(&self, name: &str) -> Arc<dyn Device> {
        let all = self.stack.devices();
        all.iter().find(|live| live.name == name).expect("a device of the plan").device.clone()
    }
}

impl Run {
    pub(super) fn new(world: World, plan: Plan, keep: Option<Keep>, seed: u64) -> Rc<Self> {
        let mut rng = Rng::with_seed(seed);
        for options in &plan.disks {
            world.add_disk(Disk::new(options.clone(), rng.u64(..)));
        }
        if let Some(nbd) = &plan.nbd {
            world.set_net(nbd.net, rng.u64(..));
        }
        let oracles = (0..plan.targets.len()).map(|n| fresh(&plan, n)).collect();
        Self::over(world, Rc::new(plan), keep, oracles)
    }

    /// A run on the disks that the world has, of which the oracles know.
    pub(super) fn over(
        world: World,
        plan: Rc<Plan>,
        keep: Option<Keep>,
        oracles: Vec<Oracle>,
    ) -> Rc<Self> {
        let sizes = plan.targets.iter().map(|target| target.sectors).collect();
        Rc::new(Run {
            progress: Progress::new(world.clone(), keep),
            faults: DiskFaults::new(world.clone()),
            health: ArrayHealth::default(),
            world,
            oracles: RefCell::new(oracles),
            sizes: RefCell::new(sizes),
            volumes: RefCell::new(plan.volumes.clone()),
            plan,
            off: Cell::new(false),
            counts: RefCell::default(),
            culprit: Cell::new(None),
        })
    }

    pub(super) fn sectors(&self, target: usize) -> u64 {
        self.sizes.borrow()[target]
    }

    /// The table that a start gives a volume.
    pub(super) fn table_of(&self, volume: &str) -> String {
        let volumes = self.volumes.borrow();
        let found = volumes.iter().find(|(name, _)| name == volume);
        found.map(|(_, table)| table.clone()).unwrap_or_default()
    }

    /// The table that a start gives a volume from now on.
    pub(super) fn set_table(&self, volume: &str, table: &str) {
        for (name, of) in self.volumes.borrow_mut().iter_mut() {
            if name == volume {
                table.clone_into(of);
            }
        }
    }

    /// A target has become longer.
    pub(super) fn grown(&self, target: usize, sectors: u64) {
        let oracle = &mut self.oracles.borrow_mut()[target];
        if sectors > oracle.sectors() {
            oracle.grow(sectors, Grown::Zeroes);
        }
        self.sizes.borrow_mut()[target] = sectors;
    }

    /// Whether threads go on with their work.
    pub(super) fn goes_on(&self, start: &Started) -> bool {
        !self.off.get() && self.progress.begun() < start.limit.get()
    }

    /// The running fiber sleeps until so many I/Os have begun, or this start's work is over.
    pub(super) fn wait_for(&self, begun: u64, start: &Started) {
        self.progress.wait_for(begun, || self.goes_on(start));
    }

    pub(super) fn note_begin(&self, number: u64, context: u64, io: &Io, bio: &Bio) {
        self.world.digest(number ^ bio.sector.0.rotate_left(32) ^ self.world.now());
        // What a client has in memory is nothing that a disk sees.
        if self.plan.nbd.is_none() {
            self.world.memory_of(number, bio.buf().map(|buf| &buf[..]));
        }
        self.world.note(|| {
            let name = &self.plan.targets[io.target].name;
            let Io { op, range, flags, .. } = io;
            format!(
                "I/O {number}: context {context}: {op:?} of {name}, sectors {range:?}, {flags:?}"
            )
        });
    }

    pub(super) fn end_io(&self, number: u64, io: Io, bio: &Bio) {
        self.progress.end();
        self.world.digest(number ^ ((bio.status as u64) << 56) ^ self.world.now());
        self.world.memory_of(number, None);
        self.world.note(|| format!("I/O {number}: ends: {:?}", bio.status));
        self.count(&io, bio.status);
        self.admit_losses();
        let is_flush = io.op == Op::Flush && !self.off.get();
        if is_flush && let Err(sentence) = self.flush_ended(io.target, number, bio.status) {
            self.world.fail(format!("I/O {number}: {sentence}"));
        }
        if let Err(sentence) = io.end(self, bio) {
            self.culprit.set(Some(number));
            self.world.fail(format!("I/O {number}: {sentence}"));
        }
    }

    fn count(&self, io: &Io, status: Status) {
        let mut counts = self.counts.borrow_mut();
        counts.add("I/O", 1);
        counts.add(op_name(io.op), 1);
        counts.add(self.plan.targets[io.target].kind, 1);
        for (flag, name) in FLAGS {
            counts.add(name, u64::from(io.flags.contains(flag)));
        }
        counts.add("failed", u64::from(status != Status::Ok));
        if status == Status::Ok {
            counts.add(&format!("{} succeeded", op_name(io.op)), 1);
        }
    }

    /// A failed flush may have lost what was written before it, on its own disk.
    pub(super) fn admit_losses(&self) {
        for disk in 0..self.world.disks() {
            if !self.faults.take_dropped(disk) {
                continue;
            }
            let mut oracles = self.oracles.borrow_mut();
            let all = oracles.iter_mut().zip(&self.plan.targets);
            for (oracle, _) in all.filter(|(_, target)| target.disks.contains(&disk)) {
                oracle.drop_undurable(0..oracle.sectors());
            }
        }
    }

    /// Whether there is a reason for an error of a target.
    pub(super) fn has_failed(&self, target: &Target) -> bool {
        self.faults.may_fail(target, 0..u64::MAX)
    }

    /// A flush of `target` that began as number `number` has ended.
    fn flush_ended(&self, target: usize, number: u64, status: Status) -> Result<(), &'static str> {
        let to = &self.plan.targets[target];
        let [disk] = to.disks[..] else { return Ok(()) };
        if to.fails || to.device_kind != DeviceKind::Keeps {
            return Ok(());
        }
        let begun = self.progress.begun();
        self.faults.judge_flush(&Flush { target, disk, number, status, begun })
    }
}

/// An oracle of zeroes.
pub(super) fn fresh(plan: &Plan, target: usize) -> Oracle {
    let Target { sectors, device_kind, .. } = plan.targets[target];
    let mut oracle = Oracle::new(target as u32, sectors);
    if device_kind == DeviceKind::Lies {
        oracle.distrust_flushes(0..sectors);
    }
    oracle
}

const FLAGS: [(BioFlags, &str); 5] = [
    (BioFlags::FUA, "FUA"),
    (BioFlags::PREFLUSH, "PREFLUSH"),
    (BioFlags::NOWAIT, "NOWAIT"),
    (BioFlags::POLLED, "POLLED"),
    (BioFlags::NOUNMAP, "NOUNMAP"),
];

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
    }
}

/// Runs it all, as a fiber.
pub(super) struct Operator {
    pub(super) run: Rc<Run>,
    pub(super) rng: Rng,
}

impl Operator {
    pub(super) fn new(run: Rc<Run>, seed: u64) -> Self {
        Operator { run, rng: Rng::with_seed(seed) }
    }

    pub(super) fn operate(mut self) {
        let starts = self.run.plan.starts;
        for number in 1..=starts {
            let Some(start) = self.start(number > 1) else { return };
            let (begun, ios) = (self.run.progress.begun(), self.run.plan.ios);
            let share = ios / starts;
            let limit = if number < starts { begun + share } else { ios.max(begun + share / 2) };
            start.limit.set(limit);
            self.spawn(&start, number == 1);
            if number == starts {
                self.finish(&start);
            } else if self.run.has_array() && self.rng.u32(0..3) == 0 {
                self.stop_in_order(&start);
            } else {
                self.cut_at(&start, limit, number > 1);
            }
            self.end(start);
        }
        // All that was flushed in the end is there.
        if let Some(start) = self.start(true) {
            self.end(start);
        }
    }

    /// Read everything that is kept.
    pub(super) fn compare(&self, start: &Started) {
        let run = &self.run;
        let mut cx = start.set.context(run.world.ring());
        for (number, target) in run.plan.targets.iter().enumerate() {
            if matches!(target.device_kind, DeviceKind::Zero | DeviceKind::Error) || target.fails {
                continue;
            }
            let device = start.device(&target.name);
            let Ok(index) = cx.open(&device) else {
                return run.world.fail(format!("{} cannot be opened again", target.name));
            };
            let sectors = run.sectors(number);
            let mut at = 0;
            while at < sectors && run.world.failure().is_none() {
                let end = sectors.min(at + COMPARED);
                self.compare_one(&mut cx, index, number, at..end);
                at = end;
            }
        }
    }

    fn compare_one(
        &self,
        cx: &mut Context,
        device: DevIndex,
        target: usize,
        range: std::ops::Range<u64>,
    ) {
        let run = &self.run;
        let first = run.plan.targets[target].first + range.start;
        let bytes = (range.end - range.start) as usize * 512;
        let id = run.oracles.borrow_mut()[target].read_begins(range.clone());
        let read = || Bio::read(Sector(first), IoBuf::zeroed(bytes));
        let mut bio = one(cx, device, read());
        if run.off.get() {
            return;
        }
        // A disk may be slower than the time-out says.
        for _ in 0..TRIES {
            if bio.status == Status::Timeout && run.has_failed(&run.plan.targets[target]) {
                bio = one(cx, device, read());
            }
        }
        let name = &run.plan.targets[target].name;
        run.counts.borrow_mut().add("compared after a start", 1);
        let judged = match bio.status {
            Status::Ok => {
                let data = bio.buf().expect("a read has a buffer");
                let read = run.oracles.borrow_mut()[target].read_ends_ok(id, data);
                read.map_err(|violation| violation.to_string())
            }
            status => Err(format!("sectors {range:?} cannot be read: {status:?}")),
        };
        if let Err(sentence) = judged {
            run.world.fail(format!("after a start, {name}: {sentence}"));
        }
    }

    fn spawn(&mut self, start: &Rc<Started>, first: bool) {
        let run = self.run.clone();
        match run.plan.nbd {
            Some(_) => nbd::spawn(&run, start, &mut self.rng),
            None => self.spawn_loads(start),
        }
        start.controls.set(1);
        let (run, start, seed) = (run.clone(), start.clone(), self.rng.u64(..));
        let world = run.world.clone();
        match Life::new(&run, &start, seed) {
            Some(life) => world.spawn("control", move || life.run()),
            None => world.spawn("control", move || Control::new(run, start, seed).run(first)),
        }
    }

    pub(super) fn spawn_loads(&mut self, start: &Rc<Started>) {
        let run = &self.run;
        start.loads.set(run.plan.contexts);
        for number in 0..run.plan.contexts {
            let (run, start, seed) = (run.clone(), start.clone(), self.rng.u64(..));
            run.world.clone().spawn(format!("context {number}"), move || {
                Load::new(run, start, number, seed).run();
            });
        }
    }

    /// Let it work until the power goes, at any moment.
    fn cut_at(&mut self, start: &Rc<Started>, limit: u64, may_kill: bool) {
        let begin = self.run.progress.begun();
        let left = limit.saturating_sub(begin);
        let at = begin + self.rng.u64(left / 2..=left);
        self.watch(start, |run| run.progress.begun() >= at.min(limit));
        let ns = self.rng.u64(0..2_000_000);
        self.run.world.sleep(ns);
        self.cut(start, may_kill);
        start.stack.stop();
    }

    fn cut(&mut self, start: &Started, may_kill: bool) {
        let run = &self.run;
        run.health.set_was_hurt(super::boot::is_hurt(run, &start.stack));
        // A disk that is gone has lost its power already.
        let gone = |disk| !run.world.disk(disk, |disk: &mut Disk| disk.is_on());
        let kill = may_kill && self.rng.u32(0..4) == 0 && !(0..run.world.disks()).any(gone);
        run.power_off(kill);
    }

    /// The last start.
    fn finish(&mut self, start: &Rc<Started>) {
        self.finish_work(start);
        self.examine(start);
        self.cut(start, true);
        start.stack.stop();
    }

    /// Let all work end, then make it durable.
    pub(super) fn finish_work(&self, start: &Rc<Started>) {
        let limit = start.limit.get();
        self.watch(start, |run| run.progress.begun() >= limit);
        self.watch(start, |_| start.controls.get() == 0);
        if !self.run.plan.nbd.as_ref().is_some_and(|plan| plan.stops_early) {
            self.watch(start, |_| start.loads.get() == 0);
        }
        self.stop_serving(start);
        self.settle(start);
        self.flush(start);
    }

    /// An orderly end of the server, if there is one: all that it has acknowledged has happened.
    fn stop_serving(&self, start: &Rc<Started>) {
        if self.run.plan.nbd.is_some() {
            start.stack.stop();
            start.served.stop();
        }
        self.watch(start, |_| start.loads.get() == 0 && start.served.workers() == 0);
    }

    /// Nothing is in flight any more: what dropped contexts left has ended, too.
    fn settle(&self, start: &Rc<Started>) {
        self.watch(start, |_| start.set.free_idle_orphans() == 0);
        self.settle_orphans(start);
    }

    /// What contexts left in flight that were dropped has ended once they are idle.
    fn settle_orphans(&self, start: &Started) {
        let orphans = start.orphans.take();
        if orphans.is_empty() || self.run.off.get() {
            return;
        }
        // More may come meanwhile.
        if start.set.free_idle_orphans() > 0 {
            return start.orphans.borrow_mut().extend(orphans);
        }
        if !self.run.off.get() && self.run.world.failure().is_none() {
            orphans.into_iter().for_each(|io| io.lost(&self.run));
        }
    }

    fn flush(&self, start: &Started) {
        let run = &self.run;
        let mut cx = start.set.context(run.world.ring());
        for (number, target) in run.plan.targets.iter().enumerate() {
            let keeps = target.device_kind == DeviceKind::Keeps;
            let Some(device) = keeps.then(|| start.device(&target.name)) else { continue };
            let Ok(index) = cx.open(&device) else { continue };
            let id = run.oracles.borrow_mut()[number].flush_begins();
            let status = one(&mut cx, index, Bio::flush()).status;
            run.oracles.borrow_mut()[number].flush_ends(id, status == Status::Ok);
            if status != Status::Ok && !run.has_failed(target) && !target.fails {
                run.world.fail(format!("{}: the last flush ended with {status:?}", target.name));
            }
        }
    }

    /// Wait until `over`, and see that there is progress.
    fn watch(&self, start: &Rc<Started>, over: impl Fn(&Run) -> bool) {
        let run = &self.run;
        run.progress.note();
        while !over(run) && run.world.failure().is_none() {
            // What clients have left is in flight as long as the server likes.
            if run.plan.nbd.is_none() {
                self.settle_orphans(start);
            }
            // The longer nothing happens, the less often.
            let (idle, _) = run.progress.idle();
            run.world.sleep(LOOK_NS.max((idle / 8).min(PATIENCE_NS / 8)));
            if idle > PATIENCE_NS && run.progress.idle().1 > PATIENCE_PAUSES {
                let (loads, controls) = (start.loads.get(), start.controls.get());
                let open = run.progress.open();
                run.world.fail(format!(
                    "no I/O has ended for {} s: {open} are open, {loads} threads and {controls} \
                     changes have not come to an end",
                    PATIENCE_NS / 1_000_000_000
                ));
            }
        }
    }

    /// Arrays end with the server: clean, unless they had no power any more.
    fn stop_arrays(&self, start: &Started) {
        let run = &self.run;
        if run.world.failure().is_some() {
            return;
        }
        let world = run.world.clone();
        let pause = Box::new(move |ns| world.sleep(ns)) as SleepFn;
        // A synchronisation may go on for longer than is waited for where threads are very slow.
        let mut stopped = start.stack.stop_arrays(&pause);
        for _ in 0..STOPS {
            if stopped.is_err() {
                stopped = start.stack.stop_arrays(&pause);
            }
        }
        if let (Err(why), false) = (stopped, run.off.get()) {
            run.world.fail(format!("an array does not stop: {why}"));
        }
    }

    /// The stack is to leave nothing behind.
    pub(super) fn end(&self, start: Rc<Started>) {
        let run = &self.run;
        start.served.stop();
        // Others may add to them meanwhile.
        let handles = start.handles.borrow().clone();
        handles.iter().for_each(|handle| handle.wake());
        drop(handles);
        self.watch(&start, |_| start.loads.get() == 0 && start.controls.get() == 0);
        self.watch(&start, |_| start.served.workers() == 0);
        self.stop_arrays(&start);
        self.watch(&start, |_| start.set.free_idle_orphans() == 0);
        if run.world.failure().is_some() {
            // Somebody may still be in there.
            return std::mem::forget(start);
        }
        start.orphans.borrow_mut().clear();
        nbd::end(run, &start);
        run.progress.end_all();
        for live in start.stack.devices() {
            let in_flight = live.device.stats().in_flight();
            if in_flight != (0, 0) {
                run.world.fail(format!(
                    "{} says that {in_flight:?} are in flight in the end",
                    live.name
                ));
            }
        }
        let devices: Vec<_> =
            start.stack.devices().iter().map(|live| Arc::downgrade(&live.device)).collect();
        drop(start);
        if let Some(left) = devices.iter().find_map(std::sync::Weak::upgrade) {
            run.world.fail(format!("{} is still used in the end", left.info().name));
        }
        if let Some(rings) = run.world.rings_alive() {
            run.world.fail(format!("{rings} rings of contexts are left in the end"));
        }
    }
}

impl Run {
    /// The power goes, or the process is killed.
    pub(super) fn power_off(&self, kill: bool) {
        let run = self;
        run.off.set(true);
        run.progress.wake_waiter(u64::MAX);
        run.admit_losses();
        run.counts.borrow_mut().add(if kill { "kill" } else { "power cut" }, 1);
        run.world.note(|| if kill { "the process is killed" } else { "the power goes" }.to_owned());
        for disk in 0..run.world.disks() {
            run.world
                .disk(disk, |disk| if kill { disk.process_killed() } else { disk.power_cut() });
        }
        run.world.sever();
        for oracle in run.oracles.borrow_mut().iter_mut() {
            if kill { oracle.process_killed() } else { oracle.power_cut() }
        }
    }
}
