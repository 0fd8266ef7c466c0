//! Whole arrays in memory: superblocks, failing members, synchronisation.

mod added;
mod bitmap;
mod blocks;
mod commands;
mod counts;
mod damage;
mod dropped;
mod events;
mod extents;
mod journal;
mod moved;
mod oracle;
mod overwrite;
mod places;
mod ppl;
mod repair;
mod rescue;
mod room;
mod speed;
pub(super) mod stand;
mod threads;

use super::*;
use crate::engine::SyncAction;
use crate::ids::Role;
use crate::layout::Level;
use crate::metadata::create::Policy;
use crate::metadata::superblock::CLEAN;
use drystone_core::SECTOR_SIZE;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Device, Op};
use stand::{Stand, is_idle, uuid};

#[test]
fn a_write_makes_the_array_dirty_before_it_passes_and_idleness_makes_it_clean() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    // The count of events does not go back to that of an array that was never written.
    stand.write(0, 1, 512);
    stand.until("clean", |status| status.state == ArrayState::Clean);
    let before = stand.memories[0].superblock();
    assert!(before.is_clean());
    assert!(stand.write(0, 1, 4096).is_ok());
    let dirty = stand.memories[3].superblock();
    assert_eq!((dirty.resync_offset, dirty.events), (0, before.events + 1));
    assert!(stand.reads(0, 1, 4096));
    stand.until("clean", |status| status.state == ArrayState::Clean);
    let clean = stand.memories[2].superblock();
    assert_eq!((clean.resync_offset, clean.events), (CLEAN, before.events), "it went back");
    stand.write(8, 2, 512);
    stand.stop();
    assert!(stand.memories.iter().all(|memory| memory.superblock().is_clean()));
    stand.start();
    assert!(stand.reads(0, 1, 4096) && stand.reads(8, 2, 512));
}

#[test]
fn after_a_crash_parity_is_made_to_fit() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    stand.write(0, 1, 64 << 10);
    // The array is not stopped cleanly, and one block of parity was not written.
    (stand.array, stand.user) = (None, None);
    let data_offset = stand.memories[3].superblock().data_offset;
    stand.memories[3].put(data_offset, &[9; 4096]);
    stand.start();
    let status = stand.until("resync", is_idle);
    assert_eq!(status.mismatch_cnt, 8);
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    let status = stand.until("check", is_idle);
    assert_eq!(status.mismatch_cnt, 0);
    stand.stop();
    assert!(stand.memories[1].superblock().is_clean());
}

#[test]
fn a_member_that_dies_is_on_record_before_a_write_ends() {
    for (level, deaths) in [(Level::Raid5, 1), (Level::Raid6, 2)] {
        let mut stand = Stand::new(5);
        stand.create(level, true);
        stand.start();
        stand.write(0, 1, 256 << 10);
        for victim in 1..=deaths {
            stand.memories[victim].is_dead.store(true, Relaxed);
            assert!(stand.write(0, 1 + victim as u8, 256 << 10).is_ok());
            let super0 = stand.memories[0].superblock();
            assert_eq!(super0.roles[victim], 0xFFFE, "it is on record");
            assert!(stand.reads(0, 1 + victim as u8, 256 << 10));
        }
        // The failed members come back with old data.
        stand.stop();
        stand.memories.iter().for_each(|memory| memory.is_dead.store(false, Relaxed));
        let (_, _, assembly) = stand.look();
        assert_eq!(assembly.unwrap().lost(), deaths as u32, "what is old is not used");
        stand.start();
        assert!(stand.reads(0, 1 + deaths as u8, 256 << 10));
        for (n, name) in (1..=deaths).map(|n| (n, format!("d{n}"))) {
            let (device, uuid) = (stand.devices[n].clone(), uuid(50 + n as u8));
            stand.command(Command::Add { name, device, uuid }).unwrap();
        }
        stand.until("recovery", |status| is_idle(status) && status.degraded() == 0);
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
        assert!(stand.reads(0, 1 + deaths as u8, 256 << 10));
    }
}

