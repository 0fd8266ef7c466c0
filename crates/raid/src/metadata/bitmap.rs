//! The write-intent bitmap of version 4: which parts of the members may be out of step
//! (`drivers/md/md-bitmap.c`).
//!
//! ```text
//! | header, 256 bytes | bit 0, bit 1, ... : one for `chunk` member sectors of every member |
//! ```

use super::raw::RawBitmapHeader;
use super::{MetadataError, Uuid, invalid, u32_at};
use std::ops::Range;
use zerocopy::FromBytes;

/// First four bytes of a header.
pub const MAGIC: u32 = 0x6D74_6962;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 256;
const _: () = assert!(HEADER_BYTES == size_of::<RawBitmapHeader>());
/// Seconds for which a bit stays set after the last write, mdadm's default.
pub const DAEMON_SLEEP: u32 = 5;
/// The default of mdadm for the bytes of a member that a bit stands for, if the bits have room.
pub const CHUNK_BYTES_DEFAULT: u64 = 64 << 20;
/// The fewest bytes of a member for a bit that mdadm chooses.
const CHUNK_BYTES_MIN: u64 = 4096;
/// Largest chunk: the header says it in 32 bits, and it is a power of two.
const CHUNK_BYTES_MAX: u64 = 1 << 31;
/// The most sectors that mdadm uses for bits when it chooses their number itself.
const ROOM_SECTORS_MAX: u64 = 256;

/// The bits do not cover all writes: all bits count as set.
pub const STATE_STALE: u32 = 1 << 1;
/// The bitmap could not be written.
pub const STATE_WRITE_ERROR: u32 = 1 << 2;

/// A bitmap's header. Fields are named as in Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapHeader {
    /// 4, or 3 if a little-endian machine wrote it.
    pub version: u32,
    /// Of the array.
    pub uuid: Uuid,
    /// The array's events when the bitmap was last written.
    pub events: u64,
    /// The array's events when it was last complete.
    pub events_cleared: u64,
    /// Member sectors that the bits stand for.
    pub sync_size: u64,
    /// [`STATE_STALE`], [`STATE_WRITE_ERROR`].
    pub state: u32,
    /// Bytes of member space for a bit.
    pub chunk_bytes: u32,
    /// Seconds between passes that clear bits.
    pub daemon_sleep: u32,
    /// Used by RAID-1 only.
    pub write_behind: u32,
    /// Sectors kept for the bitmap; 0: not told.
    pub sectors_reserved: u32,
    /// Used by clusters only.
    pub nodes: u32,
    /// Used by clusters only.
    pub cluster_name: [u8; 64],
}

impl BitmapHeader {
    /// The header of a new array's bitmap.
    pub fn new(uuid: Uuid, sync_size: u64, chunk_bytes: u32) -> Self {
        BitmapHeader {
            version: 4,
            uuid,
            events: 0,
            events_cleared: 0,
            sync_size,
            state: 0,
            chunk_bytes,
            daemon_sleep: DAEMON_SLEEP,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
            cluster_name: [0; 64],
        }
    }

