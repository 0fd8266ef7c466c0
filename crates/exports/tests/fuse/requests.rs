//! Each request, and what is wrong with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use drystone_core::ring::Engine;
use drystone_core::{BioFlags, Op};
use drystone_exports::fuse::proto::open_flags;
use drystone_exports::fuse::server::{Kind, Mount, MountOptions};
use drystone_exports::nbd::proto::TransmissionFlags;
use drystone_exports::nbd::server::{Export, Settings};
use drystone_exports::server::Geometry;

use crate::disk::{Disk, Handle};
use crate::kernel::*;

pub const SIZE: usize = 1 << 20;
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
pub const EIO: i32 = 5;
const ENXIO: i32 = 6;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ENOSYS: i32 = 38;
const EPROTO: i32 = 71;
const EOPNOTSUPP: i32 = 95;

pub fn served() -> (Arc<Disk>, Kernel) {
    let disk = Disk::new(SIZE, 512);
    let kernel = Kernel::file(Arc::new(Handle(disk.clone())), 1);
    (disk, kernel)
}

pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

#[test]
fn kernel_and_server_agree() {
    let disk = Disk::new(SIZE, 512);
    let volumes = || vec![volume("vol", Arc::new(Handle(disk.clone())), &groups())];
    let kernel = || Kernel::new(options(Kind::File), volumes(), 1, Engine::Auto);
    let mut newer = kernel();
    assert!(!newer.mount.is_initialised());
    let answer = newer.call(INIT, 0, &init(8, 0, u32::MAX, u32::MAX)).unwrap();
    assert_eq!((answer.len(), u32_at(&answer, 0)), (64, 7));
    assert!(!newer.mount.is_initialised(), "it asks again");
    let answer = newer.initialise();
    assert_eq!((u32_at(&answer, 0), u32_at(&answer, 20)), (7, 1 << 20));
    assert!(newer.mount.is_initialised());
    let offered = 1 << 22 | 1 << 5 | 1 << 16;
    let mut plain = kernel();
    let answer = plain.call(INIT, 0, &init(7, 31, offered, 0)[..16]).unwrap();
    assert_eq!(u32_at(&answer, 12), 1 << 22 | 1 << 5, "only what was offered, without write-back");
    for (major, minor) in [(6, 40), (7, 30)] {
        let mut older = kernel();
        let answer = older.call(INIT, 0, &init(major, minor, u32::MAX, u32::MAX));
        assert_eq!(answer, Err(EPROTO));
        assert!(older.mount.failure().unwrap().contains("Linux 5.4 or later"));
    }
}

#[test]
fn data_is_read_and_written() {
    let (disk, mut kernel) = served();
    for (offset, length) in
        [(0, 4096), (512, 512), (8192, 60 << 10), (0, 128 << 10), (65536, 65536)]
    {
        let data = pattern(length);
        assert_eq!(kernel.write(offset, &data), Ok(length as u32));
        assert_eq!(kernel.read(offset, length as u32).unwrap(), data);
        let at = offset as usize;
        assert_eq!(disk.bytes.lock().unwrap()[at..at + length], data[..]);
    }
    assert_eq!(kernel.call(FSYNC, 1, &bytes![0_u64, 0_u32, 0_u32]), Ok(Vec::new()));
    assert_eq!(disk.count(Op::Flush), 1);
    assert_eq!(kernel.mount.requests(), 12);
}

#[test]
fn the_longest_request_is_a_megabyte() {
    let (disk, mut kernel) = served();
    disk.bytes.lock().unwrap().copy_from_slice(&pattern(SIZE));
    if rustix::process::geteuid().is_root() {
        assert_eq!(kernel.read(0, 1 << 20).unwrap(), pattern(SIZE));
        let data: Vec<u8> = pattern(SIZE).into_iter().rev().collect();
        assert_eq!(kernel.write(0, &data), Ok(1 << 20));
        assert_eq!(*disk.bytes.lock().unwrap(), data);
    } else {
        println!("SKIPPED: only root may have messages of a megabyte");
    }
    assert_eq!(kernel.read(0, (1 << 20) + 1), Err(EINVAL));
    assert_eq!(kernel.read(0, u32::MAX), Err(EINVAL));
}

