//! Tests of the disk.

use super::*;
use fastrand::Rng;

const KIB: u64 = 1024;

fn disk(block: u32, seed: u64) -> Disk {
    let mut options = DiskOptions::new(64 * KIB);
    options.physical_block = block;
    options.latency = Latency::constant(10);
    Disk::new(options, seed)
}

fn run(disk: &mut Disk, op: DiskOp) -> i64 {
    let (id, _) = disk.begin(0, op);
    disk.finish(id).result
}

fn write(disk: &mut Disk, offset: u64, length: usize, byte: u8) -> i64 {
    run(disk, DiskOp::Write { offset, data: vec![byte; length], fua: false })
}

fn read(disk: &mut Disk, offset: u64, length: u64) -> Vec<u8> {
    let (id, _) = disk.begin(0, DiskOp::Read { offset, length });
    let done = disk.finish(id);
    assert_eq!(done.result, done.data.len() as i64);
    done.data.to_vec()
}

#[test]
fn what_was_written_is_read() {
    let mut disk = disk(512, 1);
    assert_eq!(write(&mut disk, 4096, 1024, 7), 1024);
    assert_eq!(read(&mut disk, 4096, 2048), [vec![7; 1024], vec![0; 1024]].concat());
    assert_eq!(run(&mut disk, DiskOp::WriteZeroes { offset: 4608, length: 512 }), 512);
    assert_eq!(read(&mut disk, 4096, 1024), [vec![7; 512], vec![0; 512]].concat());
    assert_eq!((disk.next_data(0, 1 << 20), disk.next_hole(4096, 1 << 20)), (4096, 8192));
    assert_eq!(run(&mut disk, DiskOp::Discard { offset: 0, length: 16384 }), 16384);
    assert_eq!(disk.next_data(0, 1 << 20), disk.size());
    assert_eq!(read(&mut disk, 65024, 1024).len(), 512, "the end cuts it");
    assert_eq!(write(&mut disk, 65536, 512, 1), -ENOSPC);
}

#[test]
fn a_power_cut_takes_only_what_is_not_durable() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut disk = disk(4096, seed);
        write(&mut disk, 0, 8192, 1);
        assert_eq!(run(&mut disk, DiskOp::Flush), 0);
        write(&mut disk, 0, 4096, 2);
        let data = vec![3; 4096];
        run(&mut disk, DiskOp::Write { offset: 8192, data, fua: true });
        let (id, _) = disk.begin(0, DiskOp::Read { offset: 0, length: 512 });
        disk.power_cut();
        assert_eq!(disk.finish(id).result, -ENODEV);
        assert_eq!(write(&mut disk, 0, 512, 9), -ENODEV);
        disk.power_on();
        let first = read(&mut disk, 0, 4096);
        assert!(first == [1; 4096] || first == [2; 4096], "a physical block is not torn");
        lost += u32::from(first[0] == 1);
        assert_eq!(read(&mut disk, 4096, 4096), [1; 4096]);
        assert_eq!(read(&mut disk, 8192, 4096), [3; 4096]);
        assert_eq!(disk.contents(), disk.durable());
    }
    assert!((40..160).contains(&lost), "{lost} of 200 lost");
}

#[test]
fn images_are_all_combinations_or_as_many_as_asked() {
    let mut disk = disk(512, 1);
    write(&mut disk, 0, 1024, 1);
    write(&mut disk, 0, 512, 2);
    let (_, _) = disk.begin(0, DiskOp::Write { offset: 8192, data: vec![3; 512], fua: false });
    let snapshot = disk.snapshot();
    assert_eq!(snapshot.images_max(100), Some(12));
    let seen: std::collections::BTreeSet<(u8, u8, u8)> = snapshot
        .images(100, Rng::with_seed(1))
        .map(|image| (image.contents()[0], image.contents()[512], image.contents()[8192]))
        .collect();
    assert_eq!(seen.len(), 12);
    assert_eq!(snapshot.images(7, Rng::with_seed(1)).count(), 7);
}

