//! The request queue as a device: what all contexts share, and its attributes.

use crate::channel::RequestChannel;
use crate::config::{Config, ConfigCell};
use crate::driver::Driver;
use crate::queues::{QUEUES_MAX, QueueMap};
use crate::scheduler::deadline::Tunables;
use crate::scheduler::{MqDeadline, Port, Ports, Scheduler, SchedulerKind};
use crate::shared::{DeviceBusy, Shared};
use drystone_core::attribute::{self, parse_in};
use drystone_core::device::TypedDevice;
use drystone_core::failures::Failures;
use drystone_core::histogram::Snapshot;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::stats::{DeviceStats, DiskStats};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Channel, Device, DeviceInfo, Env, Error, Extent, Holders, Limits, Result};
use std::sync::Arc;

/// Settings of a queue that its maker may choose; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOptions {
    /// `queue/scheduler`; by default `mq-deadline` on devices with one hardware queue that want it.
    pub scheduler: Option<SchedulerKind>,
    /// `queue/iosched/*` by name: the scheduler's tunables.
    pub iosched: Vec<(&'static str, String)>,
    /// `queue/nr_requests`: of each hardware queue, requests with the driver; with a scheduler,
    /// units kept or with the driver.
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

/// With a scheduler, `queue/nr_requests` begins at this: what Linux has where the driver's depth is
/// 128 or more (`2 * BLKDEV_DEFAULT_RQ`). Units are not made of tags here, so a small depth is no
/// reason to keep fewer, which would only spoil their order.
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
    /// When an option is outside what the driver permits.
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
    /// The same with another scheduler in the place of `mq-deadline`.
    ///
    /// # Errors
    /// When an option is outside what the driver permits.
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
            }),
        };
        queue.refresh_limits(None)?;
        queue.set_scheduler(
            options.scheduler.unwrap_or_else(|| default_scheduler(queue.driver())),
        )?;
        queue.apply(options)?;
        Ok(queue)
    }

    /// Tags of hardware queue `hctx`.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tags(&self, hctx: usize) -> crate::queues::Tags {
        self.config().map.sets()[hctx].clone()
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.shared.driver
    }

    fn apply(&self, options: &QueueOptions) -> Result<()> {
        let values = [
            ("queue/nr_requests", options.nr_requests.map(|v| v.to_string())),
            ("queue/nomerges", options.nomerges.map(|v| v.to_string())),
            ("queue/iostats", options.iostats.map(|v| u8::from(v).to_string())),
            ("queue/io_timeout", options.io_timeout_ms.map(|v| v.to_string())),
            ("queue/max_sectors_kb", options.max_sectors_kb.map(|v| v.to_string())),
            ("queue/io_poll", options.io_poll.map(|v| u8::from(v).to_string())),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                self.set_attribute(name, &value)?;
            }
        }
        options.iosched.iter().try_for_each(|(name, value)| self.set_iosched(name, value))
    }

    /// Take over limits that changed in the driver (it grew, or lost its discard).
    ///
    /// # Errors
    /// Never with `max_bytes` unset; else when it is outside the permitted range.
    pub fn refresh_limits(&self, max_bytes: Option<u32>) -> Result<()> {
        self.set_limits(|config| {
            config.limits.max_bytes = max_bytes.unwrap_or(config.limits.max_bytes);
        })
    }

    /// Change what the user wishes, and combine that with the driver's limits again.
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
            Ok(())
        })
    }

    fn config(&self) -> Arc<Config> {
        self.shared.config.get(&self.shared.locks).1
    }

    fn set_max_sectors(&self, value: &str) -> Result<()> {
        let hw = self.shared.driver.limits().normalized().max_bytes >> 10;
        let block = self.config().limits.logical_block_size;
        let (least, most) = max_sectors_kb_range(hw.into(), block);
        let kb = parse_in("queue/max_sectors_kb", value, least, most)?;
        self.refresh_limits(Some((kb as u32) << 10))
    }

    /// `queue/write_cache`: what the queue believes of the device, which itself stays as it is.
    fn set_write_cache(&self, name: &str, value: &str) -> Result<()> {
        let write_cache = match value.trim() {
            "write back" => true,
            "write through" => false,
            _ => {
                return Err(Error::invalid(format!(
                    "{name}: '{value}' is not permitted: write back or write through is"
                )));
            }
        };
        self.set_limits(|c| c.write_cache = Some(write_cache))
    }

    fn set_discard_max(&self, name: &str, value: &str) -> Result<()> {
        let hw = self.shared.driver.limits().normalized();
        let (most, unit) = (hw.max_discard_bytes, u64::from(hw.discard_granularity.max(1)));
        let bytes =
            value.trim().parse().ok().filter(|n: &u64| *n <= most && n.is_multiple_of(unit));
        let Some(bytes) = bytes else {
            return Err(Error::invalid(format!(
                "{name}: '{value}' is not permitted: a multiple of {unit} from 0 to {most} is"
            )));
        };
        self.set_limits(|c| c.max_discard_bytes = Some(bytes))
    }

    fn depth(&self) -> u32 {
        self.shared.driver.hw_queues().depth.max(1)
    }

    /// Change the scheduler on the live device. What the former one has goes on to be dispatched;
    /// nothing waits for it. Depth and tunables begin anew, as in Linux.
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

    /// No more requests than `nr_requests` are with the driver.
    fn limit_tags(&self, config: &Config) {
        let limit = config.nr_requests.min(self.depth());
        config.map.sets().iter().for_each(|tags| tags.set_limit(limit));
    }

    fn set_scheduler_named(&self, name: &str, value: &str) -> Result<()> {
        let Some(kind) = SchedulerKind::named(value.trim()) else {
            let names = SchedulerKind::ALL.map(SchedulerKind::name).join(" or ");
            let text = format!("{name}: '{value}' is not permitted: {names} is");
            return Err(Error::invalid(text));
        };
        // Choosing the one in force changes nothing, as in Linux.
        if kind == self.config().scheduler { Ok(()) } else { self.set_scheduler(kind) }
    }

    /// The schedulers, the one in force in brackets.
    fn scheduler_text(&self) -> String {
        let current = self.config().scheduler;
        let text = |kind: SchedulerKind| match kind == current {
            true => format!("[{}]", kind.name()),
            false => kind.name().to_owned(),
        };
        SchedulerKind::ALL.map(text).join(" ")
    }

    fn iosched(&self, name: &str) -> Option<String> {
        let config = self.config();
        match (config.scheduler, name) {
            (SchedulerKind::None, _) => None,
            (_, "straight") => Some(u8::from(config.straight).to_string()),
            _ => config.tunables.get(name),
        }
    }

    fn set_iosched(&self, name: &str, value: &str) -> Result<()> {
        let full = format!("queue/iosched/{name}");
        if self.config().scheduler == SchedulerKind::None {
            let text =
                format!("{full}: {} has no scheduler: set queue/scheduler first", self.shared.name);
            return Err(Error::invalid(text));
        }
        if name == "straight" {
            let n = parse_in(&full, value, 0, 1)?;
            return self.set_config(|c| c.straight = n == 1);
        }
        self.shared.config.update(&self.shared.locks, |config| {
            config.tunables.set(name, value).unwrap_or_else(|| {
                Err(Error::invalid(format!("{full} is not an attribute of {}", self.shared.name)))
            })
        })
    }

    fn set_nr_requests(&self, name: &str, value: &str) -> Result<()> {
        let most = most_requests(self.driver(), self.config().scheduler);
        let n = parse_in(name, value, 1, most.into())? as u32;
        self.set_config(|c| {
            (c.nr_requests, c.tunables.async_depth) = (n, n);
            self.limit_tags(c);
        })?;
        self.wake_waiters();
        Ok(())
    }

    /// Wake the channels that wait for a tag that may be handed out now, even if their owners are
    /// away.
    fn wake_waiters(&self) {
        for tags in self.config().map.sets() {
            let mut woken = Vec::new();
            tags.wake(&self.shared.locks, |message| woken.push(message));
            woken.into_iter().for_each(Message::send_and_kick);
        }
    }

    fn set_submit_queues(&self, name: &str, value: &str) -> Result<()> {
        let n = parse_in(name, value, 1, QUEUES_MAX.into())? as u32;
        self.set_config(|c| self.change_queues(c, n, c.map.hw().poll))?;
        self.tell_channels();
        Ok(())
    }

    /// Without a poll queue nothing is polled; `queue/io_poll` is remembered.
    fn set_poll_queues(&self, name: &str, value: &str) -> Result<()> {
        let n = parse_in(name, value, 0, QUEUES_MAX.into())? as u32;
        match n {
            0 => self.end_polling(|c| self.change_queues(c, c.map.hw().default, 0)),
            _ => self.set_config(|c| self.change_queues(c, c.map.hw().default, n)),
        }?;
        self.tell_channels();
        Ok(())
    }

    fn change_queues(&self, config: &mut Config, default: u32, poll: u32) {
        config.map.change(default, poll, config.nr_requests.min(self.depth()));
    }

    /// Each channel takes over what has changed, and goes to the queues that it is to use, even if
    /// its owner is away; to those at once if nothing of it is in flight. Nothing waits for that.
    fn tell_channels(&self) {
        self.config().ports.iter().for_each(|port| port.doorbell().clone().send_and_kick());
    }

    /// Make a change by which polling ends. Before it happens the devices above are told, and none
    /// begins to count on polling meanwhile.
    fn end_polling(&self, change: impl FnOnce(&mut Config)) -> Result<()> {
        self.set_config(|c| c.polling_ends += 1)?;
        self.shared.holders.polling_ends();
        self.set_config(|c| {
            c.polling_ends -= 1;
            change(c);
        })
    }

    /// Let the driver change one of its own attributes, and its queues take that over; false if it
    /// has none of that name.
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

