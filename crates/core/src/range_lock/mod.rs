//! A lock of byte ranges for writes of whole blocks (shared) and of parts of blocks (exclusive).
//!
//! Whoever writes a part of a block reads the block, changes it and writes it back; meanwhile
//! nobody else may write that block. Writes of whole blocks do not exclude each other, and touch
//! nothing shared while nobody wants a range for itself.
//!
//! ```text
//!  shared     my place = range  --light fence-->  exclusives?  0: go   else: look in the queue, under the lock
//!  exclusive  exclusives += 1   --heavy fence-->  overlaps of all places?  none: go   else: wait
//! ```
//!
//! Invariants:
//! * Each user has places, one for each write that it may have under way, which it alone writes: so
//!   a shared write writes no cache line of others. The fences make one of both see the other.
//! * All who are exclusive, and all who wait, are in one queue in the order in which they came. One
//!   waits for those before it that overlap with it, if either is exclusive, and an exclusive one
//!   for the places that overlap with it, too: so nobody waits for ever, and nobody for ranges of
//!   others.
//! * While anybody exclusive is in the queue whoever comes looks there: so no place begins to
//!   overlap with it.
//! * Nothing here waits: who may go on is told ([`Wake`]), and asks which of its places do
//!   ([`RangeUser::take_granted`]).

mod places;
mod queue;
mod wake;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use wake::Wake;

use crate::mistake;
use crate::primitive::{Arc, AtomicU32, Barriers, Ordering::*};
use crate::sync::{Lock, LockClass, LockCounters};
use places::Places;
use queue::Queue;
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

    /// One more user, who has so many `places` that cost nothing, and belongs to one thread:
    /// `thread` is woken when it is to look, and `locks` counts what it takes. Not for the way of
    /// an I/O: it allocates.
    pub fn join(
        self: &Arc<Self>,
        places: usize,
        thread: Arc<dyn Wake>,
        locks: Arc<LockCounters>,
    ) -> RangeUser {
        let mine = Arc::new(Places::new(places, thread));
        let number = self.queue.lock(&locks).join(mine.clone());
        RangeUser { lock: self.clone(), number, mine, queued: 0, locks }
    }
}

/// One user of a [`RangeLock`]. It belongs to one thread. When it is dropped it holds nothing and
/// waits for nothing any more.
pub struct RangeUser {
    lock: Arc<RangeLock>,
    number: usize,
    mine: Arc<Places>,
    /// Of this user, so many are in the queue.
    queued: usize,
    locks: Arc<LockCounters>,
}

impl RangeUser {
    /// Hold `range`, which is not empty, at `place`, which holds nothing, together with others that
    /// are shared. False: it waits, until [`RangeUser::take_granted`] names the place.
    ///
    /// A place beyond those that the user has costs as much as the lock, and counts for all ranges.
    #[inline]
    pub fn lock_shared(&mut self, place: usize, range: &Range<u64>) -> bool {
        debug_assert!(!range.is_empty(), "a write of nothing");
        self.mine.set(place, range);
        if !mistake!("range_shared_fence") {
            self.lock.barriers.light();
        }
        // Acquire: what the last exclusive one did comes before what goes now.
        self.lock.exclusives.load(Acquire) == 0 || self.lock_beside_exclusives(place, range)
    }

    #[cold]
    fn lock_beside_exclusives(&mut self, place: usize, range: &Range<u64>) -> bool {
        let mut queue = self.lock.queue.lock(&self.locks);
        let range = if self.mine.has(place) { range.clone() } else { 0..u64::MAX };
        if !queue.excludes(&range) {
            return true;
        }
        self.mine.clear(place);
        queue.wait_shared(self.number, place, range);
        self.queued += 1;
        // Somebody may have seen the place while it was set.
        queue.grant();
        false
    }

    /// Hold `range`, which is not empty, at `place`, which holds nothing, alone. False: it waits,
    /// until [`RangeUser::take_granted`] names the place.
    pub fn lock_exclusive(&mut self, place: usize, range: &Range<u64>) -> bool {
        debug_assert!(!range.is_empty(), "a write of nothing");
        if mistake!("edges_not_locked") {
            return self.lock_shared(place, range);
        }
        let mut queue = self.lock.queue.lock(&self.locks);
        let before = self.lock.exclusives.load(Relaxed);
        self.lock.exclusives.store(before + 1, Relaxed);
        // Whoever saw another exclusive one comes through the lock.
        if before == 0 && !mistake!("range_exclusive_fence") {
            self.lock.barriers.heavy();
        }
        self.queued += 1;
        queue.begin_exclusive(self.number, place, range.clone())
    }

    /// What `place` holds, or waits for, is over.
    #[inline]
    pub fn unlock(&mut self, place: usize) {
        if self.queued > 0 && !self.mine.holds(place) {
            return self.unlock_queued(place);
        }
        self.unlock_shared(place);
    }

    #[inline]
    fn unlock_shared(&mut self, place: usize) {
        self.mine.clear(place);
        if !mistake!("range_unlock_fence") {
            self.lock.barriers.light();
        }
        if self.lock.exclusives.load(Relaxed) > 0 {
            self.lock.queue.lock(&self.locks).grant();
        }
    }

    #[cold]
    fn unlock_queued(&mut self, place: usize) {
        let mut queue = self.lock.queue.lock(&self.locks);
        let removed = queue.remove(self.number, place);
        // Release: whoever finds none comes after what the last one did.
        self.lock.exclusives.store(queue.exclusives(), Release);
        drop(queue);
        match removed {
            true => self.queued -= 1,
            false => self.unlock_shared(place),
        }
    }

    /// There is something to take: see [`RangeUser::take_granted`].
    #[inline]
    pub fn has_news(&self) -> bool {
        self.queued > 0 && self.mine.is_told()
    }

    /// Append the places that have waited and hold what they waited for now to `places`.
    pub fn take_granted(&mut self, places: &mut Vec<usize>) {
        self.mine.take_told();
        let before = places.len();
        let mut queue = self.lock.queue.lock(&self.locks);
        queue.take_granted(self.number, places);
        for place in places[before..].iter().copied() {
            // A shared one leaves the queue once its place is set: so those behind it find the
            // place.
            if let Some(range) = queue.shared_range(self.number, place) {
                self.mine.set(place, &range);
                queue.remove(self.number, place);
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
