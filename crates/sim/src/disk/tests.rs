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
