//! The requests in flight, by class, as both schedulers count them.

use drystone_queue::scheduler::deadline::CLASSES;

/// Scheduled requests, by class.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) dispatched: [u64; CLASSES],
    /// The number of them that had ended at the last sum, those of closed channels included.
    pub(super) ended: [u64; CLASSES],
    /// Of these, how many were of channels that are closed.
    pub(super) ended_closed: [u64; CLASSES],
}

impl Counts {
    /// True if requests of `class` are in flight; `ended` sums what ended of open channels.
    #[inline]
    pub(super) fn in_flight(&mut self, class: usize, ended: impl FnOnce() -> u64) -> bool {
        if self.dispatched[class] != self.ended[class] {
            self.ended[class] = self.ended_closed[class] + ended();
        }
        self.dispatched[class] != self.ended[class]
    }
}
