//! The channel between a session and the kernel (libfuse: `fuse_chan`): requests in, answers out,
//! by the descriptor or by the session's ring.
//!
//! Invariants:
//! * A request is answered the way it came ([`ReplyTo`]), once if it has an answer.
//! * An answer never blocks: the kernel copies it at once, or refuses it because nobody waits for
//!   it.
//! * A closed channel gives buffers back as before, and answers nothing.

use super::buffers::Buffers;
use super::busy_poll::BusyPoll;
use super::descriptor::{Descriptor, Received};
use super::event::Event;
use super::op::ReplyTo;
use super::over_ring::{Arrived, OverRing};
use crate::fuse::proto::init::{MAX_WRITE, MAX_WRITE_OVER_RING};
use crate::fuse::proto::{self, OUT_HEADER_BYTES};
use crate::server::DATA_AT;
use drystone_core::IoBuf;
use std::io;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};

/// Longest answer without data of a file.
const SMALL_BYTES: usize = 256;
/// Most requests that are read before those so far are carried out.
const BATCH_MAX: u32 = 32;

/// A session's channel to the kernel.
pub(super) struct KernelChannel {
    descriptor: Descriptor,
    /// Its ring, if requests come over one or may.
    ring: Option<OverRing>,
    busy_poll: BusyPoll,
    /// Most requests of the next batch.
    batch: u32,
    requests: u64,
    is_closed: bool,
}

/// The longest data of a read or write that came in ring entry `entry`, or by the descriptor if
/// `None`.
pub(super) fn data_bytes_max(entry: Option<usize>) -> u32 {
    if entry.is_some() { MAX_WRITE_OVER_RING } else { MAX_WRITE }
}

impl KernelChannel {
    /// A channel by `descriptor`, and by `ring` if the mount agrees upon that.
    pub(super) fn new(descriptor: Descriptor, ring: Option<OverRing>) -> Self {
        let busy_poll = BusyPoll::default();
        KernelChannel { descriptor, ring, busy_poll, batch: 1, requests: 0, is_closed: false }
    }

    /// Closes the channel: it sends no answer from now on.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// The descriptor, to be closed.
    pub(super) fn into_device(self) -> OwnedFd {
        self.descriptor.into_device()
    }

    /// Requests that came so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    // --- how requests come

