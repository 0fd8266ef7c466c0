//! The client's end of a connection, and the simulation's calls to the network.

use super::super::{State, World};
use super::witness::Witness;
use super::{
    Connection, ConnectionId, ListenerId, Listening, NetCounts, NetDue, NetOptions, Socket, To,
};
use drystone_core::clock::Ns;
use fastrand::Rng;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// The reason why no more bytes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The other end has closed.
    End,
    /// The connection was reset.
    Reset,
}

impl World {
    /// Set the properties of the network.
    pub fn set_net(&self, options: NetOptions, seed: u64) {
        let mut state = self.state();
        state.net.options = options;
        state.net.rng = Rng::with_seed(seed);
    }

    /// A socket for a server to accept from.
    pub fn listen(&self) -> (ListenerId, OwnedFd) {
        let (server, socket) = Witness::new();
        let mut state = self.state();
        let id = state.net.listeners.len();
        state.net.by_fd.insert(server.fd, Socket::Listener(id));
        let listening = Listening { server, open: true, accept: None, backlog: VecDeque::new() };
        state.net.listeners.push(listening);
        (id, socket)
    }

    /// Connect to a listener; its server accepts later. `None` if no server listens.
    pub fn connect(&self, listener: ListenerId) -> Option<ClientSocket> {
        let now = self.now();
        let mut state = self.state();
        state.net_look(now, None);
        if !state.net.listeners[listener].open {
            return None;
        }
        let id = state.net.connections.len();
        state.net.connections.push(Connection::default());
        state.net.listeners[listener].backlog.push_back(id);
        state.pump_listener(now, listener);
        drop(state);
        Some(ClientSocket { world: self.clone(), id })
    }

    /// Notice closes and shutdowns of sockets that the server did without a ring.
    pub fn look_at_sockets(&self) {
        let now = self.now();
        self.state().net_look(now, None);
    }

    /// Descriptors that the server has not closed.
    pub fn sockets_alive(&self) -> usize {
        let state = self.state();
        let connections = state.net.connections.iter().filter_map(|c| c.server.as_ref());
        let listeners = state.net.listeners.iter().map(|listener| &listener.server);
        connections.chain(listeners).filter(|server| server.is_open()).count()
    }

    /// Counts of what the network has done.
    pub fn net_counts(&self) -> NetCounts {
        self.state().net.counts
    }
}

/// A client's end of a connection, for one fiber. Dropped, it is closed.
#[derive(Debug)]
pub struct ClientSocket {
    world: World,
    id: ConnectionId,
}

impl ClientSocket {
    /// The world it is in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Send as many bytes as there is room for; 0 if there is no room now.
    ///
    /// # Errors
    /// The server takes no more.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Gone> {
        let now = self.world.now();
        let mut state = self.world.state();
        let capacity = state.net.options.capacity;
        let connection = &state.net.connections[self.id];
        if connection.client_reset {
            return Err(Gone::Reset);
        }
        if connection.to_client.over && !connection.server_reads {
            return Err(Gone::End);
        }
        let room = connection.to_server.room(capacity).min(bytes.len());
        if room == 0 {
            return Ok(0);
        }
        let n = state.net.piece(room);
        state.travel(now, self.id, To::Server, bytes[..n].to_vec());
        Ok(n)
    }

    /// Take the bytes that have arrived. Returns their number, which may be 0.
    ///
    /// # Errors
    /// Nothing more comes.
    pub fn receive(&self, into: &mut VecDeque<u8>) -> Result<usize, Gone> {
        let now = self.world.now();
        let mut state = self.world.state();
        let connection = &mut state.net.connections[self.id];
        let n = connection.to_client.arrived.len();
        if n == 0 && connection.client_reset {
            return Err(Gone::Reset);
        }
        if n == 0 && connection.to_client.over {
            return Err(Gone::End);
        }
        into.append(&mut connection.to_client.arrived);
        state.pump_send(now, self.id);
        Ok(n)
    }

    /// The fiber sleeps until an event of the socket, or until `until`.
    pub fn wait(&self, until: Option<Ns>) {
        let mut state = self.world.state();
        state.net.connections[self.id].sleeper = Some(state.running);
        drop(state);
        self.world.doze(until);
        self.world.state().net.connections[self.id].sleeper = None;
    }

    /// Shut down the sending side.
    pub fn end(&self) {
        let now = self.world.now();
        let mut state = self.world.state();
        let way = &mut state.net.connections[self.id].to_server;
        if !std::mem::replace(&mut way.ended, true) {
            state.net_later(now, self.id, To::Server, NetDue::End);
        }
    }

    /// Reset the connection: the server's operations fail.
    pub fn reset(self) {
        let now = self.world.now();
        let mut state = self.world.state();
        state.net.counts.resets += 1;
        state.net_later(now, self.id, To::Server, NetDue::Reset);
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        self.end();
        let now = self.world.now();
        let mut state = self.world.state();
        let connection = &mut state.net.connections[self.id];
        connection.client_gone = true;
        let unread = connection.to_client.travelling > 0 || connection.to_client.room(1) == 0;
        if unread {
            state.net_later(now, self.id, To::Server, NetDue::Reset);
        }
        connection_closed(&mut state, now, self.id);
    }
}

/// Runs a send that waits for a client that closes: it first finds room, and then that the client
/// is gone.
fn connection_closed(state: &mut State, now: Ns, id: ConnectionId) {
    state.net.connections[id].to_client.arrived.clear();
    state.pump_send(now, id);
}
