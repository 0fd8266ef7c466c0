//! Whether the system does short writes to a file without waiting.
//!
//! ext4 and most network file systems never do, xfs and btrfs mostly do. Only an attempt tells, so
//! the first write is one. Where they never do, io_uring would hand each write to a thread, and a
//! ring may know better ([`drystone_core::ring::Ring::waiting_file`]).

#![allow(unsafe_code, reason = "pwritev2 takes addresses")]

use drystone_core::buf::Segment;
use drystone_core::primitive::{AtomicU8, Ordering::Relaxed};
use std::os::fd::RawFd;

const UNKNOWN: u8 = 0;
const SELDOM: u8 = 1;
const ALWAYS: u8 = 2;

/// See the module's text.
pub(crate) struct Waits(AtomicU8);

impl Waits {
    /// For a file that is written by the page cache, of which nothing is known.
    pub(super) fn unknown() -> Self {
        Waits(AtomicU8::new(UNKNOWN))
    }

    /// For one whose writes the ring does best.
    pub(super) fn seldom() -> Self {
        Waits(AtomicU8::new(SELDOM))
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.0.load(Relaxed) == UNKNOWN
    }

    /// True if each write waits.
    pub(super) fn is_always(&self) -> bool {
        self.0.load(Relaxed) == ALWAYS
    }

    /// Tries a write that must not wait, and notes what comes of it. True if it was done.
    ///
    /// # Safety
    /// The memory is valid for the length of the call.
    #[cold]
    pub(super) unsafe fn attempt(&self, fd: RawFd, segment: Segment, offset: u64) -> bool {
        let vector = libc::iovec { iov_base: segment.ptr.cast(), iov_len: segment.len };
        // SAFETY: the caller's promise; the vector lives for the call.
        let done = unsafe {
            libc::pwritev2(fd, &raw const vector, 1, offset as libc::off_t, libc::RWF_NOWAIT)
        };
        let unsupported =
            done < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP);
        self.0.store(if unsupported { ALWAYS } else { SELDOM }, Relaxed);
        done == segment.len as isize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn an_attempt_writes_or_tells_that_writes_wait() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0; 8192], 0).unwrap();
        let waits = Waits::unknown();
        assert!(waits.is_unknown() && !waits.is_always());
        let mut data = [7; 4096];
        let segment = Segment { ptr: data.as_mut_ptr(), len: data.len() };
        // SAFETY: the memory lives for the call.
        let done = unsafe { waits.attempt(file.as_raw_fd(), segment, 4096) };
        let mut back = [0; 4096];
        file.read_exact_at(&mut back, 4096).unwrap();
        assert!(!waits.is_unknown());
        assert_eq!(done, back == data);
        assert!(!(done && waits.is_always()));
    }
}
