//! The attributes of a request queue: a row for each, with its name, its getter, its setter and the
//! option that sets it at the start.
//!
//! Invariants:
//! * A name stands in exactly one row. The rows of mq-deadline's tunables are [`Tunable::ALL`]; all
//!   other names are attributes of the driver, or attributes that every device has.
//! * A refused value leaves everything unchanged.

use super::{NOMERGES_MAX, QueueOptions, RequestQueue, max_sectors_kb_range, most_requests};
use crate::config::Config;
use crate::driver::Driver;
use crate::queues::QUEUES_MAX;
use crate::scheduler::deadline::{IOSCHED, Tunable};
use crate::scheduler::{Scheduler, SchedulerKind};
use drystone_core::attribute::{self, not_settable, parse_in};
use drystone_core::{Device, Error, Result};

/// A function that sets an attribute of the queue `Q` by its name and a value.
type Setter<Q> = fn(&Q, &str, &str) -> Result<()>;

/// An attribute of the queue `Q`.
struct Attribute<Q> {
    name: &'static str,
    /// False if this queue has no attribute of this name.
    is_there: fn(&Q) -> bool,
    /// The value; `None` if every device shows this attribute.
    get: Option<fn(&Q, &Config) -> String>,
    /// Sets a value; `None` for an attribute that is only shown.
    set: Option<Setter<Q>>,
    /// The value that the queue's options give it. The code that makes the queue sets the scheduler
    /// and the write cache; tunables are set by their names.
    option: fn(&QueueOptions) -> Option<String>,
}

fn number(number: impl Into<u64>) -> String {
    number.into().to_string()
}

fn digit(switch: bool) -> String {
    u8::from(switch).to_string()
}

impl<D: Driver, S: Scheduler> RequestQueue<D, S> {
    /// The row of an attribute that every queue has and no option sets.
    const ROW: Attribute<Self> =
        Attribute { name: "", is_there: |_| true, get: None, set: None, option: |_| None };

