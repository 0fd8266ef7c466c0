//! The state that all sessions of a mount share.
//!
//! Invariants:
//! * Inodes are fixed: the root, and in a folder one for each volume. So look-ups need no count,
//!   and `forget` nothing.
//! * A handle stands for one `open`. While it is open, its client is counted and its throttle group
//!   is not removed. The handle's number contains the group, so that a read or write needs no
//!   look-up.

use super::interrupts::Interrupts;
use crate::fuse::proto::{self, Attributes, ROOT};
use crate::server::{Client, Geometry, Volume, find};
use drystone_core::Slab;
use drystone_core::context::Handle as ContextHandle;
use drystone_core::op::OpGroup;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_throttle::Member;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock};

/// The kind of the mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file: the only volume.
    File,
    /// A folder with one regular file for each volume, under its name.
    Folder,
}

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The kind of the mount point.
    pub kind: Kind,
    /// Owner of the files.
    pub uid: u32,
    /// Group of the files.
    pub gid: u32,
    /// Permissions of the files (`0o600`); users that may read them may search a folder.
    pub permissions: u32,
    /// True to let the page cache delay writes. For folders only: the kernel then keeps the size of
    /// a file itself, and starts with 0 for a file that is the mount point.
    pub writeback_cache: bool,
    /// True to ignore `O_TRUNC` and `truncate(path, 0)`, as block devices do. `ftruncate` still
    /// zeroes.
    pub ignore_truncate: bool,
    /// True to bypass the page cache for every open file, not only with `O_DIRECT`: for a loop
    /// device, which has a cache of its own.
    pub direct_io: bool,
    /// Take requests over io_uring where the kernel offers it.
    pub over_ring: bool,
    /// The time of day, seconds since 1970.
    pub now_s: fn() -> u64,
    /// True if the thread with this id is being killed, or if that is unknown
    /// ([`crate::fuse::kernel::is_killed`]). Helper threads call it for askers whose requests were
    /// interrupted.
    pub is_killed: fn(u32) -> bool,
}

/// The transport of a mount's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// It has not been agreed upon.
    Unknown,
    /// Read from the descriptor.
    Descriptor,
    /// Over io_uring.
    Ring,
}

/// A volume of a mount.
pub(super) struct Shared {
    pub(super) volume: Volume,
    /// The number of writes of its device by all exports, begun and ended, at the last query of its
    /// times.
    changes: AtomicU64,
    /// The time of the last query that saw a larger number, or of the mount; seconds since 1970.
    changed_s: AtomicU64,
    /// True if it was truncated since the last call of [`Mount::take_truncation`]: the kernel
    /// believes the shorter size until it asks again.
    was_truncated: AtomicBool,
}

impl Shared {
    fn new(volume: Volume, now_s: u64) -> Self {
        let changes = AtomicU64::new(changes_of(&volume));
        let changed_s = AtomicU64::new(now_s);
        Shared { volume, changes, changed_s, was_truncated: AtomicBool::new(false) }
    }

    /// The approximate time of the last write: two returned times differ if a write came between
    /// them.
    fn time_s(&self, now_s: fn() -> u64) -> u64 {
        let changes = changes_of(&self.volume);
        let is_counted = self.volume.device.attribute("queue/iostats").is_none_or(|on| on != "0");
        let is_changed = self.changes.load(Relaxed) != changes || !is_counted;
        let now_s = now_s();
        // A change within the last reported second is reported with a later second.
        if is_changed && now_s > self.changed_s.load(Relaxed) {
            self.changes.store(changes, Relaxed);
            self.changed_s.fetch_max(now_s, Relaxed);
        }
        self.changed_s.load(Relaxed)
    }
}

fn changes_of(volume: &Volume) -> u64 {
    let stats = volume.device.stats();
    let of = |group| stats.group(group).started + stats.group(group).completed;
    of(OpGroup::Write) + of(OpGroup::Discard)
}

/// An open file.
struct Handle {
    _client: Client,
    _member: Member,
}

/// The state of one session that the others read.
#[repr(align(128))]
#[derive(Default)]
struct Told {
    context: OnceLock<Arc<ContextHandle>>,
    requests: AtomicU64,
}

/// A mount: its volumes, and what its sessions share.
pub struct Mount {
    options: MountOptions,
    made_s: u64,
    /// True if the kernel keeps its page cache coherent with direct I/O.
    direct_is_coherent: AtomicBool,
    volumes: Vec<Shared>,
    /// True to refuse to punch holes.
    refuses_holes: AtomicBool,
    handles: Lock<Slab<Handle>>,
    interrupts: Interrupts,
    sessions: Box<[Told]>,
    /// Sessions that serve.
    serving: AtomicUsize,
    /// Sessions that have a ring, and those that have handed it to the kernel.
    rings: AtomicUsize,
    registered: AtomicUsize,
    /// The transport, as a number.
    transport: AtomicUsize,
    initialised: AtomicBool,
    failure: OnceLock<String>,
}

