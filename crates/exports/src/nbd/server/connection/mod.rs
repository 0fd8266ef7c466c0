//! One connection: from greeting to close.
//!
//! ```text
//!              socket                                     connection/mod.rs, ring_io.rs
//!    ┌───────────┬───────────┬──────────────┬──────────────────┐
//!  Life       Stream      Progress     Negotiation  -->   OpenExport
//!  open or    bytes, TLS  what the     handshake      ┌────────┴────────┐
//!  not        Coalesce    client moves             Admission         Service
//!                                                  windows, data     bios, replies
//! ```
//!
//! Invariants:
//! * A connection is dropped only when it has no receive, send or bio in flight.
//! * A connection that is over gives all buffers of its pool back to it.
//! * A connection has a negotiation until its export is open, and none afterwards.

mod admission;
mod life;
mod negotiation;
mod open_export;
mod ring_io;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use self::admission::GO_BYTES;
use self::life::Life;
use self::negotiation::{Negotiation, Next, Parts};
use self::open_export::{OpenExport, Step};
use super::coalesce::Coalesce;
use super::exports::ExportTable;
use super::incoming::{Incoming, ListenerTls};
use super::peer::{Origin, Peer};
use super::progress::Progress;
use super::stream::Stream;
use crate::nbd::handshake::Handshake;
use crate::server::{Client, Pool, SessionId};
use drystone_core::clock::Ns;
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::ring::SendPart;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, Context, IoBuf};
use std::os::fd::OwnedFd;
use std::sync::Arc;

enum Phase {
    Negotiation(Box<Negotiation>),
    Transmission(Box<OpenExport>),
}

/// A connection's place in the server, which does not change.
struct Accepted {
    tls: ListenerTls,
    table: TableId,
    id: SessionId,
    /// Counts the connection for the worker while it lives.
    _assigned: Client,
}

/// The number of an export table among those that a worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableId(pub(super) usize);

/// An operation that a connection wants from its ring next.
pub(super) enum Want {
    Receive(IoBuf, std::ops::Range<usize>),
    /// A receive after a short delay: call [`Connection::end_delay`] then.
    ReceiveLater,
    /// As `Receive`, into the data of a write.
    ReceivePayload(IoBuf, std::ops::Range<usize>),
    Send(Vec<SendPart>),
}

/// A connection.
pub(super) struct Connection {
    life: Life,
    /// Dropped before the phase: its share leaves the ledger while device and group still belong to
    /// the client.
    pool: Pool,
    phase: Phase,
    stream: Stream,
    coalesce: Coalesce,
    progress: Progress,
    accepted: Accepted,
    peer: Peer,
}

impl Connection {
    /// A connection that was accepted, and greets its client.
    pub(super) fn new(
        incoming: Incoming,
        id: SessionId,
        table: TableId,
        pool: Pool,
        now: Ns,
    ) -> Self {
        let Incoming { socket, tls, assigned: _assigned, .. } = incoming;
        let mut connection = Connection {
            peer: Peer::of(&socket),
            life: Life::new(socket),
            phase: Phase::Negotiation(Box::new(Negotiation::new(&tls))),
            stream: Stream::new(),
            pool,
            coalesce: Coalesce::new(),
            progress: Progress::new(now),
            accepted: Accepted { tls, table, id, _assigned },
        };
        connection.stream.queue_bytes(&mut connection.pool, &Handshake::greeting());
        connection
    }

    #[inline]
    fn export(&self) -> Option<&OpenExport> {
        match &self.phase {
            Phase::Transmission(export) => Some(export),
            Phase::Negotiation(_) => None,
        }
    }

    #[inline]
    fn export_mut(&mut self) -> Option<&mut OpenExport> {
        match &mut self.phase {
            Phase::Transmission(export) => Some(export),
            Phase::Negotiation(_) => None,
        }
    }

    // --- what the worker asks

    pub(super) fn fd(&self) -> i32 {
        self.life.fd()
    }

    /// The export table of its listener.
    pub(super) fn table(&self) -> TableId {
        self.accepted.table
    }

    /// The device that the client chose, once it has.
    pub(super) fn device(&self) -> Option<ChannelId> {
        self.export().map(OpenExport::device)
    }

