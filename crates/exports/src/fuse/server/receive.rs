//! Requests out of the descriptor.

use super::session::{Life, Session};
use crate::fuse::proto::init::MAX_WRITE;
use crate::fuse::proto::{IN_HEADER_BYTES, Malformed, Request, WRITE_HEAD_BYTES};
use crate::server::{DATA_AT, Work, errno};
use rustix::io::{Errno, readv};
use std::io::IoSliceMut;

/// Most requests of a session that are read before the others have their turn.
const ROUND_MAX: u32 = 32;
/// As much of a request that is no write is looked at: more than the longest name needs.
const SHORT_BYTES: usize = 512;

impl Session {
    /// Read requests and start them. True if there may be more, and room for them.
    pub(super) fn receive(&mut self, work: &mut Work) -> bool {
        if self.has_failed() {
            self.give_up();
        }
        self.follow_transport(work);
        if self.life != Life::Open || self.waits_for_transport() && !self.mount.is_complete() {
            return false;
        }
        let mut count = self.receive_over_ring(self.batch, work);
        while count < self.batch && self.readable && !self.is_paused() {
            match self.read_one() {
                Some(length) => self.take(length, work),
                None => break,
            }
            count += 1;
        }
        if count > 0 {
            self.mount.tell_requests(self.number, self.requests);
        }
        let full = count == self.batch;
        // Where one at a time comes, it is answered before the next is looked for.
        if count > 0 {
            self.batch = if full { (count * 2).min(ROUND_MAX) } else { count };
        }
        full && self.may_have_more()
    }

    fn may_have_more(&self) -> bool {
        self.has_entries() || self.readable && !self.is_paused()
    }

    /// Look once for requests, and start them. True if there were any, or it is over.
    pub(super) fn look(&mut self, work: &mut Work) -> bool {
        let before = self.requests;
        match self.over_ring.as_mut().filter(|over| over.registered) {
            Some(over) => over.readable = true,
            None => self.readable = true,
        }
        self.receive(work);
        let found = self.requests != before || self.life != Life::Open;
        if found {
            self.look.found();
        }
        found
    }

    /// Read one request; its length.
    fn read_one(&mut self) -> Option<usize> {
        let data = &mut self.data[DATA_AT..DATA_AT + MAX_WRITE as usize];
        let mut parts = [IoSliceMut::new(&mut self.head), IoSliceMut::new(data)];
        loop {
            match readv(&self.device, &mut parts) {
                Ok(0) => break self.give_up(),
                Ok(length) => return Some(length),
                // The request was taken back before it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => break self.readable = false,
                // The mount is gone.
                Err(Errno::NODEV | Errno::CONNABORTED) => break self.give_up(),
                Err(error) => {
                    self.mount.fail(format!("requests cannot be read from /dev/fuse: {error}"));
                    break self.give_up();
                }
            }
        }
        None
    }

    fn take(&mut self, length: usize, work: &mut Work) {
        self.requests += 1;
        self.look.asked();
        let opcode = u32::from_ne_bytes([self.head[4], self.head[5], self.head[6], self.head[7]]);
        let head = self.head;
        if matches!(opcode, READ | WRITE) || length <= WRITE_HEAD_BYTES {
            return self.parse(&head[..length.min(WRITE_HEAD_BYTES)], length, work);
        }
        // Put together what was read in two parts.
        let mut short = [0; SHORT_BYTES];
        let more = (length - WRITE_HEAD_BYTES).min(SHORT_BYTES - WRITE_HEAD_BYTES);
        short[..WRITE_HEAD_BYTES].copy_from_slice(&head);
        short[WRITE_HEAD_BYTES..WRITE_HEAD_BYTES + more]
            .copy_from_slice(&self.data[DATA_AT..DATA_AT + more]);
        self.parse(&short[..WRITE_HEAD_BYTES + more], length, work);
    }

    fn parse(&mut self, bytes: &[u8], length: usize, work: &mut Work) {
        match Request::parse(bytes, length) {
            Ok(request) => self.start(&request, work),
            Err(Malformed::Header) => debug_assert!(length < IN_HEADER_BYTES),
            Err(Malformed::Body { unique }) => self.answer(unique, errno::EINVAL),
        }
    }
}

/// Operations whose beginning is all there is to parse.
const READ: u32 = 15;
const WRITE: u32 = 16;
