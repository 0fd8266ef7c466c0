//! A request of several bios that failed: each bio is tried again by itself, so that only those fail
//! whose own sectors cannot be read or written.
//!
//! Invariants:
//! * A bio is tried again at most once: it merges with nothing afterwards.
//! * Nothing of this is on the way of a request that succeeds.

use crate::channel::RequestChannel;
use crate::driver::Driver;
use crate::scheduler::Scheduler;
use crate::unit::Unit;
use drystone_core::{BioFlags, BioList, Env, Status, mistake};

/// Whether `status` tells of some sectors of a request, so that its others may be good. All others
/// tell of the whole device or operation: trying again would fail again, or take as long again.
fn is_of_sectors(status: Status) -> bool {
    matches!(status, Status::Medium | Status::IoError | Status::Protection)
}

/// Make the bios of a request that failed ready to go alone. False if they are to end with `status`.
pub(crate) fn make_lone(bios: &mut BioList, status: Status) -> bool {
    if bios.len() < 2 || !is_of_sectors(status) || mistake!("merge_fails_whole") {
        return false;
    }
    bios.set_flags(BioFlags::NOMERGE, true);
    // They were let in once, so they may wait now; and their submitter may look for them elsewhere.
    bios.set_flags(BioFlags::NOWAIT | BioFlags::POLLED, false);
    true
}

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Send the bios of a request that ended with `status` again, each alone, if that may help any of
    /// them. They keep their time of submission.
    #[cold]
    pub(crate) fn try_apart(&mut self, env: &mut Env, bios: &mut BioList, status: Status) -> bool {
        // Nobody waits for what an abandoned context has, nor would anybody send it.
        if env.is_draining() || !make_lone(bios, status) {
            return false;
        }
        while let Some(bio) = bios.pop() {
            match self.is_elevated() {
                true => self.elevate(bio),
                false => self.sched.insert(Unit::new(bio), false),
            }
        }
        true
    }
}
