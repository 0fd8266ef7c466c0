//! The state of a start's NBD server that other fibers see.

use crate::world::ListenerId;
use drystone_exports::server::Inbox;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The workers and listeners of a start; nothing in a scenario without a server.
#[derive(Default)]
pub(crate) struct Served {
    pub(super) inboxes: RefCell<Vec<Arc<Inbox>>>,
    pub(super) listeners: RefCell<Vec<ListenerId>>,
    /// Fibers of workers that have not ended.
    workers: Cell<u64>,
    /// The server has been told to stop.
    is_stopping: Cell<bool>,
}

impl Served {
    /// Fibers of workers that have not ended.
    pub(crate) fn workers(&self) -> u64 {
        self.workers.get()
    }

    /// So many workers begin.
    pub(super) fn begin_workers(&self, workers: u64) {
        self.workers.set(workers);
    }

    /// A worker has ended.
    pub(super) fn end_worker(&self) {
        self.workers.set(self.workers.get() - 1);
    }

    /// True if the server has been told to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Let it finish its requests in flight and close its connections.
    pub(crate) fn stop(&self) {
        self.is_stopping.set(true);
        self.inboxes.borrow().iter().for_each(|inbox| inbox.stop());
    }
}
