//! Opening files and block devices: creation, size, locks, what the file system can do.

use super::access::{self, Access, set_direct};
use super::backing::OpenFile;
use super::claim::{Claim, Identity};
use super::holes::Holes;
use super::locks::lock;
use super::opened::Alignment;
use super::{Discard, FileShared, Opened, loops};
use drystone_core::blocking::{Aside, might_block};
use drystone_core::error::ErrorKind;
use drystone_core::primitive::AtomicBool;
use drystone_core::{Error, Result};
use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direct {
    /// If the host can do it for every logical block that the device has anyway.
    #[default]
    Auto,
    /// Yes, with logical blocks as large as that needs, or refuse to open.
    Yes,
    /// No.
    No,
}

/// How to open a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Where it is.
    pub path: PathBuf,
    /// Size in bytes. A file that does not exist is made sparse with this size; one that exists
    /// must be at least as large, and only this much of it is used.
    pub size_bytes: Option<u64>,
    /// Permission bits of a file that is made, whatever the umask; without them, 0600 less the umask.
    pub mode: Option<u32>,
    /// Direct I/O.
    pub direct: Direct,
    /// Bytes of a logical block, a power of two from 512 to 4096. Without them, those of a block device of the host;
    /// of a file 512, or what direct I/O needs if that is demanded.
    pub logical_block_size: Option<u32>,
    /// Never write.
    pub read_only: bool,
    /// Ask the file system which ranges are holes; without an answer here, where it can be relied on.
    pub detect_holes: Option<bool>,
}

/// How often a path may lead to another file, once the one that it led to is locked.
const OPENINGS_MAX: u32 = 16;

pub(super) fn open(options: &FileOptions) -> Result<FileShared> {
    open_found(options, options.path.exists())
}

/// Opens the path, which was looked at before: whether it `existed`.
pub(super) fn open_found(options: &FileOptions, mut existed: bool) -> Result<FileShared> {
    let path = &options.path;
    for _ in 0..OPENINGS_MAX {
        if let Some(opened) = try_open(options, existed)? {
            return Ok(opened);
        }
        existed = path.exists();
    }
    let text = format!("{} is replaced by another file again and again", path.display());
    Err(Error::new(ErrorKind::Busy, text))
}

/// Nothing if the path does not lead to the file any more that was opened: another one that made it was refused, and
/// has taken it away again while this one waited for the lock.
fn try_open(options: &FileOptions, existed: bool) -> Result<Option<FileShared>> {
    let path = &options.path;
    if !existed && (options.read_only || options.size_bytes.is_none()) {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{} does not exist; with a size it would be created", path.display()),
        ));
    }
    let block_device = existed && is_block_device(path)?;
    let fd = Arc::new(open_fd(path, open_flags(options, block_device))?);
    lock(&fd, options, !existed)?;
    let identity = Identity::of(&fd, block_device).map_err(|e| Error::os(path.display(), e))?;
    // The lock is held until this returns.
    let claim = Claim::new(fd.clone(), identity);
    if !is_at(&fd, path) {
        return Ok(None);
    }
    let beside = loops::check(&fd, options)?;
    // Several may have found nothing there: the file is new for whoever has the lock first, and
    // only that one may take it away again.
    let new = !existed && size_of(&fd, false).is_ok_and(|size| size == 0);
    let opened = open_locked(options, (fd, claim.clone()), (block_device, new), beside);
    if opened.is_err() && new {
        let _ = std::fs::remove_file(path);
    }
    opened.map(Some)
}

fn open_locked(
    options: &FileOptions,
    (fd, claim): (Arc<OwnedFd>, Arc<Claim>),
    (block_device, new): (bool, bool),
    beside: Option<String>,
) -> Result<FileShared> {
    let path = &options.path;
    if let (true, Some(mode)) = (new, options.mode) {
        set_mode(&fd, mode, path)?;
    }
    if let (true, Some(size)) = (new, options.size_bytes) {
        let what = format!("{} cannot be made {size} bytes long", path.display());
        extend(&fd, size).map_err(|e| too_long(what, e))?;
    }
    let mut access = access::choose(options, &fd, block_device)?;
    let bytes = checked_size(options, &fd, block_device, &mut access)?;
    set_direct(&fd, options, &mut access)?;
    access.note(beside);
    access.note(limit_notice(&fd, bytes, options));
    let block_size = access.block_size;
    let physical = access::physical_block_size(&fd, block_device).max(block_size);
    let ready = Ready { options, fd, block_device, access, block_size, bytes };
    Ok(FileShared::new(path, Some(options), physical, ready.opened(claim)))
}

