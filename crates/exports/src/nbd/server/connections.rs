//! The front end of a worker: its listeners and connections.
//!
//! Invariants:
//! * Everything here belongs to the worker's thread. New connections come through its door.
//! * Without connections that have a deadline or a share of the budget there is none: an idle server sleeps.

use super::coalesce::DELAY_NS;
use super::connection::{Connection, Want};
use super::exports::ExportTable;
use super::op::{connection_of, user_data_of};
use super::places::Origin;
use super::{Arrival, HANDSHAKES_MAX, Incoming, ListenerTls};
use crate::server::{FrontEnd, Inbox, NBD, Tag, Work, errno};
use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, NetOp, RingEvent};
use drystone_core::{Bio, BioList};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// A socket that accepts connections.
pub struct Listener {
    /// The socket, bound and listening.
    pub socket: OwnedFd,
    /// How its connections treat TLS.
    pub tls: ListenerTls,
    /// The exports that it serves.
    pub table: Arc<ExportTable>,
    /// The doors of all workers, over which its connections are spread.
    pub peers: Vec<Arc<Inbox>>,
    /// A socket with this number or a higher one is closed at once: the kernel gives the lowest number that
    /// is free, so the process has few descriptors left, which others need.
    pub descriptors_max: i32,
}

/// What an event on the ring is about: the upper bits of its value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum About {
    Accept = 0,
    Receive = 1,
    Payload = 2,
    Send = 3,
    /// Accepting goes on after the descriptors ran out.
    AcceptAgain = 4,
    /// The device tells a connection which ranges hold data.
    Extents = 5,
}

const ABOUT_SHIFT: u32 = 40;

fn value(about: About, number: usize) -> u64 {
    NBD.event() | (about as u64) << ABOUT_SHIFT | number as u64
}

/// How long a stopping server waits for clients to take the replies that they are owed.
const DRAIN_NS: Ns = 5_000_000_000;
/// How often connections are swept that have more memory than their minimum.
const SWEEP_NS: Ns = 1_000_000_000;
/// How long accepting pauses when the process is out of descriptors or memory.
const ACCEPT_PAUSE_NS: Ns = 100_000_000;

/// The listeners and connections of a worker.
#[derive(Default)]
pub(crate) struct Connections {
    /// The export tables of connections that have come, each once.
    tables: Vec<Arc<ExportTable>>,
    listeners: Vec<Listener>,
    accepting: Vec<bool>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that have not chosen an export, the oldest first.
    negotiating: Vec<usize>,
    /// Connections that something happened to in this round.
    touched: Vec<usize>,
    /// Connections that have more to do once their bios are on their way.
    again: Vec<usize>,
    /// Connections whose next receive waits, and until when.
    delayed: Vec<usize>,
    resume_at: Ns,
    /// When a connection is to be looked at for having taken too long.
    deadlines: BTreeSet<(Ns, usize)>,
    /// When connections are swept; 0 is never.
    sweep_at: Ns,
    /// Connections that wait for memory.
    short: Vec<usize>,
    /// Connections with requests that wait for others that write the same blocks.
    ranges: Vec<usize>,
    /// The time of this round; kept only while there are deadlines.
    now: Ns,
    stopping: bool,
}

impl Connections {
    // --- accepting

    /// Accept connections on `listener` from now on.
    fn listen(&mut self, work: &mut Work, listener: Listener) {
        let number = self.listeners.len();
        self.listeners.push(listener);
        self.accepting.push(false);
        self.accept(work, number);
    }

    fn accept(&mut self, work: &mut Work, number: usize) {
        if !self.stopping {
            let socket = self.listeners[number].socket.as_raw_fd();
            work.cx.start_net(socket, NetOp::Accept, value(About::Accept, number));
            self.accepting[number] = true;
        }
    }

    fn accepted(&mut self, work: &mut Work, number: usize, event: RingEvent) {
        self.accepting[number] = false;
        let exhausted = [errno::EMFILE, errno::ENFILE, errno::ENOMEM, errno::ENOBUFS];
        match event.buffers {
            Buffers::Socket(socket) => self.deal_out(work, number, socket),
            _ if exhausted.contains(&-event.result) && !self.stopping => {
                let at = work.cx.now() + ACCEPT_PAUSE_NS;
                work.cx.start_timer(at, value(About::AcceptAgain, number));
                self.accepting[number] = true;
                return;
            }
            _ => {}
        }
        self.accept(work, number);
    }

