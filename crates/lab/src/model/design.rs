//! Designs as data for the simulation: the locks of a batch and the work under them.
//!
//! All times are picoseconds, so that a hold of 12.4 ns is not rounded away.

/// Picoseconds.
pub type Ps = u64;

/// The behaviour of a thread that finds a lock taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loser {
    /// Tries again after a rest, each time fetching the lock's line: a test-and-set spin lock.
    Spin,
    /// Spins in a queue, on a line of its own, as Linux's queued spin lock does.
    Queue,
    /// Spins a moment if nobody sleeps yet, then sleeps until it is woken, and tries again.
    Sleep,
    /// Goes on without the lock.
    GoOn,
    /// Leaves its I/Os where the holder will see them, tries once more and goes on.
    HandOver,
}

/// The work under the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Work without an effect on others: the look-up of a merge.
    Look,
    /// Inserts the batch's own I/Os.
    Insert,
    /// Takes one kept I/O, whoever owns it; repeated while any is kept.
    TakeOne,
    /// Inserts the own I/Os and takes all kept ones; repeated while any is kept.
    InsertAndTakeAll,
}

/// The work under a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Section {
    /// The number of the lock.
    pub lock: usize,
    /// Its repetitions in a batch (for acts that take I/Os: at least so many).
    pub times: u32,
    /// The work.
    pub act: Act,
    /// The behaviour of a thread that finds it taken.
    pub loser: Loser,
    /// The time that it is held; for [`Act::InsertAndTakeAll`], for each I/O.
    pub hold_ps: Ps,
    /// Lines besides the lock's that a holder has to fetch if the previous holder was on another
    /// core.
    pub lines: u32,
}

/// A design: every thread does one batch after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// The time of a batch outside all locks, without that of running its I/Os.
    pub outside_ps: Ps,
    /// Time to run one I/O, spent by the thread that took it.
    pub run_ps: Ps,
    /// Its sections under locks, in order.
    pub sections: Vec<Section>,
    /// Lines that move, there and back, for an I/O that another core runs.
    pub foreign_lines: u32,
}

impl Design {
    /// Locks that it has.
    pub fn locks(&self) -> usize {
        self.sections.iter().map(|section| section.lock + 1).max().unwrap_or(0)
    }
}

/// Costs of the machine, the same for all designs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// A cache line that comes from another core.
    pub line_ps: Ps,
    /// The pause between two tries of a spin lock.
    pub rest_ps: Ps,
    /// The moment for which a waiter spins before it yields or sleeps.
    pub spin_ps: Ps,
    /// A yield when no other thread waits.
    pub yield_ps: Ps,
    /// A switch from one thread to another on a core.
    pub switch_ps: Ps,
    /// Processor time of a thread that wakes a sleeper.
    pub wake_ps: Ps,
    /// The time from the wake-up until the sleeper could run.
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
    /// The share of the cores' time that the threads get: the cores are away for the rest, each
    /// time after about a slice.
    pub had: f64,
    /// The spread of the time outside around its mean: uniform, by up to this share.
    pub jitter: f64,
    /// The seed of the generator of that spread.
    pub seed: u64,
}

/// Figures of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// I/Os that ended in the time, a second.
    pub iops: f64,
    /// The time from a lock's first failed try until it was taken, over threads times time.
    pub contention: f64,
    /// I/Os that ended, from the start.
    pub done: u64,
    /// I/Os that were begun, from the start.
    pub begun: u64,
    /// I/Os that were begun and had not ended in the end.
    pub open: u64,
    /// I/Os that were taken by another thread than their owner.
    pub foreign: u64,
    /// Preemptions of threads.
    pub preemptions: u64,
    /// Times a thread went to sleep.
    pub sleeps: u64,
}
