//! Truncated files.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use drystone_core::Op;
use drystone_core::ring::Engine;
use drystone_exports::fuse::server::{Kind, MountOptions};

use crate::disk::{Disk, Handle};
use crate::kernel::*;
use crate::requests::{EFBIG, EINVAL, EIO, SIZE, pattern, served};

/// A part that is cut off reads as zeroes, though the device keeps its size; the answer has the
/// size asked for, and may not be relied upon.
#[test]
fn what_is_cut_off_becomes_zeroes() {
    for zeroes in [true, false] {
        let mut disk = Arc::into_inner(Disk::new(SIZE, 512)).unwrap();
        disk.zeroes = zeroes;
        let disk = Arc::new(disk);
        let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), 1);
        for size in [SIZE - 1, SIZE - 512, SIZE - 700, SIZE - 5000, 70_000, 4096, 5, 0] {
            disk.bytes.lock().unwrap().copy_from_slice(&pattern(SIZE));
            cut(&mut kernel, size as u64);
            let mut model = pattern(SIZE);
            model[size..].fill(0);
            assert!(*disk.bytes.lock().unwrap() == model, "cut to {size}");
            let told = kernel.call(GETATTR, 1, &[0; 16]).unwrap();
            assert_eq!((u64_at(&told, 0), u64_at(&told, 24)), (1, SIZE as u64), "the device's");
        }
        assert_eq!(disk.count(Op::WriteZeroes) > 0, zeroes);
        let counts = disk.counts.lock().unwrap().clone();
        let mut zeroed = counts.iter().filter(|(op, ..)| *op == Op::WriteZeroes);
        assert!(zeroed.all(|(_, flags, _)| flags.is_empty()), "it may unmap");
    }
}

/// `open` with `O_TRUNC` changes nothing where that is wished for; `ftruncate`, which names a
/// handle, does.
#[test]
fn opening_to_overwrite_can_change_nothing() {
    let disk = Disk::new(SIZE, 512);
    disk.bytes.lock().unwrap().copy_from_slice(&pattern(SIZE));
    let options = MountOptions { ignore_truncate: true, ..options(Kind::File) };
    let volumes = vec![volume("vol", Arc::new(Handle(disk.clone())), &groups())];
    let mut kernel = Kernel::new(options, volumes, 1, Engine::Auto);
    kernel.initialise();
    let answer = kernel.call(SETATTR, 1, &setattr(1 << 3, 0)).unwrap();
    assert_eq!(u64_at(&answer, 24), SIZE as u64, "the size that it keeps");
    assert!(*disk.bytes.lock().unwrap() == pattern(SIZE));
    cut(&mut kernel, 4096);
    let mut model = pattern(SIZE);
    model[4096..].fill(0);
    assert!(*disk.bytes.lock().unwrap() == model, "truncate to another size");
    let handle = u64_at(&kernel.call(OPEN, 1, &bytes![2_u32, 0_u32]).unwrap(), 0);
    let mut by_handle = setattr(1 << 3 | 1 << 6, 0);
    by_handle[8..16].copy_from_slice(&handle.to_le_bytes());
    kernel.call(SETATTR, 1, &by_handle).unwrap();
    assert!(disk.bytes.lock().unwrap().iter().all(|byte| *byte == 0), "ftruncate to 0");
}

fn cut(kernel: &mut Kernel, size: u64) {
    let (wanted, time) = (1 << 3, 1 << 4);
    let answer = kernel.call(SETATTR, 1, &setattr(wanted | time, size)).unwrap();
    assert_eq!((answer.len(), u64_at(&answer, 0)), (104, 0), "not to be relied upon");
    assert_eq!((u64_at(&answer, 16), u64_at(&answer, 24)), (1, size));
}

/// Longer than a buffer, on a device that cannot zero by itself, and writes of others meanwhile.
#[test]
fn a_long_cut_is_written_piece_by_piece() {
    const LONG: usize = 5 << 20;
    let mut disk = Arc::into_inner(Disk::new(LONG, 512)).unwrap();
    disk.zeroes = false;
    let disk = Arc::new(disk);
    disk.bytes.lock().unwrap().fill(7);
    disk.delay_ns.store(2_000_000, Relaxed);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), 2);
    let first = (1 << 20) + 5000;
    let asked = kernel.send(0, SETATTR, 1, &setattr(1 << 3, first));
    for at in 0..20 {
        let (offset, length) = (at * 7000, if at % 3 == 0 { 100 } else { 512 });
        let data = write(0, offset / 512 * 512, &vec![9; length]);
        assert_eq!(kernel.call_at(at as usize % 2, WRITE, 1, &data).map(|_| ()), Ok(()));
    }
    kernel.wait_for(0, asked).unwrap();
    let bytes = disk.bytes.lock().unwrap();
    assert!(bytes[first as usize..].iter().all(|byte| *byte == 0));
    assert!(bytes[..first as usize].iter().all(|byte| [7, 9].contains(byte)));
    drop(bytes);
    assert!(disk.count(Op::Write) >= 4 + 20);
}

#[test]
fn a_size_at_the_end_changes_nothing_and_a_larger_one_is_refused() {
    let (disk, mut kernel) = served();
    disk.bytes.lock().unwrap().fill(7);
    let answer = kernel.call(SETATTR, 1, &setattr(1 << 3, SIZE as u64)).unwrap();
    assert_eq!((u64_at(&answer, 0), u64_at(&answer, 24)), (1, SIZE as u64));
    for size in [SIZE as u64 + 1, u64::MAX - 5, u64::MAX] {
        assert_eq!(kernel.call(SETATTR, 1, &setattr(1 << 3, size)), Err(EFBIG));
    }
    assert_eq!(kernel.call(SETATTR, 9, &setattr(1 << 3, 0)), Err(EINVAL));
    disk.size.store(SIZE as u64 / 2, Relaxed);
    assert_eq!(kernel.call(SETATTR, 1, &setattr(1 << 3, SIZE as u64)), Err(EFBIG));
    assert!(disk.counts.lock().unwrap().is_empty());
    assert!(disk.bytes.lock().unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_cut_that_fails_is_told() {
    let mut disk = Arc::into_inner(Disk::new(SIZE, 512)).unwrap();
    disk.fails = true;
    let mut kernel = Kernel::file(Arc::new(Handle(Arc::new(disk))), 1);
    for size in [0, 4096, 4097] {
        assert_eq!(kernel.call(SETATTR, 1, &setattr(1 << 3, size)), Err(EIO));
    }
    assert_eq!(kernel.read(0, 512), Err(EIO));
}
