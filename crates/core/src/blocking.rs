//! Calls that may block, and the threads that must not make them.
//!
//! A data thread serves many clients: while it waits for a file system, all of them do. So what may
//! wait for a disk or a file system begins with [`might_block`], as the kernel's sleeping functions
//! begin with `might_sleep`: a debug build ends there if the thread is a data thread.
//! `system-tests/tests/data_threads.rs` looks at the same from outside, by strace.
//!
//! Invariant: a thread is a data thread from when it enters [`as_data_thread`] until it leaves it.
//! The program says which threads are: in a simulator all contexts are fibers of one thread, which
//! is none.

#![expect(
    clippy::disallowed_types,
    reason = "whether a thread may block is a property of the thread"
)]

use crate::clock::SystemClock;
use crate::ring::drop_on_helper;
use crate::sync::LockCounters;
use std::cell::Cell;
use std::ops::Deref;

thread_local! {
    static IS_DATA_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Do `work` as a data thread: nothing in it may block but the wait for its own ring.
pub fn as_data_thread<T>(work: impl FnOnce() -> T) -> T {
    let _back = Before(IS_DATA_THREAD.replace(true));
    work()
}

/// The kind that the thread was before.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        IS_DATA_THREAD.set(self.0);
    }
}

/// `what`, a system call, may wait for a disk or a file system. In a debug build it is our mistake,
/// and a panic, if a data thread comes here.
#[inline]
pub fn might_block(what: &str) {
    debug_assert!(!IS_DATA_THREAD.get(), "a data thread calls {what}, which may block");
}

/// Something whose drop may block, as the last close of a file does that has to write or free much.
/// The last owner drops it, but for a data thread, which leaves that to a helper thread.
#[derive(Debug)]
pub struct Aside<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Aside<T> {
    /// Around `inner`.
    pub fn new(inner: T) -> Self {
        Aside(Some(inner))
    }
}

impl<T: Send + 'static> Deref for Aside<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let Some(inner) = &self.0 else { unreachable!("is there until the drop") };
        inner
    }
}

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        if IS_DATA_THREAD.get()
            && let Some(inner) = self.0.take()
        {
            drop_on_helper(Box::new(inner), &LockCounters::new(SystemClock::new()));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    #[test]
    fn a_data_thread_may_not_block() {
        might_block("lseek");
        let caught = std::panic::catch_unwind(|| as_data_thread(|| might_block("lseek")));
        assert_eq!(caught.is_err(), cfg!(debug_assertions));
        might_block("lseek");
    }

    /// Tells which thread drops it.
    struct Tells(Sender<std::thread::ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    #[test]
    fn what_a_data_thread_has_last_is_dropped_elsewhere() {
        let (tell, told) = channel();
        let me = std::thread::current().id();
        drop(Aside::new(Tells(tell.clone())));
        assert_eq!(told.recv().unwrap(), me);
        as_data_thread(|| drop(Aside::new(Tells(tell))));
        assert_ne!(told.recv().unwrap(), me);
    }
}
