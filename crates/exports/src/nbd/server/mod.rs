//! The NBD server: sockets on a context's ring, requests as bios.
//!
//! One [`Worker`] runs on each data thread and owns that thread's context. A connection belongs
//! to one worker for its whole life, so no lock is between connections; the first worker accepts
//! and deals new sockets out through [`Inbox`]es.
//!
//! Bounds, so that no client harms another: connections in all, requests and bytes in flight of
//! each, a time for the handshake, a time without any request ([`Settings`]). A client that does
//! not read its replies keeps only its own requests waiting: they count until their reply is
//! sent, and nothing more is read from it.

mod buffers;
mod coalesce;
mod connection;
mod exports;
mod inbox;
mod membership;
mod service;
mod stream;
mod worker;

pub use exports::{Client, Export, ExportTable};
pub use inbox::{Inbox, Incoming};
pub use membership::Membership;
pub use worker::{Listener, Worker};

use super::handshake::TlsPolicy;
use super::tls::TlsConfig;

/// Bounds and times of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most connections of a listener; more are closed at once.
    pub max_connections: u32,
    /// Most requests in flight of a connection.
    pub max_in_flight: u32,
    /// Most bytes of requests in flight of a connection.
    pub max_bytes_in_flight: u64,
    /// Longest read or write request, bytes.
    pub max_request: u32,
    /// Time for the handshake, ns; 0 for no limit.
    pub handshake_timeout_ns: u64,
    /// Time without a request after which a connection is closed, ns; 0 for no limit.
    pub idle_timeout_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_connections: 4096,
            max_in_flight: 128,
            max_bytes_in_flight: 32 << 20,
            max_request: 32 << 20,
            handshake_timeout_ns: 10_000_000_000,
            idle_timeout_ns: 0,
        }
    }
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
