//! The interface between writers and an array, so that different arrays can serve the same load.

use std::ops::Range;
use std::sync::Arc;

use drystone_core::Device;
use drystone_core::primitive::{AtomicUsize, Ordering::*};
use drystone_core::sync::LockCounters;
use drystone_raid::layout::Layout;
use drystone_stack::live::OpenEnv;

use super::scene::Scene;
use super::wait::Sleeper;

/// The members and the layout that an array is opened over.
pub struct Opening<'a> {
    /// The array.
    pub scene: &'a Scene,
    /// Where data and parity lie.
    pub layout: Layout,
    /// The open members, by role; Drystone's own array opens its own.
    pub members: &'a [Arc<dyn Device>],
    /// The environment whose registry counts the locks.
    pub at: &'a OpenEnv,
}

/// A function that opens an array of some design.
pub type Open = fn(&Opening<'_>) -> anyhow::Result<Box<dyn Array>>;

/// An open array. A drop stops its threads; no thread may write then.
pub trait Array: Sync {
    /// Opens a writer for a thread.
    fn writer(&self) -> Box<dyn Writer + '_>;

    /// Counts so far.
    fn counts(&self) -> Counts;

    /// Wakes forgotten waiters; called after some time without progress. Returns how many there
    /// were.
    fn rescue(&self) -> usize {
        0
    }
}

/// Counts of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Wake-ups of threads that waited for a free stripe.
    pub woken: u64,
    /// Stripes that became free.
    pub freed: u64,
    /// Bytes of writes that have ended.
    pub written: u64,
}

/// A thread's way into an array.
pub trait Writer: Send {
    /// Submit one bio: the part `range` of `data`, whose ends are multiples of 4 KiB, to the array
    /// sector `sector`. May sleep for a stripe, but not until the bio has ended.
    fn write(&mut self, sector: u64, data: &Arc<[u8]>, range: Range<usize>);

    /// Wait until all submitted bios have ended. No reference to the data is left then.
    ///
    /// # Errors
    /// When I/O of a member failed, in words.
    fn wait(&mut self) -> Result<(), String>;

    /// Wait until all submitted bios have ended, then flush the members (fsync).
    ///
    /// # Errors
    /// When I/O of a member failed, in words.
    fn sync(&mut self) -> Result<(), String>;
}

/// Counts a thread's remaining I/O, and wakes the thread at the end.
///
/// Invariant: while the thread submits, `left` is one more than the I/Os in flight; so it reaches 0
/// only while the thread waits.
pub struct Ticket {
    left: AtomicUsize,
    sleeper: Sleeper,
}

impl Default for Ticket {
    fn default() -> Self {
        Ticket { left: AtomicUsize::new(1), sleeper: Sleeper::default() }
    }
}

impl Ticket {
    /// Counts one more I/O in flight.
    pub fn add(&self) {
        self.left.fetch_add(1, Relaxed);
    }

    /// Counts the end of an I/O.
    pub fn end(&self, user: &LockCounters) {
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.sleeper.wake(user);
        }
    }

    /// For the thread: sleep until all added I/Os have ended. The effects of those that ended them
    /// are visible then.
    pub fn wait(&self, user: &LockCounters) {
        self.sleeper.prepare(user);
        if self.left.fetch_sub(1, AcqRel) > 1 {
            self.sleeper.sleep(user);
        }
        self.left.store(1, Relaxed);
    }
}
