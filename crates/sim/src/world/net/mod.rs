//! Simulated stream sockets: bytes need time, come in pieces, and wait until the peer reads them.
//!
//! ```text
//!   client fiber --to_server--> [arrived] --> Recv of the server's ring
//!   client fiber <--[arrived] <--to_client--  Send of the server's ring
//! ```
//!
//! Invariants:
//! * The server's end is a real descriptor, because the server owns and closes descriptors: one end
//!   of a pair of Unix sockets, over which no byte ever goes. The world keeps the other end. It
//!   shows the world what the server does without its ring (shut down, close), and makes the kernel
//!   answer the server's own system calls. The numbers of descriptors never influence a run.
//! * The bytes of one way arrive in order, and its end after them.
//! * A way holds at most `capacity` bytes, those on their way included.
//! * A buffer that an operation owns goes back with its event, also if it is cancelled.

mod client;
mod options;
#[cfg(test)]
mod tests;
mod witness;

pub use client::{ClientSocket, Gone};
pub use options::{NetCounts, NetOptions};

use super::{Due, FiberId, RingId, State};
use drystone_core::buf::IoBuf;
use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, NetOp, RingEvent, SendPart, Token};
use fastrand::Rng;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::RawFd;
use witness::Witness;

/// Number of a listener.
pub type ListenerId = usize;
/// Number of a connection.
pub(super) type ConnectionId = usize;

/// One way of a connection.
#[derive(Default)]
struct Way {
    arrived: VecDeque<u8>,
    travelling: usize,
    /// The time when the last bytes on their way arrive.
    last: Ns,
    /// True if the sender has sent its end.
    ended: bool,
    /// True if the end has arrived.
    over: bool,
}

impl Way {
    fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.arrived.len() + self.travelling)
    }
}

struct Receive {
    ring: RingId,
    token: Token,
    buf: IoBuf,
    range: Range<usize>,
}

struct Send {
    ring: RingId,
    token: Token,
    parts: Vec<SendPart>,
}

struct Connection {
    to_server: Way,
    to_client: Way,
    server: Option<Witness>,
    /// False once the server has shut the direction down or closed.
    server_reads: bool,
    server_writes: bool,
    receive: Option<Receive>,
    send: Option<Send>,
    /// Set once the client, or the server, knows of a reset.
    client_reset: bool,
    server_reset: bool,
    /// True if the client has closed.
    client_gone: bool,
    sleeper: Option<FiberId>,
    /// The server's ring that used the connection last.
    ring: Option<RingId>,
}

struct Listening {
    server: Witness,
    open: bool,
    accept: Option<(RingId, Token)>,
    backlog: VecDeque<ConnectionId>,
}

/// All sockets of a world.
#[derive(Default)]
pub(super) struct Net {
    options: NetOptions,
    rng: Rng,
    connections: Vec<Connection>,
    /// Connections whose server may still shut down or close.
    watched: Vec<ConnectionId>,
    listeners: Vec<Listening>,
    by_fd: BTreeMap<RawFd, Socket>,
    counts: NetCounts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Socket {
    Listener(ListenerId),
    Connection(ConnectionId),
}

/// An event that happens to a connection later.
#[derive(Debug)]
pub(super) enum NetDue {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// The receiver of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Server,
    Client,
}

impl Net {
    pub(super) fn new(seed: u64) -> Self {
        Net { rng: Rng::with_seed(seed), ..Net::default() }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.u32(0..1_000_000) < ppm
    }

    /// The number of bytes, of `most`, that one call moves.
    fn piece(&mut self, most: usize) -> usize {
        let bound = most.min(self.options.piece);
        let n = if self.rng.bool() { bound } else { self.rng.usize(1..=bound) };
        self.counts.partial += u64::from(n < most);
        n
    }

