//! The configuration of a queue that can change on a live device. Channels keep a copy and read
//! a counter once a submit call to see whether it is still the current one.

use crate::queues::QueueMap;
use crate::scheduler::deadline::Tunables;
use crate::scheduler::{Ports, SchedulerKind};
use drystone_core::{Limits, Published};

/// The configuration as channels find it.
pub type ConfigCell = Published<Config>;

/// The settings that may change on a live queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Limits in force, after the user's own.
    pub limits: Limits,
    /// `queue/nomerges`: 0 all merges, 1 only in the plug, 2 none.
    pub nomerges: u8,
    /// `queue/iostats`.
    pub iostats: bool,
    /// `queue/io_timeout` in nanoseconds.
    pub timeout_ns: u64,
    /// `queue/nr_requests`: how many requests a hardware queue may have with the driver; with a
    /// scheduler, how many units it may have kept or with the driver.
    pub nr_requests: u32,
    /// `queue/scheduler`.
    pub scheduler: SchedulerKind,
    /// `queue/iosched/*`.
    pub tunables: Tunables,
    /// `queue/iosched/straight`: batches go past an empty scheduler.
    pub straight: bool,
    /// The channels that are open.
    pub ports: Ports,
    /// The hardware queues.
    pub(crate) map: QueueMap,
    /// `queue/io_poll` as the user wishes it, whether there is a queue to poll or not.
    pub wants_poll: bool,
    /// The calls that are just telling the devices above that polling ends.
    pub(crate) polling_ends: u32,
    /// `queue/write_cache` as the user sees it, whatever the driver says.
    pub write_cache: Option<bool>,
    /// `queue/discard_max_bytes` of the user; the driver's own limit holds beside it.
    pub max_discard_bytes: Option<u64>,
    /// Channels go as soon as nothing of theirs is in flight.
    pub(crate) is_retired: bool,
}

impl Config {
    /// Polled I/O is accepted as such.
    pub fn polls(&self) -> bool {
        self.wants_poll && self.map.hw().poll > 0
    }

    /// True if the devices above may count on that.
    pub(crate) fn may_be_polled(&self) -> bool {
        self.polls() && self.polling_ends == 0
    }

    /// A configuration like that of a new queue without a scheduler.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn for_test() -> Self {
        let hw = crate::driver::HwQueues { default: 1, poll: 0, depth: 4 };
        Config {
            limits: Limits::default(),
            nomerges: 0,
            iostats: true,
            timeout_ns: 0,
            nr_requests: hw.depth,
            scheduler: SchedulerKind::None,
            tunables: Tunables::new(hw.depth),
            straight: true,
            ports: Ports::default(),
            map: QueueMap::new(hw),
            wants_poll: false,
            polling_ends: 0,
            write_cache: None,
            max_discard_bytes: None,
            is_retired: false,
        }
    }
}
