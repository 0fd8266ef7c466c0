//! The simulation of threads, locks and handed-over I/Os, by the rules of a [`Design`].
//!
//! ```text
//!  outside -> sections: line -> taken? hold : lose -> run what was taken -> all ended? next batch
//!                       ^------ again -------'                             else spin, yield, sleep
//! ```
//!
//! Invariants:
//! * An I/O is kept, taken by one thread, or ended; `open` of its owner counts it until it has
//!   ended.
//! * A lock has at most one holder, which is on a core or ready: no thread sleeps with a lock.
//! * A line serves one core after the other, each at the cost of a transfer, so cores that want the
//!   same line wait for one another. The core that has the line pays nothing.

use std::collections::VecDeque;

use super::cores::Cores;
use super::design::{Act, Costs, Design, Figures, Loser, Ps, Section, Setting};
use super::line::Line;

/// The number of times that a waiting context yields before it sleeps, as in `core::sync`.
const YIELDS: u32 = 40;

/// The next step of a thread after its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It begins the section.
    Section,
    /// The lock's line has come, for a try.
    Try,
    /// The hold is over.
    Held,
    /// The lock's line has come, for the release.
    Release,
    /// The sleeper that the release had to wake is awake.
    Released,
    /// The moment of spinning before sleep is over.
    SpunOut,
    /// Its I/Os are published for the holder.
    Published,
    /// I/Os that were taken have run.
    Ran,
    /// Owners are awake.
    Woke,
    /// The spin for the own I/Os is over, after so many yields.
    Polled(u32),
    /// It knows that its last own I/O has ended.
    Finish,
}

#[derive(Clone, Default)]
struct Lock {
    line: Line,
    holder: Option<usize>,
    /// The core of the last holder.
    last_core: Option<usize>,
    /// Threads that wait in order, on their cores.
    queue: VecDeque<usize>,
    spinners: Vec<usize>,
    sleepers: VecDeque<usize>,
    /// True if the holder must wake a sleeper at the release. Threads that sleep or slept set this,
    /// as in a futex.
    contended: bool,
}

#[derive(Clone, Default)]
struct Thread {
    section: usize,
    times: u32,
    /// Own I/Os that are not inserted yet.
    brought: u32,
    /// Own I/Os that have not ended.
    open: u32,
    /// Owners of the I/Os that it took.
    taken: Vec<usize>,
    /// The time when it first found a lock taken.
    waits_since: Option<Ps>,
    /// True if it has already spun for this lock, or handed over.
    tried: bool,
    /// True if it slept for this lock.
    slept: bool,
    /// True if it only waits for its own I/Os.
    awaits: bool,
}

struct Sim<'a> {
    design: &'a Design,
    costs: &'a Costs,
    setting: &'a Setting,
    cores: Cores<Next>,
    locks: Vec<Lock>,
    /// The line by which batches are handed over.
    handed: Line,
    /// Owners of the I/Os that are kept.
    kept: VecDeque<usize>,
    threads: Vec<Thread>,
    from: Ps,
    waited: Ps,
    counted: u64,
    figures: Figures,
}

/// Simulate `design`.
///
/// # Panics
/// Without cores, threads, I/Os of a batch or time.
pub fn simulate(design: &Design, costs: &Costs, setting: &Setting) -> Figures {
    assert!(setting.cores > 0 && setting.threads > 0 && setting.batch > 0 && setting.time_ps > 0);
    let mut sim = Sim::new(design, costs, setting);
    let end = sim.from + setting.time_ps;
    while let Some((thread, next)) = sim.cores.step(end) {
        sim.go_on(thread, next);
    }
    assert!(sim.cores.is_alive(), "some thread can go on in every design");
    sim.figures(end)
}

