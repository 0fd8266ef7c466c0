//! Devices: what each kind is made of, and its request queue.

use std::path::PathBuf;

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
    /// What it is.
    pub kind: DeviceKind,
    /// Its request queue.
    pub queue: QueueSpec,
    /// Logical block size, if not the driver's own.
    pub logical_block_size: Option<u32>,
    /// Physical block size, if not the driver's own.
    pub physical_block_size: Option<u32>,
    /// Whether writes are refused.
    pub read_only: bool,
}

impl DeviceSpec {
    /// The size that the text alone tells.
    pub fn size(&self) -> Option<u64> {
        match &self.kind {
            DeviceKind::File(file) => file.size,
            DeviceKind::Ram(ram) => Some(ram.size),
            DeviceKind::Null(null) => Some(null.size),
            DeviceKind::Volume(volume) => volume.size(),
            DeviceKind::Raid(_) => None,
        }
    }

    /// What other devices it stands on.
    pub fn members(&self) -> Vec<Member> {
        match &self.kind {
            DeviceKind::File(_) | DeviceKind::Ram(_) | DeviceKind::Null(_) => Vec::new(),
            DeviceKind::Raid(raid) => raid.members.clone(),
            DeviceKind::Volume(volume) => volume.members(),
        }
    }
}

/// What a device is.
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
    /// The file or block device.
    pub path: PathBuf,
    /// Size of the device; `None`: of what exists.
    pub size: Option<u64>,
    /// Whether the file may be created.
    pub create: Create,
    /// File mode of a created file.
    pub mode: u32,
    /// Use of O_DIRECT.
    pub direct: Direct,
    /// Whether the file system is asked for holes; `None`: where it can be relied on.
    pub detect_holes: Option<bool>,
    /// How I/O reaches the kernel.
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

/// Use of O_DIRECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// Whenever the file system can.
    Auto,
    /// Always; failing to is an error.
    Always,
    /// Never.
    Never,
}

/// How file I/O reaches the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where it is permitted, else plain.
    Auto,
    /// io_uring; failing to is an error.
    IoUring,
    /// System calls on helper threads.
    Plain,
}

/// `type = "ram"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamSpec {
    /// Size of the device.
    pub size: u64,
    /// Whether discard is offered.
    pub discard: bool,
}

/// `type = "raid5"`, or another level. What is `None` is as the array has it, or mdadm's choice for a
/// new one.
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
    /// What makes parity fit after a crash.
    pub policy: Option<Policy>,
    /// The array that it must be.
    pub uuid: Option<Uuid>,
    /// Stripes of the cache.
    pub cache_stripes: u32,
    /// Start though members are not there on which the superblocks count.
    pub run: bool,
    /// Start though something may be lost.
    pub force: bool,
}

impl RaidSpec {
    /// An array of which nothing else is said.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NullSpec {
    /// Size of the device.
    pub size: u64,
    /// Logical and physical block size.
    pub blocksize: u32,
    /// Who completes.
    pub irqmode: IrqMode,
    /// Time until completion when there is no `latency`, if not the driver's own.
    pub completion_nsec: Option<u64>,
    /// Distribution of the time until completion.
    pub latency: Option<Latency>,
    /// Shortest movement of the head, in nanoseconds.
    pub seek_min_nsec: u64,
    /// Longest movement of the head, in nanoseconds; 0: there is no head.
    pub seek_max_nsec: u64,
    /// Hardware queues; `None`: one for each data thread, or one where there is a head.
    pub submit_queues: Option<u32>,
    /// Further hardware queues for polled I/O.
    pub poll_queues: u32,
    /// A poll queue that another thread is polling is skipped, not waited for.
    pub skip_busy: bool,
    /// Tags of each hardware queue.
    pub hw_queue_depth: u32,
    /// Whether data is kept.
    pub memory_backed: bool,
    /// Whether discard is offered.
    pub discard: bool,
    /// Bandwidth limit in MiB a second; 0 is none.
    pub mbps: u32,
    /// Sectors whose I/O fails.
    pub badblocks: Vec<SectorRange>,
    /// Volatile write cache in bytes; 0 is none.
    pub cache_size: u64,
    /// Whether FUA is offered when there is a cache.
    pub fua: bool,
}

/// Who completes a null device's I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqMode {
    /// The submitter, inline.
    None,
    /// Another thread.
    Thread,
    /// A timer.
    Timer,
}

/// Sectors from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectorRange {
    /// First sector.
    pub first: u64,
    /// Last sector.
    pub last: u64,
}

/// Latency percentiles, rising: `(parts per million of the I/Os, nanoseconds)`; 0 ppm is the
/// minimum, 1 000 000 the maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// The points, at least one.
    pub points: Vec<(u32, u64)>,
}

impl Latency {
    /// The time of an I/O that takes longer than `ppm` parts per million of them, in nanoseconds:
    /// linear between the points, flat before the first and after the last.
    pub fn at(&self, ppm: u32) -> u64 {
        let after = self.points.partition_point(|(point, _)| *point < ppm);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (Some((low, from)), Some((high, to))) => {
                let share = u128::from(to - from) * u128::from(ppm - low);
                from + (share / u128::from(high - low)) as u64
            }
            (Some((_, last)), None) => last,
            (None, Some((_, first))) => *first,
            (None, None) => 0,
        }
    }
}

/// The `queue` table of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSpec {
    /// Order of dispatch; `None`: as fits the device.
    pub scheduler: Option<Scheduler>,
    /// The scheduler's tunables that were given, as `queue/iosched/` names and takes them.
    pub iosched: Vec<(&'static str, u64)>,
    /// Requests a hardware queue may hold; `None`: as fits driver and scheduler.
    pub nr_requests: Option<u32>,
    /// 0 to 2, as in sysfs.
    pub nomerges: u8,
    /// Whether polled I/O is taken.
    pub io_poll: bool,
    /// Largest request in KiB; `None`: the driver's.
    pub max_sectors_kb: Option<u32>,
    /// Time after which a request counts as lost, in nanoseconds.
    pub io_timeout: u64,
    /// Whether I/O is counted.
    pub iostats: bool,
    /// Whether flushes are needed; `None`: as the driver says.
    pub write_cache: Option<WriteCache>,
    /// Hardware queues; `None`: one for each data thread.
    pub hw_queues: Option<u32>,
}

/// Order of dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// First come, first served.
    None,
    /// mq-deadline.
    MqDeadline,
}

/// Whether flushes are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCache {
    /// Yes.
    WriteBack,
    /// No.
    WriteThrough,
}
