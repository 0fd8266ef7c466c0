//! The configuration of a queue that can change on a live device. Channels keep a copy and look
//! at a counter once a submit call to see whether it is still the current one.

use crate::scheduler::deadline::Tunables;
use crate::scheduler::{Ports, SchedulerKind};
use drystone_core::{Limits, Published};

/// The configuration as channels find it.
pub type ConfigCell = Published<Config>;

/// What may change on a live queue.
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
    /// Polled I/O is accepted as such.
    pub io_poll: bool,
    /// `queue/write_cache` as the user sees it, whatever the driver says.
    pub write_cache: Option<bool>,
    /// `queue/discard_max_bytes` of the user; the driver's own limit holds beside it.
    pub max_discard_bytes: Option<u64>,
}
