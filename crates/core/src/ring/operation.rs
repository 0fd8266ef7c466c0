//! The operations of a ring and their events: what is asked, and how it ended.
//!
//! Invariant: an operation on a socket owns its buffers from its start until its event, which gives
//! them back. The memory of an operation on a file stays with the starter.

use crate::buf::{IoBuf, Segment};
use crate::extent::Extent;
use crate::pipe::Pipe;
use std::os::fd::{OwnedFd, RawFd};

/// The owner of an operation, in the upper 16 bits, and the owner's own value.
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
        /// The memory.
        segment: Segment,
        /// From which byte of the file.
        offset: u64,
    },
    /// Write one piece of memory.
    Write {
        /// The memory.
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
    /// Move pages of the file's page cache into a pipe ([`crate::Pipe`]) that has room for them.
    Splice {
        /// The pipe's end for writes, kept open until the event.
        pipe: RawFd,
        /// From which byte of the file.
        offset: u64,
        /// Bytes.
        length: u32,
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
        /// The data, in order.
        parts: Vec<SendPart>,
    },
    /// Wait until the descriptor can be read. Where several rings wait for one descriptor, the
    /// kernel may tell only some of them: a ring that is told takes everything that there is. A
    /// ring that starts to wait while there is something is told at once.
    PollIn,
}

/// A part of a buffer to send, and what a pipe holds after it.
#[derive(Debug)]
pub struct SendPart {
    /// The buffer, owned until it comes back with the event.
    pub buf: IoBuf,
    /// The bytes of it to send.
    pub range: std::ops::Range<usize>,
    /// The pipe whose contents follow. The engine moves them out, and leaves it to the owner to
    /// count them ([`SendPart::sent`]).
    pub pipe: Option<Box<Pipe>>,
}

impl SendPart {
    /// A part without a pipe.
    #[inline]
    pub fn new(buf: IoBuf, range: std::ops::Range<usize>) -> Self {
        SendPart { buf, range, pipe: None }
    }

    /// The bytes of both.
    #[inline]
    pub fn len(&self) -> usize {
        self.range.len() + self.pipe_len()
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in the pipe.
    #[inline]
    pub fn pipe_len(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.len())
    }

    /// Its first `n` bytes were sent.
    pub fn sent(&mut self, n: usize) {
        let of_buf = n.min(self.range.len());
        self.range.start += of_buf;
        if let Some(pipe) = &mut self.pipe {
            pipe.moved(n - of_buf);
        }
    }
}

/// The end of an operation.
#[derive(Debug)]
pub struct RingEvent {
    /// The token it was started with.
    pub token: Token,
    /// The return value of the system call: a count or descriptor, or a negative errno.
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
