//! The parameters of the server and of throttle groups.

use drystone_core::context::PollMode;

use super::IfAbsent::{Unset, Value};
use super::{Param, Type, param};

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
    "Bytes and I/Os that it and the groups below it may read and write in a second, a line for \
     each device, as cgroup v2's io.max: each value is max or a number from 1 up. Bytes have the \
     units of sizes; of I/Os k is 1000, M 1000000.",
)];

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
        "How data threads wait: asleep (interrupt), polling all the while, which takes a core for \
         each (poll), or polling for at most 100us at a time where that has shortened waits by a \
         sixth, and asleep otherwise (adaptive). `drystone poll-mode` changes it at run time.",
    ),
    param(
        "memory",
        Type::Size { min: 16 << 20, max: 1 << 44, multiple: 1 << 20 },
        Unset("a quarter of what the process may have, at least 256MiB"),
        "Memory for buffers of NBD clients' requests, all connections together. The clients of one \
         device and throttle group together get at most twice what is free at that moment, and \
         each of them twice what those may still take, so a client that fills memory with requests \
         that wait for a limit leaves some to all others; a request beyond that waits, as does one \
         that finds too little left, and one that is longer than seven eighths of it goes alone. \
         An eighth is a reserve: a request of up to 1MiB of a client that has nothing else comes \
         out of it at once, whatever long requests of others hold or wait for. Every connection \
         has 288KiB beside it, so small requests do not wait. A client that has taken less than \
         1MiB of its replies, or sent less than that of its data, in 30 s is cut off if another \
         client waits that has nothing. Idle buffers go back to the system after a second. FUSE \
         files have their own memory from the start, 13 MiB for each mount and data thread.",
    ),
    param(
        "control",
        Type::Path,
        Unset("$XDG_RUNTIME_DIR/drystone/NAME.sock; for root /run/drystone/NAME.sock"),
        "The control socket.",
    ),
];
