//! The settings of a request queue: each is a key of a stack file's `queue` table and an attribute
//! of the running device, with one range. A row says all of a setting: its names, its range, its
//! default, its documentation, and the option of the queue that it sets. The queue's own rows
//! (`drystone_queue`) have the getters and setters of the running device; a tunable takes its names
//! and its range from there.
//!
//! Source: `ABI/stable/sysfs-block`.

use drystone_queue::QUEUES_MAX;
use drystone_queue::queue::{NOMERGES_MAX, QueueOptions};
use drystone_queue::scheduler::SchedulerKind;
use drystone_queue::scheduler::deadline::Tunable;
use drystone_queue::tags::MAX_DEPTH;

use super::IfAbsent::{self, Unset, Value};
use super::{HOUR, Param, Type, param};
use crate::duration::Unit;
use crate::setting::Setting;

/// A setting of a request queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueSetting {
    /// Its key in a stack file.
    pub(crate) key: &'static str,
    /// Its name as an attribute.
    pub attribute: &'static str,
    /// The values that the key takes.
    pub ty: Type,
    /// The values that the attribute takes: those of the key, and sometimes one more.
    pub attribute_ty: Type,
    default: IfAbsent,
    /// Puts the value of a key into the options of a queue.
    option: PutOption,
    /// One line on what it does.
    doc: &'static str,
    /// The same for the attribute, whose values may have another notation.
    pub attribute_doc: &'static str,
}

