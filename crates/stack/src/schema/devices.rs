//! The kinds of devices and their parameters. Those of `null` are null_blk's
//! (`Documentation/block/null_blk.rst`).

use drystone_drivers::null::Completion;
use drystone_queue::tags::MAX_DEPTH;
use drystone_raid::array::CACHE_STRIPES;

use super::IfAbsent::{Required, Unset, Value};
use super::queue::{HW_QUEUES, POLL_QUEUES, QUEUE};
use super::{HOUR, Kind, MAX_SIZE, Param, SECTOR, Type, param};
use crate::duration::Unit;

/// Size of a null device that names none, as null_blk's.
pub const NULL_DEFAULT_SIZE: &str = "250GiB";

/// An example of a `latency` table.
pub const LATENCY_DOC: &str =
    "a table of percentiles, as in { p50 = \"10us\", p99 = \"80us\", max = \"1ms\" }";

const DEVICE_SIZE: Type = Type::Size { min: SECTOR, max: MAX_SIZE, multiple: SECTOR };
const BLOCK_SIZE: Type = Type::PowerOfTwo { min: 512, max: 4096 };
const SEEK: Type = Type::Duration { unit: Unit::Nanoseconds, min: 0, max: HOUR };

/// `stripe_cache_size` of an array, also while it runs.
pub const STRIPE_CACHE_SIZE: Type = Type::Integer { min: CACHE_STRIPES.0, max: CACHE_STRIPES.1 };
/// Its documentation.
pub const STRIPE_CACHE_SIZE_DOC: &str = "Stripes of the cache: 4 KiB of each member each.";

/// The kinds of device that `type` names, and table devices (named by their `table` key).
pub static DEVICE_KINDS: &[Kind] = &[
    Kind { name: "file", doc: "A file or block device of the host.", params: FILE },
    Kind { name: "ram", doc: "Memory, allocated when first written.", params: RAM },
    Kind { name: "null", doc: "Completes every I/O without doing it, as null_blk.", params: NULL },
    Kind {
        name: "linear",
        doc: "A volume: its members one after the other, as dm-linear.",
        params: LINEAR,
    },
    Kind {
        name: "striped",
        doc: "A volume: chunks round-robin over its members, as dm-stripe.",
        params: STRIPED,
    },
    Kind { name: "raid4", doc: "An array: parity on one member, as md's RAID-4.", params: RAID },
    Kind { name: "raid5", doc: "An array: parity goes round, as md's RAID-5.", params: RAID },
    Kind {
        name: "raid6",
        doc: "An array: two parities, which make up for two lost members, as md's RAID-6.",
        params: RAID,
    },
    Kind {
        name: "zero",
        doc: "A volume: reads give zeroes, writes go nowhere, as dm-zero.",
        params: SIZED,
    },
    Kind { name: "error", doc: "A volume: every I/O fails, as dm's error target.", params: SIZED },
];

/// The kinds whose devices are tables.
pub const VOLUME_KINDS: [&str; 4] = ["linear", "striped", "zero", "error"];
/// The keys of `queue` that a volume has; the others belong to the request queues below it.
pub const VOLUME_QUEUE: [&str; 1] = ["iostats"];
/// The keys of all devices that a volume takes from its members instead.
pub const NOT_OF_VOLUMES: [&str; 2] = ["logical_block_size", "physical_block_size"];

static LINEAR: &[Param] = &[param(
    "members",
    Type::List(&Type::Device),
    Required,
    "The devices, each as a whole; their sizes may differ.",
)];

static STRIPED: &[Param] = &[
    param(
        "members",
        Type::List(&Type::Device),
        Required,
        "The devices; each is used as far as the smallest goes, in whole chunks.",
    ),
    param(
        "chunk",
        Type::Size { min: SECTOR, max: 1 << 30, multiple: SECTOR },
        Value("64KiB"),
        "How much goes to one device before the next has its turn.",
    ),
];

