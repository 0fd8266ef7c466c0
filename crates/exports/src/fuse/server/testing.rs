//! Fixtures for the tests of a session and its parts.

#[path = "../../../tests/fuse/disk.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod disk;

use super::buffers::Buffers;
use super::{Incoming, Kind, Mount, MountOptions};
use crate::server::{Clients, Membership, Reserve, Volume, Work};
pub(super) use disk::Disk;
use disk::Handle;
use drystone_core::clock::{ManualClock, SystemClock};
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::sync::{LockCounters, LockRegistry};
use drystone_core::{ContextSet, Priority};
use drystone_throttle::Groups;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a volume, and of its blocks.
pub(super) const SIZE: u64 = 1 << 20;
pub(super) const BLOCK: u64 = 512;

/// A mount of one file, for one session.
pub(super) fn mount_of(lock: &Arc<RangeLock>) -> Arc<Mount> {
    mount_on(&Disk::new(SIZE as usize, BLOCK as u32), lock)
}

/// A mount of one file on `disk`, for one session.
pub(super) fn mount_on(disk: &Arc<Disk>, lock: &Arc<RangeLock>) -> Arc<Mount> {
    Mount::new(options(), vec![volume(disk, lock)], 1)
}

/// The kernel's end of a descriptor, and the session's.
pub(super) fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets")
}

/// The buffers of a session of one volume.
pub(super) fn buffers() -> Buffers {
    let counters = LockCounters::new(ManualClock::new(1));
    Buffers::new(Reserve::new(None, counters), 1).expect("there is memory")
}

fn volume(disk: &Arc<Disk>, lock: &Arc<RangeLock>) -> Volume {
    let clock = ManualClock::new(1);
    let groups = Groups::new(clock.clone(), &LockRegistry::new(clock));
    Volume {
        name: "vol".to_owned(),
        device: Arc::new(Handle(disk.clone())),
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(groups, ""),
        clients: Clients::default(),
        write_lock: lock.clone(),
    }
}

fn options() -> MountOptions {
    MountOptions {
        kind: Kind::File,
        uid: 0,
        gid: 0,
        permissions: 0o600,
        writeback_cache: false,
        ignore_truncate: false,
        direct_io: false,
        over_ring: false,
        now_s: || 1,
        is_killed: |_| true,
    }
}

/// The parts of a session, and the kernel's end of it.
pub(super) fn incoming(lock: &Arc<RangeLock>) -> (Incoming, OwnedFd) {
    let (kernel, device) = sockets();
    (Incoming { mount: mount_of(lock), number: 0, device }, kernel)
}

/// The work of a context of its own.
pub(super) fn work() -> Work {
    let cx = ContextSet::new(SystemClock::new()).open(Engine::Plain).expect("a context");
    Work::new(cx)
}