    /// The fields of a header.
    ///
    /// # Errors
    /// No magic number; a version that is not supported; a field that Linux would refuse.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        let absent = |magic: u32| {
            MetadataError::Absent(format!(
                "there is no bitmap: the magic number is {magic:08x}, expected {MAGIC:08x}"
            ))
        };
        let raw = RawBitmapHeader::read_from_prefix(bytes).map(|(raw, _)| raw);
        let raw = raw.map_err(|_| absent(u32_at(bytes, 0)))?;
        if raw.magic != MAGIC {
            return Err(absent(raw.magic.get()));
        }
        check_version(raw.version.get())?;
        let header = BitmapHeader {
            version: raw.version.get(),
            uuid: Uuid(raw.uuid),
            events: raw.events.get(),
            events_cleared: raw.events_cleared.get(),
            sync_size: raw.sync_size.get(),
            state: raw.state.get(),
            chunk_bytes: raw.chunksize.get(),
            daemon_sleep: raw.daemon_sleep.get(),
            write_behind: raw.write_behind.get(),
            sectors_reserved: raw.sectors_reserved.get(),
            nodes: raw.nodes.get(),
            cluster_name: raw.cluster_name,
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), MetadataError> {
        let chunk = self.chunk_bytes;
        if !chunk.is_power_of_two() || chunk < 512 {
            return Err(invalid(format!(
                "the bitmap's chunk is {chunk} bytes, expected a power of two from 512"
            )));
        }
        if self.daemon_sleep == 0 || self.write_behind > 16383 {
            return Err(invalid(format!(
                "the bitmap's daemon sleep is {} s and its write-behind {}, expected at least 1 \
                 and at most 16383",
                self.daemon_sleep, self.write_behind
            )));
        }
        Ok(())
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let raw = RawBitmapHeader {
            magic: MAGIC.into(),
            version: self.version.into(),
            uuid: self.uuid.0,
            events: self.events.into(),
            events_cleared: self.events_cleared.into(),
            sync_size: self.sync_size.into(),
            state: self.state.into(),
            chunksize: self.chunk_bytes.into(),
            daemon_sleep: self.daemon_sleep.into(),
            write_behind: self.write_behind.into(),
            sectors_reserved: self.sectors_reserved.into(),
            nodes: self.nodes.into(),
            cluster_name: self.cluster_name,
            pad: [0; 120],
        };
        zerocopy::transmute!(raw)
    }

    /// Member sectors for a bit.
    pub fn chunk_sectors(&self) -> u64 {
        u64::from(self.chunk_bytes) / 512
    }

    /// Number of bits.
    pub fn bits(&self) -> u64 {
        self.sync_size.div_ceil(self.chunk_sectors())
    }

    /// Sectors of header and bits, up to a multiple of 4 KiB: what mdadm keeps for them.
    pub fn area_sectors(&self) -> u64 {
        area_sectors(self.sync_size, self.chunk_bytes.into())
    }

    /// Sectors of header and bits, if each member has `size` sectors; without unused bits.
    pub fn sectors_for(&self, size: u64) -> u64 {
        let bits = size.div_ceil(self.chunk_sectors());
        (HEADER_BYTES as u64 + bits.div_ceil(8)).div_ceil(512)
    }

    /// The bit of a member sector.
    pub fn bit_of(&self, sector: u64) -> u64 {
        sector / self.chunk_sectors()
    }

    /// The member sectors of a bit.
    pub fn sectors_of(&self, bit: u64) -> Range<u64> {
        let chunk = self.chunk_sectors();
        let start = bit.saturating_mul(chunk).min(self.sync_size);
        start..start.saturating_add(chunk).min(self.sync_size)
    }

    /// The set bits in the bytes behind the header. Bits behind the last one are ignored; missing
    /// bytes count as set.
    pub fn set_bits<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
        (0..self.bits()).filter(move |bit| {
            let (byte, mask) = byte_of(*bit);
            bytes.get(byte as usize).is_none_or(|byte| byte & mask != 0)
        })
    }
}

/// The byte of a bit, counted from the end of the header, and its mask.
pub fn byte_of(bit: u64) -> (u64, u8) {
    (bit / 8, 1 << (bit % 8))
}

fn check_version(version: u32) -> Result<(), MetadataError> {
    let what = match version {
        4 => return Ok(()),
        3 if cfg!(target_endian = "little") => return Ok(()),
        3 => "3, whose bits are in the order of the machine that wrote it",
        5 => "5, which is of a cluster",
        6 => "6, which is the lockless one",
        other => return Err(invalid(format!("the bitmap's version is {other}, expected 4"))),
    };
    Err(MetadataError::Unknown(format!("the bitmap's version is {what}, expected 4")))
}

/// Sectors of header and bits, up to a multiple of 4 KiB.
fn area_sectors(sync_size: u64, chunk_bytes: u64) -> u64 {
    let bits = sync_size.div_ceil(chunk_bytes / 512);
    (HEADER_BYTES as u64 + bits.div_ceil(8)).div_ceil(4096) * 8
}

