//! Files of experiments. They have no name, so nobody can replace them, and nothing of them
//! remains, however this process ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};

/// A file that vanishes when this is dropped.
pub(crate) struct TempFile(File);

impl TempFile {
    /// A file in memory, so that no disk is measured, of so many bytes, whole MiB.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub(crate) fn in_memory(bytes: u64) -> anyhow::Result<Self> {
        let made = || fill(File::from(memfd_create("drystone-lab", MemfdFlags::CLOEXEC)?), bytes);
        Ok(TempFile(made().context("cannot make a file in memory")?))
    }

    /// A file on the disk of temporary files, of so many bytes, whole MiB. All of it is written,
    /// because a hole is read without a disk.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub(crate) fn on_disk(bytes: u64) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir();
        let made = || {
            let file = unnamed(&folder).or_else(|_| unlinked(&folder))?;
            let file = fill(file, bytes)?;
            file.sync_all().map(|()| file)
        };
        Ok(TempFile(
            made().with_context(|| format!("cannot write a file in {}", folder.display()))?,
        ))
    }

    /// A path to it for this user's processes, while this one lives.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

fn fill(mut file: File, bytes: u64) -> io::Result<File> {
    let block = vec![0xA5; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block)?;
    }
    Ok(file)
}

/// Makes a file without a name, which not every file system supports.
fn unnamed(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?))
}

/// Makes a file in a new folder that no other user may enter, and unlinks it at once.
fn unlinked(folder: &Path) -> io::Result<File> {
    let own = own_folder(folder)?;
    let path = own.join("file");
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let removed = fs::remove_dir_all(&own);
    made.and_then(|file| removed.map(|()| file))
}

/// Makes a folder of mode 0700, whatever names others have taken.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn own_folder(folder: &Path) -> io::Result<PathBuf> {
    /// The most names to try.
    const NAMES: u32 = 10_000;
    let process = std::process::id();
    for number in 0..NAMES {
        let path = folder.join(format!("drystone-lab-{process}-{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn check(file: &TempFile) {
        let data = fs::read(file.path()).unwrap();
        assert!(data.len() == 2 << 20 && data.iter().all(|byte| *byte == 0xA5));
        let meta = fs::metadata(file.path()).unwrap();
        assert_eq!(meta.nlink(), 0, "it has no name");
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(file.path())
            .expect("a device can stand on it");
    }

    #[test]
    fn files_hold_data_and_have_no_name() {
        check(&TempFile::in_memory(2 << 20).unwrap());
        check(&TempFile::on_disk(2 << 20).unwrap());
    }

    #[test]
    fn names_that_others_have_taken_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, process) = (folder.path().join("victim"), std::process::id());
        fs::write(&victim, "precious").unwrap();
        for number in 0..100 {
            let planted = folder.path().join(format!("drystone-lab-{process}-{number}"));
            symlink(&victim, planted).unwrap();
        }
        let file = unlinked(folder.path()).unwrap();
        check(&TempFile(fill(file, 2 << 20).unwrap()));
        let own = own_folder(folder.path()).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        // The link's, and the folder that was asked for.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 102, "nothing else is left");
    }
}
