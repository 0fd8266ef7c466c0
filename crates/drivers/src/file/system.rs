//! Calls to the system about open files: sizes, kinds of file systems, processes that have them
//! open.
//!
//! All of them may block, except [`is_shorter_than`].

use drystone_core::blocking::might_block;
use drystone_core::error::ErrorKind;
use drystone_core::{Error, Result};
use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

pub(super) fn is_block_device(path: &Path) -> Result<bool> {
    let meta = std::fs::metadata(path).map_err(|e| Error::os(path.display(), e))?;
    let kind = meta.file_type();
    if kind.is_block_device() || kind.is_file() {
        return Ok(kind.is_block_device());
    }
    Err(Error::invalid(format!("{} is neither a file nor a block device", path.display())))
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

/// The error that a file is in use by `holder`, or by `unseen` if /proc shows no holder.
pub(super) fn held(path: &Path, holder: Option<u32>, unseen: &str) -> Error {
    let by = holder.map_or(unseen.to_owned(), |pid| format!("process {pid}"));
    Error::new(ErrorKind::Busy, format!("{} is in use by {by}", path.display()))
}

/// A process that has the device open, by any node: an exclusive open leaves no lock in /proc.
pub(super) fn find_opener(path: &Path) -> Option<u32> {
    let wanted = std::fs::metadata(path).ok()?;
    let kind = |m: &Metadata| m.mode() & libc::S_IFMT;
    if ![libc::S_IFBLK, libc::S_IFCHR].contains(&kind(&wanted)) {
        return None;
    }
    let same = |m: &Metadata| (kind(m), m.rdev()) == (kind(&wanted), wanted.rdev());
    find_process(|pid, fd| is_open(pid, fd, same))
}

/// True if a descriptor of a process refers to the file that `same` recognises.
pub(super) fn is_open(pid: u32, fd: &str, same: impl FnOnce(&Metadata) -> bool) -> bool {
    std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|meta| same(&meta))
}

/// The first process with a descriptor that `wanted` accepts; `wanted` gets both numbers.
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

/// The limit of file size in bytes (`ulimit -f`), if it is below `bytes`: writes beyond it fail.
/// `None` for a block device.
pub(super) fn limit_below(fd: &OwnedFd, bytes: u64) -> Option<u64> {
    stat(fd.as_raw_fd()).ok().filter(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit writes one struct.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    (done && limit.rlim_cur < bytes).then_some(limit.rlim_cur)
}

/// The error that a file could not be made so long.
pub(super) fn too_long(what: String, error: io::Error) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::EFBIG) => {
            "; the limit of file size (`ulimit -f`) and what its file system takes must be at \
             least that"
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

/// True if `path` names the open file, or if that is unknown.
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

/// Checks that a size is a whole number of blocks, and not 0.
pub(super) fn check_size(path: &Path, size: u64, block: u32) -> Result<()> {
    if size > 0 && size.is_multiple_of(block.into()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: {size} bytes are not a positive multiple of {block}, a block of it; give a size that \
         is",
        path.display()
    )))
}

/// True if a file is shorter than `bytes`, by the kernel's cached length, without asking a server.
pub(super) fn is_shorter_than(fd: &OwnedFd, bytes: u64) -> bool {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: statx fills the struct of zeroes; an empty path means the descriptor itself.
    unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let done = libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_SIZE, &mut stat);
        done == 0 && stat.stx_size < bytes
    }
}

/// The kind of the file system, as statfs(2) tells.
pub(super) fn file_system(fd: &OwnedFd) -> Option<i64> {
    // SAFETY: fstatfs fills the struct of zeroes.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(fd.as_raw_fd(), &mut stat) == 0).then_some(stat.f_type)
    }
}

/// True if `statx` returns a file's length without waiting. 9p asks its server and CIFS may wait
/// for writeback, both in spite of `AT_STATX_DONT_SYNC` (Linux `v9fs_vfs_getattr_dotl`,
/// `cifs_getattr`).
pub(super) fn has_known_length(fd: &OwnedFd) -> bool {
    const ASKS: [i64; 3] = [0x0102_1997, 0xff53_4d42, 0xfe53_4d42];
    file_system(fd).is_some_and(|kind| !ASKS.contains(&kind))
}

/// True if the file system is in memory: none of its calls waits for a device.
pub(super) fn is_in_memory(fd: &OwnedFd) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    file_system(fd).is_some_and(|kind| kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// True if a file system of this kind does no write to the page cache without waiting: ext4 and its
/// forerunners refuse `RWF_NOWAIT` (Linux `ext4_buffered_write_iter`).
pub(super) fn writes_wait(kind: Option<i64>) -> bool {
    kind == Some(libc::EXT4_SUPER_MAGIC)
}

/// True if a file system of this kind reports holes reliably. ZFS before 2.2.2 and 2.1.14 reported
/// data that had just been written as a hole (<https://github.com/openzfs/zfs/issues/15526>), and
/// no call tells its version.
pub(super) fn tells_holes(kind: Option<i64>) -> bool {
    const ZFS_SUPER_MAGIC: i64 = 0x2fc1_2fc1;
    kind != Some(ZFS_SUPER_MAGIC)
}
