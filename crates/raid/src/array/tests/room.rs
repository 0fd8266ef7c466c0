//! Members without room: sparse files on a full file system.

use super::*;
use drystone_core::{Bio, IoBuf, Sector};
use std::sync::{Arc, mpsc};

fn mismatches(stand: &mut Stand) -> u64 {
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    stand.until("check", is_idle).mismatch_cnt
}

/// Let `members` members have no room from the middle of their data on.
fn fill(stand: &Stand, members: usize) {
    for memory in &stand.memories[..members] {
        let data = memory.superblock().data_offset;
        memory.full_from.store(data + (memory.sectors() - data) / 2, Relaxed);
    }
}

/// A sector of the array that lies well behind the point from which members have no room.
fn far(stand: &Stand) -> u64 {
    let sectors = stand.array.as_ref().unwrap().0.info().size_bytes / 512;
    (sectors / 4 * 3).next_multiple_of(8)
}

#[test]
fn writes_wait_for_room_and_nothing_fails() {
    for (level, members) in [(Level::Raid5, 1), (Level::Raid5, 4), (Level::Raid6, 2)] {
        let mut stand = Stand::new(4);
        stand.create(level, true);
        let (sender, told) = mpsc::sync_channel(64);
        stand.event_sink = Arc::new(move |event| sender.send(event).unwrap());
        stand.start();
        let far = far(&stand);
        for sector in [0, far] {
            assert!(stand.write(sector, 1, 96 << 10).is_ok());
        }
        fill(&stand, members);
        stand.begin(Bio::write(Sector(far), IoBuf::from_slice(&[2; 32 << 10])));
        stand.pass(5);
        assert!(stand.ended().is_none(), "it waits");
        assert!(stand.reads(0, 1, 96 << 10) && stand.write(0, 3, 96 << 10).is_ok(), "others go on");
        let status = stand.array.as_ref().unwrap().0.status();
        assert!(status.disks.iter().all(|disk| !disk.has_bad_blocks) && status.degraded() == 0);
        stand.until("told", |status| status.disks.iter().any(|disk| disk.lacks_room));
        stand.memories.iter().for_each(|memory| memory.full_from.store(u64::MAX, Relaxed));
        stand.wait_for(1);
        assert!(stand.reads(far, 2, 32 << 10) && stand.reads(0, 3, 96 << 10));
        let mut told: Vec<String> = told.try_iter().map(|event| event.to_string()).collect();
        told.sort();
        let says = |n| format!("`d{n}` has no room: writes wait until it has");
        assert!(!told.is_empty() && told.len() <= members, "{told:?}");
        assert!(told.iter().all(|text| (0..members).any(|n| *text == says(n))), "{told:?}");
        told.dedup();
        let full = stand.array.as_ref().unwrap().0.status();
        assert_eq!(
            told.len(),
            full.disks.iter().filter(|disk| disk.lacks_room).count(),
            "each once"
        );
        stand.pass(2);
        let status = stand.array.as_ref().unwrap().0.status();
        assert!(status.disks.iter().all(|disk| !disk.lacks_room) && status.degraded() == 0);
        assert_eq!(mismatches(&mut stand), 0);
    }
}

/// If the process dies while writes wait, the array must become whole again.
#[test]
fn what_waited_for_room_is_resynchronised_after_a_crash() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    let far = far(&stand);
    assert!(stand.write(far, 1, 96 << 10).is_ok());
    fill(&stand, 2);
    stand.begin(Bio::write(Sector(far), IoBuf::from_slice(&[2; 32 << 10])));
    stand.pass(3);
    stand.crash();
    stand.memories.iter().for_each(|memory| memory.full_from.store(u64::MAX, Relaxed));
    stand.start();
    stand.until("resync", is_idle);
    assert!(stand.reads(far + 64, 1, 64 << 10), "what was not being written is as it was");
    assert_eq!(mismatches(&mut stand), 0);
    assert!(stand.states().iter().all(|state| matches!(state, DiskState::InSync(_))));
}

/// Writes do not wait for a member that has failed meanwhile.
#[test]
fn a_member_that_is_failed_is_not_waited_for() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    let far = far(&stand);
    fill(&stand, 1);
    stand.begin(Bio::write(Sector(far), IoBuf::from_slice(&[2; 96 << 10])));
    stand.pass(3);
    assert!(stand.ended().is_none(), "it waits");
    stand.command(Command::Fail("d0".to_owned())).unwrap();
    stand.wait_for(1);
    assert!(stand.reads(far, 2, 96 << 10), "it lives in parity");
}
