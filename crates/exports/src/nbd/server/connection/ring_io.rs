//! The connection's operations on the ring: the next to start, and the end of each.

use super::{Connection, Life, Want};
use crate::nbd::server::stream::Sent;
use drystone_core::IoBuf;
use drystone_core::ring::SendPart;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Payload that is still missing at least this many bytes is received in place.
const DIRECT_BYTES: usize = 16 << 10;

impl Connection {
    /// Ends a receive: with so many bytes, or an error if not positive; `None` if it was cut short.
    pub(in crate::nbd::server) fn received(&mut self, buf: IoBuf, result: Option<i32>) {
        self.stream.receiving = false;
        self.coalesce.receive();
        self.has_spoken |= result.is_some_and(|result| result > 0);
        self.progress.note(result.filter(|_| self.payload.is_some()));
        self.stream.received(buf, result.unwrap_or(0).max(0) as usize);
        if result.is_some_and(|result| result <= 0) {
            self.end_of_input();
        }
    }

    /// Ends a receive into a write's data; as above.
    pub(in crate::nbd::server) fn received_payload(&mut self, buf: IoBuf, result: Option<i32>) {
        self.stream.receiving = false;
        self.progress.note(result);
        if let Some(payload) = &mut self.payload {
            payload.buf = Some(buf);
            payload.got += result.unwrap_or(0).max(0) as usize;
        }
        if result.is_some_and(|result| result <= 0) {
            self.end_of_input();
        }
    }

    /// The client sends no more. Its requests are still done, and its replies are sent if
    /// it still reads. A Unix socket says if it does not; of others the first reply tells.
    fn end_of_input(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Draining;
        }
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        let told = poll(&mut socket, Some(&Timespec::default()));
        if told.is_ok() && socket[0].revents().contains(PollFlags::HUP) {
            self.kill();
        }
    }

    /// Ends a send; as above. Returns the parts that are left.
    pub(in crate::nbd::server) fn sent(
        &mut self,
        parts: Vec<SendPart>,
        result: Option<i32>,
    ) -> Option<Vec<SendPart>> {
        self.progress.note(result);
        if result.is_some_and(|result| result <= 0) {
            let lost = self.stream.send_failed();
            self.windows.end(lost);
            self.kill();
            return None;
        }
        match self.stream.sent(&mut self.pool, parts, result.unwrap_or(0) as usize) {
            Sent::Rest(parts) => Some(parts),
            Sent::All(replies) => {
                self.windows.end(replies);
                None
            }
        }
    }

    /// The next operation to start on the ring, if any. Call until it wants nothing more.
    pub(in crate::nbd::server) fn wants(&mut self) -> Option<Want> {
        if self.stream.lost && self.life != Life::Dead {
            self.kill();
        }
        if self.life == Life::Dead {
            return None;
        }
        if self.life == Life::Draining && !self.stream.wants_send() {
            self.finish_draining();
        }
        if self.stream.wants_send() {
            let parts = self.stream.take_send(&mut self.pool);
            if !parts.is_empty() {
                self.progress.begin_owing(self.payload.is_none());
            }
            if !parts.is_empty() {
                return Some(Want::Send(parts));
            }
        }
        if self.life != Life::Open {
            return None;
        }
        if self.stream.receiving || self.is_paused() {
            return None;
        }
        self.wants_receive()
    }

    fn wants_receive(&mut self) -> Option<Want> {
        let drained = self.stream.is_drained();
        if drained
            && self.stream.is_plain()
            && let Some(payload) = &mut self.payload
            && payload.request.length as usize - payload.got >= DIRECT_BYTES
            && let Some(buf) = payload.buf.take()
        {
            self.stream.receiving = true;
            let end = payload.at + payload.request.length as usize;
            let range = payload.at + payload.got..end;
            return Some(Want::ReceivePayload(buf, range));
        }
        if self.delaying {
            return None;
        }
        if self.coalesce.delays() && !self.in_handshake() && drained {
            self.delaying = true;
            return Some(Want::ReceiveLater);
        }
        self.receive_now()
    }

    /// Starts the receive that waited for a moment, which is over.
    pub(in crate::nbd::server) fn delay_over(&mut self) -> Option<Want> {
        self.delaying = false;
        let may = self.life == Life::Open && !self.stream.receiving && !self.is_paused();
        if may { self.receive_now() } else { None }
    }

    fn receive_now(&mut self) -> Option<Want> {
        let buf = self.stream.take_receive_buffer()?;
        self.stream.receiving = true;
        let all = 0..buf.len();
        Some(Want::Receive(buf, all))
    }

    /// Closes a draining connection that has nothing to send, once nothing is in flight.
    fn finish_draining(&mut self) {
        if self.has_bios() || self.stream.sending {
            return;
        }
        if let Some(tls) = self.stream.tls()
            && !tls.is_handshaking()
            && !self.goodbye
        {
            self.goodbye = true;
            tls.close_notify();
            if self.stream.wants_send() {
                return;
            }
        }
        self.kill();
    }
}
