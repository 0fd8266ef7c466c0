//! A file or block device that is, or will be, a member of an array.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use drystone_core::error::ErrorKind;
use drystone_drivers::file::OfflineFile;
use drystone_raid::metadata::MetadataError;
use drystone_raid::metadata::assemble::Candidate;
use drystone_raid::metadata::foreign::{Contents, HEAD_BYTES, TAIL_BYTES, identify};
use drystone_raid::metadata::partitions::{Partition, partitions};
use drystone_raid::metadata::superblock::{
    Minor, SUPERBLOCK_BYTES_MAX, Superblock, is_magic, places, probe,
};
use drystone_stack::size::format_size;

use crate::failure::Failure;
use crate::output;
use crate::paths::identity;

/// An open device.
pub struct Device {
    pub path: PathBuf,
    file: OpenDevice,
    pub sectors: u64,
    /// Its size, which may not be whole sectors.
    pub bytes: u64,
}

enum OpenDevice {
    Locked(OfflineFile),
    /// Somebody else has the lock; only for reading.
    Shared(File),
}

impl Device {
    /// Opens a device for writing; no other process may have it.
    pub fn for_writing(path: &Path) -> Result<Self, Failure> {
        Self::locked(path, false)
    }

    /// Opens a device that no other process may have, or, for reading, that none may write.
    pub fn locked(path: &Path, read_only: bool) -> Result<Self, Failure> {
        let file =
            OfflineFile::open(path, read_only).map_err(|e| Failure::Refused(e.to_string()))?;
        let bytes = file.size_bytes();
        Ok(Self::of(path, OpenDevice::Locked(file), bytes))
    }

    fn of(path: &Path, file: OpenDevice, bytes: u64) -> Self {
        Device { path: path.to_owned(), file, sectors: bytes / 512, bytes }
    }

    /// Opens a device for reading. One that is in use can be looked at too: a superblock is
    /// replaced by one write.
    pub fn for_reading(path: &Path) -> Result<Self, Failure> {
        let device = |file, bytes| Self::of(path, file, bytes);
        match OfflineFile::open(path, true) {
            Ok(file) => {
                let bytes = file.size_bytes();
                Ok(device(OpenDevice::Locked(file), bytes))
            }
            Err(error) if error.kind == ErrorKind::Busy => {
                output::warning(&format!("{error}: it may be changing while it is shown"));
                let opened = File::open(path).and_then(|mut file| {
                    use std::io::Seek;
                    let bytes = file.seek(io::SeekFrom::End(0))?;
                    Ok(device(OpenDevice::Shared(file), bytes))
                });
                opened.map_err(|error| refused(path, &error))
            }
            Err(error) => Err(Failure::Refused(error.to_string())),
        }
    }

    /// Sectors of its logical block.
    pub fn block_sectors(&self) -> u64 {
        match &self.file {
            OpenDevice::Locked(file) => u64::from(file.block_size()) / 512,
            OpenDevice::Shared(_) => 1,
        }
    }

    fn file(&self) -> &File {
        match &self.file {
            OpenDevice::Locked(file) => file.file(),
            OpenDevice::Shared(file) => file,
        }
    }

    /// The bytes from a sector on; fewer where the device ends.
    pub fn read(&self, sector: u64, bytes: usize) -> Result<Vec<u8>, Failure> {
        let left = self.sectors.saturating_sub(sector).saturating_mul(512);
        if left == 0 {
            return Ok(Vec::new());
        }
        let mut out = vec![0; bytes.min(usize::try_from(left).unwrap_or(usize::MAX))];
        let done = self.file().read_exact_at(&mut out, sector * 512);
        done.map_err(|error| refused(&self.path, &error))?;
        Ok(out)
    }

    /// Writes bytes from a sector on.
    pub fn write(&self, sector: u64, bytes: &[u8]) -> Result<(), Failure> {
        let done = self.file().write_all_at(bytes, sector * 512);
        done.map_err(|error| refused(&self.path, &error))
    }

