//! The request queue as a device: what all contexts share, and its attributes.

use crate::channel::RequestChannel;
use crate::config::{Config, ConfigCell};
use crate::driver::Driver;
use crate::tags::TagSet;
use crossbeam_utils::CachePadded;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::stats::{BusyTime, ChannelStats, DiskStats};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Channel, Device, DeviceInfo, Env, Error, Extent, Limits, Result};
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, fence};

/// Settings of a queue that its maker may choose; `None` leaves the default.
#[derive(Clone, Debug, Default)]
pub struct QueueOptions {
    /// `queue/nr_requests`: tags of each hardware queue, at most the driver's depth.
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

/// What the channels of a device share.
pub(crate) struct Shared<D> {
    name: String,
    pub(crate) driver: D,
    pub(crate) config: ConfigCell,
    pub(crate) tags: Vec<CachePadded<TagSet>>,
    pub(crate) busy: BusyTime,
    stats: Lock<Vec<Arc<ChannelStats>>>,
    /// Counts the lock of `config`, and `stats_locks` that of `stats`: several threads take them,
    /// so each lock has counters that are written only while it is held.
    locks: Arc<LockCounters>,
    stats_locks: Arc<LockCounters>,
    read_only: bool,
}

impl<D> Shared<D> {
    /// Counters for a new channel: those of a channel that is gone, which go on from where they
    /// were, or new ones. So there are never more than there were channels at once.
    fn stats_for_channel(&self) -> Arc<ChannelStats> {
        let mut all = self.stats.lock(&self.stats_locks);
        if let Some(free) = all.iter().find(|stats| Arc::strong_count(stats) == 1) {
            // Pairs with the release of the former owner's reference: its last counts are seen.
            fence(Acquire);
            return free.clone();
        }
        let stats = Arc::new(ChannelStats::default());
        all.push(stats.clone());
        stats
    }
}

/// A leaf device: a driver behind a request queue.
pub struct RequestQueue<D: Driver> {
    shared: Arc<Shared<D>>,
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
        let hw = driver.hw_queues();
        let most = hw.depth.max(1);
        let depth = options.nr_requests.unwrap_or(most).clamp(1, most);
        let config = Config {
            limits: driver.limits(),
            nomerges: 0,
            iostats: true,
            timeout_ns: TIMEOUT_MS * 1_000_000,
            nr_requests: depth,
            io_poll: hw.poll > 0,
            write_cache: options.write_cache,
            max_discard_bytes: None,
        };
        let queue = RequestQueue {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                tags: (0..hw.default.max(1)).map(|_| CachePadded::new(TagSet::new(most))).collect(),
                driver,
                config: ConfigCell::new(config),
                busy: BusyTime::default(),
                stats: Lock::new(LockClass::Control, Vec::new()),
                stats_locks: locks.sibling(),
                locks,
                read_only: options.read_only,
            }),
        };
        queue.shared.tags.iter().for_each(|tags| tags.set_limit(depth));
        queue.refresh_limits(None)?;
        queue.apply(options)?;
        Ok(queue)
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.shared.driver
    }

    fn apply(&self, options: &QueueOptions) -> Result<()> {
        let values = [
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
        Ok(())
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

    /// Change what the user wishes, and make the limits anew of that and the driver's.
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
        let least = (self.config().limits.logical_block_size >> 10).max(4).min(hw);
        let kb = parse_in("queue/max_sectors_kb", value, least.into(), hw.into())?;
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

    fn set_nr_requests(&self, name: &str, value: &str) -> Result<()> {
        let most = self.shared.driver.hw_queues().depth.max(1);
        let n = parse_in(name, value, 1, most.into())? as u32;
        self.set_config(|c| {
            c.nr_requests = n;
            self.shared.tags.iter().for_each(|tags| tags.set_limit(n));
        })?;
        self.wake_waiters();
        Ok(())
    }

    /// Whoever waits for a tag that may be handed out now is woken, even if its owner is away.
    fn wake_waiters(&self) {
        for tags in &self.shared.tags {
            let mut woken = Vec::new();
            tags.wake(&self.shared.locks, |message| {
                woken.extend(message.receiver());
                message.send();
            });
            woken.iter().for_each(|handle| handle.kick());
        }
    }

    /// Let the driver change one of its own attributes; false if it has none of that name.
    fn set_driver_attribute(&self, name: &str, value: &str) -> Result<bool> {
        match self.shared.driver.set_attribute(name, value) {
            Some(Ok(())) => self.refresh_limits(None).map(|()| true),
            Some(Err(error)) => Err(error),
            None => Ok(false),
        }
    }

    fn set_config(&self, change: impl FnOnce(&mut Config)) -> Result<()> {
        self.shared.config.update(&self.shared.locks, |config| {
            change(config);
            Ok(())
        })
    }
}

/// Parse `value` as a number from `low` to `high`.
fn parse_in(name: &str, value: &str, low: u64, high: u64) -> Result<u64> {
    match value.trim().parse::<u64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(Error::invalid(format!(
            "{name}: '{value}' is not permitted: a whole number from {low} to {high} is"
        ))),
    }
}

