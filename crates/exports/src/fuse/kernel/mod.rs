//! The kernel's side of a mount: `/dev/fuse`, mounting and unmounting.
//!
//! These calls block and belong to the thread that starts and stops the server, never to a data
//! thread: an unmount waits for answers that the data threads give.
//!
//! Invariants:
//! * A path that may be a dead mount point is never passed to `stat` before the list of mounts was
//!   consulted: a mount without a server answers only `ENOTCONN`.
//! * [`Mounted`] unmounts only the mount that [`mount`] made; it finds that mount by its number in
//!   the list of mounts.

mod device;
mod error;
mod helper;
mod killed;
mod mount_point;
mod mountinfo;

pub use error::MountError;
pub use killed::is_killed;
pub use mount_point::MountPoint;
pub use mountinfo::{MountEntry, parse as parse_mountinfo};

use super::proto::init::MAX_WRITE;
use super::server::Kind;
use rustix::fs::{StatVfs, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The type that our mounts have in the list of mounts.
pub const FILE_SYSTEM: &str = "fuse.drystone";

/// A mount of ours. Dropping it changes nothing: unmount it.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    /// Its number in the list of mounts.
    id: u64,
    by_helper: bool,
}

/// Mounts, and opens `sessions` (at least 1) descriptors of the mount, one for each
/// [`super::server::Incoming`]. Nobody is answered before they are served; once the last of them is
/// closed the mount is dead. A dead mount of ours that is in the way is detached first.
///
/// # Errors
/// One sentence that says what is wrong, and with which mount point; then nothing is mounted.
pub fn mount(point: &MountPoint, sessions: usize) -> Result<(Mounted, Vec<OwnedFd>), MountError> {
    let path = clear(&point.path)?;
    check(&path, point.kind)?;
    let (first, by_helper) = attach(&path, point)?;
    let entry = match top_at(&path) {
        Ok(entry) => entry.filter(|entry| entry.file_system == FILE_SYSTEM),
        Err(error) => {
            let _ = detach(&path);
            return Err(error);
        }
    };
    let Some(entry) = entry else {
        return Err(MountError::Vanished { path });
    };
    let mounted = Mounted { path, id: entry.id, by_helper };
    match clones(first, sessions) {
        Ok(devices) => Ok((mounted, devices)),
        Err(error) => {
            let _ = mounted.detach();
            Err(error)
        }
    }
}

fn clones(first: OwnedFd, sessions: usize) -> Result<Vec<OwnedFd>, MountError> {
    let mut devices = vec![first];
    for _ in 1..sessions {
        devices.push(device::clone_of(&devices[0])?);
    }
    Ok(devices)
}

/// The mount point's real path, with no dead mount of ours on it.
fn clear(path: &Path) -> Result<PathBuf, MountError> {
    let path = resolve(path)?;
    while look_at_resolved(&path)? {
        detach(&path)?;
    }
    Ok(path)
}

/// The state of a path that is a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where the path leads to, without symbolic links.
    pub path: PathBuf,
    /// A mount of ours without a server is there.
    pub is_dead: bool,
}

/// The real path, and whether a mount is in the way there. Waits without limit for a server that
/// has stopped answering.
///
/// # Errors
/// [`MountError::Served`] and [`MountError::Busy`] when something that is not dead is mounted
/// there; when the path's folder does not exist, or the list of mounts cannot be read.
pub fn look_at(path: &Path) -> Result<Found, MountError> {
    let path = resolve(path)?;
    let is_dead = look_at_resolved(&path)?;
    Ok(Found { path, is_dead })
}

fn look_at_resolved(path: &Path) -> Result<bool, MountError> {
    match top_at(path)? {
        None => Ok(false),
        Some(top) if is_dead(path, &top) => Ok(true),
        Some(top) => Err(busy(path.to_owned(), top)),
    }
}

fn busy(path: PathBuf, top: MountEntry) -> MountError {
    let MountEntry { file_system, source, .. } = top;
    match file_system == FILE_SYSTEM {
        true => MountError::Served { path, export: source },
        false => MountError::Busy { path, file_system, from: source },
    }
}

/// The most symbolic links that one look-up follows (Linux `MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// Resolves symbolic links. The last part of the path need not exist. It is only read as a link,
/// and never passed to `stat`, because a mount there may not answer.
///
/// # Errors
/// [`MountError::Missing`] when its folder does not exist; when the list of mounts cannot be read.
pub fn resolve(path: &Path) -> Result<PathBuf, MountError> {
    let mut place = in_real_folder(path)?;
    for _ in 0..LINKS_MAX {
        let link = if top_at(&place)?.is_none() { fs::read_link(&place).ok() } else { None };
        let Some(target) = link else { return Ok(place) };
        place = in_real_folder(&place.parent().unwrap_or(Path::new("/")).join(target))?;
    }
    Err(missing(path, Errno::LOOP.into()))
}

