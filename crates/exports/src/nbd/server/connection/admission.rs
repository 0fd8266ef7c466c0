//! Admission of requests: out of the stream, into the client's windows.
//!
//! ```text
//!   stream --> parsed --> window and memory? --yes--> data of a write arrives --> start
//!                               | no       ^
//!                               v          |
//!                             held --------/
//! ```
//!
//! Invariants:
//! * `windows` counts requests and their bytes from their admission until their reply was sent.
//! * A request that finds no room is `held`, as is one for whose data there is no memory. Nothing
//!   more is parsed or received meanwhile, so a client that does not read its replies costs no more
//!   than its windows.
//! * Memory for a request's data is reserved once its window has room, just before it is taken.
//! * No request is held while the data of another arrives.

use crate::nbd::request::{Refusal, Request};
use crate::nbd::server::coalesce::Coalesce;
use crate::nbd::server::layout::DataLayout;
use crate::nbd::server::stream::Stream;
use crate::nbd::server::window::{Cost, Costs, Windows};
use crate::nbd::transmission::{Item, Transmission};
use crate::server::Pool;
use drystone_core::IoBuf;
use std::ops::Range;

/// The most bytes of requests that start before their bios are submitted: they fit a core's cache,
/// so that data copied there is still cached when the socket takes it.
pub(super) const GO_BYTES: u64 = 1 << 20;

/// A message that was parsed.
enum Message {
    Request(Request),
    Refused(Refusal),
}

impl Message {
    #[inline]
    fn cost(&self) -> Cost {
        match self {
            Message::Request(request) => Cost::of(request),
            Message::Refused(_) => Cost::REFUSAL,
        }
    }
}

/// A write whose data is still arriving.
struct Payload {
    request: Request,
    /// `None` if memory was short, so that the data is skipped, or while a receive has the buffer.
    buf: Option<IoBuf>,
    /// The place at which the data begins in it.
    at: usize,
    got: usize,
}

impl Payload {
    /// Bytes that are still to come.
    #[inline]
    fn missing(&self) -> usize {
        self.request.length as usize - self.got
    }
}

/// The result of one step.
#[derive(Debug)]
pub(super) enum Next {
    /// Start the request, with a write's data unless memory was short for it.
    Start(Request, Option<IoBuf>),
    /// Reply with this error.
    Refuse(Refusal),
    /// Take another step.
    More,
    /// Wait for bytes, for room in a window, or for memory.
    Wait,
    /// Take no more requests, and close: the client said so, or broke the protocol.
    Close,
}

/// The requests of a connection, from the stream to their reply.
pub(super) struct Admission {
    transmission: Transmission,
    layout: DataLayout,
    windows: Windows,
    /// A parsed request that waits until its window has room and the pool has memory.
    held: Option<Message>,
    payload: Option<Payload>,
}

impl Admission {
    /// The admission of requests that `transmission` parses and `windows` bound.
    pub(super) fn new(transmission: Transmission, layout: DataLayout, windows: Windows) -> Self {
        Admission { transmission, layout, windows, held: None, payload: None }
    }

    /// Bytes of the requests in flight.
    #[inline]
    pub(super) fn bytes_in_flight(&self) -> u64 {
        self.windows.bytes()
    }