    fn arrival(&mut self, now: Ns, connection: ConnectionId, to: To) -> Ns {
        let NetOptions { latency_ns, spread_ns, .. } = self.options;
        let at = now + latency_ns + self.rng.u64(0..=spread_ns);
        let connection = &mut self.connections[connection];
        let way = match to {
            To::Server => &mut connection.to_server,
            To::Client => &mut connection.to_client,
        };
        way.last = way.last.max(at);
        way.last
    }
}

impl Default for Connection {
    fn default() -> Self {
        Connection {
            to_server: Way::default(),
            to_client: Way::default(),
            server: None,
            server_reads: true,
            server_writes: true,
            receive: None,
            send: None,
            client_reset: false,
            server_reset: false,
            client_gone: false,
            sleeper: None,
            ring: None,
        }
    }
}

impl Connection {
    fn way(&mut self, to: To) -> &mut Way {
        match to {
            To::Server => &mut self.to_server,
            To::Client => &mut self.to_client,
        }
    }

    /// Closes the world's end of the pair: the kernel reports a hang-up to the server from now on.
    fn hang_up(&mut self) {
        if let Some(server) = &mut self.server {
            server.end = None;
        }
    }
}

impl State {
    /// An operation on a socket begins.
    pub(super) fn net_begin(&mut self, now: Ns, ring: RingId, fd: RawFd, op: NetOp, token: Token) {
        let socket = self.net.by_fd.get(&fd).copied();
        let wrong = -libc::EBADF;
        if matches!(op, NetOp::Recv { .. } | NetOp::Send { .. })
            && self.net.chance(self.net.options.cancelled_ppm)
        {
            self.net.counts.cancelled += 1;
            return self.net_end(ring, token, -libc::ECANCELED, buffers_of(op));
        }
        match (socket, op) {
            (Some(Socket::Listener(listener)), NetOp::Accept) => {
                self.net.listeners[listener].accept = Some((ring, token));
                self.pump_listener(now, listener);
            }
            (Some(Socket::Connection(connection)), NetOp::Recv { buf, range }) => {
                let receive = Receive { ring, token, buf, range };
                self.net.connections[connection].receive = Some(receive);
                self.net.connections[connection].ring = Some(ring);
                self.pump_receive(connection);
                self.pump_send(now, connection);
            }
            (Some(Socket::Connection(connection)), NetOp::Send { parts }) => {
                self.net.connections[connection].send = Some(Send { ring, token, parts });
                self.net.connections[connection].ring = Some(ring);
                self.pump_send(now, connection);
            }
            (_, op) => self.net_end(ring, token, wrong, buffers_of(op)),
        }
    }

    fn net_end(&mut self, ring: RingId, token: Token, result: i32, buffers: Buffers) {
        self.push(ring, RingEvent { token, result, buffers });
    }

    /// A due event of a connection happens.
    pub(super) fn net_happen(&mut self, now: Ns, connection: ConnectionId, to: To, due: NetDue) {
        self.add(now ^ ((connection as u64) << 40));
        match due {
            NetDue::Bytes(bytes) => {
                self.note(now, || format!("socket {connection}: {} bytes to {to:?}", bytes.len()));
                let way = self.net.connections[connection].way(to);
                way.travelling -= bytes.len();
                way.arrived.extend(bytes);
            }
            NetDue::End => {
                self.note(now, || format!("socket {connection}: the end to {to:?}"));
                let unix = self.net.options.unix;
                let connection = &mut self.net.connections[connection];
                connection.way(to).over = true;
                if unix && to == To::Server && connection.client_gone {
                    connection.server_writes = false;
                    connection.hang_up();
                }
            }
            NetDue::Reset => self.reset_arrives(now, connection, to),
        }
        self.pump_receive(connection);
        self.pump_send(now, connection);
        self.wake_client(connection);
    }

    fn reset_arrives(&mut self, now: Ns, id: ConnectionId, to: To) {
        self.note(now, || format!("socket {id}: reset, to {to:?}"));
        let connection = &mut self.net.connections[id];
        match to {
            To::Client => connection.client_reset = true,
            To::Server => {
                connection.server_reset = true;
                connection.hang_up();
            }
        }
    }

    fn wake_client(&mut self, connection: ConnectionId) {
        if let Some(fiber) = self.net.connections[connection].sleeper {
            self.sleepers[fiber].awake = true;
        }
    }

