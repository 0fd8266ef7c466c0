//! The simulation: threads that keep I/Os in flight on volumes of three members and learn of their
//! ends by interrupts or by polling, as `drystone_bench::lane` does it.
//!
//! ```text
//!  submit one -> poll: look at the queue of the oldest  line -> taken? hold -> tell owners -> reap
//!      ^                 (striped: at each member's)             skip, or spin and sleep       |
//!      |         interrupt: reap what the device's core told, sleep if all are in flight       |
//!      '---------------------------------------------------------------------------------------'
//! ```
//!
//! Invariants:
//! * A bio is idle or in flight. The parts of one in flight are at a device or a queue, or found
//!   and on the way to their thread.
//! * A thread that sleeps has an empty inbox, or is being woken, or is among a queue's sleepers.
//! * The same values give the same figures.

use std::collections::VecDeque;

use super::load::{FOREIGN_LINES, Figures, IoCosts, Load, Way, times_as_long};
use super::parts::{Device, Part, Queue};
use crate::dm_poll::scene::MEMBERS;
use crate::model::cores::Cores;
use crate::model::design::{Costs, Ps, Setting};

/// Fruitless polls after which a lane offers its core (`drystone_bench::lane`).
const FRUITLESS_POLLS_MAX: u32 = 64;
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    ios: u64,
    polls: u64,
    fruitful: u64,
    skipped: u64,
    waits: u64,
    waited: Ps,
    foreign: u64,
}

/// The next step of a thread after its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Round,
    Submitted,
    Look,
    /// At a queue: fetch the lock's line; the line has come.
    Arrive,
    Try,
    Held,
    Release,
    SpunOut,
    Told,
    Reap,
    FellAsleep,
}

#[derive(Clone, Copy, Default)]
struct Bio {
    parts: usize,
    /// The member of a bio with one part.
    member: usize,
}

struct Thread {
    bios: Vec<Bio>,
    idle: VecDeque<usize>,
    /// By submission, as `drystone_bench::cookies` keeps it.
    order: VecDeque<usize>,
    /// Polled parts in flight by member.
    polled: [usize; MEMBERS],
    /// Queues still to be polled; the last is the present one.
    looks: Vec<usize>,
    found: Vec<Part>,
    inbox: Vec<Part>,
    /// The time that is added to its next operation.
    debt: Ps,
    fruitless: u32,
    waits_since: Option<Ps>,
    waking: bool,
}

impl Thread {
    fn new(depth: usize) -> Self {
        Thread {
            bios: vec![Bio::default(); depth],
            idle: (0..depth).collect(),
            order: VecDeque::new(),
            polled: [0; MEMBERS],
            looks: Vec::new(),
            found: Vec::new(),
            inbox: Vec::new(),
            debt: 0,
            fruitless: 0,
            waits_since: None,
            waking: false,
        }
    }
}

struct Sim<'a> {
    load: &'a Load,
    io: &'a IoCosts,
    costs: &'a Costs,
    jitter: f64,
    cores: Cores<Next>,
    threads: Vec<Thread>,
    queues: Vec<Queue>,
    devices: Vec<Device>,
    counts: Counts,
    begun: u64,
    done: u64,
}

/// Simulate `load` by the threads and on the cores of `setting`.
///
/// # Panics
/// Without cores, threads, I/Os in flight, queues, devices or time.
pub fn simulate(load: &Load, io: &IoCosts, costs: &Costs, setting: &Setting) -> Figures {
    assert!(setting.cores > 0 && setting.threads > 0 && setting.time_ps > 0);
    assert!(load.depth > 0 && load.queues > 0 && load.devices > 0);
    let mut sim = Sim {
        load,
        io,
        costs,
        jitter: setting.jitter,
        cores: Cores::new(setting, *costs, Next::Round),
        threads: (0..setting.threads).map(|_| Thread::new(load.depth)).collect(),
        queues: (0..MEMBERS * load.queues).map(|_| Queue::default()).collect(),
        devices: (0..load.devices).map(|_| Device::default()).collect(),
        counts: Counts::default(),
        begun: 0,
        done: 0,
    };
    let from = setting.time_ps / 10;
    sim.run(from);
    let sleeps = sim.cores.sleeps;
    sim.counts = Counts::default();
    sim.devices.iter_mut().for_each(|device| device.busy_ps = 0);
    sim.run(from + setting.time_ps);
    sim.figures(setting, sim.cores.sleeps - sleeps)
}