/// A disk on which the faults are set, after some of each kind of operation.
fn after(faults: impl Fn(&mut Faults)) -> Disk {
    let mut disk = disk(512, 5);
    faults(disk.faults());
    for at in 0..200 {
        let offset = at % 8 * 4096;
        write(&mut disk, offset, 4096, at as u8 + 1);
        read(&mut disk, offset, 4096);
        run(&mut disk, DiskOp::Flush);
        run(&mut disk, DiskOp::Discard { offset, length: 512 });
    }
    disk
}

fn read_anyhow(disk: &mut Disk, offset: u64, length: u64) -> i64 {
    run(disk, DiskOp::Read { offset, length })
}

#[test]
fn each_fault_by_which_a_disk_is_wrong_is_injected_and_counted() {
    let half = 500_000;
    let counts = *after(|f| f.misdirect_read_ppm = half).counts();
    assert!(counts.misdirected_reads > 50 && counts.misdirected_reads < 150);
    assert!(after(|f| f.misdirect_write_ppm = half).counts().misdirected_writes > 50);
    assert!(after(|f| f.corrupt_read_ppm = half).counts().corrupted_reads > 50);
    assert!(after(|f| f.corrupt_write_ppm = half).counts().corrupted_writes > 50);
    assert!(after(|f| f.lost_write_ppm = half).counts().lost_writes > 50);
    let sound = *after(|_| ()).counts();
    assert!(sound.each().filter(|(name, _)| name.contains("ed_")).all(|(_, count)| count == 0));
    assert_eq!((sound.reads, sound.writes, sound.flushes, sound.discards), (200, 200, 200, 200));
}

#[test]
fn bad_sectors_stay_until_they_are_repaired() {
    let mut disk = disk(512, 1);
    disk.faults().bad_reads.insert(3);
    assert_eq!(read_anyhow(&mut disk, 0, 4096), -EIO);
    assert_eq!(read_anyhow(&mut disk, 0, 1536), 1536);
    write(&mut disk, 1536, 512, 1);
    assert_eq!(read_anyhow(&mut disk, 1536, 512), -EIO);
    disk.faults().write_repairs = true;
    write(&mut disk, 1600, 512, 1);
    assert_eq!(read_anyhow(&mut disk, 1536, 512), -EIO, "a part of it is not enough");
    write(&mut disk, 1536, 512, 2);
    assert_eq!(read_anyhow(&mut disk, 1536, 512), 512);
    disk.faults().bad_writes.insert(3);
    assert_eq!(write(&mut disk, 0, 4096, 3), -EIO);
    let counts = disk.counts();
    assert_eq!((counts.bad_reads, counts.bad_writes, counts.repaired), (3, 1, 1));
}

#[test]
fn a_full_disk_takes_only_what_is_allocated() {
    let mut disk = disk(512, 1);
    write(&mut disk, 0, 8192, 1);
    disk.faults().full = true;
    assert_eq!(write(&mut disk, 4096, 8192, 2), 4096, "as much as there is space for");
    assert_eq!(write(&mut disk, 8192, 512, 2), -ENOSPC);
    assert_eq!(run(&mut disk, DiskOp::WriteZeroes { offset: 8192, length: 512 }), -ENOSPC);
    run(&mut disk, DiskOp::Discard { offset: 0, length: 4096 });
    assert_eq!(write(&mut disk, 0, 512, 3), -ENOSPC);
    assert_eq!((disk.counts().no_space, disk.next_data(0, 65536)), (4, 4096));
}

