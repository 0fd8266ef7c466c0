//! The parameters themselves, one line of doc each. Sources: null_blk's parameters are those of
//! `Documentation/block/null_blk.rst`, queue attributes those of `ABI/stable/sysfs-block`.

use super::IfAbsent::{Required, Unset, Value};
use super::{Kind, Param, Type};
use crate::duration::Unit;
use drystone_core::context::PollMode;
use drystone_drivers::null::Completion;

/// Largest device: the largest power of two that a signed 64-bit file offset reaches.
const MAX_SIZE: u64 = 1 << 62;
const SECTOR: u64 = 512;
const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

/// Size of a null device that names none, as null_blk's.
pub const NULL_DEFAULT_SIZE: &str = "250GiB";

/// What a `latency` table looks like.
pub const LATENCY_DOC: &str =
    "a table of percentiles, as in { p50 = \"10us\", p99 = \"80us\", max = \"1ms\" }";

/// What an `allow` table looks like.
pub const ALLOW_DOC: &str = "a table of clients, as in { \"tls:alice\" = \"read-write\", \"uid:1000\" = \"read-only\", \"net:192.0.2.0/24\" = \"read-only\" }";

/// What a `clients` table looks like.
pub const CLIENTS_DOC: &str = "a table of clients and groups, as in { \"uid:1000\" = \"tenants/a\", \"tls:alice\" = \"tenants/b\" }";

const DEVICE_SIZE: Type = Type::Size { min: SECTOR, max: MAX_SIZE, multiple: SECTOR };
const BLOCK_SIZE: Type = Type::PowerOfTwo { min: 512, max: 4096 };
const COUNT: Type = Type::Integer { min: 1, max: 1024 };

/// A user or group by number; the largest stands for none.
const USER: Type = Type::Integer { min: 0, max: u32::MAX as u64 - 1 };

const SEEK: Type = Type::Duration { unit: Unit::Nanoseconds, min: 0, max: HOUR };

const fn param(key: &'static str, ty: Type, default: super::IfAbsent, doc: &'static str) -> Param {
    Param { key, ty, default, doc }
}

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
/// The keys of `queue` that a volume has: the rest is of request queues, which are below it.
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
        "The devices, in any order: their superblocks say which is which. Spares may be among them.",
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
            "that of the array, for a new one bitmap if a member has more than 100 GiB, else resync",
        ),
        "How parity is made consistent after a crash, by mdadm's names.",
    ),
    param(
        "uuid",
        Type::Text { max: 64 },
        Unset("any array"),
        "The array that these devices must be of, as four groups of eight hexadecimal digits.",
    ),
    param(
        "stripe_cache_size",
        Type::Integer { min: 17, max: 32_768 },
        Value("1024"),
        "Stripes of the cache: 4 KiB of each member each.",
    ),
    param(
        "run",
        Type::Bool,
        Value("false"),
        "Start degraded though members are not there on which the superblocks count, as mdadm's --run.",
    ),
    param(
        "force",
        Type::Bool,
        Value("false"),
        "Start though something may be lost; what, is said where the start is refused without it.",
    ),
];

static SIZED: &[Param] = &[param("size", DEVICE_SIZE, Required, "Size of the device.")];

