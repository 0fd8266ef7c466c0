//! Devices: the parameters of each kind, and the request queue.

use drystone_core::ring::Engine;
use drystone_drivers::file::FileOptions;
use drystone_drivers::null::NullOptions;
use drystone_queue::queue::QueueOptions;
use drystone_raid::array::CACHE_STRIPES_DEFAULT;
use drystone_raid::layout::Level;
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::create::Policy;

use super::table::Member;
use super::volume::VolumeSpec;

/// `[device.NAME]`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its request queue.
    pub queue: QueueOptions,
    /// Hardware queues; `None`: one for each data thread.
    pub hw_queues: Option<u32>,
    /// Logical block size, if not the driver's own.
    pub logical_block_size: Option<u32>,
    /// Physical block size, if not the driver's own.
    pub physical_block_size: Option<u32>,
    /// True if writes are refused.
    pub read_only: bool,
}

impl DeviceSpec {
    /// Refuses writes, as `read_only = true` does: also in the options of its queue and its driver.
    pub fn make_read_only(&mut self) {
        self.read_only = true;
        self.queue.read_only = true;
        if let DeviceKind::File(file) = &mut self.kind {
            file.options.read_only = true;
        }
    }

    /// The size, if the text alone gives it.
    pub fn size(&self) -> Option<u64> {
        match &self.kind {
            DeviceKind::File(file) => file.options.size_bytes,
            DeviceKind::Ram(ram) => Some(ram.size),
            DeviceKind::Null(null) => Some(null.options.size_bytes),
            DeviceKind::Volume(volume) => volume.size(),
            DeviceKind::Raid(_) => None,
        }
    }

    /// Its members.
    pub fn members(&self) -> Vec<Member> {
        match &self.kind {
            DeviceKind::File(_) | DeviceKind::Ram(_) | DeviceKind::Null(_) => Vec::new(),
            DeviceKind::Raid(raid) => raid.members.clone(),
            DeviceKind::Volume(volume) => volume.members(),
        }
    }
}

/// The kind of a device.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceKind {
    /// A file or block device.
    File(FileSpec),
    /// Memory.
    Ram(RamSpec),
    /// The null driver.
    Null(NullSpec),
    /// A table over other devices.
    Volume(VolumeSpec),
    /// An array over other devices.
    Raid(RaidSpec),
}

impl DeviceKind {
    /// The word after `type =`, or `table`.
    pub fn name(&self) -> &'static str {
        match self {
            DeviceKind::File(_) => "file",
            DeviceKind::Ram(_) => "ram",
            DeviceKind::Null(_) => "null",
            DeviceKind::Volume(volume) => volume.name(),
            DeviceKind::Raid(raid) => raid.kind,
        }
    }
}

/// `type = "file"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// The driver's options, except `logical_block_size`, which is in [`DeviceSpec`].
    pub options: FileOptions,
    /// Whether the file may be created.
    pub create: Create,
    /// The way I/O reaches the kernel.
    pub engine: Engine,
}

/// Whether a file may be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// When it does not exist.
    Missing,
    /// Never.
    Never,
    /// It must not exist yet.
    New,
}

/// `type = "ram"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamSpec {
    /// Size of the device.
    pub size: u64,
    /// True if discard is offered.
    pub discard: bool,
}

/// `type = "raid5"`, or another level. A value of `None` means the value of an existing array, or
/// mdadm's choice for a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidSpec {
    /// The level's word.
    pub kind: &'static str,
    /// The level.
    pub level: Level,
    /// The devices.
    pub members: Vec<Member>,
    /// Members of a new array; the others are spares.
    pub raid_devices: Option<u32>,
    /// Sectors of a chunk.
    pub chunk_sectors: Option<u64>,
    /// md's number of the layout.
    pub layout: Option<u32>,
    /// The mechanism that makes parity fit after a crash.
    pub policy: Option<Policy>,
    /// The array that it must be.
    pub uuid: Option<Uuid>,
    /// Stripes of the cache.
    pub cache_stripes: u32,
    /// Start without members that the superblocks expect.
    pub run: bool,
    /// Start although data may be lost.
    pub force: bool,
}

impl RaidSpec {
    /// An array with no other key given.
    pub(crate) fn of_level(level: Level, members: Vec<Member>) -> Self {
        RaidSpec {
            kind: match level {
                Level::Raid4 => "raid4",
                Level::Raid5 => "raid5",
                Level::Raid6 => "raid6",
            },
            level,
            members,
            raid_devices: None,
            chunk_sectors: None,
            layout: None,
            policy: None,
            uuid: None,
            cache_stripes: CACHE_STRIPES_DEFAULT,
            run: false,
            force: false,
        }
    }
}

/// `type = "null"`; see null_blk's parameters of the same names.
#[derive(Debug, Clone, PartialEq)]
pub struct NullSpec {
    /// The driver's options, but for `submit_queues`.
    pub options: NullOptions,
    /// Hardware queues; `None`: one for each data thread, or one where there is a head.
    pub submit_queues: Option<u32>,
    /// Bytes of the volatile write cache. The driver models only whether there is one.
    pub cache_size: u64,
}
