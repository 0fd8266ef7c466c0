//! A folder for the files of an experiment, on whatever disk temporary files are.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::Context as _;

/// Removed in the end with its files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn make() -> anyhow::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("drystone-lab-{process}-{number}"));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Write file `name` of so many bytes, whole MiB, to the disk. They are data: what was never written
    /// is read without a disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, name: &str, bytes: u64) -> anyhow::Result<()> {
        let path = self.0.join(name);
        write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn write(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0xA5; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block)?;
    }
    file.sync_all()
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it cannot be removed it stays, in the folder of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_data_and_go_with_their_folder() {
        let (folder, other) = (Folder::make().unwrap(), Folder::make().unwrap());
        assert_ne!(folder.path(), other.path());
        folder.write("a.img", 2 << 20).unwrap();
        let data = fs::read(folder.path().join("a.img")).unwrap();
        assert!(data.len() == 2 << 20 && data.iter().all(|byte| *byte == 0xA5));
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
