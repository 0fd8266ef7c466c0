//! The parameters of a mount.

use crate::fuse::server::Kind;
use std::path::PathBuf;

/// The parameters of a mount: its place and its look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount point: a file or folder that exists.
    pub path: PathBuf,
    /// The kind of the mount point.
    pub kind: Kind,
    /// The source that the list of mounts shows.
    pub source: String,
    /// True to let other users in, as far as the permissions of the files allow; otherwise only the
    /// user that mounts gets in.
    pub allow_other: bool,
}
