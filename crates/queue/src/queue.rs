//! The request queue as a device: the part that all contexts share. Its attributes are rows in
//! `attributes.rs`.

mod attributes;

use crate::channel::RequestChannel;
use crate::config::{Config, ConfigCell};
use crate::driver::Driver;
use crate::queues::QueueMap;
use crate::scheduler::deadline::Tunables;
use crate::scheduler::{MqDeadline, Port, Ports, Scheduler, SchedulerKind};
use crate::shared::{DeviceBusy, Shared};
use drystone_core::device::TypedDevice;
use drystone_core::failures::Failures;
use drystone_core::histogram::Snapshot;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::stats::{DeviceStats, DiskStats};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Channel, ChannelId, Device, DeviceInfo, Env, Extent, Holders, Limits, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// The options of a new queue; `None` keeps the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOptions {
    /// `queue/scheduler`; by default `mq-deadline` on devices with one hardware queue that want it.
    pub scheduler: Option<SchedulerKind>,
    /// `queue/iosched/*` by name: the scheduler's tunables.
    pub iosched: Vec<(&'static str, String)>,
    /// `queue/nr_requests` of each hardware queue: the most requests with the driver; with a
    /// scheduler, the most units that are kept or with the driver.
    pub nr_requests: Option<u32>,
    /// `queue/nomerges`: 0, 1 or 2.
    pub nomerges: Option<u8>,
    /// `queue/iostats`.
    pub iostats: Option<bool>,
    /// `queue/io_timeout` in milliseconds.
    pub io_timeout_ms: Option<u64>,
    /// `queue/max_sectors_kb`.
    pub max_sectors_kb: Option<u32>,
    /// `queue/io_poll`.
    pub io_poll: Option<bool>,
    /// Refuse writes.
    pub read_only: bool,
    /// Override of `queue/write_cache`: true is `write back`.
    pub write_cache: Option<bool>,
}

/// Default request time-out (Linux: 30 s).
const TIMEOUT_MS: u64 = 30_000;

/// The default of `queue/nr_requests` with a scheduler: Linux's value for drivers with a depth of
/// at least 128 (`2 * BLKDEV_DEFAULT_RQ`). Kept units need no tags here, so a smaller depth is no
/// reason to keep fewer units, which would only make their order worse.
const SCHED_RQ: u32 = 256;
/// The most that `queue/nr_requests` may be with a scheduler (Linux: `MAX_SCHED_RQ`).
const SCHED_RQ_MAX: u32 = 2048;

/// A leaf device: a driver behind a request queue.
pub struct RequestQueue<D: Driver, S: Scheduler = MqDeadline> {
    shared: Arc<Shared<D, S>>,
}

impl<D: Driver> RequestQueue<D> {
    /// Put a queue in front of `driver`. `locks` counts the control plane's locks.
    ///
    /// # Errors
    /// An option is outside the range that the driver permits.
    pub fn new(
        name: &str,
        driver: D,
        options: &QueueOptions,
        locks: Arc<LockCounters>,
    ) -> Result<Self> {
        Self::with_scheduler(name, driver, options, locks)
    }
}

