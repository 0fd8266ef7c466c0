//! FUSE over io_uring (linux/fuse.h 7.42, Documentation/filesystems/fuse/fuse-io-uring.rst):
//! requests of the queue of each processor come as completions of commands, whose answers are the
//! next commands.
//!
//! ```text
//!   entry:  REGISTER --> (kernel: waits, copies a request in) --> completion --> ours
//!   ours --> COMMIT_AND_FETCH, answer in the same memory --> (kernel) --> completion --> ours
//! ```
//!
//! Invariants:
//! * The kernel accesses the memory of an entry only inside [`Ring::enter`], on the thread that
//!   made the ring: the ring has a single issuer and defers its task work
//!   (`IORING_SETUP_DEFER_TASKRUN`).
//! * The memory of an entry that the kernel has stays in place and is not handed out. The ring is
//!   closed before the memory is freed.

#![allow(unsafe_code, reason = "commands of io_uring name memory by address")]

use crate::fuse::proto::IN_HEADER_BYTES;
use crate::fuse::proto::wire::{self, InHeader, UringCmdReq, UringEntInOut};
use drystone_core::IoBuf;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Run deferred task work without waiting (`IORING_ENTER_GETEVENTS`).
const GET_EVENTS: u32 = 1;
/// Bytes of each of the two parts of a header that a request's own headers are copied to.
const PART_BYTES: usize = 128;
/// Where `len` is in an entry of the submission queue (linux/io_uring.h).
const SQE_LEN_AT: usize = 24;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Vector {
    start: *mut u8,
    bytes: usize,
}

/// `struct fuse_uring_req_header`.
#[repr(C, align(8))]
struct Header {
    /// `struct fuse_in_header`, or of an answer `fuse_out_header`.
    in_out: [u8; PART_BYTES],
    /// The operation's own structure.
    operation: [u8; PART_BYTES],
    entry: UringEntInOut,
}

const _: () = assert!(size_of::<Header>() == 288);

/// The memory of an entry that the kernel knows by its address.
struct Known {
    header: Header,
    vectors: [Vector; 2],
}

/// A request or answer buffer of a queue.
struct Entry {
    queue: u16,
    /// A box of its own, which no reference names while the kernel has the entry.
    known: NonNull<Known>,
    /// Its data; `None` while an operation uses it.
    payload: Option<IoBuf>,
    ours: bool,
}

/// The commands of one session.
pub(crate) struct Ring {
    // Closed before the memory goes.
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    /// Signalled when the kernel has deferred work: the descriptor of a ring with deferred task
    /// work does not signal this itself.
    bell: OwnedFd,
    /// Where data begins in a payload buffer.
    data_at: usize,
    unsubmitted: bool,
}

// SAFETY: the addresses are those of a box and of buffers that the same entry owns.
unsafe impl Send for Entry {}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: it was a box, and the ring, which knew it, is closed before its entries go.
        drop(unsafe { Box::from_raw(self.known.as_ptr()) });
    }
}

/// True if the kernel's administrator has switched it on.
pub(crate) fn is_offered() -> bool {
    let set = std::fs::read("/sys/module/fuse/parameters/enable_uring");
    set.is_ok_and(|value| matches!(value.first(), Some(b'Y' | b'1')))
}

/// Queues that the kernel has: one for each processor that there can be (cpu(7) `possible`).
pub(crate) fn queue_count() -> Option<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    let last = text.trim().rsplit([',', '-']).next()?;
    last.parse::<u16>().ok()?.checked_add(1)
}

impl Ring {
    /// A ring with an entry for each of `payloads`, which say their queue. To be used by this
    /// thread.
    ///
    /// # Errors
    /// When the kernel refuses io_uring, or is too old.
    pub(crate) fn open(payloads: Vec<(u16, IoBuf)>, data_at: usize) -> io::Result<Self> {
        let count = (payloads.len() as u32).next_power_of_two();
        let uring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_cqsize(2 * count)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .dontfork()
            .build(count)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        uring.submitter().register_eventfd(bell.as_raw_fd())?;
        let entries = payloads.into_iter().map(|(queue, buf)| Entry::new(queue, buf, data_at));
        Ok(Ring { uring, entries: entries.collect(), bell, data_at, unsubmitted: false })
    }

