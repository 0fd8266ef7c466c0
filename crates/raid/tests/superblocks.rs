//! The superblocks, bad block logs and bitmaps that Linux wrote, read and written again.

mod common;

use common::{meta, superblock};
use drystone_raid::metadata::bad_blocks::BadBlocks;
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use drystone_raid::metadata::places::Places;
use drystone_raid::metadata::superblock::{Minor, Superblock, checksum};
use drystone_raid::testing;
use serde_json::Value;

fn each_member(mut visit: impl FnMut(&str, &testing::Image, &Value)) {
    let mut count = 0;
    for vector in testing::names() {
        let meta = meta(&vector);
        for (index, image) in testing::members(&vector).iter().enumerate() {
            visit(&format!("{vector} m{index}"), image, &meta["members"][index]);
            count += 1;
        }
    }
    assert_eq!(count, 223, "members of all vectors");
}

fn number(value: &Value) -> i128 {
    value.as_i64().map(i128::from).or(value.as_u64().map(i128::from)).expect("number")
}

#[test]
fn fields_are_those_that_mdadm_shows() {
    each_member(|name, image, wanted| {
        let (minor, found) = superblock(image).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(Some(number(&wanted["super_at_sector"]) as u64), minor.sector(image.sectors()));
        assert_eq!(found.minor(), minor);
        let sb = &wanted["sb"];
        let fields = [
            ("feature_map", i128::from(found.feature_map.bits())),
            ("level", found.level.into()),
            ("layout", found.layout.into()),
            ("size", found.size.into()),
            ("chunk", found.chunk_sectors.into()),
            ("raid_disks", found.raid_disks.into()),
            ("bitmap_offset_raw", i32::from_le_bytes(found.bitmap_or_ppl).into()),
            ("reshape_position", found.reshape_position.into()),
            ("delta_disks", found.delta_disks.into()),
            ("new_layout", found.new_layout.into()),
            ("new_chunk", found.new_chunk.into()),
            ("new_offset", found.new_offset.into()),
            ("data_offset", found.data_offset.into()),
            ("data_size", found.data_size.into()),
            ("super_offset", found.super_offset.into()),
            ("recovery_offset", found.recovery_offset.into()),
            ("dev_number", found.dev_number.into()),
            ("bblog_shift", found.bblog_shift.into()),
            ("bblog_size", found.bblog_size.into()),
            ("bblog_offset", found.bblog_offset.into()),
            ("events", found.events.into()),
            ("resync_offset", found.resync_offset.into()),
            ("max_dev", (found.roles.len() as u32).into()),
            ("role", found.role().number().into()),
        ];
        for (field, value) in fields {
            assert_eq!(value, number(&sb[field]), "{name}: {field}");
        }
        assert_eq!(found.name(), sb["set_name"].as_str().unwrap(), "{name}");
        assert_eq!(format!("{:08x}", found.checksum), sb["sb_csum"].as_str().unwrap(), "{name}");
        for (index, role) in sb["dev_roles_trimmed"].as_array().unwrap().iter().enumerate() {
            assert_eq!(i128::from(found.roles[index]), number(role), "{name}: role {index}");
        }
    });
}

#[test]
fn they_are_written_as_they_were_read() {
    each_member(|name, image, _| {
        let (_, found) = superblock(image).unwrap();
        let bytes = found.to_bytes();
        assert_eq!(bytes.len(), 512);
        assert!(image.read(found.super_offset * 512, 512) == bytes, "{name}");
    });
}

#[test]
fn a_wrong_byte_is_noticed() {
    let image = testing::member("r5-ls", 0).unwrap();
    let good = image.read_sectors(8, 8);
    for index in 0..512 {
        let mut bytes = good.clone();
        bytes[index] ^= 0x10;
        let found = Superblock::parse(&bytes, 8, image.sectors());
        assert!(found.is_err(), "byte {index} changed, and it was taken");
    }
}

#[test]
fn refusals_say_what_would_be_right() {
    let image = testing::member("r5-ls", 0).unwrap();
    let refusal = |change: &dyn Fn(&mut Vec<u8>), sector, sectors| {
        let mut bytes = image.read_sectors(8, 8);
        change(&mut bytes);
        Superblock::parse(&bytes, sector, sectors).unwrap_err().to_string()
    };
    let summed = |at: usize, value: &'static [u8]| {
        move |bytes: &mut Vec<u8>| {
            bytes[at..at + value.len()].copy_from_slice(value);
            let sum = checksum(bytes).to_le_bytes();
            bytes[216..220].copy_from_slice(&sum);
        }
    };
    let stored = |bytes: &mut Vec<u8>| bytes[216..220].copy_from_slice(&[0xCD, 0xAB, 0x34, 0x12]);
    assert_eq!(refusal(&stored, 8, 16384), "superblock checksum is 1234abcd, expected b22f8cb2");
    let text = refusal(&summed(9, &[0x80]), 8, 16384);
    assert!(text.starts_with("feature_map 0x8000 has bits that are not known: 0x8000"), "{text}");
    for (at, value, expected) in [
        (0, &[0][..], "the magic number is a92b4e00, expected a92b4efc"),
        (4, &[2], "major_version is 2, expected 1"),
        (12, &[1], "padding"),
        (230, &[1], "padding"),
        (224, &[0, 3], "logical_block_size is 768, expected 0 or a power of two from 512 to 4096"),
        (220, &[0xFF, 0xFF], "max_dev is 65535, expected up to 1920"),
        (144, &[16], "super_offset is 16, but the superblock was found at sector 8"),
        (136, &[5, 0], "data_size is 5 sectors, expected at least 10"),
        (136, &[0, 0x40], "need a device of 18432 sectors, this one has 16384"),
        (160, &[0x80, 0x07], "dev_number is 1920, expected below 1920"),
        (128, &[8, 0], "data_offset is 8, expected at least 16"),
        (8, &[0x01, 0x04], "a PPL beside a bitmap"),
        (8, &[0x00, 0x0C], "a PPL beside a bitmap"),
    ] {
        let text = refusal(&summed(at, value), 8, 16384);
        assert!(text.contains(expected), "{text}");
    }
    let mut bytes = image.read_sectors(8, 8);
    summed(224, &[0, 2])(&mut bytes);
    let found = Superblock::parse(&bytes, 8, 16384).unwrap();
    assert_eq!(found.logical_block_size, 512);
    assert!(found.to_bytes() == bytes[..512], "it is kept");
}

