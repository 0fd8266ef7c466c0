//! The commands of the control socket: the one table behind dispatch, help, docs and validation.

use drystone_core::context::PollMode;

use super::command::{Argument, Command, Shape, optional, required};
use super::{devices, groups, md, statistics, volumes};
use crate::duration::Unit;
use crate::group::MAX_GROUP_LEVELS;
use crate::names::MAX_NAME_BYTES;
use crate::schema::Type;

const NAME: Type = Type::Text { max: 64 };
/// The time that a change waits until a volume is quiet: at most an hour.
const TIMEOUT: Type = Type::Duration { unit: Unit::Seconds, min: 0, max: 3_600_000_000_000 };

/// As long as the deepest path of names can be.
const PATH: Type = Type::Text { max: (MAX_NAME_BYTES + 1) * MAX_GROUP_LEVELS };

const VOLUME: Argument = required("device", NAME, "The volume's name.");
const ANY_VOLUME: Argument = optional("device", NAME, "The volume's name; without it all.");
const TABLE: Argument =
    required("table", Type::Table, "Its lines, each with a line end but the last.");
const WITHIN: Argument = optional(
    "timeout",
    TIMEOUT,
    "How long to wait until earlier I/O has ended, 30s unless given; after that all is as before.",
);
const FORCE: Argument = optional(
    "force",
    Type::Bool,
    "Take the table although an export or another table uses the same sectors; one may then \
     overwrite the other's data.",
);

/// The result of commands that change a volume.
const CHANGED: Shape = INFO;
const INFO: Shape = &[
    ("name", "the volume's name"),
    ("state", "ACTIVE or SUSPENDED"),
    ("read_only", "true if writes are refused"),
    ("tables_present", "LIVE, INACTIVE, LIVE & INACTIVE or None"),
    ("open_count", "exports and tables that use it"),
    ("targets", "lines of the live table"),
];

const ARRAY: Argument = required("device", NAME, "The array's name.");
const MEMBER: Argument = required(
    "member",
    FILE,
    "A device of the stack, or an absolute path of what one stands on; of several: failed, faulty \
     or detached.",
);
const PATH_OF_MEMBER: Argument =
    optional("path", FILE, "The absolute path that `member` means if no device is called so.");
const FILE: Type = Type::Text { max: 4096 };
const MEMBERS: Shape = &[
    ("device", "the array's name"),
    ("members", "the names of the devices that it was about, or that the array has"),
    ("warning", "a sentence on what may come of it, or null"),
];
const ARRAYS: &str = "a list of { name, version, creation_time, level, array_size, \
     used_dev_size, raid_devices, total_devices, active_devices, working_devices, \
     failed_devices, spare_devices, consistency_policy, bitmap, update_time, state, \
     array_state, read_only, layout, algorithm, chunk_size, sync, resync_pending, set_name, \
     uuid, events, mismatch_cnt (sectors), suspects (a text on what may be wrong because of a \
     forced start, or null), left_out (sentences on devices that took no part in the start), \
     notices (sentences on what was found damaged then), devices }, sizes in bytes, times in \
     seconds since 1970; bitmap is null or { pages_used, pages, chunk }; sync is null or \
     { action, done, total, percent, speed (a second) }, of each member; devices is a list of \
     { device, path, number, major, minor, raid_device, state, replacement, bad_blocks }";

