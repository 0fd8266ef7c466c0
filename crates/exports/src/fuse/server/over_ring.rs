//! A session whose requests come over io_uring, where the kernel offers it.
//!
//! ```text
//!  all sessions have a ring --> INIT is read and answered: over rings --> all register
//!  a session has none       --> INIT is answered without it           --> rings are dropped
//! ```
//!
//! The kernel lets nobody ask anything before each of its queues has an entry. What stays with the
//! descriptor: the first request, forgotten inodes, interrupts, and the end of the mount.
//!
//! Invariants:
//! * Until all sessions are there none reads a request, so that the one that reads the first knows.
//! * Each queue belongs to one session, and a request is answered by its own entry.

use super::ring::{self, Ring};
use super::session::{Life, Session};
use crate::fuse::proto::init::MAX_WRITE_OVER_RING;
use crate::fuse::proto::{IN_HEADER_BYTES, Malformed, OUT_HEADER_BYTES, Request, header};
use crate::server::{DATA_AT, Work, errno};
use drystone_core::IoBuf;
use std::ops::Range;

/// Entries of a session, and the fewest of a queue, which bound its requests in flight. 32 of 256 KiB keep a disk of 1 GiB/s busy
/// for 8 ms; they take 8.5 MiB.
const ENTRIES: usize = 32;
const QUEUE_ENTRIES_MIN: usize = 4;
/// Most entries of a session: not more than it may have operations.
const ENTRIES_MAX: usize = 128;
/// Room for data in a payload buffer: a request with the blocks at both of its ends.
const ROOM: usize = MAX_WRITE_OVER_RING as usize + 2 * 4096;
/// More than the longest name needs.
const SHORT_BYTES: usize = 512;

/// How requests of a mount come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// It has not been agreed upon.
    Unknown,
    /// Read from the descriptor.
    Descriptor,
    /// Over io_uring.
    Ring,
}

/// The ring of a session.
pub(super) struct OverRing {
    pub(super) ring: Ring,
    /// Its entries are with the kernel, or have been.
    pub(super) registered: bool,
    /// There may be requests.
    pub(super) readable: bool,
    /// A poll of it is with the context's ring.
    pub(super) polling: bool,
}

impl OverRing {
    /// A ring with the queues of session `number` of `sessions`, if the kernel offers it and there is
    /// memory.
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
            // So that its pages are there.
            buf.fill(0);
            Some((queue, buf))
        };
        let payloads: Option<Vec<_>> = queues.map(payload).collect();
        let ring = Ring::open(payloads?, DATA_AT).ok()?;
        Some(OverRing { ring, registered: false, readable: true, polling: false })
    }
}

impl Session {
    /// It waits for what the mount agrees upon with the kernel.
    pub(super) fn waits_for_transport(&self) -> bool {
        self.over_ring.as_ref().is_some_and(|over| !over.registered)
    }

    /// The ring of some session failed, without which the kernel lets nobody ask anything: all end, so that
    /// it answers instead.
    pub(super) fn has_failed(&self) -> bool {
        self.over_ring.is_some() && self.mount.failure().is_some()
    }

    /// There is something in its ring to be read.
    pub(super) fn has_entries(&self) -> bool {
        self.over_ring.as_ref().is_some_and(|over| over.registered && over.readable)
    }

    /// Do as was agreed.
    pub(super) fn follow_transport(&mut self, work: &mut Work) {
        let Some(over) = self.over_ring.as_mut().filter(|over| !over.registered) else { return };
        match self.mount.transport() {
            Transport::Unknown => {}
            Transport::Descriptor => self.over_ring = None,
            Transport::Ring => {
                over.registered = true;
                over.ring.register(std::os::fd::AsRawFd::as_raw_fd(&self.device));
                self.receive_over_ring(1, work);
                if self.life == Life::Open {
                    self.mount.registered();
                }
            }
        }
    }

    /// Hand answers to the kernel, and see what there is.
    fn enter(&mut self) {
        let Some(over) = &mut self.over_ring else { return };
        if let Err(error) = over.ring.enter() {
            self.mount.fail(format!("io_uring does not carry requests: {error}"));
            self.give_up();
        }
    }

    /// Hand answers to the kernel that it has not been given yet.
    pub(super) fn flush_ring(&mut self) {
        if self.over_ring.as_ref().is_some_and(|over| over.ring.is_unsubmitted()) {
            self.enter();
            if let Some(over) = &mut self.over_ring {
                // The same call has brought what had come.
                over.readable = over.ring.has_news();
            }
        }
    }

