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
    /// Of the device, by its superblock.
    pub uuid: Uuid,
    /// Its state.
    pub state: DiskState,
    /// It has sectors that cannot be read.
    pub has_bad_blocks: bool,
    /// It has no room for a write, which waits.
    pub lacks_room: bool,
    /// Sectors that could not be read and were rewritten.
    pub corrected: u32,
}

/// Whether the members fit one another (`md/array_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayState {
    /// On record as clean: no write is in flight.
    Clean,
    /// On record as dirty.
    Active,
    /// It is not written.
    ReadOnly,
    /// More members are lost than parity makes up for.
    Broken,
    /// It was stopped.
    Inactive,
}

/// A synchronisation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStatus {
    /// The kind.
    pub action: SyncAction,
    /// Member sectors done.
    pub done: u64,
    /// Of how many.
    pub total: u64,
    /// Sectors a second, on the average of the last while.
    pub speed: u64,
}

/// The write-intent bitmap, in the pages that Linux keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapStatus {
    /// Pages in which a bit is set.
    pub pages_used: usize,
    /// Of how many.
    pub pages: usize,
    /// Bytes of a member that a bit stands for.
    pub chunk_bytes: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    /// The geometry.
    pub layout: Layout,
    /// As last written: name, identity, events, sizes.
    pub superblock: Arc<Superblock>,
    /// Sectors used on each member.
    pub used: u64,
    /// Whether the members fit one another.
    pub state: ArrayState,
    /// It is not written, members neither.
    pub read_only: bool,
    /// All devices.
    pub disks: Vec<DiskStatus>,
    /// A synchronisation, if one is under way.
    pub sync: Option<SyncStatus>,
    /// Parity may not fit somewhere, and nothing is done about it now.
    pub resync_pending: bool,
    /// No synchronisation begins.
    pub frozen: bool,
    /// The bitmap that is kept, if there is one.
    pub bitmap: Option<BitmapStatus>,
    /// Sectors of parity that did not fit, in the last synchronisation.
    pub mismatch_cnt: u64,
    /// `sync_speed_min` and `sync_speed_max`, KiB a second of each member.
    pub speed: (u64, u64),
    /// When it was written last, as the manager's clock has it.
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

/// The word in `md/sync_action` while nothing is synchronised.
pub(super) const IDLE: &str = "idle";
/// The word in `md/sync_action` while no synchronisation begins.
pub(super) const FROZEN: &str = "frozen";

/// The word in `md/sync_action` and `/proc/mdstat`.
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

    /// `md/sync_completed`: sectors of a member, of how many.
    pub fn sync_completed(&self) -> String {
        self.sync.map_or("none".to_owned(), |sync| format!("{} / {}", sync.done, sync.total))
    }
}
