//! A folder for the named objects of an experiment: mount points, and files that are mounted or
//! attached.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::temp_file::own_folder;

/// The folder, which is removed at the end with its files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes an empty folder.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let there = std::env::temp_dir();
        let made = own_folder(&there);
        made.map(Folder).with_context(|| format!("cannot make a folder in {}", there.display()))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays in the folder of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_another_and_goes_with_its_files() {
        let (folder, other) = (Folder::make().unwrap(), Folder::make().unwrap());
        assert_ne!(folder.path(), other.path());
        fs::write(folder.path().join("a.img"), "data").unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists() && other.path().exists());
    }
}
