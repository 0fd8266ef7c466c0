//! The files that a stack uses, and whether two paths are the same file.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::diagnostic::Span;

/// The use of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The file of a device.
    Device,
    /// A socket of an export.
    Socket,
}

/// A file in use.
pub(crate) struct Used {
    identity: Identity,
    /// The kind of use.
    pub(crate) kind: Kind,
    /// The name of the device, or of the export.
    pub(crate) name: String,
    /// The place in the text that names the file.
    pub(crate) span: Span,
}

/// The files in use that the check has found so far.
#[derive(Default)]
pub(crate) struct Seen(Vec<Used>);

impl Seen {
    /// The first use of that file.
    pub(crate) fn find(&self, identity: &Identity) -> Option<&Used> {
        self.0.iter().find(|used| used.identity.same(identity))
    }

    /// Notes a use of a file.
    pub(crate) fn add(&mut self, identity: Identity, kind: Kind, name: &str, span: Span) {
        self.0.push(Used { identity, kind, name: name.to_owned(), span });
    }
}

/// The identity of a file, by which two paths are the same: the real path, and device and inode
/// where it exists.
pub(crate) struct Identity {
    real_path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl Identity {
    /// The identity of the file that `path` leads to now.
    pub(crate) fn of(path: &Path) -> Self {
        let inode = fs::metadata(path).ok().map(|meta| match meta.file_type().is_block_device() {
            // Two nodes of one block device have inodes of their own, but one device number.
            true => (u64::MAX, meta.rdev()),
            false => (meta.dev(), meta.ino()),
        });
        Self { real_path: real_path(path), inode }
    }

    /// The identity of a path without symbolic links, without a call to the file system.
    pub(crate) fn named(real_path: PathBuf) -> Self {
        Self { real_path, inode: None }
    }

    /// True if both are the same file.
    pub(crate) fn same(&self, other: &Identity) -> bool {
        self.real_path == other.real_path || (self.inode.is_some() && self.inode == other.inode)
    }
}

/// The path without symbolic links; of a file that does not exist, its folder's.
fn real_path(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    // A dangling link is followed to the file that an open would create.
    if let Ok(target) = fs::read_link(path) {
        let target = path.parent().unwrap_or(Path::new("")).join(target);
        return match fs::symlink_metadata(&target) {
            Ok(meta) if meta.is_symlink() => target,
            _ => real_path(&target),
        };
    }
    match (folder(path), path.file_name()) {
        (folder, Some(name)) => fs::canonicalize(folder).unwrap_or(folder.to_owned()).join(name),
        (_, None) => path.to_owned(),
    }
}

/// The folder that a path is in.
pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
