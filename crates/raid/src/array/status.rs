//! The status of an array, as `mdadm --detail` and `/proc/mdstat` tell it.

use super::disk::DiskState;
use crate::engine::SyncAction;
use crate::ids::{MemberNumber, Role};
use crate::layout::Layout;
use crate::metadata::Uuid;
use crate::metadata::superblock::Superblock;
use drystone_core::clock::Ns;
use std::sync::Arc;

/// A device of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStatus {
    /// Name of the device in the stack.
    pub name: Arc<str>,
    /// md's number.
    pub number: MemberNumber,
    /// Identity of the device, from its superblock.
    pub uuid: Uuid,
    /// Its state.
    pub state: DiskState,
    /// Its bad block list is not empty.
    pub has_bad_blocks: bool,
    /// It has no room for a write, which waits.
    pub lacks_room: bool,
    /// Sectors that could not be read and were rewritten.
    pub corrected: u32,
}

/// The state of the array (`md/array_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayState {
    /// Recorded as clean: no write is in flight.
    Clean,
    /// Recorded as dirty.
    Active,
    /// The array is not written.
    ReadOnly,
    /// More members are lost than parity makes up for.
    Broken,
    /// The array was stopped.
    Inactive,
}

/// A synchronisation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStatus {
    /// The kind.
    pub action: SyncAction,
    /// Member sectors done.
    pub done: u64,
    /// Member sectors in total.
    pub total: u64,
    /// Average speed of the last second, in sectors a second.
    pub speed: u64,
}

/// The write-intent bitmap, counted in the pages of Linux's bitmap counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapStatus {
    /// Pages in which a bit is set.
    pub pages_used: usize,
    /// Pages in total.
    pub pages: usize,
    /// Bytes of a member that a bit stands for.
    pub chunk_bytes: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    /// The geometry.
    pub layout: Layout,
    /// The superblock as last written: name, identity, events, sizes.
    pub superblock: Arc<Superblock>,
    /// Sectors used on each member.
    pub used: u64,
    /// The state of the array.
    pub state: ArrayState,
    /// The array is read-only; its members are not written either.
    pub read_only: bool,
    /// All devices.
    pub disks: Vec<DiskStatus>,
    /// A synchronisation, if one is under way.
    pub sync: Option<SyncStatus>,
    /// Parity may not fit somewhere, and no resync is under way.
    pub resync_pending: bool,
    /// Synchronisation is frozen.
    pub frozen: bool,
    /// The write-intent bitmap, if the array has one.
    pub bitmap: Option<BitmapStatus>,
    /// Sectors whose parity did not fit, in the last synchronisation.
    pub mismatch_cnt: u64,
    /// `sync_speed_min` and `sync_speed_max`, KiB a second of each member.
    pub speed: (u64, u64),
    /// The time of the last update of the superblocks, by the manager's clock.
    pub updated_ns: Ns,
}

impl ArrayStatus {
    /// Members that are in sync, by role.
    pub fn in_sync(&self) -> Vec<bool> {
        let has = |role| self.disks.iter().any(|disk| disk.state == DiskState::InSync(role));
        (0..self.layout.disks()).map(Role).map(has).collect()
    }

    /// Roles without a member in sync (`md/degraded`).
    pub fn degraded(&self) -> usize {
        self.in_sync().iter().filter(|in_sync| !**in_sync).count()
    }
}

/// The value of `md/sync_action` while no synchronisation is under way.
pub(super) const IDLE: &str = "idle";
/// The value of `md/sync_action` while synchronisation is frozen.
pub(super) const FROZEN: &str = "frozen";

/// The name in `md/sync_action` and `/proc/mdstat`.
pub const fn action_name(action: SyncAction) -> &'static str {
    match action {
        SyncAction::Resync => "resync",
        SyncAction::Recover => "recover",
        SyncAction::Check => "check",
        SyncAction::Repair => "repair",
    }
}

impl ArrayStatus {
    /// `md/array_state`.
    pub fn array_state(&self) -> &'static str {
        match self.state {
            ArrayState::Clean => "clean",
            ArrayState::Active => "active",
            ArrayState::ReadOnly => "readonly",
            ArrayState::Broken => "broken",
            ArrayState::Inactive => "inactive",
        }
    }

    /// `md/sync_action`.
    pub fn sync_action(&self) -> &'static str {
        match self.sync {
            _ if self.frozen => FROZEN,
            Some(sync) => action_name(sync.action),
            None => IDLE,
        }
    }

    /// `md/sync_completed`: the member sectors done, and their total.
    pub fn sync_completed(&self) -> String {
        self.sync.map_or("none".to_owned(), |sync| format!("{} / {}", sync.done, sync.total))
    }
}
