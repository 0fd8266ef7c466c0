//! Counts of lock acquisitions and waits, by class, for one user.
//!
//! Invariant: only the owner of a `LockCounters` (one thread at a time) adds to it; anybody may
//! read. So the counts are plain relaxed stores, never read-modify-write.

use crate::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The classes of lock there are. One variant a purpose, so that contention can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LockClass {
    /// Waiting at a context's gate until a visitor has left.
    ContextGate,
    /// The set of contexts (opening and closing them).
    ContextSet,
    /// The queue of contexts that wait for a tag.
    TagWaiters,
    /// The turn at a scheduler that all contexts of a device share; only ever tried.
    Scheduler,
    /// Not a lock: a context that waits a moment for what it entrusted to such a scheduler.
    SchedulerGrant,
    /// The plain engine's job queue and completions.
    PlainRing,
    /// Helpers of the plain engine that wait for jobs: idle, not contended.
    PlainIdle,
    /// A shard of a RAM device's pages.
    RamShard,
    /// The null device's completion thread.
    NullDevice,
    /// A file device's error and reopen state.
    FileState,
    /// A worker's reserve of buffers.
    Buffers,
    /// Control plane: attributes, exports, the stack.
    Control,
    /// Tests and tools.
    Other,
}

impl LockClass {
    /// Every class, in order.
    pub const ALL: [LockClass; 13] = [
        LockClass::ContextGate,
        LockClass::ContextSet,
        LockClass::TagWaiters,
        LockClass::Scheduler,
        LockClass::SchedulerGrant,
        LockClass::PlainRing,
        LockClass::PlainIdle,
        LockClass::RamShard,
        LockClass::NullDevice,
        LockClass::FileState,
        LockClass::Buffers,
        LockClass::Control,
        LockClass::Other,
    ];

    /// The name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            LockClass::ContextGate => "context_gate",
            LockClass::ContextSet => "context_set",
            LockClass::TagWaiters => "tag_waiters",
            LockClass::Scheduler => "scheduler",
            LockClass::SchedulerGrant => "scheduler_grant",
            LockClass::PlainRing => "plain_ring",
            LockClass::PlainIdle => "plain_idle",
            LockClass::RamShard => "ram_shard",
            LockClass::NullDevice => "null_device",
            LockClass::FileState => "file_state",
            LockClass::Buffers => "buffers",
            LockClass::Control => "control",
            LockClass::Other => "other",
        }
    }
}

/// What was counted for one class.
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

#[derive(Default)]
struct Cells {
    acquisitions: AtomicU64,
    contentions: AtomicU64,
    wait_ns: AtomicU64,
}

/// The counters of one user of locks: a context, or a control thread.
pub struct LockCounters {
    classes: [Cells; LockClass::ALL.len()],
    clock: Arc<dyn Clock>,
}

impl LockCounters {
    /// Counters at zero, that time waits with `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(LockCounters { classes: Default::default(), clock })
    }

    /// The counts of one class.
    pub fn get(&self, class: LockClass) -> LockCounts {
        let cells = &self.classes[class as usize];
        LockCounts {
            acquisitions: cells.acquisitions.load(Relaxed),
            contentions: cells.contentions.load(Relaxed),
            wait_ns: cells.wait_ns.load(Relaxed),
        }
    }

    /// The counts of all classes together.
    pub fn total(&self) -> LockCounts {
        let mut sum = LockCounts::default();
        LockClass::ALL.iter().for_each(|class| sum += self.get(*class));
        sum
    }

    pub(crate) fn acquired(&self, class: LockClass) {
        bump(&self.classes[class as usize].acquisitions, 1);
    }

    pub(crate) fn gave_up(&self, class: LockClass) {
        bump(&self.classes[class as usize].contentions, 1);
    }

    /// Run `wait`, and count it as one contended wait of `class`.
    pub(crate) fn waited<T>(&self, class: LockClass, wait: impl FnOnce() -> T) -> T {
        let from = self.clock.now();
        let value = wait();
        let cells = &self.classes[class as usize];
        bump(&cells.contentions, 1);
        bump(&cells.wait_ns, self.clock.now().saturating_sub(from));
        value
    }
}

fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
}