impl<D: Driver, S: Scheduler> RequestQueue<D, S> {
    /// The same with another scheduler instead of `mq-deadline`.
    ///
    /// # Errors
    /// An option is outside the range that the driver permits.
    pub fn with_scheduler(
        name: &str,
        driver: D,
        options: &QueueOptions,
        locks: Arc<LockCounters>,
    ) -> Result<Self> {
        let map = QueueMap::new(driver.hw_queues());
        let most = map.hw().depth;
        let config = Config {
            limits: driver.limits(),
            nomerges: 0,
            iostats: true,
            timeout_ns: TIMEOUT_MS * 1_000_000,
            nr_requests: most,
            scheduler: SchedulerKind::None,
            tunables: Tunables::new(most),
            straight: !driver.limits().rotational,
            ports: Ports::default(),
            map,
            wants_poll: true,
            polling_ends: 0,
            write_cache: options.write_cache,
            max_discard_bytes: None,
            is_retired: false,
        };
        let queue = RequestQueue {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                driver,
                config: ConfigCell::new(config),
                stats: DeviceStats::new(locks.sibling()),
                holders: Holders::new(locks.sibling()),
                scheduler: S::default(),
                busy: DeviceBusy::default(),
                retired: Lock::new(LockClass::Control, Vec::new()),
                retired_locks: locks.sibling(),
                locks,
                read_only: options.read_only,
                has_volatile_cache: AtomicBool::new(true),
            }),
        };
        queue.refresh_limits(None)?;
        queue.set_scheduler(
            options.scheduler.unwrap_or_else(|| default_scheduler(queue.driver())),
        )?;
        queue.apply(options)?;
        Ok(queue)
    }

    /// The tags of hardware queue `hctx`.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tags(&self, hctx: usize) -> crate::queues::Tags {
        self.config().map.sets()[hctx].clone()
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.shared.driver
    }

    /// Follow limits that changed in the driver (it grew, or lost its discard).
    ///
    /// # Errors
    /// `max_bytes` is outside the permitted range.
    pub fn refresh_limits(&self, max_bytes: Option<u32>) -> Result<()> {
        self.set_limits(|config| {
            config.limits.max_bytes = max_bytes.unwrap_or(config.limits.max_bytes);
        })
    }

    /// Change the user's choices, and combine them with the driver's limits again.
    fn set_limits(&self, change: impl FnOnce(&mut Config)) -> Result<()> {
        let s = &self.shared;
        s.config.update(&s.locks, |config| {
            change(config);
            let hw = s.driver.limits().normalized();
            let discard = config.max_discard_bytes.unwrap_or(u64::MAX).min(hw.max_discard_bytes);
            config.limits = Limits {
                read_only: hw.read_only || s.read_only,
                write_cache: config.write_cache.unwrap_or(hw.write_cache),
                max_bytes: config.limits.max_bytes.min(hw.max_bytes),
                max_discard_bytes: discard,
                ..hw
            }
            .normalized();
            s.has_volatile_cache.store(config.limits.write_cache, Relaxed);
            Ok(())
        })
    }

    fn config(&self) -> Arc<Config> {
        self.shared.config.get(&self.shared.locks).1
    }

    fn depth(&self) -> u32 {
        self.shared.driver.hw_queues().depth.max(1)
    }

    /// Change the scheduler of the live device. The former scheduler goes on to dispatch its units;
    /// nothing waits for that. Depth and tunables get their defaults, as in Linux.
    fn set_scheduler(&self, kind: SchedulerKind) -> Result<()> {
        let depth = self.depth();
        let nr_requests = match kind {
            SchedulerKind::None => depth,
            SchedulerKind::MqDeadline => SCHED_RQ,
        };
        self.set_config(|c| {
            (c.scheduler, c.nr_requests) = (kind, nr_requests);
            c.tunables = Tunables::new(nr_requests);
            c.straight = !c.limits.rotational;
            self.limit_tags(c);
        })?;
        self.wake_waiters();
        Ok(())
    }

    /// Limit the requests with the driver to `nr_requests`.
    fn limit_tags(&self, config: &Config) {
        let limit = config.nr_requests.min(self.depth());
        config.map.sets().iter().for_each(|tags| tags.set_limit(limit));
    }

    /// Wake the channels that wait for a tag if tags may be handed out now, even if their owners
    /// are away.
    fn wake_waiters(&self) {
        for tags in self.config().map.sets() {
            let mut woken = Vec::new();
            tags.wake(&self.shared.locks, |message| woken.push(message));
            woken.into_iter().for_each(Message::send_and_kick);
        }
    }

    fn change_queues(&self, config: &mut Config, default: u32, poll: u32) {
        config.map.change(default, poll, config.nr_requests.min(self.depth()));
    }

    /// Have each channel follow the change and move to its new queues, even if its owner is away. A
    /// channel without requests in flight moves at once. Nothing waits for the others.
    fn tell_channels(&self) {
        self.config().ports.iter().for_each(|port| port.doorbell().clone().send_and_kick());
    }

    /// Make a change by which polling ends. The devices above are told before it takes effect, and
    /// none of them begins to rely on polling meanwhile.
    fn end_polling(&self, change: impl FnOnce(&mut Config)) -> Result<()> {
        self.set_config(|c| c.polling_ends += 1)?;
        self.shared.holders.polling_ends();
        self.set_config(|c| {
            c.polling_ends -= 1;
            change(c);
        })
    }

    /// Have the driver change one of its own attributes, and its queues follow the change. False if
    /// it has none of this name.
    fn set_driver_attribute(&self, name: &str, value: &str) -> Result<bool> {
        let Some(changed) = self.shared.driver.set_attribute(name, value) else {
            return Ok(false);
        };
        changed.and_then(|()| self.refresh_limits(None))?;
        self.tell_channels();
        Ok(true)
    }

    fn set_config(&self, change: impl FnOnce(&mut Config)) -> Result<()> {
        self.shared.config.update(&self.shared.locks, |config| {
            change(config);
            Ok(())
        })
    }
}

