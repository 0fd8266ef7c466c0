//! A value that many read all the time and that changes rarely: readers keep a copy and look at a
//! counter to see whether it is still the current one.
//!
//! Invariants:
//! * The counter grows with each change, after the new value is there: a reader that sees the
//!   counter of a change and asks gets that value or a later one.
//! * Reading the counter writes nothing, and the lock is taken only after a change.
//!
//! This is what Linux does by RCU: the reader's copy is its read-side critical section, and it ends
//! when the reader looks at the counter again. Whoever must know that no reader has the old value
//! any more has each of them look ([`crate::context::Handle::kick`]).

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
    /// What `change` returns.
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