#[test]
fn one_death_too_many_breaks_the_array_and_writes_fail() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    stand.write(0, 1, 192 << 10);
    for victim in [1, 2] {
        stand.memories[victim].is_dead.store(true, Relaxed);
        let _ = stand.write(0, 2, 192 << 10);
    }
    assert!(!stand.write(0, 3, 192 << 10).is_ok());
    stand.until("broken", |status| status.state == ArrayState::Broken);
    // D0 of row 1 is on member 3 of a left-symmetric array... what member 0 has can be read.
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let there = (0..).find(|sector| layout.map_sector(*sector).role == Role(0)).unwrap();
    assert!(stand.read(there, 4096).0.is_ok());
    let gone = (0..).find(|sector| layout.map_sector(*sector).role == Role(1)).unwrap();
    assert!(!stand.read(gone, 4096).0.is_ok());
}

#[test]
fn a_bad_block_is_put_on_the_list_and_lives_in_parity() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    let data_offset = stand.memories[0].superblock().data_offset;
    stand.memories[0].bad_sector.store(data_offset + 3, Relaxed);
    assert!(stand.write(0, 1, 4096).is_ok());
    let status = stand.array.as_ref().unwrap().0.status();
    assert!(status.disks[0].has_bad_blocks && status.degraded() == 0);
    assert!(stand.reads(0, 1, 4096));
    stand.stop();
    stand.start();
    assert!(stand.reads(0, 1, 4096), "the list is read again");
    stand.memories[0].bad_sector.store(u64::MAX, Relaxed);
    assert!(stand.write(0, 2, 4096).is_ok());
    assert!(stand.reads(0, 2, 4096));
}

#[test]
fn a_member_is_replaced_while_it_is_in_use() {
    let mut stand = Stand::new(5);
    let spare = (stand.memories.pop().unwrap(), stand.devices.pop().unwrap());
    stand.create(Level::Raid5, true);
    stand.start();
    stand.write(0, 1, 256 << 10);
    assert!(stand.command(Command::Replace("d1".to_owned())).is_err(), "there is no spare");
    let (name, device) = ("d4".to_owned(), spare.1.clone());
    stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
    stand.command(Command::Replace("d1".to_owned())).unwrap();
    stand.until("replacement", |status| {
        status
            .disks
            .iter()
            .any(|disk| disk.state == DiskState::InSync(Role(1)) && *disk.name == *"d4")
    });
    assert_eq!(stand.states()[1], DiskState::Faulty(Some(Role(1))));
    stand.command(Command::Remove("d1".to_owned())).unwrap();
    assert!(stand.reads(0, 1, 256 << 10));
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
    stand.stop();
    (stand.memories[1], stand.devices[1]) = spare;
    let (_, _, assembly) = stand.look();
    assert_eq!(assembly.unwrap().lost(), 0);
}

#[test]
fn what_would_break_the_array_is_refused() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    assert!(stand.command(Command::Remove("d1".to_owned())).is_err(), "it is in use");
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    let error = stand.command(Command::Fail("d2".to_owned())).unwrap_err();
    assert!(error.message.contains("would be broken"), "{error}");
    assert!(stand.command(Command::Fail("d7".to_owned())).is_err());
    stand.command(Command::Remove("d1".to_owned())).unwrap();
    assert_eq!(stand.states().len(), 3);
}

#[test]
fn the_cache_is_resized_while_it_is_used() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    for stripes in [17, 4096, 17, 100] {
        let array = stand.array.as_ref().unwrap().0.clone();
        array.set_attribute("md/stripe_cache_size", &stripes.to_string()).unwrap();
        assert!(stand.write(3, stripes as u8, 1 << 20).is_ok());
        assert!(stand.reads(3, stripes as u8, 1 << 20));
        assert_eq!(array.attribute("md/stripe_cache_active").unwrap(), "0");
    }
    let array = stand.array.as_ref().unwrap().0.clone();
    assert!(array.set_attribute("md/stripe_cache_size", "16").is_err());
}

