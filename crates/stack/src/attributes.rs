//! The attributes of a running device, named as in sysfs.
//!
//! This is the only table of attributes: `drystone show`, `drystone set`, `drystone help control`
//! and `docs/control.md` come from it. Source: `ABI/stable/sysfs-block`.

use drystone_raid::array::{RMW_LEVELS, SYNC_ACTIONS, SYNC_SPEEDS};

use crate::nearest::nearest;
use crate::parse::node::{Node, Raw};
use crate::parse::values::{Refusal, parse_simple};
use crate::schema::queue::{
    ASYNC_DEPTH, FIFO_BATCH, FRONT_MERGES, HW_QUEUES, HW_QUEUES_SETTING, IO_POLL, IO_TIMEOUT,
    IOSTATS, MAX_SECTORS_KB, NOMERGES, NR_REQUESTS, POLL_QUEUES, PRIO_AGING_EXPIRE, QueueSetting,
    READ_EXPIRE, SCHEDULER, STRAIGHT, WRITE_CACHE, WRITE_EXPIRE, WRITES_STARVED,
};
use crate::schema::{MAX_SIZE, STRIPE_CACHE_SIZE, STRIPE_CACHE_SIZE_DOC, Type};
pub use crate::setting::Setting;

/// Whether an attribute can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is only shown.
    ReadOnly,
    /// It can be set while the device runs.
    ReadWrite,
}

impl Mode {
    /// `ro` or `rw`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::ReadOnly => "ro",
            Mode::ReadWrite => "rw",
        }
    }
}

/// An attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attribute {
    /// Its name, as sysfs' path below the device.
    pub name: &'static str,
    /// Whether it can be set.
    pub mode: Mode,
    /// The values that it takes; `None` for those that are only shown.
    pub ty: Option<Type>,
    /// One line on what it is, with its unit.
    pub doc: &'static str,
}

const fn shown(name: &'static str, doc: &'static str) -> Attribute {
    Attribute { name, mode: Mode::ReadOnly, ty: None, doc }
}

/// A setting of the request queue, which is also a key of a stack file.
const fn setting(setting: &QueueSetting) -> Attribute {
    settable(setting.attribute, setting.attribute_ty, setting.attribute_doc)
}

const fn settable(name: &'static str, ty: Type, doc: &'static str) -> Attribute {
    Attribute { name, mode: Mode::ReadWrite, ty: Some(ty), doc }
}

/// The attribute that sysfs shows in sectors and `set` takes in bytes.
pub(crate) const SIZE: &str = "size";
/// The attribute that begins and ends synchronisations of an array.
pub(crate) const SYNC_ACTION: &str = "md/sync_action";
/// The attribute that limits [`MAX_SECTORS_KB`].
pub(crate) const MAX_HW_SECTORS_KB: &str = "queue/max_hw_sectors_kb";

