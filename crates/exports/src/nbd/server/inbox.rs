//! The worker's inbox, for arrivals of the NBD server.
//!
//! No other file of the server imports this one, because the inbox knows all front ends. A listener
//! reaches inboxes by [`ConnectionInbox`].

use super::arrival::{Arrival, ConnectionInbox, Listener};
use super::incoming::Incoming;
use crate::server::{self, Client, Inbox};
use drystone_core::sync::LockCounters;
use std::sync::Arc;

impl From<Listener> for server::Arrival {
    fn from(listener: Listener) -> Self {
        Arrival::Listener(listener).into()
    }
}

impl From<Incoming> for server::Arrival {
    fn from(incoming: Incoming) -> Self {
        Arrival::Connection(incoming).into()
    }
}

impl ConnectionInbox for Inbox {
    fn connections(&self) -> u32 {
        Inbox::connections(self)
    }

    fn enter(&self) -> Client {
        Inbox::enter(self)
    }

    fn put_connection(&self, incoming: Incoming, user: &LockCounters) {
        self.put(incoming, user);
    }
}

/// The inboxes of workers, as a [`Listener`] takes them.
pub fn peers(inboxes: &[Arc<Inbox>]) -> Vec<Arc<dyn ConnectionInbox>> {
    let peer = |inbox: &Arc<Inbox>| -> Arc<dyn ConnectionInbox> { inbox.clone() };
    inboxes.iter().map(peer).collect()
}