    /// The rows. Options are set in this order.
    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute {
            name: "queue/scheduler",
            get: Some(|queue, _| queue.scheduler_text()),
            set: Some(Self::set_scheduler_named),
            ..Self::ROW
        },
        Attribute {
            name: "queue/iosched/straight",
            is_there: |queue| queue.config().scheduler != SchedulerKind::None,
            get: Some(|_, config| digit(config.straight)),
            set: Some(|queue, name, value| {
                let n = parse_in(name, value, 0, 1)?;
                queue.set_config(|c| c.straight = n == 1)
            }),
            ..Self::ROW
        },
        Attribute {
            name: "queue/nr_requests",
            get: Some(|_, config| number(config.nr_requests)),
            set: Some(Self::set_nr_requests),
            option: |options| options.nr_requests.map(number),
            ..Self::ROW
        },
        Attribute {
            name: "queue/nomerges",
            get: Some(|_, config| number(config.nomerges)),
            set: Some(|queue, name, value| {
                let n = parse_in(name, value, 0, NOMERGES_MAX)?;
                queue.set_config(|c| c.nomerges = n as u8)
            }),
            option: |options| options.nomerges.map(number),
            ..Self::ROW
        },
        Attribute {
            name: "queue/iostats",
            get: Some(|_, config| digit(config.iostats)),
            set: Some(|queue, name, value| {
                let n = parse_in(name, value, 0, 1)?;
                queue.set_config(|c| c.iostats = n == 1)
            }),
            option: |options| options.iostats.map(digit),
            ..Self::ROW
        },
        Attribute {
            name: "queue/io_timeout",
            get: Some(|_, config| number(config.timeout_ns / 1_000_000)),
            set: Some(|queue, name, value| {
                let n = parse_in(name, value, 1, u32::MAX.into())?;
                queue.set_config(|c| c.timeout_ns = n * 1_000_000)
            }),
            option: |options| options.io_timeout_ms.map(number),
            ..Self::ROW
        },
        Attribute {
            name: "queue/max_sectors_kb",
            set: Some(Self::set_max_sectors),
            option: |options| options.max_sectors_kb.map(number),
            ..Self::ROW
        },
        Attribute {
            name: "queue/io_poll",
            get: Some(|_, config| digit(config.may_be_polled())),
            set: Some(Self::set_io_poll),
            option: |options| options.io_poll.map(digit),
            ..Self::ROW
        },
        Attribute {
            name: "queue/hw_queues",
            get: Some(|_, config| number(config.map.hw().default)),
            set: Some(Self::set_submit_queues),
            ..Self::ROW
        },
        Attribute {
            name: "submit_queues",
            is_there: |queue| queue.driver().has_settable_hw_queues(),
            get: Some(|_, config| number(config.map.hw().default)),
            set: Some(Self::set_submit_queues),
            ..Self::ROW
        },
        Attribute {
            name: "poll_queues",
            is_there: |queue| queue.driver().has_settable_hw_queues(),
            get: Some(|_, config| number(config.map.hw().poll)),
            set: Some(Self::set_poll_queues),
            ..Self::ROW
        },
        Attribute {
            name: "queue/max_hw_sectors_kb",
            get: Some(|queue, _| number(queue.driver().limits().normalized().max_bytes >> 10)),
            ..Self::ROW
        },
        Attribute { name: "queue/write_cache", set: Some(Self::set_write_cache), ..Self::ROW },
        Attribute {
            name: "queue/discard_max_bytes",
            set: Some(Self::set_discard_max),
            ..Self::ROW
        },
    ];

    fn row(&self, name: &str) -> Option<&'static Attribute<Self>> {
        Self::ATTRIBUTES.iter().find(|row| row.name == name && (row.is_there)(self))
    }

    /// The value of an attribute of this device, of any kind.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        if let Some(get) = self.row(name).and_then(|row| row.get) {
            return Some(get(self, &self.config()));
        }
        if name.starts_with(IOSCHED) {
            return self.tunable(name);
        }
        attribute::of_device(name, &self.info(), || self.stats())
            .or_else(|| self.driver().attribute(name))
    }

    /// Set an attribute of this device, of any kind.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        if let Some(set) = self.row(name).and_then(|row| row.set) {
            return set(self, name, value);
        }
        if name.starts_with(IOSCHED) {
            return self.set_tunable(name, value);
        }
        if self.set_driver_attribute(name, value)? {
            return Ok(());
        }
        Err(not_settable(name, &self.shared.name, self.get(name).is_some()))
    }

    /// Set the values that the options of the queue give.
    pub(super) fn apply(&self, options: &QueueOptions) -> Result<()> {
        for row in Self::ATTRIBUTES {
            if let Some(value) = (row.option)(options) {
                self.set_attribute(row.name, &value)?;
            }
        }
        for (name, value) in &options.iosched {
            self.set(&format!("{IOSCHED}{name}"), value)?;
        }
        Ok(())
    }

    fn set_max_sectors(&self, name: &str, value: &str) -> Result<()> {
        let hw = self.shared.driver.limits().normalized().max_bytes >> 10;
        let block = self.config().limits.logical_block_size;
        let (least, most) = max_sectors_kb_range(hw.into(), block);
        let kb = parse_in(name, value, least, most)?;
        self.refresh_limits(Some((kb as u32) << 10))
    }

    /// Set `queue/write_cache`: what the queue assumes of the device, whose cache does not change.
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

    fn set_scheduler_named(&self, name: &str, value: &str) -> Result<()> {
        let Some(kind) = SchedulerKind::named(value.trim()) else {
            let names = SchedulerKind::ALL.map(SchedulerKind::name).join(" or ");
            let text = format!("{name}: '{value}' is not permitted: {names} is");
            return Err(Error::invalid(text));
        };
        // Choosing the scheduler in force changes nothing, as in Linux.
        if kind == self.config().scheduler { Ok(()) } else { self.set_scheduler(kind) }
    }

    /// The schedulers, with the one in force in brackets.
    fn scheduler_text(&self) -> String {
        let current = self.config().scheduler;
        let text = |kind: SchedulerKind| match kind == current {
            true => format!("[{}]", kind.name()),
            false => kind.name().to_owned(),
        };
        SchedulerKind::ALL.map(text).join(" ")
    }

    fn tunable(&self, name: &str) -> Option<String> {
        let config = self.config();
        let row = Tunable::of_attribute(name).filter(|_| config.scheduler != SchedulerKind::None);
        row.map(|row| row.get(&config.tunables))
    }

    fn set_tunable(&self, name: &str, value: &str) -> Result<()> {
        let device = &self.shared.name;
        if self.config().scheduler == SchedulerKind::None {
            let text = format!("{name}: {device} has no scheduler: set queue/scheduler first");
            return Err(Error::invalid(text));
        }
        let row = Tunable::of_attribute(name).ok_or_else(|| not_settable(name, device, false))?;
        self.shared.config.update(&self.shared.locks, |config| row.set(&mut config.tunables, value))
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

    fn set_submit_queues(&self, name: &str, value: &str) -> Result<()> {
        let n = parse_in(name, value, 1, QUEUES_MAX.into())? as u32;
        self.set_config(|c| self.change_queues(c, n, c.map.hw().poll))?;
        self.tell_channels();
        Ok(())
    }

    /// Without poll queues no I/O is polled, but the choice in `queue/io_poll` is kept.
    fn set_poll_queues(&self, name: &str, value: &str) -> Result<()> {
        let n = parse_in(name, value, 0, QUEUES_MAX.into())? as u32;
        match n {
            0 => self.end_polling(|c| self.change_queues(c, c.map.hw().default, 0)),
            _ => self.set_config(|c| self.change_queues(c, c.map.hw().default, n)),
        }?;
        self.tell_channels();
        Ok(())
    }

    fn set_io_poll(&self, name: &str, value: &str) -> Result<()> {
        let most = u64::from(self.config().map.hw().poll > 0);
        match parse_in(name, value, 0, most)? {
            0 => self.end_polling(|c| c.wants_poll = false),
            _ => self.set_config(|c| c.wants_poll = true),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scheduler::MqDeadline;
    use crate::tests::fake::Fake;

    #[test]
    fn a_name_stands_in_one_row() {
        let rows = RequestQueue::<Fake, MqDeadline>::ATTRIBUTES;
        for (at, row) in rows.iter().enumerate() {
            assert!(!row.name.is_empty() && (row.get.is_some() || row.set.is_some()));
            assert!(rows[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            assert!(Tunable::of_attribute(row.name).is_none(), "{}", row.name);
        }
    }
}
