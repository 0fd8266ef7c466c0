//! Requests out of the channel.

use super::Session;
use crate::fuse::proto::{IN_HEADER_BYTES, Malformed, Request, WRITE_HEAD_BYTES};
use crate::fuse::server::descriptor::{Received, SHORT_BYTES};
use crate::fuse::server::mount::Transport;
use crate::fuse::server::op::{Caller, ReplyTo};
use crate::fuse::server::over_ring::Arrived;
use crate::server::{Work, errno};

impl Session {
    /// True at a bound: nothing more is read.
    fn is_paused(&self) -> bool {
        self.ops.is_full() || !self.buffers.has_room()
    }

    /// True if the ring of a session failed. The kernel then blocks all askers, so all sessions
    /// end, and the kernel answers instead.
    pub(super) fn has_failed(&self) -> bool {
        self.channel.has_ring() && self.mount.failure().is_some()
    }

    /// True if its ring has, or may have, requests.
    pub(in crate::fuse::server) fn has_entries(&self) -> bool {
        self.is_open() && self.channel.is_ring_readable()
    }

    /// Reads requests and starts them. True if there may be more, and room for them.
    pub(in crate::fuse::server) fn receive(&mut self, work: &mut Work) -> bool {
        if self.has_failed() {
            self.give_up();
        }
        self.follow_transport(work);
        let awaits_others = self.channel.awaits_transport() && !self.mount.is_complete();
        if !self.is_open() || awaits_others {
            return false;
        }
        let batch = self.channel.batch();
        let mut count = self.receive_over_ring(batch, work);
        while count < batch && self.may_read() && self.receive_one(work) {
            count += 1;
        }
        if count > 0 {
            self.mount.tell_requests(self.number, self.channel.requests());
        }
        let is_full = self.channel.end_batch(count);
        is_full && (self.channel.is_ring_readable() || self.may_read())
    }

    fn may_read(&self) -> bool {
        self.channel.is_readable() && !self.is_paused()
    }

    /// Reads one request from the descriptor, and starts it. False if there is none.
    fn receive_one(&mut self, work: &mut Work) -> bool {
        match self.channel.read() {
            Received::Request(length) => {
                self.start_read_request(length, work);
                return true;
            }
            Received::Nothing => {}
            Received::Gone => self.give_up(),
            Received::Failed(error) => {
                self.mount.fail(format!("requests cannot be read from /dev/fuse: {error}"));
                self.give_up();
            }
        }
        false
    }

    fn start_read_request(&mut self, length: usize, work: &mut Work) {
        let descriptor = self.channel.descriptor();
        if descriptor.is_head_enough(length) {
            let head = descriptor.head();
            return self.parse(&head[..length.min(WRITE_HEAD_BYTES)], length, None, work);
        }
        let mut short = [0; SHORT_BYTES];
        let copied = descriptor.copy_request(length, &mut short);
        self.parse(&short[..copied], length, None, work);
    }

    #[inline]
    fn parse(&mut self, bytes: &[u8], length: usize, entry: Option<usize>, work: &mut Work) {
        match Request::parse(bytes, length) {
            Ok(request) => self.start(&request, &Caller::of(&request, entry), work),
            Err(Malformed::Header) => debug_assert!(length < IN_HEADER_BYTES),
            Err(Malformed::Body { unique }) => {
                self.channel.answer(ReplyTo { unique, entry }, errno::EINVAL);
            }
        }
    }

    // --- over the ring

    /// Follows the agreed transport: registers the ring, or drops it.
    fn follow_transport(&mut self, work: &mut Work) {
        if !self.channel.awaits_transport() {
            return;
        }
        match self.mount.transport() {
            Transport::Unknown => {}
            Transport::Descriptor => self.channel.drop_ring(),
            Transport::Ring => {
                self.channel.register_ring();
                self.receive_over_ring(1, work);
                if self.is_open() {
                    self.mount.registered();
                }
            }
        }
    }

    /// Starts requests that have come over the ring, at most `count`. Returns their number.
    fn receive_over_ring(&mut self, count: u32, work: &mut Work) -> u32 {
        if !self.channel.is_ring_readable() {
            return 0;
        }
        let entered = self.channel.enter_ring();
        self.check_ring(entered);
        let mut started = 0;
        while started < count && self.is_open() {
            match self.channel.next_arrived() {
                Some(Arrived::Request(entry)) => self.start_entry(entry, work),
                Some(Arrived::Gone) => self.give_up(),
                Some(Arrived::Refused(errno)) => {
                    let error = rustix::io::Errno::from_raw_os_error(errno);
                    self.mount.fail(format!("FUSE over io_uring is refused: {error}"));
                    self.give_up();
                }
                None => return started,
            }
            started += 1;
        }
        self.channel.set_ring_readable();
        started
    }

    fn start_entry(&mut self, entry: usize, work: &mut Work) {
        let mut bytes = [0; SHORT_BYTES];
        let (copied, length) = self.channel.entry_request(entry, &mut bytes);
        self.parse(&bytes[..copied.min(length)], length, Some(entry), work);
    }

    /// Hands answers to the kernel that it has not been given yet.
    pub(in crate::fuse::server) fn flush_ring(&mut self) {
        let flushed = self.channel.flush_ring();
        self.check_ring(flushed);
    }

    fn check_ring(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.mount.fail(format!("io_uring does not carry requests: {error}"));
            self.give_up();
        }
    }
}
