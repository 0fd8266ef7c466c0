//! Files and block devices, on the context's ring.
//!
//! Invariants:
//! * A file opened for writing is locked against every other writer as long as the device lives,
//!   also while the file is reopened (open-file-description lock; `O_EXCL` on block devices). A
//!   file opened for reading is locked against every writer, QEMU included (`locks`).
//! * A file is not opened for writing if a loop device of the host has it attached and may write to
//!   it (`loops`): loop devices take no locks.
//! * After a flush (or a FUA write, with EIO) has failed, no flush and no FUA write of this device
//!   succeeds any more: the kernel may have dropped the pages that it could not write, so a later
//!   success would be a lie. Only a reopen of the file ends this state (`reopen`).
//! * A file that another program cut below the size of its device fails all I/O once a check sees
//!   the cut: a write beyond the end would make the file longer again, with a hole in place of the
//!   lost data. An I/O that ended after a write of any context is acknowledged only after a check
//!   that the file had its length after that write (`length`). So no read returns zeroes of such a
//!   hole, and no allocation query reports one. Without writes the length is not checked: reads
//!   beyond the end are short, and so show the cut.
//! * One cut stays unseen: it happens between a check and a write, or a growth, that restores the
//!   length. Therefore a write of the device's last block begins only while the file has its
//!   length. Another case stays unseen: the page cache serves a read while the file is being cut,
//!   after the kernel has zeroed the rest of the last page. On 9p and CIFS, where a check would
//!   make the thread wait for a server, only short reads show a cut.
//! * Direct I/O is used only where every logical block can be addressed with it; memory that
//!   is not aligned goes through a bounce buffer.

#![allow(unsafe_code, reason = "system calls that the standard library lacks")]

mod access;
mod backing;
mod claim;
mod extents;
mod holes;
mod in_use;
mod length;
mod locks;
mod loops;
mod offline;
mod open;
mod opened;
mod options;
mod queue;
mod reopen;
mod shared;
mod system;
#[cfg(test)]
mod testing;
mod transfer;

pub use backing::Backing;
pub use offline::OfflineFile;
pub(crate) use opened::Opened;
pub use options::{Direct, FileOptions};
pub use queue::FileQueue;

use opened::Discard;
use shared::FileShared;

use drystone_core::primitive::Ordering::*;
use drystone_core::{ChannelId, Env, Error, Extent, Limits, Result, SECTOR_SIZE};
use drystone_queue::{Driver, HwQueues};
use std::path::Path;
use std::sync::Arc;

/// Tags of a hardware queue.
const DEPTH: u32 = 256;
/// Hardware queues: as many contexts have one of their own.
const QUEUES: u32 = 64;

/// A file or block device.
pub struct File {
    shared: Arc<FileShared>,
}

impl File {
    /// Open (and create, if the options say so) the file at `options.path`.
    ///
    /// # Errors
    /// A sentence with the path: not there, not permitted, held by another process (with its number
    /// where it can be found), too small, not a whole number of blocks, no direct I/O, no space.
    pub fn open(options: &FileOptions) -> Result<Self> {
        Ok(File { shared: Arc::new(open::open(options)?) })
    }

    /// A file that is open already and that the contexts' rings know: for a simulator. It can free
    /// and zero ranges. `path` is only its name.
    ///
    /// # Errors
    /// It is empty, or not a whole number of sectors.
    pub fn over(backing: Box<dyn Backing>, path: &Path, physical_block_size: u32) -> Result<Self> {
        let size = backing.size().map_err(|e| Error::os(path.display(), e))?;
        system::check_size(path, size, SECTOR_SIZE as u32)?;
        let opened = Opened {
            discard: Some(Discard {
                granularity: physical_block_size.max(4096),
                is_of_device: false,
            }),
            ..Opened::over(backing, size, SECTOR_SIZE as u32)
        };
        Ok(File { shared: Arc::new(FileShared::new(path, None, physical_block_size, opened)) })
    }

