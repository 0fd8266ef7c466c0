//! The export that a client has chosen, from the end of its handshake to the connection's close.
//!
//! Invariants:
//! * The device is open in the worker's context, and the volume and the listener count the client,
//!   for as long as this lives.
//! * The throttle group of the client's bios is not removed while this lives.

use super::admission::{Admission, Next};
use crate::nbd::handshake::Negotiated;
use crate::nbd::server::coalesce::Coalesce;
use crate::nbd::server::exports::ExportTable;
use crate::nbd::server::limits::Permit;
use crate::nbd::server::peer::Peer;
use crate::nbd::server::service::{Service, queue_refusal};
use crate::nbd::server::stream::Stream;
use crate::nbd::server::window::Windows;
use crate::nbd::transmission::Transmission;
use crate::server::{Client, Pool, SessionId};
use drystone_core::sync::LockCounters;
use drystone_core::{BioList, ChannelId, Context};
use drystone_throttle::Member;
use std::sync::Arc;

/// The most requests of a window that have slots of the range lock (32 bytes each); the writes of
/// further ones take a lock.
const PLACES_MAX: u32 = 512;

/// The result of one step.
pub(super) enum Step {
    /// Another step may be possible.
    More,
    /// The next step needs bytes, room in a window, or memory.
    Wait,
    /// The client sends no more requests.
    Close,
}

/// An export in use by a client.
pub(super) struct OpenExport {
    pub(super) admission: Admission,
    pub(super) service: Service,
    device: ChannelId,
    _client: Client,
    _member: Member,
    _permit: Option<Permit>,
}

impl OpenExport {
    /// Opens the export that connection `id` of `peer` has negotiated, in the clear if `is_plain`;
    /// `None` if that fails.
    pub(super) fn open(
        (negotiated, permit): (&Negotiated, Option<Permit>),
        (id, peer): (SessionId, &Peer),
        pool: &mut Pool,
        cx: &mut Context,
        (table, locks): (&ExportTable, &Arc<LockCounters>),
        is_plain: bool,
    ) -> Option<Self> {
        let export = &table.exports()[table.index_of(&negotiated.export.name)?];
        let (volume, settings) = (&export.volume, table.settings());
        let client = volume.clients.enter();
        let member = volume.membership.of(peer.names(), || peer.origin().uid());
        let device = cx.open(&volume.device).ok()?;
        pool.priority = volume.priority;
        pool.join(&volume.device, member.id().as_u32());
        // Each request of both windows may be an operation.
        let places = 2 * settings.max_in_flight.min(PLACES_MAX) as usize;
        let write_locks = volume.write_lock.join(places, cx.handle().clone(), locks.clone());
        let ids = negotiated.contexts.iter().map(|context| context.id).collect();
        let served = (volume.device.clone(), volume.clients.clone());
        let mut service = Service::new(served, write_locks, negotiated.style, ids, id);
        if export.zero_copy && is_plain {
            service.use_pipes();
        }
        let windows = Windows::new(settings.max_in_flight, settings.max_bytes_in_flight);
        let admission = Admission::new(Transmission::new(negotiated), service.layout(), windows);
        let (_client, _member, _permit) = (client, member, permit);
        Some(OpenExport { admission, service, device, _client, _member, _permit })
    }

    /// The device, as the worker's context knows it.
    #[inline]
    pub(super) fn device(&self) -> ChannelId {
        self.device
    }

    /// True while requests are with the device.
    #[inline]
    pub(super) fn has_bios(&self) -> bool {
        self.service.in_flight() > 0
    }

