//! The state that the writers of an array in Linux's design share with its thread.

use std::sync::Arc;

use drystone_core::primitive::{AtomicBool, AtomicU64};
use drystone_core::sync::{Lock, LockCounters, LockRegistry};
use drystone_raid::layout::Layout;

use super::array::Ticket;
use super::cache::{Cache, STRIPE_SECTORS};

/// Bytes of a stripe on each member.
pub(super) const PAGE: usize = STRIPE_SECTORS as usize * 512;

/// A page to be written into a stripe.
pub(super) struct Page {
    pub(super) role: u32,
    pub(super) data: Arc<[u8]>,
    pub(super) from: usize,
    pub(super) ticket: Arc<Ticket>,
}

impl Page {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[self.from..self.from + PAGE]
    }
}

/// The state that writers share with raid5d.
pub(super) struct Shared {
    pub(super) cache: Cache<Page>,
    pub(super) layout: Layout,
    pub(super) flushes: Lock<Vec<Arc<Ticket>>>,
    /// Pages whose writes have ended.
    pub(super) written: AtomicU64,
    pub(super) failed: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) registry: Arc<LockRegistry>,
    /// Counters of the locks that the array's own calls take, such as a rescue.
    pub(super) own: Arc<LockCounters>,
}
