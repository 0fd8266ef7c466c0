//! Which file a path leads to.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Equal for two paths exactly if they lead to the same file or block device, which is the same
/// under all its names; `None` if there is nothing.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => Some((found.rdev(), 0)),
        found => found.ok().map(|found| (found.dev(), found.ino())),
    }
}
