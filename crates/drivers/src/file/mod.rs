//! Files and block devices, on the context's ring.
//!
//! Invariants:
//! * A file opened for writing is locked against every other writer for as long as the device
//!   lives (open-file-description lock; `O_EXCL` on block devices). One opened for reading is locked
//!   against every writer, QEMU included (`locks`).
//! * After a flush (or a FUA write, with EIO) failed, no flush and no FUA write of this device succeeds any more: the
//!   kernel may have dropped the pages it could not write, so a later success would be a lie.
//!   Only opening the device again ends that.
//! * A file that became shorter than its device below us fails all I/O from when that is seen, for a write beyond
//!   its end would make it longer again, with a hole for what it held. Nothing is acknowledged that ended after a
//!   write of any context before it was seen that the file had its length after that write (`length`): no read
//!   tells zeroes of such a hole, and no allocation query calls it one. Where nothing writes, the length is not
//!   looked at, and reads behind the end notice it, because they end early.
//! * Not noticed is what is cut off between the look and the write, or growth, that restores the length: that of the
//!   device's last block is begun only while the file has it. Nor does a read that the page cache serves while the
//!   file is being cut notice that the rest of the last page was zeroed. On 9p and CIFS, which would have the thread
//!   wait for a server, only reads that end early notice a cut.
//! * Direct I/O is used only where every logical block can be addressed with it; memory that
//!   is not aligned goes through a bounce buffer.

mod access;
mod backing;
mod holes;
mod length;
mod locks;
mod offline;
mod open;
mod queue;

pub use backing::Backing;
use holes::Holes;
use length::Length;
pub use offline::OfflineFile;
pub use open::{Direct, FileOptions};
pub use queue::FileQueue;

use drystone_core::blocking::Aside;
use drystone_core::buf::Segment;
use drystone_core::primitive::{AtomicBool, Ordering::*};
use drystone_core::{Env, Error, Extent, Limits, Result, SECTOR_SIZE};
use drystone_queue::{Driver, HwQueues};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tags of a hardware queue.
const DEPTH: u32 = 256;
/// Hardware queues: as many contexts have one of their own.
const QUEUES: u32 = 64;

/// A file or block device.
pub struct File {
    shared: Arc<FileShared>,
}

/// What the queues of a file share.
pub(crate) struct FileShared {
    pub(crate) path: PathBuf,
    pub(crate) backing: Aside<Box<dyn Backing>>,
    pub(crate) read_only: bool,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    /// I/O bypasses the page cache.
    pub(crate) direct: bool,
    /// Alignment of memory that direct I/O needs.
    pub(crate) memory_alignment: usize,
    pub(crate) physical_block_size: u32,
    /// What users may not expect of it, one sentence without its subject.
    pub(crate) notice: Option<String>,
    /// The file lies in memory (tmpfs, ramfs).
    pub(crate) memory_fs: bool,
    /// The device below polls, and I/O goes to it directly.
    pub(crate) poll_queues: bool,
    pub(crate) length: Arc<Length>,
    /// Holes can be punched.
    pub(crate) punch_hole: AtomicBool,
    /// How ranges are discarded, if at all.
    pub(crate) discard: Option<Discard>,
    /// Ranges can be zeroed without being freed.
    pub(crate) zero_range: AtomicBool,
    /// Which ranges hold data.
    pub(crate) holes: Holes,
    /// A flush failed: see the invariants.
    pub(crate) flush_failed: AtomicBool,
}

/// How ranges of a file are discarded. Found out when it is opened; where the system cannot after all, as when
/// a device below was exchanged, the advice is not taken: clients were told that they may give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    /// In whole units of so many bytes, a power of two.
    pub(crate) granularity: u32,
    /// By the block device itself; else holes are punched.
    pub(crate) is_of_device: bool,
}

impl FileShared {
    /// What a ring knows the file by.
    pub(crate) fn fd(&self) -> RawFd {
        self.backing.descriptor()
    }