#[test]
fn reads_end_at_the_end() {
    let (disk, mut kernel) = served();
    disk.bytes.lock().unwrap().fill(7);
    let end = SIZE as u64;
    assert_eq!(kernel.read(end - 512, 4096).unwrap(), [7; 512]);
    assert_eq!(kernel.read(end - 5, 4096).unwrap(), [7; 5]);
    for offset in [end, end + 1, u64::MAX - 10, u64::MAX] {
        assert_eq!(kernel.read(offset, 4096).unwrap(), []);
    }
    assert_eq!(kernel.read(0, 0).unwrap(), []);
}

#[test]
fn writes_end_at_the_end() {
    let (disk, mut kernel) = served();
    let end = SIZE as u64;
    assert_eq!(kernel.write(end - 512, &[3; 4096]), Ok(512));
    assert_eq!(kernel.write(end - 5, &[4; 4096]), Ok(5));
    assert_eq!(disk.bytes.lock().unwrap()[SIZE - 512..], [[3; 507].as_slice(), &[4; 5]].concat());
    for offset in [end, end + 1, u64::MAX - 10, u64::MAX] {
        assert_eq!(kernel.write(offset, &[1; 512]), Err(ENOSPC));
    }
    assert_eq!(kernel.write(0, &[]), Ok(0));
}

/// The kernel sends no sync after a write past the page cache: the write itself says that it must
/// be durable.
#[test]
fn synced_writes_are_durable_when_they_end() {
    let (disk, mut kernel) = served();
    let (dsync, sync) = (0o10000, 0o4010000);
    for (flags, is_durable) in [(0, false), (dsync, true), (sync | 1, true), (1, false)] {
        for (offset, length) in [(0, 4096), (700, 100), (512, 1000)] {
            disk.counts.lock().unwrap().clear();
            let body = write_with(flags, offset, &vec![5; length]);
            assert!(kernel.call(WRITE, 1, &body).is_ok());
            let counts = disk.counts.lock().unwrap();
            let writes = counts.iter().filter(|(op, ..)| *op == Op::Write);
            let are_durable: Vec<bool> =
                writes.map(|(_, flags, _)| flags.contains(BioFlags::FUA)).collect();
            assert_eq!(are_durable, [is_durable], "{flags:o}, {length} bytes");
        }
    }
}

/// A file that is the mount point begins with no size in the kernel, which would keep that with a
/// page cache that holds writes back. And an open past the page cache is told so only where the
/// kernel looks after that.
#[test]
fn kernels_are_asked_for_what_they_do_well() {
    let (writeback, max_pages) = (1 << 16, 1 << 22);
    let (extended, direct_mmap) = (1 << 30, 1 << 4);
    for (kind, is_new) in [(Kind::File, true), (Kind::Folder, true), (Kind::File, false)] {
        let disk = Disk::new(SIZE, 512);
        let options = MountOptions { writeback_cache: true, ..options(kind) };
        let volumes = vec![volume("vol", Arc::new(Handle(disk)), &groups())];
        let mut kernel = Kernel::new(options, volumes, 1, Engine::Auto);
        let high = if is_new { direct_mmap } else { 0 };
        let body = init(7, 40, extended | max_pages | writeback, high);
        let reply = kernel.call(INIT, 0, &body).unwrap();
        let holds_back = u32_at(&reply, 12) & writeback != 0;
        assert_eq!(holds_back, kind == Kind::Folder);
        let node = if kind == Kind::File { 1 } else { 2 };
        for flags in [2_u32, 2 | open_flags::DIRECT] {
            let opened = kernel.call(OPEN, node, &bytes![flags, 0_u32]).unwrap();
            let is_direct = u32_at(&opened, 8) & 1 != 0;
            assert_eq!(is_direct, is_new && flags != 2, "{kind:?} {flags:o}");
        }
    }
}

/// Backups compare times. A write by another export counts, too: the device knows of it.
#[test]
fn a_file_that_was_written_has_a_new_time() {
    static NOW: AtomicU64 = AtomicU64::new(1_700_000_000);
    let disk = Disk::new(SIZE, 512);
    let options = MountOptions { now_s: || NOW.fetch_add(1, Relaxed), ..options(Kind::File) };
    let volumes = vec![volume("vol", Arc::new(Handle(disk.clone())), &groups())];
    let mut kernel = Kernel::new(options, volumes, 1, Engine::Auto);
    kernel.initialise();
    let mut time = || u64_at(&kernel.call(GETATTR, 1, &bytes![0_u64, 0_u64]).unwrap(), 48);
    let first = time();
    assert_eq!(time(), first);
    disk.written.store(1, Relaxed);
    let second = time();
    assert!(second > first);
    assert_eq!(time(), second);
}

