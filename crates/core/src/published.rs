//! A value that many threads read all the time and that changes rarely (RCU with a sequence
//! number): readers keep a copy and compare a counter to see whether it is still the current one.
//!
//! Invariants:
//! * The counter grows with each change, after the new value is there: a reader that sees the
//!   counter of a change and asks gets that value or a later one.
//! * Reading the counter writes nothing, and the lock is taken only after a change.
//!
//! Linux does this by RCU: the reader's copy is its read-side critical section, and it ends when
//! the reader reads the counter again. A writer that must know that no reader has the old value
//! any more (a grace period) has each of them refresh ([`crate::context::Handle::kick`]).

use crate::error::Result;
use crate::primitive::{AtomicU64, Ordering::*};
use crate::sync::{Lock, LockClass, LockCounters};
use std::sync::Arc;

/// A value with a counter of its changes.
pub struct Published<T> {
    epoch: AtomicU64,
    current: Lock<Arc<T>>,
}

impl<T> Published<T> {
    /// The first value.
    pub fn new(value: T) -> Self {
        let current = Lock::new(LockClass::Control, Arc::new(value));
        Published { epoch: AtomicU64::new(1), current }
    }

    /// Counts changes; a copy taken at another count is old.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// The current value with its count.
    pub fn get(&self, user: &LockCounters) -> (u64, Arc<T>) {
        let current = self.current.lock(user);
        (self.epoch.load(Relaxed), current.clone())
    }
}

impl<T: Clone> Published<T> {
    /// Change the value; if `change` refuses, nothing changes.
    ///
    /// # Errors
    /// The errors of `change`.
    pub fn update(
        &self,
        user: &LockCounters,
        change: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        let mut current = self.current.lock(user);
        let mut next = T::clone(&current);
        change(&mut next)?;
        *current = Arc::new(next);
        self.epoch.fetch_add(1, Release);
        Ok(())
    }
}

/// A reader's copy of a [`Published`] value, with the count at which it was taken. It reads as the
/// value.
pub struct Subscription<T> {
    epoch: u64,
    value: Arc<T>,
}

impl<T> Subscription<T> {
    /// The current value. `user` counts the lock.
    pub fn new(published: &Published<T>, user: &LockCounters) -> Self {
        let (epoch, value) = published.get(user);
        Subscription { epoch, value }
    }

    /// True if the copy is the current value. Writes nothing.
    #[inline]
    pub fn is_current(&self, published: &Published<T>) -> bool {
        published.epoch() == self.epoch
    }

    /// Take the current value, and return the one before. `user` counts the lock.
    pub fn refresh(&mut self, published: &Published<T>, user: &LockCounters) -> Arc<T> {
        let (epoch, value) = published.get(user);
        self.epoch = epoch;
        std::mem::replace(&mut self.value, value)
    }

    /// The count at which the copy was taken.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The copy.
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> std::ops::Deref for Subscription<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_copy_is_current_until_a_change_and_again_after_a_refresh() {
        let locks = LockCounters::new(ManualClock::new(1));
        let published = Published::new(1);
        let mut copy = Subscription::new(&published, &locks);
        assert!(copy.is_current(&published) && *copy == 1);
        let to_two = |value: &mut i32| {
            *value = 2;
            Ok(())
        };
        published.update(&locks, to_two).unwrap();
        assert!(!copy.is_current(&published) && *copy == 1, "the reader goes on with its copy");
        let before = (copy.epoch(), copy.refresh(&published, &locks));
        assert!(copy.is_current(&published));
        assert_eq!((*copy, **copy.value(), before), (2, 2, (copy.epoch() - 1, Arc::new(1))));
        let refused = published.update(&locks, |_| Err(crate::Error::invalid("no".to_owned())));
        assert!(refused.is_err() && copy.is_current(&published), "nothing changed");
    }
}
