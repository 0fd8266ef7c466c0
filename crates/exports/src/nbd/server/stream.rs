//! The bytes of a connection: receiving, sending, and TLS between.
//!
//! Invariants:
//! * The ring has at most one receive and one send. Their buffers belong to the ring until their
//!   events.
//! * Without TLS the received bytes are parsed where the kernel put them; with TLS they are
//!   decrypted into a buffer of their own first.
//! * `queued` holds the parts to send, in order; all of it becomes the next send. With TLS only one
//!   send's worth of it is encrypted at a time, into buffers of the connection that are reused.
//! * The buffers and pipes of `queued` belong to the pool and go back to it, sent or not. With TLS
//!   there are no pipes.

use super::window::{Cost, Costs};
use crate::nbd::tls::{TlsConfig, TlsError, TlsSession};
use crate::server::{DATA_AT, Pool};
use drystone_core::IoBuf;
use drystone_core::ring::SendPart;
use std::ops::Range;

/// Bytes received at once from a client that has chosen its export.
const RECEIVE_BYTES: usize = 256 << 10;
/// The same during the handshake, when thousands of clients may be idle.
const HANDSHAKE_BYTES: usize = 4 << 10;
/// Bytes of ciphertext in one part of a send: so long that the allocator maps it, and gives it back
/// to the system.
const CIPHER_BYTES: usize = 256 << 10;
/// Parts of ciphertext of one send; the rest waits in the clear, where it is anyway.
const CIPHER_PARTS: usize = 2;
/// Most parts of one send: the kernel's limit of vectors.
const PARTS_MAX: usize = 1024;

/// One connection's bytes.
pub(super) struct Stream {
    /// Where received bytes arrive; `None` while it is with the ring.
    receive: Option<IoBuf>,
    received: Range<usize>,
    /// Decrypted bytes.
    plain: Option<IoBuf>,
    plain_range: Range<usize>,
    tls: Option<TlsSession>,
    /// Idle buffers for ciphertext to send.
    cipher: Vec<IoBuf>,
    /// The parts to send, in the clear.
    queued: Vec<SendPart>,
    /// An idle list for the next send.
    spare: Vec<SendPart>,
    /// The cost of the requests whose replies are in `queued`, and in the send under way.
    queued_replies: Costs,
    sending_replies: Costs,
    receiving: bool,
    sending: bool,
    /// True if memory was too short for a reply: the client would wait for it for ever.
    lost: bool,
    /// True once the session has queued its close_notify.
    goodbye: bool,
}

impl Stream {
    pub(super) fn new() -> Self {
        let receive = IoBuf::try_zeroed(HANDSHAKE_BYTES);
        Stream {
            lost: receive.is_none(),
            receive,
            received: 0..0,
            plain: None,
            plain_range: 0..0,
            tls: None,
            cipher: Vec::new(),
            queued: Vec::new(),
            spare: Vec::new(),
            queued_replies: Costs::default(),
            sending_replies: Costs::default(),
            receiving: false,
            sending: false,
            goodbye: false,
        }
    }

    /// Switches to TLS. The connection is lost if memory is too short for that.
    pub(super) fn start_tls(&mut self, config: &TlsConfig) -> Result<(), TlsError> {
        self.tls = Some(TlsSession::new(config)?);
        self.plain = IoBuf::try_zeroed(HANDSHAKE_BYTES);
        self.lost |= self.plain.is_none();
        Ok(())
    }

    /// Takes a larger receive buffer, because the handshake is over.
    pub(super) fn make_roomy(&mut self) {
        enlarge(&mut self.receive, &mut self.received);
        enlarge(&mut self.plain, &mut self.plain_range);
    }

    /// The TLS session, if the connection has one.
    pub(super) fn tls(&mut self) -> Option<&mut TlsSession> {
        self.tls.as_mut()
    }

    /// Received bytes that are ready to be parsed. Decrypts if need be.
    ///
    /// # Errors
    /// When the peer breaks TLS.
    pub(super) fn input(&mut self) -> Result<&[u8], TlsError> {
        if self.tls.is_some() {
            self.decrypt()?;
            return Ok(self.plain.as_ref().map_or(&[], |b| &b[self.plain_range.clone()]));
        }
        Ok(self.receive.as_ref().map_or(&[], |b| &b[self.received.clone()]))
    }

