//! Superblocks that contradict themselves, one another or their device. No write may hit another
//! area, and superblocks that Linux accepts are accepted.

use super::*;
use crate::ids::Role;
use crate::metadata::assemble::{Member, Start};
use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::superblock::{DevRole, Features, Minor, Superblock};
use stand::Memory;
use std::sync::Arc;

const BYTES: usize = 192 << 10;
/// The sector of the superblock; the bitmap of new arrays follows it.
const SUPERBLOCK: u64 = 8;
const BITMAP: u64 = 16;

/// A stopped array filled with ones.
fn stopped(policy: Policy) -> Stand {
    let mut stand = Stand::new(4);
    let chunk = (policy == Policy::Bitmap).then_some(64 << 10);
    stand.create_with(Level::Raid5, true, Some(policy), chunk);
    stand.start();
    assert!(stand.write(0, 1, BYTES).is_ok());
    stand.stop();
    stand
}

fn change(stand: &Stand, device: usize, change: impl FnOnce(&mut Superblock)) {
    let memory = &stand.memories[device];
    let mut own = memory.superblock();
    change(&mut own);
    memory.put(SUPERBLOCK, &own.to_bytes());
}

fn change_all(stand: &Stand, with: impl Fn(&mut Superblock)) {
    (0..stand.memories.len()).for_each(|device| change(stand, device, &with));
}

fn set_ppl_offset(own: &mut Superblock, offset: i16) {
    own.bitmap_or_ppl[..2].copy_from_slice(&offset.to_le_bytes());
}

fn refusal(stand: &mut Stand) -> String {
    stand.try_open().err().expect("it is refused").message
}

fn images(stand: &Stand) -> Vec<Vec<u8>> {
    stand.memories.iter().map(|memory| memory.image()).collect()
}

fn notices(stand: &Stand) -> String {
    stand.array.as_ref().unwrap().0.notices().join("\n")
}

/// Reads ones, writes twos, reads these also after a stop, and checks that parity fits.
fn serves(stand: &mut Stand) {
    stand.start();
    assert!(stand.reads(0, 1, BYTES) && stand.write(0, 2, BYTES).is_ok());
    stand.pass(16);
    stand.stop();
    stand.start();
    assert!(stand.reads(0, 2, BYTES));
    // Without a member no parity is left to compare.
    if stand.until("start", is_idle).degraded() == 0 {
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
    }
    stand.stop();
}

#[test]
fn a_member_that_says_another_size_takes_no_part() {
    for policy in [Policy::Ppl, Policy::Bitmap, Policy::Resync] {
        for device in [0, 1] {
            let mut stand = stopped(policy);
            // Its log would overlap the data, by the size that the other members have.
            change(&stand, device, |own| {
                own.size = 128;
                match policy {
                    Policy::Ppl => set_ppl_offset(own, own.data_offset as i16 + 1024),
                    Policy::Bitmap => {
                        own.bitmap_or_ppl = (own.data_offset as u32 + 1024).to_le_bytes()
                    }
                    Policy::Resync => {}
                }
            });
            let before = stand.memories[device].image();
            let assembly = stand.look().2.unwrap();
            assert_eq!(assembly.members[device], Member::Damaged { device }, "{policy:?}");
            assert_eq!(assembly.start, Start::Degraded { unexpected: None });
            assert!(
                assembly.left_out[0].1.contains("128 sectors are used on each member, expected")
            );
            serves(&mut stand);
            assert!(stand.memories[device].image() == before, "{policy:?}: it was written");
        }
    }
}

#[test]
fn sizes_and_numbers_that_no_device_has_are_refused() {
    let mut stand = stopped(Policy::Resync);
    change(&stand, 0, |own| own.size = u64::MAX - 127);
    serves(&mut stand);
    change_all(&stand, |own| own.size = u64::MAX - 127);
    let why = stand.look().2.unwrap_err();
    assert!(why.contains("18446744073709551488 sectors are used on each member"), "{why}");
    // A device that is in no table is a spare, as in Linux.
    let mut stand = stopped(Policy::Resync);
    change(&stand, 0, |own| own.dev_number = 1900);
    stand.start();
    let status = stand.until("recovery", |status| is_idle(status) && status.degraded() == 0);
    assert_eq!(status.disks.len(), 4);
    assert!(stand.reads(0, 1, BYTES));
}

