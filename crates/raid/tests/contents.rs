//! The data of arrays of Linux, read through the layout: whole, with members lost, and their
//! parity.

mod common;

use common::{Array, STRIPE, add_product, meta, power, sha256, xor};
use drystone_raid::Role;
use drystone_raid::layout::Level;
use drystone_raid::testing;

/// Vectors whose data is stored.
fn vectors() -> Vec<String> {
    let stored = |vector: &String| {
        !vector.ends_with("-hash") && meta(vector)["logical_sha256"].as_str().is_some()
    };
    testing::names().into_iter().filter(stored).collect()
}

#[test]
fn images_are_decoded_to_what_they_were() {
    for vector in testing::names() {
        let meta = meta(&vector);
        for (index, image) in testing::members(&vector).iter().enumerate() {
            let member = &meta["members"][index];
            let whole = !vector.ends_with("-hash") && (&vector[..], index) != ("r5-ls-journal", 4);
            let bytes = if vector == "r5-1T-meta" { 2 << 20 } else { image.bytes() as usize };
            assert_eq!(member["image_bytes"].as_u64(), Some(image.bytes()), "{vector} m{index}");
            if whole {
                let sum = sha256(&image.read(0, bytes));
                assert_eq!(member["image_sha256"].as_str().unwrap(), sum, "{vector} m{index}");
            }
        }
    }
}

#[test]
fn arrays_hold_what_was_written() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 42, "{vectors:?}");
    for vector in vectors {
        let meta = meta(&vector);
        let array = Array::open(&vector);
        let blocks = meta["logical_blocks_4k"].as_u64().unwrap();
        assert_eq!(blocks, array.blocks(), "{vector}");
        assert_eq!(array.logical_sha256(blocks), meta["logical_sha256"], "{vector}");
    }
}

#[test]
fn parity_is_that_of_linux() {
    for vector in vectors() {
        let wrong = Array::open(&vector).wrong_parity();
        let meta = meta(&vector);
        let expected = meta["bad_parity_member_sectors"].as_array();
        let expected: Vec<u64> =
            expected.into_iter().flatten().map(|sector| sector.as_u64().unwrap()).collect();
        assert_eq!(wrong, expected, "{vector}");
    }
}

/// Losing members changes nothing of what is read: each block of theirs is computed again.
fn survives(vector: &str, lost: &[usize], array: &mut Array) {
    let gone: Vec<_> = lost.iter().map(|role| array.members[*role].take().unwrap()).collect();
    // Every chunk in every place of the layout: as many rows as members.
    let sectors = (array.layout.chunk_sectors() * u64::from(array.layout.disks())).min(array.used);
    for sector in (0..sectors).step_by(STRIPE as usize) {
        for (role, (image, data_offset)) in lost.iter().zip(&gone) {
            let computed = array.block_or_computed(Role(*role as u32), sector);
            let stored = image.read_sectors(data_offset + sector, STRIPE);
            assert!(computed == stored, "{vector} without {lost:?}: member {role}, {sector}");
        }
    }
    lost.iter().zip(gone).for_each(|(role, member)| array.members[*role] = Some(member));
}

#[test]
fn any_members_that_may_be_lost_may_be_lost() {
    let torn = |vector: &String| vector.ends_with("-torn");
    for vector in vectors().into_iter().filter(|vector| !torn(vector)) {
        let mut array = Array::open(&vector);
        let disks = array.members.len();
        if array.members.iter().any(Option::is_none) {
            continue;
        }
        (0..disks).for_each(|role| survives(&vector, &[role], &mut array));
        if array.layout.level() == Level::Raid6 {
            let pairs = (0..disks).flat_map(|a| (a + 1..disks).map(move |b| [a, b]));
            pairs.for_each(|pair| survives(&vector, &pair, &mut array));
        }
    }
}

/// The word `index` of the rule `hash`.
fn mix(index: u64) -> u64 {
    let z = index.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn chunks_of_data_and_parity_are_those_of_linux() {
    for vector in ["r5-ls-hash", "r6-ls-hash"] {
        let layout = Array::open(vector).layout;
        let bytes = layout.chunk_sectors() * 512;
        let chunk = |number: u64| -> Vec<u8> {
            (number * bytes / 8..(number + 1) * bytes / 8)
                .flat_map(|i| mix(i).to_le_bytes())
                .collect()
        };
        let mut lines = 0;
        for line in testing::text(vector, "chunks.txt").lines().filter(|l| !l.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let (role, row): (u32, u64) = (words[0].parse().unwrap(), words[1].parse().unwrap());
            let (role, holders) = (Role(role), layout.row(row));
            let at = |slot: u32| chunk(row * u64::from(layout.data_disks()) + u64::from(slot));
            let slots = 0..layout.data_disks();
            let (kind, content) = match holders.slot(role) {
                Some(slot) => (format!("D{slot}"), at(slot)),
                None if role == holders.p => ("P".to_owned(), parity(slots.map(|s| (1, at(s))))),
                None => {
                    let factor = |slot| power(holders.power(holders.data(slot)));
                    ("Q".to_owned(), parity(slots.map(|slot| (factor(slot), at(slot)))))
                }
            };
            assert_eq!((kind.as_str(), sha256(&content).as_str()), (words[2], words[3]), "{line}");
            lines += 1;
        }
        assert!(lines > 100);
    }
}

fn parity(parts: impl Iterator<Item = (u8, Vec<u8>)>) -> Vec<u8> {
    let mut sum = Vec::new();
    for (factor, part) in parts {
        sum.resize(part.len(), 0);
        add_product(&mut sum, factor, &part);
    }
    sum
}

#[test]
fn the_slow_arithmetic_is_that_of_the_field() {
    let powers =
        [1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x1D, 0x3A, 0x74, 0xE8, 0xCD, 0x87, 0x13, 0x26];
    assert_eq!((0..16).map(power).collect::<Vec<_>>(), powers);
    assert_eq!((power(255), power(254)), (1, 0x8E));
    assert_eq!(xor(&[vec![3; 4096], vec![5; 4096]]), vec![6; 4096]);
}