const TYPE_FILE: u32 = 0o100_000;
const TYPE_FOLDER: u32 = 0o040_000;

impl Mount {
    /// A mount of `volumes` for `sessions` sessions, numbered from 0.
    ///
    /// # Panics
    /// If a file has any other number of volumes than one (our own mistake).
    pub fn new(options: MountOptions, volumes: Vec<Volume>, sessions: usize) -> Arc<Self> {
        assert!(options.kind == Kind::Folder || volumes.len() == 1, "a file is one volume");
        let made_s = (options.now_s)();
        let shared = |volume| Shared::new(volume, made_s);
        Arc::new(Mount {
            made_s,
            direct_is_coherent: AtomicBool::new(false),
            options,
            refuses_holes: AtomicBool::new(false),
            volumes: volumes.into_iter().map(shared).collect(),
            handles: Lock::new(LockClass::Control, Slab::new()),
            interrupts: Interrupts::new(),
            sessions: (0..sessions).map(|_| Told::default()).collect(),
            serving: AtomicUsize::new(0),
            rings: AtomicUsize::new(0),
            registered: AtomicUsize::new(0),
            transport: AtomicUsize::new(Transport::Unknown as usize),
            initialised: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    /// Its options.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Refuse to punch holes, even if the devices support it, or end the refusal. Any thread may
    /// call; the setting counts for requests that begin later.
    pub fn refuse_holes(&self, on: bool) {
        self.refuses_holes.store(on, SeqCst);
    }

    /// True if holes are refused.
    pub(super) fn refuses_holes(&self) -> bool {
        self.refuses_holes.load(SeqCst)
    }

    /// The volumes, in order.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.iter().map(|shared| &shared.volume)
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are not so many (our own mistake).
    pub fn volume(&self, index: usize) -> &Volume {
        &self.volumes[index].volume
    }

    /// Requests that came so far.
    pub fn requests(&self) -> u64 {
        self.sessions.iter().map(|told| told.requests.load(Relaxed)).sum()
    }

    /// Sessions that serve.
    pub fn sessions_serving(&self) -> usize {
        self.serving.load(Acquire)
    }

    /// The number of sessions.
    pub(super) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// True if the kernel and the server have negotiated the protocol.
    pub fn is_initialised(&self) -> bool {
        self.initialised.load(Acquire)
    }

    /// The reason why the mount cannot be served, if it cannot.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(super) fn initialised(&self) {
        self.initialised.store(true, Release);
    }

    pub(super) fn fail(&self, why: String) {
        let _ = self.failure.set(why);
        self.wake_all();
    }

    // --- sessions

    /// Session `number` begins to serve in the context of `handle`.
    pub(super) fn begin(&self, number: usize, handle: &Arc<ContextHandle>, has_ring: bool) {
        let _ = self.sessions[number].context.set(handle.clone());
        self.rings.fetch_add(usize::from(has_ring), Relaxed);
        if self.serving.fetch_add(1, AcqRel) + 1 == self.sessions.len() {
            self.wake_all();
        }
    }

    /// Wake all sessions.
    pub(super) fn wake_all(&self) {
        self.sessions.iter().filter_map(|told| told.context.get()).for_each(|cx| cx.wake());
    }

    /// Requests that were interrupted.
    pub(super) fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    // --- how requests come

    /// The transport of requests.
    pub fn transport(&self) -> Transport {
        match self.transport.load(Acquire) {
            number if number == Transport::Ring as usize => Transport::Ring,
            number if number == Transport::Descriptor as usize => Transport::Descriptor,
            _ => Transport::Unknown,
        }
    }

    /// True if the first request may be read: all sessions are there.
    pub(super) fn is_complete(&self) -> bool {
        self.serving.load(Acquire) == self.sessions.len()
    }

    /// True if all sessions have a ring.
    pub(super) fn has_rings(&self) -> bool {
        self.is_complete() && self.rings.load(Relaxed) == self.sessions.len()
    }

    /// Notes the transport that was agreed upon, and wakes the sessions.
    pub(super) fn agree(&self, transport: Transport) {
        self.transport.store(transport as usize, Release);
        self.wake_all();
    }

    /// Notes that a session has registered its ring. Requests may come once all have.
    pub(super) fn registered(&self) {
        if self.registered.fetch_add(1, AcqRel) + 1 == self.sessions.len() {
            self.initialised();
        }
    }

    /// Notes that a session is over. The end of the last one closes all handles.
    pub(super) fn end(&self, user: &LockCounters) {
        if self.serving.fetch_sub(1, AcqRel) == 1 {
            *self.handles.lock(user) = Slab::new();
        }
    }

    /// Publishes that session `number` has seen so many requests.
    pub(super) fn tell_requests(&self, number: usize, requests: u64) {
        self.sessions[number].requests.store(requests, Relaxed);
    }

    // --- inodes

    pub(super) fn shared(&self, volume: usize) -> &Shared {
        &self.volumes[volume]
    }

    /// The number of volumes.
    pub(super) fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// True if `node` is the folder.
    pub(super) fn is_folder(&self, node: u64) -> bool {
        self.options.kind == Kind::Folder && node == ROOT
    }

    /// The volume that is the file `node`.
    pub(super) fn volume_at(&self, node: u64) -> Option<usize> {
        let index = usize::try_from(node.checked_sub(self.first_node())?).ok()?;
        (index < self.volumes.len()).then_some(index)
    }

    /// The inode of volume `index`.
    pub(super) fn node_of(&self, index: usize) -> u64 {
        self.first_node() + index as u64
    }

    fn first_node(&self) -> u64 {
        match self.options.kind {
            Kind::File => ROOT,
            Kind::Folder => ROOT + 1,
        }
    }

    /// The volume of this name in the folder.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        find(self.volumes(), name)
    }

    /// Size and block size of a volume now. Not for the way of an I/O: it allocates.
    pub(super) fn geometry(&self, index: usize) -> Geometry {
        self.volumes[index].volume.geometry()
    }

    /// The attributes of a volume's file.
    pub(super) fn file_attributes(&self, node: u64, geometry: &Geometry) -> Attributes {
        let writable = if geometry.read_only { !0o222 } else { !0 };
        let mode = TYPE_FILE | self.options.permissions & 0o777 & writable;
        let time_s =
            self.volume_at(node).map(|index| self.volumes[index].time_s(self.options.now_s));
        self.attributes(node, mode, geometry.size, time_s.unwrap_or(self.made_s))
    }

    /// The attributes of the folder.
    pub(super) fn folder_attributes(&self) -> Attributes {
        let readable = self.options.permissions & 0o444;
        self.attributes(ROOT, TYPE_FOLDER | readable | readable >> 2, 0, self.made_s)
    }

    /// Notes that volume `index` was truncated.
    pub(super) fn note_truncation(&self, index: usize) {
        self.volumes[index].was_truncated.store(true, Release);
    }

    /// True if volume `index` was truncated since the last call: the kernel believes the shorter
    /// size until a process asks for the file's attributes.
    pub fn take_truncation(&self, index: usize) -> bool {
        self.volumes[index].was_truncated.swap(false, AcqRel)
    }

    /// Notes the features that the kernel offers.
    pub(super) fn kernel_offers(&self, flags: proto::InitFlags) {
        // The kernel got this flag in the same version as coherent direct I/O.
        let offers = flags.contains(proto::InitFlags::DIRECT_IO_ALLOW_MMAP);
        self.direct_is_coherent.store(offers, Release);
    }

    /// True if files opened with `O_DIRECT` may bypass the kernel's handling of its page cache, so
    /// that several writes run at a time. False with a kernel that would then miss the cached data
    /// of other processes.
    pub(super) fn direct_is_coherent(&self) -> bool {
        self.direct_is_coherent.load(Acquire)
    }

    fn attributes(&self, node: u64, mode: u32, size: u64, time_s: u64) -> Attributes {
        let MountOptions { uid, gid, .. } = self.options;
        Attributes { node, size, mode, uid, gid, time_s }
    }

    /// The statistics that `statfs` shows.
    pub(super) fn statistics(&self) -> proto::Statistics {
        let bytes = (0..self.volumes.len()).map(|index| self.geometry(index).size);
        let files = self.volumes.len() as u64;
        proto::Statistics { bytes: bytes.fold(0, u64::saturating_add), files }
    }

    // --- handles

    /// Notes that user `uid` has opened volume `index`. Returns the number of the handle.
    pub(super) fn open(&self, index: usize, uid: u32, user: &LockCounters) -> u64 {
        let shared = &self.volumes[index];
        let member = shared.volume.membership.of([], || Some(uid));
        let group = member.id().as_u32();
        let handle = Handle { _client: shared.volume.clients.enter(), _member: member };
        let number = self.handles.lock(user).insert(handle);
        handle_in(group) | u64::from(number)
    }

    /// The throttle group that user `uid` has with volume `index`.
    pub(super) fn group_for(&self, index: usize, uid: u32) -> u32 {
        self.volumes[index].volume.membership.of([], || Some(uid)).id().as_u32()
    }

    /// A handle was closed for the last time.
    pub(super) fn release(&self, handle: u64, user: &LockCounters) {
        let open = self.handles.lock(user).remove(handle as u32);
        // Drops the handle after the lock is released.
        drop(open);
    }
}

/// The first of the handles that carry this throttle group.
pub(super) fn handle_in(group: u32) -> u64 {
    u64::from(group) << 32
}

/// The throttle group of I/O through a handle.
pub(super) fn group_of(handle: u64) -> u32 {
    (handle >> 32) as u32
}
