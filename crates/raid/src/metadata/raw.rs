//! The structures of md on disk, byte by byte: `mdp_superblock_1` and `ppl_header` of
//! `include/uapi/linux/raid/md_p.h`, and `bitmap_super_t` of `drivers/md/md-bitmap.h`. Fields have
//! Linux's names.
//!
//! This file checks only sizes and offsets, at compile time. The module of each structure says what
//! the fields mean and which values are accepted.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a bad block log.
pub(super) const BAD_BLOCK_LOG_BYTES: usize = 4096;

/// Sectors of a PPL header (`PPL_HEADER_SIZE`).
pub(super) const PPL_HEADER_SECTORS: u64 = size_of::<RawPplHeader>() as u64 / 512;

/// `struct mdp_superblock_1`, without the table `dev_roles` that follows it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub(super) magic: U32,
    pub(super) major_version: U32,
    pub(super) feature_map: U32,
    pub(super) pad0: U32,
    pub(super) set_uuid: [u8; 16],
    pub(super) set_name: [u8; 32],
    pub(super) ctime: U64,
    pub(super) level: I32,
    pub(super) layout: U32,
    pub(super) size: U64,
    pub(super) chunksize: U32,
    pub(super) raid_disks: U32,
    /// `bitmap_offset`, or `ppl.offset` and `ppl.size`.
    pub(super) bitmap_or_ppl: [u8; 4],
    pub(super) new_level: I32,
    pub(super) reshape_position: U64,
    pub(super) delta_disks: I32,
    pub(super) new_layout: U32,
    pub(super) new_chunk: U32,
    pub(super) new_offset: I32,
    pub(super) data_offset: U64,
    pub(super) data_size: U64,
    pub(super) super_offset: U64,
    /// Also `journal_tail`.
    pub(super) recovery_offset: U64,
    pub(super) dev_number: U32,
    pub(super) cnt_corrected_read: U32,
    pub(super) device_uuid: [u8; 16],
    pub(super) devflags: u8,
    pub(super) bblog_shift: u8,
    pub(super) bblog_size: U16,
    pub(super) bblog_offset: I32,
    pub(super) utime: U64,
    pub(super) events: U64,
    pub(super) resync_offset: U64,
    pub(super) sb_csum: U32,
    pub(super) max_dev: U32,
    pub(super) logical_block_size: U32,
    pub(super) pad3: [u8; 28],
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == 256);
    assert!(offset_of!(RawSuperblock, set_uuid) == 16);
    assert!(offset_of!(RawSuperblock, ctime) == 64);
    assert!(offset_of!(RawSuperblock, bitmap_or_ppl) == 96);
    assert!(offset_of!(RawSuperblock, data_offset) == 128);
    assert!(offset_of!(RawSuperblock, dev_number) == 160);
    assert!(offset_of!(RawSuperblock, devflags) == 184);
    assert!(offset_of!(RawSuperblock, utime) == 192);
    assert!(offset_of!(RawSuperblock, sb_csum) == 216);
    assert!(offset_of!(RawSuperblock, max_dev) == 220);
    assert!(offset_of!(RawSuperblock, pad3) == 228);
};

/// `bitmap_super_t`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawBitmapHeader {
    pub(super) magic: U32,
    pub(super) version: U32,
    pub(super) uuid: [u8; 16],
    pub(super) events: U64,
    pub(super) events_cleared: U64,
    pub(super) sync_size: U64,
    pub(super) state: U32,
    pub(super) chunksize: U32,
    pub(super) daemon_sleep: U32,
    pub(super) write_behind: U32,
    pub(super) sectors_reserved: U32,
    pub(super) nodes: U32,
    pub(super) cluster_name: [u8; 64],
    pub(super) pad: [u8; 120],
}

const _: () = {
    assert!(size_of::<RawBitmapHeader>() == 256);
    assert!(offset_of!(RawBitmapHeader, uuid) == 8);
    assert!(offset_of!(RawBitmapHeader, events) == 24);
    assert!(offset_of!(RawBitmapHeader, state) == 48);
    assert!(offset_of!(RawBitmapHeader, sectors_reserved) == 64);
    assert!(offset_of!(RawBitmapHeader, cluster_name) == 72);
    assert!(offset_of!(RawBitmapHeader, pad) == 136);
};

/// `struct ppl_header_entry`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawPplEntry {
    pub(super) data_sector: U64,
    pub(super) pp_size: U32,
    pub(super) data_size: U32,
    pub(super) parity_disk: U32,
    pub(super) checksum: U32,
}

/// `struct ppl_header`, padded to its 4 KiB.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawPplHeader {
    /// All ones.
    pub(super) reserved: [u8; 512],
    pub(super) signature: U32,
    pub(super) padding: U32,
    pub(super) generation: U64,
    pub(super) entries_count: U32,
    pub(super) checksum: U32,
    /// `PPL_HDR_MAX_ENTRIES`.
    pub(super) entries: [RawPplEntry; 148],
    pub(super) rest: [u8; 8],
}

const _: () = {
    assert!(size_of::<RawPplEntry>() == 24);
    assert!(size_of::<RawPplHeader>() == 4096);
    assert!(offset_of!(RawPplHeader, signature) == 512);
    assert!(offset_of!(RawPplHeader, generation) == 520);
    assert!(offset_of!(RawPplHeader, entries_count) == 528);
    assert!(offset_of!(RawPplHeader, checksum) == 532);
    assert!(offset_of!(RawPplHeader, entries) == 536);
};