/// A file that is open, looked at and locked.
pub(super) struct Ready<'a> {
    pub(super) options: &'a FileOptions,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) block_device: bool,
    pub(super) access: Access,
    /// Of the device: its logical block, and its length.
    pub(super) block_size: u32,
    pub(super) bytes: u64,
}

impl Ready<'_> {
    /// Find out what it can do.
    pub(super) fn opened(self, claim: Arc<Claim>) -> Opened {
        let Ready { options, fd, block_device, access, .. } = self;
        let alignment = access
            .direct
            .map_or(Alignment::NONE, |memory| Alignment::direct(memory, self.block_size));
        let can = probe(&fd, options.read_only, block_device, self.block_size);
        let backing =
            OpenFile { has_known_length: has_known_length(&fd), fd: fd.clone(), block_device };
        Opened {
            claim: Some(Aside::new(claim)),
            alignment,
            notice: access.notice,
            memory_fs: !block_device && is_in_memory(&fd),
            poll_queues: alignment.is_direct() && has_poll_queues(&fd, block_device),
            punch_hole: AtomicBool::new(can.punch_hole),
            discard: can.discard,
            zero_range: AtomicBool::new(can.zero_range),
            holes: Holes::new(
                options.detect_holes.unwrap_or_else(|| tells_holes(file_system(&fd))),
            ),
            ..Opened::over(Box::new(backing), self.bytes, self.block_size)
        }
    }
}

/// Of the open file: the path may lead to another one by now.
fn set_mode(fd: &OwnedFd, mode: u32, path: &Path) -> Result<()> {
    // SAFETY: fchmod takes no pointers.
    match unsafe { libc::fchmod(fd.as_raw_fd(), mode) } {
        0 => Ok(()),
        _ => {
            let what = format!("{} cannot have mode {mode:o}", path.display());
            Err(Error::os(what, io::Error::last_os_error()))
        }
    }
}

pub(super) fn is_block_device(path: &Path) -> Result<bool> {
    let meta = std::fs::metadata(path).map_err(|e| Error::os(path.display(), e))?;
    let kind = meta.file_type();
    if kind.is_block_device() || kind.is_file() {
        return Ok(kind.is_block_device());
    }
    Err(Error::invalid(format!("{} is neither a file nor a block device", path.display())))
}

/// Flags for open(2): a missing file is made, a block device is not shared.
pub(super) fn open_flags(options: &FileOptions, block_device: bool) -> i32 {
    match (options.read_only, block_device) {
        (true, _) => libc::O_RDONLY,
        (false, true) => libc::O_RDWR | libc::O_EXCL,
        (false, false) => libc::O_RDWR | libc::O_CREAT,
    }
}

pub(super) fn open_fd(path: &Path, flags: i32) -> Result<OwnedFd> {
    might_block("open");
    let c_path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid("a path cannot hold a zero byte"))?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the path is a C string; the descriptor that comes back is ours alone.
    let fd = unsafe { libc::open(c_path.as_ptr(), flags, 0o600) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EBUSY) {
            let unseen = "a mount, another device, or a process that cannot be seen from here";
            return Err(held(path, find_opener(path), unseen));
        }
        return Err(Error::os(format!("{} cannot be opened", path.display()), error));
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// In use by `holder`, or by what is `unseen`.
pub(super) fn held(path: &Path, holder: Option<u32>, unseen: &str) -> Error {
    let by = holder.map_or(unseen.to_owned(), |pid| format!("process {pid}"));
    Error::new(ErrorKind::Busy, format!("{} is in use by {by}", path.display()))
}

/// A process that has the device open, through whichever node: who opened it exclusively leaves
/// no lock that /proc would show.
pub(super) fn find_opener(path: &Path) -> Option<u32> {
    let wanted = std::fs::metadata(path).ok()?;
    let kind = |m: &Metadata| m.mode() & libc::S_IFMT;
    if ![libc::S_IFBLK, libc::S_IFCHR].contains(&kind(&wanted)) {
        return None;
    }
    let same = |m: &Metadata| (kind(m), m.rdev()) == (kind(&wanted), wanted.rdev());
    find_process(|pid, fd| is_open(pid, fd, same))
}

