//! Retries of the bios of a failed request, each by itself: so only those bios fail whose own
//! sectors cannot be read or written.
//!
//! Invariants:
//! * A bio is tried again at most once: it merges with nothing afterwards.
//! * Nothing of this is on the way of a request that succeeds.

use super::RequestChannel;
use crate::driver::Driver;
use crate::scheduler::Scheduler;
use drystone_core::{BioFlags, BioList, Env, Status, mistake};

/// Whether `status` tells of some sectors of a request, so that others may be good. Each other
/// status tells of the whole device or operation: a retry would fail again, or take as long again.
fn is_of_sectors(status: Status) -> bool {
    matches!(status, Status::Medium | Status::IoError | Status::Protection)
}

/// Prepare the bios of a failed request for a retry of each. False if they end with `status`.
pub(crate) fn prepare_retry(bios: &mut BioList, status: Status) -> bool {
    if bios.len() < 2 || !is_of_sectors(status) || mistake!("merge_fails_whole") {
        return false;
    }
    bios.set_flags(BioFlags::NOMERGE, true);
    // A tag was found for them once, so they may wait now; and they may go to another queue.
    bios.set_flags(BioFlags::NOWAIT | BioFlags::POLLED, false);
    true
}

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Retry the bios of a request that ended with `status`, if that may help any of them. They
    /// keep their time of submission.
    #[cold]
    pub(crate) fn retry_each(&mut self, env: &mut Env, bios: &mut BioList, status: Status) -> bool {
        // An abandoned context has no submitter that waits, and no owner that would send them.
        if env.is_draining() || !prepare_retry(bios, status) {
            return false;
        }
        while let Some(bio) = bios.pop() {
            self.enqueue(bio);
        }
        true
    }
}
