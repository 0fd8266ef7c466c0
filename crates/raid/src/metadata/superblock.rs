//! The superblock of version 1.x: 256 bytes, then two bytes for each device that the array has
//! known.
//!
//! Reading has two steps. [`Superblock::decode`] accepts anything with the magic number, so that it
//! can be shown; [`Superblock::parse`] accepts only a superblock that Linux would accept
//! (`drivers/md/md.c`, `super_1_load`).

use bitflags::bitflags;

use super::raw::RawSuperblock;
use super::{MetadataError, SECTOR_BYTES, Uuid, check_count, invalid, put, u16_at, u32_at};
use crate::layout::{Layout, Level};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// First four bytes of a superblock.
pub const MAGIC: u32 = 0xA92B_4EFC;
/// Bytes before the table of roles.
pub const FIXED_BYTES: usize = 256;
/// The most bytes of a superblock; a reader has to read as many.
pub const SUPERBLOCK_BYTES_MAX: usize = 4096;
/// The most entries of the table of roles, which ends with the 4096 bytes.
pub const ROLES_MAX: usize = (SUPERBLOCK_BYTES_MAX - FIXED_BYTES) / 2;
/// Sectors of the smallest device that md accepts.
pub const DEVICE_SECTORS_MIN: u64 = 24;
/// `resync_offset` of an array whose parity is right everywhere.
pub const CLEAN: u64 = u64::MAX;
/// A Synology NAS sets this in a member's number; no array has so many members.
const ROLE_ERROR_FLAG: u16 = 0x8000;
const CHECKSUM_AT: usize = offset_of!(RawSuperblock, sb_csum);
const MAX_DEV_AT: usize = offset_of!(RawSuperblock, max_dev);
const _: () = assert!(FIXED_BYTES == size_of::<RawSuperblock>());

bitflags! {
    /// The bits of a superblock's `feature_map`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u32 {
        /// `bitmap_offset` is valid.
        const BITMAP_OFFSET = 1;
        /// This member is being rebuilt; `recovery_offset` is valid.
        const RECOVERY_OFFSET = 2;
        /// The array is being reshaped.
        const RESHAPE_ACTIVE = 4;
        /// The bad block log is not empty.
        const BAD_BLOCKS = 8;
        /// This member will replace the one with the same role.
        const REPLACEMENT = 0x10;
        /// The reshape runs downward.
        const RESHAPE_BACKWARDS = 0x20;
        /// `new_offset` is valid.
        const NEW_OFFSET = 0x40;
        /// The rebuild follows the bitmap.
        const RECOVERY_BITMAP = 0x80;
        /// Several machines share the array.
        const CLUSTERED = 0x100;
        /// The array has a journal device.
        const JOURNAL = 0x200;
        /// Each member has a partial parity log.
        const PPL = 0x400;
        /// Each member has a ring of partial parity logs.
        const MULTIPLE_PPLS = 0x800;
        /// The layout of a RAID-0 is recorded.
        const RAID0_LAYOUT = 0x1000;
    }
}

impl Features {
    /// The features of the array, not of one device. Linux rewrites them with each update
    /// (`super_1_sync`); a device that differs has missed an update.
    pub(crate) const OF_ARRAY: Self = Self::RESHAPE_ACTIVE
        .union(Self::RESHAPE_BACKWARDS)
        .union(Self::NEW_OFFSET)
        .union(Self::CLUSTERED)
        .union(Self::JOURNAL)
        .union(Self::RAID0_LAYOUT);
}

/// The place of the superblock. It is not stored, but known from where the superblock was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Minor {
    /// Near the end of the device.
    V1_0,
    /// At its start.
    V1_1,
    /// 4 KiB from its start.
    V1_2,
}

impl Minor {
    /// All places, in the order in which mdadm tries them.
    pub const ALL: [Minor; 3] = [Minor::V1_0, Minor::V1_1, Minor::V1_2];

    /// The sector of the superblock on a device of `device_sectors` sectors; `None` if it is too
    /// small.
    pub fn sector(self, device_sectors: u64) -> Option<u64> {
        if device_sectors < DEVICE_SECTORS_MIN {
            return None;
        }
        Some(match self {
            Minor::V1_0 => (device_sectors - 16) & !7,
            Minor::V1_1 => 0,
            Minor::V1_2 => 8,
        })
    }