/// The path with its folder's real path.
fn in_real_folder(path: &Path) -> Result<PathBuf, MountError> {
    let Some(name) = path.file_name() else {
        return fs::canonicalize(path).map_err(|source| missing(path, source));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder = fs::canonicalize(folder).map_err(|source| missing(folder, source))?;
    Ok(folder.join(name))
}

fn missing(path: &Path, source: std::io::Error) -> MountError {
    MountError::Missing { path: path.to_owned(), source }
}

fn check(path: &Path, kind: Kind) -> Result<(), MountError> {
    let metadata = fs::symlink_metadata(path).map_err(|source| missing(path, source))?;
    let path = path.to_owned();
    match kind {
        Kind::File if !metadata.is_file() => Err(MountError::NotAFile { path }),
        Kind::Folder if !metadata.is_dir() => Err(MountError::NotAFolder { path }),
        _ => Ok(()),
    }
}

/// Mounts; uses the helper of unprivileged users if the kernel refuses.
fn attach(path: &Path, point: &MountPoint) -> Result<(OwnedFd, bool), MountError> {
    let device = device::open()?;
    match attach_ourselves(path, point, &device) {
        Ok(()) => Ok((device, false)),
        Err(Errno::PERM) => Ok((helper::mount(path, point, MAX_WRITE)?, true)),
        Err(Errno::BUSY) => {
            Err(MountError::Refused { path: path.to_owned(), why: "it is in use".to_owned() })
        }
        Err(error) => Err(MountError::Refused { path: path.to_owned(), why: error.to_string() }),
    }
}

fn attach_ourselves(path: &Path, point: &MountPoint, device: &OwnedFd) -> rustix::io::Result<()> {
    let root = match point.kind {
        Kind::File => "100000",
        Kind::Folder => "40000",
    };
    let others = if point.allow_other { ",allow_other,default_permissions" } else { "" };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = format!(
        "fd={},rootmode={root},user_id={uid},group_id={gid},max_read={MAX_WRITE}{others}",
        device.as_raw_fd()
    );
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount(&*point.source, path, FILE_SYSTEM, flags, &*options)
}

/// The topmost mount at the path.
fn top_at(path: &Path) -> Result<Option<MountEntry>, MountError> {
    let list = fs::read("/proc/self/mountinfo").map_err(MountError::NoList)?;
    Ok(parse_mountinfo(&list).into_iter().rfind(|entry| entry.path == path))
}

/// True if anything is mounted at the path, which has no symbolic links.
///
/// # Errors
/// When the list of mounts cannot be read.
pub fn is_mount_point(path: &Path) -> Result<bool, MountError> {
    Ok(top_at(path)?.is_some())
}

/// True if the mount is one of ours whose server is gone. Asking for its statistics always asks the
/// server; its attributes may still be known.
fn is_dead(path: &Path, entry: &MountEntry) -> bool {
    let answer: rustix::io::Result<StatVfs> = match entry.file_system == FILE_SYSTEM {
        true => statvfs(path),
        false => return false,
    };
    matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// True if a mount of ours without a server is at the path.
///
/// # Errors
/// When the path's folder does not exist, or the list of mounts cannot be read.
pub fn is_dead_mount(path: &Path) -> Result<bool, MountError> {
    let path = resolve(path)?;
    Ok(top_at(&path)?.is_some_and(|top| is_dead(&path, &top)))
}

/// Detaches dead mounts of ours from the path.
///
/// # Errors
/// As [`is_dead_mount`], and when the kernel refuses.
pub fn detach_dead(path: &Path) -> Result<(), MountError> {
    while is_dead_mount(path)? {
        detach(&resolve(path)?)?;
    }
    Ok(())
}

/// Detaches the mount at the path at once, even if it is in use (a lazy unmount).
fn detach(path: &Path) -> Result<(), MountError> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => helper::unmount(path, true),
        result => unmounted(path, result),
    }
}

fn unmounted(path: &Path, result: rustix::io::Result<()>) -> Result<(), MountError> {
    let path = path.to_owned();
    match result {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::InUse { path }),
        Err(error) => Err(MountError::NotUnmounted { path, why: error.to_string() }),
    }
}

impl Mounted {
    /// The path of the mount point, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the mount still exists and is the topmost one at its path.
    fn is_there(&self) -> Result<bool, MountError> {
        Ok(top_at(&self.path)?.is_some_and(|top| top.id == self.id))
    }

    /// Unmounts it, unless another process has. Waits for answers of the server.
    ///
    /// # Errors
    /// [`MountError::InUse`] while files are open; another when it is not permitted.
    pub fn unmount(&self) -> Result<(), MountError> {
        if !self.is_there()? {
            return Ok(());
        }
        match self.by_helper {
            true => helper::unmount(&self.path, false),
            false => {
                unmounted(&self.path, rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW))
            }
        }
    }

    /// Detaches the mount from its path at once, even if it is in use: open files stay open until
    /// the server ends.
    ///
    /// # Errors
    /// When it is not permitted.
    pub fn detach(&self) -> Result<(), MountError> {
        match self.is_there()? {
            true => detach(&self.path),
            false => Ok(()),
        }
    }
}
