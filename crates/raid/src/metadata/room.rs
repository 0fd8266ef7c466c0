//! The places that mdadm gives to the areas of a new array's member, and the space that it leaves
//! for data (mdadm `super1.c`, `validate_geometry1` and `write_init_super1`).
//!
//! ```text
//! 1.1, 1.2: | superblock 8 | bitmap or PPL | bad block log 8 | headroom | data ...
//! 1.0:      data ... | bitmap or PPL | bad block log 8 | superblock
//! ```

use super::superblock::{DEVICE_SECTORS_MIN, Minor};

/// Sectors of a bad block log.
pub const BAD_BLOCK_LOG_SECTORS: u64 = 8;
/// Sectors of a superblock: its whole 4 KiB.
const SUPERBLOCK_SECTORS: u64 = 8;
/// Sectors that mdadm reserves for a PPL.
pub const PPL_SECTORS: u64 = 2048;
/// The most sectors that mdadm leaves free before the data, so that a reshape can move the data.
const HEADROOM_SECTORS_MAX: u64 = 262_144;
/// The start of data is a multiple of this.
const DATA_ALIGNMENT_SECTORS: u64 = 2048;
const GIB_SECTORS: u64 = 1 << 21;

/// The log between the superblock and the bad block log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Nothing, but there is room for a bitmap.
    None,
    /// A bitmap of this many sectors.
    Bitmap(u64),
    /// A partial parity log.
    Ppl,
}

/// Sectors that mdadm reserves for the bitmap of a device of `sectors` sectors.
pub fn bitmap_room(sectors: u64) -> u64 {
    match sectors {
        0..128 => 0,
        _ if sectors - 128 >= 200 * GIB_SECTORS => 256,
        _ if sectors - 8 > 8 * GIB_SECTORS => 128,
        _ => 8,
    }
}

/// Sectors left before the data for a later reshape.
fn headroom(device_sectors: u64, chunk_sectors: u64) -> u64 {
    let mut room = HEADROOM_SECTORS_MAX;
    // At most a thousandth of the device, but at least two chunks (mdadm counts these in KiB).
    while room * 1024 > device_sectors && room / 2 >= chunk_sectors * 2 {
        room /= 2;
    }
    room
}

/// The sector where data starts; it depends on the size of the array's first device.
pub fn data_offset(minor: Minor, device_sectors: u64, chunk_sectors: u64, ppl: bool) -> u64 {
    if minor == Minor::V1_0 {
        return 0;
    }
    let log = if ppl { PPL_SECTORS } else { bitmap_room(device_sectors) };
    let before = 24 + log + headroom(device_sectors, chunk_sectors);
    before.next_multiple_of(DATA_ALIGNMENT_SECTORS)
}

/// Sectors for data on a device, before its array's size is known; 0 if it is too small.
pub fn available(minor: Minor, device_sectors: u64, data_offset: u64, ppl: bool) -> u64 {
    if device_sectors < DEVICE_SECTORS_MIN {
        return 0;
    }
    if minor != Minor::V1_0 {
        return device_sectors.saturating_sub(data_offset);
    }
    let log = if ppl { PPL_SECTORS } else { bitmap_room(device_sectors) };
    (device_sectors & !7).saturating_sub(16 + BAD_BLOCK_LOG_SECTORS + log)
}

/// The areas of a member: sectors of the device, and offsets from the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The superblock.
    pub super_offset: u64,
    /// Sectors for data.
    pub data_size: u64,
    /// Bitmap or PPL, if there is one.
    pub log_offset: i32,
    /// The bad block log.
    pub bblog_offset: i32,
}

/// The areas of a member of an array that uses `used` sectors of each member.
///
/// # Errors
/// The device is too small, or has too little room before the data. The message is one sentence.
pub fn parts(
    minor: Minor,
    device_sectors: u64,
    data_offset: u64,
    used: u64,
    log: Log,
) -> Result<Parts, String> {
    let super_offset = minor.sector(device_sectors).ok_or("the device is too small")?;
    let room = match log {
        Log::None => bitmap_room(used),
        Log::Bitmap(sectors) => sectors,
        Log::Ppl => PPL_SECTORS,
    };
    if minor == Minor::V1_0 {
        let data_size = super_offset.saturating_sub(room + BAD_BLOCK_LOG_SECTORS);
        if data_size < used {
            return Err(format!(
                "{used} sectors are to be used of a device that has {data_size} before its \
                 superblock and logs"
            ));
        }
        let bblog_offset = -(BAD_BLOCK_LOG_SECTORS as i32);
        return Ok(Parts {
            super_offset,
            data_size,
            log_offset: bblog_offset - room as i32,
            bblog_offset,
        });
    }
    let log_offset = SUPERBLOCK_SECTORS;
    let log_end = log_offset + if log == Log::None { 0 } else { room };
    let before = data_offset.saturating_sub(super_offset);
    // Behind the space reserved for a bitmap, but at the latest just before the data.
    let bblog_offset = (log_offset + room).min(before.saturating_sub(BAD_BLOCK_LOG_SECTORS));
    if bblog_offset < log_end {
        return Err(format!(
            "data at sector {data_offset} leaves too little room for the metadata, which takes {} \
             sectors",
            super_offset + log_end + BAD_BLOCK_LOG_SECTORS
        ));
    }
    Ok(Parts {
        super_offset,
        data_size: device_sectors.saturating_sub(data_offset),
        log_offset: log_offset as i32,
        bblog_offset: bblog_offset as i32,
    })
}

/// Sectors for a bitmap's header and bits. With version 1.0 they lie before the superblock, in the
/// space that mdadm reserves for a bitmap.
pub fn bitmap_room_at(minor: Minor, device_sectors: u64, data_offset: u64) -> u64 {
    match minor {
        Minor::V1_0 => bitmap_room(device_sectors),
        _ => {
            let before = minor.sector(device_sectors).unwrap_or(0) + SUPERBLOCK_SECTORS;
            data_offset.saturating_sub(before + BAD_BLOCK_LOG_SECTORS)
        }
    }
}
