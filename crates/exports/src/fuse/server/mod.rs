//! The FUSE server: requests of the kernel as bios.
//!
//! A [`Mount`] is what all threads share of one mount point. Each data thread has a `Session` of
//! it, on a descriptor of its own (a clone, `FUSE_DEV_IOC_CLONE`), which is a front end of that
//! thread's [`crate::server::Worker`]: whichever session reads a request answers it, and no lock is
//! between them on the way of a read or write.
//!
//! Bounds, so that memory is: requests in flight of a session ([`IN_FLIGHT_MAX`]), and their bytes,
//! by the buffers that it has from its beginning ([`reserved_bytes`]). At a bound a session reads
//! nothing more; the kernel keeps requests for others, or until it goes on.

mod askers;
mod buffers;
mod busy_poll;
mod channel;
mod descriptor;
mod event;
mod interrupts;
mod life;
mod mount;
mod op;
mod op_table;
mod over_ring;
mod ring;
mod seek;
mod session;
mod sessions;
#[cfg(test)]
mod testing;
mod truncate;
mod unaligned;
mod volumes;
mod write_locks;

pub use buffers::reserved_bytes;
pub use mount::{Kind, Mount, MountOptions, Transport};
pub use op::IN_FLIGHT_MAX;

pub(crate) use sessions::Sessions;

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A session on its way to a worker ([`crate::server::Inbox::put`]).
pub struct Incoming {
    /// The mount.
    pub mount: Arc<Mount>,
    /// Its number, below the mount's count of sessions, and no other session's.
    pub number: usize,
    /// Its descriptor of `/dev/fuse`, of the mount and not blocking.
    pub device: OwnedFd,
}
