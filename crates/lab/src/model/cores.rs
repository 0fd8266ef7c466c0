//! The machine of the simulation: cores, threads on them, and the events at which operations end.
//!
//! A thread that has a core does one operation after the other; when one ends, a simulation decides
//! the next (its `N`). Threads without a core wait in one queue, first come first served, but a
//! core prefers its recent threads. A thread whose slice ends while others wait goes to the end of
//! the queue. A core with a share below 1 goes away for other work, and comes back.
//!
//! Invariants:
//! * A thread is on one core, ready (in the queue), or asleep. Only one that is ready or on a core
//!   has an operation.
//! * An event counts only if its number is the latest of its thread or core. So an interrupted
//!   operation needs no search for its event.
//! * Events of equal times are handled in the order of their creation: the same inputs give the
//!   same run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::design::{Costs, Ps, Setting};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A thread's operation ends.
    Operation(usize),
    /// A core's slice ends.
    Slice(usize),
    /// A sleeper could run.
    Ready(usize),
    /// A core goes away, or comes back.
    Away(usize),
    Back(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    OnCore(usize),
    Ready,
    Asleep,
}

struct Thread<N> {
    state: ThreadState,
    last_core: usize,
    /// Its operation, if it has one: the end time (on a core), or the remaining time.
    operation: Option<(Ps, N)>,
    number: u64,
}

#[derive(Default)]
struct Core {
    thread: Option<usize>,
    number: u64,
    away: bool,
}

impl Core {
    fn is_free(&self) -> bool {
        self.thread.is_none() && !self.away
    }
}

/// A generator of random numbers with a seed: xorshift.
pub struct Random(u64);

impl Random {
    /// A number from 0 to 1, uniformly distributed.
    pub fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A time around `mean`, uniformly up to `share` shorter or longer.
    pub fn stray(&mut self, mean: Ps, share: f64) -> Ps {
        let part = self.share() * 2.0 - 1.0;
        (mean as f64 * (1.0 + share * part)).round() as Ps
    }
}

/// See the module's text.
pub struct Cores<N> {
    pub now: Ps,
    pub random: Random,
    costs: Costs,
    /// The time that a core is away after each slice.
    away_ps: Ps,
    cores: Vec<Core>,
    threads: Vec<Thread<N>>,
    queue: VecDeque<usize>,
    events: BinaryHeap<Reverse<(Ps, u64, Event, u64)>>,
    made: u64,
    pub preemptions: u64,
    pub sleeps: u64,
}

