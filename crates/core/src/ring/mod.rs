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
mod epoll;
mod eventfd;
mod helpers;
pub mod plain;
pub mod polled;
mod query;
mod sockets;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod uring;
mod watches;

pub(crate) use helpers::drop_on_helper;
pub use query::Query;
pub use sockets::peer_uid;

use crate::buf::{Arena, IoBuf, Segment};
use crate::clock::Ns;
use crate::error::Result;
use crate::extent::Extent;
use crate::sync::LockCounters;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// Whom an event is for: the upper 16 bits of a token name the owner, the rest is the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

impl Token {
    /// Bits of the owner's own value.
    pub const VALUE_BITS: u32 = 48;
    /// Owner number of the program that drives the context (a front end).
    pub const FRONT_END: u16 = u16::MAX;
    /// Owner number of the context itself.
    pub const CONTEXT: u16 = u16::MAX - 1;

    /// A token of `owner` with its own `value`, which must fit into 48 bits.
    #[inline]
    pub const fn new(owner: u16, value: u64) -> Self {
        debug_assert!(value >> Self::VALUE_BITS == 0);
        Token(((owner as u64) << Self::VALUE_BITS) | value)
    }

    /// The owner.
    #[inline]
    pub const fn owner(self) -> u16 {
        (self.0 >> Self::VALUE_BITS) as u16
    }

    /// The owner's value.
    #[inline]
    pub const fn value(self) -> u64 {
        self.0 & ((1 << Self::VALUE_BITS) - 1)
    }
}

/// A file as a ring knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingFile {
    /// By its descriptor.
    Fd(RawFd),
    /// By its place in the ring's table of registered files.
    Registered(u32),
}

/// An operation on a file, on behalf of a driver.
#[derive(Clone, Copy, Debug)]
pub enum FileOp {
    /// Read one piece of memory.
    Read {
        /// Where to.
        segment: Segment,
        /// From which byte of the file.
        offset: u64,
    },
    /// Write one piece of memory.
    Write {
        /// What.
        segment: Segment,
        /// To which byte of the file.
        offset: u64,
        /// Make it durable (`RWF_DSYNC`).
        dsync: bool,
    },
    /// Read into several pieces of memory.
    Readv {
        /// The first of `count` pieces.
        iovecs: *const libc::iovec,
        /// How many.
        count: u32,
        /// From which byte of the file.
        offset: u64,
    },
    /// Write several pieces of memory.
    Writev {
        /// The first of `count` pieces.
        iovecs: *const libc::iovec,
        /// How many.
        count: u32,
        /// To which byte of the file.
        offset: u64,
        /// Make it durable (`RWF_DSYNC`).
        dsync: bool,
    },
    /// `fdatasync`.
    DataSync,
    /// `fallocate`.
    Allocate {
        /// Its mode, `FALLOC_FL_*`.
        mode: i32,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Discard a range of a block device (`BLKDISCARD`): by a helper thread on both engines.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

// SAFETY: the pointers are memory that the starter of the operation vouches for from any thread.
unsafe impl Send for FileOp {}

/// An operation on a socket or another descriptor that is waited for, with the buffers it owns.
#[derive(Debug)]
pub enum NetOp {
    /// Accept a connection, which comes as [`Buffers::Socket`]. The plain engine
    /// makes the listener non-blocking.
    Accept,
    /// Receive what is there, at least one byte; 0 is the peer's end.
    Recv {
        /// Owned until it comes back with the event.
        buf: IoBuf,
        /// The bytes of it to receive into.
        range: std::ops::Range<usize>,
    },
    /// Send as much as the socket takes at once, at least one byte.
    Send {
        /// What, in order.
        parts: Vec<SendPart>,
    },
    /// Wait until the descriptor can be read. Where several rings wait for one descriptor, fewer
    /// may be told than wait: whoever is told takes what there is, and who starts to wait while
    /// there is something is told at once.
    PollIn,
}

/// A part of a buffer to send.
#[derive(Debug)]
pub struct SendPart {
    /// The buffer, owned until it comes back with the event.
    pub buf: IoBuf,
    /// The bytes of it to send.
    pub range: std::ops::Range<usize>,
}

/// How an operation ended.
#[derive(Debug)]
pub struct RingEvent {
    /// The token it was started with.
    pub token: Token,
    /// What the system call returned: a count or descriptor, or a negative errno.
    pub result: i32,
    /// The buffers that the operation owned.
    pub buffers: Buffers,
}

/// The buffers that an ended operation gives back.
#[derive(Debug, Default)]
pub enum Buffers {
    /// It owned none.
    #[default]
    None,
    /// Of a receive.
    One(IoBuf),
    /// Of a send, with the parts as they were given.
    Parts(Vec<SendPart>),
    /// Of an accept: the new socket, closed on exec.
    Socket(OwnedFd),
    /// Of a query: what is known, as [`crate::Device::extents`] tells.
    Extents(Vec<Extent>),
}

/// Wakes the sleeper of a ring, from any thread.
pub trait Waker: Send + Sync {
    /// Make the current or next [`Ring::wait`] return. Cheap when a wake-up is already pending.
    fn wake(&self);
}

/// Kernel I/O and sleeping of one context. Used only with that context in hand.
pub trait Ring: Send {
    /// Start `op` on `fd`. Never fails: what the kernel refuses becomes an event. It may stay
    /// in memory until [`Ring::submit`].
    ///
    /// # Safety
    /// The memory that `op` names and `file` must stay valid until the event with `token` came.
    unsafe fn file(&mut self, file: RingFile, op: FileOp, token: Token);

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

    /// Start `op` on `fd`, which the caller keeps open until the event.
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

    /// Submit, then sleep until there is an event, somebody wakes us, or the clock passes
    /// `deadline`.
    fn wait(&mut self, deadline: Option<Ns>);

    /// Move events to `out`, never waiting.
    fn reap(&mut self, out: &mut Vec<RingEvent>);

    /// Operations that have not had their event.
    fn in_flight(&self) -> usize;

    /// What wakes this ring's sleeper.
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

/// Which engine to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring if the kernel permits it, else the plain one.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// The plain engine.
    Plain,
}

/// Make a ring for a new context.
///
/// # Errors
/// When the engine asked for cannot be had; with [`Engine::Auto`], when neither can.
pub fn open(engine: Engine, clock: Arc<dyn crate::clock::Clock>) -> Result<Box<dyn Ring>> {
    match engine {
        Engine::Plain => plain::PlainRing::open(clock),
        Engine::Uring => uring::UringRing::open(clock),
        Engine::Auto => {
            uring::UringRing::open(clock.clone()).or_else(|_| plain::PlainRing::open(clock))
        }
    }
}