#[test]
fn parts_of_blocks_are_read_and_written() {
    let (disk, mut kernel) = served();
    let mut model = pattern(SIZE);
    disk.bytes.lock().unwrap().copy_from_slice(&model);
    for (offset, length) in
        [(1, 1), (511, 2), (0, 1), (512, 100), (700, 4000), (4095, 70_001), (3, 509)]
    {
        assert_eq!(
            kernel.read(offset as u64, length as u32).unwrap(),
            model[offset..offset + length]
        );
        model[offset..offset + length].fill(0xee);
        assert_eq!(kernel.write(offset as u64, &vec![0xee; length]), Ok(length as u32));
        assert!(*disk.bytes.lock().unwrap() == model, "{length} bytes at {offset}");
    }
    assert_eq!(kernel.write(SIZE as u64 - 1, &[9; 512]), Ok(1));
}

#[test]
fn ranges_are_zeroed() {
    let (disk, mut kernel) = served();
    let (keep, punch, zero) = (1, 3, 16);
    let mut model = pattern(SIZE);
    disk.bytes.lock().unwrap().copy_from_slice(&model);
    let cases = [
        (0, 4096, punch),
        (8192, 512, zero),
        (700, 10, punch),
        (1000, 5000, zero | keep),
        (511, 1026, punch),
    ];
    for (offset, length, mode) in cases {
        model[offset..offset + length].fill(0);
        let body = fallocate(offset as u64, length as u64, mode);
        assert_eq!(kernel.call(FALLOCATE, 1, &body), Ok(Vec::new()));
        assert!(*disk.bytes.lock().unwrap() == model, "{length} bytes at {offset}");
    }
    let zeroed = disk.counts.lock().unwrap().clone();
    let flags: Vec<_> =
        zeroed.iter().filter(|(op, ..)| *op == Op::WriteZeroes).map(|(_, f, _)| *f).collect();
    let no_unmap = BioFlags::NOUNMAP;
    let empty = BioFlags::empty();
    assert_eq!(flags, [empty, no_unmap, no_unmap, empty], "the piece of a block needs none");
    let end = SIZE as u64;
    let cases = [
        (0, 4096, 0, Ok(())),
        (0, end, keep, Ok(())),
        (0, end + 1, 0, Err(ENOSPC)),
        (end, 1, keep, Err(ENOSPC)),
        (end - 512, 4096, zero, Err(ENOSPC)),
        (end - 512, 4096, zero | keep, Ok(())),
        (end + 5, u64::MAX, punch, Ok(())),
        (u64::MAX - 5, u64::MAX, 0, Err(ENOSPC)),
        (0, 0, punch, Err(EINVAL)),
        (0, 4096, 8, Err(EOPNOTSUPP)),
        (0, 4096, 2, Err(EOPNOTSUPP)),
        (0, 4096, u32::MAX, Err(EOPNOTSUPP)),
    ];
    for (offset, length, mode, expected) in cases {
        let answer = kernel.call(FALLOCATE, 1, &fallocate(offset, length, mode)).map(|_| ());
        assert_eq!(answer, expected, "{length} bytes at {offset}, mode {mode}");
    }
    model[SIZE - 512..].fill(0);
    assert!(*disk.bytes.lock().unwrap() == model);
}

#[test]
fn data_and_holes_are_found() {
    let (disk, mut kernel) = served();
    let end = SIZE as u64;
    disk.bytes.lock().unwrap()[40_960..49_152].fill(1);
    disk.bytes.lock().unwrap()[SIZE - 1] = 1;
    let (data, hole) = (3, 4);
    let cases = [
        (0, data, Ok(40_960)),
        (45_000, data, Ok(45_000)),
        (49_152, data, Ok(end - 4096)),
        (0, hole, Ok(0)),
        (41_000, hole, Ok(49_152)),
        (end - 1, hole, Ok(end)),
        (end, hole, Err(ENXIO)),
        (end, data, Err(ENXIO)),
        (u64::MAX, data, Err(ENXIO)),
        (0, 0, Err(EINVAL)),
    ];
    for (offset, whence, expected) in cases {
        let answer = kernel.call(LSEEK, 1, &lseek(offset, whence)).map(|body| u64_at(&body, 0));
        assert_eq!(answer, expected, "whence {whence} from {offset}");
    }
    disk.bytes.lock().unwrap().fill(0);
    assert_eq!(kernel.call(LSEEK, 1, &lseek(0, data)), Err(ENXIO), "nothing but a hole");
}

