//! Commands to a manager: when they are reported as done, and which ones it refuses.

use super::stand::{Entry, Memory};
use super::*;
use crate::metadata::superblock::{MAGIC, places};
use drystone_core::clock::{Clock, ManualClock};
use drystone_core::sync::LockCounters;
use std::sync::Arc;

fn started(disks: usize) -> Stand {
    let mut stand = Stand::new(disks);
    stand.create(Level::Raid5, true);
    stand.start();
    stand
}

/// Adds the last device.
fn add(stand: &mut Stand) -> drystone_core::Result<()> {
    let n = stand.devices.len() - 1;
    let (name, device) = (format!("d{n}"), stand.devices[n].clone());
    stand.command(Command::Add { name, device, uuid: uuid(n as u8) })
}

#[test]
fn what_a_command_begins_can_be_seen_when_it_is_done() {
    let mut stand = started(4);
    stand.write(0, 1, 256 << 10);
    stand.command(Command::Speed { min: Some(1), max: Some(1) }).unwrap();
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    stand.add_device(vec![0; 4 << 20]);
    add(&mut stand).unwrap();
    let action = |stand: &Stand| stand.array.as_ref().unwrap().0.status().sync.map(|s| s.action);
    assert_eq!(action(&stand), Some(SyncAction::Recover));
    // A second spare restarts the rebuild: the array must not look idle in between.
    stand.add_device(vec![0; 4 << 20]);
    add(&mut stand).unwrap();
    for _ in 0..100 {
        assert_eq!(action(&stand), Some(SyncAction::Recover));
        stand.turn();
    }
    let fast = Some(1 << 20);
    stand.command(Command::Speed { min: fast, max: fast }).unwrap();
    let status = stand.until("recovery", is_idle);
    assert_eq!(status.degraded(), 0);
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(action(&stand), Some(SyncAction::Check));
    let error = stand.command(Command::Sync(SyncAction::Repair)).unwrap_err();
    assert!(error.message.contains("is being synchronised already"), "{error}");
}

#[test]
fn all_who_ask_of_an_array_that_stops_get_an_answer() {
    let mut stand = started(4);
    let array = stand.array.as_ref().unwrap().0.clone();
    let locks = LockCounters::new(ManualClock::new(1) as Arc<dyn Clock>);
    let stops = [array.request(Command::Stop), array.request(Command::Stop)];
    while !stand.array.as_ref().unwrap().1.is_over {
        stand.turn();
    }
    let late = array.request(Command::Fail("d1".to_owned()));
    stand.array.take().unwrap().1.end();
    assert!(stops.iter().all(|stop| matches!(stop.outcome(&locks), Some(Ok(())))));
    let later = array.request(Command::Idle);
    for request in [late, later] {
        let error = request.outcome(&locks).expect("an answer").unwrap_err();
        assert_eq!(error.message, "md0 has been stopped");
    }
    assert!(matches!(array.request(Command::Stop).outcome(&locks), Some(Ok(()))));
    assert_eq!(array.status().state, ArrayState::Inactive);
}

/// The next start might take one of these superblocks for the device's own.
#[test]
fn superblocks_of_other_arrays_do_not_stay_on_a_spare() {
    let mut stand = started(4);
    stand.add_device(vec![0; 4 << 20]);
    let memory = stand.memories[4].clone();
    let sectors: Vec<u64> = places(memory.sectors()).collect();
    for sector in &sectors {
        memory.put(*sector, &[&MAGIC.to_le_bytes()[..], &[7; 4092]].concat());
    }
    add(&mut stand).unwrap();
    for sector in sectors {
        let is_own = sector == memory.superblock().super_offset;
        assert!(is_own || memory.get(sector, 4096) == [0; 4096], "sector {sector}");
    }
    assert_eq!(memory.superblock().device_uuid, uuid(4));
}

/// The journal may hold gigabytes, and all writes of the array would wait while the manager reads
/// it.
#[test]
fn a_journal_of_another_array_is_not_read_to_make_a_spare_of_its_device() {
    let journal = Stand::of_vector("r5-ls-journal").memories[4].clone();
    let own = journal.superblock();
    let mut stand = started(4);
    stand.add_device(journal.image());
    stand.power.take();
    add(&mut stand).unwrap();
    let begin = own.data_offset + own.recovery_offset;
    let is_of_journal =
        |entry: &Entry| entry.device == 4 && entry.op == Op::Read && entry.sectors.contains(&begin);
    let entries = stand.power.take();
    assert!(entries.iter().any(|entry| entry.device == 4 && entry.op == Op::Read));
    assert_eq!(entries.iter().find(|entry| is_of_journal(entry)).map(|e| e.sectors.clone()), None);
}

