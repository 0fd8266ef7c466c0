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
    /// A condition of `class` that nobody waits for.
    pub const fn new(class: LockClass) -> Self {
        Signal { class, inner: Condvar::new() }
    }

    /// Release the lock of `guard`, sleep until notified (or for no reason: test the condition
    /// again), and take the lock again. Counted for `user` as one contended wait of the class.
    pub fn wait<'a, T>(&self, guard: Guard<'a, T>, user: &LockCounters) -> Guard<'a, T> {
        let guard = user
            .waited(self.class, || self.inner.wait(guard).unwrap_or_else(PoisonError::into_inner));
        user.acquired(self.class);
        guard
    }

    /// Wake one waiter, if there is one.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::sync::Lock;

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
}