/// All attributes, in the order that `drystone show` prints them.
pub static ATTRIBUTES: &[Attribute] = &[
    settable(
        SIZE,
        Type::Size { min: 512, max: MAX_SIZE, multiple: 512 },
        "Bytes, where sysfs has sectors; set in bytes or with a unit, as 20GiB: a file can grow.",
    ),
    shown("ro", "1 if writes are refused."),
    shown("direct", "1 if I/O of a file goes past the page cache of the host (O_DIRECT)."),
    shown(
        "flush_failed",
        "1 after a flush of a file failed: none succeeds until the file is reopened (`reopen`).",
    ),
    shown(
        "cut_short",
        "1 if a file became shorter than its device: all I/O fails until it is opened again \
         (`reopen`).",
    ),
    shown(
        "path_replaced",
        "1 if a file's path names another file now, or none: the device goes on with what it \
         opened.",
    ),
    shown("stat", "The 17 numbers of /proc/diskstats."),
    shown("inflight", "Reads and writes in flight."),
    setting(&SCHEDULER),
    setting(&NR_REQUESTS),
    setting(&READ_EXPIRE),
    setting(&WRITE_EXPIRE),
    setting(&PRIO_AGING_EXPIRE),
    setting(&WRITES_STARVED),
    setting(&FIFO_BATCH),
    setting(&ASYNC_DEPTH),
    setting(&FRONT_MERGES),
    setting(&STRAIGHT),
    setting(&NOMERGES),
    setting(&IO_POLL),
    shown(
        "queue/poll_stat",
        "A line for each poll queue: how many polls were asked for, were made, and found \
         something.",
    ),
    setting(&HW_QUEUES_SETTING),
    settable("submit_queues", HW_QUEUES, "null: another name of queue/hw_queues."),
    settable(
        "poll_queues",
        POLL_QUEUES,
        "null: queues for polled I/O; with 0 none is taken, whatever queue/io_poll was.",
    ),
    setting(&IOSTATS),
    setting(&IO_TIMEOUT),
    setting(&MAX_SECTORS_KB),
    shown(MAX_HW_SECTORS_KB, "Largest request of the driver in KiB."),
    shown("queue/logical_block_size", "Smallest unit of an I/O in bytes."),
    shown("queue/physical_block_size", "Unit written without read-modify-write in bytes."),
    shown("queue/minimum_io_size", "Smallest preferred I/O in bytes."),
    shown("queue/optimal_io_size", "Preferred I/O in bytes; 0 if there is none."),
    shown("queue/discard_granularity", "Unit of discards in bytes; 0 without discard."),
    settable(
        "queue/discard_max_bytes",
        Type::Size { min: 0, max: 1 << 63, multiple: 512 },
        "Largest discard in bytes, a multiple of the granularity; 0 turns discard off.",
    ),
    shown("queue/write_zeroes_max_bytes", "Largest write-zeroes in bytes; 0 without it."),
    shown("queue/max_segments", "Most memory segments of a request."),
    setting(&WRITE_CACHE),
    shown("queue/fua", "1 if the device takes FUA writes."),
    shown("queue/rotational", "1 if the device is a spinning disk."),
    shown("dm/name", "A volume's name."),
    shown("dm/suspended", "1 while a volume keeps new I/O."),
    shown("md/level", "An array's level."),
    shown("md/layout", "Where its parity lies, by md's number."),
    shown("md/raid_disks", "Members of the complete array."),
    shown("md/chunk_size", "Bytes of a chunk."),
    shown("md/degraded", "Roles without a member in sync."),
    shown("md/array_state", "clean, active, readonly, broken or inactive."),
    settable(
        SYNC_ACTION,
        Type::Choice(&SYNC_ACTIONS),
        "Synchronisation under way (also resync, recover); begins a check or repair, or ends it.",
    ),
    shown("md/sync_completed", "Sectors of each member that are synchronised, of how many."),
    settable("md/sync_speed_min", SYNC_SPEED, SYNC_SPEED_MIN_DOC),
    settable("md/sync_speed_max", SYNC_SPEED, "KiB a second of each member, not exceeded."),
    shown("md/mismatch_cnt", "Sectors of parity that did not fit, in the last synchronisation."),
    settable("md/stripe_cache_size", STRIPE_CACHE_SIZE, STRIPE_CACHE_SIZE_DOC),
    shown("md/stripe_cache_active", "Stripes that do something now."),
    settable(
        "md/rmw_level",
        Type::Integer { min: RMW_LEVELS.0, max: RMW_LEVELS.1 },
        "Read-modify-write: 0 never, 1 where it reads less, 2 also where it reads as much.",
    ),
];

const SYNC_SPEED: Type = Type::Integer { min: SYNC_SPEEDS.0, max: SYNC_SPEEDS.1 };
const SYNC_SPEED_MIN_DOC: &str =
    "KiB a second of each member that a synchronisation has though the array is in use.";

