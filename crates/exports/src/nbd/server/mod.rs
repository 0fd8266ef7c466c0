//! The NBD server: sockets on a context's ring, requests as bios.
//!
//! It is a front end of each data thread's [`crate::server::Worker`]. A connection belongs to one
//! worker for its whole life, so no lock is between connections; the first worker accepts and
//! deals new sockets out through the doors ([`crate::server::Inbox`]) of all.
//!
//! Bounds, so that no client harms another: connections in all and of one client, reads and writes in
//! flight of each and their bytes, a time for the handshake, a time without any request ([`Settings`]). Connections that
//! have not chosen an export have a bound of their own ([`HANDSHAKES_MAX`]), from which the oldest of
//! whoever has most of them goes: so nobody keeps others out by opening connections. A client that does
//! not read its replies keeps only its own requests waiting: they count until their reply is
//! sent, and nothing more is read from it. What all of them may have together is bounded by the
//! [`Budget`](crate::server::Budget): of that the clients of one device and throttle group leave a part to others,
//! as each of them does, and an eighth of it is kept for requests of up to 1 MiB of clients that have nothing. A request
//! that finds too little waits in line, and a client that has moved less than 1 MiB in
//! [`Settings::stall_timeout_ns`], although it owes some, is cut off if somebody who has
//! nothing waits for the memory that it has. Beside the budget a connection has a minimum of its own (288 KiB), buffers
//! to receive into, and those of TLS: 0.6 MiB, 1.5 MiB with TLS.

mod coalesce;
mod connection;
mod connections;
mod exports;
mod op;
mod places;
mod service;
mod stream;
mod unaligned;
mod window;
mod write_locks;

pub use connections::Listener;
pub use exports::{Export, ExportTable};

pub(crate) use connections::Connections;

use super::handshake::TlsPolicy;
use super::tls::TlsConfig;
use crate::server::Client;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most connections of a listener, on each data thread, that have not chosen an export.
pub const HANDSHAKES_MAX: usize = 64;

/// Bounds and times of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most connections of a listener that have chosen an export; more are refused then.
    pub max_connections: u32,
    /// Most of them of one client: of one certificate, or else of one user id or address.
    pub max_connections_per_client: u32,
    /// Most requests in flight of a connection in each direction: so many reads, and as many others.
    pub max_in_flight: u32,
    /// Most bytes of a connection's requests in flight in each direction; a longer request goes alone.
    pub max_bytes_in_flight: u64,
    /// Longest read or write request, bytes.
    pub max_request: u32,
    /// Time for the handshake, ns; 0 for no limit.
    pub handshake_timeout_ns: u64,
    /// Time without a request after which a connection is closed, ns; 0 for no limit.
    pub idle_timeout_ns: u64,
    /// Time without a sign of life after which a TCP client is given up, ns. Its kernel gives one even
    /// while the client is idle.
    pub peer_timeout_ns: u64,
    /// A client is cut off that owes something (it has replies to take, or data to send) and has moved less than 1 MiB of
    /// it in this time, if others wait for the memory that its requests have, ns; whole seconds count.
    pub stall_timeout_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_connections: 4096,
            max_connections_per_client: 4096,
            max_in_flight: 256,
            max_bytes_in_flight: 64 << 20,
            max_request: 64 << 20,
            handshake_timeout_ns: 10_000_000_000,
            idle_timeout_ns: 0,
            peer_timeout_ns: 300_000_000_000,
            stall_timeout_ns: 30_000_000_000,
        }
    }
}

/// What comes to a worker's NBD server ([`crate::server::Inbox::put`]).
pub enum Arrival {
    /// The worker accepts connections on it from now on.
    Listener(Listener),
    /// The worker serves it.
    Connection(Incoming),
}

impl From<Listener> for crate::server::Arrival {
    fn from(listener: Listener) -> Self {
        Arrival::Listener(listener).into()
    }
}

impl From<Incoming> for crate::server::Arrival {
    fn from(incoming: Incoming) -> Self {
        Arrival::Connection(incoming).into()
    }
}

/// A socket that was accepted, with its listener's ways.
pub struct Incoming {
    /// The socket.
    pub socket: OwnedFd,
    /// How its listener treats TLS.
    pub tls: ListenerTls,
    /// The exports of its listener.
    pub table: Arc<ExportTable>,
    /// Its place among the connections of the worker that it goes to ([`crate::server::Inbox::enter`]).
    pub dealt: Client,
}

/// How a listener treats TLS.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// Off, optional or required.
    pub policy: TlsPolicy,
    /// Certificate and key; needed unless the policy is off.
    pub config: Option<TlsConfig>,
}

impl ListenerTls {
    /// No TLS.
    pub fn off() -> Self {
        ListenerTls { policy: TlsPolicy::Off, config: None }
    }
}
