//! The configuration of a queue, which can change on a live device. Each channel keeps a copy, and
//! reads a counter once in each submit call to see whether the copy is current.

use crate::queues::QueueMap;
use crate::scheduler::deadline::Tunables;
use crate::scheduler::{Ports, SchedulerKind};
use drystone_core::{Limits, Published};

/// The published configuration.
pub type ConfigCell = Published<Config>;

/// The settings that may change on a live queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The limits in force, which include the user's own.
    pub limits: Limits,
    /// `queue/nomerges`: 0 for all merges, 1 for merges in the plug only, 2 for none.
    pub nomerges: u8,
    /// `queue/iostats`.
    pub iostats: bool,
    /// `queue/io_timeout` in nanoseconds.
    pub timeout_ns: u64,
    /// `queue/nr_requests`: the most requests that a hardware queue may have with the driver. With
    /// a scheduler, the most units that it may have kept or with the driver.
    pub nr_requests: u32,
    /// `queue/scheduler`.
    pub scheduler: SchedulerKind,
    /// `queue/iosched/*`.
    pub tunables: Tunables,
    /// `queue/iosched/straight`: batches bypass an empty scheduler.
    pub straight: bool,
    /// The channels that are open.
    pub ports: Ports,
    /// The hardware queues.
    pub(crate) map: QueueMap,
    /// The user's choice of `queue/io_poll`, even if there is no queue to poll.
    pub wants_poll: bool,
    /// The number of calls under way that tell the devices above that polling ends.
    pub(crate) polling_ends: u32,
    /// The user's choice of `queue/write_cache`, whatever the driver reports.
    pub write_cache: Option<bool>,
    /// The user's choice of `queue/discard_max_bytes`; the driver's own limit applies too.
    pub max_discard_bytes: Option<u64>,
    /// Channels end as soon as they have nothing in flight.
    pub(crate) is_retired: bool,
}

impl Config {
    /// True if polled I/O is accepted.
    pub fn polls(&self) -> bool {
        self.wants_poll && self.map.hw().poll > 0
    }

    /// True if the devices above may rely on polling.
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
