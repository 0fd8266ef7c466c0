//! Counts on disk that are near the upper limit of their field.

use super::*;
use crate::metadata::COUNT_MAX;
use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::ppl::PplHeader;
use crate::metadata::superblock::Superblock;

const BYTES: usize = 192 << 10;
const SUPERBLOCK: u64 = 8;
const BITMAP: u64 = 16;

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
    memory.put(SUPERBLOCK, &own.to_bytes());
}

/// Reads ones, writes twos, and reads these again after a stop.
fn serves(stand: &mut Stand) {
    stand.start();
    assert!(stand.reads(0, 1, BYTES) && stand.write(0, 2, BYTES).is_ok());
    stand.pass(16);
    stand.stop();
    stand.start();
    assert!(stand.reads(0, 2, BYTES));
    stand.stop();
}

#[test]
fn events_that_leave_no_room_are_refused() {
    const WHY: &str = "the number of updates (events) is 18446744073709551615, expected up to";
    for policy in [Policy::Resync, Policy::Bitmap, Policy::Ppl] {
        let mut stand = stopped(policy);
        change(&stand, 1, |own| own.events = u64::MAX);
        let assembly = stand.look().2.unwrap();
        let [(1, why)] = &assembly.left_out[..] else { panic!("{:?}", assembly.left_out) };
        assert!(why.starts_with("d1: ") && why.contains(WHY), "{why}");
        let why = assembly.start.to_string();
        assert!(why.contains("member 1 is missing but") && why.contains(WHY), "{why}");
        serves(&mut stand);
        let stand = stopped(policy);
        (0..4).for_each(|device| change(&stand, device, |own| own.events = u64::MAX));
        let why = stand.look().2.unwrap_err();
        assert!(why.starts_with("no device is of an array; d0: ") && why.contains(WHY), "{why}");
    }
}

#[test]
fn events_up_to_the_limit_are_counted_on() {
    for policy in [Policy::Resync, Policy::Bitmap] {
        let mut stand = stopped(policy);
        (0..4).for_each(|device| change(&stand, device, |own| own.events = COUNT_MAX - 20));
        if policy == Policy::Bitmap {
            for memory in &stand.memories {
                let mut header = BitmapHeader::parse(&memory.get(BITMAP, 512)).unwrap();
                (header.events, header.events_cleared) = (u64::MAX, u64::MAX);
                memory.put(BITMAP, &header.to_bytes());
            }
        }
        serves(&mut stand);
        let own = stand.memories[0].superblock();
        assert!((COUNT_MAX - 20..=COUNT_MAX).contains(&own.events), "{}", own.events);
        if policy == Policy::Bitmap {
            let header = BitmapHeader::parse(&stand.memories[0].get(BITMAP, 512)).unwrap();
            assert!(header.events <= own.events + 1, "{}", header.events);
        }
    }
}

#[test]
fn a_log_whose_generation_leaves_no_room_is_damaged() {
    let mut stand = stopped(Policy::Ppl);
    for memory in &stand.memories {
        let own = memory.superblock();
        let sector = own.super_offset.checked_add_signed(own.ppl().unwrap().offset.into()).unwrap();
        let signature = crate::metadata::ppl::signature(own.set_uuid);
        memory.put(sector, &PplHeader::empty(signature, u64::MAX).to_bytes());
    }
    let (_, candidates, _) = stand.look();
    let why = candidates[2].log_damage.as_ref().unwrap().to_string();
    assert!(
        why.contains("the generation of the PPL header is 18446744073709551615, expected up to"),
        "{why}"
    );
    serves(&mut stand);
    let (_, candidates, _) = stand.look();
    assert!(candidates.iter().all(|candidate| candidate.log_damage.is_none()), "made again");
}

#[test]
fn a_count_of_corrected_errors_ends_where_its_field_does() {
    let mut stand = stopped(Policy::Resync);
    change(&stand, 0, |own| own.cnt_corrected_read = u32::MAX - 3);
    let layout_start = stand.memories[0].superblock().data_offset;
    stand.memories[0].unreadable.store(layout_start + 3, Relaxed);
    stand.start();
    assert!(stand.reads(0, 1, BYTES));
    let status = stand.until("it is counted", |status| status.disks[0].corrected == u32::MAX);
    assert_eq!(status.degraded(), 0);
    stand.stop();
}
