//! One connection: from greeting to close.
//!
//! Invariants:
//! * A connection is dropped only when no receive, no send and no bio of it is under way.
//! * In the handshake nothing is parsed or received while a reply is owed, so that no client makes the
//!   server keep more than one.
//! * `windows` counts requests and their bytes from when they were taken until their reply was
//!   sent. One that finds no room is `held`, as is one for whose data there is no memory; while it is nothing
//!   more is parsed or received, so a client that does not read its replies costs no more than its windows.
//! * Memory for a request's data is asked for once its window has room, just before it is taken.
//! * Once it is draining nothing more is read; once it is dead nothing more is sent either.

use super::coalesce::Coalesce;
use super::exports::ExportTable;
use super::places::{Origin, Peer, Place};
use super::service::{Service, queue_refusal};
use super::stream::{Sent, Stream};
use super::window::{Cost, Windows};
use super::{Incoming, ListenerTls};
use crate::nbd::handshake::{Event, Handshake, Negotiated, OUTPUT_MAX_BYTES};
use crate::nbd::request::{Refusal, Request};
use crate::nbd::tls::PeerNames;
use crate::nbd::transmission::{Item, Transmission};
use crate::server::{Client, Pool};
use drystone_core::clock::Ns;
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::ring::SendPart;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, Context, DevIndex, IoBuf};
use drystone_throttle::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Payload that is still missing at least this many bytes is received in place.
const DIRECT_BYTES: usize = 16 << 10;

/// Bytes that are asked for in one go before they are sent on their way: what fits a core's
/// cache, so that data copied there is still there when the socket takes it.
const GO_BYTES: u64 = 1 << 20;

/// Whoever takes and sends less of what it owes, in the time after which it is cut off, keeps memory from others as
/// if it did nothing: so much gives something back to the budget.
const ENOUGH_BYTES: u64 = 1 << 20;

/// Requests of a window, at most, whose writes cost nothing beside those of others (32 bytes each); beyond that they
/// take a lock.
const PLACES_MAX: u32 = 512;

/// How far a connection's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Life {
    Open,
    /// Finish what is in flight, send it, close.
    Draining,
    /// The socket is of no use: close as soon as nothing refers to the connection.
    Dead,
}

enum Phase {
    Handshake(Box<Handshake>),
    /// The TLS handshake goes on; the NBD handshake waits.
    Tls(Box<Handshake>),
    Transmission(Box<Transmission>, Box<Service>),
}

/// A write whose data is still arriving.
struct Payload {
    request: Request,
    /// `None` when memory was short: the data is skipped.
    buf: Option<IoBuf>,
    /// Where the data begins in it.
    at: usize,
    got: usize,
}

/// A message that was parsed.
enum Taken {
    Request(Request),
    Refused(Refusal),
}

impl Taken {
    fn cost(&self) -> Cost {
        match self {
            Taken::Request(request) => Cost::of(request),
            Taken::Refused(_) => Cost::REFUSAL,
        }
    }
}

/// What a connection wants from its ring next.
pub(super) enum Want {
    Receive(IoBuf, std::ops::Range<usize>),
    /// A receive after a moment: call [`Connection::delay_over`] then.
    ReceiveLater,
    /// As `Receive`, into the data of a write.
    ReceivePayload(IoBuf, std::ops::Range<usize>),
    Send(Vec<SendPart>),
}

/// A connection.
pub(super) struct Connection {
    socket: UnixStream,
    tls: ListenerTls,
    peer: Peer,
    /// The client has sent something.
    has_spoken: bool,
    /// Among the connections of its listener that have chosen an export.
    place: Option<Place>,
    _dealt: Client,
    /// Number of its export table among those that its worker knows.
    pub(super) table: usize,
    number: usize,
    life: Life,
    phase: Option<Phase>,
    stream: Stream,
    pool: Pool,
    payload: Option<Payload>,
    coalesce: Coalesce,
    /// The next receive waits, and has been announced.
    delaying: bool,
    device: Option<DevIndex>,
    /// The export counts us.
    client: Option<Client>,
    /// The throttle group of our bios is not removed while this lives.
    member: Option<Member>,
    windows: Windows,
    /// It was parsed, and waits until its window has room, and the pool memory.
    held: Option<Taken>,
    /// Bytes came or went since the last sweep.
    moved: bool,
    /// Sweeps since the client last took or sent [`ENOUGH_BYTES`], while it owed that and others waited for memory.
    stalls: u64,
    /// What it has taken and sent in these.
    moved_bytes: u64,
    /// TLS was told that nothing more comes.
    goodbye: bool,
    /// What was waiting for a limit when the client went has been withdrawn.
    withdrawn: bool,
    /// When the connection last brought anything.
    pub(super) active_ns: Ns,
    /// When it is to be looked at for having taken too long; 0 is never.
    pub(super) deadline_ns: Ns,
}

