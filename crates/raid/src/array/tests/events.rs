//! The events that an array emits.

use super::*;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

/// A stand whose array sends its events to the receiver.
fn telling(disks: usize, level: Level) -> (Stand, Receiver<ArrayEvent>) {
    let mut stand = Stand::new(disks);
    stand.create(level, true);
    let (sender, told) = mpsc::sync_channel(256);
    stand.event_sink = Arc::new(move |event| sender.send(event).unwrap());
    (stand, told)
}

fn lines(told: &Receiver<ArrayEvent>) -> Vec<String> {
    told.try_iter().map(|event| event.to_string()).collect()
}

fn add(stand: &mut Stand, n: usize) {
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    let (name, device) = (format!("d{n}"), stand.devices[n].clone());
    stand.command(Command::Add { name, device, uuid: uuid(n as u8) }).unwrap();
}

#[test]
fn a_member_that_is_failed_and_rebuilt_is_told_of() {
    let (mut stand, told) = telling(4, Level::Raid5);
    stand.start();
    assert_eq!(lines(&told), [""; 0], "nothing has happened");
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    let left = "3 of 4 members are in sync, and no more may fail";
    assert_eq!(lines(&told), [format!("`d1` was marked as failed by a command; {left}")]);
    add(&mut stand, 4);
    stand.until("the rebuild", is_idle);
    assert_eq!(
        lines(&told),
        [
            "the rebuild of `d4` begins at 0 %",
            "the rebuild of `d4` has ended; 4 of 4 members are in sync, and 1 more may fail"
        ]
    );
}

#[test]
fn a_degraded_start_and_the_resync_after_a_crash_are_told_of() {
    let (mut stand, told) = telling(5, Level::Raid6);
    stand.start();
    stand.write(0, 1, 64 << 10);
    stand.crash();
    stand.memories[2].put(8, &[0; 4096]);
    stand.is_forced = true;
    stand.start();
    stand.until("the resync", is_idle);
    assert_eq!(
        lines(&told),
        [
            "it starts degraded: 4 of 5 members are in sync, and 1 more may fail",
            "the resync begins at 0 %, because the array was not stopped cleanly, was new, or had \
             members forced in",
            "the resync has ended",
        ]
    );
}

#[test]
fn what_a_check_finds_is_told() {
    let (mut stand, told) = telling(4, Level::Raid5);
    stand.start();
    stand.write(0, 1, 256 << 10);
    let sector = stand.memories[0].superblock().data_offset;
    stand.memories[0].put(sector, &[9; 4096]);
    for (action, end) in [
        (SyncAction::Check, "the check has ended; 8 sectors of parity do not match the data"),
        (SyncAction::Repair, "the repair has ended; it corrected 8 sectors of parity"),
        (SyncAction::Check, "the check has ended; it found no mismatch"),
    ] {
        stand.command(Command::Sync(action)).unwrap();
        stand.until("the end", is_idle);
        assert_eq!(lines(&told)[1], end);
    }
}

/// A write that fails is listed as bad; a member that is gone fails.
#[test]
fn bad_blocks_and_failed_members_are_told_of() {
    let (mut stand, told) = telling(4, Level::Raid5);
    stand.start();
    let sector = stand.memories[0].superblock().data_offset;
    stand.memories[0].bad_sector.store(sector, Relaxed);
    assert!(stand.write(0, 1, 4096).is_ok());
    let byte = sector * 512;
    let line =
        format!("the block at byte {byte} of `d0` cannot be written, and is on its bad block list");
    assert_eq!(lines(&told), [line]);
    stand.memories[1].is_dead.store(true, Relaxed);
    stand.write(0, 2, 64 << 10);
    stand.until("the failure", |status| status.degraded() == 1);
    let told = lines(&told).join("\n");
    assert!(told.contains("`d1` has failed, because a flush of it failed; 3 of 4"), "{told}");
}

/// Members that a crash kept from the last update get that update first; before this, all members
/// are flushed.
#[test]
fn a_member_that_does_not_flush_as_others_are_brought_level_is_told_of_as_such() {
    let (mut stand, told) = telling(4, Level::Raid5);
    stand.start();
    stand.stop();
    for device in [0, 1, 3] {
        let mut own = stand.memories[device].superblock();
        own.events += 1;
        stand.memories[device].put(8, &own.to_bytes());
    }
    stand.start();
    lines(&told);
    stand.memories[1].is_dead.store(true, Relaxed);
    assert!(stand.write(0, 2, 4096).is_ok());
    stand.until("the failure", |status| status.degraded() == 1);
    let told = lines(&told).join("\n");
    assert!(told.contains("`d1` has failed, because a flush of it failed; 3 of 4"), "{told}");
}

/// The array does not try block by block whether the member still takes writes, although it has a
/// bad block list.
#[test]
fn a_member_that_has_gone_fails_at_once() {
    for reads in [true, false] {
        let (mut stand, told) = telling(4, Level::Raid5);
        stand.start();
        assert!(stand.write(0, 1, 256 << 10).is_ok());
        stand.memories[1].has_gone.store(true, Relaxed);
        match reads {
            true => assert!(stand.reads(0, 1, 256 << 10), "the others tell what was on it"),
            false => assert!(stand.write(0, 1, 256 << 10).is_ok()),
        }
        stand.until("the failure", |status| status.degraded() == 1);
        let why = "because the device has gone, or its file was cut short";
        let left = "3 of 4 members are in sync, and no more may fail";
        assert_eq!(lines(&told), [format!("`d1` has failed, {why}; {left}")]);
        assert!(stand.reads(0, 1, 256 << 10));
    }
}