    /// The descriptor that becomes readable when [`Ring::enter`] has something to do, since the
    /// last [`Ring::clear`].
    pub(crate) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Clear the descriptor. [`Ring::enter`] must follow.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Hand all entries to the kernel, for the mount of `device`.
    pub(crate) fn register(&mut self, device: RawFd) {
        for place in 0..self.entries.len() {
            self.entries[place].ours = false;
            let entry = &self.entries[place];
            // SAFETY: it is there as long as the entry, and only its address is taken.
            let vectors = unsafe { &raw const (*entry.known.as_ptr()).vectors };
            let queue = entry.queue;
            let command = opcode::UringCmd80::new(types::Fd(device), REGISTER)
                .cmd(command(0, queue))
                .addr(Some(vectors as u64));
            let mut sqe = command.build().user_data(place as u64);
            // SAFETY: an entry is a `struct io_uring_sqe` of 128 bytes, in which `len`, 32 bits, is
            // here.
            unsafe {
                (&raw mut sqe).cast::<u8>().add(SQE_LEN_AT).cast::<u32>().write(2);
            }
            self.push(&sqe);
        }
    }

    fn push(&mut self, sqe: &squeue::Entry128) {
        self.unsubmitted = true;
        // SAFETY: the command names memory of an entry, which stays until the ring is closed, and
        // is not touched before its completion came (`ours`).
        let pushed = unsafe { self.uring.submission().push(sqe) };
        assert!(pushed.is_ok(), "there is a place for each entry");
    }

    /// Hand commands to the kernel, and run its deferred work.
    ///
    /// # Errors
    /// The ring is unusable: the caller must end its session.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        let waiting = self.uring.submission().len() as u32;
        self.unsubmitted = false;
        loop {
            // SAFETY: no argument is passed.
            let entered =
                unsafe { self.uring.submitter().enter::<()>(waiting, 0, GET_EVENTS, None) };
            match entered {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|_| ()),
            }
        }
    }

    /// True when commands have not been handed to the kernel.
    pub(crate) fn is_unsubmitted(&self) -> bool {
        self.unsubmitted
    }

    /// Checks the completion queue. True if an entry came back.
    pub(crate) fn check_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// The next entry that came back, and 0 if it has a request or a negative errno.
    pub(crate) fn next(&mut self) -> Option<(usize, i32)> {
        let completion = self.uring.completion().next()?;
        let place = completion.user_data() as usize;
        self.entries[place].ours = true;
        Some((place, completion.result()))
    }

    /// The request of an entry of ours, as it would be read from the descriptor: its beginning into
    /// `out`; how many bytes these are, and how many it has.
    pub(crate) fn request(&self, place: usize, out: &mut [u8]) -> (usize, usize) {
        let entry = &self.entries[place];
        let header = entry.header();
        let payload = header.entry.payload_sz as usize;
        let length = wire::read::<InHeader>(&header.in_out).map_or(0, |header| header.len as usize);
        // The remaining bytes, neither header nor payload, are the operation's own structure.
        let own = length.saturating_sub(IN_HEADER_BYTES + payload).min(PART_BYTES);
        let at = IN_HEADER_BYTES + own;
        out[..IN_HEADER_BYTES].copy_from_slice(&header.in_out[..IN_HEADER_BYTES]);
        out[IN_HEADER_BYTES..at].copy_from_slice(&header.operation[..own]);
        let Some(buf) = &entry.payload else { return (at, at) };
        let room = buf.len() - self.data_at;
        let more = payload.min(room).min(out.len() - at);
        out[at..at + more].copy_from_slice(&buf[self.data_at..self.data_at + more]);
        (at + more, at + payload)
    }

    /// Takes the payload buffer of an entry of ours, if it was not taken.
    pub(crate) fn take(&mut self, place: usize) -> Option<IoBuf> {
        debug_assert!(self.entries[place].ours);
        self.entries[place].payload.take()
    }

    /// Gives a payload buffer back; returns the buffer if it is not the entry's.
    pub(crate) fn put(&mut self, place: usize, buf: IoBuf) -> Option<IoBuf> {
        let entry = &mut self.entries[place];
        // SAFETY: it is there as long as the entry, and nobody writes to this after it was made.
        let data = unsafe { (*entry.known.as_ptr()).vectors[1].start };
        let own = buf.as_ptr() as usize + self.data_at == data as usize;
        if !own {
            return Some(buf);
        }
        entry.payload = Some(buf);
        None
    }

    /// The payload of an entry of ours.
    pub(crate) fn payload(&mut self, place: usize) -> Option<&mut [u8]> {
        debug_assert!(self.entries[place].ours);
        self.entries[place].payload.as_mut().map(|buf| &mut buf[self.data_at..])
    }

    /// Answer the request of an entry with `header` and the first `bytes` of its payload, and fetch
    /// the next. With the next [`Ring::enter`].
    pub(crate) fn commit(&mut self, device: RawFd, place: usize, header: &[u8], bytes: usize) {
        let entry = &mut self.entries[place];
        assert!(entry.ours && entry.payload.is_some(), "an answer for each request");
        let out = entry.header_mut();
        out.in_out[..header.len()].copy_from_slice(header);
        out.entry.payload_sz = bytes as u32;
        let commit_id = out.entry.commit_id;
        entry.ours = false;
        let command = command(commit_id, entry.queue);
        let sqe = opcode::UringCmd80::new(types::Fd(device), COMMIT_AND_FETCH).cmd(command);
        self.push(&sqe.build().user_data(place as u64));
    }
}