impl Connection {
    pub(super) fn new(
        incoming: Incoming,
        number: usize,
        table: usize,
        pool: Pool,
        now: Ns,
    ) -> Self {
        let settings = incoming.table.settings();
        let windows = Windows::new(settings.max_in_flight, settings.max_bytes_in_flight);
        let mut connection = Connection {
            peer: Peer { origin: Origin::of(&incoming.socket), names: None },
            // A TCP socket too: the type only stands for a socket that can be shut down.
            socket: UnixStream::from(incoming.socket),
            has_spoken: false,
            place: None,
            _dealt: incoming.dealt,
            table,
            number,
            life: Life::Open,
            phase: Some(Phase::Handshake(Box::new(Handshake::new(incoming.tls.policy)))),
            tls: incoming.tls,
            stream: Stream::new(),
            pool,
            payload: None,
            coalesce: Coalesce::new(),
            delaying: false,
            device: None,
            client: None,
            member: None,
            windows,
            held: None,
            moved: true,
            stalls: 0,
            moved_bytes: 0,
            goodbye: false,
            withdrawn: false,
            active_ns: now,
            deadline_ns: 0,
        };
        connection.stream.queue_bytes(&mut connection.pool, &Handshake::greeting());
        connection
    }

    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// The device that the client chose, once it has.
    pub(super) fn device(&self) -> Option<DevIndex> {
        self.device
    }

    /// True until the client has chosen an export.
    pub(super) fn in_handshake(&self) -> bool {
        self.device.is_none()
    }

    /// Where it comes from, and whether the client has sent anything.
    pub(super) fn standing(&self) -> (Origin, bool) {
        (self.peer.origin, self.has_spoken)
    }