/// The scheduler of a queue whose maker chose none: `mq-deadline` where there is one hardware
/// queue whose requests are worth ordering.
pub fn default_scheduler(driver: &impl Driver) -> SchedulerKind {
    match driver.hw_queues().default == 1 && driver.wants_scheduler() {
        true => SchedulerKind::MqDeadline,
        false => SchedulerKind::None,
    }
}

/// Most that `queue/nomerges` may be.
pub const NOMERGES_MAX: u64 = 2;

/// The least and the most that `queue/max_sectors_kb` may be: `hw_kb` is `queue/max_hw_sectors_kb`,
/// and a request takes at least a page and a logical block.
pub fn max_sectors_kb_range(hw_kb: u64, logical_block_size: u32) -> (u64, u64) {
    (u64::from(logical_block_size >> 10).max(4).min(hw_kb), hw_kb)
}

/// The most that `queue/nr_requests` may be with `scheduler`, in front of `driver`.
pub fn most_requests(driver: &impl Driver, scheduler: SchedulerKind) -> u32 {
    match scheduler {
        SchedulerKind::None => driver.hw_queues().depth.max(1),
        SchedulerKind::MqDeadline => SCHED_RQ_MAX,
    }
}

impl<D: Driver, S: Scheduler> TypedDevice for RequestQueue<D, S> {
    type Channel = RequestChannel<D, S>;