    /// Parses and starts one request, or takes more of a write's data.
    #[inline]
    pub(super) fn take_step(
        &mut self,
        stream: &mut Stream,
        pool: &mut Pool,
        coalesce: &mut Coalesce,
        bios: &mut BioList,
    ) -> Step {
        match self.admission.next(stream, pool, coalesce) {
            Next::Start(request, data) => {
                self.service.start(request, data, pool, stream, bios);
                Step::More
            }
            Next::Refuse(refusal) => {
                queue_refusal(self.service.style(), &refusal, pool, stream);
                Step::More
            }
            Next::More => Step::More,
            Next::Wait => Step::Wait,
            Next::Close => Step::Close,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{export, groups, message, negotiated};
    use super::*;
    use crate::nbd::export::ExportDirectory;
    use crate::nbd::proto::Command;
    use crate::nbd::server::Settings;
    use crate::server::Work;
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use drystone_core::{ContextSet, Priority, PriorityClass};
    use drystone_throttle::Groups;
    use std::os::unix::net::UnixStream;

    /// A worker with a table of one export, for one connection.
    struct Fixture {
        table: ExportTable,
        groups: Arc<Groups>,
        peer: Peer,
        work: Work,
        pool: Pool,
        stream: Stream,
        bios: BioList,
    }

    /// `opens`: the export's device can be opened.
    fn fixture(opens: bool) -> Fixture {
        let groups = groups();
        groups.create("clients").expect("a group");
        let mut export = export(groups.clone(), "clients", opens);
        export.volume.priority = Priority { class: PriorityClass::Idle, level: 3 };
        let settings = Settings { max_connections: 1, ..Settings::default() };
        let table = ExportTable::new(vec![export], 0, settings);
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).expect("a context");
        let (socket, _client) = UnixStream::pair().expect("sockets");
        let (work, peer) = (Work::new(cx), Peer::of(&socket));
        let (pool, stream, bios) = (work.pool(), Stream::new(), BioList::new());
        Fixture { table, groups, peer, work, pool, stream, bios }
    }

    impl Fixture {
        /// Takes the permit for a connection, if there is one.
        fn permit(&self) -> Option<Permit> {
            let negotiated = negotiated(&self.table);
            let view = self.table.for_client(&self.peer, false, &self.work.locks);
            view.admit(&negotiated.export).ok()?;
            view.into_permit()
        }

        /// Opens the export `name` with a permit.
        fn open(&mut self, name: &str) -> Option<OpenExport> {
            let permit = self.permit();
            assert!(permit.is_some());
            let mut chosen = negotiated(&self.table);
            chosen.export.name = name.to_owned();
            let Fixture { table, peer, work, pool, .. } = self;
            let listener = (&*table, &work.locks);
            let client = (SessionId(0), &*peer);
            OpenExport::open((&chosen, permit), client, pool, &mut work.cx, listener, true)
        }

        fn clients(&self) -> u32 {
            self.table.exports()[0].volume.clients.count()
        }

        fn receive(&mut self, bytes: &[u8]) {
            let mut buf = self.stream.begin_receive().expect("all was used");
            buf[..bytes.len()].copy_from_slice(bytes);
            self.stream.end_receive(buf, bytes.len());
        }

        fn take_step(&mut self, export: &mut OpenExport) -> Step {
            let Fixture { pool, stream, bios, .. } = self;
            export.take_step(stream, pool, &mut Coalesce::new(), bios)
        }
    }

    #[test]
    fn a_client_counts_and_has_its_permit_while_its_export_is_open() {
        let mut it = fixture(true);
        let export = it.open("vol").expect("it opens");
        assert!(it.clients() == 1 && it.permit().is_none());
        drop(export);
        assert!(it.clients() == 0 && it.permit().is_some());
    }

    #[test]
    fn the_group_of_a_client_stays_while_its_export_is_open() {
        let mut it = fixture(true);
        let export = it.open("vol").expect("it opens");
        assert!(it.groups.remove("clients").is_err());
        drop(export);
        it.groups.remove("clients").expect("nobody belongs to it");
    }

    #[test]
    fn an_export_that_does_not_open_costs_nothing() {
        for (opens, name) in [(false, "vol"), (true, "other")] {
            let mut it = fixture(opens);
            assert!(it.open(name).is_none());
            assert!(it.clients() == 0 && it.permit().is_some(), "{name}");
            it.groups.remove("clients").expect("nobody belongs to it");
        }
    }

    #[test]
    fn requests_carry_the_priority_and_the_group_of_the_export() {
        let mut it = fixture(true);
        let mut export = it.open("vol").expect("it opens");
        it.receive(&message(Command::Read, 0, 512));
        assert!(matches!(it.take_step(&mut export), Step::More));
        let bio = it.bios.pop().expect("a read");
        let member = it.groups.join("clients").expect("the group");
        assert_eq!(
            (bio.priority, bio.group),
            (it.table.exports()[0].volume.priority, member.id().as_u32())
        );
    }

    #[test]
    fn a_step_starts_refuses_or_ends() {
        let mut it = fixture(true);
        let mut export = it.open("vol").expect("it opens");
        let beyond = message(Command::Read, 1 << 20, 512);
        it.receive(&[message(Command::Read, 0, 512), beyond].concat());
        assert!(matches!(it.take_step(&mut export), Step::More) && export.has_bios());
        assert!(it.bios.len() == 1 && !it.stream.owes_send());
        assert!(matches!(it.take_step(&mut export), Step::More));
        assert!(it.bios.len() == 1 && it.stream.owes_send(), "the refusal is a reply");
        assert!(matches!(it.take_step(&mut export), Step::Wait));
        it.receive(&message(Command::Disc, 0, 0));
        assert!(matches!(it.take_step(&mut export), Step::Close));
    }
}
