//! Members with a valid superblock whose other metadata is damaged.

use super::*;
use crate::metadata::assemble::{Member, Start};
use crate::metadata::ppl;
use crate::metadata::superblock::{Features, Superblock};

const BYTES: usize = 192 << 10;

/// A stopped array filled with ones.
fn stopped(policy: Policy) -> Stand {
    let mut stand = Stand::new(4);
    stand.create_with(Level::Raid5, true, Some(policy), None);
    stand.start();
    assert!(stand.write(0, 1, BYTES).is_ok());
    stand.stop();
    stand
}

fn change(stand: &Stand, device: usize, change: impl FnOnce(&mut Superblock)) {
    let memory = &stand.memories[device];
    let mut own = memory.superblock();
    change(&mut own);
    memory.put(8, &own.to_bytes());
}

/// Puts an entry of length 0 into a member's bad block list.
fn damage_list(stand: &Stand, device: usize) {
    let own = stand.memories[device].superblock();
    let sector = own.super_offset.checked_add_signed(own.bblog_offset.into()).unwrap();
    stand.memories[device].put(sector, &[0, 4, 0, 0, 0, 0, 0, 0]);
    change(stand, device, |own| own.feature_map |= Features::BAD_BLOCKS);
}

/// Places the bad block list beyond the device.
fn damage_list_place(stand: &Stand, device: usize) {
    change(stand, device, |own| {
        own.feature_map |= Features::BAD_BLOCKS;
        own.bblog_offset = 2_000_000_000;
    });
}

/// Places the log in the middle of a member's data.
fn damage_log_place(stand: &Stand, device: usize) {
    change(stand, device, |own| {
        let [_, _, low, high] = own.bitmap_or_ppl;
        let [a, b] = ((own.data_offset - own.super_offset) as i16).to_le_bytes();
        own.bitmap_or_ppl = [a, b, low, high];
    });
}

/// The sector at which the partial parity log begins.
fn log_sector(own: &Superblock) -> u64 {
    own.super_offset.checked_add_signed(own.ppl().unwrap().offset.into()).unwrap()
}

type Damage = fn(&Stand, usize);

/// The policy of the array, the damage, and the message about it.
const DAMAGES: [(Policy, Damage, &str); 3] = [
    (Policy::Resync, damage_list_place, "the bad block log of 8 sectors at offset 2000000000"),
    (Policy::Resync, damage_list, "entry 0 of the bad block log is 0 units"),
    (Policy::Ppl, damage_log_place, "the partial parity log of 2048 sectors at offset"),
];

#[test]
fn the_array_starts_without_a_member_that_is_damaged() {
    for (policy, damage, field) in DAMAGES {
        let mut stand = stopped(policy);
        damage(&stand, 1);
        let assembly = stand.look().2.unwrap();
        assert_eq!(assembly.members[1], Member::Damaged { device: 1 });
        assert_eq!(assembly.start, Start::Degraded { unexpected: None }, "it does not come later");
        stand.start();
        let (array, _) = stand.array.as_ref().unwrap();
        let [why] = array.left_out() else { panic!("{:?}", array.left_out()) };
        assert!(why.starts_with("d1: ") && why.contains(field), "{why}");
        assert_eq!(array.status().degraded(), 1);
        assert!(stand.reads(0, 1, BYTES) && stand.write(0, 2, BYTES).is_ok());
        // The device may be a member again after its metadata was made anew.
        let (name, device) = ("d1".to_owned(), stand.devices[1].clone());
        stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
        stand.until("recovery", |status| is_idle(status) && status.degraded() == 0);
        stand.stop();
        stand.start();
        assert!(stand.array.as_ref().unwrap().0.left_out().is_empty());
        assert!(stand.reads(0, 2, BYTES));
    }
}