    fn decrypt(&mut self) -> Result<(), TlsError> {
        let (Some(tls), Some(plain)) = (&mut self.tls, &mut self.plain) else { return Ok(()) };
        if !self.plain_range.is_empty() {
            return Ok(());
        }
        self.plain_range = 0..tls.read_plaintext(plain);
        let Some(cipher) = &self.receive else { return Ok(()) };
        while !self.received.is_empty() && self.plain_range.end < plain.len() {
            let taken = tls.receive(&cipher[self.received.clone()])?;
            self.received.start += taken;
            let n = tls.read_plaintext(&mut plain[self.plain_range.end..]);
            self.plain_range.end += n;
            if taken == 0 && n == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The first `n` bytes of [`Stream::input`] were used.
    pub(super) fn consume(&mut self, n: usize) {
        let range = if self.tls.is_some() { &mut self.plain_range } else { &mut self.received };
        range.start += n;
        debug_assert!(range.start <= range.end);
    }

    /// True when everything received was used.
    pub(super) fn is_drained(&self) -> bool {
        self.received.is_empty() && self.plain_range.is_empty()
    }

    /// True when [`Stream::input`] might give more without another receive.
    pub(super) fn may_have_more(&self) -> bool {
        self.tls.is_some() || !self.is_drained()
    }

    /// True when bytes can be received straight into their destination.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// True when memory was too short for a reply, so the connection must be closed.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// True while a receive or a send is with the ring.
    pub(super) fn is_busy(&self) -> bool {
        self.receiving || self.sending
    }

    /// True while a receive is with the ring.
    #[inline]
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// Begins a receive into this buffer, if there is room for more: all of it was used.
    pub(super) fn begin_receive(&mut self) -> Option<IoBuf> {
        let buf = if self.received.is_empty() { self.receive.take() } else { None };
        self.receiving |= buf.is_some();
        buf
    }

    /// Ends a receive: `n` bytes are in `buf`.
    pub(super) fn end_receive(&mut self, buf: IoBuf, n: usize) {
        self.receiving = false;
        self.received = 0..n;
        self.receive = Some(buf);
    }

    /// Begins a receive into a buffer of another owner.
    pub(super) fn begin_receive_elsewhere(&mut self) {
        debug_assert!(!self.receiving && self.is_drained());
        self.receiving = true;
    }

    /// Ends a receive into a buffer of another owner.
    pub(super) fn end_receive_elsewhere(&mut self) {
        self.receiving = false;
    }

    /// Queue bytes that do not belong to a reply to a request (the handshake).
    pub(super) fn queue_bytes(&mut self, pool: &mut Pool, bytes: &[u8]) {
        for chunk in bytes.chunks(16 << 10) {
            let Some(mut buf) = pool.take(chunk.len()) else {
                self.lost = true;
                return;
            };
            buf[DATA_AT..DATA_AT + chunk.len()].copy_from_slice(chunk);
            self.queued.push(SendPart::new(buf, DATA_AT..DATA_AT + chunk.len()));
        }
    }

    /// Append what `write` puts into the given room (at most `most` bytes) to the queue, next to
    /// the small replies before it.
    pub(super) fn queue_small(
        &mut self,
        pool: &mut Pool,
        most: usize,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) {
        if let Some(part) = self.queued.last_mut()
            && part.range.end >= DATA_AT
            && part.range.end + most <= part.buf.len()
            && part.range.start == DATA_AT
            && part.pipe.is_none()
        {
            let end = part.range.end;
            let n = write(&mut part.buf[end..end + most]);
            part.range.end += n;
            return;
        }
        let Some(mut buf) = pool.take(most.max(4096)) else {
            self.lost = true;
            return;
        };
        let n = write(&mut buf[DATA_AT..]);
        self.queued.push(SendPart::new(buf, DATA_AT..DATA_AT + n));
    }

    /// Append a part of a buffer to the queue.
    pub(super) fn queue_part(&mut self, part: SendPart) {
        debug_assert!(part.pipe.is_none() || self.tls.is_none(), "nobody encrypts a pipe");
        self.queued.push(part);
    }

    /// Notes that one more reply is complete in the queue.
    pub(super) fn reply_queued(&mut self, cost: Cost) {
        self.queued_replies += cost;
    }

    /// Bytes of requests whose replies are not sent yet.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.queued_replies.bytes() + self.sending_replies.bytes()
    }

    /// True when a send could be started.
    pub(super) fn wants_send(&self) -> bool {
        !self.sending
            && (!self.queued.is_empty() || self.tls.as_ref().is_some_and(|t| t.wants_send()))
    }

    /// True while a send is with the ring.
    pub(super) fn is_sending(&self) -> bool {
        self.sending
    }

    /// True until everything that was queued is sent.
    pub(super) fn owes_send(&self) -> bool {
        self.sending || self.wants_send()
    }

    /// Tells a TLS peer that nothing more comes, once. True if that must be sent.
    pub(super) fn begin_goodbye(&mut self) -> bool {
        let tls = self.tls.as_mut().filter(|tls| !tls.is_handshaking());
        let Some(tls) = tls.filter(|_| !self.goodbye) else { return false };
        self.goodbye = true;
        tls.close_notify();
        self.wants_send()
    }

    /// Begins a send of the next parts, if there are any.
    pub(super) fn begin_send(&mut self, pool: &mut Pool) -> Vec<SendPart> {
        let mut parts = std::mem::take(&mut self.spare);
        match &self.tls {
            None => self.take_clear(&mut parts),
            Some(_) => self.take_encrypted(pool, &mut parts),
        }
        let encrypted = self.tls.as_ref().is_some_and(|tls| tls.wants_send());
        if self.queued.is_empty() && !encrypted {
            self.sending_replies += std::mem::take(&mut self.queued_replies);
        }
        self.sending = !parts.is_empty();
        parts
    }

    fn take_clear(&mut self, parts: &mut Vec<SendPart>) {
        if self.queued.len() <= PARTS_MAX {
            std::mem::swap(parts, &mut self.queued);
        } else {
            parts.extend(self.queued.drain(..PARTS_MAX));
        }
    }

    fn take_encrypted(&mut self, pool: &mut Pool, parts: &mut Vec<SendPart>) {
        for _ in 0..CIPHER_PARTS {
            let idle = self.cipher.pop();
            let Some(mut buf) = idle.or_else(|| IoBuf::try_zeroed(CIPHER_BYTES)) else {
                self.lost = true;
                return;
            };
            let n = self.encrypt(pool, &mut buf);
            if n == 0 {
                self.cipher.push(buf);
                return;
            }
            parts.push(SendPart::new(buf, 0..n));
        }
    }

    /// Fills `out` with ciphertext; returns its length.
    fn encrypt(&mut self, pool: &mut Pool, out: &mut [u8]) -> usize {
        let Some(tls) = &mut self.tls else { return 0 };
        let (mut filled, mut finished) = (0, 0);
        loop {
            while let Some(part) = self.queued.get_mut(finished) {
                let n = tls.write_plaintext(&part.buf[part.range.clone()]);
                part.range.start += n;
                if !part.range.is_empty() {
                    break;
                }
                finished += 1;
            }
            let n = tls.take_ciphertext(&mut out[filled..]);
            filled += n;
            if n == 0 {
                break;
            }
        }
        self.queued.drain(..finished).for_each(|part| pool.give(part.buf));
        filled
    }

    /// Ends a send after `n` bytes. Returns the cost of the replies that are sent now, or the parts
    /// that go on.
    pub(super) fn end_send(
        &mut self,
        pool: &mut Pool,
        mut parts: Vec<SendPart>,
        mut n: usize,
    ) -> Sent {
        self.sending = false;
        let whole = parts.iter().take_while(|p| {
            let fits = p.len() <= n;
            n -= if fits { p.len() } else { 0 };
            fits
        });
        let whole = whole.count();
        parts.drain(..whole).for_each(|mut part| {
            part.sent(part.len());
            self.take_back(pool, part);
        });
        if parts.is_empty() {
            self.spare = parts;
            return Sent::All(std::mem::take(&mut self.sending_replies));
        }
        parts[0].sent(n);
        self.sending = true;
        Sent::Rest(parts)
    }

    /// Takes back the buffer of a part that the ring had.
    fn take_back(&mut self, pool: &mut Pool, part: SendPart) {
        match self.tls {
            // Cleartext parts come from before the TLS session.
            Some(_) => self.cipher.push(part.buf),
            None => give_part(pool, part),
        }
    }

    /// Ends a send that failed: neither these parts nor the queue will be sent. Returns the cost of
    /// all replies that are lost.
    pub(super) fn fail_send(&mut self, pool: &mut Pool, parts: Vec<SendPart>) -> Costs {
        self.sending = false;
        parts.into_iter().for_each(|part| self.take_back(pool, part));
        self.give_back(pool);
        let mut lost = std::mem::take(&mut self.sending_replies);
        lost += std::mem::take(&mut self.queued_replies);
        lost
    }

    /// Gives the buffers of the queue back to their pool: nothing of it will be sent.
    pub(super) fn give_back(&mut self, pool: &mut Pool) {
        self.queued.drain(..).for_each(|part| give_part(pool, part));
    }
}

fn give_part(pool: &mut Pool, part: SendPart) {
    pool.give(part.buf);
    part.pipe.into_iter().for_each(|pipe| pool.give_pipe(pipe));
}

/// Exchange a buffer for a large one, and copy its unused bytes; if memory is short it stays.
fn enlarge(buf: &mut Option<IoBuf>, range: &mut Range<usize>) {
    if let Some(small) = buf {
        let Some(mut large) = IoBuf::try_zeroed(RECEIVE_BYTES) else { return };
        let left = &small[range.clone()];
        large[..left.len()].copy_from_slice(left);
        *range = 0..left.len();
        *buf = Some(large);
    }
}

/// The result of a send.
pub(super) enum Sent {
    /// All parts were sent; these replies are complete.
    All(Costs),
    /// These parts are still to be sent, at once.
    Rest(Vec<SendPart>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::proto::{Command, CommandFlags};
    use crate::nbd::request::{ContextSet as Contexts, Request};
    use crate::server::{Reserve, Work};
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use drystone_core::{Arena, ContextSet, Pipe};
    use std::sync::Arc;

    fn stream() -> (Stream, Pool, Arc<Reserve>) {
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).expect("a context");
        let mut work = Work::new(cx);
        work.reserve = Reserve::new(Arena::new(1 << 20), work.locks.clone());
        (Stream::new(), work.pool(), work.reserve)
    }

