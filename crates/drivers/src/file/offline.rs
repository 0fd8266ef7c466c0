//! Files and block devices for commands that use them while no server does.

use super::access::logical_block_size;
use super::locks::{lock, unlock};
use super::loops;
use super::open::open_flags;
use super::options::FileOptions;
use super::system::{is_block_device, limit_below, open_fd, size_of};
use drystone_core::error::ErrorKind;
use drystone_core::{Error, Result};
use std::fs;
use std::path::Path;

/// A file or block device, locked like a served one for as long as this value lives. A child of
/// fork inherits the lock. The owner reads and writes with ordinary system calls.
#[derive(Debug)]
pub struct OfflineFile {
    file: fs::File,
    size_bytes: u64,
    block_size: u32,
}

impl OfflineFile {
    /// Opens an existing file: for writing and locked against everybody, or for reading and locked
    /// against writers.
    ///
    /// # Errors
    /// It does not exist, is neither a file nor a block device, is in use, is opened for writing
    /// beside a loop device that may write to it ([`ErrorKind::Busy`]) or although it is longer
    /// than the limit of file size, or the system's error.
    pub fn open(path: &Path, read_only: bool) -> Result<Self> {
        if !path.exists() {
            let text = format!("{} does not exist", path.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let options = FileOptions { path: path.to_owned(), read_only, ..FileOptions::default() };
        let block_device = is_block_device(path)?;
        let fd = open_fd(path, open_flags(&options, block_device) & !libc::O_CREAT)?;
        lock(&fd, &options, false)?;
        loops::check(&fd, &options).inspect_err(|_| unlock(&fd))?;
        let size = size_of(&fd, block_device);
        let size = size.map_err(|error| Error::os(path.display(), error))?;
        if let Some(limit) = limit_below(&fd, size).filter(|_| !read_only) {
            unlock(&fd);
            return Err(Error::invalid(format!(
                "{} has {size} bytes, more than the limit of file size (`ulimit -f`), {limit} \
                 bytes: raise that first",
                path.display()
            )));
        }
        let block_size = if block_device { logical_block_size(&fd) } else { 512 };
        // A served block device ends with its last whole block.
        let size_bytes = if block_device { size - size % u64::from(block_size) } else { size };
        Ok(OfflineFile { file: fs::File::from(fd), size_bytes, block_size })
    }

    /// The open file.
    pub fn file(&self) -> &fs::File {
        &self.file
    }

    /// Bytes of its logical block: the host's for a block device, 512 for a file. Ordinary calls
    /// use the page cache, so they may have any length.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Its size in bytes, of a block device in whole blocks.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

impl Drop for OfflineFile {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Direct, File};

    #[test]
    fn it_takes_the_lock_of_a_served_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, [0; 4096]).unwrap();
        let options = FileOptions { path: path.clone(), direct: Direct::No, ..Default::default() };
        let served = File::open(&options).unwrap();
        for read_only in [false, true] {
            let error = OfflineFile::open(&path, read_only).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Busy, "{error}");
        }
        drop(served);
        let file = OfflineFile::open(&path, false).unwrap();
        assert_eq!(file.size_bytes(), 4096);
        assert!(File::open(&options).is_err());
        drop(file);
        let readers = [(); 2].map(|()| OfflineFile::open(&path, true).unwrap());
        assert!(OfflineFile::open(&path, false).is_err());
        drop(readers);
        let missing = folder.path().join("b");
        let error = OfflineFile::open(&missing, false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(!missing.exists());
    }
}
