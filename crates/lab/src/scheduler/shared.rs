//! Ours, but every bio goes through the trees that all share, also while nobody's are kept: what
//! the turn costs where it cannot be avoided.

use drystone_core::sync::LockCounters;
use drystone_core::{BioList, PortId};
use drystone_queue::ClockUse;
use drystone_queue::scheduler::{Caller, InsertAt, MqDeadline, Port, Scheduler};

/// [`MqDeadline`] without its way for bios that need not meet others.
pub type SharedOnly = Clocked<{ ClockUse::Shared as u8 }>;

/// The same, in a queue that uses the clock in the way `USE`: a [`ClockUse`] as a number.
#[derive(Default)]
pub struct Clocked<const USE: u8>(MqDeadline);

impl<const USE: u8> Scheduler for Clocked<USE> {
    const CLOCK: ClockUse = match USE {
        use_ if use_ == ClockUse::Plug as u8 => ClockUse::Plug,
        use_ if use_ == ClockUse::Each as u8 => ClockUse::Each,
        use_ if use_ == ClockUse::Never as u8 => ClockUse::Never,
        _ => ClockUse::Shared,
    };

    type Local = <MqDeadline as Scheduler>::Local;

    #[inline]
    fn run(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        bios: &mut BioList,
        place: InsertAt,
    ) -> bool {
        self.0.run(local, caller, bios, place)
    }

    fn expel(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        port: PortId,
    ) -> (BioList, bool) {
        self.0.expel(local, caller, port)
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.0.has_work()
    }

    fn is_busy(&self) -> bool {
        self.0.is_busy()
    }

    fn last_publisher(&self) -> PortId {
        self.0.last_publisher()
    }

    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool {
        self.0.closed(port, locks, remove)
    }
}