#[test]
fn a_whole_device_that_fails_changes_nothing() {
    let mut disk = disk(512, 1);
    disk.faults().writes_fail = true;
    assert_eq!(write(&mut disk, 0, 512, 1), -EIO);
    assert_eq!(run(&mut disk, DiskOp::Flush), -EIO);
    disk.faults().reads_fail = true;
    assert_eq!(read_anyhow(&mut disk, 0, 512), -EIO);
    assert!(disk.contents().iter().all(|&byte| byte == 0));
    assert_eq!((disk.counts().device_write_errors, disk.counts().device_read_errors), (2, 1));
}

#[test]
fn what_has_not_begun_can_be_cancelled() {
    let mut disk = disk(512, 1);
    disk.faults().stall_ppm = 1_000_000;
    let (id, due) = disk.begin(7, DiskOp::Write { offset: 0, data: vec![1; 512], fua: false });
    assert!((1_000_000_000..61_000_000_000).contains(&due));
    assert!(disk.is_in_flight(id) && disk.in_flight() == 1);
    assert!(disk.cancel(id) && !disk.is_in_flight(id), "a stalled one can always be cancelled");
    assert!(!disk.cancel(id) && disk.in_flight() == 0);
    *disk.faults() = Faults::default();
    let mut cancelled = 0;
    for _ in 0..100 {
        let op = DiskOp::Write { offset: 0, data: vec![1; 512], fua: false };
        let (id, _) = disk.begin(0, op);
        if disk.cancel(id) {
            cancelled += 1;
        } else {
            disk.finish(id);
        }
    }
    assert!((20..80).contains(&cancelled), "{cancelled}");
    assert_eq!(disk.counts().cancelled, cancelled + 1);
}

#[test]
fn a_flush_covers_what_finished_before_it_began() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..100 {
        let mut disk = disk(512, seed);
        write(&mut disk, 0, 512, 1);
        let (flush, _) = disk.begin(0, DiskOp::Flush);
        write(&mut disk, 512, 512, 2);
        assert_eq!(disk.finish(flush).result, 0);
        disk.power_cut();
        disk.power_on();
        assert_eq!(disk.contents()[0], 1);
        match disk.contents()[512] {
            2 => kept += 1,
            _ => lost += 1,
        }
    }
    assert!(kept > 10 && lost > 10, "{kept} kept, {lost} lost");
}

#[test]
fn a_failed_flush_that_drops_shows_it_now_or_after_a_cut() {
    let (mut seen_now, mut seen_later) = (0, 0);
    for seed in 0..100 {
        let mut disk = disk(512, seed);
        write(&mut disk, 0, 2048, 1);
        disk.faults().flush_error_ppm = 1_000_000;
        disk.faults().flush_error_drops = true;
        assert_eq!(run(&mut disk, DiskOp::Flush), -EIO);
        *disk.faults() = Faults::default();
        assert_eq!(run(&mut disk, DiskOp::Flush), 0, "believes that all is clean");
        let seen: Vec<u8> = disk.contents()[..2048].iter().step_by(512).copied().collect();
        seen_now += u32::from(seen.contains(&0));
        disk.power_cut();
        disk.power_on();
        let left: Vec<u8> = disk.contents()[..2048].iter().step_by(512).copied().collect();
        seen_later += u32::from(left != seen);
    }
    assert!(seen_now > 10 && seen_later > 10, "{seen_now} now, {seen_later} later");
}

#[test]
fn outages_end_everything() {
    let mut disk = disk(512, 1);
    let (read, _) = disk.begin(0, DiskOp::Read { offset: 0, length: 512 });
    disk.process_killed();
    assert!(!disk.is_in_flight(read) && disk.in_flight() == 0);
    disk.vanish();
    assert_eq!((read_anyhow(&mut disk, 0, 512), disk.is_on()), (-ENODEV, false));
    disk.come_back();
    disk.grow(128 * KIB);
    assert_eq!(write(&mut disk, 127 * KIB, 2048, 1), 1024, "the end cuts it");
    let counts = disk.counts();
    assert_eq!((counts.kills, counts.vanishes, counts.no_device, counts.past_end), (1, 1, 1, 1));
}
