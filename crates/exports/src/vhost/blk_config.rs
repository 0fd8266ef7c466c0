//! The configuration space of a block device (`struct virtio_blk_config`, virtio 1.3, section
//! 5.2.4), little-endian.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Bytes of the fields that are told: up to those of secure erase, which is not offered.
pub const BLK_CONFIG_BYTES: usize = 60;
/// The place of the `writeback` byte, the only one that a driver may write.
pub const WRITEBACK_OFFSET: u32 = 32;

/// The fields as they lie in the configuration space, under the standard's names.
#[repr(C)]
#[derive(IntoBytes, Immutable, Unaligned)]
struct Fields {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: U32,
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

const _: () = assert!(size_of::<Fields>() == BLK_CONFIG_BYTES);
const _: () = assert!(std::mem::offset_of!(Fields, writeback) == WRITEBACK_OFFSET as usize);

/// The values of the configuration space. Sectors are 512 bytes, whatever the block size is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlkConfig {
    /// Size of the device, sectors.
    pub capacity_sectors: u64,
    /// Longest segment, bytes (`SIZE_MAX`).
    pub size_max: u32,
    /// Most segments of a request (`SEG_MAX`).
    pub seg_max: u32,
    /// Logical block size, bytes (`BLK_SIZE`).
    pub block_bytes: u32,
    /// The physical block has 2 to the power of this many logical blocks (`TOPOLOGY`, and the
    /// three that follow).
    pub physical_block_exp: u8,
    /// Logical blocks before the first whole physical block.
    pub alignment_offset: u8,
    /// The suggested least size of an I/O, logical blocks.
    pub min_io_blocks: u16,
    /// The suggested best size of an I/O, logical blocks; 0 if there is none.
    pub opt_io_blocks: u32,
    /// True if the device's cache holds writes back (`CONFIG_WCE`).
    pub writeback: bool,
    /// Number of queues (`MQ`).
    pub queues: u16,
    /// Longest range of a discard, sectors (`DISCARD`, and the two that follow).
    pub max_discard_sectors: u32,
    /// Most ranges of a discard.
    pub max_discard_segments: u32,
    /// The alignment of discards, sectors.
    pub discard_alignment_sectors: u32,
    /// Longest range that zeroes are written to, sectors (`WRITE_ZEROES`, and the two that follow).
    pub max_write_zeroes_sectors: u32,
    /// Most ranges that zeroes are written to by one request.
    pub max_write_zeroes_segments: u32,
    /// True if writing zeroes may deallocate.
    pub write_zeroes_may_unmap: bool,
}

impl BlkConfig {
    /// The bytes of the configuration space. The geometry of cylinders and heads is zero.
    pub fn to_bytes(&self) -> [u8; BLK_CONFIG_BYTES] {
        zerocopy::transmute!(Fields {
            capacity: self.capacity_sectors.into(),
            size_max: self.size_max.into(),
            seg_max: self.seg_max.into(),
            geometry: 0.into(),
            blk_size: self.block_bytes.into(),
            physical_block_exp: self.physical_block_exp,
            alignment_offset: self.alignment_offset,
            min_io_size: self.min_io_blocks.into(),
            opt_io_size: self.opt_io_blocks.into(),
            writeback: self.writeback.into(),
            unused0: 0,
            num_queues: self.queues.into(),
            max_discard_sectors: self.max_discard_sectors.into(),
            max_discard_seg: self.max_discard_segments.into(),
            discard_sector_alignment: self.discard_alignment_sectors.into(),
            max_write_zeroes_sectors: self.max_write_zeroes_sectors.into(),
            max_write_zeroes_seg: self.max_write_zeroes_segments.into(),
            write_zeroes_may_unmap: self.write_zeroes_may_unmap.into(),
            unused1: [0; 3],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let config = BlkConfig {
            capacity_sectors: 0x0102_0304_0506_0708,
            size_max: 0x1111_1110,
            seg_max: 126,
            block_bytes: 4096,
            physical_block_exp: 3,
            alignment_offset: 1,
            min_io_blocks: 0x2122,
            opt_io_blocks: 0x3132_3334,
            writeback: true,
            queues: 0x4142,
            max_discard_sectors: 0x5152_5354,
            max_discard_segments: 0x6162_6364,
            discard_alignment_sectors: 8,
            max_write_zeroes_sectors: 0x7172_7374,
            max_write_zeroes_segments: 9,
            write_zeroes_may_unmap: true,
        };
        let bytes = config.to_bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!([word(8), word(12), word(16), word(20)], [0x1111_1110, 126, 0, 4096]);
        assert_eq!(bytes[24..28], [3, 1, 0x22, 0x21]);
        assert_eq!(word(28), 0x3132_3334);
        assert_eq!(bytes[32..36], [1, 0, 0x42, 0x41]);
        assert_eq!([word(36), word(40), word(44)], [0x5152_5354, 0x6162_6364, 8]);
        assert_eq!([word(48), word(52)], [0x7172_7374, 9]);
        assert_eq!(bytes[56..], [1, 0, 0, 0]);
    }

    #[test]
    fn a_device_without_features_has_zeroes() {
        assert_eq!(BlkConfig::default().to_bytes(), [0; BLK_CONFIG_BYTES]);
    }
}