#[test]
fn a_volume_that_grows_is_seen() {
    let (disk, mut kernel) = served();
    disk.size.store(4096, Relaxed);
    let size = |kernel: &mut Kernel| u64_at(&kernel.call(GETATTR, 1, &[0; 16]).unwrap(), 24);
    assert_eq!(size(&mut kernel), 4096);
    assert_eq!(kernel.write(4096, &[1; 512]), Err(ENOSPC));
    disk.size.store(8192, Relaxed);
    assert_eq!(kernel.write(4096, &[1; 512]), Ok(512));
    assert_eq!(size(&mut kernel), 8192);
    disk.size.store(8192 + 511, Relaxed);
    assert_eq!(size(&mut kernel), 8192, "whole blocks");
}

#[test]
fn attributes_stay_as_they_are() {
    let (_disk, mut kernel) = served();
    let (size, mode, owner, time) = (1 << 3, 1, 1 << 1, 1 << 4);
    for valid in [0, time] {
        let answer = kernel.call(SETATTR, 1, &setattr(valid, 5)).unwrap();
        assert_eq!((answer.len(), u64_at(&answer, 24)), (104, SIZE as u64));
    }
    for valid in [mode, owner, mode | size] {
        assert_eq!(kernel.call(SETATTR, 1, &setattr(valid, 5)), Err(EPERM));
    }
    let attributes = kernel.call(GETATTR, 1, &[0; 16]).unwrap();
    assert_eq!(u32_at(&attributes, 76), 0o100_644);
    assert_eq!((u32_at(&attributes, 84), u32_at(&attributes, 88)), (7, 8));
    assert_eq!(u64_at(&attributes, 48), 1_700_000_000);
}

/// While holes are refused nothing is punched; ranges are zeroed as ever.
#[test]
fn holes_can_be_refused_for_a_while() {
    let (disk, mut kernel) = served();
    disk.bytes.lock().unwrap().copy_from_slice(&pattern(SIZE));
    kernel.mount.refuse_holes(true);
    assert_eq!(kernel.call(FALLOCATE, 1, &fallocate(0, 512, 3)), Err(EOPNOTSUPP));
    assert!(*disk.bytes.lock().unwrap() == pattern(SIZE));
    kernel.call(FALLOCATE, 1, &fallocate(0, 512, 0x11)).unwrap();
    kernel.mount.refuse_holes(false);
    kernel.call(FALLOCATE, 1, &fallocate(512, 512, 3)).unwrap();
    assert_eq!(disk.bytes.lock().unwrap()[..1024], [0; 1024]);
}

#[test]
fn a_read_only_volume_is_not_written() {
    let disk = Disk::new(SIZE, 512);
    let mut read_only = volume("vol", Arc::new(Handle(disk.clone())), &groups());
    read_only.read_only = true;
    let mut kernel = Kernel::new(options(Kind::File), vec![read_only], 1, Engine::Auto);
    kernel.initialise();
    for access in [1_u32, 2] {
        assert_eq!(kernel.call(OPEN, 1, &bytes![access, 0_u32]), Err(EROFS));
    }
    kernel.call(OPEN, 1, &bytes![0_u32, 0_u32]).unwrap();
    assert_eq!(kernel.write(0, &[1; 512]), Err(EROFS));
    assert_eq!(kernel.call(FALLOCATE, 1, &fallocate(0, 512, 3)), Err(EROFS));
    assert_eq!(kernel.call(SETATTR, 1, &setattr(1 << 3, 0)), Err(EROFS));
    assert_eq!(kernel.call(FSYNC, 1, &bytes![0_u64, 0_u32, 0_u32]), Ok(Vec::new()));
    assert_eq!(kernel.read(0, 512).unwrap(), [0; 512]);
    assert_eq!(u32_at(&kernel.call(GETATTR, 1, &[0; 16]).unwrap(), 76), 0o100_444);
    assert_eq!(disk.count(Op::Write), 0);
}

