//! A connection until its client has chosen an export: the handshake, and TLS in between.
//!
//! Invariants:
//! * The negotiation parses and receives nothing while a reply is unsent, so that a client makes
//!   the server keep at most one reply.
//! * The reply that allows TLS leaves in the clear, before the session starts.

use crate::nbd::handshake::{Event, Handshake, Negotiated, OUTPUT_MAX_BYTES};
use crate::nbd::server::exports::ExportTable;
use crate::nbd::server::incoming::ListenerTls;
use crate::nbd::server::limits::Permit;
use crate::nbd::server::peer::Peer;
use crate::nbd::server::stream::Stream;
use crate::server::Pool;
use drystone_core::sync::LockCounters;
use std::sync::Arc;

/// The result of one step.
pub(super) enum Next {
    /// The client has chosen an export, with this permit for a connection.
    Chosen(Box<Negotiated>, Option<Permit>),
    /// Take another step.
    More,
    /// Wait for bytes, or until a reply is sent.
    Wait,
    /// Close when all is sent; `wakes`: also end a receive in flight.
    Drain { wakes: bool },
    /// Close at once.
    Kill,
}

/// The parts of a connection that its negotiation uses.
pub(super) struct Parts<'a> {
    pub(super) stream: &'a mut Stream,
    pub(super) pool: &'a mut Pool,
    pub(super) peer: &'a mut Peer,
    pub(super) tls: &'a ListenerTls,
    pub(super) table: &'a ExportTable,
    pub(super) locks: &'a Arc<LockCounters>,
}

/// The negotiation of one connection.
pub(super) struct Negotiation {
    handshake: Handshake,
    /// The TLS handshake goes on; the NBD handshake waits.
    is_in_tls: bool,
}

impl Negotiation {
    /// The negotiation of a client that is greeted next.
    pub(super) fn new(tls: &ListenerTls) -> Self {
        Negotiation { handshake: Handshake::new(tls.policy), is_in_tls: false }
    }

    /// True while a reply is unsent, so that the negotiation takes no input.
    pub(super) fn owes_reply(&self, stream: &Stream) -> bool {
        !self.is_in_tls && stream.owes_send()
    }

    /// Takes one step.
    pub(super) fn next(&mut self, parts: Parts<'_>) -> Next {
        if self.is_in_tls { self.negotiate_tls(parts) } else { self.negotiate(parts) }
    }

    fn negotiate(&mut self, parts: Parts<'_>) -> Next {
        let Parts { stream, pool, peer, table, locks, .. } = parts;
        let mut out = Vec::new();
        if out.try_reserve_exact(OUTPUT_MAX_BYTES).is_err() {
            return Next::Kill;
        }
        let view = table.for_client(peer, stream.tls().is_some(), locks);
        let Ok(input) = stream.input() else { return Next::Drain { wakes: false } };
        let step = self.handshake.advance(input, &view, &mut out);
        stream.consume(step.consumed);
        stream.queue_bytes(pool, &out);
        match step.event {
            Event::Replied => Next::More,
            Event::NeedMore if step.consumed > 0 && stream.may_have_more() => Next::More,
            Event::NeedMore => Next::Wait,
            Event::StartTls => {
                self.is_in_tls = true;
                Next::Wait
            }
            Event::Transmission(negotiated) => Next::Chosen(negotiated, view.into_permit()),
            Event::Close(_) => Next::Drain { wakes: true },
        }
    }

    fn negotiate_tls(&mut self, parts: Parts<'_>) -> Next {
        let Parts { stream, peer, tls, .. } = parts;
        if stream.tls().is_none() {
            if stream.owes_send() {
                return Next::Wait;
            }
            let started = tls.config.as_ref().map(|config| stream.start_tls(config));
            if !matches!(started, Some(Ok(()))) {
                return Next::Kill;
            }
        }
        if stream.input().is_err() {
            // The alert in the session's output must still be sent.
            return Next::Drain { wakes: true };
        }
        if stream.tls().is_none_or(|tls| tls.is_handshaking()) {
            return Next::Wait;
        }
        peer.show_names(stream.tls().and_then(|tls| tls.peer_names()));
        self.handshake.tls_established();
        self.is_in_tls = false;
        Next::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::handshake::TlsPolicy;
    use crate::nbd::proto::OPTION_MAGIC;
    use crate::nbd::server::Settings;
    use crate::server::Work;
    use drystone_core::ContextSet;
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use std::os::unix::net::UnixStream;

    const ABORT: u32 = 2;
    const LIST: u32 = 3;
    const STARTTLS: u32 = 5;

    struct Fixture {
        negotiation: Negotiation,
        stream: Stream,
        pool: Pool,
        peer: Peer,
        tls: ListenerTls,
        table: ExportTable,
        locks: Arc<LockCounters>,
    }

    fn fixture(policy: TlsPolicy) -> Fixture {
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).expect("a context");
        let work = Work::new(cx);
        let (socket, _client) = UnixStream::pair().expect("sockets");
        let tls = ListenerTls { policy, config: None };
        let negotiation = Negotiation::new(&tls);
        let (stream, pool, locks) = (Stream::new(), work.pool(), work.locks.clone());
        let table = ExportTable::new(Vec::new(), 0, Settings::default());
        Fixture { negotiation, stream, pool, peer: Peer::of(&socket), tls, table, locks }
    }

    impl Fixture {
        /// Receives the client's flags, and options without data.
        fn receive(&mut self, options: &[u32]) {
            let mut bytes = 3u32.to_be_bytes().to_vec();
            for option in options {
                bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
                bytes.extend_from_slice(&option.to_be_bytes());
                bytes.extend_from_slice(&0u32.to_be_bytes());
            }
            let mut buf = self.stream.begin_receive().expect("all was used");
            buf[..bytes.len()].copy_from_slice(&bytes);
            self.stream.end_receive(buf, bytes.len());
        }

        fn next(&mut self) -> Next {
            let Fixture { negotiation, stream, pool, peer, tls, table, locks } = self;
            negotiation.next(Parts { stream, pool, peer, tls, table, locks })
        }

        fn owes_reply(&self) -> bool {
            self.negotiation.owes_reply(&self.stream)
        }
    }

    #[test]
    fn a_reply_is_owed_until_it_is_sent() {
        let mut it = fixture(TlsPolicy::Off);
        it.receive(&[LIST, ABORT]);
        while !it.owes_reply() {
            assert!(matches!(it.next(), Next::More));
        }
        let parts = it.stream.begin_send(&mut it.pool);
        assert!(it.owes_reply(), "it is with the ring");
        let sent = parts.iter().map(|part| part.range.len()).sum();
        it.stream.end_send(&mut it.pool, parts, sent);
        assert!(!it.owes_reply());
        assert!(matches!(it.next(), Next::Drain { wakes: true }), "the client goes");
    }

    #[test]
    fn tls_starts_after_the_reply_that_allows_it() {
        let mut it = fixture(TlsPolicy::Required);
        it.receive(&[STARTTLS]);
        let waits = std::iter::from_fn(|| Some(it.next())).find(|next| !matches!(next, Next::More));
        assert!(matches!(waits, Some(Next::Wait)));
        assert!(!it.owes_reply(), "the client may begin its handshake");
        assert!(matches!(it.next(), Next::Wait), "the reply is not sent");
        let parts = it.stream.begin_send(&mut it.pool);
        let sent = parts.iter().map(|part| part.range.len()).sum();
        it.stream.end_send(&mut it.pool, parts, sent);
        assert!(matches!(it.next(), Next::Kill), "there is no certificate");
    }
}