impl<'a> Sim<'a> {
    fn new(design: &'a Design, costs: &'a Costs, setting: &'a Setting) -> Self {
        let threads = setting.threads;
        Sim {
            design,
            costs,
            setting,
            // The first step ends an imaginary earlier batch.
            cores: Cores::new(setting, *costs, Next::Finish),
            locks: vec![Lock::default(); design.locks()],
            handed: Line::default(),
            kept: VecDeque::new(),
            threads: vec![Thread::default(); threads],
            from: setting.time_ps / 10,
            waited: 0,
            counted: 0,
            figures: Figures::default(),
        }
    }

    fn go_on(&mut self, thread: usize, next: Next) {
        match next {
            Next::Section => self.enter(thread),
            Next::Try => self.try_lock(thread),
            Next::Held => self.let_go(thread),
            Next::Release => self.release(thread),
            Next::Released => self.after_section(thread),
            Next::SpunOut => self.fall_asleep(thread),
            Next::Published => self.publish(thread),
            Next::Ran => self.ran(thread),
            Next::Woke => self.await_own(thread),
            Next::Polled(offers) => self.busy_poll(thread, offers),
            Next::Finish => self.begin(thread),
        }
    }

    fn begin(&mut self, thread: usize) {
        let batch = self.setting.batch;
        let state = &mut self.threads[thread];
        *state = Thread {
            brought: batch,
            open: batch,
            taken: std::mem::take(&mut state.taken),
            ..Thread::default()
        };
        self.figures.begun += u64::from(batch);
        let length = self.cores.random.stray(self.design.outside_ps, self.setting.jitter);
        self.cores.operate(thread, length, Next::Section);
    }

    fn section(&self, thread: usize) -> Option<Section> {
        self.design.sections.get(self.threads[thread].section).copied()
    }

    /// Try the lock of the next section; after the last section, run the taken I/Os.
    fn enter(&mut self, thread: usize) {
        let Some(section) = self.section(thread) else { return self.run_taken(thread) };
        if section.act == Act::TakeOne && self.kept.is_empty() {
            self.pass_on(thread, section.lock);
            return self.next_section(thread);
        }
        let (core, now) = (self.cores.core_of(thread), self.cores.now);
        let wait = self.locks[section.lock].line.fetch(core, now, self.costs.line_ps);
        self.cores.operate(thread, wait, Next::Try);
    }

    /// A thread that was woken for a lock that it no longer needs wakes the next sleeper instead.
    fn pass_on(&mut self, thread: usize, lock: usize) {
        if std::mem::take(&mut self.threads[thread].slept)
            && let Some(sleeper) = self.locks[lock].sleepers.pop_front()
        {
            (self.threads[sleeper].tried, self.threads[sleeper].slept) = (false, true);
            self.cores.wake(sleeper, Next::Section);
        }
    }

    fn next_section(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        (state.section, state.times, state.tried) = (state.section + 1, 0, false);
        self.stop_waiting(thread);
        self.enter(thread);
    }

    /// Ends the thread's wait, if it waited.
    fn stop_waiting(&mut self, thread: usize) {
        if let Some(since) = self.threads[thread].waits_since.take() {
            self.waited += self.cores.now.saturating_sub(since.max(self.from));
        }
    }

    fn try_lock(&mut self, thread: usize) {
        let Some(section) = self.section(thread) else { unreachable!("it is at a section") };
        if self.locks[section.lock].holder.is_none() {
            return self.take(thread, &section, 0);
        }
        let waits = !matches!(section.loser, Loser::GoOn | Loser::HandOver);
        if waits && self.threads[thread].waits_since.is_none() {
            self.threads[thread].waits_since = Some(self.cores.now);
        }
        self.lose(thread, &section);
    }

    fn lose(&mut self, thread: usize, section: &Section) {
        let lock = &mut self.locks[section.lock];
        let state = &mut self.threads[thread];
        match section.loser {
            Loser::Spin => self.cores.operate(thread, self.costs.rest_ps, Next::Section),
            Loser::Queue => {
                lock.queue.push_back(thread);
                self.cores.idle(thread);
            }
            Loser::Sleep if !lock.contended && !state.tried => {
                state.tried = true;
                lock.spinners.push(thread);
                self.cores.operate(thread, self.costs.spin_ps, Next::SpunOut);
            }
            Loser::Sleep => self.fall_asleep(thread),
            Loser::GoOn => self.after_section(thread),
            Loser::HandOver if section.act == Act::InsertAndTakeAll && !state.tried => {
                let (core, now) = (self.cores.core_of(thread), self.cores.now);
                let wait = self.handed.fetch(core, now, self.costs.line_ps);
                self.cores.operate(thread, wait, Next::Published);
            }
            Loser::HandOver => self.next_section(thread),
        }
    }

