//! How I/Os share readings of the clock on a device that completes them in the call.

use drystone_core::Env;
use drystone_core::clock::Ns;

/// Which bios of a call share a clock reading. The product uses [`ClockUse::Shared`]; the
/// laboratory compares it with the others. The choice is made by type
/// ([`crate::scheduler::Scheduler::CLOCK`]), so the product has no branch for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockUse {
    /// All bios of one submission share a reading, and so do all that end together.
    Shared,
    /// All bios of one submission share a reading, but each end is read alone (as in "block: cache
    /// current nsec time in struct blk_plug", which caches on the issue side only).
    Plug,
    /// Each start and each end has its own reading.
    Each,
    /// The clock is never read. Everything that needs the time fails to work.
    Never,
}

impl ClockUse {
    /// The submission time of all bios of this call.
    #[inline(always)]
    pub(crate) fn submit_time(self, env: &mut Env) -> Ns {
        if self == ClockUse::Never { 0 } else { env.time.submit_time() }
    }

    /// Refresh the clock reading before held bios go to the driver, because this context may have
    /// read its clock long ago. Their time-outs then count from a reading within the permitted age.
    #[inline]
    pub(crate) fn before_issue(self, env: &mut Env) {
        if self != ClockUse::Never {
            env.time.recent();
        }
    }

    /// The start time of a bio that was submitted in a call at `now`.
    #[inline(always)]
    pub(crate) fn start(self, env: &mut Env, now: Ns) -> Ns {
        if self == ClockUse::Each { env.time.now() } else { now }
    }

    /// True if the end of each bio has its own reading.
    #[inline(always)]
    pub(crate) fn reads_each_end(self) -> bool {
        matches!(self, ClockUse::Plug | ClockUse::Each)
    }

    /// The completion time of all bios that ended in this call.
    #[inline(always)]
    pub(crate) fn completion_time(self, env: &mut Env) -> Ns {
        if self == ClockUse::Never { 0 } else { env.time.completion_time() }
    }
}
