//! A mutual exclusion lock with a class. A panic while it is held does not poison it: the data
//! it guards must be valid between statements, which every user's invariants ensure.

#[cfg(loom)]
use super::modelled::{Mutex, MutexGuard};
use super::{LockClass, LockCounters};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// A lock of a named class around a value.
pub struct Lock<T> {
    class: LockClass,
    inner: Mutex<T>,
}

/// Access to the value of a taken [`Lock`]; dropping it releases the lock.
pub type Guard<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    /// A free lock of `class`.
    pub const fn new(class: LockClass, value: T) -> Self {
        Lock { class, inner: Mutex::new(value) }
    }

    /// Take the lock, waiting for it if need be. Counted for `user`.
    pub fn lock(&self, user: &LockCounters) -> Guard<'_, T> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => user
                .waited(self.class, || self.inner.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        user.acquired(self.class);
        guard
    }

    /// Take the lock if it is free; never waits.
    pub fn try_lock(&self, user: &LockCounters) -> Option<Guard<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => {
                user.acquired(self.class);
                Some(guard)
            }
            Err(TryLockError::Poisoned(e)) => {
                user.acquired(self.class);
                Some(e.into_inner())
            }
            Err(TryLockError::WouldBlock) => {
                user.gave_up(self.class);
                None
            }
        }
    }

    /// The value, for the lock's only owner.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

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

    #[test]
    fn a_contended_wait_is_counted_once() {
        let clock = crate::clock::SystemClock::new();
        let (a, b) = (LockCounters::new(clock.clone()), LockCounters::new(clock));
        let lock = Lock::new(LockClass::Other, ());
        std::thread::scope(|s| {
            let held = lock.lock(&a);
            let waiter = s.spawn(|| drop(lock.lock(&b)));
            std::thread::sleep(std::time::Duration::from_millis(30));
            drop(held);
            waiter.join().unwrap();
        });
        let counts = b.get(LockClass::Other);
        assert_eq!(counts.acquisitions, 1);
        assert_eq!(counts.contentions, 1);
        assert!(counts.wait_ns > 0);
    }
}
