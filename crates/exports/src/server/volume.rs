//! A volume that is served, and the count of its clients.

use super::Membership;
use drystone_core::{Device, Priority};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A device under a name, and what every front end needs to know to serve it.
#[derive(Clone)]
pub struct Volume {
    /// The name of the export.
    pub name: String,
    /// What is served.
    pub device: Arc<dyn Device>,
    /// Refuse writes, whatever the device does.
    pub read_only: bool,
    /// Class and level of its clients' I/O.
    pub priority: Priority,
    /// Which throttle group each client's I/O belongs to.
    pub membership: Membership,
}

/// How many clients there are; its clones count the same. Any thread may ask.
#[derive(Clone, Default)]
pub struct Clients(Arc<AtomicU32>);

impl Clients {
    /// The number.
    pub fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Count one more, until it is dropped.
    pub(crate) fn enter(&self) -> Client {
        self.0.fetch_add(1, Relaxed);
        Client(self.0.clone())
    }
}

/// One client, counted while this lives.
pub struct Client(Arc<AtomicU32>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_count_while_they_are_there() {
        let clients = Clients::default();
        let (first, second) = (clients.enter(), clients.clone().enter());
        assert_eq!(clients.count(), 2);
        drop(first);
        assert_eq!(clients.count(), 1);
        drop(second);
        assert_eq!(clients.count(), 0);
    }
}