impl Sim<'_> {
    fn run(&mut self, end: Ps) {
        loop {
            let first = (0..self.devices.len())
                .filter_map(|number| Some((self.devices[number].next_at()?, number)))
                .min()
                .filter(|(at, _)| *at <= end);
            let until = first.map_or(end, |(at, _)| at);
            match (self.cores.step(until), first) {
                (Some((thread, next)), _) => self.go_on(thread, next),
                (None, Some((_, device))) => self.device(device),
                (None, None) => return,
            }
        }
    }

    fn go_on(&mut self, thread: usize, next: Next) {
        match next {
            Next::Round => self.round(thread),
            Next::Submitted => self.submitted(thread),
            Next::Look => self.look(thread),
            Next::Arrive => self.arrive(thread),
            Next::Try => self.try_lock(thread),
            Next::Held => self.held(thread),
            Next::Release => self.release(thread),
            Next::SpunOut => self.spun_out(thread),
            Next::Told => self.told(thread),
            Next::Reap => self.reap(thread),
            Next::FellAsleep => self.fell_asleep(thread),
        }
    }

    fn operate(&mut self, thread: usize, length: Ps, next: Next) {
        let debt = std::mem::take(&mut self.threads[thread].debt);
        self.cores.operate(thread, length + debt, next);
    }

    /// An I/O is submitted if one is idle, and then reaped.
    fn round(&mut self, thread: usize) {
        if self.threads[thread].idle.is_empty() {
            return self.look_or_reap(thread);
        }
        let mean = match self.load.way {
            Way::Interrupt => self.io.interrupt_ps,
            Way::Poll { .. } => self.io.submit_ps,
        };
        let length = self.cores.random.stray(mean, self.jitter).max(1);
        self.operate(thread, length, Next::Submitted);
    }

    fn look_or_reap(&mut self, thread: usize) {
        match self.load.way {
            Way::Interrupt => self.reap(thread),
            Way::Poll { .. } => self.look(thread),
        }
    }

    fn submitted(&mut self, thread: usize) {
        let slot = self.threads[thread].idle.pop_front().expect("one was idle");
        let any = (self.cores.random.share() * MEMBERS as f64) as usize;
        let members = if self.load.striped { 0..MEMBERS } else { any..any + 1 };
        self.threads[thread].bios[slot] = Bio { parts: members.len(), member: any };
        self.threads[thread].order.push_back(slot);
        self.begun += 1;
        for member in members {
            let at = self.cores.now + self.latency();
            let core = self.cores.core_of(thread);
            self.start(Part { at, thread, slot, member, core });
        }
        self.look_or_reap(thread);
    }

    fn latency(&mut self) -> Ps {
        let share = self.cores.random.share();
        (self.load.latency_ps as f64 * times_as_long(share)).round() as Ps
    }

    fn start(&mut self, part: Part) {
        let (thread, member) = (part.thread, part.member);
        if self.load.way == Way::Interrupt {
            let device = thread % self.devices.len();
            return self.devices[device].start(part);
        }
        let queue = &mut self.queues[queue(self.load, thread, member)];
        let at = self.cores.now + self.threads[thread].debt;
        self.threads[thread].debt += queue.tail.fetch(part.core, at, self.costs.line_ps);
        self.threads[thread].polled[member] += 1;
        queue.arrivals.push(part);
    }

    /// Poll for the oldest bio: its queue, or all queues of the thread if the bio has parts on
    /// several.
    fn look(&mut self, thread: usize) {
        let (load, own) = (self.load, &mut self.threads[thread]);
        own.looks.clear();
        if let Some(oldest) = own.order.front() {
            let member = own.bios[*oldest].member;
            let all = if load.striped { 0..MEMBERS } else { member..member + 1 };
            let wanted = all.rev().filter(|member| own.polled[*member] > 0);
            own.looks.extend(wanted.map(|member| queue(load, thread, member)));
        }
        self.next_look(thread);
    }

    fn next_look(&mut self, thread: usize) {
        match self.threads[thread].looks.is_empty() {
            true => self.tell(thread),
            false => self.operate(thread, self.io.look_ps.max(1), Next::Arrive),
        }
    }

    fn at(&mut self, thread: usize) -> &mut Queue {
        let at = *self.threads[thread].looks.last().expect("it is at a queue");
        &mut self.queues[at]
    }

    /// Fetch the word of the lock, for `next`.
    fn fetch_word(&mut self, thread: usize, next: Next) {
        let (core, now, line_ps) = (self.cores.core_of(thread), self.cores.now, self.costs.line_ps);
        match self.at(thread).word.fetch(core, now, line_ps) {
            0 => self.go_on(thread, next),
            wait => self.operate(thread, wait, next),
        }
    }

    fn arrive(&mut self, thread: usize) {
        self.fetch_word(thread, Next::Try);
    }

    fn try_lock(&mut self, thread: usize) {
        if self.at(thread).holder.is_none() {
            return self.take(thread);
        }
        if self.load.way == (Way::Poll { skips: true }) {
            self.counts.skipped += 1;
            self.threads[thread].looks.pop();
            return self.next_look(thread);
        }
        self.threads[thread].waits_since.get_or_insert(self.cores.now);
        self.at(thread).spinners.push(thread);
        self.operate(thread, self.costs.spin_ps.max(1), Next::SpunOut);
    }

    fn take(&mut self, thread: usize) {
        let (core, now, line_ps) = (self.cores.core_of(thread), self.cores.now, self.costs.line_ps);
        if let Some(since) = self.threads[thread].waits_since.take() {
            self.counts.waits += 1;
            self.counts.waited += now - since;
        }
        let mut found = std::mem::take(&mut self.threads[thread].found);
        let before = found.len();
        let queue = self.at(thread);
        queue.holder = Some(thread);
        let mut lines = queue.inside.fetch(core, now, line_ps);
        lines += queue.tail.fetch(core, now + lines, line_ps);
        lines += queue.take_arrivals(core) * line_ps;
        queue.take_due(now + lines, &mut found);
        let due = found.len() - before;
        self.threads[thread].found = found;
        self.counts.polls += 1;
        self.counts.fruitful += u64::from(due > 0);
        let hold = self.io.hold_ps + due as u64 * self.io.found_hold_ps;
        self.operate(thread, hold + lines, Next::Held);
    }

    fn held(&mut self, thread: usize) {
        self.fetch_word(thread, Next::Release);
    }

    fn release(&mut self, thread: usize) {
        let (core, now, line_ps) = (self.cores.core_of(thread), self.cores.now, self.costs.line_ps);
        let queue = &mut self.queues[self.threads[thread].looks.pop().expect("it holds a queue")];
        debug_assert_eq!(queue.holder, Some(thread));
        queue.holder = None;
        let runs = queue.spinners.iter().position(|spinner| self.cores.has_core(*spinner));
        if let Some(spinner) = runs.map(|at| queue.spinners.remove(at)) {
            let wait = queue.word.fetch(self.cores.core_of(spinner), now, line_ps);
            debug_assert_ne!(self.cores.core_of(spinner), core);
            self.operate(spinner, wait, Next::Try);
        } else if let Some(sleeper) = queue.sleepers.pop_front() {
            self.cores.wake(sleeper, Next::Arrive);
            self.threads[thread].debt += self.costs.wake_ps;
        }
        self.next_look(thread);
    }

    fn spun_out(&mut self, thread: usize) {
        let queue = self.at(thread);
        queue.spinners.retain(|spinner| *spinner != thread);
        if queue.holder.is_none() {
            return self.arrive(thread);
        }
        queue.sleepers.push_back(thread);
        self.cores.sleep(thread);
    }

    /// Ends the found I/Os: the thread's own at once, those of others by their owners.
    fn tell(&mut self, thread: usize) {
        let mut length = 0;
        for part in &self.threads[thread].found {
            if part.thread == thread {
                length += self.io.found_ps;
                continue;
            }
            self.counts.foreign += 1;
            length += self.io.send_ps + self.foreign_lines(thread, self.cores.core_of(part.thread));
        }
        match length {
            0 => self.told(thread),
            _ => self.operate(thread, length, Next::Told),
        }
    }

    /// The time of the cache lines that come to `thread` from `core` with a message.
    fn foreign_lines(&self, thread: usize, core: usize) -> Ps {
        match self.cores.core_of(thread) == core {
            true => 0,
            false => FOREIGN_LINES * self.costs.line_ps,
        }
    }

    fn told(&mut self, thread: usize) {
        let mut found = std::mem::take(&mut self.threads[thread].found);
        let (mut got, core) = (0, self.cores.core_of(thread));
        for part in found.drain(..) {
            match part.thread == thread {
                true => got += self.end(&part),
                false => self.threads[part.thread].inbox.push(Part { core, ..part }),
            }
        }
        self.threads[thread].found = found;
        let words = std::mem::take(&mut self.threads[thread].inbox);
        for part in &words {
            let lines = self.foreign_lines(thread, part.core);
            self.threads[thread].debt += self.io.found_ps + lines;
            got += self.end(part);
        }
        self.polled(thread, got);
    }

    fn polled(&mut self, thread: usize, got: usize) {
        let own = &mut self.threads[thread];
        if got > 0 || !own.idle.is_empty() {
            own.fruitless = 0;
            return self.round(thread);
        }
        own.fruitless += 1;
        if !own.fruitless.is_multiple_of(FRUITLESS_POLLS_MAX) {
            self.look(thread);
        } else if !self.cores.offer(thread, Next::Look) {
            self.operate(thread, self.costs.yield_ps.max(1), Next::Look);
        }
    }

    /// Ends a part whose owner knows of it. Returns the number of I/Os that this ends.
    fn end(&mut self, part: &Part) -> usize {
        let own = &mut self.threads[part.thread];
        if self.load.way != Way::Interrupt {
            own.polled[part.member] -= 1;
        }
        own.bios[part.slot].parts -= 1;
        if own.bios[part.slot].parts > 0 {
            return 0;
        }
        own.idle.push_back(part.slot);
        while own.order.front().is_some_and(|slot| own.bios[*slot].parts == 0) {
            own.order.pop_front();
        }
        self.counts.ios += 1;
        self.done += 1;
        1
    }

    /// By interrupt: end the I/Os of which the thread was notified; with all in flight and no
    /// message, sleep.
    fn reap(&mut self, thread: usize) {
        self.threads[thread].waking = false;
        let words = std::mem::take(&mut self.threads[thread].inbox);
        words.iter().for_each(|part| _ = self.end(part));
        match self.threads[thread].idle.is_empty() {
            false => self.round(thread),
            true => self.operate(thread, self.io.sleep_ps.max(1), Next::FellAsleep),
        }
    }

    fn fell_asleep(&mut self, thread: usize) {
        match self.threads[thread].inbox.is_empty() {
            true => self.cores.sleep(thread),
            false => self.reap(thread),
        }
    }

    /// Continues a device's core; a core with a share below 1 goes away after each slice.
    fn device(&mut self, number: usize) {
        let (now, had) = (self.cores.now, self.load.devices_had);
        if had < 1.0 && self.devices[number].is_over(now) {
            let slice = self.cores.random.stray(self.costs.slice_ps, 0.5);
            let back = now + (slice as f64 * (1.0 / had - 1.0)).round() as Ps;
            return self.devices[number].go_away(back, back + slice);
        }
        let Some(part) = self.devices[number].step(now, self.io.tell_ps) else { return };
        let owner = &mut self.threads[part.thread];
        owner.inbox.push(part);
        if self.cores.is_asleep(part.thread) && !owner.waking {
            owner.waking = true;
            self.cores.wake(part.thread, Next::Reap);
            self.devices[number].occupy(now, self.io.waker_ps);
        }
    }

    fn figures(&self, setting: &Setting, sleeps: u64) -> Figures {
        let Counts { ios, polls, fruitful, skipped, waits, waited, foreign } = self.counts;
        let per_io = |count: u64| count as f64 / ios.max(1) as f64;
        let time = setting.time_ps as f64;
        let busiest = self.devices.iter().map(|device| device.busy_ps).max();
        Figures {
            iops: ios as f64 * 1e12 / time,
            polls_per_io: per_io(polls),
            fruitful_per_io: per_io(fruitful),
            skipped_per_io: per_io(skipped),
            waits_per_io: per_io(waits),
            contention: waited as f64 / time / self.threads.len() as f64,
            foreign_per_io: per_io(foreign),
            sleeps_per_io: per_io(sleeps),
            device_busy: busiest.unwrap_or(0) as f64 / time,
            begun: self.begun,
            done: self.done,
            open: self.threads.iter().map(|own| (own.bios.len() - own.idle.len()) as u64).sum(),
        }
    }
}

/// The queue of `member` that `thread` polls.
fn queue(load: &Load, thread: usize, member: usize) -> usize {
    member * load.queues + thread % load.queues
}