/// The default scheduler of a queue: `mq-deadline` if the device has one hardware queue and
/// ordering its requests is useful.
pub fn default_scheduler(driver: &impl Driver) -> SchedulerKind {
    match driver.hw_queues().default == 1 && driver.wants_scheduler() {
        true => SchedulerKind::MqDeadline,
        false => SchedulerKind::None,
    }
}

/// The highest value of `queue/nomerges`.
pub const NOMERGES_MAX: u64 = 2;

/// The range of `queue/max_sectors_kb`. `hw_kb` is `queue/max_hw_sectors_kb`; a request must be
/// able to take a page and a logical block.
pub fn max_sectors_kb_range(hw_kb: u64, logical_block_size: u32) -> (u64, u64) {
    (u64::from(logical_block_size >> 10).max(4).min(hw_kb), hw_kb)
}

/// The highest value of `queue/nr_requests` with `scheduler`, in front of `driver`.
pub fn most_requests(driver: &impl Driver, scheduler: SchedulerKind) -> u32 {
    match scheduler {
        SchedulerKind::None => driver.hw_queues().depth.max(1),
        SchedulerKind::MqDeadline => SCHED_RQ_MAX,
    }
}

impl<D: Driver, S: Scheduler> TypedDevice for RequestQueue<D, S> {
    type Channel = RequestChannel<D, S>;

    fn open_typed(&self, env: &mut Env, id: ChannelId) -> Result<Self::Channel> {
        let shared = &self.shared;
        let driver = shared.driver.open_queue(env, id, self.depth())?;
        let stats = shared.stats.for_channel();
        Ok(RequestChannel::new(shared.clone(), driver, stats, id, env))
    }
}

impl<D: Driver, S: Scheduler> Device for RequestQueue<D, S> {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.shared.name.clone(),
            kind: self.shared.driver.kind(),
            size_bytes: self.shared.driver.size_bytes(),
            limits: self.config().limits,
        }
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        Ok(Box::new(self.open_typed(env, id)?))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.shared.driver.extents(offset, length, max)
    }

    fn stats(&self) -> DiskStats {
        self.shared.stats.sum()
    }

    fn latencies(&self, group: OpGroup) -> Snapshot {
        self.shared.stats.latencies(group)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.get(name)
    }

    fn failures(&self) -> Option<&Failures> {
        Some(&self.shared.stats.failures)
    }

    fn has_volatile_cache(&self) -> bool {
        self.shared.has_volatile_cache.load(Relaxed)
    }

    fn fills_pipes(&self) -> bool {
        self.shared.driver.fills_pipes()
    }

    fn holders(&self) -> Option<&Holders> {
        Some(&self.shared.holders)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        self.set(name, value)?;
        self.shared.holders.changed();
        Ok(())
    }

    fn retire(&self) {
        let mut ports = Ports::default();
        let retired = self.set_config(|config| {
            config.is_retired = true;
            ports = config.ports.clone();
        });
        debug_assert!(retired.is_ok());
        let mut left = self.shared.retired.lock(&self.shared.retired_locks);
        left.retain(|port| port.strong_count() > 0);
        let known = |port: &Arc<Port>| left.iter().any(|other| other.as_ptr() == Arc::as_ptr(port));
        let new: Vec<_> = ports.iter().filter(|port| !known(port)).map(Arc::downgrade).collect();
        left.extend(new);
        // This thread must not keep a reference to a port that a closing channel checks.
        drop(ports);
        let doorbells = left.iter().filter_map(|port| Some(port.upgrade()?.doorbell().clone()));
        let doorbells: Vec<_> = doorbells.collect();
        drop(left);
        doorbells.into_iter().for_each(Message::send_and_kick);
    }
}
