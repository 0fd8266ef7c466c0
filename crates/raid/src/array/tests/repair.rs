//! Blocks that members could not read, or did not get, and I/O on its way to members that leave.

use super::*;
use crate::ids::Role;
use drystone_core::clock::{Clock, ManualClock};
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, IoBuf, Sector};
use std::sync::Arc;

fn started(disks: usize) -> Stand {
    let mut stand = Stand::new(disks);
    stand.create(Level::Raid5, true);
    stand.start();
    stand
}

fn add(stand: &mut Stand, n: usize) {
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    let (name, device) = (format!("d{n}"), stand.devices[n].clone());
    stand.command(Command::Add { name, device, uuid: uuid(n as u8) }).unwrap();
}

fn data_offset(stand: &Stand, disk: usize) -> u64 {
    stand.memories[disk].superblock().data_offset
}

/// True if parity fits in the first row, which has three data blocks, and parity on the last
/// member.
fn parity_fits(stand: &Stand) -> bool {
    let blocks: Vec<_> =
        (0..4).map(|d| stand.memories[d].get(data_offset(stand, d), 4096)).collect();
    (0..4096).all(|at| blocks.iter().fold(0, |sum, block| sum ^ block[at]) == 0)
}

/// If a resync left out a block that cannot be read now, the error would show later, when a data
/// block is computed from it.
#[test]
fn parity_that_cannot_be_read_is_recomputed() {
    let mut stand = started(4);
    stand.write(0, 1, 64 << 10);
    stand.crash();
    let sector = data_offset(&stand, 3);
    stand.memories[3].put(sector, &[9; 4096]);
    stand.memories[3].unreadable.store(sector + 2, Relaxed);
    stand.start();
    stand.until("resync", is_idle);
    assert!(parity_fits(&stand), "after a resync");
    for action in [SyncAction::Check, SyncAction::Repair] {
        stand.memories[3].unreadable.store(sector, Relaxed);
        stand.command(Command::Sync(action)).unwrap();
        let status = stand.until("it", is_idle);
        assert_eq!(stand.memories[3].unreadable.load(Relaxed), u64::MAX, "{action:?} heals it");
        assert!(status.mismatch_cnt == 0 && status.disks[3].corrected > 0);
    }
}

/// Two of six members hold parity. If one can be read, that says nothing about the other.
#[test]
fn one_parity_is_recomputed_beside_the_other() {
    let mut stand = Stand::new(6);
    stand.create(Level::Raid6, true);
    stand.start();
    stand.write(0, 1, 256 << 10);
    for victim in 0..6 {
        let sector = data_offset(&stand, victim);
        let before = stand.memories[victim].get(sector, 4096);
        stand.memories[victim].put(sector, &[9; 4096]);
        stand.memories[victim].unreadable.store(sector, Relaxed);
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
        assert_eq!(stand.memories[victim].get(sector, 4096), before, "d{victim}");
    }
}

/// An array whose power failed while a block went to a member and to its replacement. The
/// replacement is recorded as having this block, but did not get it.
fn cut_beside_a_replacement(policy: Option<Policy>) -> Stand {
    let (mut stand, _) = replacing_with(1, policy);
    stand.memories[4].hold();
    // The first block of `d1`, which the replacement has had already.
    stand.begin(Bio::write(Sector(128), IoBuf::from_slice(&[77; 4096])));
    (0..50).for_each(|_| drop((stand.ended(), stand.turn())));
    assert_eq!(stand.memories[1].get(data_offset(&stand, 1), 4096), [77; 4096]);
    let recovered = stand.memories[4].superblock().recovery_offset;
    assert!(recovered > 8, "it is on record that it has it");
    stand.power.goes_after(0);
    stand.memories[4].release();
    stand.crash();
    stand
}

/// The member is replaced completely, and its replacement holds the same data.
fn is_replaced_well(stand: &mut Stand, what: &str) {
    stand.start();
    let fast = Some(1 << 20);
    stand.command(Command::Speed { min: fast, max: fast }).unwrap();
    stand.until("the end", |status| {
        is_idle(status) && status.disks.iter().any(|d| d.state == DiskState::Faulty(Some(Role(1))))
    });
    let device = stand.memories[4].superblock().data_offset;
    assert!(stand.memories[4].get(device, 4096) == [77; 4096], "{what}");
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0, "{what}");
    // All data except the block that was being written.
    assert!(stand.reads(136, 1, 28 << 10), "{what}");
}