    /// Start requests that have come over the ring, at most `count`; how many there were.
    pub(super) fn receive_over_ring(&mut self, count: u32, work: &mut Work) -> u32 {
        let ready = |over: &&mut OverRing| over.registered && over.readable;
        let Some(over) = self.over_ring.as_mut().filter(ready) else { return 0 };
        over.readable = false;
        self.enter();
        let mut started = 0;
        while started < count && self.life == Life::Open {
            let Some(over) = &mut self.over_ring else { break };
            let Some((place, result)) = over.ring.next() else { return started };
            match result {
                0 => self.start_entry(place, work),
                // The mount is gone, or the session's ring.
                result if gone(result) => self.give_up(),
                result => {
                    let error = rustix::io::Errno::from_raw_os_error(-result);
                    self.mount.fail(format!("FUSE over io_uring is refused: {error}"));
                    self.give_up();
                }
            }
            started += 1;
        }
        if let Some(over) = &mut self.over_ring {
            over.readable = true;
        }
        started
    }

    fn start_entry(&mut self, place: usize, work: &mut Work) {
        let Some(over) = &self.over_ring else { return };
        let mut bytes = [0; SHORT_BYTES];
        let (length, whole) = over.ring.request(place, &mut bytes);
        self.requests += 1;
        self.look.asked();
        self.answering = Some(place);
        match Request::parse(&bytes[..length.min(whole)], whole) {
            Ok(request) => self.start(&request, work),
            Err(Malformed::Body { unique }) => self.answer(unique, errno::EINVAL),
            Err(Malformed::Header) => debug_assert!(whole < IN_HEADER_BYTES),
        }
        self.answering = None;
    }

    // --- the memory of a request

    /// Room for the data of the request that is being dealt with.
    pub(super) fn take_room(&mut self, bytes: usize) -> Option<IoBuf> {
        match (self.answering, &mut self.over_ring) {
            (Some(place), Some(over)) if bytes <= ROOM => over.ring.take(place),
            (Some(_), Some(_)) => None,
            _ => self.pool.take(bytes),
        }
    }

    /// Give a buffer back that the operation had which is being answered.
    pub(super) fn give(&mut self, buf: IoBuf) {
        let rest = match (self.answering, &mut self.over_ring) {
            (Some(place), Some(over)) => over.ring.put(place, buf),
            _ => Some(buf),
        };
        rest.into_iter().for_each(|buf| self.pool.give(buf));
    }

    // --- answers

    /// Answer over the ring with what `fill` writes, if that is how the request came.
    pub(super) fn answer_over_ring(
        &mut self,
        unique: u64,
        error: i32,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> bool {
        let (Some(place), Some(over)) = (self.answering, &mut self.over_ring) else { return false };
        if self.life == Life::Open {
            let bytes = over.ring.payload(place).map_or(0, fill);
            let header: [u8; OUT_HEADER_BYTES] = header(unique, error, bytes);
            over.ring.commit(std::os::fd::AsRawFd::as_raw_fd(&self.device), place, &header, bytes);
            self.look.answered();
        }
        true
    }

    /// Answer over the ring with `range` of a buffer, if that is how the request came; else the buffer.
    pub(super) fn answer_data_over_ring(
        &mut self,
        unique: u64,
        mut buf: IoBuf,
        range: Range<usize>,
    ) -> Option<IoBuf> {
        let (Some(place), Some(over)) = (self.answering, &mut self.over_ring) else {
            return Some(buf);
        };
        if range.start != DATA_AT {
            buf.copy_within(range.clone(), DATA_AT);
        }
        let bytes = range.len();
        // What is not the entry's own, a folder's entries, is copied.
        let foreign = over.ring.put(place, buf);
        self.answer_over_ring(unique, 0, |out| {
            if let Some(foreign) = &foreign {
                out[..bytes].copy_from_slice(&foreign[DATA_AT..DATA_AT + bytes]);
            }
            bytes
        });
        foreign.into_iter().for_each(|buf| self.pool.give(buf));
        None
    }
}

/// The mount has ended, or is about to.
fn gone(result: i32) -> bool {
    [errno::ENOTCONN, errno::ECONNABORTED, errno::ENODEV, errno::ECANCELED].contains(&-result)
}