static RAID: &[Param] = &[
    param(
        "members",
        Type::List(&Type::Device),
        Required,
        "The devices, in any order: their superblocks say which is which. Spares may be among \
         them.",
    ),
    param(
        "raid_devices",
        Type::Integer { min: 2, max: 128 },
        Unset("all members"),
        "Members of a new array; the devices named after them are spares.",
    ),
    param(
        "chunk",
        Type::Size { min: 4096, max: 1 << 40, multiple: 4096 },
        Unset("that of the array, 512KiB for a new one"),
        "How much goes to one member before the next has its turn.",
    ),
    param(
        "layout",
        Type::Choice(&[
            "left-asymmetric",
            "right-asymmetric",
            "left-symmetric",
            "right-symmetric",
            "parity-first",
            "parity-last",
            "ddf-zero-restart",
            "ddf-N-restart",
            "ddf-N-continue",
            "left-asymmetric-6",
            "right-asymmetric-6",
            "left-symmetric-6",
            "right-symmetric-6",
            "parity-first-6",
        ]),
        Unset("that of the array, left-symmetric for a new one"),
        "Where parity lies, by mdadm's names.",
    ),
    param(
        "consistency_policy",
        Type::Choice(&["resync", "bitmap", "ppl"]),
        Unset(
            "that of the array, for a new one bitmap if a member has more than 100 GiB, else \
             resync",
        ),
        "How parity is made consistent after a crash, by mdadm's names.",
    ),
    param(
        "uuid",
        Type::Text { max: 64 },
        Unset("any array"),
        "The array that these devices must be of, as four groups of eight hexadecimal digits.",
    ),
    param("stripe_cache_size", STRIPE_CACHE_SIZE, Value("1024"), STRIPE_CACHE_SIZE_DOC),
    param(
        "run",
        Type::Bool,
        Value("false"),
        "Start degraded although members are not there that the superblocks count on, as mdadm's \
         --run.",
    ),
    param(
        "force",
        Type::Bool,
        Value("false"),
        "Start although data may be lost; a start without it is refused and says which data.",
    ),
];

static SIZED: &[Param] = &[param("size", DEVICE_SIZE, Required, "Size of the device.")];

static FILE: &[Param] = &[
    param("path", Type::Path, Required, "The file or block device."),
    param(
        "size",
        DEVICE_SIZE,
        Unset("the size of the existing file or device"),
        "Size of the device; a file that does not exist is created sparse with it, a smaller one \
         is refused.",
    ),
    param(
        "create",
        Type::Choice(&["missing", "never", "new"]),
        Value("missing"),
        "Whether a file may be created: when it is missing, never, or always a new one (an \
         existing file is refused).",
    ),
    param("mode", Type::Mode, Value("0600"), "File mode of a created file."),
    param(
        "direct",
        Type::Choice(&["auto", "true", "false"]),
        Value("auto"),
        "O_DIRECT: where the host can do it in blocks of the device's size (auto), always, with \
         logical blocks as large as that needs, or never.",
    ),
    param(
        "detect_holes",
        Type::Choice(&["auto", "true", "false"]),
        Value("auto"),
        "Whether the file system is asked which ranges are holes, for clients that copy without \
         them; auto does not ask ZFS, of which versions before 2.2.2 called new data a hole \
         (openzfs issue 15526).",
    ),
    param(
        "engine",
        Type::Choice(&["auto", "io_uring", "plain"]),
        Value("auto"),
        "How I/O reaches the kernel; auto takes io_uring where it is permitted.",
    ),
];

static RAM: &[Param] = &[
    param("size", DEVICE_SIZE, Required, "Size of the device."),
    param("discard", Type::Bool, Value("true"), "Whether discard is offered; it frees memory."),
];