    fn cost(length: u64) -> Cost {
        let (command, flags, contexts) =
            (Command::Read, CommandFlags::empty(), Contexts::default());
        Cost::of(&Request { command, flags, contexts, cookie: 1, offset: 0, length })
    }

    fn queue_reply(stream: &mut Stream, pool: &mut Pool, byte: u8) {
        let write = |out: &mut [u8]| {
            out[..16].fill(byte);
            16
        };
        stream.queue_small(pool, 16, write);
        stream.reply_queued(cost(512));
    }

    #[test]
    fn small_replies_share_a_part_and_end_together() {
        let (mut stream, mut pool, _) = stream();
        assert!(!stream.owes_send());
        (1..=2).for_each(|byte| queue_reply(&mut stream, &mut pool, byte));
        assert_eq!((stream.unsent_bytes(), stream.wants_send()), (1024, true));
        let parts = stream.begin_send(&mut pool);
        assert_eq!((parts.len(), parts[0].range.len()), (1, 32));
        assert!(stream.is_sending() && stream.is_busy() && !stream.wants_send());
        queue_reply(&mut stream, &mut pool, 3);
        assert!(!stream.wants_send() && stream.owes_send(), "one send at a time");
        let Sent::Rest(parts) = stream.end_send(&mut pool, parts, 20) else {
            panic!("12 are left")
        };
        assert_eq!((parts[0].range.len(), stream.unsent_bytes()), (12, 1536));
        let Sent::All(costs) = stream.end_send(&mut pool, parts, 12) else { panic!("all is sent") };
        assert_eq!((costs.bytes(), stream.unsent_bytes()), (1024, 512));
        assert!(stream.wants_send() && !stream.is_busy());
    }