impl<D: Driver> Device for RequestQueue<D> {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.shared.name.clone(),
            kind: self.shared.driver.kind(),
            size_bytes: self.shared.driver.size_bytes(),
            limits: self.config().limits,
        }
    }

    fn open_channel(&self, env: &mut Env, index: u32) -> Result<Box<dyn Channel>> {
        let shared = &self.shared;
        let context = env.context_id();
        let tags = &shared.tags[context as usize % shared.tags.len()];
        let driver = shared.driver.open_queue(env, index, tags.depth())?;
        let stats = shared.stats_for_channel();
        Ok(Box::new(RequestChannel::new(shared.clone(), driver, stats, context, index, env)))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.shared.driver.extents(offset, length, max)
    }

    fn stats(&self) -> DiskStats {
        let mut sum = DiskStats { io_ticks_ms: self.shared.busy.total_ms(), ..Default::default() };
        let channels = self.shared.stats.lock(&self.shared.stats_locks);
        channels.iter().for_each(|c| c.add_to(&mut sum));
        sum
    }

    fn latencies(&self, group: OpGroup) -> Snapshot {
        let mut sum = Snapshot::default();
        let channels = self.shared.stats.lock(&self.shared.stats_locks);
        channels.iter().for_each(|c| c.add_latencies(group, &mut sum));
        sum
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let config = self.config();
        let l = &config.limits;
        let number = |n: u64| Some(n.to_string());
        let flag = |b: bool| Some(u8::from(b).to_string());
        match name {
            "size" => number(self.shared.driver.size_bytes() >> 9),
            "ro" => flag(l.read_only),
            "stat" => Some(self.stats().fields().map(|n| format!("{n:>8}")).join(" ")),
            "inflight" => {
                let (reads, writes) = self.stats().in_flight();
                Some(format!("{reads:>8} {writes:>8}"))
            }
            "queue/scheduler" => Some("[none]".to_owned()),
            "queue/nr_requests" => number(config.nr_requests.into()),
            "queue/nomerges" => number(config.nomerges.into()),
            "queue/iostats" => flag(config.iostats),
            "queue/io_poll" => flag(config.io_poll),
            "queue/io_timeout" => number(config.timeout_ns / 1_000_000),
            "queue/max_sectors_kb" => number(u64::from(l.max_bytes) >> 10),
            "queue/max_hw_sectors_kb" => {
                number(u64::from(self.shared.driver.limits().normalized().max_bytes) >> 10)
            }
            "queue/logical_block_size" | "queue/hw_sector_size" => {
                number(l.logical_block_size.into())
            }
            "queue/physical_block_size" => number(l.physical_block_size.into()),
            "queue/minimum_io_size" => number(l.io_min.into()),
            "queue/optimal_io_size" => number(l.io_opt.into()),
            "queue/discard_granularity" => number(l.discard_granularity.into()),
            "queue/discard_max_bytes" => number(l.max_discard_bytes),
            "queue/write_zeroes_max_bytes" => number(l.max_write_zeroes_bytes),
            "queue/max_segments" => number(l.max_segments.into()),
            "queue/chunk_sectors" => number(l.chunk_bytes >> 9),
            "queue/write_cache" => {
                Some(if l.write_cache { "write back" } else { "write through" }.to_owned())
            }
            "queue/fua" => flag(l.fua),
            "queue/rotational" => flag(l.rotational),
            _ => self.shared.driver.attribute(name),
        }
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        match name {
            "queue/nomerges" => {
                let n = parse_in(name, value, 0, 2)?;
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
                let most = u64::from(self.shared.driver.hw_queues().poll > 0);
                let n = parse_in(name, value, 0, most)?;
                self.set_config(|c| c.io_poll = n == 1)
            }
            "queue/scheduler" if value.trim() == "none" => Ok(()),
            "queue/scheduler" => {
                Err(Error::invalid(format!("{name}: '{value}' is not permitted: none is")))
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