    /// True when nothing refers to the connection and it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        let busy = self.stream.receiving || self.stream.sending || self.delaying;
        self.life == Life::Dead && !busy && !self.has_bios()
    }

    /// Once, when the client is gone and requests of it are with a device: nobody wants them any more.
    pub(super) fn withdraws(&mut self) -> bool {
        let withdraws = self.life == Life::Dead && self.has_bios() && !self.withdrawn;
        self.withdrawn |= withdraws;
        withdraws
    }

    /// The `user_data` of bios that zero for long, when the client is gone or the server stops: what is left of
    /// them is not done. Others may come to their device whenever one has ended.
    pub(super) fn cut_short(&self) -> Vec<u64> {
        match &self.phase {
            Some(Phase::Transmission(_, service))
                if self.life == Life::Dead || service.is_stopping() =>
            {
                service.long_zeroing().collect()
            }
            _ => Vec::new(),
        }
    }

    /// True while requests of it are with a device.
    pub(super) fn has_bios(&self) -> bool {
        match &self.phase {
            Some(Phase::Transmission(_, service)) => service.in_flight() > 0,
            _ => false,
        }
    }

    /// The socket, to be closed.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket.into()
    }

    /// True at a bound: nothing new is taken. A write whose data is arriving is not new.
    fn is_paused(&self) -> bool {
        let has_room = |taken: &Taken| self.windows.has_room(taken.cost()) && !self.pool.waits();
        let holds = self.held.as_ref().is_some_and(|taken| !has_room(taken));
        let bound = holds || self.stream.unsent_bytes() >= GO_BYTES;
        bound && self.payload.is_none() || self.owes_reply()
    }

    /// True while a reply of the handshake is not sent.
    fn owes_reply(&self) -> bool {
        let owing = self.stream.sending || self.stream.wants_send();
        owing && matches!(self.phase, Some(Phase::Handshake(_)))
    }

    /// Read no more; finish what is in flight.
    pub(super) fn drain(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Draining;
            // Wakes a receive that waits for the client, which may never send again.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
    }

    /// The server stops: read no more, and end what is in flight soon.
    pub(super) fn stop(&mut self) {
        if let Some(Phase::Transmission(_, service)) = &mut self.phase {
            service.stop();
        }
        self.drain();
    }

    /// The socket failed, or the client broke the protocol beyond repair.
    pub(super) fn kill(&mut self) {
        self.life = Life::Dead;
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Nothing was heard of the client for too long. Close, unless its I/O is what takes long;
    /// then true.
    pub(super) fn end_idle(&mut self) -> bool {
        if self.windows.is_idle() && self.held.is_none() {
            self.drain();
        } else if self.stream.sending || self.payload.is_some() {
            // It does not take its replies, or does not send the data it announced.
            self.kill();
        }
        self.life == Life::Open
    }

    /// It waits for memory; its worker is woken when there is some.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.pool.waits()
    }

    /// Requests of it wait for others that write the same blocks; its worker is woken when one may go on.
    pub(super) fn waits_for_range(&self) -> bool {
        matches!(&self.phase, Some(Phase::Transmission(_, service)) if service.waits_for_range())
    }

    /// One of them may.
    pub(super) fn has_range(&self) -> bool {
        matches!(&self.phase, Some(Phase::Transmission(_, service)) if service.has_range())
    }

    /// It is to be swept: it has memory that others may want.
    pub(super) fn has_share(&self) -> bool {
        self.pool.has_share()
    }

    /// Now and then: let go of memory that was not used since. True if the client was cut off because it has
    /// taken too little of its replies, or sent too little of its data, for `stalls_max` times while others waited
    /// for the memory that it has.
    pub(super) fn sweep(&mut self, stalls_max: u64) -> bool {
        let moved = std::mem::take(&mut self.moved);
        // One that sends a byte now and then keeps nothing idle either, if others want that.
        if !moved || self.pool.is_wanted_by_others() {
            self.pool.shrink();
        }
        let owes = self.stream.sending || self.payload.is_some();
        let stalls = owes && self.pool.has_share() && self.life != Life::Dead;
        let is_wanted = stalls && self.pool.is_wanted_by_others();
        self.stalls = match self.moved_bytes < ENOUGH_BYTES && is_wanted {
            true => self.stalls + 1,
            false => 0,
        };
        if self.stalls == 0 {
            self.moved_bytes = 0;
        }
        let over = self.stalls > 0 && self.stalls >= stalls_max;
        if over {
            self.kill();
        }
        over
    }

    /// The client has taken or sent so many bytes of what it owed, if any.
    fn moved(&mut self, bytes: Option<i32>) {
        self.moved = true;
        self.moved_bytes += bytes.map_or(0, |bytes| bytes.max(0) as u64);
    }

    /// A receive ended: with so many bytes, or an error if not positive; `None` if it was cut short.
    pub(super) fn received(&mut self, buf: IoBuf, result: Option<i32>) {
        self.stream.receiving = false;
        self.coalesce.receive();
        self.has_spoken |= result.is_some_and(|result| result > 0);
        self.moved(result.filter(|_| self.payload.is_some()));
        self.stream.received(buf, result.unwrap_or(0).max(0) as usize);
        if result.is_some_and(|result| result <= 0) {
            self.end_of_input();
        }
    }

    /// A receive into a write's data ended; as above.
    pub(super) fn received_payload(&mut self, buf: IoBuf, result: Option<i32>) {
        self.stream.receiving = false;
        self.moved(result);
        if let Some(payload) = &mut self.payload {
            payload.buf = Some(buf);
            payload.got += result.unwrap_or(0).max(0) as usize;
        }
        if result.is_some_and(|result| result <= 0) {
            self.end_of_input();
        }
    }

    /// The client sends no more. What it asked for is still done, and its replies are sent if
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

    /// A send ended; as above. What is left to be sent.
    pub(super) fn sent(
        &mut self,
        parts: Vec<SendPart>,
        result: Option<i32>,
    ) -> Option<Vec<SendPart>> {
        self.moved(result);
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

    /// A bio of this connection came back.
    pub(super) fn completed(&mut self, bio: Box<Bio>) {
        if let Some(Phase::Transmission(_, service)) = &mut self.phase {
            service.completed(bio, &mut self.pool, &mut self.stream);
        }
    }

    /// A query to ask the device, if one is due: its answer comes to [`Connection::answered`].
    pub(super) fn next_query(&mut self) -> Option<ExtentQuery> {
        let Some(Phase::Transmission(_, service)) = &mut self.phase else { return None };
        if self.life == Life::Dead {
            service.drop_queries();
            return None;
        }
        service.begin_query()
    }

    /// The device said which ranges hold data.
    pub(super) fn answered(&mut self, found: &[Extent]) {
        if let Some(Phase::Transmission(_, service)) = &mut self.phase {
            service.end_query(found, &mut self.pool, &mut self.stream);
        }
    }

    /// Use what was received: negotiate, start requests. Bios go to `bios`. True if there is more
    /// to do once these are on their way.
    pub(super) fn advance(
        &mut self,
        cx: &mut Context,
        locks: &Arc<LockCounters>,
        table: &ExportTable,
        bios: &mut BioList,
    ) -> bool {
        if self.life != Life::Open {
            self.held = None;
            self.pool.wait_no_more();
        }
        if let Some(Phase::Transmission(_, service)) = &mut self.phase {
            match self.life {
                Life::Dead => service.give_up(&mut self.pool),
                _ => service.go_on(bios),
            }
        }
        let before = self.windows.bytes();
        while self.life == Life::Open && !self.is_paused() {
            if self.windows.bytes() - before >= GO_BYTES {
                return true;
            }
            let used = match self.phase.take() {
                Some(Phase::Handshake(handshake)) => self.negotiate(handshake, cx, locks, table),
                Some(Phase::Tls(handshake)) => self.negotiate_tls(handshake),
                Some(Phase::Transmission(transmission, service)) => {
                    self.transmit(transmission, service, bios)
                }
                None => false,
            };
            if !used {
                break;
            }
        }
        false
    }

    /// One step of the handshake. True if there may be another.
    fn negotiate(
        &mut self,
        mut handshake: Box<Handshake>,
        cx: &mut Context,
        locks: &Arc<LockCounters>,
        table: &ExportTable,
    ) -> bool {
        let tls = self.stream.tls().is_some();
        let mut out = Vec::new();
        if out.try_reserve_exact(OUTPUT_MAX_BYTES).is_err() {
            self.phase = Some(Phase::Handshake(handshake));
            self.kill();
            return false;
        }
        let view = table.for_client(&self.peer, tls, locks);
        let step = match self.stream.input() {
            Ok(input) => handshake.advance(input, &view, &mut out),
            Err(_) => {
                self.phase = Some(Phase::Handshake(handshake));
                self.life = Life::Draining;
                return false;
            }
        };
        self.stream.consume(step.consumed);
        self.stream.queue_bytes(&mut self.pool, &out);
        match step.event {
            Event::Replied => {}
            Event::NeedMore => {
                self.phase = Some(Phase::Handshake(handshake));
                return step.consumed > 0 && self.stream.may_have_more();
            }
            Event::StartTls => return self.begin_tls(handshake),
            Event::Transmission(negotiated) => {
                self.place = view.into_place();
                return self.begin_transmission(*negotiated, cx, locks, table);
            }
            Event::Close(_) => self.drain(),
        }
        self.phase = Some(Phase::Handshake(handshake));
        true
    }

    fn begin_tls(&mut self, handshake: Box<Handshake>) -> bool {
        // The reply that allows it goes out in the clear: it must leave before the session
        // starts, so it is sent by itself (see `wants`).
        self.phase = Some(Phase::Tls(handshake));
        false
    }

    /// Go on with the TLS handshake.
    fn negotiate_tls(&mut self, mut handshake: Box<Handshake>) -> bool {
        if self.stream.tls().is_none() {
            if self.stream.sending || self.stream.wants_send() {
                self.phase = Some(Phase::Tls(handshake));
                return false;
            }
            let started = self.tls.config.as_ref().map(|config| self.stream.start_tls(config));
            if !matches!(started, Some(Ok(()))) {
                self.kill();
                return false;
            }
        }
        if self.stream.input().is_err() {
            // The alert in the session's output still goes out.
            self.phase = Some(Phase::Tls(handshake));
            self.drain();
            return false;
        }
        let done = self.stream.tls().is_some_and(|tls| !tls.is_handshaking());
        if done {
            self.peer.names = self.stream.tls().and_then(|tls| tls.peer_names());
            handshake.tls_established();
            self.phase = Some(Phase::Handshake(handshake));
        } else {
            self.phase = Some(Phase::Tls(handshake));
        }
        done
    }

    fn begin_transmission(
        &mut self,
        negotiated: Negotiated,
        cx: &mut Context,
        locks: &Arc<LockCounters>,
        table: &ExportTable,
    ) -> bool {
        let number = table.index_of(&negotiated.export.name);
        let opened = number.map(|number| {
            let volume = &table.exports()[number].volume;
            self.pool.priority = volume.priority;
            let names = self.peer.names.iter().flat_map(PeerNames::all);
            let member = volume.membership.of(names, || self.peer.origin.uid());
            let served = (volume.device.clone(), volume.clients.clone());
            // An operation may be under way for each request of both windows.
            let places = 2 * table.settings().max_in_flight.min(PLACES_MAX) as usize;
            let range_locks = volume.write_lock.join(places, cx.handle().clone(), locks.clone());
            (volume.clients.enter(), member, cx.open(&volume.device), (served, range_locks))
        });
        let Some((client, member, Ok(index), (served, range_locks))) = opened else {
            self.kill();
            return false;
        };
        self.client = Some(client);
        self.pool.join(&served.0, member.id());
        self.member = Some(member);
        let ids = negotiated.contexts.iter().map(|c| c.id).collect();
        let service =
            Box::new(Service::new(served, range_locks, negotiated.style, ids, self.number));
        self.device = Some(index);
        self.stream.make_roomy();
        self.phase = Some(Phase::Transmission(Box::new(Transmission::new(&negotiated)), service));
        true
    }

    /// Parse and start one request, or take more of a write's data. True if there may be more.
    #[inline]
    fn transmit(
        &mut self,
        mut transmission: Box<Transmission>,
        mut service: Box<Service>,
        bios: &mut BioList,
    ) -> bool {
        let more = match self.payload.take() {
            Some(payload) => self.take_payload(payload, &mut service, bios),
            None => match self.held.take() {
                Some(taken) => self.begin(taken, &mut service, bios),
                None => self.next_request(&mut transmission, &mut service, bios),
            },
        };
        self.phase = Some(Phase::Transmission(transmission, service));
        more
    }

    #[inline]
    fn next_request(
        &mut self,
        transmission: &mut Transmission,
        service: &mut Service,
        bios: &mut BioList,
    ) -> bool {
        let Ok(input) = self.stream.input() else {
            self.drain();
            return false;
        };
        let parsed = transmission.next(input);
        self.stream.consume(parsed.consumed);
        match parsed.item {
            Item::NeedMore => parsed.consumed > 0 && self.stream.may_have_more(),
            Item::Request(request) => {
                self.coalesce.request();
                self.begin(Taken::Request(request), service, bios)
            }
            Item::Refused(refusal) => self.begin(Taken::Refused(refusal), service, bios),
            Item::Close(_) => {
                self.drain();
                true
            }
        }
    }

    /// Begin with what was parsed if its window has room, else hold it. True if there may be more.
    #[inline]
    fn begin(&mut self, taken: Taken, service: &mut Service, bios: &mut BioList) -> bool {
        let cost = taken.cost();
        let bytes = match &taken {
            Taken::Request(request) => service.buffer_bytes(request),
            Taken::Refused(_) => 0,
        };
        if !self.windows.has_room(cost) || bytes > 0 && !self.pool.reserve(bytes) {
            self.held = Some(taken);
            return false;
        }
        self.windows.begin(cost);
        match taken {
            Taken::Request(request) => {
                if request.payload_bytes() > 0 {
                    let (buf, at) = (self.pool.take(bytes), service.payload_at(&request));
                    self.payload = Some(Payload { request, buf, at, got: 0 });
                } else {
                    service.start(request, None, &mut self.pool, &mut self.stream, bios);
                }
            }
            Taken::Refused(refusal) => {
                queue_refusal(service.style(), &refusal, &mut self.pool, &mut self.stream);
            }
        }
        true
    }

    /// Move received bytes into a write's data; start the write when it is whole.
    #[inline]
    fn take_payload(
        &mut self,
        mut payload: Payload,
        service: &mut Service,
        bios: &mut BioList,
    ) -> bool {
        let wanted = payload.request.length as usize - payload.got;
        if wanted > 0 {
            let Ok(input) = self.stream.input() else {
                self.drain();
                return false;
            };
            let n = input.len().min(wanted);
            if let Some(buf) = &mut payload.buf {
                let at = payload.at + payload.got;
                buf[at..at + n].copy_from_slice(&input[..n]);
            }
            payload.got += n;
            self.stream.consume(n);
            if n < wanted {
                self.payload = Some(payload);
                return n > 0;
            }
        }
        service.start(payload.request, payload.buf, &mut self.pool, &mut self.stream, bios);
        true
    }

    /// What to start on the ring now, if anything. Call until it wants nothing more.
    pub(super) fn wants(&mut self) -> Option<Want> {
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
                self.begin_owing();
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

    /// The client is owed something from now on, and could take nothing before.
    fn begin_owing(&mut self) {
        self.moved = true;
        if self.payload.is_none() {
            self.moved_bytes = ENOUGH_BYTES;
        }
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

    /// The moment is over for which the next receive waited.
    pub(super) fn delay_over(&mut self) -> Option<Want> {
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

    /// Draining, with nothing to send: close once nothing is in flight.
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
