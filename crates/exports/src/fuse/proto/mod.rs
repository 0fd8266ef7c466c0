//! The kernel's FUSE interface: requests out of bytes, replies into bytes.
//!
//! Everything here is total: any bytes give a request or a reason, and nothing panics.
//! Numbers are in the byte order of the machine, since kernel and server are on the same.

pub(crate) mod init;
mod reply;
mod request;
pub(crate) mod wire;

pub use init::{InitAsk, InitFlags, InitReply, MINOR_MIN, Refused, Wishes, negotiate};
pub use reply::{Attributes, Directory, Entry, OUT_HEADER_BYTES, Statistics, header};
pub use reply::{attributes, entry, init, number, opened, passing_attributes, statistics, written};
pub use request::{IN_HEADER_BYTES, WRITE_HEAD_BYTES};
pub use request::{Malformed, Operation, Request};

/// Number of the root inode.
pub const ROOT: u64 = 1;
/// Longest name in a folder, bytes.
pub const NAME_MAX: usize = 255;

/// `fallocate`'s modes (linux/falloc.h).
pub mod falloc {
    /// The size stays.
    pub const KEEP_SIZE: u32 = 1;
    /// The range becomes a hole.
    pub const PUNCH_HOLE: u32 = 2;
    /// The range reads as zeroes, and stays allocated.
    pub const ZERO_RANGE: u32 = 16;
}

/// `lseek`'s two questions about holes.
pub mod seek {
    /// The next byte with data.
    pub const DATA: u32 = 3;
    /// The next byte in a hole, or the end.
    pub const HOLE: u32 = 4;
}

/// Flags of `open`, as on x86 and most other architectures (asm-generic/fcntl.h).
pub mod open_flags {
    /// The bits for the access.
    pub const ACCESS: u32 = 3;
    /// Each write is durable when it has ended; `O_SYNC` has this bit, too.
    pub const DSYNC: u32 = 0o10000;
    /// Past the page cache. Some architectures have another number.
    pub const DIRECT: u32 = if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
        0o200000
    } else if cfg!(any(target_arch = "powerpc64", target_arch = "powerpc")) {
        0o400000
    } else {
        0o40000
    };
}

/// Flags of the reply to an open.
pub mod opened_flags {
    /// No page cache for this handle.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Writes through this handle may come at the same time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}
