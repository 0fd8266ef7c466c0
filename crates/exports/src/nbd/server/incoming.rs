//! Connections that were accepted, on their way to a worker.

use super::exports::ExportTable;
use crate::nbd::handshake::TlsPolicy;
use crate::nbd::tls::TlsConfig;
use crate::server::Client;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A socket that was accepted, with its listener's settings.
pub struct Incoming {
    /// The socket.
    pub socket: OwnedFd,
    /// The way its listener treats TLS.
    pub tls: ListenerTls,
    /// The exports of its listener.
    pub table: Arc<ExportTable>,
    /// Its place among the connections of the worker that it goes to
    /// ([`crate::server::Inbox::enter`]).
    pub assigned: Client,
}

/// The way a listener treats TLS.
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