    /// True if it has a ring, registered or not.
    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// True until the mount has agreed on whether requests come over the ring.
    pub(super) fn awaits_transport(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.is_registered())
    }

    /// Drops the ring: requests come by the descriptor.
    pub(super) fn drop_ring(&mut self) {
        self.ring = None;
    }

    /// Hands the ring's entries to the kernel with the next [`KernelChannel::enter_ring`].
    pub(super) fn register_ring(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.register(self.descriptor.fd());
        }
    }

    // --- requests

    /// True if the descriptor may have requests.
    pub(super) fn is_readable(&self) -> bool {
        self.descriptor.is_readable()
    }

    /// True if the ring may have requests.
    pub(super) fn is_ring_readable(&self) -> bool {
        self.ring.as_ref().is_some_and(OverRing::is_readable)
    }

    /// Reads a request from the descriptor.
    #[inline]
    pub(super) fn read(&mut self) -> Received {
        let received = self.descriptor.read();
        if let Received::Request(_) = received {
            self.count_request();
        }
        received
    }

    /// The request that was read from the descriptor.
    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Hands answers to the kernel over the ring, and takes requests.
    ///
    /// # Errors
    /// The ring is unusable.
    pub(super) fn enter_ring(&mut self) -> io::Result<()> {
        self.ring.as_mut().map_or(Ok(()), OverRing::enter)
    }

    /// Hands answers to the kernel over the ring that it does not have yet, if there are any.
    ///
    /// # Errors
    /// As [`KernelChannel::enter_ring`].
    pub(super) fn flush_ring(&mut self) -> io::Result<()> {
        self.ring.as_mut().map_or(Ok(()), OverRing::flush)
    }

    /// Takes the next entry that came back over the ring.
    pub(super) fn next_arrived(&mut self) -> Option<Arrived> {
        let arrived = self.ring.as_mut()?.next()?;
        if let Arrived::Request(_) = arrived {
            self.count_request();
        }
        Some(arrived)
    }

    /// Notes that the ring may have more requests.
    pub(super) fn set_ring_readable(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.set_readable();
        }
    }

    /// Copies the beginning of the request in an entry to `out`; the bytes copied, and those it
    /// has.
    pub(super) fn entry_request(&self, entry: usize, out: &mut [u8]) -> (usize, usize) {
        self.ring.as_ref().map_or((0, 0), |ring| ring.request(entry, out))
    }

    #[inline]
    fn count_request(&mut self) {
        self.requests += 1;
        self.busy_poll.note_request();
    }

    /// The most requests of the batch that begins.
    pub(super) fn batch(&self) -> u32 {
        self.batch
    }

    /// Adapts the size of the next batch after one of `count` requests. True if that one was full.
    /// So a client with one request at a time gets its answer before the session looks for the next
    /// request.
    pub(super) fn end_batch(&mut self, count: u32) -> bool {
        let is_full = count == self.batch;
        if count > 0 {
            self.batch = if is_full { (count * 2).min(BATCH_MAX) } else { count };
        }
        is_full
    }

    // --- polls

    /// True if only a poll would announce requests, and none is in the ring.
    pub(super) fn needs_poll(&self) -> bool {
        self.descriptor.needs_poll() || self.ring.as_ref().is_some_and(OverRing::needs_poll)
    }

    /// The polls that the context's ring has.
    pub(super) fn polls(&self) -> impl Iterator<Item = Event> {
        let ring = self.ring.as_ref().is_some_and(OverRing::is_polling).then_some(Event::RingPoll);
        let descriptor = self.descriptor.is_polling().then_some(Event::Poll);
        descriptor.into_iter().chain(ring)
    }

    /// Begins the polls that are needed: hands each with its descriptor to `start`.
    pub(super) fn begin_polls(&mut self, mut start: impl FnMut(Event, RawFd)) {
        if self.descriptor.needs_poll() {
            self.descriptor.begin_poll();
            start(Event::Poll, self.descriptor.fd());
        }
        if let Some(ring) = self.ring.as_mut().filter(|ring| ring.needs_poll()) {
            start(Event::RingPoll, ring.begin_poll());
        }
    }

    /// Ends a poll.
    pub(super) fn end_poll(&mut self, poll: Event, is_readable: bool) {
        match &mut self.ring {
            Some(ring) if poll == Event::RingPoll => ring.end_poll(),
            _ => self.descriptor.end_poll(is_readable),
        }
    }

    /// Decides before a sleep whether to poll busily.
    pub(super) fn begin_busy_poll(&mut self) -> bool {
        self.needs_poll() && self.busy_poll.begin()
    }

    /// Makes the next batch look for requests once.
    pub(super) fn poll_once(&mut self) {
        match self.ring.as_mut().filter(|ring| ring.is_registered()) {
            Some(ring) => ring.set_readable(),
            None => self.descriptor.set_readable(),
        }
    }

    /// Notes whether a busy poll has found something.
    pub(super) fn end_busy_poll(&mut self, has_found: bool) {
        if has_found { self.busy_poll.succeed() } else { self.busy_poll.fail() }
    }

    // --- the memory of a request

    /// Takes a buffer for the data of a request; `None` when memory is short.
    #[inline]
    pub(super) fn take_room(
        &mut self,
        entry: Option<usize>,
        bytes: usize,
        buffers: &mut Buffers,
    ) -> Option<IoBuf> {
        match (entry, &mut self.ring) {
            (Some(entry), Some(ring)) => ring.take(entry, bytes),
            _ => buffers.take(bytes),
        }
    }

    /// Takes the first `bytes` of a write's data; `None` when memory is short.
    #[inline]
    pub(super) fn take_data(
        &mut self,
        entry: Option<usize>,
        bytes: usize,
        buffers: &mut Buffers,
    ) -> Option<IoBuf> {
        match entry {
            Some(_) => self.take_room(entry, bytes, buffers),
            None => self.descriptor.take_data(bytes, buffers),
        }
    }

    /// Takes a buffer of `room` bytes that has the first `bytes` of a write's data from `skip` on.
    pub(super) fn take_data_at(
        &mut self,
        entry: Option<usize>,
        (room, skip, bytes): (usize, usize, usize),
        buffers: &mut Buffers,
    ) -> Option<IoBuf> {
        let mut buf = self.take_room(entry, room, buffers)?;
        match entry {
            // The data is already in this buffer, at the begin of the payload.
            Some(_) => buf.copy_within(DATA_AT..DATA_AT + bytes, DATA_AT + skip),
            None => buf[DATA_AT + skip..][..bytes].copy_from_slice(self.descriptor.data(bytes)),
        }
        Some(buf)
    }

    /// Gives a buffer back that an operation had whose request came in `entry`, if in any.
    #[inline]
    pub(super) fn give(&mut self, entry: Option<usize>, buf: IoBuf, buffers: &mut Buffers) {
        let rest = match (entry, &mut self.ring) {
            (Some(entry), Some(ring)) => ring.put(entry, buf),
            _ => Some(buf),
        };
        rest.into_iter().for_each(|buf| buffers.give(buf));
    }

    // --- answers

    /// Answers with an error, or with nothing if it is 0.
    pub(super) fn answer(&mut self, to: ReplyTo, error: i32) {
        if to.entry.is_some() {
            return self.commit(to, error, |_| 0);
        }
        let header = proto::header(to.unique, error, 0);
        self.send(&header);
    }

    /// Answers with the bytes that `fill` writes.
    pub(super) fn answer_with(&mut self, to: ReplyTo, fill: impl FnOnce(&mut [u8]) -> usize) {
        if to.entry.is_some() {
            return self.commit(to, 0, fill);
        }
        let mut out = [0; SMALL_BYTES];
        let bytes = fill(&mut out[OUT_HEADER_BYTES..]);
        let header = proto::header(to.unique, 0, bytes);
        out[..OUT_HEADER_BYTES].copy_from_slice(&header);
        self.send(&out[..OUT_HEADER_BYTES + bytes]);
    }

    /// Answers with `range` of a buffer, before which there is room for the header.
    #[inline]
    pub(super) fn answer_data(
        &mut self,
        to: ReplyTo,
        mut buf: IoBuf,
        range: Range<usize>,
        buffers: &mut Buffers,
    ) {
        debug_assert!(range.start >= DATA_AT);
        if to.entry.is_some() {
            return self.commit_data(to, buf, range, buffers);
        }
        let start = range.start - OUT_HEADER_BYTES;
        let header = proto::header(to.unique, 0, range.len());
        buf[start..range.start].copy_from_slice(&header);
        self.send(&buf[start..range.end]);
        buffers.give(buf);
    }

    #[inline]
    fn send(&mut self, answer: &[u8]) {
        if !self.is_closed {
            self.busy_poll.note_answer();
            self.descriptor.write(answer);
        }
    }

    fn commit(&mut self, to: ReplyTo, error: i32, fill: impl FnOnce(&mut [u8]) -> usize) {
        let (Some(entry), Some(ring)) = (to.entry, &mut self.ring) else { return };
        if !self.is_closed {
            let bytes = ring.payload(entry).map_or(0, fill);
            let header = proto::header(to.unique, error, bytes);
            ring.commit(self.descriptor.fd(), entry, &header, bytes);
            self.busy_poll.note_answer();
        }
    }

    fn commit_data(
        &mut self,
        to: ReplyTo,
        mut buf: IoBuf,
        range: Range<usize>,
        buffers: &mut Buffers,
    ) {
        let (Some(entry), Some(ring)) = (to.entry, &mut self.ring) else { return };
        if range.start != DATA_AT {
            buf.copy_within(range.clone(), DATA_AT);
        }
        let bytes = range.len();
        // The ring copies a buffer that is not the entry's own (one with a folder's entries).
        let other = ring.put(entry, buf);
        self.commit(to, 0, |out| {
            if let Some(other) = &other {
                out[..bytes].copy_from_slice(&other[DATA_AT..DATA_AT + bytes]);
            }
            bytes
        });
        other.into_iter().for_each(|buf| buffers.give(buf));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::server::testing::{buffers, sockets};

    /// A channel by a descriptor, its buffers, and the kernel's end.
    fn channel() -> (KernelChannel, Buffers, OwnedFd) {
        let ((kernel, device), mut buffers) = (sockets(), buffers());
        let data = buffers.take(MAX_WRITE as usize).expect("memory");
        (KernelChannel::new(Descriptor::new(device, data), None), buffers, kernel)
    }

    fn to(unique: u64) -> ReplyTo {
        ReplyTo { unique, entry: None }
    }

    fn answer(kernel: &OwnedFd) -> Option<Vec<u8>> {
        let mut bytes = [0; 8192];
        let length = rustix::io::read(kernel, &mut bytes).ok()?;
        Some(bytes[..length].to_vec())
    }

    #[test]
    fn each_answer_has_its_header() {
        let (mut channel, mut buffers, kernel) = channel();
        channel.answer(to(2), 5);
        assert_eq!(answer(&kernel), Some(proto::header(2, 5, 0).to_vec()));
        let fill = |out: &mut [u8]| {
            out[..3].copy_from_slice(b"abc");
            3
        };
        channel.answer_with(to(4), fill);
        assert_eq!(answer(&kernel), Some([&proto::header(4, 0, 3)[..], b"abc"].concat()));
        let mut buf = buffers.take(512).expect("memory");
        buf[DATA_AT + 100..DATA_AT + 104].fill(7);
        channel.answer_data(to(6), buf, DATA_AT + 100..DATA_AT + 104, &mut buffers);
        assert_eq!(answer(&kernel), Some([&proto::header(6, 0, 4)[..], &[7; 4]].concat()));
    }

    #[test]
    fn a_closed_channel_answers_nothing_and_gives_buffers_back() {
        let (mut channel, mut buffers, kernel) = channel();
        channel.close();
        let long = |buffers: &mut Buffers| buffers.take(MAX_WRITE as usize);
        let mut taken: Vec<_> = std::iter::from_fn(|| long(&mut buffers)).collect();
        assert!(!buffers.has_room());
        let buf = taken.pop().expect("there are some");
        channel.answer_data(to(2), buf, DATA_AT..DATA_AT + 512, &mut buffers);
        channel.answer(to(4), 0);
        channel.answer_with(to(6), |_| 0);
        assert!(buffers.has_room() && answer(&kernel).is_none());
        assert!(!channel.begin_busy_poll(), "nothing was answered");
    }

    #[test]
    fn batches_grow_while_requests_come_and_shrink_after() {
        let (mut channel, ..) = channel();
        let mut sizes = Vec::new();
        for _ in 0..7 {
            sizes.push(channel.batch());
            assert!(channel.end_batch(channel.batch()), "it was full");
        }
        assert_eq!(sizes, [1, 2, 4, 8, 16, 32, BATCH_MAX]);
        assert!(!channel.end_batch(3) && channel.batch() == 3);
        assert!(!channel.end_batch(0) && channel.batch() == 3, "nothing came");
    }

    #[test]
    fn it_polls_after_an_answer_and_once_at_a_time() {
        let (mut channel, _buffers, kernel) = channel();
        assert_eq!(channel.read(), Received::Nothing);
        assert!(channel.needs_poll() && !channel.begin_busy_poll());
        channel.answer(to(2), 0);
        assert!(channel.begin_busy_poll());
        channel.end_busy_poll(false);
        assert!(!channel.begin_busy_poll());
        let mut begun = Vec::new();
        channel.begin_polls(|poll, _| begun.push(poll));
        channel.begin_polls(|poll, _| begun.push(poll));
        assert_eq!((begun, channel.polls().count()), (vec![Event::Poll], 1));
        rustix::io::write(&kernel, &[0; 40]).expect("room");
        channel.end_poll(Event::Poll, true);
        assert!(channel.is_readable() && channel.polls().count() == 0);
        assert_eq!((channel.read(), channel.requests()), (Received::Request(40), 1));
    }
}