    /// True when no request is held or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.windows.is_idle() && self.held.is_none()
    }

    /// True while the data of a write arrives.
    #[inline]
    pub(super) fn awaits_data(&self) -> bool {
        self.payload.is_some()
    }

    /// True at a bound, where no new request is taken. A write whose data is arriving is not new.
    #[inline]
    pub(super) fn is_paused(&self, pool: &Pool, stream: &Stream) -> bool {
        let has_room = |held: &Message| self.windows.has_room(held.cost()) && !pool.waits();
        let holds = self.held.as_ref().is_some_and(|held| !has_room(held));
        let is_bound = holds || stream.unsent_bytes() >= GO_BYTES;
        is_bound && self.payload.is_none()
    }

    /// Drops the request that is held.
    pub(super) fn drop_held(&mut self) {
        self.held = None;
    }

    /// Drops the write whose data is still arriving, and gives its buffer back to the pool.
    pub(super) fn give_back(&mut self, pool: &mut Pool) {
        let buf = self.payload.take().and_then(|payload| payload.buf);
        buf.into_iter().for_each(|buf| pool.give(buf));
    }

    /// Counts requests whose replies were sent.
    #[inline]
    pub(super) fn end(&mut self, replies: Costs) {
        self.windows.end(replies);
    }

    /// Parses one message, or takes more of a write's data.
    #[inline]
    pub(super) fn next(
        &mut self,
        stream: &mut Stream,
        pool: &mut Pool,
        coalesce: &mut Coalesce,
    ) -> Next {
        if self.payload.is_some() {
            return self.take_data(stream, pool);
        }
        match self.held.take() {
            Some(message) => self.admit(message, pool),
            None => self.parse(stream, pool, coalesce),
        }
    }

    #[inline]
    fn parse(&mut self, stream: &mut Stream, pool: &mut Pool, coalesce: &mut Coalesce) -> Next {
        let Ok(input) = stream.input() else { return Next::Close };
        let parsed = self.transmission.next(input);
        stream.consume(parsed.consumed);
        match parsed.item {
            Item::NeedMore if parsed.consumed > 0 && stream.may_have_more() => Next::More,
            Item::NeedMore => Next::Wait,
            Item::Request(request) => {
                coalesce.request();
                self.admit(Message::Request(request), pool)
            }
            Item::Refused(refusal) => self.admit(Message::Refused(refusal), pool),
            Item::Close(_) => Next::Close,
        }
    }

    /// Admits a parsed message if its window has room, else holds it.
    #[inline]
    fn admit(&mut self, message: Message, pool: &mut Pool) -> Next {
        let cost = message.cost();
        let bytes = match &message {
            Message::Request(request) => self.layout.buffer_bytes(request),
            Message::Refused(_) => 0,
        };
        if !self.windows.has_room(cost) || bytes > 0 && !pool.reserve(bytes) {
            self.held = Some(message);
            return Next::Wait;
        }
        self.windows.begin(cost);
        match message {
            Message::Request(request) if request.payload_bytes() > 0 => {
                let (buf, at) = (pool.take(bytes), self.layout.payload_at(&request));
                self.payload = Some(Payload { request, buf, at, got: 0 });
                Next::More
            }
            Message::Request(request) => Next::Start(request, None),
            Message::Refused(refusal) => Next::Refuse(refusal),
        }
    }

    /// Moves received bytes into a write's data; the write starts when it is whole.
    #[inline]
    fn take_data(&mut self, stream: &mut Stream, pool: &mut Pool) -> Next {
        let Some(payload) = &mut self.payload else { return Next::Wait };
        let missing = payload.missing();
        if missing > 0 {
            let Ok(input) = stream.input() else {
                self.give_back(pool);
                return Next::Close;
            };
            let n = input.len().min(missing);
            if let Some(buf) = &mut payload.buf {
                let at = payload.at + payload.got;
                buf[at..at + n].copy_from_slice(&input[..n]);
            }
            payload.got += n;
            stream.consume(n);
            if n < missing {
                return if n > 0 { Next::More } else { Next::Wait };
            }
        }
        match self.payload.take() {
            Some(Payload { request, buf, .. }) => Next::Start(request, buf),
            None => Next::Wait,
        }
    }

    /// Takes the buffer of a write that misses at least `least` bytes, and their place in it, to
    /// receive them there. [`Admission::end_receive`] puts it back.
    #[inline]
    pub(super) fn begin_receive(&mut self, least: usize) -> Option<(IoBuf, Range<usize>)> {
        let payload = self.payload.as_mut().filter(|payload| payload.missing() >= least)?;
        let buf = payload.buf.take()?;
        let end = payload.at + payload.request.length as usize;
        Some((buf, payload.at + payload.got..end))
    }

    /// Puts the buffer of a write back, into which `n` bytes were received.
    pub(super) fn end_receive(&mut self, buf: IoBuf, n: usize) {
        if let Some(payload) = &mut self.payload {
            payload.buf = Some(buf);
            payload.got += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::message;
    use super::*;
    use crate::nbd::handshake::Negotiated;
    use crate::nbd::proto::{Command, TransmissionFlags};
    use crate::nbd::tls::TlsConfig;
    use crate::nbd::{BlockSizes, ExportInfo, ReplyStyle};
    use crate::server::{DATA_AT, Reserve, Work};
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use drystone_core::{Arena, ContextSet};
    use std::sync::Arc;

    struct Fixture {
        admission: Admission,
        stream: Stream,
        pool: Pool,
        reserve: Arc<Reserve>,
    }

    /// The admission of a client with room for `requests_max` requests of 1 MiB in all.
    fn fixture(requests_max: u32) -> Fixture {
        let mut export = ExportInfo::new("vol".to_owned(), 1 << 20);
        export.block_sizes = BlockSizes { min: 1, preferred: 4096, max_payload: 1 << 20 };
        let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH;
        let (style, contexts) = (ReplyStyle::Simple, Vec::new());
        let negotiated = Negotiated { export, flags, style, contexts, no_zeroes: true, tls: false };
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).expect("a context");
        let windows = Windows::new(requests_max, 1 << 20);
        let mut work = Work::new(cx);
        work.reserve = Reserve::new(Arena::new(1 << 20), work.locks.clone());
        Fixture {
            admission: Admission::new(
                Transmission::new(&negotiated),
                DataLayout::new(512),
                windows,
            ),
            stream: Stream::new(),
            pool: work.pool(),
            reserve: work.reserve,
        }
    }

    impl Fixture {
        fn receive(&mut self, bytes: &[u8]) {
            let mut buf = self.stream.begin_receive().expect("all was used");
            buf[..bytes.len()].copy_from_slice(bytes);
            self.stream.end_receive(buf, bytes.len());
        }

        fn next(&mut self) -> Next {
            self.admission.next(&mut self.stream, &mut self.pool, &mut Coalesce::new())
        }

        fn is_paused(&self) -> bool {
            self.admission.is_paused(&self.pool, &self.stream)
        }
    }

    #[test]
    fn a_request_waits_until_its_window_has_room() {
        let mut it = fixture(1);
        let read = message(Command::Read, 0, 512);
        it.receive(&[read.clone(), read].concat());
        let Next::Start(request, None) = it.next() else { panic!("there is room") };
        assert!(!it.is_paused() && matches!(it.next(), Next::Wait));
        assert!(it.is_paused() && !it.admission.is_idle());
        assert_eq!(it.admission.bytes_in_flight(), 512, "the held one does not count");
        let mut costs = Costs::default();
        costs += Cost::of(&request);
        it.admission.end(costs);
        assert!(!it.is_paused() && matches!(it.next(), Next::Start(..)));
        assert!(matches!(it.next(), Next::Wait) && !it.is_paused(), "it waits for bytes");
    }

    #[test]
    fn a_held_request_goes_with_its_connection() {
        let mut it = fixture(1);
        let read = message(Command::Read, 0, 512);
        it.receive(&[read.clone(), read].concat());
        assert!(matches!((it.next(), it.next()), (Next::Start(..), Next::Wait)));
        it.admission.drop_held();
        assert!(!it.is_paused());
    }

    #[test]
    fn a_write_starts_when_its_data_is_whole() {
        let mut it = fixture(4);
        it.receive(&[&message(Command::Write, 100, 1000)[..], &[7; 300]].concat());
        assert!(matches!(it.next(), Next::More) && it.admission.awaits_data());
        assert!(matches!(it.next(), Next::More), "300 of 1000 bytes");
        assert!(matches!(it.next(), Next::Wait) && !it.is_paused());
        assert!(it.admission.begin_receive(701).is_none(), "701 bytes are not missing");
        let (mut buf, range) = it.admission.begin_receive(700).expect("in place");
        assert_eq!(range, DATA_AT + 400..DATA_AT + 1100);
        buf[range].fill(8);
        it.admission.end_receive(buf, 700);
        let Next::Start(request, Some(buf)) = it.next() else { panic!("it is whole") };
        assert_eq!((request.offset, request.length), (100, 1000));
        let data = &buf[DATA_AT + 100..DATA_AT + 1100];
        assert!(data[..300].iter().all(|b| *b == 7) && data[300..].iter().all(|b| *b == 8));
        assert!(!it.admission.awaits_data());
    }

    #[test]
    fn a_write_whose_data_breaks_tls_gives_its_buffer_back() {
        let mut it = fixture(4);
        it.receive(&message(Command::Write, 0, 1000));
        assert!(matches!(it.next(), Next::More) && it.admission.awaits_data());
        it.stream.start_tls(&TlsConfig::of_test()).expect("a session");
        it.receive(&[0xff; 64]);
        assert!(matches!(it.next(), Next::Close) && !it.admission.awaits_data());
        drop(it.pool);
        assert_eq!(it.reserve.idle_count(), 1);
    }

    #[test]
    fn a_refused_request_and_the_end_are_told_apart() {
        let mut it = fixture(4);
        let beyond = message(Command::Read, 1 << 20, 512);
        it.receive(&[beyond, message(Command::Disc, 0, 0)].concat());
        assert!(matches!(it.next(), Next::Refuse(_)));
        assert!(matches!(it.next(), Next::Close));
    }
}