/// Parity is resynced to fit the member. So data that the replacement missed at the crash would
/// show after it has replaced the member.
#[test]
fn a_replacement_gets_again_what_was_being_written_at_a_crash() {
    for policy in [None, Some(Policy::Bitmap), Some(Policy::Ppl)] {
        let mut stand = cut_beside_a_replacement(policy);
        is_replaced_well(&mut stand, &format!("{policy:?}"));
    }
}

/// The array stays dirty until the superblocks record that the replacement is copied again.
#[test]
fn a_replacement_gets_it_again_after_a_second_crash() {
    // Without logs a resync comes first, which takes longer.
    for writes in 1..30 {
        let mut stand = cut_beside_a_replacement(Some(Policy::Ppl));
        stand.power.goes_after(writes);
        stand.start();
        (0..400).for_each(|_| _ = stand.turn());
        stand.crash();
        is_replaced_well(&mut stand, &format!("after {writes} writes"));
    }
}

/// The manager hears some time later that a bad block was written well; a write that fails until
/// then is newer.
#[test]
fn a_write_that_fails_after_one_that_went_well_is_on_record() {
    let mut stand = started(4);
    let sector = data_offset(&stand, 0) + 8;
    stand.memories[0].bad_sector.store(sector, Relaxed);
    assert!(stand.write(0, 1, 192 << 10).is_ok());
    stand.memories[0].bad_sector.store(u64::MAX, Relaxed);
    stand.stop();
    stand.start();
    // The array is dirty, so the writes below do not need the manager.
    assert!(stand.write(64, 2, 4096).is_ok());
    let row = |value: u8| Bio::write(Sector(8), IoBuf::from_slice(&vec![value; 4096]));
    stand.begin(row(3));
    let first = (0..100).find_map(|_| stand.ended()).expect("it ends by itself");
    assert!(first.status.is_ok());
    stand.memories[0].bad_sector.store(sector, Relaxed);
    stand.begin(row(4));
    assert!((0..100).all(|_| stand.ended().is_none()), "not before it is on record");
    stand.wait_for(1);
    assert!(stand.array.as_ref().unwrap().0.status().disks[0].has_bad_blocks);
    assert!(stand.reads(8, 4, 4096));
    stand.memories[0].bad_sector.store(u64::MAX, Relaxed);
    stand.stop();
    stand.start();
    assert!(stand.reads(8, 4, 4096), "the list is on the disk");
}

fn is_answered(request: &Request) -> Option<bool> {
    let locks = LockCounters::new(ManualClock::new(1) as Arc<dyn Clock>);
    request.outcome(&locks).map(|outcome| outcome.is_ok())
}

/// A read of a block that had to be computed does not wait for the block's rewrite. So the rewrite
/// may be under way when no bio is in flight.
#[test]
fn an_array_stops_when_nothing_is_on_its_way_to_its_members() {
    let mut stand = started(4);
    stand.write(0, 1, 64 << 10);
    stand.until("clean", |status| status.state == ArrayState::Clean);
    stand.memories[0].unreadable.store(data_offset(&stand, 0), Relaxed);
    stand.memories[0].lets_reads_pass.store(true, Relaxed);
    stand.memories[0].hold();
    assert!(stand.reads(0, 1, 4096));
    let stop = stand.array.as_ref().unwrap().0.request(Command::Stop);
    (0..50).for_each(|_| drop((stand.ended(), stand.turn())));
    assert!(!stand.array.as_ref().unwrap().1.is_over, "a block is on its way to d0");
    stand.memories[0].release();
    while !stand.array.as_ref().unwrap().1.is_over {
        stand.ended();
        stand.turn();
    }
    stand.array.take().unwrap().1.end();
    assert_eq!(is_answered(&stop), Some(true));
}