    fn fall_asleep(&mut self, thread: usize) {
        let Some(section) = self.section(thread) else { unreachable!("it is at a section") };
        let lock = &mut self.locks[section.lock];
        lock.spinners.retain(|spinner| *spinner != thread);
        if lock.holder.is_none() {
            return self.enter(thread);
        }
        lock.sleepers.push_back(thread);
        lock.contended = true;
        self.cores.sleep(thread);
    }

    fn publish(&mut self, thread: usize) {
        self.keep_own(thread);
        self.threads[thread].tried = true;
        self.enter(thread);
    }

    fn keep_own(&mut self, thread: usize) -> u32 {
        let brought = std::mem::take(&mut self.threads[thread].brought);
        self.kept.extend((0..brought).map(|_| thread));
        brought
    }

    /// Take the lock, `after` so much time (a line's transfer if the lock was handed on).
    fn take(&mut self, thread: usize, section: &Section, after: Ps) {
        self.stop_waiting(thread);
        let core = self.cores.core_of(thread);
        let lock = &mut self.locks[section.lock];
        lock.holder = Some(thread);
        if std::mem::take(&mut self.threads[thread].slept) {
            lock.contended = !lock.sleepers.is_empty();
        }
        let moved = lock.last_core.replace(core).is_some_and(|last| last != core);
        let lines = if moved { Ps::from(section.lines) * self.costs.line_ps } else { 0 };
        let units = match section.act {
            Act::Look => 1,
            Act::Insert => {
                self.keep_own(thread);
                1
            }
            Act::TakeOne => self.take_kept(thread, 1),
            Act::InsertAndTakeAll => {
                self.keep_own(thread);
                self.take_kept(thread, usize::MAX)
            }
        };
        self.cores.operate(thread, after + lines + units * section.hold_ps, Next::Held);
    }

    fn take_kept(&mut self, thread: usize, most: usize) -> Ps {
        let count = self.kept.len().min(most);
        self.threads[thread].taken.extend(self.kept.drain(..count));
        count as Ps
    }

    /// Releases the lock. For this the holder needs the line, which the threads that tried have
    /// taken.
    fn let_go(&mut self, thread: usize) {
        let Some(section) = self.section(thread) else { unreachable!("it is at a section") };
        let (core, now) = (self.cores.core_of(thread), self.cores.now);
        let wait = match section.loser {
            // Threads that wait in a queue do not fetch the line.
            Loser::Queue => 0,
            _ => self.locks[section.lock].line.fetch(core, now, self.costs.line_ps),
        };
        match wait {
            0 => self.release(thread),
            wait => self.cores.operate(thread, wait, Next::Release),
        }
    }

    fn release(&mut self, thread: usize) {
        let Some(section) = self.section(thread) else { unreachable!("it is at a section") };
        let lock = &mut self.locks[section.lock];
        lock.holder = None;
        let spinners = std::mem::take(&mut lock.spinners);
        let heir = lock.queue.pop_front();
        let wakes = std::mem::take(&mut lock.contended);
        let sleeper = if wakes { lock.sleepers.pop_front() } else { None };
        for spinner in spinners {
            // A spinner tries as soon as it sees the release; if it loses again it sleeps.
            self.enter(spinner);
        }
        if let Some(heir) = heir {
            let Some(section) = self.section(heir) else { unreachable!("it is at a section") };
            self.take(heir, &section, self.costs.line_ps);
        }
        match sleeper {
            None => self.after_section(thread),
            Some(sleeper) => {
                (self.threads[sleeper].tried, self.threads[sleeper].slept) = (false, true);
                self.cores.wake(sleeper, Next::Section);
                self.cores.operate(thread, self.costs.wake_ps, Next::Released);
            }
        }
    }