static NULL: &[Param] = &[
    param("size", DEVICE_SIZE, Value(NULL_DEFAULT_SIZE), "Size of the device."),
    param("blocksize", BLOCK_SIZE, Value("512"), "Logical and physical block size."),
    param(
        "irqmode",
        Type::Numbered(&Completion::NAMES),
        Value("none"),
        "How requests complete: inline in the submitter, by another thread, or by a timer.",
    ),
    param(
        "completion_nsec",
        Type::Duration { unit: Unit::Nanoseconds, min: 0, max: HOUR },
        Unset("10us with irqmode \"timer\", none with \"thread\""),
        "Time until completion with irqmode \"timer\", or \"thread\": that thread then keeps time \
         on a core of its own.",
    ),
    param(
        "latency",
        Type::Latency,
        Unset("every I/O takes completion_nsec"),
        "Distribution of the time until completion with irqmode \"timer\" or \"thread\", by \
         percentiles.",
    ),
    param(
        "seek_min_nsec",
        SEEK,
        Unset("0s"),
        "Shortest movement of the head, where there is one (seek_max_nsec).",
    ),
    param(
        "seek_max_nsec",
        SEEK,
        Unset("no head"),
        "Simulates a disk with one head, which serves one I/O after the other: beside its own time \
         each takes seek_min_nsec + (seek_max_nsec - seek_min_nsec) * sqrt(distance / size), or \
         nothing where it begins where the one before it ended; with irqmode \"timer\".",
    ),
    param(
        "submit_queues",
        HW_QUEUES,
        Unset("one for each data thread; 1 with a head"),
        "Hardware queues at the start; `drystone set` changes their number.",
    ),
    param(
        "poll_queues",
        POLL_QUEUES,
        Value("1"),
        "Further hardware queues for polled I/O at the start; `drystone set` changes their number.",
    ),
    param(
        "skip_busy",
        Type::Bool,
        Value("true"),
        "A poll queue that another thread is polling is skipped; without this it is waited for, as \
         Linux did before 2021.",
    ),
    param(
        "hw_queue_depth",
        Type::Integer { min: 1, max: MAX_DEPTH as u64 },
        Value("64"),
        "Tags of each hardware queue.",
    ),
    param(
        "memory_backed",
        Type::Bool,
        Value("false"),
        "Store the data that is written; otherwise reads leave the buffer as it is.",
    ),
    param("discard", Type::Bool, Value("false"), "Offer discard; needs memory_backed."),
    param(
        "mbps",
        Type::Integer { min: 0, max: 40_960 },
        Value("0"),
        "Bandwidth limit in MiB a second; 0 is none.",
    ),
    param(
        "badblocks",
        Type::List(&Type::Sectors),
        Unset("none"),
        "Sectors whose I/O fails, as \"FIRST-LAST\".",
    ),
    param(
        "cache_size",
        Type::Size { min: 0, max: MAX_SIZE, multiple: 4096 },
        Value("0"),
        "Volatile write cache; needs memory_backed; 0 is none.",
    ),
    param("fua", Type::Bool, Value("true"), "Offer FUA when there is a write cache."),
];

/// The keys that say which kind a device is; one of the two is given.
pub static DEVICE_WHAT: &[Param] = &[
    param("type", Type::Text { max: 64 }, Unset("required, or `table`"), "The kind of device."),
    param(
        "table",
        Type::List(&Type::Table),
        Unset("required, or `type`"),
        "A volume: ranges of other devices in dmsetup's table syntax; targets are linear, striped, \
         zero, error, delay, flakey and log-writes.",
    ),
];

/// Parameters that every kind of device has; volumes have `read_only` and `queue.iostats` of them.
pub static DEVICE_COMMON: &[Param] = &[
    param(
        "read_only",
        Type::Bool,
        Value("false"),
        "Refuse writes; the file is opened for reading only.",
    ),
    param(
        "logical_block_size",
        BLOCK_SIZE,
        Unset("the driver's"),
        "Smallest unit of an I/O: of a block device of the host what that has, or more; of a file \
         512 bytes if nothing else is said and `direct = true` needs no more; of volumes that of \
         their members.",
    ),
    param(
        "physical_block_size",
        Type::PowerOfTwo { min: 512, max: 65_536 },
        Unset("the driver's"),
        "Unit that is written without read-modify-write; never below the logical one.",
    ),
    param(
        "queue",
        Type::Fields(QUEUE),
        Unset("each key's own default"),
        "The request queue's attributes, named as in sysfs; a volume has no queue, only iostats; \
         an array has neither.",
    ),
];