    /// `1.0`, `1.1` or `1.2`.
    pub fn name(self) -> &'static str {
        match self {
            Minor::V1_0 => "1.0",
            Minor::V1_1 => "1.1",
            Minor::V1_2 => "1.2",
        }
    }
}

/// The sectors where a superblock may lie on a device of `device_sectors` sectors, including those
/// of version 0.90.
pub fn places(device_sectors: u64) -> impl Iterator<Item = u64> {
    let old = (device_sectors & !127).checked_sub(128);
    Minor::ALL.into_iter().filter_map(move |minor| minor.sector(device_sectors)).chain(old)
}

/// The bytes begin like a superblock of any version and byte order.
pub fn is_magic(bytes: &[u8]) -> bool {
    [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()].iter().any(|magic| bytes.starts_with(magic))
}

/// The role of a device, or its state, in the table of roles (`dev_roles`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DevRole {
    /// A member, with its role.
    Active(u16),
    /// A spare.
    Spare,
    /// It has failed.
    Faulty,
    /// The journal.
    Journal,
}

impl DevRole {
    /// From its number on disk.
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            0..ROLE_ERROR_FLAG => Some(DevRole::Active(number)),
            ROLE_ERROR_FLAG..0xFF00 => Some(DevRole::Active(number - ROLE_ERROR_FLAG)),
            0xFFFD => Some(DevRole::Journal),
            0xFFFE => Some(DevRole::Faulty),
            0xFFFF => Some(DevRole::Spare),
            _ => None,
        }
    }

    /// Its number on disk.
    pub fn number(self) -> u16 {
        match self {
            DevRole::Active(number) => number,
            DevRole::Journal => 0xFFFD,
            DevRole::Faulty => 0xFFFE,
            DevRole::Spare => 0xFFFF,
        }
    }
}

/// The place of a member's partial parity log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PplArea {
    /// Sectors from the superblock.
    pub offset: i16,
    /// Sectors.
    pub sectors: u16,
}

/// A superblock. Fields are named as in Linux. Space is counted in sectors. Fields of a reshape are
/// valid only during one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The features, which also say which other fields are valid.
    pub feature_map: Features,
    /// Of the array.
    pub set_uuid: Uuid,
    /// Of the array: text, then zeroes.
    pub set_name: [u8; 32],
    /// When the array was made: seconds since 1970, above bit 40 microseconds.
    pub ctime: u64,
    /// md's number of the level.
    pub level: i32,
    /// md's number of the layout.
    pub layout: u32,
    /// Sectors used on each member.
    pub size: u64,
    /// Sectors of a chunk.
    pub chunk_sectors: u32,
    /// Members of the complete array, parity included.
    pub raid_disks: u32,
    /// The place of the bitmap or of the PPL, depending on the feature map.
    pub bitmap_or_ppl: [u8; 4],
    /// Of a reshape.
    pub new_level: i32,
    /// Of a reshape: the next array sector.
    pub reshape_position: u64,
    /// Of a reshape: members that are added, or removed if negative.
    pub delta_disks: i32,
    /// Of a reshape.
    pub new_layout: u32,
    /// Of a reshape: sectors.
    pub new_chunk: u32,
    /// Of a reshape: the change of `data_offset`.
    pub new_offset: i32,
    /// Where data starts on the device.
    pub data_offset: u64,
    /// Sectors for data on this device, used or not.
    pub data_size: u64,
    /// The sector of the device at which this superblock lies.
    pub super_offset: u64,
    /// Member sectors below this are rebuilt; for a journal its tail.
    pub recovery_offset: u64,
    /// Number of this device in the table of roles.
    pub dev_number: u32,
    /// Read errors that were corrected, in sectors.
    pub cnt_corrected_read: u32,
    /// Of this device.
    pub device_uuid: Uuid,
    /// 1 write-mostly, 2 failfast.
    pub devflags: u8,
    /// Log2 of the bad block log's unit in sectors.
    pub bblog_shift: u8,
    /// Sectors of the bad block log.
    pub bblog_size: u16,
    /// The offset of the bad block log from the superblock; 0 if there is none.
    pub bblog_offset: i32,
    /// Last update, as `ctime`.
    pub utime: u64,
    /// Updates so far.
    pub events: u64,
    /// [`CLEAN`], or the member sector below which parity is right.
    pub resync_offset: u64,
    /// The stored checksum; [`Superblock::to_bytes`] recomputes it.
    pub checksum: u32,
    /// Bytes of the array's logical block; 0 if not recorded. Linux 6.19 stores it, and older
    /// kernels refuse a superblock with it, so a stored value is kept.
    pub logical_block_size: u32,
    /// The role of each device that the array has known, by `dev_number`.
    pub roles: Vec<u16>,
}