#[test]
fn an_array_that_needs_a_damaged_member_is_refused() {
    for (policy, damage, field) in DAMAGES {
        let mut stand = stopped(policy);
        damage(&stand, 1);
        stand.memories.remove(2);
        stand.devices.remove(2);
        for is_forced in [false, true] {
            stand.is_forced = is_forced;
            let Err(error) = stand.try_open() else { panic!("it starts") };
            let text = &error.message;
            assert!(text.contains("2 of 4 members can be used, expected at least 3"), "{text}");
            assert!(text.contains("member 1 (d1: ") && text.contains(field), "{text}");
        }
    }
}

#[test]
fn a_bad_sector_under_the_bad_block_log_is_damage_too() {
    let mut stand = stopped(Policy::Resync);
    change(&stand, 3, |own| own.feature_map |= Features::BAD_BLOCKS);
    let own = stand.memories[3].superblock();
    let sector = own.super_offset.checked_add_signed(own.bblog_offset.into()).unwrap();
    stand.memories[3].bad_sector.store(sector + 7, Relaxed);
    stand.start();
    let left_out = stand.array.as_ref().unwrap().0.left_out().to_vec();
    assert!(left_out[0].contains("d3: the bad block log cannot be read"), "{left_out:?}");
    assert!(stand.reads(0, 1, BYTES));
}

/// The other logs do not have all writes then, so the whole array is resynced.
#[test]
fn parity_is_not_trusted_after_a_crash_when_a_log_is_damaged() {
    for is_damaged in [false, true] {
        let mut stand = stopped(Policy::Ppl);
        stand.start();
        let layout = stand.array.as_ref().unwrap().0.status().layout;
        let row = layout.row_sectors();
        let parity = layout.row(0).p.index();
        // Two members have logs of the last writes.
        for at in [0, row] {
            assert!(stand.write(at, 2, 4096).is_ok());
        }
        stand.crash();
        if is_damaged {
            let own = stand.memories[parity].superblock();
            let sector = log_sector(&own);
            stand.memories[parity].put(sector, &[0; 4096]);
            stand.memories[parity].put(own.data_offset, &[9; 4096]);
        }
        stand.start();
        let notices = stand.array.as_ref().unwrap().0.notices().join("\n");
        let says =
            format!("d{parity}: partial parity log: there is no PPL header: the signature is 0");
        assert_eq!(notices.contains(&says), is_damaged, "{notices}");
        assert_eq!(stand.array.as_ref().unwrap().0.status().sync.is_some(), is_damaged);
        let status = stand.until("resync", is_idle);
        assert_eq!(status.mismatch_cnt > 0, is_damaged);
        assert_eq!(status.degraded(), 0);
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
    }
}

/// An array with logs that crashed while it was written, without its member 2. `damage` is done to
/// the log of the member with the parity of the last write.
fn crashed_without_a_member(damage: impl FnOnce(&Stand, usize, u64)) -> (Stand, usize) {
    let mut stand = stopped(Policy::Ppl);
    stand.start();
    let parity = stand.array.as_ref().unwrap().0.status().layout.row(0).p.index();
    assert_ne!(parity, 2);
    assert!(stand.write(0, 2, 4096).is_ok());
    stand.crash();
    let sector = log_sector(&stand.memories[parity].superblock());
    damage(&stand, parity, sector);
    stand.memories.remove(2);
    stand.devices.remove(2);
    (stand, parity)
}

#[test]
fn dirty_and_degraded_is_refused_when_a_header_of_a_log_is_lost() {
    for (is_read_only, byte) in [(false, 600), (true, 600), (false, 512)] {
        let (mut stand, parity) = crashed_without_a_member(|stand, parity, sector| {
            let mut header = stand.memories[parity].get(sector, ppl::HEADER_BYTES);
            header[byte] ^= 1;
            stand.memories[parity].put(sector, &header);
        });
        stand.is_read_only = is_read_only;
        let Err(error) = stand.try_open() else { panic!("it starts") };
        let (text, name) = (&error.message, format!("(d{parity}: partial parity log: "));
        let field = if byte == 512 { "the signature is" } else { "PPL header checksum is" };
        assert!(text.contains("not stopped cleanly and lacks member 2 (missing)"), "{text}");
        assert!(text.contains(&name) && text.contains(field), "{text}");
        stand.is_forced = true;
        stand.start();
        let array = &stand.array.as_ref().unwrap().0;
        assert!(array.doubtful_ranges().is_some());
        assert!(array.notices()[0].contains(field), "{:?}", array.notices());
    }
}

