//! A file as it was opened once: queues do I/O on it until it is opened again (`reopen`).
//!
//! Invariants:
//! * A queue has an opening for as long as anything of the queue is with the kernel on it. The last
//!   that has it closes it.
//! * Two openings of the same file, one after the other, have one `flush_failed`: a flush that
//!   fails on the one before is told of on both.
//! * While a queue uses an opening whose file was opened again, no queue trusts the marks of the
//!   new one's length ([`Doubt`]); a queue looks at the new one's length before it leaves the old
//!   one.

use super::backing::Backing;
use super::claim::Claim;
use super::holes::Holes;
use super::length::{Doubt, Length};
use drystone_core::blocking::Aside;
use drystone_core::buf::Segment;
use drystone_core::primitive::AtomicBool;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

/// See the module's text.
pub(crate) struct Opened {
    pub(crate) backing: Aside<Box<dyn Backing>>,
    /// The claim of a file of the system.
    pub(super) claim: Option<Aside<Arc<Claim>>>,
    /// Bytes of a logical block of the device.
    pub(crate) block_size: u32,
    pub(crate) alignment: Alignment,
    /// A notice of what it cannot do: one sentence without its subject.
    pub(crate) notice: Option<String>,
    /// The file lies in memory (tmpfs, ramfs).
    pub(crate) memory_fs: bool,
    /// The device below polls, and I/O goes to it directly.
    pub(crate) poll_queues: bool,
    pub(crate) length: Arc<Length>,
    /// Holes can be punched.
    pub(crate) punch_hole: AtomicBool,
    /// The way ranges are discarded, if at all.
    pub(crate) discard: Option<Discard>,
    /// Ranges can be zeroed without being freed.
    pub(crate) zero_range: AtomicBool,
    /// The ranges that are known to hold data.
    pub(crate) holes: Holes,
    /// A flush failed: see the invariants of the module above.
    pub(crate) flush_failed: Arc<AtomicBool>,
    /// Set when the file has been opened again.
    pub(super) after: OnceLock<Doubt>,
}

/// The way ranges of a file are discarded. Found out when it is opened; where the system cannot
/// after all, as when a device below was exchanged, the advice is not taken: clients were told that
/// they may give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    /// In whole units of so many bytes, a power of two.
    pub(crate) granularity: u32,
    /// By the block device itself; else holes are punched.
    pub(crate) is_of_device: bool,
}

/// The alignment of memory that I/O needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alignment {
    /// The alignment of its address; 0: I/O goes through the page cache and needs none.
    memory: u32,
    /// The alignment of its length.
    length: u32,
}

impl Alignment {
    /// Through the page cache.
    pub(super) const NONE: Self = Alignment { memory: 0, length: 0 };

    /// The alignment for direct I/O in blocks of so many bytes to memory that is aligned so.
    pub(super) fn direct(memory: u32, block: u32) -> Self {
        Alignment { memory: memory.max(1), length: block }
    }

    /// I/O bypasses the page cache.
    pub(crate) fn is_direct(self) -> bool {
        self.memory > 0
    }

    /// True if I/O to or from that memory needs no bounce buffer. Direct I/O of some kernels takes
    /// only segments of whole blocks (Linux `bdev_iter_is_aligned`).
    pub(crate) fn takes(self, segment: Segment) -> bool {
        !self.is_direct()
            || (segment.ptr as usize).is_multiple_of(self.memory as usize)
                && segment.len.is_multiple_of(self.length as usize)
    }
}

impl Opened {
    /// A simulator's file of `bytes` bytes.
    pub(super) fn over(backing: Box<dyn Backing>, bytes: u64, block_size: u32) -> Self {
        Opened {
            backing: Aside::new(backing),
            claim: None,
            block_size,
            alignment: Alignment::NONE,
            notice: None,
            memory_fs: false,
            poll_queues: false,
            length: Length::new(bytes),
            punch_hole: AtomicBool::new(true),
            discard: None,
            zero_range: AtomicBool::new(true),
            holes: Holes::new(true),
            flush_failed: Arc::new(AtomicBool::new(false)),
            after: OnceLock::new(),
        }
    }

    /// The descriptor by which a ring knows the file.
    pub(crate) fn fd(&self) -> RawFd {
        self.backing.descriptor()
    }

    /// True if it is shorter than the device, now or before. Never waits.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.length.look(&**self.backing)
    }

    /// Hands the state of the file on to `next`, which is the same file opened again.
    pub(super) fn precede(&self, next: &mut Opened) {
        next.flush_failed = self.flush_failed.clone();
        // There is one exchange of an opening.
        let _ = self.after.set(Doubt::of(next.length.clone()));
    }
}