/// The bytes of a member that a bit stands for, as mdadm chooses them: 64 MiB, or more until the
/// bits have room. `wanted` is the user's choice.
///
/// # Errors
/// The chosen size is no power of two, or takes more bits than there is room for.
pub fn choose_chunk(
    sync_size: u64,
    room_sectors: u64,
    wanted: Option<u64>,
) -> Result<u32, MetadataError> {
    let room = if wanted.is_some() { room_sectors } else { room_sectors.min(ROOM_SECTORS_MAX) };
    if room < 8 {
        return Err(invalid("there is no room for a bitmap before the data"));
    }
    let mut least = CHUNK_BYTES_MIN;
    while area_sectors(sync_size, least) > room {
        least *= 2;
    }
    if least > CHUNK_BYTES_MAX {
        return Err(invalid(format!(
            "{sync_size} sectors of each member are too many for a bitmap, of which a bit stands \
             for up to {CHUNK_BYTES_MAX} bytes: make the array without one (--bitmap none)"
        )));
    }
    let chunk = wanted.unwrap_or(least.max(CHUNK_BYTES_DEFAULT));
    if !chunk.is_power_of_two() || chunk < least || chunk > CHUNK_BYTES_MAX {
        return Err(invalid(format!(
            "a bitmap chunk of {chunk} bytes cannot be: it has to be a power of two from {least} \
             to {CHUNK_BYTES_MAX} bytes here"
        )));
    }
    Ok(chunk as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::put;
    use super::*;

    fn header() -> BitmapHeader {
        BitmapHeader::new(Uuid([7; 16]), 14336, 64 << 10)
    }

    #[test]
    fn bits_stand_for_member_sectors() {
        let header = header();
        assert_eq!((header.bits(), header.area_sectors()), (112, 8));
        assert_eq!(header.bit_of(2624), 20);
        assert_eq!(header.sectors_of(20), 2560..2688);
        assert_eq!(header.sectors_of(u64::MAX), 14336..14336);
        let bytes = [1, 0, 0x10, 0, 0, 0, 0, 0xC0, 0, 0, 0, 0, 0, 0, 0xFF];
        assert_eq!(header.set_bits(&bytes).collect::<Vec<_>>(), [0, 20, 62, 63]);
        assert_eq!(header.set_bits(&[]).count(), 112);
        assert_eq!(byte_of(20), (2, 0x10));
        // The last, incomplete chunk has a bit too.
        let odd = BitmapHeader { sync_size: 129, ..header };
        assert_eq!((odd.bits(), odd.sectors_of(1)), (2, 128..129));
    }

    #[test]
    fn other_versions_are_refused_with_their_names() {
        for (version, word) in [(5, "cluster"), (6, "lockless"), (7, "expected 4")] {
            let mut bytes = header().to_bytes();
            put(&mut bytes, 4, &u32::to_le_bytes(version));
            let error = BitmapHeader::parse(&bytes).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
        assert_eq!(BitmapHeader::parse(&header().to_bytes()), Ok(header()));
        assert!(matches!(BitmapHeader::parse(&[0; 256]), Err(MetadataError::Absent(_))));
        assert!(matches!(BitmapHeader::parse(&[]), Err(MetadataError::Absent(_))));
    }

    #[test]
    fn fields_that_cannot_be_are_refused() {
        for (offset, value, word) in [(52, 3, "power of two"), (52, 256, "512"), (56, 0, "daemon")]
        {
            let mut bytes = header().to_bytes();
            put(&mut bytes, offset, &u32::to_le_bytes(value));
            let error = BitmapHeader::parse(&bytes).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }

    #[test]
    fn chunks_are_those_of_mdadm() {
        let tib = 1 << 31;
        assert_eq!(choose_chunk(tib, 256, None), Ok(64 << 20));
        assert_eq!(area_sectors(8589670400, 64 << 20), 24);
        // 128 KiB have room for a million bits, less the header.
        assert_eq!(choose_chunk(tib * 128, 4096, None), Ok(256 << 20));
        assert_eq!(choose_chunk(tib * 128, 4096, Some(64 << 20)), Ok(64 << 20));
        assert_eq!(choose_chunk(14336, 8, Some(64 << 10)), Ok(64 << 10));
        for wanted in [1000, 2048, 1 << 32] {
            assert!(choose_chunk(14336, 8, Some(wanted)).unwrap_err().message().contains("power"));
        }
        for wanted in [None, Some(64 << 20)] {
            let error = choose_chunk(7 << 51, 256, wanted).unwrap_err();
            assert!(error.message().contains("too many for a bitmap"), "{error}");
            assert!(error.message().contains("--bitmap none"), "{error}");
        }
        assert!(choose_chunk(tib, 0, None).unwrap_err().message().contains("no room"));
    }
}
