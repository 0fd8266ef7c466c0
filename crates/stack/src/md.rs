//! The reports and changes of arrays in the control protocol, with mdadm's words: plain data. Sizes
//! are bytes, times seconds since 1970.

use serde::{Deserialize, Serialize};

/// A report of an array, as `mdadm --detail` and `/proc/mdstat` have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayReport {
    /// Its name in the stack.
    pub name: String,
    /// Of the metadata: `1.2`.
    pub version: String,
    /// When it was made.
    pub creation_time: u64,
    /// `raid4`, `raid5` or `raid6`.
    pub level: String,
    /// Its capacity.
    pub array_size: u64,
    /// The part of each member that is used.
    pub used_dev_size: u64,
    /// Members of the complete array.
    pub raid_devices: u32,
    /// Devices that it has, failed ones and spares too.
    pub total_devices: u32,
    /// Members in sync.
    pub active_devices: u32,
    /// Devices that have not failed.
    pub working_devices: u32,
    /// Devices that have.
    pub failed_devices: u32,
    /// Devices that wait, or are being rebuilt.
    pub spare_devices: u32,
    /// `resync`, `bitmap` or `ppl`.
    pub consistency_policy: String,
    /// The bitmap that is kept.
    pub bitmap: Option<BitmapReport>,
    /// When superblocks were last written.
    pub update_time: u64,
    /// mdadm's line: `clean, degraded, recovering`.
    pub state: String,
    /// As `md/array_state`.
    pub array_state: String,
    /// True if nothing is written.
    pub read_only: bool,
    /// The layout of parity, if it rotates.
    pub layout: Option<String>,
    /// md's number of that.
    pub algorithm: u32,
    /// Size of a chunk.
    pub chunk_size: u64,
    /// A synchronisation in progress.
    pub sync: Option<SyncReport>,
    /// True if parity may not fit, and no synchronisation repairs it now.
    pub resync_pending: bool,
    /// Its name in the superblocks: `host:name`.
    pub set_name: String,
    /// Its UUID.
    pub uuid: String,
    /// Updates of the superblocks so far.
    pub events: u64,
    /// Sectors of parity that did not fit, in the last synchronisation.
    pub mismatch_cnt: u64,
    /// The ranges that may be wrong because of a forced start, for people.
    pub suspects: Option<String>,
    /// The reasons why devices that were named for it took no part in its start, one sentence each.
    pub left_out: Vec<String>,
    /// Damage found at the start in members that take part all the same, one sentence each.
    pub notices: Vec<String>,
    /// The devices by role; devices without a role come last.
    pub devices: Vec<MemberReport>,
}

/// A synchronisation in progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// As `md/sync_action`: `resync`, `recover`, `check` or `repair`.
    pub action: String,
    /// Bytes of each member that are done.
    pub done: u64,
    /// The total number.
    pub total: u64,
    /// The same in percent, as Linux has it.
    pub percent: u64,
    /// Bytes a second of each member.
    pub speed: u64,
}

impl SyncReport {
    /// Its progress in thousandths, as Linux computes it: in units of 512 KiB, of one unit more
    /// than the total.
    pub fn per_mille(&self) -> u64 {
        const UNIT: u64 = 512 << 10;
        let (done, total) = (self.done / UNIT, self.total / UNIT);
        (u128::from(done) * 1000 / (u128::from(total) + 1)) as u64
    }
}

/// A write-intent bitmap, in the pages that Linux keeps of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitmapReport {
    /// Pages in which a bit is set.
    pub pages_used: u64,
    /// The total number.
    pub pages: u64,
    /// Bytes of a member that a bit stands for.
    pub chunk: u64,
}

/// A device of an array, or a role that has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its name in the stack.
    pub device: Option<String>,
    /// The file or block device that it stands on.
    pub path: Option<String>,
    /// md's number.
    pub number: Option<u32>,
    /// The numbers of the block device, or 0.
    pub major: u64,
    /// See `major`.
    pub minor: u64,
    /// The role to which it belongs.
    pub raid_device: Option<u32>,
    /// `active sync`, `spare rebuilding`, `spare`, `faulty` or `removed`.
    pub state: String,
    /// True if it is to replace another.
    pub replacement: bool,
    /// True if it has unreadable sectors.
    pub bad_blocks: bool,
}

/// A device that a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// The word: the name of a device in the stack, or one of mdadm's words.
    pub word: &'a str,
    /// The absolute path that the word may also mean.
    pub path: Option<&'a str>,
}

/// A change of an array, as mdadm(8) has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayChange<'a> {
    /// Add a device.
    Add {
        /// The device; a file or block device that is not open is opened.
        member: Named<'a>,
        /// True to add it even if it holds data.
        force: bool,
    },
    /// Fail a member.
    Fail(Named<'a>),
    /// Remove a device that is not in use.
    Remove(Named<'a>),
    /// Have a spare take the place of a member.
    Replace(Named<'a>),
    /// Begin the action with this name in `md/sync_action`.
    Sync(&'static str),
    /// Write the superblocks clean, and release all devices.
    Stop,
    /// Start an array of that name.
    Assemble(Assemble<'a>),
}

/// The way an array must be started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Assemble<'a> {
    /// Devices of the stack, or absolute paths, one a line.
    pub members: &'a str,
    /// Use only those members that belong to this array.
    pub uuid: Option<&'a str>,
    /// Start without members that the superblocks expect.
    pub run: bool,
    /// Start although data may be lost.
    pub force: bool,
    /// Write nothing.
    pub read_only: bool,
}
