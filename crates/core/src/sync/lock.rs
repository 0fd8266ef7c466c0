//! A mutual exclusion lock with a class. A panic while it is held does not poison it: the data
//! it guards must be valid between statements, which every user's invariants ensure.

use super::counters::Hold;
#[cfg(loom)]
use super::modelled::{Mutex, MutexGuard};
use super::{LockClass, LockCounters};
use crate::sim::{HAS_POINTS, step};
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// A lock of a named class around a value.
pub struct Lock<T> {
    class: LockClass,
    inner: Mutex<T>,
}

/// Access to the value of a taken [`Lock`]; dropping it releases the lock.
pub struct Guard<'a, T> {
    /// Before `inner`: fields are dropped in order, and what is counted for a lock is counted
    /// while it is held.
    pub(super) hold: Hold,
    pub(super) inner: MutexGuard<'a, T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Lock<T> {
    /// A free lock of `class`.
    pub const fn new(class: LockClass, value: T) -> Self {
        Lock { class, inner: Mutex::new(value) }
    }

    /// Take the lock, waiting for it if need be. Counted for `user`.
    pub fn lock(&self, user: &LockCounters) -> Guard<'_, T> {
        step();
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(user),
        };
        self.taken(guard, user)
    }

    #[cold]
    fn wait(&self, user: &LockCounters) -> MutexGuard<'_, T> {
        if HAS_POINTS {
            // The holder may be another context of this very thread.
            return self.wait_spinning(user);
        }
        user.waited(self.class, || self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Take the lock, and burn the processor until it is free: for experiments. A kernel's spin
    /// locks keep their holders on the processor; nothing does here, so a wait for a holder that is
    /// off it lasts until the holder's next turn there.
    pub fn spin(&self, user: &LockCounters) -> Guard<'_, T> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait_spinning(user),
        };
        self.taken(guard, user)
    }

    #[cold]
    fn wait_spinning(&self, user: &LockCounters) -> MutexGuard<'_, T> {
        user.waited(self.class, || {
            loop {
                match self.inner.try_lock() {
                    Ok(guard) => return guard,
                    Err(TryLockError::Poisoned(e)) => return e.into_inner(),
                    Err(TryLockError::WouldBlock) => rest(),
                }
            }
        })
    }

    /// Take the lock if it is free; never waits. If it is not, that is counted as a contention
    /// without a wait.
    pub fn try_lock(&self, user: &LockCounters) -> Option<Guard<'_, T>> {
        step();
        match self.inner.try_lock() {
            Ok(guard) => Some(self.taken(guard, user)),
            Err(TryLockError::Poisoned(e)) => Some(self.taken(e.into_inner(), user)),
            Err(TryLockError::WouldBlock) => {
                user.gave_up(self.class);
                None
            }
        }
    }

    #[inline]
    fn taken<'a>(&self, inner: MutexGuard<'a, T>, user: &LockCounters) -> Guard<'a, T> {
        user.acquired(self.class);
        step();
        Guard { hold: user.begin_hold(self.class), inner }
    }

    /// The value, for the lock's only owner.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between two tries of a spinning wait: each writes the lock's cache line, so not too often.
#[cfg(not(any(loom, drystone_sim)))]
fn rest() {
    (0..16).for_each(|_| std::hint::spin_loop());
}

#[cfg(all(drystone_sim, not(loom)))]
fn rest() {
    crate::sim::spin();
}