    fn pump_listener(&mut self, now: Ns, id: ListenerId) {
        let Some((ring, token)) = self.net.listeners[id].accept else { return };
        if self.net.listeners[id].backlog.is_empty() {
            return;
        }
        self.net.listeners[id].accept = None;
        if self.net.chance(self.net.options.exhausted_ppm) {
            self.net.counts.exhausted += 1;
            return self.net_end(ring, token, -libc::EMFILE, Buffers::None);
        }
        let connection = self.net.listeners[id].backlog.pop_front().expect("not empty");
        let (witness, server) = Witness::new();
        self.net.by_fd.insert(witness.fd, Socket::Connection(connection));
        self.note(now, || format!("socket {connection}: accepted"));
        self.net.connections[connection].server = Some(witness);
        self.net.watched.push(connection);
        self.net.counts.accepted += 1;
        self.net_end(ring, token, 0, Buffers::Socket(server));
    }

    /// Complete a waiting receive with the bytes that have arrived.
    fn pump_receive(&mut self, id: ConnectionId) {
        let connection = &mut self.net.connections[id];
        let Some(waits) = &connection.receive else { return };
        let there = connection.to_server.arrived.len().min(waits.range.len());
        let result = if !connection.server_reads {
            0
        } else if there > 0 {
            self.net.piece(there) as i32
        } else if connection.server_reset {
            -libc::ECONNRESET
        } else if connection.to_server.over {
            0
        } else {
            return;
        };
        let connection = &mut self.net.connections[id];
        let mut receive = connection.receive.take().expect("it waits");
        let n = result.max(0) as usize;
        let into = &mut receive.buf[receive.range.start..receive.range.start + n];
        let bytes = connection.to_server.arrived.drain(..n);
        into.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        self.wake_client(id);
        self.net_end(receive.ring, receive.token, result, Buffers::One(receive.buf));
    }

    /// Let a waiting send move as many bytes as there is room for.
    fn pump_send(&mut self, now: Ns, id: ConnectionId) {
        let connection = &self.net.connections[id];
        let Some(waits) = &connection.send else { return };
        let total: usize = waits.parts.iter().map(SendPart::len).sum();
        let room = connection.to_client.room(self.net.options.capacity).min(total);
        let result = if connection.server_reset || !connection.server_writes {
            -libc::EPIPE
        } else if room == 0 {
            self.net.counts.full += 1;
            return;
        } else {
            self.net.piece(room) as i32
        };
        let send = self.net.connections[id].send.take().expect("it waits");
        if result > 0 {
            let bytes = gather(&send.parts, result as usize, &mut self.net.counts.piped);
            self.travel(now, id, To::Client, bytes);
        }
        self.net_end(send.ring, send.token, result, Buffers::Parts(send.parts));
    }

    fn travel(&mut self, now: Ns, id: ConnectionId, to: To, bytes: Vec<u8>) {
        if self.net.connections[id].client_gone {
            // The client has closed, so the sender gets a reset.
            return self.net_later(now, id, To::Server, NetDue::Reset);
        }
        self.net.connections[id].way(to).travelling += bytes.len();
        self.net_later(now, id, to, NetDue::Bytes(bytes));
    }

    fn net_later(&mut self, now: Ns, connection: ConnectionId, to: To, due: NetDue) {
        let at = self.net.arrival(now, connection, to);
        self.at(at, Due::Net { connection, to, due });
    }

    /// Cancel an operation of a ring on a socket.
    pub(super) fn net_cancel(&mut self, ring: RingId, token: Token) {
        let of = (ring, token);
        let cancelled = -libc::ECANCELED;
        for listener in &mut self.net.listeners {
            if listener.accept == Some(of) {
                listener.accept = None;
                return self.net_end(ring, token, cancelled, Buffers::None);
            }
        }
        for connection in &mut self.net.connections {
            if let Some(receive) = connection.receive.take_if(|r| (r.ring, r.token) == of) {
                return self.net_end(ring, token, cancelled, Buffers::One(receive.buf));
            }
            if let Some(send) = connection.send.take_if(|s| (s.ring, s.token) == of) {
                return self.net_end(ring, token, cancelled, Buffers::Parts(send.parts));
            }
        }
    }

