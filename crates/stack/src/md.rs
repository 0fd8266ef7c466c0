//! Arrays as the control protocol tells of them and changes them, with mdadm's words: plain data.
//! Sizes are bytes, times seconds since 1970.

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
    /// Nothing is written.
    pub read_only: bool,
    /// The layout of parity, if it rotates.
    pub layout: Option<String>,
    /// md's number of that.
    pub algorithm: u32,
    /// Size of a chunk.
    pub chunk_size: u64,
    /// A synchronisation under way.
    pub sync: Option<SyncReport>,
    /// Parity may not fit, and nothing is done about it now.
    pub resync_pending: bool,
    /// Its name in the superblocks: `host:name`.
    pub set_name: String,
    /// Its UUID.
    pub uuid: String,
    /// Updates of the superblocks so far.
    pub events: u64,
    /// Sectors of parity that did not fit, in the last synchronisation.
    pub mismatch_cnt: u64,
    /// The parts that may be wrong because it was forced to start, for people.
    pub suspects: Option<String>,
    /// Why devices that were named for it took no part when it was started, one sentence each.
    pub left_out: Vec<String>,
    /// Damage that was found then in members that take part all the same, one sentence each.
    pub notices: Vec<String>,
    /// By role; what has none comes last.
    pub devices: Vec<MemberReport>,
}

/// A synchronisation under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// As `md/sync_action`: `resync`, `recover`, `check` or `repair`.
    pub action: String,
    /// Bytes of each member that are done.
    pub done: u64,
    /// Of how many.
    pub total: u64,
    /// The same in percent, as Linux has it.
    pub percent: u64,
    /// Bytes a second of each member.
    pub speed: u64,
}

impl SyncReport {
    /// Its progress in thousandths, as Linux has it: in units of 512 KiB, of one more than there
    /// are.
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
    /// Of how many.
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
    /// The role that it has a part in.
    pub raid_device: Option<u32>,
    /// `active sync`, `spare rebuilding`, `spare`, `faulty` or `removed`.
    pub state: String,
    /// It must take the place of another.
    pub replacement: bool,
    /// It has sectors that cannot be read.
    pub bad_blocks: bool,
}

/// A device that a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// The word: the name of a device in the stack, or one of mdadm's words.
    pub word: &'a str,
    /// The absolute path that the word may be as well.
    pub path: Option<&'a str>,
}

/// A change of an array, as mdadm(8) has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayChange<'a> {
    /// Take in a device.
    Add {
        /// Which; a file or block device that is not open is opened.
        member: Named<'a>,
        /// Though it holds something.
        force: bool,
    },
    /// Use a member no longer.
    Fail(Named<'a>),
    /// Let go of a device that is not in use.
    Remove(Named<'a>),
    /// Have a spare take the place of a member.
    Replace(Named<'a>),
    /// Begin what `md/sync_action` calls so.
    Sync(&'static str),
    /// Write the superblocks clean, and let go of all devices.
    Stop,
    /// Start an array of that name.
    Assemble(Assemble<'a>),
}

/// The way an array must be started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Assemble<'a> {
    /// Devices of the stack, or absolute paths, one a line.
    pub members: &'a str,
    /// Those of the members that are of this array.
    pub uuid: Option<&'a str>,
    /// Start without members on which the superblocks count.
    pub run: bool,
    /// Start though something may be lost.
    pub force: bool,
    /// Write nothing.
    pub read_only: bool,
}
