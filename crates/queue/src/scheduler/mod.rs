//! Schedulers: what decides the order of units between plug and tag (Linux: elevator).
//!
//! `none` belongs to each channel. A [`Scheduler`] is shared by all channels of a device: it takes
//! over bios, orders them, and gives units back to the channels that submitted them, with a tag.
//! The product has one, [`MqDeadline`]; a laboratory may put another in its place by type.

mod caller;
mod current_hctx;
pub mod deadline;
mod kind;
mod mq_deadline;
mod none;
mod port;
#[cfg(all(test, loom))]
mod turn_models;

pub(crate) use caller::ToRun;
pub use caller::{Caller, Outlet};
pub(crate) use current_hctx::CurrentHctx;
pub use drystone_core::turn::InsertAt;
pub use kind::SchedulerKind;
pub use mq_deadline::MqDeadline;
pub use none::NoneScheduler;
pub(crate) use port::{Grant, is_ours_alone};
pub use port::{Port, PortState, Ports, ended_of_all};

use crate::clock_use::ClockUse;
use crate::config::Config;
use drystone_core::clock::Ns;
use drystone_core::sync::LockCounters;
use drystone_core::{BioList, PortId};

/// The way bios of a call are dispatched without the turn, while the scheduler has no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// One by one, in the order that they have now.
    InOrder,
    /// As units that [`Scheduler::run_exclusive`] makes, if there are tags for all of them.
    Merged,
    /// They are not: [`Scheduler::run`] takes them.
    No,
}

/// A scheduler that all channels of a device share. Methods may be called from any thread.
pub trait Scheduler: Default + Send + Sync + 'static {
    /// Which I/Os share a reading of the clock.
    const CLOCK: ClockUse = ClockUse::Shared;

    /// The state that each channel keeps for it.
    type Local: Default + Send;

    /// Take over `bios` (emptied), which were submitted through the caller's channel, and let what
    /// may go to the driver go: [`Caller::grant`]. True if there is reason to come again once the
    /// caller has issued what it was granted.
    fn run(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        bios: &mut BioList,
        place: InsertAt,
    ) -> bool;

    /// The dispatch of `bios` that come at `now` while the scheduler has no work and tags are free.
    /// Only [`Exclusive::InOrder`] changes them. A scheduler that says `No` sees every bio.
    #[inline]
    fn exclusive(
        &self,
        _local: &mut Self::Local,
        _bios: &mut BioList,
        _now: Ns,
        _config: &Config,
    ) -> Exclusive {
        Exclusive::No
    }

    /// Grant all of `bios` (emptied), for which there are tags, to the caller.
    fn run_exclusive(
        &self,
        _local: &mut Self::Local,
        _caller: &mut Caller<'_>,
        _bios: &mut BioList,
    ) {
        unreachable!("`exclusive` did not say so");
    }

    /// Take out every bio of `port`, in no particular order, if the turn is free now. True if
    /// others must recheck afterwards.
    fn expel(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        port: PortId,
    ) -> (BioList, bool);

    /// True while units are kept or bios wait to be inserted. A context that frees a tag and then
    /// sees false may rely on it: no unit waits for that tag.
    fn has_work(&self) -> bool;

    /// True while a context has the turn.
    fn is_busy(&self) -> bool;

    /// The port of the channel that last published bios without getting to dispatch. A hint.
    fn last_publisher(&self) -> PortId;

    /// The channel behind `port` is closed; it has nothing with the scheduler. `remove` takes the
    /// port from the others' sight, while no thread sums the ports' counts. True if others must
    /// recheck afterwards.
    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool;
}