#[test]
fn a_log_that_is_not_on_the_device_changes_nothing() {
    for offset in [8190 - 8, i16::MAX, i16::MIN, 0, 4] {
        let mut stand = stopped(Policy::Ppl);
        change(&stand, 2, |own| set_ppl_offset(own, offset));
        (stand.devices, stand.memories) =
            (stand.devices[..3].to_vec(), stand.memories[..3].to_vec());
        let before = images(&stand);
        let why = refusal(&mut stand);
        assert!(why.contains("2 of 4 members can be used"), "{why}");
        assert!(why.contains("d2: the partial parity log of 2048 sectors at offset"), "{why}");
        assert!(images(&stand) == before, "{offset}: something was written");
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_the_start_and_changes_nothing() {
    let mut stand = stopped(Policy::Ppl);
    stand.start();
    assert!(stand.write(0, 2, 4096).is_ok());
    stand.crash();
    let sector = stand.memories[2].superblock().ppl().unwrap().offset as u64 + SUPERBLOCK;
    stand.memories[2].read_only_sector.store(sector, Relaxed);
    let before = images(&stand);
    let why = refusal(&mut stand);
    assert!(why.contains("the partial parity log of d2 cannot be written"), "{why}");
    assert!(images(&stand) == before, "something was written");
    stand.memories[2].read_only_sector.store(u64::MAX, Relaxed);
    stand.start();
    assert!(stand.reads(0, 2, 4096));
    assert_eq!(stand.array.as_ref().unwrap().0.status().degraded(), 0);
}

/// mdadm 3.3 and 3.4 put the bad block list inside the bitmap.
#[test]
fn a_bad_block_log_in_the_bitmap_is_not_used() {
    let mut stand = stopped(Policy::Bitmap);
    change_all(&stand, |own| own.bblog_offset = 8);
    serves(&mut stand);
    stand.start();
    assert!(
        notices(&stand).contains("d0: the bad block log of 8 sectors at offset 8"),
        "{}",
        notices(&stand)
    );
    assert!(notices(&stand).contains("reaches into the bitmap: it is empty and not used"));
    // So a block that cannot be written fails its member, and the bitmap is not overwritten.
    stand.memories[1].bad_sector.store(stand.memories[1].superblock().data_offset, Relaxed);
    assert!(stand.write(0, 3, BYTES).is_ok());
    assert!(stand.states().contains(&DiskState::Faulty(Some(Role(1)))), "{:?}", stand.states());
    assert!(BitmapHeader::parse(&stand.memories[0].get(BITMAP, 512)).is_ok());
    stand.stop();
    // Bits of the bitmap must not be read as bad sectors.
    let mut stand = stopped(Policy::Bitmap);
    change_all(&stand, |own| {
        own.bblog_offset = 8;
        own.feature_map |= Features::BAD_BLOCKS;
    });
    let before = images(&stand);
    let why = refusal(&mut stand);
    assert!(why.contains("reaches into the bitmap: what it lists is not known"), "{why}");
    assert!(why.contains("force-no-bbl"), "{why}");
    assert!(images(&stand) == before);
}

#[test]
fn a_bad_block_log_in_a_partial_parity_log_is_not_used() {
    for (offset, what) in
        [(8, "the partial parity log"), (2055, "the partial parity log"), (4, "the superblock")]
    {
        let mut stand = stopped(Policy::Ppl);
        change(&stand, 1, |own| own.bblog_offset = offset);
        serves(&mut stand);
        stand.start();
        assert!(notices(&stand).contains(&format!("reaches into {what}")), "{}", notices(&stand));
        stand.stop();
        change(&stand, 1, |own| own.feature_map |= Features::BAD_BLOCKS);
        assert_eq!(stand.look().2.unwrap().members[1], Member::Damaged { device: 1 });
    }
}

/// An array from 2008 to 2012: its bitmap lies two sectors behind the superblock's start.
fn with_bitmap_in_the_superblock(reserved: u32) -> Stand {
    let stand = stopped(Policy::Bitmap);
    for memory in &stand.memories {
        let mut header = BitmapHeader::parse(&memory.get(BITMAP, 512)).unwrap();
        header.sectors_reserved = reserved;
        let mut bytes = memory.get(BITMAP, 512);
        bytes[..256].copy_from_slice(&header.to_bytes());
        memory.put(SUPERBLOCK + 2, &bytes);
        memory.put(SUPERBLOCK + 3, &[0xEE; 512 * 13]);
    }
    change_all(&stand, |own| (own.bitmap_or_ppl, own.bblog_offset) = (2i32.to_le_bytes(), 0));
    stand
}

#[test]
fn a_bitmap_near_the_superblock_is_written_as_far_as_its_bits_need() {
    for reserved in [0, 1, 6] {
        let mut stand = with_bitmap_in_the_superblock(reserved);
        serves(&mut stand);
        stand.start();
        assert!(stand.write(0, 3, 4096).is_ok());
        for memory in &stand.memories {
            let bytes = memory.get(SUPERBLOCK + 2, 512);
            assert!(
                BitmapHeader::parse(&bytes).is_ok() && bytes[256] & 1 == 1,
                "its first bit is set"
            );
            assert!(
                memory.get(SUPERBLOCK + 3, 512 * 13) == [0xEE; 512 * 13],
                "what follows is not its"
            );
        }
        stand.crash();
        stand.start();
        assert!(stand.reads(0, 3, 4096));
    }
    let mut stand = with_bitmap_in_the_superblock(0);
    for memory in &stand.memories {
        memory.block.store(4096, Relaxed);
    }
    let before = images(&stand);
    let why = refusal(&mut stand);
    assert!(
        why.contains("begins 2 sectors from the superblock, inside a block of the device"),
        "{why}"
    );
    stand.is_read_only = true;
    stand.start();
    assert!(stand.reads(0, 1, BYTES));
    stand.stop();
    assert!(images(&stand) == before);
}

/// The same where the superblock is at the start or end of the device. Behind the bits the bitmap
/// has nothing more; behind a superblock of version 1.0 the device ends.
#[test]
fn a_bitmap_near_any_superblock_is_written_as_far_as_its_bits_need() {
    for minor in Minor::ALL {
        let mut stand = Stand::new(4);
        stand.create_minor(minor, Level::Raid5, true, Some(Policy::Bitmap), Some(64 << 10));
        for memory in &stand.memories {
            let mut own = memory.superblock_of(minor);
            let offset = i32::from_le_bytes(own.bitmap_or_ppl);
            let bitmap = own.super_offset.strict_add_signed(offset.into());
            let mut bytes = memory.get(bitmap, 512);
            let mut header = BitmapHeader::parse(&bytes).unwrap();
            header.sectors_reserved = 0;
            bytes[..256].copy_from_slice(&header.to_bytes());
            memory.put(bitmap, &vec![0xEE; 512]);
            (own.bitmap_or_ppl, own.bblog_offset) = (2i32.to_le_bytes(), 0);
            memory.put(own.super_offset + 3, &[0xEE; 512 * 13]);
            memory.put(own.super_offset + 2, &bytes);
            memory.put(own.super_offset, &own.to_bytes());
        }
        let first_byte = |stand: &Stand| -> Vec<u8> {
            let bits = |memory: &Arc<Memory>| {
                let own = memory.superblock_of(minor);
                let behind = memory.get(own.super_offset + 3, 512 * 13);
                assert!(behind == [0xEE; 512 * 13], "{minor:?}: what follows is not its");
                let bytes = memory.get(own.super_offset + 2, 512);
                assert!(BitmapHeader::parse(&bytes).is_ok(), "{minor:?}");
                bytes[256]
            };
            stand.memories.iter().map(bits).collect()
        };
        stand.start();
        assert!(stand.write(0, 3, 4096).is_ok());
        assert!(
            first_byte(&stand).iter().all(|bits| bits & 1 == 1),
            "{minor:?}: its first bit is set"
        );
        stand.crash();
        // The bit was read: its chunk is synchronised, and nothing else.
        stand.start();
        assert!(stand.reads(0, 3, 4096), "{minor:?}");
        stand.until("synchronised", is_idle);
        stand.pass(16);
        stand.stop();
        assert_eq!(first_byte(&stand), [0; 4], "{minor:?}: no bit is left");
    }
}

#[test]
fn what_begins_inside_a_block_of_the_device_is_refused_or_not_used() {
    type Change = fn(&mut Superblock);
    let data: Change = |own| {
        own.data_offset += 1;
        (own.data_size, own.size) = (own.data_size - 1, own.size - 128);
    };
    let log: Change = |own| set_ppl_offset(own, 9);
    let list: Change = |own| own.bblog_offset += 1;
    for (policy, with, refused) in [
        (Policy::Resync, data, Some("the data at sector 2049 begins inside a block")),
        (Policy::Ppl, log, Some("the partial parity log at sector 17 begins inside a block")),
        (Policy::Resync, list, None),
    ] {
        for block in [512, 4096] {
            let stand = stopped(policy);
            change_all(&stand, with);
            let mut stand = Stand::of(images(&stand));
            stand.memories.iter().for_each(|memory| memory.block.store(block, Relaxed));
            let before = images(&stand);
            if let (4096, Some(sentence)) = (block, refused) {
                let why = refusal(&mut stand);
                assert!(why.contains(sentence) && why.contains("which has 4096 bytes"), "{why}");
                assert!(images(&stand) == before, "something was written");
                continue;
            }
            stand.start();
            let told = notices(&stand);
            assert_eq!(told.contains("begins inside a block"), block == 4096, "{told}");
            assert!(stand.write(0, 3, BYTES).is_ok() && stand.reads(0, 3, BYTES));
            stand.stop();
        }
    }
    // The contents of the bad block list are not known.
    let stand = stopped(Policy::Resync);
    change_all(&stand, |own| {
        own.bblog_offset += 1;
        own.feature_map |= Features::BAD_BLOCKS;
    });
    let mut stand = Stand::of(images(&stand));
    stand.memories.iter().for_each(|memory| memory.block.store(4096, Relaxed));
    let why = refusal(&mut stand);
    assert!(why.contains("the bad block log at sector 25 begins inside a block"), "{why}");
}

#[test]
fn a_size_of_part_of_a_chunk_is_rounded_and_kept() {
    for policy in [Policy::Resync, Policy::Bitmap, Policy::Ppl] {
        let mut stand = stopped(policy);
        let size = stand.memories[0].superblock().size - 120;
        change_all(&stand, |own| own.size = size);
        serves(&mut stand);
        stand.start();
        let bytes = stand.array.as_ref().unwrap().0.info().size_bytes;
        assert_eq!(bytes, (size - 8) * 512 * 3, "{policy:?}");
        assert!(stand.write(bytes / 512 - 8, 5, 4096).is_ok());
        stand.stop();
        assert!(stand.memories.iter().all(|memory| memory.superblock().size == size));
    }
    let stand = stopped(Policy::Resync);
    change_all(&stand, |own| own.size = 127);
    assert!(
        stand
            .look()
            .2
            .unwrap_err()
            .contains("127 sectors are used on each member, expected at least a chunk")
    );
}

#[test]
fn the_logical_block_of_the_array_is_kept() {
    let mut stand = stopped(Policy::Resync);
    change_all(&stand, |own| own.logical_block_size = 4096);
    serves(&mut stand);
    stand.start();
    assert_eq!(stand.array.as_ref().unwrap().0.info().limits.logical_block_size, 4096);
    assert!(!stand.write(1, 3, 512).is_ok(), "a part of a block");
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    let (name, device) = ("d4".to_owned(), stand.devices[4].clone());
    stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
    stand.stop();
    assert!(stand.memories.iter().all(|memory| memory.superblock().logical_block_size == 4096));
}

/// A stopped array with a bitmap of two sectors, and a spare.
fn with_two_sectors_of_bits() -> Stand {
    let mut stand = Stand::of(vec![vec![0; 16 << 20]; 4]);
    stand.create_with(Level::Raid5, true, Some(Policy::Bitmap), Some(4096));
    stand.start();
    stand.add_device(vec![0; 16 << 20]);
    let (name, device) = ("d4".to_owned(), stand.devices[4].clone());
    stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
    stand.stop();
    let header = BitmapHeader::parse(&stand.memories[0].get(BITMAP, 512)).unwrap();
    assert_eq!(header.sectors_for(stand.memories[0].superblock().size), 2);
    stand
}

/// The bits are written to every member by one header, not by each member's own.
#[test]
fn a_bitmap_that_is_longer_than_a_member_says_changes_nothing() {
    type Change = fn(&mut Superblock);
    let before_data: Change = |own| {
        let offset = own.data_offset - own.super_offset - 1;
        own.bitmap_or_ppl = (offset as u32).to_le_bytes();
    };
    let before_list: Change = |own| {
        own.bitmap_or_ppl = 8u32.to_le_bytes();
        (own.bblog_offset, own.bblog_size) = (9, 8);
    };
    let in_data: Change = |own| {
        own.size = 0;
        own.bitmap_or_ppl = ((own.data_offset - own.super_offset) as u32).to_le_bytes();
    };
    for (device, with, what) in [
        (1, before_data, "d1: the bitmap of 2 sectors at offset"),
        (
            1,
            before_list,
            "the bitmap of d1, whose bits need 2 sectors, reaches into its bad block log",
        ),
        (4, in_data, "d4: the bitmap of 1 sectors at offset"),
    ] {
        let mut stand = with_two_sectors_of_bits();
        // The member has no readable header.
        stand.memories[device].put(BITMAP, &[0; 512]);
        change(&stand, device, with);
        let before = images(&stand);
        let why = refusal(&mut stand);
        assert!(why.contains(what), "{why}");
        assert!(images(&stand) == before, "something was written");
        assert_eq!(stand.look().2.unwrap().lost(), 0);
    }
}

/// It would be the freshest superblock at the next start, which would refuse such a flag.
#[test]
fn flags_that_the_freshest_superblock_does_not_have_are_not_kept() {
    for flag in [Features::CLUSTERED, Features::RESHAPE_ACTIVE, Features::JOURNAL] {
        let mut stand = stopped(Policy::Resync);
        (1..4).for_each(|device| change(&stand, device, |own| own.events += 1));
        change(&stand, 0, |own| own.feature_map |= flag);
        serves(&mut stand);
        assert!(!stand.memories[0].superblock().feature_map.contains(flag), "{flag:?}");
    }
}

/// A crash while `mdadm --grow --size` updates the members leaves some with the old size: they are
/// one event behind.
#[test]
fn members_that_were_not_told_of_a_new_size_are_used_with_it() {
    for policy in [Policy::Ppl, Policy::Bitmap, Policy::Resync] {
        let mut stand = stopped(policy);
        let size = stand.memories[0].superblock().size;
        (0..2).for_each(|device| change(&stand, device, |own| own.events += 1));
        (2..4).for_each(|device| change(&stand, device, |own| own.size -= 256));
        stand.start();
        assert_eq!(stand.array.as_ref().unwrap().0.status().degraded(), 0, "{policy:?}");
        stand.stop();
        serves(&mut stand);
        assert!(stand.memories.iter().all(|memory| memory.superblock().size == size));
    }
}

#[test]
fn a_member_that_has_no_room_for_a_new_size_takes_no_part() {
    let mut stand = stopped(Policy::Ppl);
    (0..3).for_each(|device| change(&stand, device, |own| own.events += 1));
    // By its own superblock, its log lies behind its data.
    change(&stand, 3, |own| {
        own.size = 128;
        set_ppl_offset(own, own.data_offset as i16 + 1024);
    });
    let before = stand.memories[3].image();
    let assembly = stand.look().2.unwrap();
    assert_eq!(assembly.members[3], Member::Damaged { device: 3 });
    let why = &assembly.left_out[0].1;
    assert!(why.contains("it was not told that") && why.contains("reaches into the data"), "{why}");
    serves(&mut stand);
    assert!(stand.memories[3].image() == before, "it was written");
}

/// The same for a spare whose superblock does not have its new role yet, after the member failed:
/// the array starts without it, and nothing is written to it.
#[test]
fn a_spare_that_has_no_room_for_its_role_takes_no_part() {
    let mut stand = with_two_sectors_of_bits();
    (0..4).for_each(|device| {
        change(&stand, device, |own| {
            own.events += 1;
            (own.roles[1], own.roles[4]) = (DevRole::Faulty.number(), 1);
        });
    });
    change(&stand, 4, |own| {
        own.size = 0;
        own.feature_map |= Features::BAD_BLOCKS;
        own.bblog_offset = (own.data_offset - own.super_offset) as i32;
        own.bblog_size = 8;
    });
    let before = stand.memories[4].image();
    let assembly = stand.look().2.unwrap();
    assert_eq!(assembly.lost(), 1);
    let whys: Vec<_> = assembly.left_out.iter().map(|(_, why)| why.as_str()).collect();
    assert!(whys.iter().any(|why| why.starts_with("d4: it was not told that")), "{whys:?}");
    stand.start();
    assert_eq!(stand.array.as_ref().unwrap().0.status().degraded(), 1);
    stand.stop();
    assert!(stand.memories[4].image() == before, "it was written");
}