    /// Forget a dropped ring and its operations. Returns their buffers.
    pub(super) fn net_forget(&mut self, ring: RingId) -> Vec<Buffers> {
        let mut left = Vec::new();
        for listener in &mut self.net.listeners {
            listener.accept.take_if(|(r, _)| *r == ring);
        }
        for connection in &mut self.net.connections {
            let receive = connection.receive.take_if(|receive| receive.ring == ring);
            left.extend(receive.map(|receive| Buffers::One(receive.buf)));
            let send = connection.send.take_if(|send| send.ring == ring);
            left.extend(send.map(|send| Buffers::Parts(send.parts)));
        }
        left
    }

    /// Notice closes and shutdowns that the server did without a ring: of the descriptors that
    /// `ring` uses, or of all.
    pub(super) fn net_look(&mut self, now: Ns, ring: Option<RingId>) {
        for id in 0..self.net.listeners.len() {
            let listener = &mut self.net.listeners[id];
            if listener.open && ring.is_none() && listener.server.sends_no_more() {
                listener.open = false;
                let refused = std::mem::take(&mut listener.backlog);
                for connection in refused {
                    self.net_later(now, connection, To::Client, NetDue::Reset);
                }
            }
        }
        let Net { watched, connections, .. } = &mut self.net;
        watched.retain(|id| connections[*id].server.as_ref().is_some_and(|s| s.end.is_some()));
        for nth in 0..watched.len() {
            let id = self.net.watched[nth];
            let connection = &self.net.connections[id];
            let (reads, writes) = (connection.server_reads, connection.server_writes);
            let others = connection.ring.is_some() && ring.is_some() && connection.ring != ring;
            let Some(server) = connection.server.as_ref().filter(|_| !others) else { continue };
            let stops_reading = reads && server.receives_no_more();
            let stops_writing = writes && server.sends_no_more();
            if stops_reading {
                self.server_reads_no_more(id);
            }
            if stops_writing {
                self.server_writes_no_more(now, id);
            }
        }
    }

    fn server_reads_no_more(&mut self, id: ConnectionId) {
        self.net.connections[id].server_reads = false;
        self.pump_receive(id);
    }

    fn server_writes_no_more(&mut self, now: Ns, id: ConnectionId) {
        let connection = &mut self.net.connections[id];
        connection.server_writes = false;
        let unread = !connection.server_reads && !connection.to_server.arrived.is_empty();
        let resets = unread && self.net.rng.bool();
        self.net.counts.server_resets += u64::from(resets);
        self.net_later(now, id, To::Client, if resets { NetDue::Reset } else { NetDue::End });
        self.pump_send(now, id);
        if !self.net.connections[id].server_reads {
            self.net.connections[id].hang_up();
        }
    }

    /// The process has ended: the kernel closes its descriptors, or they vanish with the power.
    pub(super) fn net_sever(&mut self, now: Ns) {
        for listener in &mut self.net.listeners {
            listener.open = false;
            listener.backlog.clear();
        }
        for id in 0..self.net.connections.len() {
            let connection = &mut self.net.connections[id];
            connection.client_reset = true;
            if connection.client_gone && !connection.server_reads && !connection.server_writes {
                continue;
            }
            if !connection.server_reset {
                self.reset_arrives(now, id, To::Server);
            }
            self.pump_receive(id);
            self.pump_send(now, id);
            self.wake_client(id);
        }
    }
}

fn buffers_of(op: NetOp) -> Buffers {
    match op {
        NetOp::Recv { buf, .. } => Buffers::One(buf),
        NetOp::Send { parts } => Buffers::Parts(parts),
        NetOp::Accept | NetOp::PollIn => Buffers::None,
    }
}

/// The first `n` bytes of `parts`; counts pipes that some of them come from.
fn gather(parts: &[SendPart], n: usize, piped: &mut u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(n);
    for part in parts {
        let more = part.range.len().min(n - bytes.len());
        bytes.extend_from_slice(&part.buf[part.range.start..part.range.start + more]);
        let of_pipe = part.pipe_len().min(n - bytes.len());
        if let Some(pipe) = part.pipe.as_ref().filter(|_| of_pipe > 0) {
            *piped += 1;
            let out = pipe.copy_out(of_pipe);
            assert_eq!(out.len(), of_pipe, "a pipe holds what its owner was told");
            bytes.extend(out);
        }
    }
    bytes
}
