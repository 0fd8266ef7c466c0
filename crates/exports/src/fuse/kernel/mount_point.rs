//! A mount that is asked for.

use crate::fuse::server::Kind;
use std::path::PathBuf;

/// A mount that is asked for: where, and how it looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount point: a file or folder that exists.
    pub path: PathBuf,
    /// The kind of the mount point.
    pub kind: Kind,
    /// The source that the list of mounts shows.
    pub source: String,
    /// Let other users in, as far as the permissions of the files do; without this only the user
    /// that mounts gets in.
    pub allow_other: bool,
}