#[test]
fn a_member_is_removed_when_nothing_is_on_its_way_to_it() {
    for policy in [None, Some(Policy::Ppl)] {
        let mut stand = Stand::new(4);
        stand.create_with(Level::Raid5, true, policy, None);
        stand.start();
        stand.write(0, 1, 64 << 10);
        stand.memories[0].hold();
        stand.begin(Bio::write(Sector(0), IoBuf::from_slice(&[2; 4096])));
        (0..20).for_each(|_| drop((stand.ended(), stand.turn())));
        stand.command(Command::Fail("d0".to_owned())).unwrap();
        let remove = || Command::Remove("d0".to_owned());
        let removal = stand.array.as_ref().unwrap().0.request(remove());
        (0..50).for_each(|_| drop((stand.ended(), stand.turn())));
        assert_eq!(is_answered(&removal), None, "a block is on its way to d0");
        assert_eq!(stand.states().len(), 4);
        // The stop does not wait forever.
        stand.clock.advance(40_000_000_000);
        let error = stand.command(remove()).unwrap_err();
        assert!(error.message.contains("d0 has writes in flight"), "{error}");
        assert_eq!(is_answered(&removal), Some(false));
        stand.memories[0].release();
        stand.wait_for(1);
        stand.command(remove()).unwrap();
        assert_eq!(stand.states().len(), 3);
        assert!(stand.reads(0, 2, 4096));
    }
}

#[test]
fn what_can_be_had_is_rebuilt_beside_what_cannot() {
    let mut stand = started(4);
    stand.write(0, 1, (12 * 192) << 10);
    add(&mut stand, 4);
    add(&mut stand, 5);
    let slow = Some(1);
    stand.command(Command::Speed { min: slow, max: slow }).unwrap();
    stand.command(Command::Replace("d0".to_owned())).unwrap();
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    // One block of row 8 is lost, and so is that of `d1`; `d0` can read its own.
    let sector = data_offset(&stand, 2) + 8 * 128;
    stand.memories[2].bad_sector.store(sector, Relaxed);
    let fast = Some(1 << 20);
    stand.command(Command::Speed { min: fast, max: fast }).unwrap();
    let status = stand.until("the end", |status| is_idle(status) && status.degraded() == 0);
    let is_bad = |name: &str| {
        let found = status.disks.iter().find(|disk| *disk.name == *name);
        found.expect("a disk").has_bad_blocks
    };
    assert_eq!(["d4", "d5", "d2"].map(is_bad), [false, true, true]);
    assert!(stand.reads(8 * 3 * 128, 1, 64 << 10));
}

/// A block that is copied to a replacement must not be written to the member that has it.
#[test]
fn a_member_that_is_replaced_is_only_read() {
    let mut stand = started(4);
    stand.write(0, 1, 192 << 10);
    add(&mut stand, 4);
    stand.power.take();
    stand.command(Command::Replace("d0".to_owned())).unwrap();
    stand.until("the end", |status| {
        is_idle(status) && status.disks.iter().any(|d| d.state == DiskState::Faulty(Some(Role(0))))
    });
    let start = data_offset(&stand, 0);
    let to_data = |entry: &stand::Entry| {
        entry.device == 0 && entry.op == Op::Write && entry.sectors.start >= start
    };
    assert!(!stand.power.take().iter().any(to_data));
}

/// A member with a volatile cache may join an array of members without one. Flushes then have an
/// effect, also those between two rounds of a log.
#[test]
fn arrays_take_flushes_whatever_their_members_are() {
    let mut stand = Stand::new(4);
    stand.create_with(Level::Raid5, true, Some(Policy::Ppl), None);
    stand.start();
    assert!(stand.array.as_ref().unwrap().0.info().limits.write_cache);
    let flushes_of = |stand: &mut Stand, disk: usize| {
        stand.power.take();
        (0..8).for_each(|n| assert!(stand.write(n * 8, n as u8, 4096).is_ok()));
        let entries = stand.power.take();
        entries.iter().filter(|e| e.device == disk && e.op == Op::Flush).count()
    };
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    stand.memories[4].has_cache.store(true, Relaxed);
    let (name, device) = ("d4".to_owned(), stand.devices[4].clone());
    stand.command(Command::Add { name, device, uuid: uuid(4) }).unwrap();
    stand.until("rebuilt", |status| is_idle(status) && status.degraded() == 0);
    stand.write(0, 1, 4096);
    assert!(flushes_of(&mut stand, 4) >= 7, "before each round but the first");
}
