//! `/dev/fuse`.

#![allow(unsafe_code, reason = "an ioctl of /dev/fuse")]

use super::MountError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl};
use std::os::fd::{AsRawFd, OwnedFd};

const PATH: &str = "/dev/fuse";

/// `_IOR(229, 0, uint32_t)` (linux/fuse.h).
const FUSE_DEV_IOC_CLONE: Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

/// A descriptor that does not block and stands for no mount yet.
pub(super) fn open() -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(PATH, flags, Mode::empty()) {
        Ok(device) => Ok(device),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(MountError::NoDevice),
        Err(Errno::ACCESS | Errno::PERM) => Err(MountError::NoAccess),
        Err(error) => Err(MountError::Device { why: error.to_string() }),
    }
}

/// Another descriptor of the mount of `device`. Requests come by any of them; a request is answered
/// by the descriptor that it came by.
pub(super) fn clone_of(device: &OwnedFd) -> Result<OwnedFd, MountError> {
    let clone = open()?;
    let number = device.as_raw_fd() as u32;
    // SAFETY: the kernel takes a pointer to the number of a descriptor, 32 bits long, which the
    // setter holds; it reads it during the call and writes nothing.
    let cloned = unsafe { ioctl(&clone, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(number)) };
    cloned.map_err(|error| MountError::Device { why: error.to_string() })?;
    Ok(clone)
}

/// Make reads of `device` return at once when there is nothing.
pub(super) fn set_nonblocking(device: &OwnedFd) -> Result<(), MountError> {
    let set = rustix::io::ioctl_fionbio(device, true);
    set.map_err(|error| MountError::Device { why: error.to_string() })
}
