//! Stand-ins for the standard library's lock and condition under the model checker.
//!
//! The checker's own objects can only be made inside a model, so each is made when it is first
//! used, which lets locks stand in statics. A model uses each of its locks once before it starts
//! threads, or the checker sees them meet a lock that is just being made. And the checker's
//! `try_lock` always knows the lock's latest state, while a real one that gives up promises no
//! order at all: here it may also give up because of a state that is over, as on hardware.

use crate::primitive::{AtomicBool, Ordering::Relaxed};
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, OnceLock, TryLockError, TryLockResult};

struct Object<T> {
    lock: loom::sync::Mutex<T>,
    /// Somebody holds the lock, as far as a try can see.
    held: AtomicBool,
}

/// Stands for `std::sync::Mutex`.
pub struct Mutex<T> {
    value: std::sync::Mutex<Option<T>>,
    object: OnceLock<Object<T>>,
}

impl<T> Mutex<T> {
    pub(super) const fn new(value: T) -> Self {
        Mutex { value: std::sync::Mutex::new(Some(value)), object: OnceLock::new() }
    }

    fn object(&self) -> &Object<T> {
        self.object.get_or_init(|| {
            let value = self.value.lock().unwrap().take().expect("the value is moved once");
            Object { lock: loom::sync::Mutex::new(value), held: AtomicBool::new(false) }
        })
    }

    pub(super) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let object = self.object();
        let inner = Some(object.lock.lock().unwrap());
        object.held.store(true, Relaxed);
        Ok(MutexGuard { object, inner })
    }

    pub(super) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let object = self.object();
        if object.held.load(Relaxed) {
            return Err(TryLockError::WouldBlock);
        }
        let Ok(inner) = object.lock.try_lock() else { return Err(TryLockError::WouldBlock) };
        object.held.store(true, Relaxed);
        Ok(MutexGuard { object, inner: Some(inner) })
    }

    pub(super) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.object();
        Ok(self.object.get_mut().expect("just made").lock.get_mut().unwrap())
    }
}

/// Stands for `std::sync::MutexGuard`.
pub struct MutexGuard<'a, T> {
    object: &'a Object<T>,
    /// `None` only while waiting for a condition.
    inner: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("held")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // A model that has failed is over: the checker would panic again, which ends the program.
        if !std::thread::panicking() {
            self.object.held.store(false, Relaxed);
        }
    }
}

/// Stands for `std::sync::Condvar`.
pub struct Condvar {
    object: OnceLock<loom::sync::Condvar>,
}

impl Condvar {
    pub(super) const fn new() -> Self {
        Condvar { object: OnceLock::new() }
    }

    fn object(&self) -> &loom::sync::Condvar {
        self.object.get_or_init(loom::sync::Condvar::new)
    }

    pub(super) fn wait<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
    ) -> LockResult<MutexGuard<'a, T>> {
        guard.object.held.store(false, Relaxed);
        guard.inner = guard.inner.take().map(|inner| self.object().wait(inner).unwrap());
        guard.object.held.store(true, Relaxed);
        Ok(guard)
    }

    pub(super) fn notify_one(&self) {
        self.object().notify_one();
    }
}
