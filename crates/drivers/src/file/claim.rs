//! The claim of a device on its file, which lasts while the file is reopened: the lock, and the
//! identity of the file.

use super::locks;
use super::system::{limit_below, stat};
use drystone_core::blocking::might_block;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// The lock of a file, held until this is dropped. The lock belongs to the open file description
/// that took it. That stays open when the file is reopened, so the lock never moves from one
/// opening to another.
pub(super) struct Claim {
    fd: Arc<OwnedFd>,
    pub(super) identity: Identity,
}

impl Claim {
    /// The claim of a file that `fd` has locked.
    pub(super) fn new(fd: Arc<OwnedFd>, identity: Identity) -> Arc<Self> {
        Arc::new(Claim { fd, identity })
    }
}

impl Claim {
    /// The limit of file size, if it is below `bytes`.
    pub(super) fn limit_below(&self, bytes: u64) -> Option<u64> {
        limit_below(&self.fd, bytes)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        might_block("close");
        locks::unlock(&*self.fd);
    }
}

/// The identity of a file or disk, regardless of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// A file.
    File { file_system: u64, inode: u64 },
    /// A block device by its number and disk sequence number. The sequence distinguishes disks that
    /// have the same number one after the other; it is 0 on kernels without it (before Linux 5.15).
    Device { number: u64, sequence: u64 },
}

impl Identity {
    /// The identity of an open file.
    pub(super) fn of(fd: &OwnedFd, block_device: bool) -> io::Result<Self> {
        let stat = stat(fd.as_raw_fd())?;
        Ok(match block_device {
            true => Identity::Device { number: stat.st_rdev, sequence: disk_sequence(fd) },
            false => Identity::File { file_system: stat.st_dev, inode: stat.st_ino },
        })
    }

    /// True if both are the same, as far as the numbers show.
    pub(super) fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Identity::Device { number: a, sequence: 0 }, Identity::Device { number: b, .. })
            | (Identity::Device { number: a, .. }, Identity::Device { number: b, sequence: 0 }) => {
                a == b
            }
            (one, other) => one == other,
        }
    }
}

fn disk_sequence(fd: &OwnedFd) -> u64 {
    const BLKGETDISKSEQ: libc::c_ulong = 0x8008_1280;
    let mut sequence = 0u64;
    // SAFETY: the ioctl writes one u64.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETDISKSEQ, &raw mut sequence) } {
        0 => sequence,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::Identity::{Device, File};

    #[test]
    fn what_is_not_known_of_a_disk_does_not_tell_it_from_another() {
        let disk = |number, sequence| Device { number, sequence };
        let file = |file_system, inode| File { file_system, inode };
        for (one, other, same) in [
            (file(1, 2), file(1, 2), true),
            (file(1, 2), file(1, 3), false),
            (file(1, 2), file(2, 2), false),
            (disk(7, 1), disk(7, 1), true),
            (disk(7, 1), disk(7, 2), false),
            (disk(7, 0), disk(7, 2), true),
            (disk(7, 2), disk(7, 0), true),
            (disk(7, 0), disk(8, 0), false),
            (disk(7, 1), file(7, 1), false),
        ] {
            assert_eq!(one.is_same(other), same, "{one:?} {other:?}");
        }
    }
}
