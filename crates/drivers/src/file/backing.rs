//! Operations on a file that no ring carries out.

use super::system;
use drystone_core::blocking::might_block;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// An open file, or its substitute in a simulator. Any thread may call it. Only
/// [`Backing::is_shorter_than`] is called on the data path.
pub trait Backing: Send + Sync {
    /// The descriptor by which a ring uses it. Valid for as long as this lives.
    fn descriptor(&self) -> RawFd;

    /// Its length in bytes, as of now.
    ///
    /// # Errors
    /// When the system refuses.
    fn size(&self) -> io::Result<u64>;

    /// True if it is known to be shorter than `bytes`. Data threads call this, so it never waits.
    fn is_shorter_than(&self, bytes: u64) -> bool {
        self.size().is_ok_and(|size| size < bytes)
    }

    /// True if `path` still names this file. For threads that may block.
    fn is_at(&self, _path: &Path) -> bool {
        true
    }

    /// Make it `bytes` long, which is longer than it is, without allocating space.
    ///
    /// # Errors
    /// When the system refuses.
    fn extend(&self, bytes: u64) -> io::Result<()>;

    /// Make all writes durable, and learn of lost ones. May take long.
    ///
    /// # Errors
    /// A write was lost.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// The same file opened once more; `None` if that cannot be done.
    fn reopened(&self) -> Option<Box<dyn Backing>> {
        None
    }

    /// The place from `from` on where data next begins; at most `end`.
    ///
    /// # Errors
    /// When the system refuses.
    fn next_data(&self, from: u64, end: u64) -> io::Result<u64>;

    /// The place from `from` on where a hole next begins; at most `end`.
    ///
    /// # Errors
    /// When the system refuses.
    fn next_hole(&self, from: u64, end: u64) -> io::Result<u64>;
}

/// A file or block device of the system.
pub(super) struct OpenFile {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) block_device: bool,
    /// True if the kernel knows its length without waiting for a server.
    pub(super) has_known_length: bool,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        might_block("close");
    }
}

impl Backing for OpenFile {
    fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn size(&self) -> io::Result<u64> {
        might_block("fstat");
        system::size_of(&self.fd, self.block_device)
    }

    fn is_shorter_than(&self, bytes: u64) -> bool {
        // A block device refuses writes beyond its end, so it needs no check.
        !self.block_device && self.has_known_length && system::is_shorter_than(&self.fd, bytes)
    }

    fn is_at(&self, path: &Path) -> bool {
        might_block("stat");
        system::is_at(&self.fd, path)
    }

    fn extend(&self, bytes: u64) -> io::Result<()> {
        might_block("ftruncate");
        system::extend(&self.fd, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        might_block("fdatasync");
        // SAFETY: fdatasync takes no pointers.
        match unsafe { libc::fdatasync(self.fd.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn next_data(&self, from: u64, end: u64) -> io::Result<u64> {
        seek(&self.fd, from, libc::SEEK_DATA, end)
    }

    fn next_hole(&self, from: u64, end: u64) -> io::Result<u64> {
        seek(&self.fd, from, libc::SEEK_HOLE, end)
    }
}

/// The place from `from` on where data (or a hole) next begins; at most `end`.
fn seek(fd: &OwnedFd, from: u64, whence: i32, end: u64) -> io::Result<u64> {
    might_block("lseek");
    if from >= end {
        return Ok(end);
    }
    // SAFETY: lseek takes no pointers. It moves the descriptor's offset, which nothing uses.
    let found = unsafe { libc::lseek(fd.as_raw_fd(), from as i64, whence) };
    let found = u64::try_from(found).map_err(|_| io::Error::last_os_error());
    sought(found, whence, from, end)
}

/// Interprets the file system's answer to a search from `from` on.
pub(super) fn sought(found: io::Result<u64>, whence: i32, from: u64, end: u64) -> io::Result<u64> {
    let error = match found {
        Ok(found) => return Ok(found.clamp(from, end)),
        Err(error) => error,
    };
    match (error.raw_os_error(), whence) {
        // No more data, or the file became shorter: the rest is a hole.
        (Some(libc::ENXIO), _) => Ok(end),
        // The file system does not support the search: everything counts as data.
        (Some(libc::EINVAL | libc::EOPNOTSUPP), libc::SEEK_DATA) => Ok(from),
        (Some(libc::EINVAL | libc::EOPNOTSUPP), _) => Ok(end),
        _ => Err(error),
    }
}