/// Whether a descriptor of a process is of the file that is looked for.
pub(super) fn is_open(pid: u32, fd: &str, same: impl FnOnce(&Metadata) -> bool) -> bool {
    std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|meta| same(&meta))
}

/// The first process with a descriptor that `wanted` says yes to, given both numbers.
pub(super) fn find_process(wanted: impl Fn(u32, &str) -> bool) -> Option<u32> {
    let has = |pid: u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.into_iter().any(|fd| fd.file_name().to_str().is_some_and(|fd| wanted(pid, fd)))
    };
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| has(*pid))
}

/// Make a file longer without allocating space.
pub(super) fn extend(fd: &OwnedFd, bytes: u64) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: ftruncate takes no pointers.
    match unsafe { libc::ftruncate(fd.as_raw_fd(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The limit of file size in bytes (`ulimit -f`), if there is one and it is less than so many bytes: what is written
/// beyond it fails. Nothing of a block device.
pub(super) fn limit_below(fd: &OwnedFd, bytes: u64) -> Option<u64> {
    stat(fd.as_raw_fd()).ok().filter(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit writes one struct.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    (done && limit.rlim_cur < bytes).then_some(limit.rlim_cur)
}

/// What users are to know of a device of so many bytes whose end cannot be written.
pub(super) fn limit_notice(fd: &OwnedFd, bytes: u64, options: &FileOptions) -> Option<String> {
    let limit = limit_below(fd, bytes).filter(|_| !options.read_only)?;
    Some(format!(
        "is longer than the limit of file size (`ulimit -f`), {limit} bytes: writes beyond that fail"
    ))
}

/// A file could not be made so long.
pub(super) fn too_long(what: String, error: io::Error) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::EFBIG) => {
            "; the limit of file size (`ulimit -f`) and what its file system takes must be at least that"
        }
        _ => "",
    };
    let mut refused = Error::os(what, error);
    refused.message += hint;
    refused
}

/// Length of a file or block device in bytes.
pub(super) fn size_of(fd: &OwnedFd, block_device: bool) -> io::Result<u64> {
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    if !block_device {
        return Ok(stat(fd.as_raw_fd())?.st_size as u64);
    }
    let mut bytes = 0u64;
    // SAFETY: the ioctl writes one u64.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } {
        0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether `path` names the open file. What cannot be found out does not count against it.
pub(super) fn is_at(fd: &OwnedFd, path: &Path) -> bool {
    let (Ok(opened), found) = (stat(fd.as_raw_fd()), std::fs::metadata(path)) else { return true };
    match found {
        Ok(there) => (there.dev(), there.ino()) == (opened.st_dev, opened.st_ino),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

pub(super) fn stat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: fstat fills the struct of zeroes.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        match libc::fstat(fd, &mut stat) {
            0 => Ok(stat),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The size of the device. What a block device has behind its last whole block cannot be addressed, as in Linux.
fn checked_size(
    options: &FileOptions,
    fd: &OwnedFd,
    block_device: bool,
    access: &mut Access,
) -> Result<u64> {
    let path = options.path.display();
    let actual = size_of(fd, block_device).map_err(|e| Error::os(&path, e))?;
    let size = options.size_bytes.unwrap_or(actual);
    if actual < size {
        return Err(Error::invalid(format!(
            "{path} has {actual} bytes, fewer than the size of {size} that was asked for"
        )));
    }
    let rest = size % u64::from(access.block_size);
    if block_device && options.size_bytes.is_none() && size > rest {
        access.note_rest(rest);
        return Ok(size - rest);
    }
    check_size(&options.path, size, access.block_size)?;
    Ok(size)
}

/// A device is made of whole blocks.
pub(super) fn check_size(path: &Path, size: u64, block: u32) -> Result<()> {
    if size > 0 && size.is_multiple_of(block.into()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: {size} bytes are not a positive multiple of {block}, a block of it; give a size that is",
        path.display()
    )))
}

/// Whether a file is shorter than that, by what the kernel knows of it without asking a server.
pub(super) fn is_shorter_than(fd: &OwnedFd, bytes: u64) -> bool {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: statx fills the struct of zeroes; an empty path means the descriptor itself.
    unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let done = libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_SIZE, &mut stat);
        done == 0 && stat.stx_size < bytes
    }
}

/// What kind of file system it is, as statfs(2) tells.
fn file_system(fd: &OwnedFd) -> Option<i64> {
    // SAFETY: fstatfs fills the struct of zeroes.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(fd.as_raw_fd(), &mut stat) == 0).then_some(stat.f_type)
    }
}

