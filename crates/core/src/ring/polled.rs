//! A ring whose completions are polled for in the device (`IORING_SETUP_IOPOLL`): for reads and
//! writes with direct I/O only. Nothing ever waits in it; its user polls.
//!
//! Invariant: `in_flight` entries are with the kernel; the driver that started them keeps the
//! memory that they point at until their event came. One thread at a time uses it, like the
//! context's own ring.

use super::entries::file_entry;
use super::{Buffers, FileOp, RingEvent, RingFile, Token};
use crate::error::{Error, Result};
use io_uring::IoUring;
use std::os::fd::RawFd;

const ENTRIES: u32 = 256;

/// A ring for polled reads and writes.
pub struct PolledRing {
    uring: IoUring,
    in_flight: usize,
}

// SAFETY: used by one thread at a time (the context's gate); not set up for a single issuer.
unsafe impl Send for PolledRing {}

impl PolledRing {
    /// A polled ring, if the kernel has it.
    ///
    /// # Errors
    /// When it does not, or forbids io_uring.
    pub fn open() -> Result<Self> {
        let uring = IoUring::builder()
            .setup_iopoll()
            .setup_clamp()
            .dontfork()
            .build(ENTRIES)
            .map_err(|e| Error::os("a polled io_uring cannot be set up", e))?;
        Ok(PolledRing { uring, in_flight: 0 })
    }

    /// Start a read or write of one segment on `fd`. False when the ring is full: poll first.
    ///
    /// # Safety
    /// As for [`super::Ring::file`].
    pub unsafe fn start(&mut self, fd: RawFd, op: FileOp, token: Token) -> bool {
        debug_assert!(matches!(op, FileOp::Read { .. } | FileOp::Write { .. }));
        let entry = file_entry(RingFile::Fd(fd), op, None).user_data(token.0);
        // SAFETY: the caller keeps what the entry points at.
        let pushed = unsafe { self.uring.submission().push(&entry) }.is_ok();
        self.in_flight += usize::from(pushed);
        pushed
    }

    /// Hand started operations to the kernel and look for completions, without waiting.
    pub fn poll(&mut self, out: &mut Vec<RingEvent>) {
        if self.in_flight == 0 {
            return;
        }
        // With this kind of ring the kernel looks at the device when asked for events, even for
        // none. A refusal (busy, interrupted) leaves everything as it was for the next poll.
        let submit = self.uring.submission().len() as u32;
        // SAFETY: no argument block is passed.
        let _ =
            unsafe { self.uring.submitter().enter::<libc::sigset_t>(submit, 0, GET_EVENTS, None) };
        for entry in self.uring.completion() {
            self.in_flight -= 1;
            let (token, result) = (Token(entry.user_data()), entry.result());
            out.push(RingEvent { token, result, buffers: Buffers::None });
        }
    }

    /// Operations that have not had their event.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buf::IoBuf;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    /// Without poll queues the kernel completes by interrupt, and polling still finds it.
    #[test]
    fn completions_are_found_by_polling() {
        let path = std::env::temp_dir().join(format!("drystone-polled-{}", std::process::id()));
        std::fs::write(&path, [7u8; 8192]).unwrap();
        let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        std::fs::remove_file(&path).unwrap();
        let Ok(file) = file else {
            println!("SKIPPED: no direct I/O in {}", std::env::temp_dir().display());
            return;
        };
        let mut ring = PolledRing::open().unwrap();
        let buf = IoBuf::zeroed(4096);
        let op = FileOp::Read { segment: buf.segment(0..4096), offset: 4096 };
        // SAFETY: buffer and file live until the event.
        assert!(unsafe { ring.start(file.as_raw_fd(), op, Token::new(1, 2)) });
        let mut events = Vec::new();
        while ring.in_flight() > 0 {
            ring.poll(&mut events);
        }
        let [event] = &events[..] else { panic!("one operation, one event") };
        assert_eq!(event.token, Token::new(1, 2));
        if event.result == -libc::EOPNOTSUPP {
            println!("SKIPPED: {} cannot be polled", std::env::temp_dir().display());
            return;
        }
        assert_eq!(event.result, 4096);
        assert!(buf.iter().all(|b| *b == 7));
    }
}
