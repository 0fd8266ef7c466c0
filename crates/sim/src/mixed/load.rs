//! The threads of the contexts: each submits, reaps, waits and stays away, as its seed decides.

use super::io::{Io, Wanted};
use super::plan::Mix;
use super::run::Run;
use super::started::Started;
use drystone_core::context::PollMode;
use drystone_core::op::{Priority, PriorityClass};
use drystone_core::{BioFlags, BioList, ChannelId, Context, IoBuf, Op};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Buffers that a thread keeps.
const BUFFERS: usize = 64;

/// One thread with its context.
pub(super) struct Load {
    run: Rc<Run>,
    start: Rc<Started>,
    rng: Rng,
    number: u64,
    cx: Option<Context>,
    devices: Vec<ChannelId>,
    open: BTreeMap<u64, Io>,
    buffers: Vec<IoBuf>,
    /// The sector at which the last I/O ended, by target.
    next: Vec<u64>,
    bios: BioList,
}

/// Spawn a fiber for each context of the plan.
pub(super) fn spawn_loads(run: &Rc<Run>, start: &Rc<Started>, rng: &mut Rng) {
    start.begin_loads(run.plan.contexts);
    for number in 0..run.plan.contexts {
        let (run, start, seed) = (run.clone(), start.clone(), rng.u64(..));
        run.world.clone().spawn(format!("context {number}"), move || {
            Load::new(run, start, number, seed).run();
        });
    }
}

impl Load {
    pub(super) fn new(run: Rc<Run>, start: Rc<Started>, number: u64, seed: u64) -> Self {
        let targets = run.plan.targets.len();
        let mut load = Load {
            run,
            start,
            rng: Rng::with_seed(seed),
            number,
            cx: None,
            devices: Vec::new(),
            open: BTreeMap::new(),
            buffers: Vec::new(),
            next: vec![0; targets],
            bios: BioList::new(),
        };
        load.open_context();
        load
    }

    fn mix(&self) -> &Mix {
        &self.run.plan.mix
    }

    fn cx(&mut self) -> &mut Context {
        self.cx.as_mut().expect("there is a context but while it is exchanged")
    }

    fn open_context(&mut self) {
        let mut cx = self.start.context(&self.run.world);
        if self.rng.bool() {
            cx.follow_poll_mode(self.start.stack().poll_switch().clone());
        } else if self.mix().polled > 0 && self.rng.bool() {
            cx.set_poll_mode(PollMode::Adaptive);
        }
        let open = |name: &str| cx.open(&self.start.device(name)).map_err(|error| error.message);
        match self.run.plan.targets.iter().map(|target| &*target.name).map(open).collect() {
            Ok(devices) => self.devices = devices,
            Err(error) => self.run.world.fail(format!("a device cannot be opened: {error}")),
        }
        self.start.add_handle(cx.handle().clone());
        self.cx = Some(cx);
    }

    /// Work until the start's share is done, or the power goes.
    pub(super) fn run(mut self) {
        while self.start.goes_on(&self.run) {
            self.submit();
            self.rest();
            self.reap();
            if self.mix().drops_contexts && self.rng.u32(0..200) == 0 {
                self.exchange_context();
            }
        }
        self.drain();
        drop(self.cx.take());
        self.start.end_load();
    }

    fn drain(&mut self) {
        self.cx().finish_plug();
        while self.cx().outstanding() > 0 {
            self.cx().wait(None);
            self.reap();
        }
        if !self.open.is_empty() {
            let n = self.open.len();
            self.run.world.fail(format!("{n} bios of context {} never ended", self.number));
        }
    }

    /// Drops the context with its I/Os in flight, and opens another one. The results of these I/Os
    /// are lost.
    fn exchange_context(&mut self) {
        drop(self.cx.take());
        let open = std::mem::take(&mut self.open);
        open.keys().for_each(|number| self.run.world.memory_of(*number, None));
        self.run.counts.borrow_mut().add("context dropped", 1);
        self.start.add_orphans(open.into_values());
        self.open_context();
    }

    fn submit(&mut self) {
        let room = self.mix().depth.saturating_sub(self.open.len() as u64);
        let batch = self.mix().batch;
        let batch = self.rng.u64(0..=batch).min(room);
        if self.mix().plugs && self.rng.u32(0..4) == 0 {
            self.cx().start_plug();
        }
        let target = self.rng.u64(0..self.devices.len() as u64) as usize;
        for _ in 0..batch {
            self.add(target);
        }
        let (device, mut bios) = (self.devices[target], self.bios.take());
        self.cx().submit(device, &mut bios);
        if self.mix().plugs && self.rng.bool() {
            self.cx().finish_plug();
        }
    }

