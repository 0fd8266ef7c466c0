//! A checked stack as plain data: what the live stack is built from.
//!
//! All sizes are bytes unless the name says sectors (512 bytes), all times nanoseconds. Paths are
//! joined with the stack file's folder. Nothing here is open or running.

use drystone_core::context::PollMode;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use drystone_core::Priority;
use drystone_raid::array::CACHE_STRIPES_DEFAULT;
use drystone_raid::layout::Level;
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::create::Policy;
use drystone_targets::Faults;

pub use crate::allow::{AllowRule, Allowed};
use crate::diagnostic::{Diagnostic, Report, Source, Span};
use crate::group;
pub use crate::group::{Client, ClientGroup, GroupSpec};
pub use crate::volume::VolumeSpec;

/// Bytes in a sector, whatever a device's block size.
pub const SECTOR_BYTES: u64 = 512;

/// A whole stack file.
#[derive(Debug, Clone, PartialEq)]
pub struct StackSpec {
    /// The stack's name: the file's stem.
    pub name: String,
    /// `[server]`.
    pub server: ServerSpec,
    /// `[device.*]` in the order of the file.
    pub devices: Vec<DeviceSpec>,
    /// `[group.*]` in the order of the file; the group above each is among them.
    pub groups: Vec<GroupSpec>,
    /// `[export.*]` in the order of the file.
    pub exports: Vec<ExportSpec>,
    /// Sizes of all devices whose size is known, by name; complete after [`crate::load`].
    pub sizes: BTreeMap<String, u64>,
    /// Devices that are not opened: their files are not there, or too small, and the arrays that they
    /// are members of start without them (`run = true`); complete after [`crate::load`].
    pub absent: BTreeSet<String>,
    /// Warnings found on the way.
    pub warnings: Vec<Diagnostic>,
    /// The text that it came from.
    pub source: Source,
    /// Where each key stands in the text.
    pub places: Places,
}

impl StackSpec {
    /// The device of that name.
    pub fn device(&self, name: &str) -> Option<&DeviceSpec> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Makes every device and every export read-only, as if each had `read_only = true`.
    pub fn make_read_only(&mut self) {
        self.devices.iter_mut().for_each(|device| device.read_only = true);
        self.exports.iter_mut().for_each(|export| export.read_only = true);
    }

    /// The addresses to listen on, each with its exports (indices into `exports`). Exports that
    /// share an address have been checked to agree on TLS and connection limits.
    pub fn listeners(&self) -> Vec<(&Listener, Vec<usize>)> {
        let mut groups: Vec<(&Listener, Vec<usize>)> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (index, export) in self.exports.iter().enumerate() {
            for listener in &export.nbd {
                let place = *places.entry(listener.address()).or_insert(groups.len());
                match groups.get_mut(place) {
                    Some((_, exports)) => exports.push(index),
                    None => groups.push((listener, vec![index])),
                }
            }
        }
        groups
    }
}

/// Byte ranges of keys in the stack file, so that what fails later can point at them too.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Places {
    spans: BTreeMap<String, Span>,
}

impl Places {
    /// Notes where `path` (as `device/d0/queue/scheduler`) has its value; `device/d0` itself is
    /// the name in the section's header.
    pub fn note(&mut self, path: String, span: Span) {
        self.spans.entry(path).or_insert(span);
    }

    /// Whether `path` was given.
    pub fn has(&self, path: &str) -> bool {
        self.spans.contains_key(path)
    }

    /// Where the value at `path` stands; where it was not given, the nearest enclosing place.
    pub fn get(&self, path: &str) -> Span {
        let mut path = path;
        loop {
            if let Some(span) = self.spans.get(path) {
                return span.clone();
            }
            match path.rsplit_once('/') {
                Some((outer, _)) => path = outer,
                None => return 0..0,
            }
        }
    }

    /// Where `key` of the device stands.
    pub fn device(&self, name: &str, key: &str) -> Span {
        self.get(&format!("device/{name}/{key}"))
    }

    /// Where `key` of the group stands; an empty key is the group itself.
    pub fn group(&self, path: &str, key: &str) -> Span {
        let place = group::place(path);
        self.get(&if key.is_empty() {
            format!("group/{place}")
        } else {
            format!("group/{place}/{key}")
        })
    }

    /// Where `key` of the export stands.
    pub fn export(&self, name: &str, key: &str) -> Span {
        self.get(&format!("export/{name}/{key}"))
    }
}

