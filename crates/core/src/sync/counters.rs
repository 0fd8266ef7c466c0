//! Counts of lock acquisitions and waits, by class, for one user.
//!
//! Invariant: only the owner of a `LockCounters` (one thread at a time) adds to it; anybody may
//! read. So the counts are plain relaxed stores, never read-modify-write. Two threads may use the
//! same counters with one lock alone: whatever is counted for it is counted while it is held,
//! but for tries that give up.

use super::cells::{Count, Times};
use super::{ClassStats, LockClass, LockStats};
use crate::clock::{Clock, Ns};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Counts of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Times a lock of the class was taken.
    pub acquisitions: u64,
    /// Of these, how many had to wait first, plus tries that gave up.
    pub contentions: u64,
    /// Nanoseconds from the first failed attempt until taken or given up.
    pub wait_ns: u64,
}

impl std::ops::AddAssign for LockCounts {
    fn add_assign(&mut self, other: Self) {
        self.acquisitions += other.acquisitions;
        self.contentions += other.contentions;
        self.wait_ns += other.wait_ns;
    }
}

/// Of so many contentions in a row the processor time of one is sampled, and counts for all:
/// reading it is a system call, and the second one lengthens the hold that follows.
const SAMPLE_EVERY: u64 = 32;

#[derive(Default)]
struct Cells {
    acquisitions: Count,
    contentions: Count,
    waits: Times,
    /// Processor time in waits, extrapolated from those that were sampled.
    wait_cpu: Count,
    holds: Times,
}

/// Adds counters for another user.
pub(super) trait Registry: Send + Sync {
    fn add_user(self: Arc<Self>) -> Arc<LockCounters>;
}

/// The counters of one user of locks: a context, or a control thread.
pub struct LockCounters {
    classes: [Cells; LockClass::ALL.len()],
    /// Holds are timed. Like `period`, written by the registry.
    hold: AtomicBool,
    /// The processor time of waits is sampled.
    sample: AtomicBool,
    /// Grows with each reset. From 1: no cell has a time of it yet.
    period: AtomicU64,
    clock: Arc<dyn Clock>,
    this: Weak<LockCounters>,
    registry: Option<Weak<dyn Registry>>,
}

impl LockCounters {
    /// Counters at zero that belong to no registry and time waits with `clock`. Holds are not
    /// timed.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::made(clock, None)
    }

    pub(super) fn made(clock: Arc<dyn Clock>, registry: Option<Weak<dyn Registry>>) -> Arc<Self> {
        Arc::new_cyclic(|this| LockCounters {
            classes: Default::default(),
            hold: AtomicBool::new(false),
            sample: AtomicBool::new(false),
            period: AtomicU64::new(1),
            clock,
            this: this.clone(),
            registry,
        })
    }

    /// Counters for another user, in the same registry if there is one. Any thread may call this.
    pub fn sibling(&self) -> Arc<Self> {
        match self.registry.as_ref().and_then(Weak::upgrade) {
            Some(registry) => registry.add_user(),
            None => Self::new(self.clock.clone()),
        }
    }

    /// The counts of one class, since these counters were made.
    pub fn get(&self, class: LockClass) -> LockCounts {
        let cells = &self.classes[class as usize];
        LockCounts {
            acquisitions: cells.acquisitions.ever(),
            contentions: cells.contentions.ever(),
            wait_ns: cells.waits.ever_ns(),
        }
    }

    /// The counts of all classes together, since these counters were made.
    pub fn total(&self) -> LockCounts {
        let mut sum = LockCounts::default();
        LockClass::ALL.iter().for_each(|class| sum += self.get(*class));
        sum
    }

    /// The figures of all classes, since these counters were made or their registry was last
    /// reset. While a reset goes on they may be partly of before and partly of after.
    pub fn stats(&self) -> LockStats {
        self.read(false)
    }

    /// As [`LockCounters::stats`]; with `reset` figures are counted from now on. For the registry.
    pub(super) fn read(&self, reset: bool) -> LockStats {
        let period = self.period.load(Relaxed);
        let stats = LockStats::of(|class| {
            let cells = &self.classes[class as usize];
            ClassStats {
                contentions: cells.contentions.read(reset),
                waits: cells.waits.read(period, reset),
                wait_cpu_ns: cells.wait_cpu.read(reset),
                acquisitions: cells.acquisitions.read(reset),
                holds: cells.holds.read(period, reset),
            }
        });
        if reset {
            self.period.store(period + 1, Relaxed);
        }
        stats
    }

    /// Time holds from now on, or no longer. For the registry.
    pub(super) fn time_holds(&self, on: bool) {
        self.hold.store(on, Relaxed);
    }

    /// Sample the processor time of waits from now on, or no longer. For the registry.
    pub(super) fn sample_wait_cpu(&self, on: bool) {
        self.sample.store(on, Relaxed);
    }

    #[inline]
    pub(crate) fn acquired(&self, class: LockClass) {
        self.classes[class as usize].acquisitions.add(1);
    }

    pub(crate) fn gave_up(&self, class: LockClass) {
        self.classes[class as usize].contentions.add(1);
    }

    /// Run `wait`, and count it as one contended wait of `class`.
    pub(crate) fn waited<T>(&self, class: LockClass, wait: impl FnOnce() -> T) -> T {
        let cells = &self.classes[class as usize];
        let sampled =
            self.sample.load(Relaxed) && cells.contentions.ever().is_multiple_of(SAMPLE_EVERY);
        let cpu = sampled.then(|| self.clock.thread_cpu());
        let from = self.clock.now();
        let value = wait();
        if let Some(cpu) = cpu {
            cells.wait_cpu.add(SAMPLE_EVERY * self.clock.thread_cpu().saturating_sub(cpu));
        }
        cells.contentions.add(1);
        cells.waits.add(self.since(from), self.period.load(Relaxed));
        value
    }

    /// A lock of `class` was taken: if holds are timed, its time begins.
    #[inline]
    pub(super) fn begin_hold(&self, class: LockClass) -> Hold {
        let timed = if self.hold.load(Relaxed) { self.begin_timed() } else { None };
        Hold { class, timed }
    }

    #[cold]
    #[inline(never)]
    fn begin_timed(&self) -> Option<Timed> {
        Some(Timed { user: self.this.upgrade()?, from: self.clock.now() })
    }

    fn since(&self, from: Ns) -> Ns {
        self.clock.now().saturating_sub(from)
    }
}

/// A lock is held; dropped just before it is released. While holds are not timed this is the class
/// and a null pointer, both known to the compiler.
pub(super) struct Hold {
    class: LockClass,
    timed: Option<Timed>,
}

struct Timed {
    user: Arc<LockCounters>,
    from: Ns,
}

impl Hold {
    /// The class of the lock.
    pub(super) fn class(&self) -> LockClass {
        self.class
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        if let Some(timed) = self.timed.take() {
            timed.end(self.class);
        }
    }
}

impl Timed {
    #[cold]
    #[inline(never)]
    fn end(self, class: LockClass) {
        let user = &self.user;
        let holds = &user.classes[class as usize].holds;
        holds.add(user.since(self.from), user.period.load(Relaxed));
    }
}
