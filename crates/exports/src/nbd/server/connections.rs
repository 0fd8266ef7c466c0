//! The front end of a worker: its listeners and connections.
//!
//! Invariants:
//! * Everything here belongs to the worker's thread. New connections come through its inbox.
//! * The front end has a deadline only while a connection has one or has a share of the budget: an
//!   idle server sleeps.

use super::arrival::Arrival;
use super::coalesce::DELAY_NS;
use super::connection::{Connection, TableId, Want};
use super::deadlines::Deadlines;
use super::event::Event;
use super::exports::ExportTable;
use super::incoming::Incoming;
use super::listeners::Listeners;
use super::peer::Origin;
use super::settings::HANDSHAKES_MAX;
use crate::server::{FrontEnd, NBD, SessionId, Work, errno};
use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, NetOp, RingEvent};
use drystone_core::{Bio, BioList, Slab};
use std::cmp::Reverse;
use std::sync::Arc;

/// The time that a stopping server gives clients to take their replies.
const DRAIN_NS: Ns = 5_000_000_000;
/// The time between two sweeps of connections that have more memory than their minimum.
const SWEEP_NS: Ns = 1_000_000_000;
/// The listeners and connections of a worker.
#[derive(Default)]
pub(crate) struct Connections {
    /// The export tables of connections that have come, each once.
    tables: Vec<Arc<ExportTable>>,
    listeners: Listeners,
    connections: Slab<Connection>,
    /// Connections that have not chosen an export, the oldest first.
    negotiating: Vec<u32>,
    /// Connections that had an event in this round.
    touched: Vec<u32>,
    /// Connections that have more to do once their bios are submitted.
    again: Vec<u32>,
    /// Connections whose next receive waits, and the end of the wait.
    delayed: Vec<u32>,
    resume_at: Ns,
    deadlines: Deadlines,
    /// The time of the next sweep of connections; 0 is never.
    sweep_at: Ns,
    /// Connections that wait for memory.
    short: Vec<u32>,
    /// Connections with requests that wait for other writes of the same blocks.
    ranges: Vec<u32>,
    /// The time of this round; kept only while there are deadlines.
    now: Ns,
    stopping: bool,
}

impl Connections {
    // --- connections

    fn serve(&mut self, work: &mut Work, incoming: Incoming) {
        let number = self.connections.next_number();
        let timeout = incoming.table.settings().handshake_timeout_ns;
        let (id, table, now) = (SessionId(number), self.table_id(&incoming.table), work.cx.now());
        self.connections.insert(Connection::new(incoming, id, table, work.pool(), now));
        self.deadlines.set(number, if timeout > 0 { now + timeout } else { 0 });
        self.touched.push(number);
        self.negotiating.push(number);
        self.bound_negotiating(table);
    }

    /// Closes a connection in the handshake if a table has too many. It is one of the client that
    /// has most of them, preferably one that has sent nothing, and of those the oldest.
    fn bound_negotiating(&mut self, table: TableId) {
        let Connections { negotiating, connections, .. } = self;
        let standing = |number: &u32| {
            let connection = connections.get(*number).filter(|it| it.table() == table)?;
            let (origin, has_spoken) = connection.standing();
            Some((origin, has_spoken, *number))
        };
        let all: Vec<(Origin, bool, u32)> = negotiating.iter().filter_map(standing).collect();
        if all.len() <= HANDSHAKES_MAX {
            return;
        }
        let of = |origin: Origin| all.iter().filter(|(other, ..)| *other == origin).count();
        // The newest connection stays. Of equal ones the first is closed.
        let oldest = all[..all.len() - 1].iter();
        let victim =
            oldest.min_by_key(|(origin, has_spoken, _)| (Reverse(of(*origin)), *has_spoken));
        let Some((_, _, number)) = victim.copied() else { return };
        self.leave_negotiating(number);
        if let Some(connection) = self.connections.get_mut(number) {
            connection.kill();
            self.touched.push(number);
        }
    }

    fn leave_negotiating(&mut self, number: u32) {
        self.negotiating.retain(|other| *other != number);
    }

    /// Finds an export table among those of this worker, or adds it.
    fn table_id(&mut self, table: &Arc<ExportTable>) -> TableId {
        let known = self.tables.iter().position(|known| Arc::ptr_eq(known, table));
        TableId(known.unwrap_or_else(|| {
            self.tables.push(table.clone());
            self.tables.len() - 1
        }))
    }