    /// Whether I/O to or from that memory needs no bounce buffer. Direct I/O of some kernels takes only segments of
    /// whole blocks (Linux `bdev_iter_is_aligned`).
    fn takes(&self, segment: Segment) -> bool {
        !self.direct
            || (segment.ptr as usize).is_multiple_of(self.memory_alignment)
                && segment.len.is_multiple_of(self.block_size as usize)
    }

    /// Whether it is shorter than the device, now or before. Never waits.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.length.look(&**self.backing)
    }
}

impl File {
    /// Open (and create, if the options say so) the file at `options.path`.
    ///
    /// # Errors
    /// A sentence with the path: not there, not permitted, held by another process (with its
    /// number where it can be found), too small, not a whole number of blocks, no direct I/O, no space.
    pub fn open(options: &FileOptions) -> Result<Self> {
        Ok(File { shared: Arc::new(open::open(options)?) })
    }

    /// A file that is open already, in whatever way the contexts' rings know it: for a simulator. It
    /// can free and zero ranges. `path` is only its name.
    ///
    /// # Errors
    /// It is empty, or not a whole number of sectors.
    pub fn over(backing: Box<dyn Backing>, path: &Path, physical_block_size: u32) -> Result<Self> {
        let size = backing.size().map_err(|e| Error::os(path.display(), e))?;
        open::check_size(path, size, SECTOR_SIZE as u32)?;
        Ok(File {
            shared: Arc::new(FileShared {
                path: path.to_owned(),
                backing: Aside::new(backing),
                read_only: false,
                block_size: SECTOR_SIZE as u32,
                direct: false,
                memory_alignment: 1,
                physical_block_size,
                notice: None,
                memory_fs: false,
                poll_queues: false,
                length: Length::new(size),
                punch_hole: AtomicBool::new(true),
                discard: Some(Discard {
                    granularity: physical_block_size.max(4096),
                    is_of_device: false,
                }),
                zero_range: AtomicBool::new(true),
                holes: Holes::new(true),
                flush_failed: AtomicBool::new(false),
            }),
        })
    }

    /// True when I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.direct
    }

    /// The size as it was when last looked at, in bytes.
    fn size(&self) -> u64 {
        self.shared.length.bytes()
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
        if s.is_cut_short() {
            return Err(Error::invalid(format!(
                "size: {path} was cut short below the device, which does nothing any more: put back what it \
                 held, and open it anew"
            )));
        }
        let actual = s.backing.size().map_err(|e| Error::os(&path, e))?;
        if actual < wanted {
            s.backing
                .extend(wanted)
                .map_err(|e| open::too_long(format!("{path} cannot grow to {wanted} bytes"), e))?;
        }
        s.length.has_grown(wanted);
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
        let punch = s.punch_hole.load(Relaxed);
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
        HwQueues { default: QUEUES, poll: u32::from(self.shared.poll_queues), depth: DEPTH }
    }

    fn open_queue(&self, env: &mut Env, channel: u32, slots: u32) -> Result<FileQueue> {
        Ok(FileQueue::new(self.shared.clone(), env, channel, slots))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        holes::extents(&self.shared, offset, length, max)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let s = &self.shared;
        Some(match name {
            "path" => s.path.display().to_string(),
            "detect_holes" => u8::from(s.holes.is_detected()).to_string(),
            "notice" => format!("{} {}", s.path.display(), s.notice.as_ref()?),
            "direct" => u8::from(self.is_direct()).to_string(),
            "cut_short" => u8::from(s.length.was_cut_short()).to_string(),
            "path_replaced" => u8::from(!s.backing.is_at(&s.path)).to_string(),
            "flush_failed" => u8::from(s.flush_failed.load(Relaxed)).to_string(),
            _ => return None,
        })
    }

    fn set_attribute(&self, name: &str, value: &str) -> Option<Result<()>> {
        (name == "size_bytes").then(|| self.grow(value))
    }
}

#[cfg(test)]
mod tests;