#[test]
fn what_cannot_be_a_member_is_refused_and_left_as_it_is() {
    let mut stand = started(4);
    let magic = MAGIC.to_le_bytes();
    for (bytes, block, sentence) in [
        (1 << 20, 512, "d4 is not large enough to join md0: it has 1024 KiB"),
        (4 << 20, 4096, "d4 has blocks of 4096 bytes, and md0 has been started with blocks of 512"),
    ] {
        stand.add_device(vec![0; bytes]);
        stand.memories[4].block.store(block, Relaxed);
        stand.memories[4].put(0, &magic);
        let before = stand.memories[4].image();
        let error = add(&mut stand).unwrap_err();
        assert!(error.message.contains(sentence), "{error}");
        assert!(stand.memories[4].image() == before);
        stand.memories.pop();
        stand.devices.pop();
    }
    assert_eq!(stand.states().len(), 4);
}

/// Makes the data of a member begin `sectors` later, on a device that is larger by as much.
fn move_data(memory: &Memory, sectors: u64) {
    let mut own = memory.superblock();
    own.data_offset += sectors;
    let bytes = memory.image().len() + (sectors * SECTOR_SIZE) as usize;
    memory.bytes.lock(&memory.locks).resize(bytes, 0);
    memory.put(8, &own.to_bytes());
}

/// Members of different sizes begin with their data at different sectors.
#[test]
fn the_data_of_a_new_member_begins_where_it_has_room() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    let others = stand.memories[1].superblock().data_offset;
    move_data(&stand.memories[0], 4096);
    stand.start();
    assert!(stand.write(0, 1, 256 << 10).is_ok());
    stand.command(Command::Fail("d0".to_owned())).unwrap();
    // The layout follows a present member, not the failed first one.
    stand.add_device(vec![0; 4 << 20]);
    add(&mut stand).unwrap();
    stand.until("rebuilt", |status| is_idle(status) && status.degraded() == 0);
    assert_eq!(stand.memories[4].superblock().data_offset, others);
    // Data may begin earlier than on any member, so a smaller device fits too.
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    let used = stand.memories[1].superblock().size;
    stand.add_device(vec![0; ((used + others / 2) * SECTOR_SIZE) as usize]);
    add(&mut stand).unwrap();
    stand.until("rebuilt", |status| is_idle(status) && status.degraded() == 0);
    assert_eq!(stand.memories[5].superblock().data_offset, others / 2);
    assert!(stand.reads(0, 1, 256 << 10));
    stand.stop();
    stand.start();
    assert!(stand.reads(0, 1, 256 << 10));
    // The error for a device that is too small names the size that would suffice.
    stand.add_device(vec![0; (used * SECTOR_SIZE) as usize]);
    let error = add(&mut stand).unwrap_err();
    let needed = stand.memories[1].superblock();
    let needed = (needed.super_offset + needed.bblog_offset as u64 + 8 + used) / 2;
    assert!(error.message.ends_with(&format!("{needed} KiB are needed")), "{error}");
}

fn status(stand: &Stand) -> Arc<ArrayStatus> {
    stand.array.as_ref().unwrap().0.status()
}

#[test]
fn a_former_member_is_not_added_to_an_array_that_has_lost_too_much() {
    let mut stand = Stand::new(4);
    stand.create_with(Level::Raid5, true, Some(Policy::Bitmap), Some(64 << 10));
    stand.start();
    assert!(stand.write(0, 1, 64 << 10).is_ok());
    for victim in [1, 2] {
        stand.memories[victim].is_dead.store(true, Relaxed);
        stand.write(0, 2, 1 << 20);
    }
    stand.until("broken", |status| status.state == ArrayState::Broken);
    stand.memories[1].is_dead.store(false, Relaxed);
    let before = stand.memories[1].image();
    stand.command(Command::Remove("d1".to_owned())).unwrap();
    let device = stand.devices[1].clone();
    let refused = stand.command(Command::Add { name: "d1".to_owned(), device, uuid: uuid(9) });
    let why = refused.unwrap_err().message;
    assert!(why.contains("assemble it with --force"), "{why}");
    assert_eq!(stand.memories[1].image(), before, "nothing of it was written over");
}

