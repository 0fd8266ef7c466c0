//! The connection's operations on the ring: the next to start, and the end of each.

use super::{Connection, Want};
use crate::nbd::server::stream::Sent;
use drystone_core::IoBuf;
use drystone_core::ring::SendPart;

/// The least missing payload that is received straight into the write's buffer.
const DIRECT_BYTES: usize = 16 << 10;

impl Connection {
    /// Ends a receive: with so many bytes, or an error if not positive; `None` if it was cut short.
    pub(in crate::nbd::server) fn received(&mut self, buf: IoBuf, result: Option<i32>) {
        let n = result.unwrap_or(0).max(0) as usize;
        self.stream.end_receive(buf, n);
        self.progress.note_spoken(n > 0);
        let awaits_data = self.awaits_data();
        self.progress.note(result.filter(|_| awaits_data));
        if result.is_some_and(|result| result <= 0) {
            self.life.end_input();
        }
    }

    /// Ends a receive into a write's data; as above.
    pub(in crate::nbd::server) fn received_payload(&mut self, buf: IoBuf, result: Option<i32>) {
        self.stream.end_receive_elsewhere();
        self.progress.note(result);
        if let Some(export) = self.export_mut() {
            export.admission.end_receive(buf, result.unwrap_or(0).max(0) as usize);
        }
        if result.is_some_and(|result| result <= 0) {
            self.life.end_input();
        }
    }

    /// Ends a send; as above. Returns the parts that are left.
    pub(in crate::nbd::server) fn sent(
        &mut self,
        parts: Vec<SendPart>,
        result: Option<i32>,
    ) -> Option<Vec<SendPart>> {
        self.progress.note(result);
        let replies = if result.is_some_and(|result| result <= 0) {
            self.life.kill();
            self.stream.fail_send(&mut self.pool, parts)
        } else {
            match self.stream.end_send(&mut self.pool, parts, result.unwrap_or(0) as usize) {
                Sent::Rest(parts) => return Some(parts),
                Sent::All(replies) => replies,
            }
        };
        if let Some(export) = self.export_mut() {
            export.admission.end(replies);
        }
        None
    }

    /// The next operation to start on the ring, if any. Call it until it returns `None`.
    pub(in crate::nbd::server) fn next_want(&mut self) -> Option<Want> {
        if self.stream.is_lost() && !self.life.is_dead() {
            self.life.kill();
        }
        if self.life.is_dead() {
            return None;
        }
        if self.life.is_draining() && !self.stream.wants_send() {
            self.finish_draining();
        }
        if self.stream.wants_send() {
            let parts = self.stream.begin_send(&mut self.pool);
            if !parts.is_empty() {
                let owed_nothing = !self.awaits_data();
                self.progress.begin_owing(owed_nothing);
                return Some(Want::Send(parts));
            }
        }
        if self.may_receive() { self.next_receive() } else { None }
    }

    #[inline]
    fn may_receive(&self) -> bool {
        self.life.is_open() && !self.stream.is_receiving() && !self.is_paused()
    }

    fn next_receive(&mut self) -> Option<Want> {
        let is_drained = self.stream.is_drained();
        if is_drained
            && self.stream.is_plain()
            && let Some(export) = self.export_mut()
            && let Some((buf, range)) = export.admission.begin_receive(DIRECT_BYTES)
        {
            self.stream.begin_receive_elsewhere();
            return Some(Want::ReceivePayload(buf, range));
        }
        if self.coalesce.is_waiting() {
            return None;
        }
        if !self.in_handshake() && is_drained && self.coalesce.begin_wait() {
            return Some(Want::ReceiveLater);
        }
        self.receive_now()
    }

    /// Starts the receive whose delay is over.
    pub(in crate::nbd::server) fn end_delay(&mut self) -> Option<Want> {
        self.coalesce.end_wait();
        if self.may_receive() { self.receive_now() } else { None }
    }

    fn receive_now(&mut self) -> Option<Want> {
        let buf = self.stream.begin_receive()?;
        let all = 0..buf.len();
        Some(Want::Receive(buf, all))
    }

    /// Closes a draining connection that has nothing to send, once nothing is in flight.
    fn finish_draining(&mut self) {
        if self.has_bios() || self.stream.is_sending() || self.stream.begin_goodbye() {
            return;
        }
        self.life.kill();
    }
}