/// Whether `statx` tells a file's length at once. 9p asks its server and CIFS may wait for what is being written, both
/// in spite of `AT_STATX_DONT_SYNC` (Linux `v9fs_vfs_getattr_dotl`, `cifs_getattr`).
fn has_known_length(fd: &OwnedFd) -> bool {
    const ASKS: [i64; 3] = [0x0102_1997, 0xff53_4d42, 0xfe53_4d42];
    file_system(fd).is_some_and(|kind| !ASKS.contains(&kind))
}

/// Whether the file system is memory: nothing in it waits for a device.
pub(super) fn is_in_memory(fd: &OwnedFd) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    file_system(fd).is_some_and(|kind| kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Whether what a file system of this kind says of holes can be relied on. ZFS before 2.2.2 and 2.1.14 called data a hole
/// that had just been written (<https://github.com/openzfs/zfs/issues/15526>), and no call tells its version.
pub(super) fn tells_holes(kind: Option<i64>) -> bool {
    const ZFS_SUPER_MAGIC: i64 = 0x2fc1_2fc1;
    kind != Some(ZFS_SUPER_MAGIC)
}

/// Whether the device that the file lies on has poll queues, as sysfs tells.
fn has_poll_queues(fd: &OwnedFd, block_device: bool) -> bool {
    let Ok(stat) = stat(fd.as_raw_fd()) else { return false };
    let device = if block_device { stat.st_rdev } else { stat.st_dev };
    queue_file(device, "io_poll").is_some_and(|value| value.trim() == "1")
}

/// What can be done with ranges of a file.
#[derive(Default)]
struct Can {
    punch_hole: bool,
    zero_range: bool,
    discard: Option<Discard>,
}

/// Find out what the file system can do, behind the end of the file where nothing is lost.
fn probe(fd: &OwnedFd, read_only: bool, block_device: bool, block_size: u32) -> Can {
    let physical = access::physical_block_size(fd, block_device).max(block_size);
    let Ok(size) = size_of(fd, block_device) else { return Can::default() };
    if read_only {
        return Can::default();
    }
    if block_device {
        // The kernel falls back to writing zeroes by itself.
        let discard = discard_of_device(fd.as_raw_fd(), physical);
        return Can { punch_hole: true, zero_range: true, discard };
    }
    let behind = size.next_multiple_of(1 << 20) as i64;
    let (fd, keep) = (fd.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE);
    // SAFETY: fallocate takes no pointers.
    let (zero, punch_hole) = unsafe {
        (
            libc::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE | keep, behind, 4096) == 0,
            libc::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | keep, behind, 4096) == 0,
        )
    };
    let granularity = physical.max(4096);
    let discard = punch_hole.then_some(Discard { granularity, is_of_device: false });
    Can { punch_hole, zero_range: zero && punch_hole, discard }
}

/// Whether a block device discards, and in what units, as sysfs tells.
fn discard_of_device(fd: RawFd, physical_block_size: u32) -> Option<Discard> {
    let stat = stat(fd).ok()?;
    let number = |name: &str| queue_file(stat.st_rdev, name)?.trim().parse::<u32>().ok();
    // More than a number of 32 bits holds is not 0 either.
    let most = queue_file(stat.st_rdev, "discard_max_bytes")?;
    let granularity = number("discard_granularity").unwrap_or(0).max(physical_block_size);
    let granularity = granularity.min(1 << 30).next_power_of_two();
    (most.trim() != "0").then_some(Discard { granularity, is_of_device: true })
}

/// What sysfs says of the queue of a block device. A partition has none of its own: it stands in its disk's
/// folder.
fn queue_file(device: libc::dev_t, name: &str) -> Option<String> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let of = |folder: &str| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{folder}queue/{name}"))
    };
    of("").or_else(|_| of("../")).ok()
}