impl Entry {
    fn new(queue: u16, payload: IoBuf, data_at: usize) -> Self {
        let data = payload.segment(data_at..payload.len());
        let empty = Vector { start: std::ptr::null_mut(), bytes: size_of::<Header>() };
        let vectors = [empty, Vector { start: data.ptr, bytes: data.len }];
        let (part, ent) = ([0; PART_BYTES], UringEntInOut::default());
        let header = Header { in_out: part, operation: part, entry: ent };
        let known = Box::into_raw(Box::new(Known { header, vectors }));
        // SAFETY: no other code knows the box yet; all addresses of it are made of this one.
        let known = unsafe {
            (*known).vectors[0].start = (&raw mut (*known).header).cast();
            NonNull::new_unchecked(known)
        };
        Entry { queue, known, payload: Some(payload), ours: true }
    }

    /// The header of an entry of ours.
    fn header(&self) -> &Header {
        assert!(self.ours);
        // SAFETY: the kernel does not write to it before the entry is handed to it, for which this
        // is borrowed exclusively.
        unsafe { &(*self.known.as_ptr()).header }
    }

    fn header_mut(&mut self) -> &mut Header {
        assert!(self.ours);
        // SAFETY: as for reading.
        unsafe { &mut (*self.known.as_ptr()).header }
    }
}

/// `struct fuse_uring_cmd_req`: the request that is answered, and the queue.
fn command(commit_id: u64, qid: u16) -> [u8; 80] {
    let mut out = [0; 80];
    wire::write(&mut out, &UringCmdReq { commit_id, qid, ..UringCmdReq::default() });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of `ring_ent_in_out.commit_id` in `struct fuse_uring_req_header`.
    const COMMIT_ID_AT: usize = 264;

    /// Accesses of an entry as the kernel makes them, by the addresses that it was given, between
    /// our own: for Miri, which watches over both.
    #[test]
    fn an_entry_is_shared_by_its_addresses() {
        let mut entry = Entry::new(3, IoBuf::zeroed(8192), 4096);
        // SAFETY: only the address is taken, as in `Ring::register`.
        let vectors = unsafe { &raw const (*entry.known.as_ptr()).vectors };
        let mut moved = Vec::with_capacity(1);
        for byte in 1..4 {
            entry.ours = false;
            // SAFETY: the entry is the kernel's now, whose part this plays.
            unsafe {
                let [header, data] = *vectors;
                assert_eq!((header.bytes, data.bytes), (size_of::<Header>(), 4096));
                header.start.add(COMMIT_ID_AT).write(byte);
                data.start.write_bytes(byte, data.bytes);
            }
            entry.ours = true;
            assert_eq!(entry.header().entry.commit_id.to_ne_bytes()[0], byte);
            entry.header_mut().in_out[0] = byte;
            let payload = entry.payload.take().expect("it is here");
            assert_eq!((payload[4096], payload[8191]), (byte, byte));
            entry.payload = Some(payload);
            // The entry moves; its memory does not.
            moved.push(entry);
            entry = moved.pop().expect("it was pushed");
        }
    }
}