    fn go_on(&mut self, work: &mut Work, number: u32) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let handshake = connection.in_handshake();
        let mut bios = BioList::new();
        let more = connection.advance(
            &mut work.cx,
            &work.locks,
            &self.tables[connection.table().0],
            &mut bios,
        );
        if more {
            self.again.push(number);
        }
        if handshake && !connection.in_handshake() {
            self.leave_negotiating(number);
            self.negotiated(work, number);
        }
        let Some(connection) = self.connections.get_mut(number) else { return };
        if let (Some(device), false) = (connection.device(), bios.is_empty()) {
            work.queue(device, &mut bios);
        }
        if connection.has_share() && self.sweep_at == 0 {
            self.sweep_at = work.cx.now() + SWEEP_NS;
        }
        if connection.waits_for_memory() && !self.short.contains(&number) {
            self.short.push(number);
        }
        if connection.waits_for_range() && !self.ranges.contains(&number) {
            self.ranges.push(number);
        }
        self.start_wanted(work, number);
    }

    fn start_wanted(&mut self, work: &mut Work, number: u32) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let fd = connection.fd();
        while let Some(want) = connection.next_want() {
            let (op, event) = match want {
                Want::Receive(buf, range) => (NetOp::Recv { buf, range }, Event::Receive),
                Want::ReceiveLater => {
                    self.delayed.push(number);
                    if self.delayed.len() == 1 {
                        self.resume_at = work.cx.now() + DELAY_NS;
                    }
                    continue;
                }
                Want::ReceivePayload(buf, range) => (NetOp::Recv { buf, range }, Event::Payload),
                Want::Send(parts) => (NetOp::Send { parts }, Event::Send),
            };
            work.cx.start_net(fd, op, event.value(number));
        }
        if let Some(query) = connection.next_query() {
            work.cx.start_query(query, Event::Extents.value(number));
        }
        if connection.begin_withdrawal() {
            work.withdraw(SessionId(number).user_data(NBD));
        }
        for bio in connection.cut_short() {
            work.withdraw(bio..bio + 1);
        }
        if connection.is_over() {
            self.forget(work, number);
        }
    }

    /// Start the receives whose wait is over.
    fn resume(&mut self, work: &mut Work) {
        if !self.stopping && work.cx.now() < self.resume_at {
            return;
        }
        let mut delayed = std::mem::take(&mut self.delayed);
        for number in delayed.drain(..) {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            if let Some(Want::Receive(buf, range)) = connection.end_delay() {
                let fd = connection.fd();
                let value = Event::Receive.value(number);
                work.cx.start_net(fd, NetOp::Recv { buf, range }, value);
            }
            self.touched.push(number);
        }
        self.delayed = delayed;
        // This receives data that has come at once, without another round.
        work.cx.submit_ring();
    }

    fn forget(&mut self, work: &mut Work, number: u32) {
        self.deadlines.set(number, 0);
        let Some(connection) = self.connections.remove(number) else { return };
        if connection.in_handshake() {
            self.leave_negotiating(number);
        }
        work.cx.close(connection.into_socket());
        if work.reserve.wants_trim() && self.sweep_at == 0 {
            self.sweep_at = work.cx.now() + SWEEP_NS;
        }
    }

    // --- memory

    /// Go on with the connections whose memory was granted.
    fn go_on_with_memory(&mut self) {
        let Connections { short, touched, connections, .. } = self;
        short.retain(|number| {
            let waits = connections.get(*number).is_some_and(Connection::waits_for_memory);
            if !waits {
                touched.push(*number);
            }
            waits
        });
    }

    /// Go on with the connections whose requests may have their range now.
    fn go_on_with_ranges(&mut self) {
        let Connections { ranges, touched, connections, .. } = self;
        ranges.retain(|number| {
            let Some(connection) = connections.get(*number) else { return false };
            if connection.has_range() {
                touched.push(*number);
            }
            connection.waits_for_range()
        });
    }

    /// Let connections give back unused memory, and return freed memory to the system.
    fn sweep(&mut self, work: &mut Work) {
        let mut shared = false;
        for number in 0..self.connections.numbers_end() {
            let connection = self.connections.get_mut(number);
            let Some(connection) = connection.filter(|it| it.has_share()) else { continue };
            let settings = self.tables[connection.table().0].settings();
            if connection.sweep(settings.stall_timeout_ns / SWEEP_NS) {
                self.touched.push(number);
            }
            shared |= connection.has_share();
        }
        if work.reserve.wants_trim() {
            work.reserve.trim();
        }
        self.sweep_at = if shared { self.now + SWEEP_NS } else { 0 };
    }

    // --- deadlines

    /// A handshake is over: from now on only idleness counts.
    fn negotiated(&mut self, work: &mut Work, number: u32) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let idle = self.tables[connection.table().0].settings().idle_timeout_ns;
        connection.note_activity(if idle > 0 { work.cx.now() } else { 0 });
        let due = connection.active_ns() + idle;
        self.deadlines.set(number, due);
    }

    /// Close connections that took too long.
    fn expire(&mut self) {
        let now = self.now;
        while let Some(number) = self.deadlines.take_due(now) {
            let Some(connection) = self.connections.get_mut(number) else { continue };
            let idle = self.tables[connection.table().0].settings().idle_timeout_ns;
            let due = connection.active_ns() + idle;
            if self.stopping && connection.has_bios() {
                // Its requests end at the latest by their device's time-out; then the client's own
                // time begins.
                self.deadlines.set(number, now + DRAIN_NS);
                continue;
            }
            if connection.in_handshake() || self.stopping {
                connection.kill();
            } else if due > now {
                self.deadlines.set(number, due);
                continue;
            } else if connection.end_idle() {
                self.deadlines.set(number, now + idle);
            }
            self.touched.push(number);
        }
    }
}