/// A client is told the same of a volume by every front end.
#[test]
fn all_front_ends_tell_the_same() {
    const WHOLE: u64 = 3 * 4096;
    for (of_export, of_device) in [(false, false), (true, false), (false, true)] {
        let mut disk = Disk::new(WHOLE as usize + 512, 4096);
        Arc::get_mut(&mut disk).unwrap().read_only = of_device;
        let mut volume = volume("vol", Arc::new(Handle(disk)), &groups());
        volume.read_only = of_export;
        let (shape, read_only) = (volume.shape(), of_export || of_device);
        assert_eq!(shape.geometry, Geometry { size: WHOLE, block: 4096, read_only });
        assert_eq!(shape.limits.read_only, read_only);
        let export = Export {
            volume: volume.clone(),
            description: String::new(),
            multi_conn: true,
            zero_copy: true,
            tls_required: false,
            allow: None,
        };
        let told = export.info(&Settings { max_request: 1 << 20, ..Settings::default() });
        assert_eq!((told.size_bytes, told.block_sizes.min), (WHOLE, 1));
        assert_eq!(told.flags.contains(TransmissionFlags::READ_ONLY), read_only);
        let mut kernel = Kernel::new(options(Kind::File), vec![volume], 1, Engine::Auto);
        kernel.initialise();
        let told = kernel.call(GETATTR, 1, &[0; 16]).unwrap();
        assert_eq!(u64_at(&told, 24), WHOLE);
        assert_eq!(u32_at(&told, 76) & 0o222 == 0, read_only);
        kernel.end();
    }
}

#[test]
fn handles_count_as_clients() {
    let (_disk, mut kernel) = served();
    let plain = kernel.call(OPEN, 1, &bytes![2_u32, 0_u32]).unwrap();
    assert_eq!(u32_at(&plain, 8), 0, "through the page cache");
    let direct = kernel.call(OPEN, 1, &bytes![2_u32 | 0o40000, 0_u32]).unwrap();
    assert_eq!(u32_at(&direct, 8), 1 | 1 << 6);
    let clients = |mount: &Mount| mount.volumes().next().unwrap().clients.count();
    assert_eq!(clients(&kernel.mount), 2);
    for handle in [u64_at(&plain, 0), u64_at(&plain, 0), 99, u64::MAX] {
        kernel.call(RELEASE, 1, &bytes![handle, 0_u64, 0_u64]).unwrap();
    }
    assert_eq!(clients(&kernel.mount), 1);
    let mount = kernel.mount.clone();
    kernel.end();
    assert_eq!((clients(&mount), mount.sessions_serving()), (0, 0), "the mount is gone");
}

#[test]
fn a_folder_has_a_file_for_each_volume() {
    let disks: Vec<_> = [4096, 8192].map(|size| Disk::new(size, 512)).into();
    let names = ["one", "two"];
    let volume =
        |(disk, name): (&Arc<Disk>, &str)| volume(name, Arc::new(Handle(disk.clone())), &groups());
    let volumes = disks.iter().zip(names).map(volume).collect();
    let mut kernel = Kernel::new(options(Kind::Folder), volumes, 1, Engine::Auto);
    kernel.initialise();
    let two = kernel.call(LOOKUP, 1, b"two\0").unwrap();
    assert_eq!((two.len(), u64_at(&two, 0), u64_at(&two, 48)), (128, 3, 8192));
    assert_eq!(kernel.call(LOOKUP, 1, b"three\0"), Err(ENOENT));
    assert_eq!(kernel.call(LOOKUP, 3, b"two\0"), Err(ENOTDIR));
    assert_eq!(kernel.call(OPEN, 1, &bytes![0_u32, 0_u32]), Err(EISDIR));
    assert_eq!(kernel.call(OPENDIR, 3, &bytes![0_u32, 0_u32]), Err(ENOTDIR));
    assert_eq!(kernel.call(GETATTR, 9, &[0; 16]), Err(ENOENT));
    assert_eq!(u32_at(&kernel.call(GETATTR, 1, &[0; 16]).unwrap(), 76), 0o040_555);
    kernel.call(OPENDIR, 1, &bytes![0_u32, 0_u32]).unwrap();
    assert_eq!(listed(&mut kernel, READDIR, 4096), [".", "..", "one", "two"]);
    assert_eq!(listed(&mut kernel, READDIR, 64), [".", "..", "one", "two"], "in pieces");
    assert_eq!(listed(&mut kernel, READDIRPLUS, 4096), [".", "..", "one", "two"]);
    kernel.call(RELEASEDIR, 1, &bytes![0_u64, 0_u64, 0_u64]).unwrap();
    let data = write(0, 512, &[5; 512]);
    kernel.call(WRITE, 3, &data).unwrap();
    assert_eq!(disks[1].bytes.lock().unwrap()[512..1024], [5; 512]);
    assert_eq!(kernel.call(WRITE, 4, &data), Err(EINVAL));
    assert_eq!(kernel.call(WRITE, 1, &data), Err(EINVAL));
    let statistics = kernel.call(STATFS, 1, &[]).unwrap();
    assert_eq!((statistics.len(), u64_at(&statistics, 0), u64_at(&statistics, 24)), (80, 3, 2));
}