    /// A reply whose data is in a pipe, between two small ones.
    #[cfg(not(miri))]
    fn queue_with_pipe(stream: &mut Stream, pool: &mut Pool) -> Vec<u8> {
        queue_reply(stream, pool, 1);
        let mut pipe = pool.take_pipe().expect("a pipe");
        let end = pipe.begin();
        assert_eq!(Pipe::copy_in(end, &[3; 100]), 100);
        pipe.filled(100);
        let buf = pool.take(4096).expect("a buffer");
        let range = DATA_AT - 28..DATA_AT;
        stream.queue_part(SendPart { buf, range, pipe: Some(pipe) });
        stream.reply_queued(cost(4096));
        queue_reply(stream, pool, 2);
        [vec![1; 16], vec![0; 28], vec![3; 100], vec![2; 16]].concat()
    }

    #[cfg(not(miri))]
    #[test]
    fn a_send_may_end_anywhere_in_a_part_with_a_pipe() {
        for cut in [1, 16, 17, 44, 45, 143, 144, 159, 160] {
            let (mut stream, mut pool, _) = stream();
            let wanted = queue_with_pipe(&mut stream, &mut pool);
            let mut parts = stream.begin_send(&mut pool);
            let (mut sent, mut left) = (Vec::new(), cut);
            loop {
                let mut n = left;
                for part in &parts {
                    let of_buf = n.min(part.range.len());
                    sent.extend_from_slice(&part.buf[part.range.clone()][..of_buf]);
                    let of_pipe = (n - of_buf).min(part.pipe_len());
                    if let Some(pipe) = part.pipe.as_ref().filter(|_| of_pipe > 0) {
                        sent.extend(pipe.copy_out(of_pipe));
                    }
                    n -= of_buf + of_pipe;
                }
                match stream.end_send(&mut pool, parts, left) {
                    Sent::Rest(rest) => (parts, left) = (rest, wanted.len() - cut),
                    Sent::All(costs) => break assert_eq!(costs.bytes(), 4096 + 1024),
                }
            }
            assert!(sent == wanted, "cut at {cut}");
            let again = pool.take_pipe().expect("it came back");
            assert!(again.is_idle());
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn a_pipe_that_was_not_sent_is_closed() {
        let (mut stream, mut pool, _) = stream();
        queue_with_pipe(&mut stream, &mut pool);
        let parts = stream.begin_send(&mut pool);
        queue_with_pipe(&mut stream, &mut pool);
        stream.fail_send(&mut pool, parts);
        let new: Vec<_> = std::iter::from_fn(|| pool.take_pipe()).collect();
        assert!(new.len() == 4 && new.iter().all(|pipe| pipe.is_idle()), "those were closed");
        assert!(!stream.owes_send());
    }

    #[test]
    fn a_failed_send_loses_all_replies() {
        let (mut stream, mut pool, reserve) = stream();
        queue_reply(&mut stream, &mut pool, 1);
        let parts = stream.begin_send(&mut pool);
        queue_reply(&mut stream, &mut pool, 2);
        assert_eq!(stream.fail_send(&mut pool, parts).bytes(), 1024);
        assert!(!stream.owes_send() && stream.unsent_bytes() == 0);
        drop(pool);
        assert_eq!(reserve.idle_count(), 2, "their buffers are not lost");
    }

    /// Ciphertext lies in buffers of the stream, which are not the pool's.
    #[test]
    fn a_failed_send_with_tls_gives_back_what_is_the_pools() {
        let (mut stream, mut pool, reserve) = stream();
        stream.start_tls(&TlsConfig::of_test()).expect("a session");
        queue_reply(&mut stream, &mut pool, 1);
        let cipher = SendPart::new(IoBuf::zeroed(CIPHER_BYTES), 0..100);
        assert_eq!(stream.fail_send(&mut pool, vec![cipher]).bytes(), 512);
        drop(pool);
        assert_eq!((stream.cipher.len(), reserve.idle_count()), (1, 1));
    }

    #[test]
    fn bytes_are_parsed_where_they_were_received() {
        let (mut stream, ..) = stream();
        let mut buf = stream.begin_receive().expect("nothing is there");
        assert!(stream.is_receiving() && stream.begin_receive().is_none());
        buf[..4].copy_from_slice(b"abcd");
        stream.end_receive(buf, 4);
        assert!(!stream.is_busy() && !stream.is_drained() && stream.begin_receive().is_none());
        stream.consume(3);
        assert_eq!(stream.input().expect("no TLS"), b"d");
        stream.make_roomy();
        assert_eq!(stream.input().expect("no TLS"), b"d", "a larger buffer keeps what is left");
        stream.consume(1);
        assert!(stream.begin_receive().is_some_and(|buf| buf.len() == RECEIVE_BYTES));
    }

    #[test]
    fn a_client_in_the_clear_gets_no_goodbye() {
        let (mut stream, ..) = stream();
        assert!(!stream.begin_goodbye() && stream.is_plain() && !stream.is_lost());
    }
}