impl Superblock {
    /// Decodes `bytes`, if they are a superblock at all; accepts a wrong checksum.
    ///
    /// # Errors
    /// The magic number or the major version is wrong, or the bytes are too few for the devices.
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let magic = u32_at(bytes, 0);
        if bytes.len() < FIXED_BYTES || magic != MAGIC {
            return Err(MetadataError::Absent(format!(
                "there is no superblock: the magic number is {magic:08x}, expected {MAGIC:08x}"
            )));
        }
        let (raw, table) = fixed_part(bytes);
        let roles = number_of_roles(&raw, table.len() / 2)?;
        Ok(Superblock {
            feature_map: Features::from_bits_retain(raw.feature_map.get()),
            set_uuid: Uuid(raw.set_uuid),
            set_name: raw.set_name,
            ctime: raw.ctime.get(),
            level: raw.level.get(),
            layout: raw.layout.get(),
            size: raw.size.get(),
            chunk_sectors: raw.chunksize.get(),
            raid_disks: raw.raid_disks.get(),
            bitmap_or_ppl: raw.bitmap_or_ppl,
            new_level: raw.new_level.get(),
            reshape_position: raw.reshape_position.get(),
            delta_disks: raw.delta_disks.get(),
            new_layout: raw.new_layout.get(),
            new_chunk: raw.new_chunk.get(),
            new_offset: raw.new_offset.get(),
            data_offset: raw.data_offset.get(),
            data_size: raw.data_size.get(),
            super_offset: raw.super_offset.get(),
            recovery_offset: raw.recovery_offset.get(),
            dev_number: raw.dev_number.get(),
            cnt_corrected_read: raw.cnt_corrected_read.get(),
            device_uuid: Uuid(raw.device_uuid),
            devflags: raw.devflags,
            bblog_shift: raw.bblog_shift,
            bblog_size: raw.bblog_size.get(),
            bblog_offset: raw.bblog_offset.get(),
            utime: raw.utime.get(),
            events: raw.events.get(),
            resync_offset: raw.resync_offset.get(),
            checksum: raw.sb_csum.get(),
            logical_block_size: raw.logical_block_size.get(),
            roles: (0..roles).map(|index| u16_at(table, 2 * index)).collect(),
        })
    }

    /// Parses the superblock that was read at `at_sector` of a device of `device_sectors` sectors,
    /// and checks it as Linux does. `bytes` are up to [`SUPERBLOCK_BYTES_MAX`].
    ///
    /// # Errors
    /// The first field that Linux would refuse, with a value that would be right.
    pub fn parse(bytes: &[u8], at_sector: u64, device_sectors: u64) -> Result<Self, MetadataError> {
        let found = Self::decode(bytes)?;
        let expected = checksum(bytes);
        if found.super_offset != at_sector {
            return Err(invalid(format!(
                "super_offset is {}, but the superblock was found at sector {at_sector}",
                found.super_offset
            )));
        }
        if found.checksum != expected {
            return Err(invalid(format!(
                "superblock checksum is {:08x}, expected {expected:08x}",
                found.checksum
            )));
        }
        found.check_features()?;
        if found.dev_number as usize >= ROLES_MAX {
            // The table of roles cannot have an entry for it.
            return Err(invalid(format!(
                "dev_number is {}, expected below {ROLES_MAX}",
                found.dev_number
            )));
        }
        check_count("the number of updates (events)", found.events)?;
        check_padding(&fixed_part(bytes).0)?;
        found.check_places(device_sectors)?;
        Ok(found)
    }

    fn check_features(&self) -> Result<(), MetadataError> {
        let map = self.feature_map;
        let unknown = map.bits() & !Features::all().bits();
        if unknown != 0 {
            return Err(MetadataError::Unknown(format!(
                "feature_map {:#x} has bits that are not known: {unknown:#x} is none of {:#x}",
                map.bits(),
                Features::all().bits()
            )));
        }
        let ppl = Features::PPL | Features::MULTIPLE_PPLS;
        let excluded = Features::BITMAP_OFFSET | Features::JOURNAL;
        if map.contains(ppl) || map.intersects(ppl) && map.intersects(excluded) {
            return Err(invalid(format!(
                "feature_map {:#x} has a PPL beside a bitmap, a journal or another PPL; there can \
                 be one of them",
                map.bits()
            )));
        }
        Ok(())
    }

    fn check_places(&self, device_sectors: u64) -> Result<(), MetadataError> {
        let (offset, size) = (self.data_offset, self.data_size);
        if size < 10 {
            return Err(invalid(format!("data_size is {size} sectors, expected at least 10")));
        }
        let super_end = self.super_offset.saturating_add(8);
        let at_end =
            Some(self.super_offset) == Minor::V1_0.sector(device_sectors) && self.super_offset > 8;
        let moved = self.feature_map.contains(Features::NEW_OFFSET);
        let new = offset.checked_add_signed(if moved { self.new_offset.into() } else { 0 });
        if at_end {
            if size > self.super_offset {
                return Err(invalid(format!(
                    "data_size is {size} sectors, but the superblock is at sector {}",
                    self.super_offset
                )));
            }
        } else if offset < super_end || new.is_none_or(|new| new < super_end) {
            return Err(invalid(format!(
                "data_offset is {offset}, expected at least {super_end}: behind the superblock"
            )));
        }
        if offset.checked_add(size).is_none_or(|end| end > device_sectors) {
            return Err(invalid(format!(
                "data_offset {offset} and data_size {size} need a device of {} sectors, this one \
                 has {device_sectors}",
                offset.saturating_add(size)
            )));
        }
        Ok(())
    }

    /// The superblock's bytes in whole sectors, with the right checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = FIXED_BYTES + 2 * self.roles.len();
        let mut out = vec![0; len.next_multiple_of(SECTOR_BYTES)];
        put(&mut out, 0, self.raw().as_bytes());
        for (index, role) in self.roles.iter().enumerate() {
            put(&mut out, FIXED_BYTES + 2 * index, &role.to_le_bytes());
        }
        let sum = checksum(&out);
        put(&mut out, CHECKSUM_AT, &sum.to_le_bytes());
        out
    }

    /// The part before the table of roles, without the checksum.
    fn raw(&self) -> RawSuperblock {
        RawSuperblock {
            magic: MAGIC.into(),
            major_version: 1.into(),
            feature_map: self.feature_map.bits().into(),
            set_uuid: self.set_uuid.0,
            set_name: self.set_name,
            ctime: self.ctime.into(),
            level: self.level.into(),
            layout: self.layout.into(),
            size: self.size.into(),
            chunksize: self.chunk_sectors.into(),
            raid_disks: self.raid_disks.into(),
            bitmap_or_ppl: self.bitmap_or_ppl,
            new_level: self.new_level.into(),
            reshape_position: self.reshape_position.into(),
            delta_disks: self.delta_disks.into(),
            new_layout: self.new_layout.into(),
            new_chunk: self.new_chunk.into(),
            new_offset: self.new_offset.into(),
            data_offset: self.data_offset.into(),
            data_size: self.data_size.into(),
            super_offset: self.super_offset.into(),
            recovery_offset: self.recovery_offset.into(),
            dev_number: self.dev_number.into(),
            cnt_corrected_read: self.cnt_corrected_read.into(),
            device_uuid: self.device_uuid.0,
            devflags: self.devflags,
            bblog_shift: self.bblog_shift,
            bblog_size: self.bblog_size.into(),
            bblog_offset: self.bblog_offset.into(),
            utime: self.utime.into(),
            events: self.events.into(),
            resync_offset: self.resync_offset.into(),
            max_dev: (self.roles.len() as u32).into(),
            logical_block_size: self.logical_block_size.into(),
            ..RawSuperblock::new_zeroed()
        }
    }

    /// The array's name, up to the first zero.
    pub fn name(&self) -> String {
        let text = self.set_name.split(|byte| *byte == 0).next().unwrap_or(&[]);
        String::from_utf8_lossy(text).into_owned()
    }

    /// Name and UUID, or the UUID alone, in one line.
    pub fn called(&self) -> String {
        match self.name() {
            name if name.is_empty() => self.set_uuid.to_string(),
            name => format!("{} {}", name.escape_debug(), self.set_uuid),
        }
    }

    /// The minor version, known from where this superblock lies.
    pub fn minor(&self) -> Minor {
        match self.super_offset {
            0 => Minor::V1_1,
            8 => Minor::V1_2,
            _ => Minor::V1_0,
        }
    }

    /// Sectors from the superblock to the bitmap, if there is one.
    pub fn bitmap_offset(&self) -> Option<i32> {
        let there = self.feature_map.contains(Features::BITMAP_OFFSET);
        there.then(|| i32::from_le_bytes(self.bitmap_or_ppl))
    }

    /// The sectors of it that are written.
    pub fn sectors(&self) -> u64 {
        (FIXED_BYTES + 2 * self.roles.len()).div_ceil(SECTOR_BYTES) as u64
    }

    /// The most entries that its table of roles can have. The table ends with the superblock's 4
    /// KiB, or before a bitmap within these.
    pub fn roles_max(&self) -> usize {
        let bitmap = self.bitmap_offset().and_then(|offset| usize::try_from(offset).ok());
        let room =
            bitmap.map_or(SUPERBLOCK_BYTES_MAX, |offset| offset.saturating_mul(SECTOR_BYTES));
        room.min(SUPERBLOCK_BYTES_MAX).saturating_sub(FIXED_BYTES) / 2
    }

    /// Sectors used on each member, rounded down to whole chunks as in Linux.
    pub fn used(&self) -> u64 {
        self.size - self.size % u64::from(self.chunk_sectors.max(1))
    }

    /// The partial parity log, if there is one.
    pub fn ppl(&self) -> Option<PplArea> {
        let [a, b, c, d] = self.bitmap_or_ppl;
        let area =
            PplArea { offset: i16::from_le_bytes([a, b]), sectors: u16::from_le_bytes([c, d]) };
        self.feature_map.intersects(Features::PPL | Features::MULTIPLE_PPLS).then_some(area)
    }

    /// The role of the device with number `dev_number`; one that is not in the table is a spare.
    pub fn role_of(&self, dev_number: u32) -> DevRole {
        let number = self.roles.get(dev_number as usize).copied().unwrap_or(0xFFFF);
        // A number that md does not use is treated as failed.
        DevRole::from_number(number).unwrap_or(DevRole::Faulty)
    }

    /// True if the table has the error flag of Synology's md for a device: the member had I/O
    /// errors, and the array kept using it (`E` in its /proc/mdstat). Linux has no such flag.
    pub fn has_error_flag(&self, dev_number: u32) -> bool {
        let number = self.roles.get(dev_number as usize);
        number.is_some_and(|number| (ROLE_ERROR_FLAG..0xFF00).contains(number))
    }

    /// The role of this device, by its own table.
    pub fn role(&self) -> DevRole {
        self.role_of(self.dev_number)
    }

    /// True if parity is right everywhere.
    pub fn is_clean(&self) -> bool {
        self.resync_offset == CLEAN
    }

    /// The geometry.
    ///
    /// # Errors
    /// The level has no parity, or [`Layout::new`] or md would refuse the geometry.
    pub fn geometry(&self) -> Result<Layout, MetadataError> {
        let level = Level::from_number(self.level).ok_or_else(|| {
            MetadataError::Unknown(format!(
                "the array's level is {}, expected 4, 5 or 6",
                level_name(self.level)
            ))
        })?;
        let layout = Layout::new(level, self.layout, self.raid_disks, self.chunk_sectors.into())
            .map_err(invalid)?;
        let is_on_device = self.size <= self.data_size || self.role() == DevRole::Journal;
        if self.used() == 0 || !is_on_device {
            return Err(invalid(format!(
                "{} sectors are used on each member, expected at least a chunk of {} and at most \
                 the {} for data",
                self.size, self.chunk_sectors, self.data_size
            )));
        }
        Ok(layout)
    }
}

