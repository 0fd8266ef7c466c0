//! Arrays that crashed, and what Linux made of them: the partial parity log is replayed here, and
//! the members are the same then.

mod common;

use common::{Array, STRIPE, superblock, xor};
use drystone_raid::Role;
use drystone_raid::metadata::ppl::{self, HEADER_BYTES, PplHeader};
use drystone_raid::testing::{self, Image};

/// The newest header of a member's log, and its sector on the device.
fn newest(image: &Image) -> Option<(u64, PplHeader)> {
    let (_, own) = superblock(image).unwrap();
    let area = own.ppl().expect("PPL");
    let start = own.super_offset.checked_add_signed(area.offset.into()).unwrap();
    let read = |sector| Ok::<_, ()>(image.read((start + sector) * 512, HEADER_BYTES));
    let found = ppl::newest(area.sectors.into(), ppl::signature(own.set_uuid), read).unwrap();
    found.map(|(at, header)| (start + at, header))
}

/// Replays the log of every member, with the members in `lost` missing. Gives the number of
/// blocks of parity that were computed.
fn replay(images: &[Image], lost: &[usize]) -> (Array, usize) {
    let mut array = Array::of(images.to_vec());
    lost.iter().for_each(|role| array.members[*role] = None);
    let mut count = 0;
    for image in images.iter().enumerate().filter(|(i, _)| !lost.contains(i)).map(|(_, i)| i) {
        let Some((at, header)) = newest(image) else { continue };
        for (sector, entry) in header.entries_at(at) {
            let partial = image.read(sector * 512, entry.pp_size as usize);
            assert_eq!(ppl::crc32c(&partial), entry.checksum);
            for block in ppl::decode(entry, &array.layout, array.used).unwrap() {
                count += usize::from(replay_block(&mut array, &block, &partial));
            }
        }
    }
    (array, count)
}

fn replay_block(array: &mut Array, block: &ppl::ParityBlock, partial: &[u8]) -> bool {
    let touched = block.touched.iter().map(|address| array.block(address.role, address.sector));
    let Some(mut parts) = touched.collect::<Option<Vec<_>>>() else { return false };
    parts.extend(block.parity_at.map(|at| partial[at..at + 4096].to_vec()));
    let (image, data_offset) = array.members[block.role.index()].as_mut().unwrap();
    image.write((*data_offset + block.sector) * 512, &xor(&parts));
    true
}

#[test]
fn headers_are_those_of_linux() {
    let images = testing::members("r5-ls-ppl-torn");
    let (_, own) = superblock(&images[1]).unwrap();
    assert_eq!(ppl::signature(own.set_uuid), 0xAB68_9AA8);
    let (at, header) = newest(&images[1]).unwrap();
    assert_eq!((at, header.generation, header.entries.len()), (16 + 72, 6, 2));
    assert_eq!((header.entries[0].data_sector, header.entries[0].checksum), (24128, 0x2F26_2A38));
    assert_eq!((header.entries[1].data_sector, header.entries[1].pp_size), (24008, 28672));
    for image in images.iter().chain(&testing::members("r5-ls-ppl-crash")) {
        let (at, header) = newest(image).unwrap();
        assert!(header.to_bytes() == image.read(at * 512, HEADER_BYTES));
    }
}

#[test]
fn the_log_makes_the_members_those_of_linux() {
    let (array, count) = replay(&testing::members("r5-ls-ppl-torn"), &[]);
    assert!(count > 0);
    assert!(array.wrong_parity().is_empty());
    let after = Array::open("r5-ls-ppl-torn-after");
    for role in 0..4 {
        for sector in (0..array.used).step_by(STRIPE as usize) {
            assert!(
                array.block(Role(role), sector) == after.block(Role(role), sector),
                "{role} {sector}"
            );
        }
    }
}

/// The block's number is in it, unless it was one of those that were being written.
fn never_written(array: &Array) -> Vec<u64> {
    let wrong = |block: &u64| {
        let address = array.layout.map_sector(block * STRIPE);
        let written = [5..6, 1000..1003, 3001..3041].iter().any(|range| range.contains(block));
        let word = (0xB10C_0000_0000_0000 + block).to_le_bytes();
        !written && array.block_or_computed(address.role, address.sector) != word.repeat(512)
    };
    (0..array.blocks()).filter(wrong).collect()
}

#[test]
fn without_a_member_the_log_saves_what_was_never_written() {
    let (array, _) = replay(&testing::members("r5-ls-ppl-torn"), &[1]);
    assert!(never_written(&array).is_empty());
    // That is the write hole: without a log, blocks that nobody wrote are wrong.
    let mut array = Array::open("r5-ls-torn");
    array.members[1] = None;
    assert_eq!(never_written(&array), [984, 985, 986]);
}

#[test]
fn a_resync_makes_the_members_those_of_linux() {
    for vector in ["r5-ls-torn", "r5-ls-bitmap-torn"] {
        let mut array = Array::open(vector);
        for sector in array.wrong_parity() {
            let p = array.layout.row_at(sector).p;
            let parity = array.p(sector);
            let (image, data_offset) = array.members[p.index()].as_mut().unwrap();
            image.write((*data_offset + sector) * 512, &parity);
        }
        let after = Array::open(&format!("{vector}-after"));
        for role in 0..4 {
            for sector in (0..array.used).step_by(STRIPE as usize) {
                assert!(
                    array.block(Role(role), sector) == after.block(Role(role), sector),
                    "{role} {sector}"
                );
            }
        }
    }
}