    /// True when I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.opened().alignment.is_direct()
    }

    /// The size as it was when last looked at, in bytes.
    fn size(&self) -> u64 {
        self.shared.size()
    }

    /// Make the file `bytes` long, or take over that it has grown.
    fn grow(&self, value: &str) -> Result<()> {
        let s = &self.shared;
        let path = s.path.display().to_string();
        let wanted: u64 = value
            .trim()
            .parse()
            .map_err(|_| Error::invalid(format!("size: '{value}' is not a number of bytes")))?;
        let now = self.size();
        let block = s.block_size;
        if wanted < now || !wanted.is_multiple_of(block.into()) {
            return Err(Error::invalid(format!(
                "size: {wanted} is not permitted: {path} has {now} bytes and can only grow, by \
                 whole blocks of {block} bytes"
            )));
        }
        let _turn = s.turn()?;
        let opened = s.opened();
        if opened.is_cut_short() {
            return Err(Error::invalid(format!(
                "size: {path} was cut short below the device, which does nothing any more: put \
                 back what it held, and open it again"
            )));
        }
        let actual = opened.backing.size().map_err(|e| Error::os(&path, e))?;
        if actual < wanted {
            opened.backing.extend(wanted).map_err(|e| {
                system::too_long(format!("{path} cannot grow to {wanted} bytes"), e)
            })?;
        }
        opened.length.note_growth(wanted);
        s.note_growth(wanted);
        Ok(())
    }
}

impl Driver for File {
    type Queue = FileQueue;

    fn kind(&self) -> &'static str {
        "file"
    }

    fn size_bytes(&self) -> u64 {
        self.size()
    }

    fn limits(&self) -> Limits {
        let s = &self.shared;
        let punch = s.opened().punch_hole.load(Relaxed);
        let no_limit = i64::MAX as u64 & !4095;
        Limits {
            logical_block_size: s.block_size,
            physical_block_size: s.physical_block_size,
            max_segments: 512,
            max_discard_bytes: if s.discard.is_some() { no_limit } else { 0 },
            discard_granularity: s.discard.map_or(4096, |discard| discard.granularity),
            max_write_zeroes_bytes: no_limit,
            fast_zero: punch,
            write_cache: true,
            fua: true,
            read_only: s.read_only,
            ..Limits::default()
        }
    }

    fn hw_queues(&self) -> HwQueues {
        HwQueues {
            default: QUEUES,
            poll: u32::from(self.shared.opened().poll_queues),
            depth: DEPTH,
        }
    }

    fn fills_pipes(&self) -> bool {
        self.shared.splices.load(Relaxed)
    }

    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<FileQueue> {
        Ok(FileQueue::new(self.shared.clone(), env, channel, slots))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        extents::extents(&self.shared, offset, length, max)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let s = &self.shared;
        let opened = s.opened();
        Some(match name {
            "path" => s.path.display().to_string(),
            "detect_holes" => u8::from(opened.holes.is_detected()).to_string(),
            "notice" => format!("{} {}", s.path.display(), opened.notice.as_ref()?),
            "direct" => u8::from(opened.alignment.is_direct()).to_string(),
            "cut_short" => u8::from(opened.length.was_cut_short()).to_string(),
            "path_replaced" => u8::from(!opened.backing.is_at(&s.path)).to_string(),
            "flush_failed" => u8::from(opened.flush_failed.load(Relaxed)).to_string(),
            // The limit of file size, if it would fail a write to the end of the device.
            "file_limit" if !s.read_only => {
                opened.claim.as_ref()?.limit_below(self.size())?.to_string()
            }
            "reopening" => u8::from(s.is_exchanging()).to_string(),
            _ => return None,
        })
    }

    fn set_attribute(&self, name: &str, value: &str) -> Option<Result<()>> {
        match name {
            "size_bytes" => Some(self.grow(value)),
            // Write-only, as `rescan` in sysfs.
            "reopen" => Some(self.reopen(value == "replaced")),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