static FILE: &[Param] = &[
    param("path", Type::Path, Required, "The file or block device."),
    param(
        "size",
        DEVICE_SIZE,
        Unset("the size of the existing file or device"),
        "Size of the device; a file that does not exist is created sparse with it, a smaller one is refused.",
    ),
    param(
        "create",
        Type::Choice(&["missing", "never", "new"]),
        Value("missing"),
        "Whether a file may be created: when it is missing, never, or always a new one (an existing file is refused).",
    ),
    param("mode", Type::Mode, Value("0600"), "File mode of a created file."),
    param(
        "direct",
        Type::Choice(&["auto", "true", "false"]),
        Value("auto"),
        "O_DIRECT: where the host can do it in blocks of the device's size (auto), always, with logical blocks as large as that needs, or never.",
    ),
    param(
        "detect_holes",
        Type::Choice(&["auto", "true", "false"]),
        Value("auto"),
        "Whether the file system is asked which ranges are holes, for clients that copy without them; auto does not ask ZFS, of which versions before 2.2.2 called new data a hole (openzfs issue 15526).",
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
        "Time until completion with irqmode \"timer\", or \"thread\": that thread then keeps time on a core of its own.",
    ),
    param(
        "latency",
        Type::Latency,
        Unset("every I/O takes completion_nsec"),
        "Distribution of the time until completion with irqmode \"timer\" or \"thread\", by percentiles.",
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
        "Simulates a disk with one head, which serves one I/O after the other: beside its own time each takes seek_min_nsec + (seek_max_nsec - seek_min_nsec) * sqrt(distance / size), or nothing where it begins where the one before it ended; with irqmode \"timer\".",
    ),
    param(
        "submit_queues",
        COUNT,
        Unset("one for each data thread; 1 with a head"),
        "Hardware queues at the start; `drystone set` changes their number.",
    ),
    param(
        "poll_queues",
        Type::Integer { min: 0, max: 1024 },
        Value("1"),
        "Further hardware queues for polled I/O at the start; `drystone set` changes their number.",
    ),
    param(
        "skip_busy",
        Type::Bool,
        Value("true"),
        "A poll queue that another thread is polling is skipped; without this it is waited for, as Linux did before 2021.",
    ),
    param(
        "hw_queue_depth",
        Type::Integer { min: 1, max: 10_240 },
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

/// What says which kind a device is; one of the two is given.
pub static DEVICE_WHAT: &[Param] = &[
    param("type", Type::Text { max: 64 }, Unset("required, or `table`"), "The kind of device."),
    param(
        "table",
        Type::List(&Type::Table),
        Unset("required, or `type`"),
        "A volume: ranges of other devices in dmsetup's table syntax; targets are linear, striped, zero, error, delay, flakey and log-writes.",
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
        "Smallest unit of an I/O: of a block device of the host what that has, or more; of a file 512 bytes if nothing else is said and `direct = true` needs no more; of volumes that of their members.",
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
        "The request queue's attributes, named as in sysfs; a volume has no queue, only iostats; an array has neither.",
    ),
];

const fn iosched(key: &'static str, default: &'static str, doc: &'static str) -> Param {
    param(key, Type::Integer { min: 0, max: i32::MAX as u64 }, Unset(default), doc)
}

/// The `queue = { ... }` table of a device.
pub static QUEUE: &[Param] = &[
    param(
        "scheduler",
        Type::Choice(&["none", "mq-deadline"]),
        Unset("mq-deadline with one hardware queue, but none for ram, and for null without a head"),
        "Order of dispatch.",
    ),
    iosched("read_expire", "500", "mq-deadline: milliseconds after which a read is overdue."),
    iosched("write_expire", "5000", "mq-deadline: milliseconds after which a write is overdue."),
    iosched(
        "prio_aging_expire",
        "10000",
        "mq-deadline: milliseconds after which a lower class goes although a higher one waits.",
    ),
    iosched("writes_starved", "2", "mq-deadline: batches of reads that go before waiting writes."),
    iosched("fifo_batch", "16", "mq-deadline: requests that go in sector order at a stretch."),
    param(
        "front_merges",
        Type::Bool,
        Unset("true"),
        "mq-deadline: whether I/O merges in front of requests too.",
    ),
    param(
        "straight",
        Type::Bool,
        Unset("true unless the device is a spinning disk"),
        "mq-deadline: whether I/O goes straight to the device while nothing waits and tags are free.",
    ),
    param(
        "async_depth",
        Type::Integer { min: 1, max: i32::MAX as u64 },
        Unset("nr_requests"),
        "mq-deadline: how many of them may be other than reads.",
    ),
    param(
        "nr_requests",
        Type::Integer { min: 1, max: 10_240 },
        Unset("the driver's depth; 256 with mq-deadline"),
        "Requests a hardware queue may hold: at most the driver's depth, with mq-deadline 2048.",
    ),
    param(
        "nomerges",
        Type::Integer { min: 0, max: 2 },
        Value("0"),
        "0 merges all it can, 1 only with the last request, 2 not at all.",
    ),
    param("io_poll", Type::Bool, Value("false"), "Whether polled I/O is taken."),
    param(
        "max_sectors_kb",
        Type::Integer { min: 4, max: 1 << 20 },
        Unset("the driver's, at most 1280"),
        "Largest request in KiB; larger I/O is split.",
    ),
    param(
        "io_timeout",
        Type::Duration { unit: Unit::Milliseconds, min: 1_000_000, max: 24 * HOUR },
        Value("30s"),
        "Time after which a request counts as lost; a member of an array may fail then.",
    ),
    param("iostats", Type::Bool, Value("true"), "Whether I/O is counted."),
    param(
        "write_cache",
        Type::Choice(&["write back", "write through"]),
        Unset("the driver's"),
        "Whether flushes are needed; changes the queue's view, not the device.",
    ),
    param(
        "hw_queues",
        COUNT,
        Unset("null: `submit_queues`; else 64, so that each data thread has its own"),
        "Hardware queues at the start; `drystone set` changes their number.",
    ),
];

/// `[export.NAME]`.
pub static EXPORT: &[Param] = &[
    param("device", Type::Device, Required, "The device to serve."),
    param(
        "nbd",
        Type::List(&Type::Listener),
        Unset("no NBD; then `fuse` is needed"),
        "Where the NBD server listens; exports that name the same place share it and are told apart by name.",
    ),
    param(
        "fuse",
        Type::Path,
        Unset("no FUSE"),
        "Where the device appears as a file, by FUSE: a path that is free or an empty file, which becomes the file; or a folder that exists, in which the file has the export's name, and which exports may share.",
    ),
    param(
        "fuse_loop",
        Type::Bool,
        Value("false"),
        "Also make a loop device of the file, ready for mkfs (needs root), as `serve --mount` does for all.",
    ),
    param(
        "fuse_allow_other",
        Type::Bool,
        Value("false"),
        "Let other users open the file, as `fuse_mode` permits; otherwise only the user who runs the server can, not even root.",
    ),
    param(
        "fuse_mode",
        Type::Mode,
        Unset("0666, so that every user of the machine may read and write"),
        "File mode of the file, with fuse_allow_other.",
    ),
    param(
        "fuse_uid",
        USER,
        Unset("the user who runs the server"),
        "Owner of the file, by number, with fuse_allow_other.",
    ),
    param(
        "fuse_gid",
        USER,
        Unset("the group of the user who runs the server"),
        "Group of the file, by number, with fuse_allow_other.",
    ),
    param(
        "fuse_writeback_cache",
        Type::Bool,
        Value("false"),
        "Let the kernel hold writes back in its page cache until fsync or for some seconds; of files in a folder.",
    ),
    param(
        "fuse_ignore_truncate",
        Type::Bool,
        Value("false"),
        "Opening the file with O_TRUNC (as `>` in a shell does), and truncating its path to 0, change nothing, as with a block device; otherwise all of the device becomes zeroes.",
    ),
    param("read_only", Type::Bool, Value("false"), "Refuse writes of clients."),
    param(
        "allow",
        Type::Allow,
        Unset("every client that can connect"),
        "The NBD clients that may use the export; for others it does not exist. By a name in the certificate (tls:NAME), by the user id of one on a Unix socket (uid:NUMBER), or by the address (net:ADDRESS or net:ADDRESS/BITS): the first of these that fits counts, and of addresses the smallest network. docs/tls.md",
    ),
    param("description", Type::Text { max: 4096 }, Value(""), "Text that clients see in listings."),
    param(
        "default",
        Type::Bool,
        Value("false"),
        "Also the export of clients that ask for no name; where an address has one export it is that.",
    ),
    param(
        "multi_conn",
        Type::Bool,
        Value("true"),
        "Tell clients that several connections see one consistent device.",
    ),
    param(
        "io",
        Type::Fields(IO),
        Unset("no-change"),
        "The priority class of all its I/O: write io.prio.class = \"idle\".",
    ),
    param(
        "prio_level",
        Type::Integer { min: 0, max: 7 },
        Value("0"),
        "Level inside the class, 0 (first) to 7.",
    ),
    param(
        "group",
        Type::Group,
        Unset("the root, which has no limits"),
        "The throttle group that its clients' I/O belongs to.",
    ),
    param(
        "clients",
        Type::Clients,
        Unset("all clients: `group`"),
        "Throttle groups of single clients: by the user id of one on a Unix socket, or by a name (the common name, or a DNS or URI name) in the certificate of one that uses TLS; the certificate goes before the user id.",
    ),
    param("tls", Type::Fields(TLS), Unset("off"), "Encryption."),
    param(
        "max_connections",
        Type::Integer { min: 1, max: 65_536 },
        Value("1024"),
        "Connections at a time, of those that have chosen an export; more are refused.",
    ),
    param(
        "max_connections_per_client",
        Type::Integer { min: 1, max: 65_536 },
        Unset("as max_connections"),
        "How many of them one client may have: one certificate, or else one user id or address.",
    ),
    param(
        "max_in_flight",
        Type::Integer { min: 1, max: 4096 },
        Value("256"),
        "Requests of a connection in flight in each direction: so many reads, and as many others.",
    ),
    param(
        "max_request",
        Type::Size { min: 64 << 10, max: 64 << 20, multiple: 4096 },
        Value("64MiB"),
        "Largest read or write.",
    ),
    param(
        "handshake_timeout",
        Type::Duration { unit: Unit::Seconds, min: 100_000_000, max: HOUR },
        Value("10s"),
        "Time a client has to negotiate.",
    ),
    param(
        "idle_timeout",
        Type::Duration { unit: Unit::Seconds, min: 0, max: 720 * HOUR },
        Value("0"),
        "Time after which a connection without requests is closed; 0 is never.",
    ),
    param(
        "peer_timeout",
        Type::Duration { unit: Unit::Seconds, min: 2 * SECOND, max: 24 * HOUR },
        Value("5m"),
        "Time after which a TCP client is given up whose machine acknowledges nothing, or which takes nothing of its replies (TCP_USER_TIMEOUT); an idle one is probed, and stays while its machine answers.",
    ),
];

/// The `io` table of an export.
pub static IO: &[Param] = &[param(
    "prio",
    Type::Fields(IO_PRIO),
    Unset("no-change"),
    "The priority of its I/O: the table of class.",
)];

/// The `io.prio` table of an export.
pub static IO_PRIO: &[Param] = &[param(
    "class",
    Type::Choice(&["no-change", "promote-to-rt", "restrict-to-be", "idle"]),
    Value("no-change"),
    "Class for mq-deadline, in cgroup v2's words: none, real-time, best effort, idle.",
)];

/// `[group.PATH]`.
pub static GROUP: &[Param] = &[param(
    "io",
    Type::Fields(GROUP_IO),
    Unset("no limits of its own"),
    "The limits of its I/O: write io.max = [...].",
)];

/// The `io` table of a group.
pub static GROUP_IO: &[Param] = &[param(
    "max",
    Type::List(&Type::IoMax),
    Unset("max"),
    "Bytes and I/Os that it and the groups below it may read and write in a second, a line for each device, as cgroup v2's io.max: each value is max or a number from 1 up. Bytes have the units of sizes; of I/Os k is 1000, M 1000000.",
)];

/// The `tls = { ... }` table of an export.
pub static TLS: &[Param] = &[
    param(
        "mode",
        Type::Choice(&["off", "optional", "required"]),
        Value("off"),
        "Whether clients may or must encrypt.",
    ),
    param("cert", Type::Path, Unset("none"), "The server's certificate chain (PEM)."),
    param("key", Type::Path, Unset("none"), "The server's private key (PEM)."),
    param(
        "client_ca",
        Type::Path,
        Unset("any client"),
        "Certificates that must have signed the client's (PEM).",
    ),
];

/// `[server]`.
pub static SERVER: &[Param] = &[
    param(
        "threads",
        Type::Integer { min: 0, max: 1024 },
        Value("0"),
        "Data threads; 0 is as many as cores.",
    ),
    param(
        "poll_mode",
        Type::Choice(&PollMode::NAMES),
        Value("adaptive"),
        "How data threads wait: asleep (interrupt), polling all the while, which takes a core for each (poll), or polling for at most 100us at a time where that has shortened waits by a sixth, and asleep otherwise (adaptive). `drystone poll-mode` changes it at run time.",
    ),
    param(
        "memory",
        Type::Size { min: 16 << 20, max: 1 << 44, multiple: 1 << 20 },
        Unset("a quarter of what the process may have, at least 256MiB"),
        "What buffers of NBD clients' requests may take, all connections together. The clients of one device and throttle group together get at most twice what is free at that moment, and each of them twice what those may still take, so whoever fills memory with requests that wait for a limit leaves some to all others; a request beyond that waits, as does one that finds too little left, and one that is longer than seven eighths of it goes alone. An eighth is a reserve: a request of up to 1MiB of a client that has nothing else comes out of it at once, whatever long requests of others hold or wait for. Every connection has 288KiB beside it, so small requests do not wait. A client that has taken less than 1MiB of its replies, or sent less than that of its data, in 30 s is cut off if somebody waits who has nothing. Idle buffers go back to the system after a second. FUSE files have their own memory from the start, 13 MiB for each mount and data thread.",
    ),
    param(
        "control",
        Type::Path,
        Unset("$XDG_RUNTIME_DIR/drystone/NAME.sock; for root /run/drystone/NAME.sock"),
        "The control socket.",
    ),
];