#[test]
fn a_block_that_a_member_takes_again_is_good_again() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    assert!(stand.write(0, 1, 256 << 10).is_ok());
    let sector = stand.memories[0].superblock().data_offset + 8;
    stand.memories[0].bad_sector.store(sector, Relaxed);
    assert!(stand.write(0, 2, 256 << 10).is_ok());
    let is_bad = |status: &ArrayStatus| status.disks.iter().any(|disk| disk.has_bad_blocks);
    stand.until("bad", is_bad);
    stand.memories[0].bad_sector.store(u64::MAX, Relaxed);
    // A device that failed since the array was started is not tried again.
    assert!(stand.write(0, 3, 256 << 10).is_ok());
    stand.command(Command::Sync(SyncAction::Repair)).unwrap();
    assert!(is_bad(&stand.until("repair", is_idle)));
    stand.stop();
    stand.start();
    assert!(is_bad(&status(&stand)));
    stand.command(Command::Sync(SyncAction::Repair)).unwrap();
    assert!(!is_bad(&stand.until("repair", |status| is_idle(status) && !is_bad(status))));
    stand.stop();
    stand.start();
    assert!(!is_bad(&status(&stand)) && stand.reads(0, 3, 256 << 10));
}

/// A check that must end has ended when the command is reported as done, so the next one may begin.
#[test]
fn idle_is_done_when_what_was_asked_for_has_ended() {
    let mut stand = started(4);
    for _ in 0..20 {
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        stand.command(Command::Idle).unwrap();
        assert!(is_idle(&status(&stand)));
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        stand.command(Command::Freeze(true)).unwrap();
        assert!(is_idle(&status(&stand)));
    }
}

/// Otherwise zero mismatches would be reported of blocks that were never compared.
#[test]
fn a_check_needs_something_to_compare() {
    for (level, lost) in [(Level::Raid4, 1), (Level::Raid5, 1), (Level::Raid6, 2)] {
        let mut stand = Stand::new(4);
        stand.create(level, true);
        stand.start();
        for victim in 0..lost {
            stand.command(Command::Sync(SyncAction::Check)).unwrap();
            stand.until("checked", is_idle);
            stand.command(Command::Fail(format!("d{victim}"))).unwrap();
        }
        for action in [SyncAction::Check, SyncAction::Repair] {
            let error = stand.command(Command::Sync(action)).unwrap_err();
            assert!(error.message.contains("nothing that parity could be compared"), "{error}");
        }
    }
}

#[test]
fn an_array_that_begins_nothing_says_so() {
    let mut stand = started(4);
    let action = |stand: &Stand| {
        let (array, _) = stand.array.as_ref().unwrap();
        array.attribute("md/sync_action").unwrap()
    };
    assert_eq!(action(&stand), "idle");
    stand.command(Command::Freeze(true)).unwrap();
    assert_eq!(action(&stand), "frozen");
    stand.command(Command::Freeze(false)).unwrap();
    assert_eq!(action(&stand), "idle");
}

/// Progress is recorded only from time to time, but a stop must not lose any of it.
#[test]
fn a_stop_keeps_how_far_a_rebuild_has_got() {
    let mut stand = started(4);
    stand.command(Command::Speed { min: Some(100), max: Some(100) }).unwrap();
    stand.command(Command::Fail("d3".to_owned())).unwrap();
    stand.command(Command::Remove("d3".to_owned())).unwrap();
    add(&mut stand).unwrap();
    let done = |status: &ArrayStatus| status.sync.map_or(0, |sync| sync.done);
    let before = done(&stand.until("done in part", |status| done(status) > 0));
    assert_eq!(stand.memories[3].superblock().recovery_offset, 0, "not yet on record");
    stand.stop();
    assert_eq!(stand.memories[3].superblock().recovery_offset, before);
    stand.start();
    let after = done(&stand.until("going on", |status| status.sync.is_some()));
    assert!(after >= before, "{after} of {before}");
}