    /// Give a new connection to the worker that has the fewest.
    fn deal_out(&mut self, work: &mut Work, number: usize, socket: OwnedFd) {
        let Listener { tls, table, peers, descriptors_max, .. } = &self.listeners[number];
        if socket.as_raw_fd() >= *descriptors_max {
            return;
        }
        let Some(peer) = peers.iter().min_by_key(|peer| peer.connections()) else { return };
        prepare(&socket, table.settings().peer_timeout_ns);
        let (tls, table, dealt) = (tls.clone(), table.clone(), peer.enter());
        peer.put(Incoming { socket, tls, table, dealt }, &work.locks);
    }

    // --- connections

    fn serve(&mut self, work: &mut Work, incoming: Incoming) {
        let number = self.free.pop().unwrap_or(self.connections.len());
        let timeout = incoming.table.settings().handshake_timeout_ns;
        let (table, now) = (self.number_of(&incoming.table), work.cx.now());
        let connection = Some(Connection::new(incoming, number, table, work.pool(), now));
        match self.connections.get_mut(number) {
            Some(place) => *place = connection,
            None => self.connections.push(connection),
        }
        self.set_deadline(number, if timeout > 0 { now + timeout } else { 0 });
        self.touched.push(number);
        self.negotiating.push(number);
        self.bound_negotiating(table);
    }

    /// Close one of a table's connections in the handshake if there are too many: one of whoever has most of
    /// them, rather one that has sent nothing, the oldest of those.
    fn bound_negotiating(&mut self, table: usize) {
        let Connections { negotiating, connections, .. } = self;
        let standing = |number: &usize| {
            let connection = connections[*number].as_ref().filter(|it| it.table == table)?;
            let (origin, has_spoken) = connection.standing();
            Some((origin, has_spoken, *number))
        };
        let all: Vec<(Origin, bool, usize)> = negotiating.iter().filter_map(standing).collect();
        if all.len() <= HANDSHAKES_MAX {
            return;
        }
        let of = |origin: Origin| all.iter().filter(|(other, ..)| *other == origin).count();
        // The newest is who comes in. Of those that are alike the first is taken.
        let oldest = all[..all.len() - 1].iter();
        let victim =
            oldest.min_by_key(|(origin, has_spoken, _)| (Reverse(of(*origin)), *has_spoken));
        let Some((_, _, number)) = victim.copied() else { return };
        self.leave_negotiating(number);
        if let Some(connection) = &mut self.connections[number] {
            connection.kill();
            self.touched.push(number);
        }
    }

    fn leave_negotiating(&mut self, number: usize) {
        self.negotiating.retain(|other| *other != number);
    }

    /// The number of an export table among those of this worker.
    fn number_of(&mut self, table: &Arc<ExportTable>) -> usize {
        let known = self.tables.iter().position(|known| Arc::ptr_eq(known, table));
        known.unwrap_or_else(|| {
            self.tables.push(table.clone());
            self.tables.len() - 1
        })
    }

    fn go_on(&mut self, work: &mut Work, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let handshake = connection.in_handshake();
        let mut bios = BioList::new();
        let more = connection.advance(
            &mut work.cx,
            &work.locks,
            &self.tables[connection.table],
            &mut bios,
        );
        if more {
            self.again.push(number);
        }
        if handshake && !connection.in_handshake() {
            self.leave_negotiating(number);
            self.negotiated(work, number);
        }
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
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

    fn start_wanted(&mut self, work: &mut Work, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let fd = connection.fd();
        while let Some(want) = connection.wants() {
            let (op, about) = match want {
                Want::Receive(buf, range) => (NetOp::Recv { buf, range }, About::Receive),
                Want::ReceiveLater => {
                    self.delayed.push(number);
                    if self.delayed.len() == 1 {
                        self.resume_at = work.cx.now() + DELAY_NS;
                    }
                    continue;
                }
                Want::ReceivePayload(buf, range) => (NetOp::Recv { buf, range }, About::Payload),
                Want::Send(parts) => (NetOp::Send { parts }, About::Send),
            };
            work.cx.start_net(fd, op, value(about, number));
        }
        if let Some(query) = connection.next_query() {
            work.cx.start_query(query, value(About::Extents, number));
        }
        if connection.withdraws() {
            work.withdraw(user_data_of(number));
        }
        for bio in connection.cut_short() {
            work.withdraw(bio..bio + 1);
        }
        if connection.is_over() {
            self.forget(work, number);
        }
    }

    /// Start the receives that waited, if their moment is over.
    fn resume(&mut self, work: &mut Work) {
        if !self.stopping && work.cx.now() < self.resume_at {
            return;
        }
        let mut delayed = std::mem::take(&mut self.delayed);
        for number in delayed.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(number) else { continue };
            if let Some(Want::Receive(buf, range)) = connection.delay_over() {
                let fd = connection.fd();
                let value = value(About::Receive, number);
                work.cx.start_net(fd, NetOp::Recv { buf, range }, value);
            }
            self.touched.push(number);
        }
        self.delayed = delayed;
        // What has come is there at once, without another round.
        work.cx.submit_ring();
    }