#[cfg(loom)]
fn rest() {
    loom::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock, Ns};
    use crate::sync::{LockCounts, LockRegistry, LockTimes};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    #[test]
    fn counts_acquisitions_and_refusals() {
        let clock = ManualClock::new(5);
        let user = LockCounters::new(clock);
        let lock = Lock::new(LockClass::Other, 1);
        {
            let mut held = lock.lock(&user);
            *held += 1;
            assert!(lock.try_lock(&user).is_none());
        }
        assert_eq!(*lock.try_lock(&user).unwrap(), 2);
        let counts = user.get(LockClass::Other);
        assert_eq!((counts.acquisitions, counts.contentions), (2, 1));
        assert_eq!(user.total(), counts);
    }

    /// A clock that moves by one with each reading.
    #[derive(Default)]
    struct Readings(AtomicU64);

    impl Clock for Readings {
        fn now(&self) -> Ns {
            self.0.fetch_add(1, Relaxed)
        }

        fn cycles(&self) -> Option<u64> {
            None
        }

        fn cycles_in(&self, _: Ns) -> u64 {
            0
        }
    }

    #[test]
    fn only_a_timed_hold_reads_the_clock() {
        let clock = Arc::new(Readings::default());
        let registry = LockRegistry::new(clock.clone());
        let user = registry.counters();
        let lock = Lock::new(LockClass::Other, ());
        drop(lock.lock(&user));
        drop(lock.try_lock(&user));
        assert_eq!(clock.0.load(Relaxed), 0);
        assert_eq!(user.stats().get(LockClass::Other).holds, LockTimes::default());
        registry.time_holds(true);
        let before = clock.0.load(Relaxed);
        drop(lock.lock(&user));
        drop(lock.try_lock(&user));
        assert_eq!(clock.0.load(Relaxed) - before, 4);
        assert_eq!(user.stats().get(LockClass::Other).holds.total_ns, 2);
    }

    #[test]
    fn holds_are_timed_from_taking_to_releasing() {
        let clock = ManualClock::new(5);
        let registry = LockRegistry::new(clock.clone());
        let user = registry.counters();
        let (lock, other) = (Lock::new(LockClass::Other, ()), Lock::new(LockClass::Buffers, ()));
        let hold = |ns| {
            let _guard = lock.lock(&user);
            clock.advance(ns);
        };
        hold(1000);
        registry.time_holds(true);
        [30, 10].into_iter().for_each(hold);
        clock.advance(500);
        let outer = lock.try_lock(&user).unwrap();
        clock.advance(1);
        let inner = other.lock(&user);
        clock.advance(1);
        // Locks that are held now are still timed, locks that are taken from now on are not.
        registry.time_holds(false);
        drop(outer);
        clock.advance(1);
        drop(inner);
        hold(1000);
        let stats = user.stats();
        let other = LockTimes { count: 3, total_ns: 42, min_ns: Some(2), max_ns: Some(30) };
        assert_eq!(stats.get(LockClass::Other).holds, other);
        let buffers = LockTimes { count: 1, total_ns: 2, min_ns: Some(2), max_ns: Some(2) };
        assert_eq!(stats.get(LockClass::Buffers).holds, buffers);
        assert_eq!(stats.get(LockClass::Other).acquisitions, 5);
    }

    #[test]
    fn waits_have_a_shortest_and_a_longest() {
        let clock = ManualClock::new(5);
        let user = LockCounters::new(clock.clone());
        for ns in [40, 7, 13] {
            user.waited(LockClass::ContextGate, || clock.advance(ns));
            user.acquired(LockClass::ContextGate);
        }
        user.gave_up(LockClass::ContextGate);
        let waits = LockTimes { count: 3, total_ns: 60, min_ns: Some(7), max_ns: Some(40) };
        let stats = *user.stats().get(LockClass::ContextGate);
        assert_eq!((stats.contentions, stats.acquisitions), (4, 3));
        assert_eq!(stats.waits, waits);
        assert_eq!(stats.waits.avg_ns(), Some(20), "a try that gives up has not waited");
        assert_eq!(stats.holds, LockTimes::default());
    }

    /// Holds a lock for so long while another thread takes it, and returns that thread's counts.
    fn take_while_held(
        take: impl for<'l> Fn(&'l Lock<()>, &LockCounters) -> Guard<'l, ()> + Sync,
        held_for: Duration,
    ) -> LockCounts {
        let clock = crate::clock::SystemClock::new();
        let (a, b) = (LockCounters::new(clock.clone()), LockCounters::new(clock));
        let lock = Lock::new(LockClass::Other, ());
        std::thread::scope(|s| {
            let held = take(&lock, &a);
            let waiter = s.spawn(|| drop(take(&lock, &b)));
            std::thread::sleep(held_for);
            drop(held);
            waiter.join().unwrap();
        });
        b.get(LockClass::Other)
    }

    #[test]
    fn a_contended_wait_is_counted_once() {
        for take in [Lock::lock, Lock::spin] {
            // On a busy machine the other thread may begin after the lock is free again.
            let longer = (0..).map(|times| Duration::from_millis(30 << times));
            let mut counts = longer.take(11).map(|held_for| take_while_held(take, held_for));
            let counts = counts.find(|counts| counts.contentions > 0).expect("a wait");
            assert_eq!((counts.acquisitions, counts.contentions), (1, 1));
            assert!(counts.wait_ns > 0);
        }
    }
}
