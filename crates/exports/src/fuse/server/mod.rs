//! The FUSE server: requests of the kernel as bios.
//!
//! A [`Mount`] is the state of one mount point that all threads share. Each data thread has a
//! `Session` of it, on a descriptor of its own (a clone, `FUSE_DEV_IOC_CLONE`). The session is a
//! front end of that thread's [`crate::server::Worker`]. The session that reads a request also
//! answers it, so sessions need no lock between them for a read or write.
//!
//! Memory is bounded: the requests in flight of a session by [`IN_FLIGHT_MAX`], and their bytes by
//! the buffers that the session has from its begin ([`reserved_bytes`]). At a bound a session reads
//! nothing more; the kernel keeps further requests for other sessions, or until this one goes on.

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
