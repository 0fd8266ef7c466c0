//! The ring of a session, if its requests come over io_uring, where the kernel offers it.
//!
//! ```text
//!  all sessions have a ring --> INIT is read and answered: over rings --> all register
//!  a session has none       --> INIT is answered without it           --> rings are dropped
//! ```
//!
//! The kernel blocks all askers until each of its queues has an entry. The descriptor still carries
//! the first request, forgotten inodes, interrupts, and the end of the mount.
//!
//! Invariants:
//! * No session reads a request until all sessions exist, so that the reader of the first request
//!   knows whether all have rings.
//! * Each queue belongs to one session, and a request is answered by its own entry.
//! * A ring that is registered, but not readable, has no requests until its poll ends.

use super::ring::{self, Ring};
use crate::fuse::proto::init::MAX_WRITE_OVER_RING;
use crate::server::{DATA_AT, errno};
use drystone_core::IoBuf;
use std::io;
use std::os::fd::RawFd;

/// Entries of a session, and the fewest of a queue, which bound its requests in flight. 32 of 256
/// KiB keep a disk of 1 GiB/s busy for 8 ms; they take 8.5 MiB.
const ENTRIES: usize = 32;
const QUEUE_ENTRIES_MIN: usize = 4;
/// Most entries of a session: not more than it may have operations.
const ENTRIES_MAX: usize = 128;
/// Room for data in a payload buffer: a request with the blocks at both of its ends.
const ROOM: usize = MAX_WRITE_OVER_RING as usize + 2 * 4096;

/// An entry that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// A request, in this entry.
    Request(usize),
    /// The mount is gone, or about to go.
    Gone,
    /// The kernel refuses the ring, with this errno.
    Refused(i32),
}

/// The ring of a session.
pub(super) struct OverRing {
    ring: Ring,
    is_registered: bool,
    is_readable: bool,
    is_polling: bool,
}

impl OverRing {
    /// A ring with the queues of session `number` of `sessions`, if the kernel offers it and there
    /// is memory.
    pub(super) fn open(number: usize, sessions: usize) -> Option<Self> {
        if !ring::is_offered() {
            return None;
        }
        let queues: Vec<u16> =
            (0..ring::queue_count()?).filter(|q| usize::from(*q) % sessions == number).collect();
        let depth = (ENTRIES / queues.len().max(1)).max(QUEUE_ENTRIES_MIN);
        if queues.is_empty() || queues.len() * depth > ENTRIES_MAX {
            return None;
        }
        let queues = queues.into_iter().flat_map(|queue| std::iter::repeat_n(queue, depth));
        let payload = |queue| {
            let mut buf = IoBuf::try_zeroed(DATA_AT + ROOM)?;
            // Makes its pages resident.
            buf.fill(0);
            Some((queue, buf))
        };
        let payloads: Option<Vec<_>> = queues.map(payload).collect();
        let ring = Ring::open(payloads?, DATA_AT).ok()?;
        Some(OverRing { ring, is_registered: false, is_readable: true, is_polling: false })
    }

    /// Hands all entries to the kernel, for the mount of `device`.
    pub(super) fn register(&mut self, device: RawFd) {
        self.is_registered = true;
        self.ring.register(device);
    }

    /// True once the entries are with the kernel, or have been.
    pub(super) fn is_registered(&self) -> bool {
        self.is_registered
    }

    /// True if there may be requests.
    pub(super) fn is_readable(&self) -> bool {
        self.is_registered && self.is_readable
    }

    /// Notes that there may be requests.
    pub(super) fn set_readable(&mut self) {
        self.is_readable = true;
    }

    /// True while a poll is with the context's ring.
    pub(super) fn is_polling(&self) -> bool {
        self.is_polling
    }

    /// True if only a poll would announce requests, and none is in the ring.
    pub(super) fn needs_poll(&self) -> bool {
        self.is_registered && !self.is_readable && !self.is_polling
    }

    /// Notes that a poll begins, of the descriptor that this returns.
    pub(super) fn begin_poll(&mut self) -> RawFd {
        self.is_polling = true;
        self.ring.fd()
    }

    /// Notes that the poll has ended.
    pub(super) fn end_poll(&mut self) {
        self.is_polling = false;
        self.ring.clear();
        // The clearing also covers an entry that came meanwhile and does not signal again. So there
        // may be requests, whatever the poll returned.
        self.is_readable = true;
    }

    /// Hands answers to the kernel, and takes what has come; [`OverRing::next`] returns it.
    ///
    /// # Errors
    /// The ring is unusable.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        self.is_readable = false;
        self.ring.enter()
    }

    /// Hands answers to the kernel that it has not been given yet, if there are any.
    ///
    /// # Errors
    /// As [`OverRing::enter`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.ring.is_unsubmitted() {
            return Ok(());
        }
        let entered = self.ring.enter();
        // The same call has also fetched the entries that had come.
        self.is_readable = self.ring.check_completions();
        entered
    }

    /// Takes the next entry that came back.
    pub(super) fn next(&mut self) -> Option<Arrived> {
        let (entry, result) = self.ring.next()?;
        Some(match result {
            0 => Arrived::Request(entry),
            result if is_gone(result) => Arrived::Gone,
            result => Arrived::Refused(-result),
        })
    }

    /// Copies the beginning of an entry's request to `out`; the bytes copied, and the bytes that it
    /// has.
    pub(super) fn request(&self, entry: usize, out: &mut [u8]) -> (usize, usize) {
        self.ring.request(entry, out)
    }

    /// Takes the payload buffer of an entry, if it has room for `bytes` of data.
    pub(super) fn take(&mut self, entry: usize, bytes: usize) -> Option<IoBuf> {
        if bytes <= ROOM { self.ring.take(entry) } else { None }
    }

    /// Gives a payload buffer back; returns the buffer if it is not the entry's.
    pub(super) fn put(&mut self, entry: usize, buf: IoBuf) -> Option<IoBuf> {
        self.ring.put(entry, buf)
    }

    /// The payload of an entry, unless it was taken.
    pub(super) fn payload(&mut self, entry: usize) -> Option<&mut [u8]> {
        self.ring.payload(entry)
    }

    /// Answers the request of an entry with `header` and the first `bytes` of its payload, with the
    /// next [`OverRing::enter`] or [`OverRing::flush`].
    pub(super) fn commit(&mut self, device: RawFd, entry: usize, header: &[u8], bytes: usize) {
        self.ring.commit(device, entry, header, bytes);
    }
}

/// True if the result means that the mount has ended or is about to.
fn is_gone(result: i32) -> bool {
    [errno::ENOTCONN, errno::ECONNABORTED, errno::ENODEV, errno::ECANCELED].contains(&-result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_mount_is_no_failure() {
        for gone in [errno::ENOTCONN, errno::ECONNABORTED, errno::ENODEV, errno::ECANCELED] {
            assert!(is_gone(-gone));
        }
        assert!(!is_gone(-errno::EINVAL) && !is_gone(errno::ENODEV));
    }
}
