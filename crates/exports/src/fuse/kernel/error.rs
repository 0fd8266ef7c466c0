//! Faults of a mount point, in one sentence each.

use std::io;
use std::path::PathBuf;

/// Why something was not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the container hides it.
    #[error(
        "there is no /dev/fuse on this machine: load the module `fuse`, or give it to the container"
    )]
    NoDevice,
    /// This user may not open `/dev/fuse`.
    #[error("/dev/fuse may not be opened by this user")]
    NoAccess,
    /// Another fault of the device.
    #[error("/dev/fuse cannot be used: {why}")]
    Device {
        /// The kernel's word.
        why: String,
    },
    /// The mount point does not exist, or is out of reach.
    #[error("the mount point {path:?} cannot be used: {source}")]
    Missing {
        /// The mount point, or its folder.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// One volume needs a file.
    #[error("the mount point {path:?} is not a regular file, but a volume is mounted on one")]
    NotAFile {
        /// The mount point.
        path: PathBuf,
    },
    /// Several volumes need a folder.
    #[error("the mount point {path:?} is not a folder")]
    NotAFolder {
        /// The mount point.
        path: PathBuf,
    },
    /// Another file system is mounted there.
    #[error("something is mounted on {path:?} already: {from} ({file_system})")]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// The type of that file system.
        file_system: String,
        /// The source of that mount.
        from: String,
    },
    /// A running server of ours has its mount there.
    #[error(
        "{path:?} is served already, by a server that has export `{export}` there: stop it first, \
         or name another path"
    )]
    Served {
        /// The mount point.
        path: PathBuf,
        /// The kind that is served there.
        export: String,
    },
    /// The kernel refuses.
    #[error("cannot mount on {path:?}: {why}")]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// Its reason.
        why: String,
    },
    /// The process may not mount, and there is no helper that may.
    #[error(
        "this user may not mount on {path:?}, and fusermount3 is not installed (package fuse3)"
    )]
    NoHelper {
        /// The mount point.
        path: PathBuf,
    },
    /// The new mount has vanished again.
    #[error("what was mounted on {path:?} has been unmounted by somebody else")]
    Vanished {
        /// The mount point.
        path: PathBuf,
    },
    /// Files are open.
    #[error("{path:?} is in use")]
    InUse {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel does not unmount it.
    #[error("cannot unmount {path:?}: {why}")]
    NotUnmounted {
        /// The mount point.
        path: PathBuf,
        /// Its reason.
        why: String,
    },
    /// The list of mounts cannot be read.
    #[error("the list of mounts cannot be read: {0}")]
    NoList(io::Error),
}
