//! The files and the memory that a ring has made known to the kernel.
//!
//! Invariant: a file's place is in use from [`Registered::file`] until [`Registered::forget`];
//! memory stays as long as the ring, which holds it.

use super::{FileOp, RingFile};
use crate::buf::Arena;
use crate::error::{Error, Result};
use io_uring::IoUring;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Places in the table of registered memory.
const ARENAS: u32 = 16;
/// Places in the table of registered files.
const FILES: u32 = 256;

/// See the module's text.
pub(super) struct Registered {
    free: Vec<u32>,
    /// The descriptors of the files, by place.
    files: Vec<RawFd>,
    /// The memory, by its place in the ring's table.
    memory: Vec<Arc<Arena>>,
}

impl Registered {
    /// Makes the two tables.
    pub(super) fn new(uring: &IoUring) -> Self {
        let has_files = uring.submitter().register_files_sparse(FILES).is_ok();
        // Without the table, registering memory is refused later, with the kernel's reason.
        let _ = uring.submitter().register_buffers_sparse(ARENAS);
        Registered {
            free: if has_files { (0..FILES).rev().collect() } else { Vec::new() },
            files: vec![-1; FILES as usize],
            memory: Vec::new(),
        }
    }

    /// Registers a file, or falls back to its descriptor.
    pub(super) fn file(&mut self, uring: &IoUring, fd: RawFd) -> RingFile {
        let Some(index) = self.free.pop() else { return RingFile::Fd(fd) };
        match uring.submitter().register_files_update(index, &[fd]) {
            Ok(_) => {
                self.files[index as usize] = fd;
                RingFile::Registered(index)
            }
            Err(_) => {
                self.free.push(index);
                RingFile::Fd(fd)
            }
        }
    }

    /// Forgets a file.
    pub(super) fn forget(&mut self, uring: &IoUring, file: RingFile) {
        if let RingFile::Registered(index) = file {
            let _ = uring.submitter().register_files_update(index, &[-1]);
            self.free.push(index);
        }
    }

    /// The descriptor of a file.
    pub(super) fn descriptor(&self, file: RingFile) -> RawFd {
        match file {
            RingFile::Fd(fd) => fd,
            RingFile::Registered(index) => self.files[index as usize],
        }
    }

    /// Registers memory.
    ///
    /// # Errors
    /// When the kernel refuses, or the table is full.
    pub(super) fn memory(&mut self, uring: &IoUring, arena: Arc<Arena>) -> Result<()> {
        let place = self.memory.len() as u32;
        if place == ARENAS {
            return Err(Error::invalid(format!("a ring registers memory {ARENAS} times")));
        }
        let all = arena.segment();
        let vector = libc::iovec { iov_base: all.ptr.cast(), iov_len: all.len };
        // SAFETY: the arena's memory stays as long as the ring, which keeps a reference.
        unsafe { uring.submitter().register_buffers_update(place, &[vector], None) }
            .map_err(|e| Error::os("memory cannot be registered with io_uring", e))?;
        self.memory.push(arena);
        Ok(())
    }

    /// The registered memory that an operation's segment lies in.
    pub(super) fn place_of(&self, op: &FileOp) -> Option<u16> {
        let (FileOp::Read { segment, .. } | FileOp::Write { segment, .. }) = op else {
            return None;
        };
        let inside = |arena: &Arc<Arena>| {
            let all = arena.segment();
            let start = (segment.ptr as usize).wrapping_sub(all.ptr as usize);
            start < all.len && segment.len <= all.len - start
        };
        self.memory.iter().position(inside).map(|place| place as u16)
    }
}
