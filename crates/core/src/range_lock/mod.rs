//! A lock of byte ranges for writes of whole blocks (shared) and of parts of blocks (exclusive).
//! Its way without contention is that of Linux' percpu rw-semaphore: shared holders are the
//! readers, exclusive ones the writers, and the fences are asymmetric (Dekker).
//!
//! A write of a part of a block reads the block, changes it and writes it back; meanwhile no other
//! write of that block may run. Writes of whole blocks do not exclude each other, and touch nothing
//! shared while nobody wants a range for itself.
//!
//! ```text
//!  shared     my slot = range   --light fence-->  exclusives?  0: go   else: look in the queue,
//!                                                                            under the lock
//!  exclusive  exclusives += 1   --heavy fence-->  overlaps of all slots?  none: go   else: wait
//! ```
//!
//! Invariants:
//! * Each user has slots, one for each write that it may have under way, which it alone writes: so
//!   a shared write writes no cache line of others. The fences make one of both see the other.
//! * One queue holds all exclusive requests, and all that wait, in the order in which they came. A
//!   request waits for those before it that overlap with it, if either is exclusive. An exclusive
//!   request waits for the slots that overlap with it, too. So no request waits for ever, and none
//!   for ranges that do not concern it.
//! * Each new request looks in the queue while an exclusive one is there: so no slot begins to
//!   overlap with it.
//! * Nothing here waits: a user that may go on is told ([`Wake`]), and asks which of its slots do
//!   ([`RangeUser::take_granted`]).

mod queue;
mod slots;
mod wake;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use wake::Wake;

use crate::mistake;
use crate::primitive::{Arc, AtomicU32, Barriers, Ordering::*};
use crate::sync::{Lock, LockClass, LockCounters};
use queue::Queue;
use slots::Slots;
use std::ops::Range;

/// A lock of the byte ranges of one device. See the file's page.
pub struct RangeLock {
    /// How many in the queue are exclusive. Written under the lock.
    exclusives: AtomicU32,
    queue: Lock<Queue>,
    barriers: Barriers,
}

impl RangeLock {
    /// A lock that nobody uses. Clones of the `Arc` are the same lock.
    pub fn new() -> Arc<Self> {
        Arc::new(RangeLock {
            exclusives: AtomicU32::new(0),
            queue: Lock::new(LockClass::Control, Queue::default()),
            barriers: Barriers::detect(),
        })
    }

    /// One more user, with so many `slots` that cost nothing, which belongs to one thread: `thread`
    /// is woken when it must look at the queue, and `locks` counts what it takes. Not for the path
    /// of an I/O: it allocates.
    pub fn join(
        self: &Arc<Self>,
        slots: usize,
        thread: Arc<dyn Wake>,
        locks: Arc<LockCounters>,
    ) -> RangeUser {
        let mine = Arc::new(Slots::new(slots, thread));
        let number = self.queue.lock(&locks).join(mine.clone());
        RangeUser { lock: self.clone(), number, mine, queued: 0, locks }
    }
}

/// One user of a [`RangeLock`]. It belongs to one thread. When it is dropped it holds nothing and
/// waits for nothing any more.
pub struct RangeUser {
    lock: Arc<RangeLock>,
    number: usize,
    mine: Arc<Slots>,
    /// Of this user, so many are in the queue.
    queued: usize,
    locks: Arc<LockCounters>,
}

impl RangeUser {
    /// Hold `range`, which is not empty, at `slot`, which holds nothing, together with others that
    /// are shared. False: it waits, until [`RangeUser::take_granted`] names the slot.
    ///
    /// A slot beyond those that the user has costs as much as the lock, and counts for all ranges.
    #[inline]
    pub fn lock_shared(&mut self, slot: usize, range: &Range<u64>) -> bool {
        debug_assert!(!range.is_empty(), "a write of nothing");
        self.mine.set(slot, range);
        if !mistake!("range_shared_fence") {
            self.lock.barriers.light();
        }
        // Acquire: what the last exclusive one did comes before what goes now.
        self.lock.exclusives.load(Acquire) == 0 || self.lock_beside_exclusives(slot, range)
    }

    #[cold]
    fn lock_beside_exclusives(&mut self, slot: usize, range: &Range<u64>) -> bool {
        let mut queue = self.lock.queue.lock(&self.locks);
        let range = if self.mine.has(slot) { range.clone() } else { 0..u64::MAX };
        if !queue.excludes(&range) {
            return true;
        }
        self.mine.clear(slot);
        queue.wait_shared(self.number, slot, range);
        self.queued += 1;
        // Somebody may have seen the slot while it was set.
        queue.grant();
        false
    }

    /// Hold `range`, which is not empty, at `slot`, which holds nothing, alone. False: it waits,
    /// until [`RangeUser::take_granted`] names the slot.
    pub fn lock_exclusive(&mut self, slot: usize, range: &Range<u64>) -> bool {
        debug_assert!(!range.is_empty(), "a write of nothing");
        if mistake!("edges_not_locked") {
            return self.lock_shared(slot, range);
        }
        let mut queue = self.lock.queue.lock(&self.locks);
        let before = self.lock.exclusives.load(Relaxed);
        self.lock.exclusives.store(before + 1, Relaxed);
        // A user that saw another exclusive one comes through the lock.
        if before == 0 && !mistake!("range_exclusive_fence") {
            self.lock.barriers.heavy();
        }
        self.queued += 1;
        queue.begin_exclusive(self.number, slot, range.clone())
    }

    /// Give up what `slot` holds or waits for.
    #[inline]
    pub fn unlock(&mut self, slot: usize) {
        if self.queued > 0 && !self.mine.holds(slot) {
            return self.unlock_queued(slot);
        }
        self.unlock_shared(slot);
    }

    #[inline]
    fn unlock_shared(&mut self, slot: usize) {
        self.mine.clear(slot);
        if !mistake!("range_unlock_fence") {
            self.lock.barriers.light();
        }
        if self.lock.exclusives.load(Relaxed) > 0 {
            self.lock.queue.lock(&self.locks).grant();
        }
    }

    #[cold]
    fn unlock_queued(&mut self, slot: usize) {
        let mut queue = self.lock.queue.lock(&self.locks);
        let removed = queue.remove(self.number, slot);
        // Release: a user that finds none comes after what the last one did.
        self.lock.exclusives.store(queue.exclusives(), Release);
        drop(queue);
        match removed {
            true => self.queued -= 1,
            false => self.unlock_shared(slot),
        }
    }

    /// There is something to take: see [`RangeUser::take_granted`].
    #[inline]
    pub fn has_news(&self) -> bool {
        self.queued > 0 && self.mine.is_told()
    }

    /// Append the slots that have waited and hold what they waited for now to `slots`.
    pub fn take_granted(&mut self, slots: &mut Vec<usize>) {
        self.mine.take_told();
        let before = slots.len();
        let mut queue = self.lock.queue.lock(&self.locks);
        queue.take_granted(self.number, slots);
        for slot in slots[before..].iter().copied() {
            // A shared one leaves the queue once its slot is set: so those behind it find the
            // slot.
            if let Some(range) = queue.shared_range(self.number, slot) {
                self.mine.set(slot, &range);
                queue.remove(self.number, slot);
                self.queued -= 1;
            }
        }
    }
}

impl Drop for RangeUser {
    fn drop(&mut self) {
        let mut queue = self.lock.queue.lock(&self.locks);
        queue.leave(self.number);
        self.lock.exclusives.store(queue.exclusives(), Release);
    }
}