    fn forget(&mut self, work: &mut Work, number: usize) {
        self.set_deadline(number, 0);
        let Some(connection) = self.connections[number].take() else { return };
        if connection.in_handshake() {
            self.leave_negotiating(number);
        }
        work.cx.close(connection.into_socket());
        self.free.push(number);
        if work.reserve.wants_trim() && self.sweep_at == 0 {
            self.sweep_at = work.cx.now() + SWEEP_NS;
        }
    }

    // --- memory

    /// Go on with the connections that have got the memory they waited for.
    fn go_on_with_memory(&mut self) {
        let Connections { short, touched, connections, .. } = self;
        short.retain(|number| {
            let waits = connections[*number].as_ref().is_some_and(Connection::waits_for_memory);
            if !waits {
                touched.push(*number);
            }
            waits
        });
    }

    /// Go on with the connections whose requests need not wait for others any more.
    fn go_on_with_ranges(&mut self) {
        let Connections { ranges, touched, connections, .. } = self;
        ranges.retain(|number| {
            let Some(connection) = &connections[*number] else { return false };
            if connection.has_range() {
                touched.push(*number);
            }
            connection.waits_for_range()
        });
    }

    /// Let connections give back what they do not use, and let what was freed go back to the system.
    fn sweep(&mut self, work: &mut Work) {
        let mut shared = false;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection.as_mut().filter(|it| it.has_share()) else {
                continue;
            };
            let settings = self.tables[connection.table].settings();
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

    /// Look at a connection again at `at`; 0 for never.
    fn set_deadline(&mut self, number: usize, at: Ns) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let before = std::mem::replace(&mut connection.deadline_ns, at);
        if before != 0 {
            self.deadlines.remove(&(before, number));
        }
        if at != 0 {
            self.deadlines.insert((at, number));
        }
    }

    /// A handshake is over: from now on only idleness counts.
    fn negotiated(&mut self, work: &mut Work, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let idle = self.tables[connection.table].settings().idle_timeout_ns;
        connection.active_ns = if idle > 0 { work.cx.now() } else { 0 };
        let due = connection.active_ns + idle;
        self.set_deadline(number, due);
    }

    /// Close connections that took too long.
    fn expire(&mut self) {
        let now = self.now;
        while let Some((at, number)) = self.deadlines.first().copied()
            && at <= now
        {
            self.set_deadline(number, 0);
            let Some(Some(connection)) = self.connections.get_mut(number) else { continue };
            let idle = self.tables[connection.table].settings().idle_timeout_ns;
            let due = connection.active_ns + idle;
            if self.stopping && connection.has_bios() {
                // They end, at the latest by their device's time-out; then the client has its time.
                self.set_deadline(number, now + DRAIN_NS);
                continue;
            }
            if connection.in_handshake() || self.stopping {
                connection.kill();
            } else if due > now {
                self.set_deadline(number, due);
                continue;
            } else if connection.end_idle() {
                self.set_deadline(number, now + idle);
            }
            self.touched.push(number);
        }
    }
}

impl FrontEnd for Connections {
    type Arrival = Arrival;

    fn is_empty(&self) -> bool {
        self.connections.len() == self.free.len() && !self.accepting.contains(&true)
    }

