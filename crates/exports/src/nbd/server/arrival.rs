//! The arrivals of the NBD server: listeners, and connections that were accepted.

use super::exports::ExportTable;
use super::incoming::{Incoming, ListenerTls};
use crate::server::Inbox;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An arrival in a worker's inbox for its NBD server ([`crate::server::Inbox::put`]).
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

/// A socket that accepts connections.
pub struct Listener {
    /// The socket, bound and listening.
    pub socket: OwnedFd,
    /// How its connections treat TLS.
    pub tls: ListenerTls,
    /// The exports that it serves.
    pub table: Arc<ExportTable>,
    /// The inboxes of all workers, over which its connections are spread.
    pub peers: Vec<Arc<Inbox>>,
    /// A socket with this number or a higher one is closed at once: the kernel gives the lowest
    /// number that is free, so the process has few descriptors left, which others need.
    pub descriptors_max: i32,
}
