//! The turn at something that many may need done, and one at a time does: for all, and without
//! anybody waiting for it.
//!
//! Invariants:
//! * Who needs it done asks, and tries the lock. If that is taken, whoever has it sees that it was
//!   asked, or the one who asked gets it after all.
//! * Only who changes the rules waits for the lock ([`Turn::wait`]), and leaves it as all do.
//!
//! Memory order: who asks writes, passes a full fence and looks whether the lock is free; who has
//! it frees it, passes a full fence and looks whether it was asked (Dekker): at least one sees the
//! other. What was written before asking is seen by whoever takes the request: asking and
//! taking are exchanges of `asked`, so that a later one asks for the earlier ones, too.

use drystone_core::mistake;
use drystone_core::primitive::{AtomicBool, Ordering::*, fence};
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};

/// See the module's text.
pub(crate) struct Turn<T> {
    asked: AtomicBool,
    lock: Lock<T>,
}

impl<T> Turn<T> {
    pub(crate) fn new(value: T) -> Self {
        Turn { asked: AtomicBool::new(false), lock: Lock::new(LockClass::Throttle, value) }
    }

    /// Have `work` done, here or by whoever is at it.
    pub(crate) fn ask(&self, locks: &LockCounters, mut work: impl FnMut(&mut T)) {
        if drystone_core::mutated!("throttle_ask_store") {
            self.asked.store(true, Release);
        } else {
            self.asked.swap(true, AcqRel);
        }
        if !drystone_core::mutated!("throttle_ask_fence") {
            fence(SeqCst);
        }
        while self.asked.load(Relaxed) {
            let Some(mut turn) = self.lock.try_lock(locks) else { return };
            if self.asked.swap(false, AcqRel) {
                work(&mut turn);
            }
            self.leave(turn);
            if mistake!("throttle_recheck") {
                return;
            }
        }
    }

    /// Wait for the turn, for who changes the rules. [`Turn::leave`] ends it, and [`Turn::ask`]
    /// follows for those who asked meanwhile.
    pub(crate) fn wait(&self, locks: &LockCounters) -> Guard<'_, T> {
        self.lock.lock(locks)
    }

    pub(crate) fn leave(&self, turn: Guard<'_, T>) {
        drop(turn);
        if !drystone_core::mutated!("throttle_leave_fence") {
            fence(SeqCst);
        }
    }
}