    fn deadline(&self) -> Option<Ns> {
        let resume = (!self.delayed.is_empty()).then_some(self.resume_at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
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
        let number = connection_of(&bio);
        if let Some(Some(connection)) = self.connections.get_mut(number) {
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

    fn handle(&mut self, work: &mut Work, event: RingEvent) {
        let value = Tag::rest_of_event(event.token.value());
        let (about, number) = (value >> ABOUT_SHIFT, (value & ((1 << ABOUT_SHIFT) - 1)) as usize);
        if about == About::Accept as u64 {
            return self.accepted(work, number, event);
        }
        if about == About::AcceptAgain as u64 {
            self.accepting[number] = false;
            return self.accept(work, number);
        }
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        connection.active_ns = self.now;
        // Nobody asks for these to end early, but the kernel cancels what a thread started when that
        // thread ends, and that may have been a visitor's: then it is done again.
        let moved = (event.result != -errno::ECANCELED).then_some(event.result);
        match event.buffers {
            // Without an answer (there was no thread to ask) all of it counts as data.
            Buffers::Extents(found) => connection.answered(&found),
            _ if about == About::Extents as u64 => connection.answered(&[]),
            Buffers::One(buf) if about == About::Payload as u64 => {
                connection.received_payload(buf, moved);
            }
            Buffers::One(buf) => connection.received(buf, moved),
            Buffers::Parts(parts) => {
                if let Some(rest) = connection.sent(parts, moved) {
                    let fd = connection.fd();
                    let send = self::value(About::Send, number);
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
            Arrival::Listener(listener) => self.listen(work, listener),
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
        for number in 0..self.listeners.len() {
            work.cx.cancel_net(value(About::Accept, number));
            work.cx.cancel_net(value(About::AcceptAgain, number));
        }
        self.now = work.cx.now();
        for number in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[number] {
                connection.stop();
                self.touched.push(number);
                self.set_deadline(number, self.now + DRAIN_NS);
            }
        }
    }
}

impl Drop for Connections {
    /// Whatever the ring still has of the connections comes back before their memory goes.
    fn drop(&mut self) {
        for connection in self.connections.iter_mut().flatten() {
            connection.kill();
        }
    }
}

/// Probes that a silent client does not answer before it is given up (tcp(7), `TCP_KEEPCNT`).
const PROBES: u32 = 4;

/// Set a new socket up: replies must not wait for more, and a client that vanished without a word is found
/// out in `peer_timeout` ns. One that owes an acknowledgement, or takes nothing of what is sent, has
/// `TCP_USER_TIMEOUT`; one that is idle is probed after half that time. Its kernel answers, so whoever is
/// there stays. TCP only; a Unix socket refuses, which is fine.
fn prepare(socket: &OwnedFd, peer_timeout: Ns) {
    use rustix::net::sockopt::*;
    let timeout = Duration::from_nanos(peer_timeout);
    let ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    // The kernel counts these in seconds, and refuses 0 and what is above its MAX_TCP_KEEPIDLE.
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, 32_767));
    let _ = set_tcp_nodelay(socket, true);
    let _ = set_tcp_user_timeout(socket, ms);
    let _ = set_tcp_keepidle(socket, seconds(timeout / 2));
    let _ = set_tcp_keepintvl(socket, seconds(timeout / 2 / PROBES));
    let _ = set_tcp_keepcnt(socket, PROBES);
    let _ = set_socket_keepalive(socket, true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_tcp_client_that_vanishes_is_given_up_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = OwnedFd::from(listener.accept().unwrap().0);
        prepare(&socket, 300_000_000_000);
        assert_eq!(tcp_user_timeout(&socket).unwrap(), 300_000);
        let (idle, interval) = (tcp_keepidle(&socket).unwrap(), tcp_keepintvl(&socket).unwrap());
        let silent = idle + interval * tcp_keepcnt(&socket).unwrap();
        assert_eq!((silent.as_secs(), socket_keepalive(&socket)), (298, Ok(true)));
        prepare(&socket, 1_000_000_000);
        assert_eq!(tcp_keepidle(&socket).unwrap().as_secs(), 1, "what the kernel takes at least");
        prepare(&socket, 86_400_000_000_000);
        assert_eq!(tcp_keepidle(&socket).unwrap().as_secs(), 32_767, "what it takes at most");
    }
}
