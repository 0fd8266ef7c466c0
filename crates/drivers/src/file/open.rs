//! Opening files and block devices: creation, size, locks, what the file system can do.

use super::access::{self, Access, set_direct};
use super::backing::OpenFile;
use super::claim::{Claim, Identity};
use super::holes::Holes;
use super::locks::lock;
use super::loops;
use super::opened::{Alignment, Discard, Opened};
use super::options::FileOptions;
use super::shared::FileShared;
use super::system::{
    check_size, extend, file_system, has_known_length, is_at, is_block_device, is_in_memory,
    limit_below, open_fd, size_of, stat, tells_holes, too_long, writes_wait,
};
use drystone_core::blocking::Aside;
use drystone_core::error::ErrorKind;
use drystone_core::primitive::AtomicBool;
use drystone_core::{Error, Result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// The most tries to open a path that leads to another file each time the last one is locked.
const OPENINGS_MAX: u32 = 16;

pub(super) fn open(options: &FileOptions) -> Result<FileShared> {
    open_found(options, options.path.exists())
}

/// Opens the path. `existed` says whether an earlier look found a file there.
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

/// Opens the path once. `None` if the path no longer leads to the opened file: its creator was
/// refused, and removed it while this open waited for the lock.
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
    // Several processes may have found no file: the file counts as new for the first one that gets
    // the lock, and only that one may remove it.
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

/// A file that is open, checked and locked.
pub(super) struct Ready<'a> {
    pub(super) options: &'a FileOptions,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) block_device: bool,
    pub(super) access: Access,
    /// The device's logical block, and its length.
    pub(super) block_size: u32,
    pub(super) bytes: u64,
}

impl Ready<'_> {
    /// Find out the abilities of the file.
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
            writes_wait: !alignment.is_direct() && !block_device && writes_wait(file_system(&fd)),
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

/// Sets the mode of the open file: the path may lead to another one by now.
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

/// Flags for open(2): a missing file is made, a block device is not shared.
pub(super) fn open_flags(options: &FileOptions, block_device: bool) -> i32 {
    match (options.read_only, block_device) {
        (true, _) => libc::O_RDONLY,
        (false, true) => libc::O_RDWR | libc::O_EXCL,
        (false, false) => libc::O_RDWR | libc::O_CREAT,
    }
}

/// The notice if the limit of file size makes the end of the device unwritable.
pub(super) fn limit_notice(fd: &OwnedFd, bytes: u64, options: &FileOptions) -> Option<String> {
    let limit = limit_below(fd, bytes).filter(|_| !options.read_only)?;
    Some(format!(
        "is longer than the limit of file size (`ulimit -f`), {limit} bytes: writes beyond that \
         fail"
    ))
}

/// The size of the device. The part of a block device behind its last whole block cannot be
/// addressed, as in Linux.
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

/// True if the device that the file lies on has poll queues, as sysfs tells.
fn has_poll_queues(fd: &OwnedFd, block_device: bool) -> bool {
    let Ok(stat) = stat(fd.as_raw_fd()) else { return false };
    let device = if block_device { stat.st_rdev } else { stat.st_dev };
    queue_file(device, "io_poll").is_some_and(|value| value.trim() == "1")
}

/// The operations on ranges that a file can do.
#[derive(Default)]
struct Can {
    punch_hole: bool,
    zero_range: bool,
    discard: Option<Discard>,
}

/// Find out the abilities of the file system, by calls behind the end of the file, where they can
/// lose no data.
fn probe(fd: &OwnedFd, read_only: bool, block_device: bool, block_size: u32) -> Can {
    let physical = access::physical_block_size(fd, block_device).max(block_size);
    let Ok(size) = size_of(fd, block_device) else { return Can::default() };
    if read_only {
        return Can::default();
    }
    if block_device {
        // The kernel itself falls back to writing zeroes.
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

/// The discard of a block device and its units, as sysfs reports them.
fn discard_of_device(fd: RawFd, physical_block_size: u32) -> Option<Discard> {
    let stat = stat(fd).ok()?;
    let number = |name: &str| queue_file(stat.st_rdev, name)?.trim().parse::<u32>().ok();
    // A value beyond 32 bits is not 0 either.
    let most = queue_file(stat.st_rdev, "discard_max_bytes")?;
    let granularity = number("discard_granularity").unwrap_or(0).max(physical_block_size);
    let granularity = granularity.min(1 << 30).next_power_of_two();
    (most.trim() != "0").then_some(Discard { granularity, is_of_device: true })
}

/// An attribute of a block device's queue in sysfs. A partition has no queue of its own: its folder
/// lies in that of its disk.
fn queue_file(device: libc::dev_t, name: &str) -> Option<String> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let of = |folder: &str| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{folder}queue/{name}"))
    };
    of("").or_else(|_| of("../")).ok()
}
