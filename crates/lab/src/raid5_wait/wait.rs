//! Threads that sleep until another thread wakes them: Linux's `wait_queue_head` and its tasks.
//!
//! A thread that waits for a condition enters the queue, *then* looks at the condition, and sleeps
//! if it does not hold ([`WaitQueue::enter`]). A thread that changes the condition does so first
//! and wakes then. The queue's lock orders the two, so no wake-up is lost.
//!
//! Invariants:
//! * A sleeper is in at most one queue, and once.
//! * A sleeper that a waker takes out of a queue is marked awake before the queue's lock is
//!   released.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use drystone_core::sync::{Lock, LockClass, LockCounters, Signal};

/// A thread that can sleep.
pub struct Sleeper {
    awake: Lock<bool>,
    signal: Signal,
}

impl Default for Sleeper {
    fn default() -> Self {
        Sleeper {
            awake: Lock::new(LockClass::StripeWaiters, true),
            signal: Signal::new(LockClass::StripeIdle),
        }
    }
}

impl Sleeper {
    /// From now on [`Sleeper::sleep`] waits for a call of [`Sleeper::wake`].
    pub fn prepare(&self, user: &LockCounters) {
        *self.awake.lock(user) = false;
    }

    /// Sleep until woken; return at once if a wake-up came since the preparation.
    pub fn sleep(&self, user: &LockCounters) {
        let mut awake = self.awake.lock(user);
        while !*awake {
            awake = self.signal.wait(awake, user);
        }
    }

    /// End its sleep.
    pub fn wake(&self, user: &LockCounters) {
        *self.awake.lock(user) = true;
        self.signal.notify_one();
    }
}

/// A queue of sleepers that wait for the same condition, first come first woken.
pub struct WaitQueue {
    waiting: Lock<VecDeque<Arc<Sleeper>>>,
    woken: AtomicU64,
}

impl Default for WaitQueue {
    fn default() -> Self {
        WaitQueue {
            waiting: Lock::new(LockClass::StripeWaiters, VecDeque::new()),
            woken: AtomicU64::new(0),
        }
    }
}

impl WaitQueue {
    /// Put a sleeper at the end. Look at the condition after this, and sleep if it does not hold.
    pub fn enter(&self, sleeper: &Arc<Sleeper>, user: &LockCounters) {
        let mut waiting = self.waiting.lock(user);
        sleeper.prepare(user);
        waiting.push_back(sleeper.clone());
    }

    /// Take out a sleeper that found its condition true. A wake-up that has reached it meanwhile is
    /// consumed.
    pub fn leave(&self, sleeper: &Arc<Sleeper>, user: &LockCounters) {
        self.waiting.lock(user).retain(|other| !Arc::ptr_eq(other, sleeper));
    }

    /// Wake the first sleeper. True if there was one.
    pub fn wake_one(&self, user: &LockCounters) -> bool {
        let mut waiting = self.waiting.lock(user);
        let first = waiting.pop_front();
        first.iter().for_each(|sleeper| self.wake(sleeper, user));
        first.is_some()
    }

    /// Wake all of them.
    pub fn wake_all(&self, user: &LockCounters) {
        let mut waiting = self.waiting.lock(user);
        waiting.drain(..).for_each(|sleeper| self.wake(&sleeper, user));
    }

    fn wake(&self, sleeper: &Sleeper, user: &LockCounters) {
        self.woken.fetch_add(1, Relaxed);
        sleeper.wake(user);
    }

    /// Wake-ups so far.
    pub fn woken(&self) -> u64 {
        self.woken.load(Relaxed)
    }

    /// Sleepers in the queue.
    pub fn len(&self, user: &LockCounters) -> usize {
        self.waiting.lock(user).len()
    }
}