fn listed(kernel: &mut Kernel, opcode: u32, length: u32) -> Vec<String> {
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let body = kernel.call(opcode, 1, &read(0, offset, length)).unwrap();
        assert!(body.len() <= length as usize);
        let mut rest = &body[..];
        if rest.is_empty() {
            return names;
        }
        while !rest.is_empty() {
            let entry = if opcode == READDIRPLUS { &rest[128..] } else { rest };
            offset = u64_at(entry, 8);
            let end = 24 + u32_at(entry, 16) as usize;
            names.push(String::from_utf8(entry[24..end].to_vec()).unwrap());
            let whole = rest.len() - entry.len() + end;
            rest = &rest[whole.next_multiple_of(8).min(rest.len())..];
        }
    }
}

#[test]
fn what_is_not_served_is_refused() {
    let (_disk, mut kernel) = served();
    for opcode in [5, 21, 22, 23, 24, 25, 30, 31, 33, 34, 37, 39, 40, 47, 52, 4096, u32::MAX] {
        assert_eq!(kernel.call(opcode, 1, &[0; 64]), Err(ENOSYS), "opcode {opcode}");
    }
    for opcode in [6, 8, 9, 10, 11, 12, 13, 35, 45, 51] {
        assert_eq!(kernel.call(opcode, 1, &[0; 64]), Err(EPERM), "opcode {opcode}");
    }
    assert_eq!(kernel.call(DESTROY, 0, &[]), Ok(Vec::new()));
    assert_eq!(kernel.call(LOOKUP, 1, b"x\0"), Err(ENOTDIR));
    assert_eq!(kernel.call(READDIR, 1, &read(0, 0, 4096)), Err(ENOTDIR));
}

#[test]
fn what_is_no_request_harms_nobody() {
    let (_disk, mut kernel) = served();
    for opcode in [LOOKUP, SETATTR, OPEN, READ, WRITE, RELEASE, FSYNC, INIT, FALLOCATE, LSEEK] {
        assert_eq!(kernel.call(opcode, 1, &[]), Err(EINVAL), "opcode {opcode}");
    }
    assert_eq!(kernel.call(INTERRUPT, 0, &[]), Err(EINVAL), "of what?");
    let mut long = request(READ, 101, 1, 0, &read(0, 0, 512));
    long[0] += 1;
    kernel.send_raw(0, &long);
    assert_eq!(kernel.wait_for(0, 101), Err(EINVAL), "another length than it says");
    let mut lying = write(0, 0, &[1; 512]);
    lying[16] = 9;
    assert_eq!(kernel.call(WRITE, 1, &lying), Err(EINVAL), "other data than it says");
    assert_eq!(kernel.call(LOOKUP, 1, b"no end"), Err(EINVAL));
    kernel.send(0, FORGET, 1, &bytes![1_u64]);
    kernel.send(0, BATCH_FORGET, 0, &bytes![1_u32, 0_u32, 1_u64, 1_u64]);
    assert_eq!(kernel.read(0, 512).unwrap(), [0; 512], "no answer to what has none");
}