/// `[server]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerSpec {
    /// Data threads; 0 is as many as cores.
    pub threads: u32,
    /// How they wait.
    pub poll_mode: PollMode,
    /// Bytes that buffers of NBD clients' requests may take together, if not what suits the machine.
    pub memory: Option<u64>,
    /// The control socket, if not the usual one.
    pub control: Option<PathBuf>,
    /// Measure hold times of locks from the start. No key of the file: an option of the program.
    pub lockstat: bool,
}

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
    /// Reads one device as given on a command line: `file,path=disk.img,direct=true`; keys of
    /// tables are written `queue.nr_requests=64`, lists by repeating their key, a comma in a value
    /// as `,,`. Relative paths start from `base`.
    ///
    /// # Errors
    /// Everything that is wrong, with its column in `text`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Report> {
        crate::build::parse_device(text, base)
    }

    /// A device of which nothing but its kind is said.
    pub(crate) fn of_kind(name: &str, kind: DeviceKind) -> Self {
        let plain = Self::parse("null", Path::new(""))
            .unwrap_or_else(|report| unreachable!("it needs no keys: {report}"));
        DeviceSpec { name: name.to_owned(), kind, ..plain }
    }

    /// The size that the text alone tells.
    pub fn size(&self) -> Option<u64> {
        match &self.kind {
            DeviceKind::File(file) => file.size,
            DeviceKind::Ram(ram) => Some(ram.size),
            DeviceKind::Null(null) => Some(null.size),
            DeviceKind::Volume(volume) => volume.size(),
            DeviceKind::Raid(_) | DeviceKind::Planned { .. } => None,
        }
    }

    /// What other devices it stands on.
    pub fn members(&self) -> Vec<Member> {
        match &self.kind {
            DeviceKind::File(_) | DeviceKind::Ram(_) | DeviceKind::Null(_) => Vec::new(),
            DeviceKind::Planned { members, .. } => members.clone(),
            DeviceKind::Raid(raid) => raid.members.clone(),
            DeviceKind::Volume(volume) => volume.members(),
        }
    }
}

/// A device that another stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub device: String,
    /// First sector and number of sectors; `None` takes the whole member.
    pub area_sectors: Option<(u64, u64)>,
    /// Where it is named.
    pub span: Span,
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
    /// A kind of a later version. Never in a checked stack.
    Planned {
        /// Its word.
        kind: &'static str,
        /// The devices it stands on.
        members: Vec<Member>,
    },
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
            DeviceKind::Planned { kind, .. } => kind,
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

/// One line of a dmsetup table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First sector in the device.
    pub start_sector: u64,
    /// Number of sectors, at least 1.
    pub length_sectors: u64,
    /// What is there.
    pub target: Target,
    /// Where the first sector's number stands.
    pub start_span: Span,
    /// Where the target's word stands.
    pub target_span: Span,
}

impl Segment {
    /// The sector after the last.
    pub fn end_sector(&self) -> u64 {
        self.start_sector.saturating_add(self.length_sectors)
    }

    /// What it uses of other devices.
    pub fn members(&self) -> Vec<Member> {
        let area = |place: &Area, length| Member {
            device: place.device.clone(),
            area_sectors: Some((place.offset_sectors, length)),
            span: place.span.clone(),
        };
        match &self.target {
            Target::Linear(place) => vec![area(place, self.length_sectors)],
            Target::Striped { stripes, .. } => {
                let each = self.length_sectors / stripes.len() as u64;
                stripes.iter().map(|place| area(place, each)).collect()
            }
            Target::Zero | Target::Error => Vec::new(),
            Target::Delay(classes) => {
                let mut places: Vec<&Area> = Vec::new();
                for Delayed { place, .. } in classes {
                    // What is read where it is written is used once.
                    if !places.iter().any(|other| other.is_at(place)) {
                        places.push(place);
                    }
                }
                places.into_iter().map(|place| area(place, self.length_sectors)).collect()
            }
            Target::Flakey { place, .. } => vec![area(place, self.length_sectors)],
            Target::LogWrites { place, log } => {
                let whole = Member { area_sectors: None, ..area(log, 0) };
                vec![area(place, self.length_sectors), whole]
            }
        }
    }
}

/// A table target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A range of another device.
    Linear(Area),
    /// Chunks round-robin over other devices.
    Striped {
        /// Sectors of a chunk.
        chunk_sectors: u32,
        /// The devices.
        stripes: Vec<Area>,
    },
    /// Reads zeros, drops writes.
    Zero,
    /// Fails every I/O.
    Error,
    /// Ranges of other devices, some time later: of reads, writes and flushes. One to three, the
    /// last is also that of what is not given.
    Delay(Vec<Delayed>),
    /// A range of another device that misbehaves at times.
    Flakey {
        /// The range.
        place: Area,
        /// Seconds for which it works.
        up_seconds: u32,
        /// Seconds for which it then misbehaves.
        down_seconds: u32,
        /// How it does so.
        faults: Faults,
    },
    /// A range of another device, whose writes are also logged.
    LogWrites {
        /// The range: the segment's own sectors.
        place: Area,
        /// The device that holds the log.
        log: Area,
    },
}

