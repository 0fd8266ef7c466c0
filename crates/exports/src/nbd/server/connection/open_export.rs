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
use drystone_core::{BioList, Context, DevIndex};
use drystone_throttle::Member;
use std::sync::Arc;

/// Requests of a window, at most, whose writes cost nothing beside those of others (32 bytes each);
/// beyond that they take a lock.
const PLACES_MAX: u32 = 512;

/// The result of one step.
pub(super) enum Step {
    /// There may be another.
    More,
    /// The next one needs bytes, room in a window, or memory.
    Wait,
    /// The client sends no more requests.
    Close,
}

/// An export in use by a client.
pub(super) struct OpenExport {
    pub(super) admission: Admission,
    pub(super) service: Service,
    device: DevIndex,
    _client: Client,
    _member: Member,
    _permit: Option<Permit>,
}

impl OpenExport {
    /// Opens the export that connection `id` of `peer` has negotiated; `None` if that fails.
    pub(super) fn open(
        (negotiated, permit): (&Negotiated, Option<Permit>),
        (id, peer): (SessionId, &Peer),
        pool: &mut Pool,
        cx: &mut Context,
        (table, locks): (&ExportTable, &Arc<LockCounters>),
    ) -> Option<Self> {
        let export = &table.exports()[table.index_of(&negotiated.export.name)?];
        let (volume, settings) = (&export.volume, table.settings());
        let client = volume.clients.enter();
        let member = volume.membership.of(peer.names(), || peer.origin().uid());
        let device = cx.open(&volume.device).ok()?;
        pool.priority = volume.priority;
        pool.join(&volume.device, member.id().as_u32());
        // An operation may be under way for each request of both windows.
        let places = 2 * settings.max_in_flight.min(PLACES_MAX) as usize;
        let write_locks = volume.write_lock.join(places, cx.handle().clone(), locks.clone());
        let ids = negotiated.contexts.iter().map(|context| context.id).collect();
        let served = (volume.device.clone(), volume.clients.clone());
        let service = Service::new(served, write_locks, negotiated.style, ids, id);
        let windows = Windows::new(settings.max_in_flight, settings.max_bytes_in_flight);
        let admission = Admission::new(Transmission::new(negotiated), service.layout(), windows);
        let (_client, _member, _permit) = (client, member, permit);
        Some(OpenExport { admission, service, device, _client, _member, _permit })
    }

    /// The device, as the worker's context knows it.
    #[inline]
    pub(super) fn device(&self) -> DevIndex {
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