/// The attribute of that name.
///
/// # Errors
/// One sentence with the nearest known name.
pub fn attribute(name: &str) -> Result<&'static Attribute, String> {
    if let Some(found) = ATTRIBUTES.iter().find(|attribute| attribute.name == name) {
        return Ok(found);
    }
    let shown = crate::diagnostic::shorten(name);
    let short = |full: &'static str| full.strip_prefix("queue/").unwrap_or(full);
    let exact = ATTRIBUTES.iter().find(|attribute| short(attribute.name) == name);
    let near = exact.map(|attribute| attribute.name);
    match near.or_else(|| nearest(name, ATTRIBUTES.iter().map(|attribute| attribute.name))) {
        Some(near) => Err(format!("unknown attribute `{shown}`: did you mean `{near}`?")),
        None => Err(format!("unknown attribute `{shown}`: `drystone help control` lists them")),
    }
}

impl Attribute {
    /// The mode of the attribute on a device with attributes of these names: volumes and arrays
    /// have no request queue of their own, and only writable files grow. `kind`: the device's kind,
    /// and whether it is read-only.
    pub fn mode_of<'a>(
        &self,
        (kind, is_read_only): (&str, bool),
        mut names: impl Iterator<Item = &'a str>,
    ) -> Mode {
        let takes = match names.find_map(|name| name.split_once('/').filter(|n| n.0 != "queue")) {
            Some(("md", _)) => self.name.starts_with("md/"),
            Some(("dm", _)) => [IOSTATS.attribute, IO_POLL.attribute].contains(&self.name),
            _ => self.name != SIZE || kind == "file" && !is_read_only,
        };
        if takes { self.mode } else { Mode::ReadOnly }
    }

    /// Parses a value to be set.
    ///
    /// # Errors
    /// One sentence that names the attribute, the value and what is permitted.
    pub fn parse(&self, text: &str) -> Result<Setting, String> {
        let Some(ty) = (match self.mode {
            Mode::ReadOnly => None,
            Mode::ReadWrite => ATTRIBUTES.iter().find(|a| a.name == self.name),
        })
        .and_then(|attribute| attribute.ty.as_ref()) else {
            return Err(format!("`{}` is read-only", self.name));
        };
        let shown = crate::diagnostic::shorten(text);
        let node = Node { span: 0..0, value: Raw::Word(text.to_owned()) };
        match parse_simple(ty, &node) {
            Ok(value) => Ok(value.setting()),
            Err(Refusal { reason, .. }) => {
                Err(format!("`{}`: `{shown}` {reason}; permitted: {}", self.name, self.permitted()))
            }
        }
    }

    /// The values that may be set, for messages and docs.
    pub fn permitted(&self) -> String {
        match self.ty {
            None => String::new(),
            Some(Type::Bool) => "0 or 1".to_owned(),
            Some(ty) => ty.expected(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_against_the_permitted_range() {
        let parse = |name: &str, text: &str| attribute(name).unwrap().parse(text);
        assert_eq!(parse("queue/nr_requests", "64"), Ok(Setting::Number(64)));
        assert_eq!(parse("queue/io_poll", "1"), Ok(Setting::Bool(true)));
        assert_eq!(parse("queue/io_timeout", "30000"), Ok(Setting::Number(30_000_000_000)));
        assert_eq!(parse("queue/io_timeout", "30s"), Ok(Setting::Number(30_000_000_000)));
        assert_eq!(parse("queue/write_cache", "write back"), Ok(Setting::Choice("write back")));
        let refused = [
            ("queue/nr_requests", "0", "permitted: a whole number from 1 to 10240"),
            ("queue/io_poll", "2", "permitted: 0 or 1"),
            ("queue/scheduler", "cfq", "permitted: \"none\" or \"mq-deadline\""),
            ("queue/hw_queues", "0", "permitted: a whole number from 1 to 1024"),
            ("poll_queues", "1025", "permitted: a whole number from 0 to 1024"),
            ("queue/fua", "1", "read-only"),
        ];
        for (name, text, sentence) in refused {
            let error = parse(name, text).unwrap_err();
            assert!(error.contains(sentence) && error.contains(name), "{error}");
        }
    }

    #[test]
    fn unknown_attributes_name_the_nearest() {
        assert!(attribute("nr_requests").unwrap_err().contains("`queue/nr_requests`?"));
        assert!(attribute("queue/shceduler").unwrap_err().contains("`queue/scheduler`?"));
        assert!(attribute("colour").unwrap_err().contains("drystone help control"));
    }
}