/// The number on disk of a member with the flag of [`Superblock::has_error_flag`].
pub(crate) fn flagged_role(role: u16) -> u16 {
    ROLE_ERROR_FLAG | role
}

/// mdadm's name of a level.
pub fn level_name(level: i32) -> String {
    match level {
        -1 => "linear".to_owned(),
        -4 => "multipath".to_owned(),
        -5 => "faulty".to_owned(),
        level => format!("raid{level}"),
    }
}

/// The part before the table of roles, and the bytes from the table on; zeroes replace missing
/// bytes.
fn fixed_part(bytes: &[u8]) -> (RawSuperblock, &[u8]) {
    RawSuperblock::read_from_prefix(bytes).unwrap_or_else(|_| (RawSuperblock::new_zeroed(), &[]))
}

/// The number of entries in the table of roles; the bytes have space for `room`.
fn number_of_roles(raw: &RawSuperblock, room: usize) -> Result<usize, MetadataError> {
    let major = raw.major_version;
    if major != 1 {
        return Err(MetadataError::Unknown(format!("major_version is {major}, expected 1")));
    }
    let roles = raw.max_dev.get();
    if roles as usize > ROLES_MAX.min(room) {
        return Err(invalid(format!("max_dev is {roles}, expected up to {}", ROLES_MAX.min(room))));
    }
    Ok(roles as usize)
}