    /// Adds one I/O for `target`, unless this run leaves it out.
    fn add(&mut self, target: usize) {
        let wanted = self.wanted(target);
        let (priority, group) = (self.priority(), self.group());
        let number = self.run.progress.begin();
        let Some(number) = number else { return };
        let buffer = self.buffers.pop();
        let (io, mut bio) = wanted.begin(&self.run, buffer);
        (bio.user_data, bio.priority, bio.group) = (number, priority, group);
        io.note_begin(&self.run, number, self.number, &bio);
        self.open.insert(number, io);
        self.bios.push(bio);
    }

    fn wanted(&mut self, target: usize) -> Wanted {
        let weights = self.mix().weights;
        let mut left = self.rng.u32(0..weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        let op = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Write];
        let kind = kind.unwrap_or(0);
        let (op, nonsense) = (op[kind], kind == 5);
        let range = match op {
            Op::Flush => 0..0,
            _ if nonsense => self.beyond(target),
            _ => self.range(target),
        };
        let flags = self.flags(op);
        Wanted { target, range, op, flags, nonsense }
    }

    fn percent(&mut self, percent: u32) -> bool {
        percent > 0 && self.rng.u32(0..100) < percent
    }

    fn flags(&mut self, op: Op) -> BioFlags {
        let mut flags = BioFlags::empty();
        let mix = self.mix().clone();
        if op == Op::Write || op == Op::WriteZeroes {
            flags.set(BioFlags::FUA, self.percent(mix.fua));
            flags.set(BioFlags::PREFLUSH, op == Op::Write && self.percent(mix.preflush));
            flags.set(BioFlags::STABLE, op == Op::Write && self.rng.bool());
            flags.set(BioFlags::NOUNMAP, op == Op::WriteZeroes && self.rng.bool());
            flags.set(BioFlags::BACKGROUND, self.percent(5));
        }
        flags.set(BioFlags::POLLED, op == Op::Read && self.percent(mix.polled));
        flags.set(BioFlags::NOWAIT, self.percent(mix.nowait));
        flags.set(BioFlags::SYNC, self.percent(20));
        flags
    }

    fn range(&mut self, target: usize) -> std::ops::Range<u64> {
        let sectors = self.run.sectors(target);
        let block = self.run.plan.targets[target].block;
        let (blocks, mix) = (sectors / block, self.mix().clone());
        let length = self.rng.u64(1..=mix.blocks_max.min(blocks));
        let first = match self.percent(mix.sequential) {
            true if self.next[target] + length <= blocks => self.next[target],
            _ => self.rng.u64(0..=blocks - length),
        };
        self.next[target] = first + length;
        first * block..(first + length) * block
    }

    /// A range beyond the end of the device.
    fn beyond(&mut self, target: usize) -> std::ops::Range<u64> {
        let first = [1 << 40, u64::MAX >> 12, 1 << 30][self.rng.u64(0..3) as usize];
        let block = self.run.plan.targets[target].block;
        first / block * block..first / block * block + block
    }

    fn priority(&mut self) -> Priority {
        if !self.mix().priorities {
            return Priority::default();
        }
        let class = [
            PriorityClass::None,
            PriorityClass::RealTime,
            PriorityClass::BestEffort,
            PriorityClass::Idle,
        ];
        let class = class[self.rng.u64(0..4) as usize];
        let level = if class == PriorityClass::None { 0 } else { self.rng.u8(0..8) };
        Priority { class, level }
    }

    fn group(&mut self) -> u32 {
        let groups = self.start.groups();
        if !self.run.plan.mix.groups || groups.is_empty() {
            return 0;
        }
        let n = self.rng.u64(0..groups.len() as u64 + 1) as usize;
        groups.get(n).copied().unwrap_or(0)
    }

    /// Waits, polls, or stays away from the context.
    fn rest(&mut self) {
        let away = self.mix().away_ns;
        match self.rng.u32(0..8) {
            0 if away > 0 => {
                let ns = self.rng.u64(0..away);
                self.run.world.sleep(ns);
            }
            1 => self.poll(),
            2 => {
                let deadline = self.run.world.now() + self.rng.u64(0..2_000_000);
                self.cx().wait(Some(deadline));
            }
            _ if self.cx().outstanding() > 0 => self.cx().wait(None),
            _ => self.run.world.sleep(1_000),
        }
    }

    fn poll(&mut self) {
        let mut done = BioList::new();
        self.cx().poll(&mut done);
        self.ended(done);
    }

    fn reap(&mut self) {
        let mut done = BioList::new();
        self.cx().reap(&mut done);
        self.ended(done);
    }

    fn ended(&mut self, mut done: BioList) {
        while let Some(mut bio) = done.pop() {
            let number = bio.user_data;
            let Some(io) = self.open.remove(&number) else {
                self.run.world.fail(format!("I/O {number} ended twice, or was never begun"));
                return;
            };
            io.complete(&self.run, number, &bio);
            if self.buffers.len() < BUFFERS
                && let Some(buf) = bio.take_buf()
            {
                self.buffers.push(buf);
            }
        }
    }
}