    /// Makes durable what was written.
    pub fn sync(&self) -> Result<(), Failure> {
        self.file().sync_all().map_err(|error| refused(&self.path, &error))
    }

    /// The md superblock.
    pub fn probe(&self) -> Result<Result<(Minor, Superblock), MetadataError>, Failure> {
        probe(self.sectors, |sector| self.read(sector, SUPERBLOCK_BYTES_MAX))
    }

    /// Its data for the assembly of an array.
    pub fn candidate(&self) -> Result<Candidate, Failure> {
        let found = self.probe()?;
        let name = self.path.display().to_string();
        let read = |sector, bytes| self.read(sector, bytes).map_err(|failure| failure.sentence());
        Ok(Candidate::look(name, self.sectors, found, read).with_journal(read))
    }

    /// Of a whole disk whose partitions are members of arrays: which they are, and what to name
    /// instead of it.
    pub fn whole_disk(&self) -> Result<Option<String>, Failure> {
        let (mut members, mut devices) = (Vec::new(), Vec::new());
        for Partition { number, start, sectors } in
            partitions(self.sectors, |sector, bytes| self.read(sector, bytes))?
        {
            let read = |sector: u64| self.read(start.saturating_add(sector), SUPERBLOCK_BYTES_MAX);
            if let Ok((_, own)) = probe(sectors, read)? {
                let size = format_size(sectors.saturating_mul(512));
                let place = format!("start sector {start}, size {size}");
                members
                    .push(format!("partition {number} ({place}) is a member of {}", own.called()));
                devices.push(self.partition_device(number));
            }
        }
        if members.is_empty() {
            return Ok(None);
        }
        let path = self.path.display();
        let whence = match self.is_block_device() {
            true => String::new(),
            false => format!(
                ", where `losetup --read-only --partscan --find --show {path}`, as root, prints \
                 /dev/loopN"
            ),
        };
        let (members, devices) = (members.join(" and "), devices.join(" or "));
        Ok(Some(format!("{path} is a whole disk: its {members}; name {devices} instead{whence}")))
    }

    fn is_block_device(&self) -> bool {
        self.file().metadata().is_ok_and(|meta| meta.file_type().is_block_device())
    }

    /// Linux' name of a partition of this disk; of an image, of its loop device.
    fn partition_device(&self, number: u64) -> String {
        let disk = match self.is_block_device() {
            true => self.path.display().to_string(),
            false => "/dev/loopN".to_owned(),
        };
        let needs_mark = disk.ends_with(|last: char| last.is_ascii_digit() || last == 'N');
        format!("{disk}{}{number}", if needs_mark { "p" } else { "" })
    }

    /// Places where md's magic number stands, of whatever version and state.
    pub fn magic_places(&self) -> Result<Vec<u64>, Failure> {
        let mut found = Vec::new();
        for sector in places(self.sectors) {
            if is_magic(&self.read(sector, 4)?) {
                found.push(sector);
            }
        }
        Ok(found)
    }

    /// The contents of the device.
    pub fn contents(&self) -> Result<Contents, Failure> {
        let head = self.read(0, HEAD_BYTES)?;
        let tail = self.sectors.saturating_sub(TAIL_BYTES as u64 / 512);
        Ok(identify(&head, &self.read(tail, TAIL_BYTES)?, self.sectors))
    }
}

/// A device can be named once, under whatever name.
pub fn check_names(paths: &[PathBuf]) -> Result<(), Failure> {
    for (index, path) in paths.iter().enumerate() {
        let own = identity(path);
        if own.is_some() && paths[..index].iter().any(|other| identity(other) == own) {
            return Err(Failure::Refused(format!("{} is named twice", path.display())));
        }
    }
    Ok(())
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::Refused(format!("{}: {error}", path.display()))
}