/// All commands.
pub static COMMANDS: &[Command] = &[
    Command {
        name: "list",
        doc: "Lists devices and exports.",
        arguments: &[],
        result: &[
            ("devices", "a list of { name, kind, size (bytes), read_only, in_flight }"),
            ("exports", "a list of { name, device, uris, read_only, connections }"),
        ],
        run: devices::list,
    },
    Command {
        name: "show",
        doc: "Shows one device with all its attributes.",
        arguments: &[required("device", NAME, "The device's name.")],
        result: &[
            ("name", "the device's name"),
            ("kind", "file, ram or null; of a volume its target, or table if there are several"),
            ("size", "bytes"),
            ("description", "what it is made of, for people"),
            ("members", "names of the devices it stands on"),
            ("exports", "names of the exports that serve it"),
            ("attributes", "an object of attribute names with their values as texts"),
            (
                "modes",
                "an object of the same names with rw, or ro for those that this device's set \
                 refuses",
            ),
        ],
        run: devices::show,
    },
    Command {
        name: "set",
        doc: "Sets an attribute of a device; a refused value changes nothing.",
        arguments: &[
            required("device", NAME, "The device's name."),
            required("attribute", NAME, "The attribute's name."),
            required(
                "value",
                Type::Text { max: 256 },
                "Its new value: a text, a number or a switch.",
            ),
        ],
        result: &[
            ("device", "the device's name"),
            ("attribute", "the attribute's name"),
            ("value", "its value now, as a text"),
            ("warning", "a sentence on what may come of it, or null"),
        ],
        run: devices::set,
    },
    Command {
        name: "reopen",
        doc: "Opens the file of a device again, while it is used: a failed flush and a file that \
            was cut short are forgotten. What was lost by them stays lost. I/O under way ends with \
            the file that was open before. A member that an array has failed stays failed: md-add \
            takes it back.",
        arguments: &[
            required("device", NAME, "The name of a file device, or of an array's member."),
            optional(
                "replaced",
                Type::Bool,
                "Open the path although it leads to another file or disk now.",
            ),
        ],
        result: &[
            ("device", "the device's name"),
            ("warning", "a sentence if I/O that was under way has not ended in 10 s, or null"),
        ],
        run: devices::reopen,
    },
    Command {
        name: "create",
        doc: "Makes a volume, as dmsetup create.",
        arguments: &[
            required("device", NAME, "Its name, which no device has yet."),
            optional(
                "table",
                Type::Table,
                "Its lines; without them it has no table, and all I/O fails.",
            ),
            optional("read_only", Type::Bool, "Refuse writes."),
            FORCE,
        ],
        result: CHANGED,
        run: volumes::create,
    },
    Command {
        name: "table",
        doc: "Gives the tables of volumes, as dmsetup table.",
        arguments: &[
            ANY_VOLUME,
            optional("inactive", Type::Bool, "Inactive tables instead of the live ones."),
        ],
        result: &[("volumes", "a list of { name, table (a text of lines; null without one) }")],
        run: volumes::table,
    },
    Command {
        name: "status",
        doc: "Gives the state of the targets of volumes, as dmsetup status.",
        arguments: &[ANY_VOLUME],
        result: &[(
            "volumes",
            "a list of { name, status (a text of lines; null without a table) }",
        )],
        run: volumes::status,
    },
    Command {
        name: "info",
        doc: "Lists volumes with their states, as dmsetup info.",
        arguments: &[ANY_VOLUME],
        result: &[(
            "volumes",
            "a list of { name, state, read_only, tables_present, open_count, targets }",
        )],
        run: volumes::infos,
    },
    Command {
        name: "reload",
        doc: "Puts a table into the inactive slot of a volume, as dmsetup reload.",
        arguments: &[
            VOLUME,
            TABLE,
            optional("now", Type::Bool, "Then resume with this table."),
            WITHIN,
            FORCE,
        ],
        result: CHANGED,
        run: volumes::reload,
    },
    Command {
        name: "clear",
        doc: "Empties the inactive slot of a volume, as dmsetup clear.",
        arguments: &[VOLUME],
        result: CHANGED,
        run: volumes::clear,
    },
    Command {
        name: "suspend",
        doc: "Holds back new I/O of a volume, as dmsetup suspend, and waits until all earlier I/O \
            has ended.",
        arguments: &[
            VOLUME,
            optional("noflush", Type::Bool, "Do not wait for what is in flight."),
            WITHIN,
        ],
        result: CHANGED,
        run: volumes::suspend,
    },
    Command {
        name: "resume",
        doc: "Lets I/O of a volume go on, as dmsetup resume: by the inactive table if there is \
            one, for which it suspends the volume first.",
        arguments: &[VOLUME, WITHIN],
        result: CHANGED,
        run: volumes::resume,
    },
    Command {
        name: "message",
        doc: "Sends words to a target of a volume, as dmsetup message: `mark NAME`, one word, to \
            log-writes. The answer comes when the mark is in the log.",
        arguments: &[
            VOLUME,
            required(
                "sector",
                Type::Integer { min: 0, max: i64::MAX as u64 / 512 },
                "A sector of the target.",
            ),
            required("text", Type::Text { max: 4096 }, "The words."),
        ],
        result: CHANGED,
        run: volumes::message,
    },
    Command {
        name: "remove",
        doc: "Removes a volume that nothing uses, as dmsetup remove.",
        arguments: &[VOLUME],
        result: &[("name", "the name that is free now")],
        run: volumes::remove,
    },
    Command {
        name: "md-detail",
        doc: "Reports on arrays, as mdadm --detail and /proc/mdstat do.",
        arguments: &[optional("device", NAME, "The array's name; without it all.")],
        result: &[("arrays", ARRAYS)],
        run: md::detail,
    },
    Command {
        name: "md-add",
        doc: "Gives an array a device, as mdadm --add: as the member that it was, if all that it \
            has missed is marked in the bitmap, else as a spare.",
        arguments: &[
            ARRAY,
            MEMBER,
            PATH_OF_MEMBER,
            optional(
                "force",
                Type::Bool,
                "Add it although it holds a file system or another array; that is lost.",
            ),
        ],
        result: MEMBERS,
        run: md::add,
    },
    Command {
        name: "md-fail",
        doc: "Marks a member as failed, as mdadm --fail.",
        arguments: &[ARRAY, MEMBER, PATH_OF_MEMBER],
        result: MEMBERS,
        run: md::fail,
    },
    Command {
        name: "md-remove",
        doc: "Removes a failed device or a spare from an array, as mdadm --remove; a device that \
            was opened for the array is closed.",
        arguments: &[ARRAY, MEMBER, PATH_OF_MEMBER],
        result: MEMBERS,
        run: md::remove,
    },
    Command {
        name: "md-replace",
        doc: "Replaces a member by a spare while the member stays in use, as mdadm --replace.",
        arguments: &[ARRAY, MEMBER, PATH_OF_MEMBER],
        result: MEMBERS,
        run: md::replace,
    },
    Command {
        name: "md-check",
        doc: "Begins to compare all parity of an array with its data, as mdadm --action=check.",
        arguments: &[ARRAY],
        result: MEMBERS,
        run: md::check,
    },
    Command {
        name: "md-repair",
        doc: "The same, and recomputes parity where it differs, as mdadm --action=repair.",
        arguments: &[ARRAY],
        result: MEMBERS,
        run: md::repair,
    },
    Command {
        name: "md-stop",
        doc: "Stops an array that nothing uses and removes it, as mdadm --stop: its superblocks \
            say that it is clean, and devices that were opened for it are closed.",
        arguments: &[ARRAY],
        result: MEMBERS,
        run: md::stop,
    },
    Command {
        name: "md-assemble",
        doc: "Starts an array that is found on devices, as mdadm --assemble.",
        arguments: &[
            required("device", NAME, "Its name, which no device has yet."),
            required(
                "members",
                Type::Text { max: 64 << 10 },
                "One a line: names of devices, or absolute paths, which are opened if no device \
                 stands on them.",
            ),
            optional("uuid", Type::Text { max: 64 }, "That of the array: others are left out."),
            optional("run", Type::Bool, "Start degraded, without members that are missing."),
            optional(
                "force",
                Type::Bool,
                "Start it although data may be lost; a start without it is refused and says which \
                 data.",
            ),
            optional("read_only", Type::Bool, "Write nothing, to the members neither."),
        ],
        result: MEMBERS,
        run: md::assemble,
    },
    Command {
        name: "group-create",
        doc: "Makes a throttle group without limits, as mkdir makes a cgroup.",
        arguments: &[required("path", PATH, "Its path; the group above it is there.")],
        result: &[("path", "its path")],
        run: groups::create,
    },
    Command {
        name: "group-remove",
        doc: "Removes a throttle group that no export, client or group below it uses, as rmdir.",
        arguments: &[required("path", PATH, "Its path.")],
        result: &[("path", "the path that is free now")],
        run: groups::remove,
    },
    Command {
        name: "group-set",
        doc: "Changes the limits of a throttle group on a device, as a line written to io.max; \
            keys that are not named keep their values.",
        arguments: &[
            required("path", PATH, "The group's path; the root has no limits."),
            required(
                "line",
                Type::Text { max: 1024 },
                "The device and its limits, as in `disk rbps=200MiB wiops=max`.",
            ),
        ],
        result: &[
            ("path", "the group's path"),
            ("io_max", "{ device, rbps, wbps, riops, wiops } as they are now; null is max"),
        ],
        run: groups::set,
    },
    Command {
        name: "group-list",
        doc: "Lists all throttle groups.",
        arguments: &[],
        result: &[(
            "groups",
            "a list of { path, members (clients in it), io_max }, the root (`/`) first; io_max is \
             a list of { device, rbps, wbps, riops, wiops }; null is max",
        )],
        run: groups::list,
    },
    Command {
        name: "group-stat",
        doc: "Gives the I/O of throttle groups and of those below them, as io.stat; then resets it \
            if asked to. The root (`/`) has what its devices count, which is never reset.",
        arguments: &[
            optional("path", PATH, "The group's path; without it all, each by itself."),
            optional("reset", Type::Bool, "Afterwards count from zero."),
        ],
        result: &[(
            "groups",
            "a list of { path, io_stat }; io_stat is a list of \
             { device, rbytes, wbytes, rios, wios, dbytes, dios }",
        )],
        run: groups::stat,
    },
    Command {
        name: "iostat",
        doc: "Gives the counters of all devices, as /proc/diskstats has them.",
        arguments: &[],
        result: &[
            ("uptime_ns", "nanoseconds since the stack started"),
            (
                "devices",
                "a list of { device, reads, reads_merged, sectors_read, read_ms, writes, \
                 writes_merged, sectors_written, write_ms, in_flight, busy_ms, weighted_ms, \
                 discards, discards_merged, sectors_discarded, discard_ms, flushes, flush_ms }",
            ),
        ],
        run: statistics::iostat,
    },
    Command {
        name: "lockstat",
        doc: "Gives the figures of all lock classes that were used, as /proc/lock_stat has them; \
            then does what its arguments ask.",
        arguments: &[
            optional("reset", Type::Bool, "Afterwards count from zero."),
            optional("hold", Type::Bool, "From now on measure hold times, or do so no longer."),
        ],
        result: &[
            ("hold", "true if hold times are measured now"),
            (
                "classes",
                "a list of { class, contentions, waits, waittime_min_ns, waittime_max_ns, \
                 waittime_total_ns, waittime_avg_ns, acquisitions, holds, holdtime_min_ns, \
                 holdtime_max_ns, holdtime_total_ns, holdtime_avg_ns }; null is not known",
            ),
        ],
        run: statistics::lockstat,
    },
    Command {
        name: "poll-mode",
        doc: "Reports or changes how data threads wait for completions and requests.",
        arguments: &[optional(
            "mode",
            Type::Choice(&PollMode::NAMES),
            "asleep (interrupt), polling all the while (poll), or as pays off (adaptive).",
        )],
        result: &[("mode", "interrupt, poll or adaptive")],
        run: statistics::poll_mode,
    },
    Command {
        name: "version",
        doc: "Identifies the server.",
        arguments: &[],
        result: &[
            ("version", "the program's version"),
            ("protocol", "the number of this protocol"),
            ("pid", "the server's process"),
            ("stack", "the stack's name"),
        ],
        run: statistics::version,
    },
];