#[test]
fn an_array_that_is_only_read_is_not_written_whatever_its_members_do() {
    let mut stand = Stand::new(4);
    stand.create_with(Level::Raid5, true, Some(Policy::Ppl), None);
    stand.start();
    stand.write(0, 1, 192 << 10);
    // The array is dirty, so a start that may write would write much.
    stand.crash();
    stand.is_read_only = true;
    stand.start();
    for victim in [1, 2] {
        let data_offset = stand.memories[victim].superblock().data_offset;
        stand.memories[victim].bad_sector.store(data_offset + 3, Relaxed);
    }
    let (status, _) = stand.read(0, 192 << 10);
    assert!(!status.is_ok(), "two blocks of a row are lost");
    stand.pass(1);
    assert!(stand.states().iter().all(|state| matches!(state, DiskState::InSync(_))));
    // The other blocks of those members are still readable. Blocks that only one of them lacks are
    // computed.
    assert!(stand.reads(0, 1, 64 << 10) && stand.reads(136, 1, 60 << 10));
    stand.memories[2].bad_sector.store(u64::MAX, Relaxed);
    assert!(stand.reads(0, 1, 192 << 10));
    let status = stand.array.as_ref().unwrap().0.status();
    assert!(status.disks.iter().all(|disk| disk.corrected == 0 && !disk.has_bad_blocks));
    // The array does not even try to write, as a rewrite of a bad sector would.
    assert_eq!(stand.array.as_ref().unwrap().0.counts().writes, 0);
    assert!(!stand.write(0, 1, 4096).is_ok());
    stand.stop();
    let entries = stand.power.take();
    assert!(entries.iter().all(|entry| entry.op != Op::Write), "{entries:?}");
}

fn replacing(spares: usize) -> (Stand, usize) {
    replacing_with(spares, None)
}

/// Fill an array, begin to replace `d1`, and stop when a part of it is done.
fn replacing_with(spares: usize, policy: Option<Policy>) -> (Stand, usize) {
    let mut stand = Stand::new(4 + spares);
    let disks = (stand.memories.split_off(4), stand.devices.split_off(4));
    stand.create_with(Level::Raid5, true, policy, None);
    stand.start();
    let all = stand.array.as_ref().unwrap().0.info().size_bytes as usize;
    for (n, at) in (0..all).step_by(96 << 10).enumerate() {
        let (sector, bytes) = (at as u64 / SECTOR_SIZE, (96 << 10).min(all - at));
        assert!(stand.write(sector, n as u8 + 1, bytes).is_ok());
    }
    for (n, device) in disks.1.iter().enumerate() {
        let (name, device) = (format!("d{}", 4 + n), device.clone());
        stand.command(Command::Add { name, device, uuid: uuid(9 + n as u8) }).unwrap();
    }
    stand.command(Command::Speed { min: Some(2000), max: Some(2000) }).unwrap();
    stand.command(Command::Replace("d1".to_owned())).unwrap();
    stand.until("a part", |status| status.sync.is_some_and(|sync| sync.done * 2 > sync.total));
    stand.memories.extend(disks.0);
    stand.devices.extend(disks.1);
    (stand, all)
}

fn all_is_right(stand: &mut Stand, all: usize) {
    let fast = Some(1 << 20);
    stand.command(Command::Speed { min: fast, max: fast }).unwrap();
    stand.until("the end", |status| is_idle(status) && status.degraded() == 0);
    let role_slots = stand.states().into_iter().filter(|s| matches!(s, DiskState::InSync(_)));
    assert_eq!(role_slots.count(), 4, "one for each role: {:?}", stand.states());
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
    for (n, at) in (0..all).step_by(96 << 10).enumerate() {
        let (sector, bytes) = (at as u64 / SECTOR_SIZE, (96 << 10).min(all - at));
        assert!(stand.reads(sector, n as u8 + 1, bytes), "chunk {n}");
    }
}

#[test]
fn a_second_replacement_is_copied_from_the_beginning() {
    let (mut stand, all) = replacing(2);
    stand.command(Command::Replace("d2".to_owned())).unwrap();
    all_is_right(&mut stand, all);
}

#[test]
fn a_member_that_fails_leaves_its_place_to_its_replacement() {
    let (mut stand, all) = replacing(2);
    stand.memories[1].is_dead.store(true, Relaxed);
    // Parity and data of all rows, above and below what was copied.
    for (n, at) in (0..all).step_by(96 << 10).enumerate() {
        let (sector, bytes) = (at as u64 / SECTOR_SIZE, (96 << 10).min(all - at));
        assert!(stand.write(sector, 77, bytes.min(8192)).is_ok());
        assert!(stand.write(sector, n as u8 + 1, bytes.min(8192)).is_ok());
    }
    all_is_right(&mut stand, all);
}