    fn open_typed(&self, env: &mut Env, index: u32) -> Result<Self::Channel> {
        let shared = &self.shared;
        let driver = shared.driver.open_queue(env, index, self.depth())?;
        let stats = shared.stats.for_channel();
        Ok(RequestChannel::new(shared.clone(), driver, stats, index, env))
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

    fn open_channel(&self, env: &mut Env, index: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(self.open_typed(env, index)?))
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
        let config = self.config();
        let number = |n: u64| Some(n.to_string());
        let flag = |b: bool| Some(u8::from(b).to_string());
        match name {
            "queue/scheduler" => Some(self.scheduler_text()),
            "queue/nr_requests" => number(config.nr_requests.into()),
            "queue/nomerges" => number(config.nomerges.into()),
            "queue/iostats" => flag(config.iostats),
            "queue/io_poll" => flag(config.may_be_polled()),
            "queue/hw_queues" => number(config.map.hw().default.into()),
            "submit_queues" if self.driver().has_settable_hw_queues() => {
                number(config.map.hw().default.into())
            }
            "poll_queues" if self.driver().has_settable_hw_queues() => {
                number(config.map.hw().poll.into())
            }
            "queue/io_timeout" => number(config.timeout_ns / 1_000_000),
            "queue/max_hw_sectors_kb" => {
                number(u64::from(self.shared.driver.limits().normalized().max_bytes) >> 10)
            }
            _ => match name.strip_prefix("queue/iosched/") {
                Some(tunable) => self.iosched(tunable),
                None => attribute::of_device(name, &self.info(), || self.stats())
                    .or_else(|| self.shared.driver.attribute(name)),
            },
        }
    }

    fn failures(&self) -> Option<&Failures> {
        Some(&self.shared.stats.failures)
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
        // A channel that checks must not find its port referred to by this thread.
        drop(ports);
        let doorbells = left.iter().filter_map(|port| Some(port.upgrade()?.doorbell().clone()));
        let doorbells: Vec<_> = doorbells.collect();
        drop(left);
        doorbells.into_iter().for_each(Message::send_and_kick);
    }
}

impl<D: Driver, S: Scheduler> RequestQueue<D, S> {
    fn set(&self, name: &str, value: &str) -> Result<()> {
        match name {
            "queue/nomerges" => {
                let n = parse_in(name, value, 0, NOMERGES_MAX)?;
                self.set_config(|c| c.nomerges = n as u8)
            }
            "queue/iostats" => {
                let n = parse_in(name, value, 0, 1)?;
                self.set_config(|c| c.iostats = n == 1)
            }
            "queue/io_timeout" => {
                let n = parse_in(name, value, 1, u32::MAX.into())?;
                self.set_config(|c| c.timeout_ns = n * 1_000_000)
            }
            "queue/max_sectors_kb" => self.set_max_sectors(value),
            "queue/write_cache" => self.set_write_cache(name, value),
            "queue/discard_max_bytes" => self.set_discard_max(name, value),
            "queue/nr_requests" => self.set_nr_requests(name, value),
            "queue/io_poll" => {
                let most = u64::from(self.config().map.hw().poll > 0);
                match parse_in(name, value, 0, most)? {
                    0 => self.end_polling(|c| c.wants_poll = false),
                    _ => self.set_config(|c| c.wants_poll = true),
                }
            }
            "queue/hw_queues" => self.set_submit_queues(name, value),
            "submit_queues" if self.driver().has_settable_hw_queues() => {
                self.set_submit_queues(name, value)
            }
            "poll_queues" if self.driver().has_settable_hw_queues() => {
                self.set_poll_queues(name, value)
            }
            "queue/scheduler" => self.set_scheduler_named(name, value),
            _ if let Some(tunable) = name.strip_prefix("queue/iosched/") => {
                self.set_iosched(tunable, value)
            }
            _ if self.set_driver_attribute(name, value)? => Ok(()),
            _ => {
                let known = self.attribute(name).is_some();
                let problem = if known { "cannot be changed" } else { "is not an attribute" };
                Err(Error::invalid(format!("{name} {problem} of {}", self.shared.name)))
            }
        }
    }
}
