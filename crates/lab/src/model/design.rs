//! Designs as the simulation knows them: what a batch does with locks, as data.
//!
//! All times are picoseconds, so that a hold of 12.4 ns is not rounded away.

/// Picoseconds.
pub type Ps = u64;

/// The way of a thread that finds a lock taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loser {
    /// Tries again after a rest, each time fetching the lock's line: a test-and-set spin lock.
    Spin,
    /// Spins in a queue, each on a line of its own, as Linux's queued spin lock does.
    Queue,
    /// Spins a moment if nobody sleeps yet, then sleeps until it is woken, and tries again.
    Sleep,
    /// Goes on without.
    GoOn,
    /// Leaves what it brings where the holder will see it, tries once more and goes on.
    HandOver,
}

/// The work under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing that others see: the look-up of a merge.
    Look,
    /// The batch's own I/Os are kept.
    Insert,
    /// One kept I/O is taken, whosever it is; again while any is kept.
    TakeOne,
    /// Own I/Os are kept and all kept ones taken; again while any is kept.
    InsertAndTakeAll,
}

/// The work under a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Section {
    /// Which lock.
    pub lock: usize,
    /// Its repetitions in a batch (those that take: at least this often).
    pub times: u32,
    /// The work.
    pub act: Act,
    /// The way of a thread that comes while it is taken.
    pub loser: Loser,
    /// The time that it is held; for [`Act::InsertAndTakeAll`], for each I/O.
    pub hold_ps: Ps,
    /// Lines besides the lock's that a holder on another core than the last has to fetch.
    pub lines: u32,
}

/// A design: one batch after the other, by every thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// Time of a batch outside all locks, but for that of running its I/Os.
    pub outside_ps: Ps,
    /// Time to run one I/O, spent by the thread that took it.
    pub run_ps: Ps,
    /// Its sections under locks, in order.
    pub sections: Vec<Section>,
    /// Lines that move for an I/O run by another core than its own: there, and back.
    pub foreign_lines: u32,
}

impl Design {
    /// Locks that it has.
    pub fn locks(&self) -> usize {
        self.sections.iter().map(|section| section.lock + 1).max().unwrap_or(0)
    }
}

/// Costs of the machine that are no design's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// A cache line that comes from another core.
    pub line_ps: Ps,
    /// Between two tries of a spin lock.
    pub rest_ps: Ps,
    /// The moment for which a waiter spins before it yields or sleeps.
    pub spin_ps: Ps,
    /// Offering the core to others when there is nobody.
    pub yield_ps: Ps,
    /// From one thread to another on a core.
    pub switch_ps: Ps,
    /// Processor time of a thread that wakes a sleeper.
    pub wake_ps: Ps,
    /// From then until the sleeper could run.
    pub latency_ps: Ps,
    /// The time that a thread keeps its core while others want it.
    pub slice_ps: Ps,
}

/// Cores, threads on them, and the time that is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Cores.
    pub cores: usize,
    /// Threads, each with one batch at a time.
    pub threads: usize,
    /// I/Os of a batch.
    pub batch: u32,
    /// Time simulated after a warm-up of a tenth of it.
    pub time_ps: Ps,
    /// Share of the cores that is had: they are away for the rest, after about a slice each time.
    pub had: f64,
    /// The spread of the time outside around its mean: evenly, by up to this share.
    pub jitter: f64,
    /// Start of the generator of that.
    pub seed: u64,
}

/// Figures of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// I/Os that ended in the time, a second.
    pub iops: f64,
    /// From a lock's first failed attempt until it was taken, over threads times time.
    pub contention: f64,
    /// I/Os that ended, from the start.
    pub done: u64,
    /// I/Os that were begun, from the start.
    pub begun: u64,
    /// I/Os that were begun and had not ended in the end.
    pub open: u64,
    /// I/Os that another thread took than the one that brought them.
    pub foreign: u64,
    /// Times a thread was put off its core.
    pub preemptions: u64,
    /// Times a thread went to sleep.
    pub sleeps: u64,
}
