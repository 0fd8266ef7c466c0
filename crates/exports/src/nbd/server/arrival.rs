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

/// The inbox of a worker, as a listener that spreads connections sees it. Any thread may call.
pub trait ConnectionInbox: Send + Sync {
    /// Connections that were handed to the worker and are not closed.
    fn connections(&self) -> u32;

    /// Counts one more, until it is dropped.
    fn enter(&self) -> Client;

    /// Hands a connection to the worker. If that has ended, the socket is closed.
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
    /// A socket with this number or a higher one is closed at once: the kernel gives the lowest
    /// number that is free, so the process has few descriptors left, which others need.
    pub descriptors_max: i32,
}