impl<N: Copy> Cores<N> {
    /// All threads ready to do `first`.
    pub fn new(setting: &Setting, costs: Costs, first: N) -> Self {
        let &Setting { cores, threads, had, .. } = setting;
        let thread = |number: usize| Thread {
            state: ThreadState::Ready,
            last_core: number % cores,
            operation: Some((0, first)),
            number: 0,
        };
        let mut machine = Cores {
            now: 0,
            random: Random(setting.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            costs,
            away_ps: (costs.slice_ps as f64 * (1.0 / had - 1.0)) as Ps,
            cores: (0..cores).map(|_| Core::default()).collect(),
            threads: (0..threads).map(thread).collect(),
            queue: (0..threads).collect(),
            events: BinaryHeap::new(),
            made: 0,
            preemptions: 0,
            sleeps: 0,
        };
        (0..cores).for_each(|core| machine.fill(core, None));
        if machine.away_ps > 0 {
            (0..cores).for_each(|core| machine.push_stray(costs.slice_ps, Event::Away(core)));
        }
        machine
    }

    /// The core that a thread has, or had last.
    pub fn core_of(&self, thread: usize) -> usize {
        self.threads[thread].last_core
    }

    pub fn is_asleep(&self, thread: usize) -> bool {
        self.threads[thread].state == ThreadState::Asleep
    }

    pub fn has_core(&self, thread: usize) -> bool {
        matches!(self.threads[thread].state, ThreadState::OnCore(_))
    }

    /// True if any thread can still go on.
    pub fn is_alive(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next thread whose operation ends by `end`, and its next step.
    pub fn step(&mut self, end: Ps) -> Option<(usize, N)> {
        loop {
            let next = self.events.peek().copied();
            let Some(Reverse((at, _, event, number))) = next.filter(|next| next.0.0 <= end) else {
                self.now = end;
                return None;
            };
            self.events.pop();
            self.now = at;
            match event {
                Event::Operation(thread) if self.threads[thread].number == number => {
                    let (_, next) = self.threads[thread].operation.take()?;
                    return Some((thread, next));
                }
                Event::Slice(core) if self.cores[core].number == number => self.slice_over(core),
                Event::Ready(thread) => self.ready(thread),
                Event::Away(core) => self.go_away(core),
                Event::Back(core) => {
                    self.cores[core].away = false;
                    self.fill(core, None);
                    self.push_stray(self.costs.slice_ps, Event::Away(core));
                }
                Event::Operation(_) | Event::Slice(_) => {}
            }
        }
    }

    /// Give `thread` its next operation, in place of any that it has.
    pub fn operate(&mut self, thread: usize, length: Ps, next: N) {
        let on_core = matches!(self.threads[thread].state, ThreadState::OnCore(_));
        let until = if on_core { self.now + length } else { length };
        self.threads[thread].operation = Some((until, next));
        if on_core {
            self.announce(thread, until);
        }
    }

    /// Makes `thread` wait on its core without an operation.
    pub fn idle(&mut self, thread: usize) {
        self.threads[thread].operation = None;
        self.threads[thread].number += 1;
    }

    /// Makes `thread` leave its core and sleep.
    pub fn sleep(&mut self, thread: usize) {
        self.sleeps += 1;
        self.idle(thread);
        self.leave(thread, ThreadState::Asleep);
    }

    /// Wakes `thread`, which does `next` once it has a core.
    pub fn wake(&mut self, thread: usize, next: N) {
        self.threads[thread].operation = Some((0, next));
        self.push(self.now + self.costs.latency_ps, Event::Ready(thread), 0);
    }

    /// Makes `thread` offer its core and then do `next`. False if no thread waits for a core.
    pub fn offer(&mut self, thread: usize, next: N) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        self.threads[thread].operation = Some((0, next));
        self.threads[thread].number += 1;
        self.queue.push_back(thread);
        self.leave(thread, ThreadState::Ready);
        true
    }

    fn leave(&mut self, thread: usize, state: ThreadState) {
        let ThreadState::OnCore(core) = self.threads[thread].state else {
            unreachable!("it is on a core")
        };
        self.threads[thread].state = state;
        self.cores[core].thread = None;
        self.fill(core, Some(thread));
    }

    fn ready(&mut self, thread: usize) {
        self.threads[thread].state = ThreadState::Ready;
        self.queue.push_back(thread);
        self.fill_any(self.threads[thread].last_core);
    }

    /// Give a free core, `first` or another, to the next thread in the queue.
    fn fill_any(&mut self, first: usize) {
        let mut cores = [first].into_iter().chain(0..self.cores.len());
        if let Some(core) = cores.find(|core| self.cores[*core].is_free()) {
            self.fill(core, None);
        }
    }

    /// Give a free core to the next thread in the queue; `left` has just left it.
    fn fill(&mut self, core: usize, left: Option<usize>) {
        if !self.cores[core].is_free() {
            return;
        }
        let had = |thread: &usize| self.threads[*thread].last_core == core && left != Some(*thread);
        let at = self.queue.iter().position(had).unwrap_or(0);
        let Some(thread) = self.queue.remove(at) else { return };
        let switch = if self.now == 0 { 0 } else { self.costs.switch_ps };
        self.cores[core].thread = Some(thread);
        self.cores[core].number += 1;
        let found = &mut self.threads[thread];
        found.state = ThreadState::OnCore(core);
        found.last_core = core;
        if let Some((left, _)) = &mut found.operation {
            *left += self.now + switch;
            let until = *left;
            self.announce(thread, until);
        }
        self.push_slice(core);
    }

    fn slice_over(&mut self, core: usize) {
        let Some(thread) = self.cores[core].thread else { return };
        if self.queue.is_empty() {
            return self.push_slice(core);
        }
        self.put_off(thread);
    }

    fn go_away(&mut self, core: usize) {
        self.cores[core].away = true;
        self.push_stray(self.away_ps, Event::Back(core));
        if let Some(thread) = self.cores[core].thread {
            self.put_off(thread);
            self.fill_any(core);
        }
    }

    fn put_off(&mut self, thread: usize) {
        self.preemptions += 1;
        let now = self.now;
        if let Some((until, _)) = &mut self.threads[thread].operation {
            *until -= now;
        }
        self.threads[thread].number += 1;
        self.queue.push_back(thread);
        self.leave(thread, ThreadState::Ready);
    }

    fn push_slice(&mut self, core: usize) {
        if self.threads.len() > self.cores.len() {
            let number = self.cores[core].number;
            self.push(self.now + self.costs.slice_ps.max(1), Event::Slice(core), number);
        }
    }

    fn announce(&mut self, thread: usize, until: Ps) {
        self.threads[thread].number += 1;
        let number = self.threads[thread].number;
        self.push(until, Event::Operation(thread), number);
    }

    fn push_stray(&mut self, mean: Ps, event: Event) {
        let after = self.random.stray(mean, 0.5);
        self.push(self.now + after, event, 0);
    }

    fn push(&mut self, at: Ps, event: Event, number: u64) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event, number)));
    }
}
