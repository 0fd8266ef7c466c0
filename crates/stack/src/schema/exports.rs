//! The parameters of exports.

use super::IfAbsent::{Required, Unset, Value};
use super::{HOUR, Param, SECOND, Type, param};
use crate::duration::Unit;

/// An example of an `allow` table.
pub const ALLOW_DOC: &str = "a table of clients, as in { \"tls:alice\" = \"read-write\", \
    \"uid:1000\" = \"read-only\", \"net:192.0.2.0/24\" = \"read-only\" }";

/// An example of a `clients` table.
pub const CLIENTS_DOC: &str = "a table of clients and groups, as in \
    { \"uid:1000\" = \"tenants/a\", \"tls:alice\" = \"tenants/b\" }";

/// A user or group by number; the largest stands for none.
const USER: Type = Type::Integer { min: 0, max: u32::MAX as u64 - 1 };

/// `[export.NAME]`.
pub static EXPORT: &[Param] = &[
    param("device", Type::Device, Required, "The device to serve."),
    param(
        "nbd",
        Type::List(&Type::Listener),
        Unset("no NBD; then `fuse` is needed"),
        "Where the NBD server listens; exports that name the same place share it and are told \
         apart by name.",
    ),
    param(
        "fuse",
        Type::Path,
        Unset("no FUSE"),
        "Where the device appears as a file, by FUSE: a path that is free or an empty file, which \
         becomes the file; or a folder that exists, in which the file has the export's name, and \
         which exports may share.",
    ),
    param(
        "fuse_loop",
        Type::Bool,
        Value("false"),
        "Also make a loop device of the file, ready for mkfs (needs root), as `serve --mount` does \
         for all.",
    ),
    param(
        "fuse_allow_other",
        Type::Bool,
        Value("false"),
        "Let other users open the file, as `fuse_mode` permits; otherwise only the user who runs \
         the server can, not even root.",
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
        "Let the kernel hold writes back in its page cache until fsync or for some seconds; of \
         files in a folder.",
    ),
    param(
        "fuse_ignore_truncate",
        Type::Bool,
        Value("false"),
        "Opening the file with O_TRUNC (as `>` in a shell does), and truncating its path to 0, \
         change nothing, as with a block device; otherwise all of the device becomes zeroes.",
    ),
    param("read_only", Type::Bool, Value("false"), "Refuse writes of clients."),
    param(
        "allow",
        Type::Allow,
        Unset("every client that can connect"),
        "The NBD clients that may use the export; for others it does not exist. By a name in the \
         certificate (tls:NAME), by the user id of one on a Unix socket (uid:NUMBER), or by the \
         address (net:ADDRESS or net:ADDRESS/BITS): the first of these that fits counts, and of \
         addresses the smallest network. docs/tls.md",
    ),
    param("description", Type::Text { max: 4096 }, Value(""), "Text that clients see in listings."),
    param(
        "default",
        Type::Bool,
        Value("false"),
        "Also the export of clients that ask for no name; where an address has one export it is \
         that.",
    ),
    param(
        "multi_conn",
        Type::Bool,
        Value("true"),
        "Tell clients that several connections see one consistent device.",
    ),
    param(
        "zero_copy",
        Type::Bool,
        Value("true"),
        "Send reads of 128 KiB to 1 MiB, of whole pages and without TLS, from the pages of the \
         device instead of a copy, if that is RAM or a file that is not direct. A client that \
         takes a reply late may see data that was written since: say false where one device goes \
         from client to client without being made anew.",
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
        "Throttle groups of single clients: by the user id of one on a Unix socket, or by a name \
         (the common name, or a DNS or URI name) in the certificate of one that uses TLS; the \
         certificate goes before the user id.",
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
        "Time after which a TCP client is given up whose machine acknowledges nothing, or which \
         takes nothing of its replies (TCP_USER_TIMEOUT); an idle one is probed, and stays while \
         its machine answers.",
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