fn check_padding(raw: &RawSuperblock) -> Result<(), MetadataError> {
    if raw.pad0 != 0 || raw.pad3 != [0; 28] {
        return Err(MetadataError::Unknown(
            "the padding at bytes 12 and 228 is not zero, expected zeroes".to_owned(),
        ));
    }
    match raw.logical_block_size.get() {
        0 => Ok(()),
        size if size.is_power_of_two() && (512..=4096).contains(&size) => Ok(()),
        size => Err(invalid(format!(
            "logical_block_size is {size}, expected 0 or a power of two from 512 to 4096"
        ))),
    }
}

/// The checksum that a superblock should have: the sum of its words with the stored checksum as
/// zero, folded to 32 bits (`calc_sb_1_csum`). If bytes are missing, the sum covers those that are
/// there.
pub fn checksum(bytes: &[u8]) -> u32 {
    let roles = (u32_at(bytes, MAX_DEV_AT) as usize).min(ROLES_MAX);
    let used = &bytes[..bytes.len().min(FIXED_BYTES + 2 * roles)];
    // Two bytes at the end count as the low half of a word.
    let words = used.chunks(4).map(|word| u64::from(u32_at(word, 0)));
    let stored = if used.len() >= CHECKSUM_AT + 4 { u32_at(used, CHECKSUM_AT) } else { 0 };
    let sum = words.sum::<u64>() - u64::from(stored);
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

/// Looks for the superblock of a device in every place, as mdadm does. Of several it takes the one
/// whose array was created last. `read` returns the 4096 bytes from a sector on.
///
/// # Errors
/// The error of `read`; or, in the inner result, the reason why no superblock can be used.
pub fn probe<E>(
    device_sectors: u64,
    mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<Result<(Minor, Superblock), MetadataError>, E> {
    let mut best: Option<(Minor, Superblock)> = None;
    let mut refused = MetadataError::Absent("there is no md superblock".to_owned());
    for minor in Minor::ALL {
        let Some(sector) = minor.sector(device_sectors) else {
            refused = MetadataError::Absent(format!(
                "a device of {device_sectors} sectors has no room for a superblock, which takes \
                 {DEVICE_SECTORS_MIN}"
            ));
            continue;
        };
        match Superblock::parse(&read(sector)?, sector, device_sectors) {
            Ok(found) if best.as_ref().is_none_or(|(_, best)| made(best) < made(&found)) => {
                best = Some((minor, found));
            }
            Err(error) if matches!(refused, MetadataError::Absent(_)) => match error {
                MetadataError::Absent(_) => {}
                error => refused = error,
            },
            _ => {}
        }
    }
    Ok(best.ok_or(refused))
}

/// The second in which the array was created.
fn made(superblock: &Superblock) -> u64 {
    seconds(superblock.ctime)
}

/// The seconds since 1970 of a superblock's time, without the microseconds in its upper bits.
pub fn seconds(time: u64) -> u64 {
    time & ((1 << 40) - 1)
}
