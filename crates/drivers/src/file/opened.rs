//! One opening of a file: queues do I/O on it until the file is reopened (`reopen`).
//!
//! Invariants:
//! * A queue holds an opening as long as the kernel has any operation of the queue on it. The last
//!   holder closes it.
//! * Successive openings of the same file share one `flush_failed`: a flush that fails on the
//!   previous opening counts on both.
//! * While a queue uses an opening whose file was reopened, no queue trusts the marks of the new
//!   opening's length ([`Doubt`]). A queue checks the new opening's length before it leaves the old
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
    /// A notice of a restriction: one sentence without its subject.
    pub(crate) notice: Option<String>,
    /// True if the file lies in memory (tmpfs, ramfs).
    pub(crate) memory_fs: bool,
    /// True if the system does no short write without waiting.
    pub(crate) writes_wait: bool,
    /// True if the device below has poll queues and I/O to it is direct.
    pub(crate) poll_queues: bool,
    pub(crate) length: Arc<Length>,
    /// True if holes can be punched.
    pub(crate) punch_hole: AtomicBool,
    /// How ranges are discarded; `None` if they cannot be.
    pub(crate) discard: Option<Discard>,
    /// True if ranges can be zeroed without being freed.
    pub(crate) zero_range: AtomicBool,
    /// The cache of known data.
    pub(crate) holes: Holes,
    /// True if a flush failed: see the invariants of the module above.
    pub(crate) flush_failed: Arc<AtomicBool>,
    /// Set when the file has been opened again.
    pub(super) after: OnceLock<Doubt>,
}

/// How ranges of a file are discarded, as found when it was opened. If the system later refuses,
/// for example because the device below was exchanged, the advice is ignored and not refused:
/// clients were told that they may give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    /// In whole units of so many bytes, a power of two.
    pub(crate) granularity: u32,
    /// True if the block device itself discards; otherwise holes are punched.
    pub(crate) is_of_device: bool,
}

/// The alignment of memory that I/O needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alignment {
    /// The alignment of its address; 0 for I/O through the page cache, which needs none.
    memory: u32,
    /// The alignment of its length.
    length: u32,
}

impl Alignment {
    /// The alignment for the page cache: none.
    pub(super) const NONE: Self = Alignment { memory: 0, length: 0 };

    /// The alignment for direct I/O: the address a multiple of `memory`, the length a multiple of
    /// `block`.
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
            writes_wait: false,
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

    /// True if reads go through a page cache that is not the file itself.
    pub(super) fn has_page_cache(&self) -> bool {
        !self.alignment.is_direct() && !self.memory_fs
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
        // An opening is exchanged only once.
        let _ = self.after.set(Doubt::of(next.length.clone()));
    }
}