impl FrontEnd for Connections {
    type Arrival = Arrival;

    fn is_empty(&self) -> bool {
        self.connections.is_empty() && !self.listeners.is_busy()
    }

    fn deadline(&self) -> Option<Ns> {
        let resume = (!self.delayed.is_empty()).then_some(self.resume_at);
        let deadline = self.deadlines.first();
        let sweep = (self.sweep_at != 0).then_some(self.sweep_at);
        resume.into_iter().chain(deadline).chain(sweep).min()
    }

    fn begin_round(&mut self, work: &mut Work) {
        if !self.delayed.is_empty() {
            self.resume(work);
        }
        if !self.deadlines.is_empty() || self.sweep_at != 0 {
            self.now = work.cx.now();
        }
    }

    fn completed(&mut self, bio: Box<Bio>) {
        let SessionId(number) = SessionId::of(&bio);
        if let Some(connection) = self.connections.get_mut(number) {
            connection.completed(bio);
            self.touched.push(number);
        }
    }

    fn collected(&mut self, work: &mut Work) {
        if !self.deadlines.is_empty() {
            self.expire();
        }
        if self.sweep_at != 0 && self.sweep_at <= self.now {
            self.sweep(work);
        }
        if !self.short.is_empty() {
            self.go_on_with_memory();
        }
        if !self.ranges.is_empty() {
            self.go_on_with_ranges();
        }
    }

    fn has_work(&self) -> bool {
        !self.touched.is_empty()
    }

    fn handle(&mut self, work: &mut Work, ended: RingEvent) {
        let (event, number) = Event::of(ended.token.value());
        match event {
            Event::Accept => return self.listeners.end_accept(work, number, ended),
            Event::AcceptAgain => return self.listeners.end_pause(work, number),
            _ => {}
        }
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.note_activity(self.now);
        // The server never cancels these operations. The kernel cancels the operations of a thread
        // that ends, which may have been a visitor: begin the operation again.
        let moved = (ended.result != -errno::ECANCELED).then_some(ended.result);
        match ended.buffers {
            // Without an answer (no helper thread was available) the whole range counts as data.
            Buffers::Extents(found) => connection.answered(&found),
            _ if event == Event::Extents => connection.answered(&[]),
            Buffers::One(buf) if event == Event::Payload => connection.received_payload(buf, moved),
            Buffers::One(buf) => connection.received(buf, moved),
            Buffers::Parts(parts) => {
                if let Some(rest) = connection.sent(parts, moved) {
                    let fd = connection.fd();
                    let send = Event::Send.value(number);
                    work.cx.start_net(fd, NetOp::Send { parts: rest }, send);
                    return;
                }
            }
            _ => {}
        }
        self.touched.push(number);
    }

    fn admit(&mut self, work: &mut Work, arrival: Arrival) {
        match arrival {
            _ if self.stopping => {}
            Arrival::Listener(listener) => self.listeners.add(work, listener),
            Arrival::Connection(incoming) => self.serve(work, incoming),
        }
    }

    fn advance(&mut self, work: &mut Work) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for number in touched.drain(..) {
            self.go_on(work, number);
        }
        self.touched = touched;
        self.touched.append(&mut self.again);
    }

    fn begin_stop(&mut self, work: &mut Work) {
        self.stopping = true;
        self.listeners.stop(work);
        self.now = work.cx.now();
        for number in 0..self.connections.numbers_end() {
            if let Some(connection) = self.connections.get_mut(number) {
                connection.stop();
                self.touched.push(number);
                self.deadlines.set(number, self.now + DRAIN_NS);
            }
        }
    }
}

impl Drop for Connections {
    /// The ring gives all operations of the connections back before their memory goes.
    fn drop(&mut self) {
        for number in 0..self.connections.numbers_end() {
            self.connections.get_mut(number).into_iter().for_each(Connection::kill);
        }
    }
}
