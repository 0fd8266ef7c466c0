//! The ring of a context: kernel I/O and sleeping, as a parameter.
//!
//! One interface, two engines: [`uring`] on io_uring, and [`plain`] where io_uring is forbidden
//! (containers' default seccomp): epoll for sockets, helper threads for files, so that the
//! context's thread never blocks in a file operation. Both give queries to helper threads.
//! The simulator brings its own.
//!
//! Ownership: an operation on memory of a bio is started with [`Ring::file`] by a driver, whose
//! request keeps the bio until the event; operations on sockets own their buffers
//! ([`NetOp`]) and give them back with the event. So no buffer is freed or reused before the
//! kernel has given it back, however the operation ends.

#![allow(unsafe_code, reason = "io_uring takes addresses that must outlive the operation")]

pub(crate) mod bell;
mod cores;
mod direct;
mod engine;
mod entries;
mod epoll;
mod eventfd;
mod handover;
mod helpers;
mod local;
#[cfg(all(test, not(loom)))]
mod local_tests;
mod operation;
#[cfg(all(test, not(loom), not(miri)))]
mod pipe_tests;
pub mod plain;
pub mod polled;
mod query;
mod registered;
mod slots;
mod sockets;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod uring;
mod watches;

pub use engine::{Engine, open};
pub use eventfd::Waker;
pub(crate) use helpers::drop_on_helper;
pub use operation::{Buffers, FileOp, NetOp, RingEvent, RingFile, SendPart, Token};
pub use query::Query;
pub use sockets::peer_uid;

use crate::buf::Arena;
use crate::clock::Ns;
use crate::error::Result;
use crate::sync::LockCounters;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// Kernel I/O and sleeping of one context. Used only with that context in hand.
pub trait Ring: Send {
    /// Start `op` on `fd`. Never fails: what the kernel refuses becomes an event. It may stay
    /// in memory until [`Ring::submit`].
    ///
    /// # Safety
    /// The memory that `op` names and `file` must stay valid until the event with `token` came.
    unsafe fn file(&mut self, file: RingFile, op: FileOp, token: Token);

    /// The same for an operation that the kernel does not do without waiting, so that it hands it
    /// to a thread. A write may stay in memory beyond [`Ring::submit`], until [`Ring::wait`].
    ///
    /// # Safety
    /// As for [`Ring::file`].
    unsafe fn waiting_file(&mut self, file: RingFile, op: FileOp, token: Token) {
        // SAFETY: the caller's promise.
        unsafe { self.file(file, op, token) }
    }

    /// From now on, what uses the ring is a thread that does nothing else, or is not: after each
    /// round it comes to [`Ring::wait`], and the processors it runs on are the ring's to choose.
    fn own_thread(&mut self, _owns: bool) {}

    /// True if work of this ring needs the core of the thread that uses it. A poll would keep it
    /// from that.
    fn needs_core(&self) -> bool {
        false
    }

    /// Make `fd` known to the ring, which saves the kernel a look-up for each operation. Falls
    /// back to the descriptor itself. Undone by [`Ring::unregister`].
    fn register(&mut self, fd: RawFd) -> RingFile;

    /// Make memory known to the ring, which saves the kernel pinning it for each operation.
    /// Operations inside it then use that by themselves. The ring keeps the memory alive.
    ///
    /// # Errors
    /// When the kernel refuses, most often because of a small limit of locked memory
    /// (`RLIMIT_MEMLOCK`); everything works as before, only slower.
    fn register_memory(&mut self, _arena: Arc<Arena>) -> Result<()> {
        Ok(())
    }

    /// Forget a registered file.
    fn unregister(&mut self, file: RingFile);

    /// Start `op` on `fd`, which the caller keeps open until the event. A front end has at most one
    /// send and one receive of a socket in flight. Its sends may be done before this returns; a
    /// receive may stay in memory beyond [`Ring::submit`].
    fn net(&mut self, fd: RawFd, op: NetOp, token: Token);

    /// Ask something without waiting for the answer: a helper thread asks, one query of a device at
    /// a time. The answer comes with the event, as [`Query`] says. A negative result is an error
    /// (memory is short), and no answer: then all of a device counts as data.
    fn query(&mut self, query: Query, token: Token);

    /// An event with result 0 when the clock passes `at`.
    fn timer(&mut self, at: Ns, token: Token);

    /// Ask the kernel to end the operation started with `token` early. Its event still comes.
    fn cancel(&mut self, token: Token);

    /// Close `fd` once everything started on it before has been handed to the kernel. Cancel
    /// what waits on it first: such an operation goes on (io_uring) or ends cancelled (plain).
    fn close(&mut self, fd: OwnedFd);

    /// Hand everything started so far to the kernel, without waiting.
    fn submit(&mut self);

    /// Hand a receive and writes to the kernel, too, that [`Ring::submit`] leaves in memory.
    fn submit_all(&mut self) {
        self.submit();
    }

    /// Submit at the end of a round in which the owner neither sleeps nor polls, since there is
    /// news. What is in memory is handed over if it was there at the end of the round before.
    fn end_round(&mut self) {
        self.submit();
    }

    /// The owner begins to poll, or ends it. Meanwhile [`Ring::reap`] tries a receive in memory.
    fn set_polling(&mut self, _polls: bool) {}

    /// Submit, then sleep until there is an event, somebody wakes us, or the clock passes
    /// `deadline`.
    fn wait(&mut self, deadline: Option<Ns>);

    /// Move events to `out`, never waiting.
    fn reap(&mut self, out: &mut Vec<RingEvent>);

    /// Operations that have not had their event.
    fn in_flight(&self) -> usize;

    /// The waker of this ring's sleeper.
    fn waker(&self) -> Arc<dyn Waker>;

    /// Get an event with `token` whenever the ring with descriptors `others` has new ones.
    /// Stays armed until [`Ring::unwatch`]; used by a context that waits for what another holds.
    fn watch(&mut self, others: [RawFd; 2], token: Token);

    /// End a watch.
    fn unwatch(&mut self, others: [RawFd; 2], token: Token);

    /// Descriptors that become readable when this ring has events or was woken.
    fn descriptors(&self) -> [RawFd; 2];

    /// Count the locks that this ring takes for `user` from now on. A ring without locks has
    /// nothing to do.
    fn count_locks_for(&mut self, _user: &Arc<LockCounters>) {}

    /// `io_uring` or `plain`.
    fn engine(&self) -> &'static str;
}