/// Blocks are put on a log only where all of it lies beside data and superblock, whatever damaged
/// numbers say.
#[test]
fn a_log_of_bad_blocks_has_a_place_of_its_own() {
    let image = testing::member("r5-ls-badblocks", 1).unwrap();
    let (_, found) = superblock(&image).unwrap();
    let bblog_sector = |own: &Superblock| {
        Places::of(own, image.sectors(), None).ok()?.bad_blocks().map(|area| area.start)
    };
    assert_eq!(bblog_sector(&found), Some(found.super_offset + found.bblog_offset as u64));
    let data = (found.data_offset - found.super_offset) as i32;
    for (offset, size) in [(0, 8), (4, 8), (-4, 8), (data, 8), (data - 4, 8), (16, 4), (16, 0)] {
        let damaged = Superblock { bblog_offset: offset, bblog_size: size, ..found.clone() };
        assert_eq!(bblog_sector(&damaged), None, "{size} at {offset}");
    }
}

#[test]
fn a_log_of_bad_blocks_is_kept() {
    let image = testing::member("r5-ls-badblocks", 1).unwrap();
    let (_, found) = superblock(&image).unwrap();
    let log = image.read_sectors(found.super_offset + found.bblog_offset as u64, 8);
    let list = BadBlocks::parse(&log, found.bblog_shift, image.sectors()).unwrap();
    let ranges: Vec<_> = list.iter().collect();
    assert_eq!(ranges, [(2056, 8), (4096, 512), (8192, 512), (8704, 88)]);
    assert!(list.to_bytes()[..] == log[..]);
}

#[test]
fn bitmaps_are_kept() {
    let mut seen = 0;
    each_member(|name, image, _| {
        let (_, found) = superblock(image).unwrap();
        let Some(offset) = found.bitmap_offset() else { return };
        seen += 1;
        let at = found.super_offset.checked_add_signed(offset.into()).unwrap();
        let bytes = image.read_sectors(at, 8);
        let header = BitmapHeader::parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(header.to_bytes()[..] == bytes[..HEADER_BYTES], "{name}");
        assert_eq!((header.uuid, header.sync_size), (found.set_uuid, found.size), "{name}");
        let set: Vec<u64> = header.set_bits(&bytes[HEADER_BYTES..]).collect();
        match name.split(' ').next().unwrap() {
            "r5-ls-bitmap-torn" => assert_eq!(set, [0, 20, 62, 63], "{name}"),
            "r5-ls-bitmap-crash" => assert_eq!(set.len() as u64, header.bits(), "{name}"),
            _ => assert!(set.is_empty(), "{name}: {set:?}"),
        }
    });
    assert_eq!(seen, 20);
}

#[test]
fn each_place_is_looked_at() {
    for (vector, wanted) in
        [("r5-ls-v10", Minor::V1_0), ("r5-ls-v11", Minor::V1_1), ("r5-ls", Minor::V1_2)]
    {
        assert_eq!(superblock(&testing::member(vector, 0).unwrap()).unwrap().0, wanted);
    }
    let blank = superblock(&testing::Image::new(1 << 20)).unwrap_err();
    assert_eq!(blank.message(), "there is no md superblock");
    let small = superblock(&testing::Image::new(23 * 512)).unwrap_err();
    assert!(small.message().contains("no room for a superblock"), "{small}");
}

#[test]
fn of_two_superblocks_the_array_made_last_wins() {
    let mut image = testing::member("r5-ls", 0).unwrap();
    let (_, mut other) = superblock(&testing::member("r5-ls-v11", 0).unwrap()).unwrap();
    let (_, own) = superblock(&image).unwrap();
    other.ctime = own.ctime - 1;
    image.write(0, &other.to_bytes());
    assert_eq!(superblock(&image).unwrap().0, Minor::V1_2);
    other.ctime = own.ctime + 1;
    image.write(0, &other.to_bytes());
    assert_eq!(superblock(&image).unwrap().0, Minor::V1_1);
    // A broken one is told of only when there is no good one.
    image.write(4096 + 300, &[9]);
    assert_eq!(superblock(&image).unwrap().0, Minor::V1_1);
    image.write(300, &[9]);
    assert!(superblock(&image).unwrap_err().message().contains("checksum"));
}
