//! Members with logical blocks of 4096 bytes. The stand ends the test if an I/O to such a member is
//! not in whole blocks.

use super::*;

const BLOCK: u32 = 4096;
const BYTES: usize = 1 << 20;

/// A running array filled with ones.
fn started(level: Level, policy: Policy) -> Stand {
    let mut stand = Stand::new(5);
    stand.memories.iter().for_each(|memory| memory.block.store(BLOCK, Relaxed));
    let chunk = (policy == Policy::Bitmap).then_some(4096);
    stand.create_with(level, true, Some(policy), chunk);
    stand.start();
    assert!(stand.write(0, 1, BYTES).is_ok());
    stand
}

fn add(stand: &mut Stand) {
    let number = stand.memories.len();
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    stand.memories[number].block.store(BLOCK, Relaxed);
    let (name, device) = (format!("d{number}"), stand.devices[number].clone());
    stand.command(Command::Add { name, device, uuid: uuid(number as u8) }).unwrap();
}

fn fits(stand: &mut Stand, value: u8) {
    stand.until("idle", |status| is_idle(status) && status.degraded() == 0);
    assert!(stand.reads(0, value, BYTES));
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
}

#[test]
fn an_array_on_large_blocks_reads_and_writes_nothing_smaller() {
    for (level, policy) in [
        (Level::Raid5, Policy::Resync),
        (Level::Raid5, Policy::Ppl),
        (Level::Raid6, Policy::Bitmap),
    ] {
        let mut stand = started(level, policy);
        assert_eq!(stand.array.as_ref().unwrap().0.info().limits.logical_block_size, BLOCK);
        assert!(!stand.write(1, 3, 512).is_ok(), "a part of a block");
        // The power fails during a write.
        stand.power.goes_after(9);
        let _ = stand.write(0, 2, BYTES);
        stand.crash();
        stand.start();
        stand.until("resync", is_idle);
        assert!(stand.write(0, 2, BYTES).is_ok());
        // One sector cannot be read and is rewritten. Another cannot be written and is listed as
        // bad.
        let data = stand.memories[1].superblock().data_offset;
        stand.memories[1].unreadable.store(data + 3, Relaxed);
        stand.memories[2].read_only_sector.store(data + 9, Relaxed);
        assert!(stand.reads(0, 2, BYTES) && stand.write(0, 3, BYTES).is_ok());
        stand.pass(1);
        assert!(stand.reads(0, 3, BYTES));
        stand.memories[2].read_only_sector.store(u64::MAX, Relaxed);
        // A member is replaced, another one rebuilt.
        add(&mut stand);
        stand.command(Command::Replace("d2".to_owned())).unwrap();
        stand.until("replaced", is_idle);
        stand.command(Command::Fail("d0".to_owned())).unwrap();
        assert!(stand.reads(0, 3, BYTES) && stand.write(64, 3, BYTES / 2).is_ok());
        add(&mut stand);
        fits(&mut stand, 3);
        stand.stop();
        stand.start();
        fits(&mut stand, 3);
        stand.stop();
    }
}
