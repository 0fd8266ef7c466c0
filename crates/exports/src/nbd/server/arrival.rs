//! The arrivals of the NBD server: listeners, and connections that were accepted.

use super::exports::ExportTable;
use super::incoming::{Incoming, ListenerTls};
use crate::server::Client;
use drystone_core::sync::LockCounters;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An arrival in a worker's inbox for its NBD server ([`crate::server::Inbox::put`]).
pub enum Arrival {
    /// The worker accepts connections on it from now on.
    Listener(Listener),
    /// The worker serves it.
    Connection(Incoming),
}

/// The inbox of a worker, as seen by a listener that spreads connections. Any thread may call.
pub trait ConnectionInbox: Send + Sync {
    /// Connections that were handed to the worker and are not closed.
    fn connections(&self) -> u32;

    /// Counts one more, until it is dropped.
    fn enter(&self) -> Client;

    /// Hands a connection to the worker; closes the socket if the worker has ended.
    fn put_connection(&self, incoming: Incoming, user: &LockCounters);
}

/// A socket that accepts connections.
pub struct Listener {
    /// The socket, bound and listening.
    pub socket: OwnedFd,
    /// The way its connections treat TLS.
    pub tls: ListenerTls,
    /// The exports that it serves.
    pub table: Arc<ExportTable>,
    /// The inboxes of all workers, over which its connections are spread.
    pub peers: Vec<Arc<dyn ConnectionInbox>>,
    /// The server closes a new socket at once if its number is this or higher. The kernel gives the
    /// lowest free number, so the process then has few descriptors left, which other uses need.
    pub descriptors_max: i32,
}
