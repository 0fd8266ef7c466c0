//! The handshake: negotiation, TLS, and the chosen export.

use super::{Connection, Life, PLACES_MAX, Phase};
use crate::nbd::handshake::{Event, Handshake, Negotiated, OUTPUT_MAX_BYTES};
use crate::nbd::server::exports::ExportTable;
use crate::nbd::server::service::Service;
use crate::nbd::tls::PeerNames;
use crate::nbd::transmission::Transmission;
use drystone_core::Context;
use drystone_core::sync::LockCounters;
use std::sync::Arc;

impl Connection {
    /// Takes one step of the handshake. True if there may be another.
    pub(super) fn negotiate(
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
                self.permit = view.into_permit();
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

    /// Goes on with the TLS handshake.
    pub(super) fn negotiate_tls(&mut self, mut handshake: Box<Handshake>) -> bool {
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
}
