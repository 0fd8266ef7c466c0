//! Bytes that anybody may have written: nothing panics, and what is taken is written as it was
//! read.

use drystone_raid::layout::{Layout, Level};
use drystone_raid::metadata::bad_blocks::BadBlocks;
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use drystone_raid::metadata::ppl::{self, PplEntry, PplHeader};
use drystone_raid::metadata::superblock::{Superblock, checksum};
use drystone_raid::metadata::{examine, foreign};
use drystone_raid::testing;
use proptest::prelude::*;

/// Bytes with some of them changed.
fn flipped(mut bytes: Vec<u8>, flips: &[(usize, u8)]) -> Vec<u8> {
    flips.iter().for_each(|(at, value)| {
        let len = bytes.len();
        bytes[at % len] ^= value;
    });
    bytes
}

fn flips() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>()), 0..12)
}

fn stored(vector: &str, offset: u64, bytes: usize) -> Vec<u8> {
    testing::member(vector, 0).unwrap().read(offset, bytes)
}

proptest! {
    #[test]
    fn superblocks(
        vector in prop::sample::select(vec![
            "r5-ls", "r5-ls-ppl", "r5-ls-reshape", "r5-ls-journal",
        ]),
        flips in flips(),
        sectors in prop::sample::select(vec![0u64, 24, 16384, u64::MAX]),
        summed in any::<bool>(),
    ) {
        let mut bytes = flipped(stored(vector, 4096, 512), &flips);
        if summed {
            let sum = checksum(&bytes).to_le_bytes();
            bytes[216..220].copy_from_slice(&sum);
        }
        let _ = examine::superblock_text("m", &bytes, sectors, None);
        if let Ok(found) = Superblock::parse(&bytes, 8, sectors) {
            let _ = found.geometry();
            let again = Superblock { checksum: 0, ..found.clone() };
            let written = Superblock::decode(&found.to_bytes()).unwrap();
            prop_assert_eq!(Superblock { checksum: 0, ..written }, again);
            let len = 256 + 2 * found.roles.len();
            prop_assert_eq!(&found.to_bytes()[..len], &bytes[..len]);
        }
    }

    #[test]
    fn bitmaps(flips in flips()) {
        let bytes = flipped(stored("r5-ls-bitmap-torn", 8192, 4096), &flips);
        let _ = examine::bitmap_text("m", &bytes);
        if let Ok(header) = BitmapHeader::parse(&bytes) {
            let sector = header.sync_size.saturating_sub(1);
            let is_covered = header.sectors_of(header.bit_of(sector)).contains(&sector);
            prop_assert!(is_covered || header.sync_size == 0);
            prop_assert_eq!(BitmapHeader::parse(&header.to_bytes()), Ok(header));
        }
        prop_assert!(bytes.len() > HEADER_BYTES);
    }

    #[test]
    fn logs_of_bad_blocks(
        words in prop::collection::vec(any::<u64>(), 0..600),
        shift in any::<u8>(),
        sectors in any::<u64>(),
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Ok(list) = BadBlocks::parse(&bytes, shift, sectors) {
            let _ = list.overlap(0..u64::MAX);
            prop_assert_eq!(BadBlocks::parse(&list.to_bytes(), list.shift(), sectors), Ok(list));
        }
    }

    #[test]
    fn partial_parity_logs(
        flips in flips(),
        data_sector in any::<u64>(),
        sizes in any::<(u32, u32)>(),
        small in any::<bool>(),
        disks in 2u32..64,
        parity_disk in 0u32..64,
    ) {
        let bytes = flipped(stored("r5-ls-ppl-torn", 8192, 4096), &flips);
        if let Ok(header) = PplHeader::parse(&bytes, 0xAB68_9AA8) {
            prop_assert_eq!(header.to_bytes(), bytes);
        }
        let layout = Layout::new(Level::Raid5, 2, disks, 128).unwrap();
        let (data_sector, pp_size, data_size) = match small {
            true => (data_sector % 8192 * 8, sizes.0 % 20 * 4096, sizes.1 % 200 * 4096),
            false => (data_sector, sizes.0, sizes.1),
        };
        let entry = PplEntry { data_sector, pp_size, data_size, parity_disk, checksum: 0 };
        for block in ppl::decode(&entry, &layout, 1 << 20).into_iter().flatten() {
            prop_assert!(block.parity_at.is_none_or(|at| at + 4096 <= pp_size as usize));
            prop_assert!(!block.touched.is_empty());
            prop_assert!(block.touched.iter().all(|address| address.sector == block.sector));
        }
    }

    #[test]
    fn devices(bytes in prop::collection::vec(any::<u8>(), 0..9000), sectors in any::<u64>()) {
        let _ = foreign::identify(&bytes, &bytes, sectors);
        let _ = Superblock::parse(&bytes, 0, sectors);
        let _ = BitmapHeader::parse(&bytes);
        let _ = checksum(&bytes);
        let _ = examine::bitmap_text("m", &bytes);
    }
}
