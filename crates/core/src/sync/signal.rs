//! A condition that holders of a [`super::Lock`] wait for, with a class of its own, so that
//! threads that are idle by design never look like contention of the lock.

#[cfg(loom)]
use super::modelled::Condvar;
use super::{Guard, LockClass, LockCounters};
#[cfg(not(loom))]
use std::sync::Condvar;
use std::sync::PoisonError;

/// A condition of a named class, tied to whatever lock its waiters hold.
pub struct Signal {
    class: LockClass,
    inner: Condvar,
}

impl Signal {
    /// A condition of `class` without waiters.
    pub const fn new(class: LockClass) -> Self {
        Signal { class, inner: Condvar::new() }
    }

    /// Release the lock of `guard`, sleep until notified (or for no reason: test the condition
    /// again), and take the lock again. Counted for `user` as one contended wait of the class.
    /// If the hold of the lock is timed, it ends here and another begins: nobody holds a lock
    /// in its sleep.
    pub fn wait<'a, T>(&self, guard: Guard<'a, T>, user: &LockCounters) -> Guard<'a, T> {
        let Guard { hold, inner } = guard;
        let class = hold.class();
        drop(hold);
        let wait = || self.inner.wait(inner).unwrap_or_else(PoisonError::into_inner);
        let inner = user.waited(self.class, wait);
        user.acquired(self.class);
        Guard { hold: user.begin_hold(class), inner }
    }

    /// Wake one waiter, if there is one.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, SystemClock};
    use crate::sync::{Lock, LockRegistry};

    #[test]
    fn a_waiter_is_woken_and_counted() {
        let clock = SystemClock::new();
        let (a, b) = (LockCounters::new(clock.clone()), LockCounters::new(clock));
        let lock = Lock::new(LockClass::Other, (false, false));
        let signal = Signal::new(LockClass::PlainIdle);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                let mut guard = lock.lock(&b);
                guard.0 = true;
                while !guard.1 {
                    guard = signal.wait(guard, &b);
                }
            });
            // The waiter holds the lock from before it says so until it sleeps.
            while !lock.lock(&a).0 {
                std::thread::yield_now();
            }
            lock.lock(&a).1 = true;
            signal.notify_one();
            waiter.join().unwrap();
        });
        let counts = b.get(LockClass::PlainIdle);
        assert!(counts.acquisitions >= 1 && counts.acquisitions == counts.contentions);
        assert_eq!(b.get(LockClass::Other).acquisitions, 1);
    }

    #[test]
    fn nobody_holds_a_lock_in_its_sleep() {
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        let (a, b) = (LockCounters::new(clock.clone()), registry.counters());
        registry.time_holds(true);
        let lock = Lock::new(LockClass::Other, (false, false));
        let signal = Signal::new(LockClass::PlainIdle);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                let mut guard = lock.lock(&b);
                clock.advance(7);
                guard.0 = true;
                while !guard.1 {
                    guard = signal.wait(guard, &b);
                }
                clock.advance(3);
            });
            while !lock.lock(&a).0 {
                std::thread::yield_now();
            }
            let mut guard = lock.lock(&a);
            clock.advance(1000);
            guard.1 = true;
            drop(guard);
            signal.notify_one();
            waiter.join().unwrap();
        });
        let stats = b.stats();
        let holds = stats.get(LockClass::Other).holds;
        assert_eq!((holds.total_ns, holds.max_ns), (10, Some(7)));
        assert!(holds.count >= 2);
        let idle = stats.get(LockClass::PlainIdle);
        assert_eq!((idle.waits.total_ns, idle.holds.count), (1000, 0));
    }
}