/// Where I/O goes, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delayed {
    /// Where.
    pub place: Area,
    /// How many milliseconds later.
    pub delay_ms: u32,
}

impl Target {
    /// dmsetup's word.
    pub fn name(&self) -> &'static str {
        match self {
            Target::Linear(_) => "linear",
            Target::Striped { .. } => "striped",
            Target::Zero => "zero",
            Target::Error => "error",
            Target::Delay(_) => "delay",
            Target::Flakey { .. } => "flakey",
            Target::LogWrites { .. } => "log-writes",
        }
    }
}

/// Where a target's data begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// The device.
    pub device: String,
    /// First sector in it.
    pub offset_sectors: u64,
    /// Where the device is named.
    pub span: Span,
}

impl Area {
    fn is_at(&self, other: &Area) -> bool {
        self.device == other.device && self.offset_sectors == other.offset_sectors
    }
}

/// `[export.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSpec {
    /// Its name, as NBD clients ask for it.
    pub name: String,
    /// The device it serves.
    pub device: String,
    /// Where NBD listens.
    pub nbd: Vec<Listener>,
    /// Where it appears as a file.
    pub fuse: Option<FuseSpec>,
    /// Whether clients' writes are refused.
    pub read_only: bool,
    /// The clients that may use it, if not all.
    pub allow: Option<Vec<AllowRule>>,
    /// Text for listings.
    pub description: String,
    /// Whether it is also the export of clients that name none.
    pub default: bool,
    /// Whether several connections are offered.
    pub multi_conn: bool,
    /// Class and level of its I/O.
    pub priority: Priority,
    /// The path of the throttle group of its clients; empty is the root.
    pub group: String,
    /// Clients that belong to groups of their own.
    pub clients: Vec<ClientGroup>,
    /// Encryption.
    pub tls: TlsSpec,
    /// Connections at a time.
    pub max_connections: u32,
    /// Those of one client.
    pub max_connections_per_client: u32,
    /// Requests in flight for each connection.
    pub max_in_flight: u32,
    /// Largest read or write in bytes.
    pub max_request: u32,
    /// Time to negotiate, in nanoseconds.
    pub handshake_timeout: u64,
    /// Time after which an idle connection is closed, in nanoseconds; 0 is never.
    pub idle_timeout: u64,
    /// Time after which a TCP client that gives no sign of life is given up, in nanoseconds.
    pub peer_timeout: u64,
}

/// A device as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuseSpec {
    /// The file, or the folder that it is in.
    pub path: PathBuf,
    /// Whether there is a loop device of it too.
    pub loop_device: bool,
    /// Whether other users may open it.
    pub allow_other: bool,
    /// Its file mode, if not the usual one: 0666 where others may open it, else 0600.
    pub mode: Option<u32>,
    /// Its owner, if not the user who runs the server.
    pub uid: Option<u32>,
    /// Its group, if not that of who runs the server.
    pub gid: Option<u32>,
    /// Whether the kernel may hold writes back.
    pub writeback_cache: bool,
    /// Whether `O_TRUNC` changes nothing.
    pub ignore_truncate: bool,
}

impl FuseSpec {
    /// A file at `path` of which nothing else is said.
    pub fn at(path: PathBuf) -> Self {
        FuseSpec {
            path,
            loop_device: false,
            allow_other: false,
            mode: None,
            uid: None,
            gid: None,
            writeback_cache: false,
            ignore_truncate: false,
        }
    }

    /// Its file mode.
    pub fn permissions(&self) -> u32 {
        self.mode.unwrap_or(if self.allow_other { 0o666 } else { 0o600 })
    }
}

/// An address that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listener {
    /// A Unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Its file mode.
        mode: u32,
    },
    /// A TCP port.
    Tcp {
        /// Host name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Listener {
    /// The address without the mode, in one spelling.
    pub fn address(&self) -> String {
        match self {
            Listener::Unix { .. } => self.to_string(),
            Listener::Tcp { .. } => self.to_string().to_ascii_lowercase(),
        }
    }

    /// Whether both are the same address, whatever the mode.
    pub fn same_address(&self, other: &Listener) -> bool {
        self.address() == other.address()
    }
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listener::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Listener::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Listener::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Encryption of an export's listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSpec {
    /// Whether clients may or must encrypt.
    pub mode: TlsMode,
    /// Certificate chain; given unless the mode is off.
    pub cert: Option<PathBuf>,
    /// Private key; given unless the mode is off.
    pub key: Option<PathBuf>,
    /// Certificates that must have signed the client's.
    pub client_ca: Option<PathBuf>,
}

/// Whether clients may or must encrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Plain text only.
    Off,
    /// As the client wants.
    Optional,
    /// Encrypted only.
    Required,
}
