//! `mdadm --examine` of every vector's images, line by line.

mod common;

use common::superblock;
use drystone_raid::metadata::bad_blocks::BadBlocks;
use drystone_raid::metadata::bitmap::BitmapHeader;
use drystone_raid::metadata::examine::{bad_blocks_text, bitmap_text, superblock_text};
use drystone_raid::metadata::superblock::Features;
use drystone_raid::testing::{self, Image};

/// The output of mdadm's `command` for each image: name and text.
fn printed(vector: &str, command: &str) -> Vec<(String, String)> {
    let text = testing::text(vector, "examine.txt");
    let mut found = Vec::new();
    for section in text.split("### mdadm ").skip(1) {
        let (head, body) = section.split_once('\n').unwrap();
        let (word, name) = head.split_once(' ').unwrap();
        if word == command {
            found.push((name.to_owned(), body.to_owned()));
        }
    }
    found
}

fn examined(name: &str, image: &Image) -> String {
    let (_, found) = superblock(image).unwrap();
    let at = |offset: i32| found.super_offset.checked_add_signed(offset.into()).unwrap();
    let bitmap = found.bitmap_offset();
    let bitmap = bitmap.map(|o| BitmapHeader::parse(&image.read_sectors(at(o), 8)).unwrap());
    let bytes = image.read_sectors(found.super_offset, 8);
    superblock_text(name, &bytes, image.sectors(), bitmap.as_ref()).unwrap()
}

#[test]
fn every_line_is_that_of_mdadm() {
    let mut count = 0;
    for vector in testing::names() {
        for (index, (name, wanted)) in printed(&vector, "--examine").into_iter().enumerate() {
            let Some(image) = testing::member(&vector, index) else { continue };
            let own = examined(&name, &image);
            let pairs = own.lines().zip(wanted.lines());
            pairs.for_each(|(own, wanted)| assert_eq!(own, wanted, "{vector} {name}"));
            assert_eq!(own.trim_end(), wanted.trim_end(), "{vector} {name}");
            count += 1;
        }
    }
    assert_eq!(count, 223);
}

#[test]
fn bad_blocks_are_listed_as_mdadm_lists_them() {
    let [(name, wanted)] = &printed("r5-ls-badblocks", "--examine-badblocks")[..] else {
        panic!("one list")
    };
    let image = testing::member("r5-ls-badblocks", 1).unwrap();
    let log = image.read_sectors(8 + 16, 8);
    let list = BadBlocks::parse(&log, 0, image.sectors()).unwrap();
    assert_eq!(bad_blocks_text(name, Some(&list)).trim_end(), wanted.trim_end());
    assert!(bad_blocks_text("m0", Some(&BadBlocks::default())).contains("empty"));
    assert!(bad_blocks_text("m0", None).contains("No bad-blocks list"));
}

#[test]
fn bitmaps_of_linux_are_shown() {
    let image = testing::member("r5-ls-bitmap-torn", 0).unwrap();
    let text = bitmap_text("m0", &image.read_sectors(16, 8)).unwrap();
    assert!(text.contains("         Bitmap : 112 bits (chunks), 4 dirty (3.6%)\n"), "{text}");
    assert!(text.contains("      Chunksize : 64 KB\n"), "{text}");
}

#[test]
fn a_wrong_checksum_is_shown_beside_the_right_one() {
    let image = testing::member("r5-ls", 0).unwrap();
    let mut bytes = image.read_sectors(8, 8);
    bytes[216] ^= 1;
    let text = superblock_text("m0", &bytes, image.sectors(), None).unwrap();
    assert!(text.contains("       Checksum : b22f8cb3 - expected b22f8cb2\n"), "{text}");
}

#[test]
fn what_vectors_lack_is_shown_too() {
    let (_, found) = superblock(&testing::member("r5-ls-reshape", 0).unwrap()).unwrap();
    let changed = drystone_raid::metadata::superblock::Superblock {
        new_level: 6,
        new_layout: 18,
        new_chunk: 1024,
        devflags: 3,
        resync_offset: 0,
        feature_map: found.feature_map | Features::REPLACEMENT,
        ..found
    };
    let text = superblock_text("m0", &changed.to_bytes(), 16384, None).unwrap();
    for line in [
        "      New Level : raid6\n",
        "     New Layout : left-symmetric-6\n",
        "  New Chunksize : 512K\n",
        "          Flags : write-mostly failfast\n",
        "          State : active\n",
        "   Device Role : Replacement device 0\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}
