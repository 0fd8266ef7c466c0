//! One connection: from greeting to close.
//!
//! Invariants:
//! * A connection is dropped only when no receive, no send and no bio of it is under way.
//! * In the handshake nothing is parsed or received while a reply is owed, so that no client makes
//!   the server keep more than one.
//! * `windows` counts requests and their bytes from when they were taken until their reply was
//!   sent. One that finds no room is `held`, as is one for whose data there is no memory; while it
//!   is nothing more is parsed or received, so a client that does not read its replies costs no
//!   more than its windows.
//! * Memory for a request's data is asked for once its window has room, just before it is taken.
//! * Once it is draining nothing more is read; once it is dead nothing more is sent either.

mod handshake;
mod ring_io;
mod transmission;

use super::coalesce::Coalesce;
use super::exports::ExportTable;
use super::incoming::{Incoming, ListenerTls};
use super::limits::Permit;
use super::peer::{Origin, Peer};
use super::progress::Progress;
use super::service::Service;
use super::stream::Stream;
use super::window::{Cost, Windows};
use crate::nbd::handshake::Handshake;
use crate::nbd::request::{Refusal, Request};
use crate::nbd::transmission::Transmission;
use crate::server::{Client, Pool};
use drystone_core::clock::Ns;
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::ring::SendPart;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, Context, DevIndex, IoBuf};
use drystone_throttle::Member;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Bytes that are asked for in one go before they are sent on their way: what fits a core's
/// cache, so that data copied there is still there when the socket takes it.
const GO_BYTES: u64 = 1 << 20;

/// Requests of a window, at most, whose writes cost nothing beside those of others (32 bytes each);
/// beyond that they take a lock.
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

/// An operation that a connection wants from its ring next.
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
    permit: Option<Permit>,
    _dealt: Client,
    /// Number of its export table among those that its worker knows.
    table: usize,
    number: u32,
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
    progress: Progress,
    /// TLS was told that nothing more comes.
    goodbye: bool,
    /// Bios that waited for a limit when the client went have been withdrawn.
    withdrawn: bool,
    /// When the connection last brought anything.
    active_ns: Ns,
}

impl Connection {
    pub(super) fn new(incoming: Incoming, number: u32, table: usize, pool: Pool, now: Ns) -> Self {
        let settings = incoming.table.settings();
        let windows = Windows::new(settings.max_in_flight, settings.max_bytes_in_flight);
        let mut connection = Connection {
            peer: Peer { origin: Origin::of(&incoming.socket), names: None },
            // A TCP socket too: the type only stands for a socket that can be shut down.
            socket: UnixStream::from(incoming.socket),
            has_spoken: false,
            permit: None,
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
            progress: Progress::new(),
            goodbye: false,
            withdrawn: false,
            active_ns: now,
        };
        connection.stream.queue_bytes(&mut connection.pool, &Handshake::greeting());
        connection
    }

    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// The number of its export table.
    pub(super) fn table(&self) -> usize {
        self.table
    }

    /// Notes that the connection has brought something.
    #[inline]
    pub(super) fn note_activity(&mut self, now: Ns) {
        self.active_ns = now;
    }

    /// The time at which the connection last brought anything.
    pub(super) fn active_ns(&self) -> Ns {
        self.active_ns
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

    /// Once, when the client is gone and requests of it are with a device: nobody wants them any
    /// more.
    pub(super) fn withdraws(&mut self) -> bool {
        let withdraws = self.life == Life::Dead && self.has_bios() && !self.withdrawn;
        self.withdrawn |= withdraws;
        withdraws
    }

    /// The `user_data` of bios that zero for long, when the client is gone or the server stops:
    /// what is left of them is not done. Others may come to their device whenever one has ended.
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

    /// Requests of it wait for others that write the same blocks; its worker is woken when one may
    /// go on.
    pub(super) fn waits_for_range(&self) -> bool {
        matches!(&self.phase, Some(Phase::Transmission(_, service)) if service.waits_for_range())
    }

    /// True if one of them may.
    pub(super) fn has_range(&self) -> bool {
        matches!(&self.phase, Some(Phase::Transmission(_, service)) if service.has_range())
    }

    /// True if it has memory that others may want, so that it is swept.
    pub(super) fn has_share(&self) -> bool {
        self.pool.has_share()
    }

    /// Now and then: let go of memory that was not used since. True if the client was cut off
    /// because it has taken too little of its replies, or sent too little of its data, for
    /// `stalls_max` times while others waited for the memory that it has.
    pub(super) fn sweep(&mut self, stalls_max: u64) -> bool {
        let has_moved = self.progress.take_moved();
        // A client that sends a byte now and then keeps nothing idle either, if others want that.
        if !has_moved || self.pool.is_wanted_by_others() {
            self.pool.shrink();
        }
        let owes = self.stream.sending || self.payload.is_some();
        let keeps = owes && self.pool.has_share() && self.life != Life::Dead;
        let is_over = self.progress.sweep(keeps && self.pool.is_wanted_by_others(), stalls_max);
        if is_over {
            self.kill();
        }
        is_over
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
}