/// Puts the value of a key, which is the second argument, into the options of a queue.
type PutOption = fn(&mut QueueOptions, &'static str, Setting);

impl QueueSetting {
    /// Puts `value`, of a stack file, into the options of a queue.
    pub(crate) fn put(&self, options: &mut QueueOptions, value: Setting) {
        (self.option)(options, self.key, value);
    }

    /// As a key of a stack file.
    pub const fn param(&self) -> Param {
        param(self.key, self.ty, self.default, self.doc)
    }
}

/// A setting whose key and attribute are documented alike.
const fn setting(
    (key, attribute): (&'static str, &'static str),
    ty: Type,
    default: IfAbsent,
    doc: &'static str,
    option: PutOption,
) -> QueueSetting {
    QueueSetting { attribute, key, ty, attribute_ty: ty, default, option, doc, attribute_doc: doc }
}

/// Puts a tunable of mq-deadline into the options.
fn put_tunable(options: &mut QueueOptions, key: &'static str, value: Setting) {
    options.iosched.push((key, value.text()));
}

/// A tunable of mq-deadline.
const fn tunable(row: &Tunable, default: &'static str, doc: &'static str) -> QueueSetting {
    let ty = Type::Integer { min: row.min, max: row.max };
    setting((row.name(), row.attribute), ty, Unset(default), doc, put_tunable)
}

/// Hardware queues for I/O that is not polled.
pub const HW_QUEUES: Type = Type::Integer { min: 1, max: QUEUES_MAX as u64 };
/// Hardware queues for polled I/O.
pub const POLL_QUEUES: Type = Type::Integer { min: 0, max: QUEUES_MAX as u64 };

pub const SCHEDULER: QueueSetting = QueueSetting {
    attribute_doc: "Order of dispatch; the one in use is shown in brackets.",
    ..setting(
        ("scheduler", "queue/scheduler"),
        Type::Choice(&["none", "mq-deadline"]),
        Unset("mq-deadline with one hardware queue, but none for ram, and for null without a head"),
        "Order of dispatch.",
        |options, _, value| options.scheduler = SchedulerKind::named(value.word()),
    )
};
pub const READ_EXPIRE: QueueSetting = tunable(
    &Tunable::READ_EXPIRE,
    "500",
    "mq-deadline: milliseconds after which a read is overdue.",
);
pub const WRITE_EXPIRE: QueueSetting = tunable(
    &Tunable::WRITE_EXPIRE,
    "5000",
    "mq-deadline: milliseconds after which a write is overdue.",
);
pub const PRIO_AGING_EXPIRE: QueueSetting = tunable(
    &Tunable::PRIO_AGING_EXPIRE,
    "10000",
    "mq-deadline: milliseconds after which a lower class goes although a higher one waits.",
);
pub const WRITES_STARVED: QueueSetting = tunable(
    &Tunable::WRITES_STARVED,
    "2",
    "mq-deadline: batches of reads that go before waiting writes.",
);
pub const FIFO_BATCH: QueueSetting = tunable(
    &Tunable::FIFO_BATCH,
    "16",
    "mq-deadline: requests that go in sector order at a stretch.",
);
pub const FRONT_MERGES: QueueSetting = QueueSetting {
    ty: Type::Bool,
    attribute_ty: Type::Bool,
    attribute_doc: "mq-deadline: 1 if I/O merges in front of requests too.",
    ..tunable(
        &Tunable::FRONT_MERGES,
        "true",
        "mq-deadline: whether I/O merges in front of requests too.",
    )
};
pub const STRAIGHT: QueueSetting = QueueSetting {
    attribute_doc: "mq-deadline: 1 if I/O goes straight to the device while nothing waits and tags \
        are free.",
    ..setting(
        ("straight", "queue/iosched/straight"),
        Type::Bool,
        Unset("true unless the device is a spinning disk"),
        "mq-deadline: whether I/O goes straight to the device while nothing waits and tags are \
         free.",
        put_tunable,
    )
};
pub const ASYNC_DEPTH: QueueSetting = QueueSetting {
    attribute_doc: "mq-deadline: how many of nr_requests may be other than reads.",
    ..tunable(
        &Tunable::ASYNC_DEPTH,
        "nr_requests",
        "mq-deadline: how many of them may be other than reads.",
    )
};
pub const NR_REQUESTS: QueueSetting = setting(
    ("nr_requests", "queue/nr_requests"),
    Type::Integer { min: 1, max: MAX_DEPTH as u64 },
    Unset("the driver's depth; 256 with mq-deadline"),
    "Requests a hardware queue may hold: at most the driver's depth, with mq-deadline 2048.",
    |options, _, value| options.nr_requests = Some(value.number32()),
);
pub const NOMERGES: QueueSetting = setting(
    ("nomerges", "queue/nomerges"),
    Type::Integer { min: 0, max: NOMERGES_MAX },
    Value("0"),
    "0 merges all it can, 1 only with the last request, 2 not at all.",
    // At most 2 by its type.
    |options, _, value| options.nomerges = Some(value.number() as u8),
);
pub const IO_POLL: QueueSetting = QueueSetting {
    attribute_doc: "1 if polled I/O is taken.",
    ..setting(
        ("io_poll", "queue/io_poll"),
        Type::Bool,
        Value("false"),
        "Whether polled I/O is taken.",
        |options, _, value| options.io_poll = Some(value.is_on()),
    )
};
/// Largest request that may be asked for, in KiB: far beyond what any driver takes.
const MAX_SECTORS_KB_MAX: u64 = 1 << 20;
/// The key has no value that means the default: leave the key out. The attribute has 0.
pub const MAX_SECTORS_KB: QueueSetting = QueueSetting {
    attribute_ty: Type::Integer { min: 0, max: MAX_SECTORS_KB_MAX },
    attribute_doc: "Largest request in KiB, at most max_hw_sectors_kb; 0 goes back to the default.",
    ..setting(
        ("max_sectors_kb", "queue/max_sectors_kb"),
        Type::Integer { min: 4, max: MAX_SECTORS_KB_MAX },
        Unset("the driver's, at most 1280"),
        "Largest request in KiB; larger I/O is split.",
        |options, _, value| options.max_sectors_kb = Some(value.number32()),
    )
};
pub const IO_TIMEOUT: QueueSetting = QueueSetting {
    attribute_doc: "Milliseconds after which a request counts as lost.",
    ..setting(
        ("io_timeout", "queue/io_timeout"),
        Type::Duration { unit: Unit::Milliseconds, min: 1_000_000, max: 24 * HOUR },
        Value("30s"),
        "Time after which a request counts as lost; a member of an array may fail then.",
        |options, _, value| options.io_timeout_ms = Some((value.number() / 1_000_000).max(1)),
    )
};
pub const IOSTATS: QueueSetting = QueueSetting {
    attribute_doc: "1 if I/O is counted.",
    ..setting(
        ("iostats", "queue/iostats"),
        Type::Bool,
        Value("true"),
        "Whether I/O is counted.",
        |options, _, value| options.iostats = Some(value.is_on()),
    )
};
pub const WRITE_CACHE: QueueSetting = setting(
    ("write_cache", "queue/write_cache"),
    Type::Choice(&["write back", "write through"]),
    Unset("the driver's"),
    "Whether flushes are needed; changes the queue's view, not the device.",
    |options, _, value| options.write_cache = Some(value.word() == "write back"),
);
pub const HW_QUEUES_SETTING: QueueSetting = QueueSetting {
    attribute_doc: "Hardware queues of a device that is no volume.",
    ..setting(
        ("hw_queues", "queue/hw_queues"),
        HW_QUEUES,
        Unset("null: `submit_queues`; else 64, so that each data thread has its own"),
        "Hardware queues at the start; `drystone set` changes their number.",
        // They belong to the device, not to its queue (`DeviceSpec::hw_queues`).
        |_, _, _| (),
    )
};

/// All settings, in the order of the `queue = { ... }` table.
pub(crate) const SETTINGS: [QueueSetting; 17] = [
    SCHEDULER,
    READ_EXPIRE,
    WRITE_EXPIRE,
    PRIO_AGING_EXPIRE,
    WRITES_STARVED,
    FIFO_BATCH,
    FRONT_MERGES,
    STRAIGHT,
    ASYNC_DEPTH,
    NR_REQUESTS,
    NOMERGES,
    IO_POLL,
    MAX_SECTORS_KB,
    IO_TIMEOUT,
    IOSTATS,
    WRITE_CACHE,
    HW_QUEUES_SETTING,
];

const PARAMS: [Param; SETTINGS.len()] = {
    let mut params = [SETTINGS[0].param(); SETTINGS.len()];
    let mut at = 1;
    while at < params.len() {
        params[at] = SETTINGS[at].param();
        at += 1;
    }
    params
};

/// The `queue = { ... }` table of a device.
pub static QUEUE: &[Param] = &PARAMS;
