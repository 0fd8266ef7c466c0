//! Readings of the clock that several I/Os share, where a device ends them in the call.

use drystone_core::Env;
use drystone_core::clock::Ns;

/// Which bios of a call share a reading. The product's is [`ClockUse::Shared`]; the others are what
/// the laboratory compares it with. By type ([`crate::scheduler::Scheduler::CLOCK`]), so that the
/// product has no branch for their sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockUse {
    /// All that are submitted together share one, and all that end together.
    Shared,
    /// All that are submitted together do; each end is read ("block: cache current nsec time in
    /// struct blk_plug" by itself: it serves only the issue side).
    Plug,
    /// No two share one.
    Each,
    /// The clock is not read. Nothing that needs a time works.
    Never,
}

impl ClockUse {
    /// The time of all that is submitted in this call.
    #[inline(always)]
    pub(crate) fn submit_time(self, env: &mut Env) -> Ns {
        if self == ClockUse::Never { 0 } else { env.time.submit_time() }
    }

    /// Bios that were kept go to the driver now, perhaps long after this context last read its
    /// clock: their time-outs count from a reading that is no older than one may be.
    #[inline]
    pub(crate) fn before_issue(self, env: &mut Env) {
        if self != ClockUse::Never {
            env.time.recent();
        }
    }

    /// When a bio starts that was submitted in a call at `now`.
    #[inline(always)]
    pub(crate) fn start(self, env: &mut Env, now: Ns) -> Ns {
        if self == ClockUse::Each { env.time.now() } else { now }
    }

    /// True if the end of each bio has a reading of its own.
    #[inline(always)]
    pub(crate) fn reads_each_end(self) -> bool {
        matches!(self, ClockUse::Plug | ClockUse::Each)
    }

    /// The time of all that ended in this call.
    #[inline(always)]
    pub(crate) fn completion_time(self, env: &mut Env) -> Ns {
        if self == ClockUse::Never { 0 } else { env.time.completion_time() }
    }
}