/// The entry was being written when the power failed, so no block was written after it.
#[test]
fn a_torn_entry_of_a_log_refuses_nothing_and_is_told() {
    let (mut stand, parity) = crashed_without_a_member(|stand, parity, sector| {
        stand.memories[parity].put(sector + 8, &[0xA5; 4096]);
    });
    stand.start();
    let array = &stand.array.as_ref().unwrap().0;
    let says =
        format!("d{parity}: partial parity log: the checksum of an entry's partial parity is");
    assert!(array.notices()[0].starts_with(&says), "{:?}", array.notices());
}

#[test]
fn a_log_that_is_lost_of_an_array_that_was_stopped_is_only_told() {
    let stand = stopped(Policy::Ppl);
    let sector = log_sector(&stand.memories[1].superblock());
    stand.memories[1].bad_sector.store(sector, Relaxed);
    let (_, _, assembly) = stand.look();
    let assembly = assembly.unwrap();
    assert_eq!(assembly.start, Start::Whole);
    assert!(
        assembly.logs_lost[0].starts_with("d1: partial parity log: the PPL header cannot be read")
    );
}

/// The unit of a member's empty list has no meaning: the next list counts in sectors, and is found
/// again.
#[test]
fn the_unit_of_an_empty_list_of_bad_blocks_does_no_harm() {
    for shift in [3, 20, 33, 255] {
        // A superblock that has bad blocks and an impossible unit is damaged.
        for is_flagged in if shift > 32 { &[false][..] } else { &[false, true] } {
            let is_flagged = *is_flagged;
            let mut stand = stopped(Policy::Resync);
            change(&stand, 0, |own| {
                own.bblog_shift = shift;
                own.feature_map.set(Features::BAD_BLOCKS, is_flagged);
            });
            stand.start();
            assert_eq!(stand.array.as_ref().unwrap().0.status().degraded(), 0, "it takes part");
            let bad = stand.memories[0].superblock().data_offset + 8;
            stand.memories[0].bad_sector.store(bad, Relaxed);
            assert!(stand.write(0, 2, BYTES).is_ok());
            let status = stand.until("it is listed", |status| status.disks[0].has_bad_blocks);
            assert_eq!(status.degraded(), 0);
            stand.crash();
            let own = stand.memories[0].superblock();
            let expected = if is_flagged { shift } else { 0 };
            assert_eq!(own.bblog_shift, expected);
            let sector = own.super_offset.checked_add_signed(own.bblog_offset.into()).unwrap();
            let entry = u64::from_le_bytes(stand.memories[0].get(sector, 8).try_into().unwrap());
            let units = 8u64.div_ceil(1 << expected);
            assert_eq!(entry, bad >> expected << 10 | units, "{shift}");
            // Everything except these blocks is read from the member again.
            stand.start();
            assert!(stand.array.as_ref().unwrap().0.left_out().is_empty());
            assert!(stand.reads(0, 2, BYTES));
            stand.stop();
        }
    }
}

#[test]
fn a_list_of_sectors_that_the_device_does_not_have_is_damaged() {
    let mut stand = stopped(Policy::Resync);
    let (own, sectors) = (stand.memories[1].superblock(), stand.memories[1].sectors());
    let sector = own.super_offset.checked_add_signed(own.bblog_offset.into()).unwrap();
    let log = [(sectors << 10 | 8).to_le_bytes(), [0xFF; 8]].concat();
    stand.memories[1].put(sector, &log);
    change(&stand, 1, |own| own.feature_map |= Features::BAD_BLOCKS);
    stand.start();
    let left_out = stand.array.as_ref().unwrap().0.left_out().to_vec();
    let says = format!("entry 0 of the bad block log is 8 units at {sectors}, expected 1 to 512");
    assert!(left_out[0].contains(&says), "{left_out:?}");
    assert!(stand.reads(0, 1, BYTES));
    stand.stop();
}