    /// True until the client has chosen an export.
    #[inline]
    pub(super) fn in_handshake(&self) -> bool {
        self.export().is_none()
    }

    /// Where it comes from, and whether the client has sent anything.
    pub(super) fn standing(&self) -> (Origin, bool) {
        (self.peer.origin(), self.progress.has_spoken())
    }

    /// The time at which the connection last brought anything.
    pub(super) fn active_ns(&self) -> Ns {
        self.progress.active_ns()
    }

    /// Notes that the connection has brought something.
    #[inline]
    pub(super) fn note_activity(&mut self, now: Ns) {
        self.progress.note_activity(now);
    }

    /// True when nothing refers to the connection and it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        let is_busy = self.stream.is_busy() || self.coalesce.is_waiting();
        self.life.is_dead() && !is_busy && !self.has_bios()
    }

    /// True while requests of it are with a device.
    pub(super) fn has_bios(&self) -> bool {
        self.export().is_some_and(OpenExport::has_bios)
    }

    /// True while it waits for memory; its worker is woken when there is some.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.pool.waits()
    }

    /// True while its requests wait for other writes of the same blocks; its worker is woken when
    /// one may go on.
    pub(super) fn waits_for_range(&self) -> bool {
        self.export().is_some_and(|export| export.service.waits_for_range())
    }

    /// True if one of these requests may go on.
    pub(super) fn has_range(&self) -> bool {
        self.export().is_some_and(|export| export.service.has_range())
    }

    /// True if it has memory that others may want: then sweeps include it.
    pub(super) fn has_share(&self) -> bool {
        self.pool.has_share()
    }

    // --- the end

    /// Reads no more, and ends its requests in flight soon, because the server stops.
    pub(super) fn stop(&mut self) {
        if let Some(export) = self.export_mut() {
            export.service.stop();
        }
        self.life.drain();
    }

    /// Closes as soon as nothing refers to the connection.
    pub(super) fn kill(&mut self) {
        self.life.kill();
    }

    /// Ends a connection that is over, and gives its buffers back to their lender. Returns the
    /// socket, to be closed.
    pub(super) fn into_socket(mut self) -> OwnedFd {
        self.stream.give_back(&mut self.pool);
        if let Phase::Transmission(export) = &mut self.phase {
            export.admission.give_back(&mut self.pool);
        }
        self.life.into_socket()
    }

    /// Closes a connection that was silent for too long, unless its own I/O takes that long. True
    /// if it stays open.
    pub(super) fn end_idle(&mut self) -> bool {
        let export = self.export();
        if export.is_none_or(|export| export.admission.is_idle()) {
            self.life.drain();
        } else if self.owes() {
            self.life.kill();
        }
        self.life.is_open()
    }

    /// True while the client does not take its replies, or does not send the data it announced.
    fn owes(&self) -> bool {
        self.stream.is_sending() || self.awaits_data()
    }

    fn awaits_data(&self) -> bool {
        self.export().is_some_and(|export| export.admission.awaits_data())
    }

    /// True once, if the client is gone and a device still has requests of it: nobody needs their
    /// results.
    pub(super) fn begin_withdrawal(&mut self) -> bool {
        let has_bios = self.has_bios();
        self.life.begin_withdrawal(has_bios)
    }

    /// The `user_data` of long zeroing bios, if the client is gone or the server stops: the rest of
    /// them is cancelled. Checked whenever a bio has ended, because further ones may follow.
    pub(super) fn cut_short(&self) -> Vec<u64> {
        let is_cut = |export: &&OpenExport| self.life.is_dead() || export.service.is_stopping();
        let export = self.export().filter(is_cut);
        export.map_or(Vec::new(), |export| export.service.long_zeroing().collect())
    }

    /// A periodic sweep: frees memory that was unused since the last sweep. True if the client was
    /// disconnected: in `stalls_max` sweeps it took too little of its replies, or sent too little
    /// of its data, while others waited for its memory.
    pub(super) fn sweep(&mut self, stalls_max: u64) -> bool {
        let has_moved = self.progress.take_moved();
        self.pool.sweep_pipes();
        // If others want its memory, a client that sends a byte now and then keeps no idle buffers
        // either.
        if !has_moved || self.pool.is_wanted_by_others() {
            self.pool.shrink();
        }
        let keeps = self.owes() && self.pool.has_share() && !self.life.is_dead();
        let is_over = self.progress.sweep(keeps && self.pool.is_wanted_by_others(), stalls_max);
        if is_over {
            self.life.kill();
        }
        is_over
    }

    // --- requests

    /// Takes back a bio of this connection.
    #[inline]
    pub(super) fn completed(&mut self, bio: Box<Bio>) {
        if let Phase::Transmission(export) = &mut self.phase {
            export.service.completed(bio, &mut self.pool, &mut self.stream);
        }
    }

    /// A query to ask the device, if one is due: its answer comes to [`Connection::answered`].
    pub(super) fn next_query(&mut self) -> Option<ExtentQuery> {
        let is_dead = self.life.is_dead();
        let service = &mut self.export_mut()?.service;
        if is_dead {
            service.drop_queries();
            return None;
        }
        service.begin_query()
    }

    /// Takes the device's answer to the query.
    pub(super) fn answered(&mut self, found: &[Extent]) {
        if let Phase::Transmission(export) = &mut self.phase {
            export.service.end_query(found, &mut self.pool, &mut self.stream);
        }
    }

    /// True at a bound, where no new request is taken.
    #[inline]
    fn is_paused(&self) -> bool {
        match &self.phase {
            Phase::Negotiation(negotiation) => negotiation.owes_reply(&self.stream),
            Phase::Transmission(export) => export.admission.is_paused(&self.pool, &self.stream),
        }
    }

    #[inline]
    fn bytes_in_flight(&self) -> u64 {
        self.export().map_or(0, |export| export.admission.bytes_in_flight())
    }

    /// Processes received bytes: negotiates, starts requests. Bios go to `bios`. True if there is
    /// more to do once these are submitted.
    pub(super) fn advance(
        &mut self,
        cx: &mut Context,
        locks: &Arc<LockCounters>,
        table: &ExportTable,
        bios: &mut BioList,
    ) -> bool {
        self.go_on(bios);
        let before = self.bytes_in_flight();
        while self.life.is_open() && !self.is_paused() {
            if self.bytes_in_flight() - before >= GO_BYTES {
                return true;
            }
            let step = match &mut self.phase {
                Phase::Negotiation(_) => self.negotiate(cx, locks, table),
                Phase::Transmission(export) => {
                    let Connection { stream, pool, coalesce, .. } = self;
                    export.take_step(stream, pool, coalesce, bios)
                }
            };
            match step {
                Step::More => {}
                Step::Wait => break,
                Step::Close => self.life.drain(),
            }
        }
        false
    }

    /// Continues requests that have begun, or drops those whose client is gone.
    #[inline]
    fn go_on(&mut self, bios: &mut BioList) {
        let is_open = self.life.is_open();
        if !is_open {
            self.pool.wait_no_more();
        }
        let Phase::Transmission(export) = &mut self.phase else { return };
        if !is_open {
            export.admission.drop_held();
        }
        if self.life.is_dead() {
            export.service.give_up(&mut self.pool);
        } else {
            export.service.go_on(bios);
        }
    }

    /// Takes one step of the negotiation.
    fn negotiate(
        &mut self,
        cx: &mut Context,
        locks: &Arc<LockCounters>,
        table: &ExportTable,
    ) -> Step {
        let Phase::Negotiation(negotiation) = &mut self.phase else { return Step::Wait };
        let Connection { stream, pool, peer, accepted, .. } = self;
        let tls = &accepted.tls;
        match negotiation.next(Parts { stream, pool, peer, tls, table, locks }) {
            Next::More => return Step::More,
            Next::Wait => {}
            Next::Chosen(negotiated, permit) => {
                let (chosen, client) = ((&*negotiated, permit), (accepted.id, &*peer));
                let is_plain = stream.is_plain();
                let export = OpenExport::open(chosen, client, pool, cx, (table, locks), is_plain);
                let Some(export) = export else {
                    self.life.kill();
                    return Step::Wait;
                };
                stream.make_roomy();
                self.phase = Phase::Transmission(Box::new(export));
                return Step::More;
            }
            Next::Drain { wakes: true } => self.life.drain(),
            Next::Drain { wakes: false } => self.life.stop_reading(),
            Next::Kill => self.life.kill(),
        }
        Step::Wait
    }
}