    /// Continues with the same section again, or the next one.
    fn after_section(&mut self, thread: usize) {
        let Some(section) = self.section(thread) else { unreachable!("it is at a section") };
        let state = &mut self.threads[thread];
        state.times += 1;
        state.tried = section.loser == Loser::HandOver && state.brought == 0;
        let again = match section.act {
            Act::Look | Act::Insert => state.times < section.times,
            Act::TakeOne | Act::InsertAndTakeAll => !self.kept.is_empty(),
        };
        if again { self.enter(thread) } else { self.next_section(thread) }
    }

    fn run_taken(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        if self.design.sections.is_empty() {
            let brought = std::mem::take(&mut state.brought);
            state.taken.extend((0..brought).map(|_| thread));
        }
        let core = self.cores.core_of(thread);
        let taken = &self.threads[thread].taken;
        let count = taken.len() as Ps;
        let moved = taken.iter().filter(|owner| self.cores.core_of(**owner) != core).count() as Ps;
        let lines = moved * Ps::from(self.design.foreign_lines) * self.costs.line_ps;
        let length = count * self.design.run_ps + lines;
        self.cores.operate(thread, length, Next::Ran);
    }

    /// Ends the taken I/Os; notifies owners that wait for their last one.
    fn ran(&mut self, thread: usize) {
        let mut taken = std::mem::take(&mut self.threads[thread].taken);
        let mut woken = 0;
        for owner in taken.drain(..) {
            self.figures.foreign += u64::from(owner != thread);
            self.threads[owner].open -= 1;
            if self.threads[owner].open == 0 && self.threads[owner].awaits {
                woken += self.tell(owner);
            }
        }
        self.threads[thread].taken = taken;
        match woken {
            0 => self.await_own(thread),
            woken => self.cores.operate(thread, woken * self.costs.wake_ps, Next::Woke),
        }
    }

    /// Notifies `owner` of an end. Returns 1 if it had to be woken.
    fn tell(&mut self, owner: usize) -> Ps {
        let asleep = self.cores.is_asleep(owner);
        match asleep {
            true => self.cores.wake(owner, Next::Polled(0)),
            false => self.cores.operate(owner, self.costs.line_ps, Next::Polled(0)),
        }
        asleep.into()
    }

    fn await_own(&mut self, thread: usize) {
        if self.threads[thread].open == 0 {
            return self.end_batch(thread);
        }
        self.threads[thread].awaits = true;
        self.cores.operate(thread, self.costs.spin_ps, Next::Polled(0));
    }

    fn busy_poll(&mut self, thread: usize, offers: u32) {
        if self.threads[thread].open == 0 {
            return self.end_batch(thread);
        }
        if offers == YIELDS {
            return self.cores.sleep(thread);
        }
        let next = Next::Polled(offers + 1);
        if !self.cores.offer(thread, next) {
            self.cores.operate(thread, self.costs.yield_ps, next);
        }
    }

    fn end_batch(&mut self, thread: usize) {
        let batch = u64::from(self.setting.batch);
        self.figures.done += batch;
        if self.cores.now >= self.from {
            self.counted += batch;
        }
        self.begin(thread);
    }

    fn figures(mut self, end: Ps) -> Figures {
        for state in &self.threads {
            let since = state.waits_since.map_or(end, |since| since.max(self.from));
            self.waited += end.saturating_sub(since);
        }
        let time = self.setting.time_ps as f64;
        self.figures.iops = self.counted as f64 * 1e12 / time;
        self.figures.contention = self.waited as f64 / time / self.setting.threads as f64;
        self.figures.open = self.figures.begun - self.figures.done;
        (self.figures.preemptions, self.figures.sleeps) =
            (self.cores.preemptions, self.cores.sleeps);
        self.figures
    }
}

#[cfg(test)]
mod tests;
