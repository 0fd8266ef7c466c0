//! A device of an array, as the manager knows it.

use super::io::Io;
use crate::engine::{IN_SYNC, Member, Patches};
use crate::ids::{MemberNumber, Role};
use crate::metadata::MetadataError;
use crate::metadata::bad_blocks::{self, BadBlocks};
use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::places::Places;
use crate::metadata::superblock::{Features, Superblock};
use drystone_core::ChannelId;
use drystone_core::primitive::{AtomicU64, Ordering::*};
use drystone_core::{Device, Error, Result, SECTOR_SIZE};
use std::sync::Arc;

/// The state of a device in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// Holds a role; all of it can be read.
    InSync(Role),
    /// Holds a role, and is being rebuilt.
    Rebuilding(Role),
    /// Will replace the role's member, and is being rebuilt.
    Replacement(Role),
    /// Waits for a member to fail.
    Spare,
    /// Failed; it had this role.
    Faulty(Option<Role>),
}

impl DiskState {
    /// Its data is being rebuilt.
    pub(crate) fn is_rebuilt(self) -> bool {
        matches!(self, DiskState::Rebuilding(_) | DiskState::Replacement(_))
    }

    /// The role that it holds, also as a replacement.
    pub fn role(self) -> Option<Role> {
        match self {
            DiskState::InSync(role)
            | DiskState::Rebuilding(role)
            | DiskState::Replacement(role) => Some(role),
            DiskState::Spare | DiskState::Faulty(_) => None,
        }
    }
}

/// Writes that a log's area needs before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogTodo {
    Nothing,
    /// Write an empty header.
    Header,
    /// Write an empty header, and zeroes behind it: the area may hold headers from an earlier use.
    All,
}

/// See the module's text.
pub(crate) struct Disk {
    pub(crate) name: Arc<str>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) index: ChannelId,
    /// Its superblock as written last; the fields that all members share may be newer in the
    /// records.
    pub(crate) superblock: Superblock,
    /// The areas of the device beside its data.
    pub(crate) places: Places,
    pub(crate) state: DiskState,
    /// Member sectors below this are in sync.
    pub(crate) in_sync_below: Arc<AtomicU64>,
    pub(crate) bad_blocks: Arc<BadBlocks>,
    /// The bad block log on the device is older than `bad_blocks`.
    pub(crate) bad_blocks_changed: bool,
    pub(crate) write_error: bool,
    /// The device had no room for a write, which waits.
    pub(crate) lacks_room: bool,
    /// The device reported that it has no room since that write was last sent again.
    pub(crate) was_full: bool,
    /// Sectors that could not be read and were rewritten.
    pub(crate) corrected: u32,
    /// It was a member before, and lacks only the chunks that the bitmap marks.
    pub(crate) by_bitmap: bool,
    /// It must be given the whole bitmap.
    pub(crate) wants_bitmap: bool,
    /// Writes that its partial parity log needs.
    pub(crate) log_todo: LogTodo,
    /// Blocks that reads return in place of its own; only in a read-only array.
    pub(crate) patches: Option<Arc<Patches>>,
}

impl Disk {
    /// Open a device with this superblock, in this state and with this much of it in sync. Reads
    /// its bad block list, and waits for that.
    ///
    /// # Errors
    /// Some of its areas lie where they must not, or its bad block list cannot be read. The message
    /// is one sentence.
    pub(super) fn open(
        io: &mut Io,
        device: &Arc<dyn Device>,
        superblock: &Superblock,
        (state, in_sync_below): (DiskState, u64),
        bitmap: Option<&BitmapHeader>,
    ) -> Result<Self> {
        let info = device.info();
        let wrong = |error: MetadataError| Error::invalid(format!("{}: {error}", info.name));
        let block_sectors = u64::from(info.limits.logical_block_size) / SECTOR_SIZE;
        let device_sectors = info.size_bytes / SECTOR_SIZE;
        let places = Places::of(superblock, device_sectors, bitmap)
            .and_then(|places| places.in_blocks(superblock, block_sectors))
            .map_err(wrong)?;
        let mut disk = Disk {
            name: info.name.clone().into(),
            places,
            device: device.clone(),
            index: io.open(device)?,
            superblock: superblock.clone(),
            state,
            in_sync_below: Arc::new(AtomicU64::new(in_sync_below)),
            bad_blocks: Arc::default(),
            bad_blocks_changed: false,
            write_error: false,
            lacks_room: false,
            was_full: false,
            corrected: superblock.cnt_corrected_read,
            by_bitmap: false,
            wants_bitmap: false,
            log_todo: LogTodo::Header,
            patches: None,
        };
        let read = |sector, bytes| io.read(disk.index, sector, bytes).map(|block| block.to_vec());
        let list =
            bad_blocks::read(superblock, &disk.places, device_sectors, read).map_err(wrong)?;
        disk.bad_blocks = Arc::new(list);
        Ok(disk)
    }

    pub(crate) fn number(&self) -> MemberNumber {
        MemberNumber(self.superblock.dev_number)
    }

    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self.state, DiskState::Faulty(_))
    }

    /// The device as contexts know it.
    pub(crate) fn member(&self) -> Member {
        Member {
            device: self.device.clone(),
            number: self.number(),
            data_offset: self.superblock.data_offset,
            in_sync_below: self.in_sync_below.clone(),
            bad_blocks: self.bad_blocks.clone(),
            write_error: self.write_error,
            log: self.log_area(),
            patches: self.patches.clone(),
        }
    }

    /// Update the fields of the superblock that are the device's own.
    pub(crate) fn update_superblock(&mut self) {
        let recovered = self.in_sync_below.load(Acquire);
        let rebuilds = self.state.is_rebuilt();
        let map = &mut self.superblock.feature_map;
        map.set(Features::RECOVERY_OFFSET, rebuilds);
        map.set(Features::RECOVERY_BITMAP, rebuilds && self.by_bitmap);
        map.set(Features::REPLACEMENT, matches!(self.state, DiskState::Replacement(_)));
        map.set(Features::BAD_BLOCKS, !self.bad_blocks.is_empty());
        self.superblock.bblog_shift = self.bad_blocks.shift();
        self.superblock.recovery_offset = if rebuilds { recovered } else { 0 };
        self.superblock.cnt_corrected_read = self.corrected;
    }

    pub(crate) fn set_in_sync(&mut self) {
        self.in_sync_below.store(IN_SYNC, Release);
    }

    /// Where the log of bad blocks is on the device, if there is one.
    pub(crate) fn bad_block_log(&self) -> Option<u64> {
        self.places.bad_blocks().map(|area| area.start)
    }

    /// The role that it holds as a member, not as a replacement.
    pub(crate) fn member_role(&self) -> Option<Role> {
        match self.state {
            DiskState::InSync(role) | DiskState::Rebuilding(role) => Some(role),
            _ => None,
        }
    }

    /// Where the bitmap is on the device, if there is one.
    pub(crate) fn bitmap_sector(&self) -> Option<u64> {
        self.places.bitmap().ok()?.map(|area| area.start)
    }

    /// Bytes of its logical block.
    pub(crate) fn block_bytes(&self) -> u64 {
        u64::from(self.device.info().limits.logical_block_size).max(SECTOR_SIZE)
    }

    /// `bytes`, padded with zeroes to whole blocks of the device.
    pub(crate) fn whole_blocks(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(self.block_bytes() as usize), 0);
        bytes
    }
}
