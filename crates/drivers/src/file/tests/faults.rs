//! Files that fail: cut short, full, or with flushes that did not work.

use super::fault_ring::{Fault, FaultRing, Faults};
use super::*;
use drystone_core::clock::SystemClock;
use drystone_core::ring::{self, FileOp};
use drystone_queue::queue::QueueOptions;
use std::os::unix::fs::FileExt;

/// A file of 4 MiB on a ring that fails as told.
fn faulty(dir: &Path, engine: Engine) -> (Rig, Faults) {
    let clock = SystemClock::new();
    let (ring, faults) = FaultRing::around(ring::open(engine, clock.clone()).unwrap());
    (Rig::on(file(dir, 4 * MIB), &QueueOptions::default(), ring, clock), faults)
}

fn plan(faults: &Faults, plan: impl FnMut(&FileOp) -> Option<Fault> + Send + 'static) {
    *faults.lock().unwrap() = Box::new(plan);
}

#[test]
fn after_a_failed_flush_no_flush_succeeds_until_it_is_opened_again() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let (mut rig, faults) = faulty(dir.path(), engine);
        assert_eq!((rig.write(0, &[1; 4096], NONE), rig.flush()), (Status::Ok, Status::Ok));
        plan(&faults, |op| matches!(op, FileOp::DataSync).then_some(Fault::Result(-libc::EIO)));
        assert_eq!(rig.flush(), Status::IoError);
        plan(&faults, |_| None);
        assert_eq!(rig.flush(), Status::IoError, "the kernel forgot the loss, we do not");
        assert_eq!(rig.write(0, &[1; 4096], BioFlags::FUA), Status::IoError);
        assert_eq!(rig.write(0, &[1; 4096], BioFlags::PREFLUSH), Status::IoError);
        assert_eq!(rig.write(0, &[2; 4096], NONE), Status::Ok, "the rest lives");
        assert_eq!(rig.read(0, 4096).unwrap(), [2; 4096]);
        assert_eq!(rig.device.attribute("flush_failed").unwrap(), "1");
        drop(rig);
        let mut rig = Rig::new(File::open(&options(dir.path(), None)).unwrap(), engine);
        assert_eq!(rig.device.attribute("flush_failed").unwrap(), "0");
        assert_eq!(rig.flush(), Status::Ok);
    }
}

/// A durable write that fails has taken the kernel's report of other writes that were lost.
#[test]
fn a_failed_fua_write_counts_as_a_failed_flush() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    plan(&faults, |op| match op {
        FileOp::Write { dsync: true, .. } => Some(Fault::Result(-libc::EIO)),
        _ => None,
    });
    assert_eq!(rig.write(0, &[1; 4096], BioFlags::FUA), Status::IoError);
    assert_eq!(rig.flush(), Status::IoError);
    assert_eq!(rig.read(0, 512).unwrap(), [0; 512]);
}

#[test]
fn a_failed_plain_write_does_not_poison_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    plan(&faults, |op| match op {
        FileOp::Write { .. } => Some(Fault::Result(-libc::ENOSPC)),
        _ => None,
    });
    assert_eq!(rig.write(0, &[1; 4096], NONE), Status::NoSpace);
    assert_eq!(rig.write(0, &[1; 4096], BioFlags::FUA), Status::NoSpace);
    assert_eq!(rig.flush(), Status::Ok, "what failed was never acknowledged");
}

/// The kernel cancels the operation because the thread that started it has ended; no user asked for
/// that.
#[test]
fn what_the_kernel_cancelled_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    let mut n = 0;
    plan(&faults, move |op| {
        n += usize::from(matches!(op, FileOp::DataSync));
        (n == 1).then_some(Fault::Result(-libc::ECANCELED))
    });
    assert_eq!(rig.flush(), Status::Ok);
    plan(&faults, |_| None);
    assert_eq!(rig.flush(), Status::Ok, "nothing was lost");
}

#[test]
fn interrupted_and_short_operations_go_on() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let (mut rig, faults) = faulty(dir.path(), engine);
        let mut n = 0;
        plan(&faults, move |op| {
            n += 1;
            match (n % 3, op) {
                (0, _) => Some(Fault::Result(-libc::EINTR)),
                (1, FileOp::Read { .. } | FileOp::Write { .. }) => Some(Fault::Short(512)),
                (1, FileOp::Readv { .. } | FileOp::Writev { .. }) => Some(Fault::Short(0)),
                _ => None,
            }
        });
        let data = pattern(8192, 6);
        for round in 0..6 {
            assert_eq!(rig.write(round * 8192, &data, NONE), Status::Ok);
            assert_eq!(rig.read(round * 8192, 8192).unwrap(), data);
        }
        let pieces = [1024usize, 512, 2560].map(|n| (IoBuf::from_slice(&data[..n]), 0..n));
        assert_eq!(rig.one(Bio::vectored(Op::Write, Sector(200), pieces)).status, Status::Ok);
        let expected = [&data[..1024], &data[..512], &data[..2560]].concat();
        assert_eq!(rig.read(200 * 512, 4096).unwrap(), expected);
        assert_eq!((rig.flush(), rig.flush()), (Status::Ok, Status::Ok));
        assert_eq!(rig.range(Op::Discard, 0, 8192, NONE), Status::Ok);
    }
}

#[test]
fn a_file_system_that_cannot_punch_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    rig.write(0, &pattern(65536, 1), NONE);
    plan(&faults, |op| match op {
        FileOp::Allocate { .. } => Some(Fault::Result(-libc::EOPNOTSUPP)),
        _ => None,
    });
    assert_eq!(rig.range(Op::WriteZeroes, 0, 4096, NONE), Status::Ok, "written by hand");
    assert_eq!(rig.read(0, 4096).unwrap(), [0; 4096]);
    assert_eq!(rig.range(Op::Discard, 0, 4096, NONE), Status::Ok, "advice that is not taken");
    let flags = BioFlags::FAST_ZERO;
    assert_eq!(rig.range(Op::WriteZeroes, 4096, 4096, flags), Status::NotSupported);
}

/// Nothing was zeroed, so the bio must not succeed.
#[test]
fn a_fast_zero_that_is_interrupted_and_cannot_be_begun_again_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    let (ring, others) = FaultRing::around(ring::open(Engine::Auto, SystemClock::new()).unwrap());
    let mut beside = rig.beside(ring);
    let data = pattern(4096, 1);
    assert_eq!(rig.write(0, &data, NONE), Status::Ok);
    plan(&faults, |op| matches!(op, FileOp::Allocate { .. }).then_some(Fault::Held));
    let mut zero = Bio::without_data(Op::WriteZeroes, Sector(0), 4096);
    zero.flags = BioFlags::FAST_ZERO;
    rig.submit([zero]);
    plan(&others, |op| match op {
        FileOp::Allocate { .. } => Some(Fault::Result(-libc::EOPNOTSUPP)),
        _ => None,
    });
    assert_eq!(beside.range(Op::WriteZeroes, 8192, 4096, NONE), Status::Ok, "written by hand");
    plan(&faults, |op| match op {
        FileOp::Allocate { .. } => Some(Fault::Result(-libc::EINTR)),
        _ => None,
    });
    assert_eq!(rig.drain()[0].status, Status::NotSupported);
    assert_eq!(rig.read(0, 4096).unwrap(), data);
}

/// Cuts the file of a rig below it.
fn cut(dir: &Path, length: u64) {
    let disk = std::fs::OpenOptions::new().write(true).open(dir.join("disk.img")).unwrap();
    disk.set_len(length).unwrap();
}

fn length(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("disk.img")).unwrap().len()
}

#[test]
fn a_read_behind_the_end_of_a_file_cut_short_finds_it_out() {
    for end in [MIB, MIB + 512, MIB + 1000] {
        for (offset, bytes) in [(3 * MIB, 4096), (MIB - 4096, 8192)] {
            everywhere(|mut rig, dir| {
                rig.write(0, &pattern(2 * MIB as usize, 3), NONE);
                cut(dir, end);
                assert_eq!(rig.read(0, 65536).unwrap(), pattern(65536, 3), "nobody has seen it");
                assert_eq!(rig.device.attribute("cut_short").unwrap(), "0");
                assert_eq!(rig.read(offset, bytes), Err(Status::Offline), "{end}");
                // Lost data is not reported as a hole: it does not read as zeroes.
                let extents = rig.device.extents(2 * MIB, MIB, 10).unwrap();
                assert!(extents.iter().all(|e| !e.zero), "{extents:?}");
                assert_eq!(rig.device.attribute("cut_short").unwrap(), "1");
                assert_eq!(rig.write(3 * MIB, &[5; 4096], NONE), Status::Offline);
                assert_eq!((rig.flush(), length(dir)), (Status::Offline, end), "it stays as it is");
                let error = rig.device.set_attribute("size_bytes", "8388608").unwrap_err();
                assert!(error.message.contains("was cut short"), "{error}");
                assert_eq!(length(dir), end);
            });
        }
    }
}

/// A write would make the file longer, with a hole in place of the lost data.
#[test]
fn no_write_behind_the_end_of_a_file_cut_short_is_acknowledged() {
    for (offset, bytes) in [(2 * MIB, 4096usize), (MIB - 4096, 8192), (0, 4096)] {
        everywhere(|mut rig, dir| {
            assert_eq!(rig.write(0, &pattern(2 * MIB as usize, 3), NONE), Status::Ok);
            cut(dir, MIB);
            assert_eq!(rig.write(offset, &vec![5; bytes], NONE), Status::Offline);
            assert_eq!(rig.read(MIB + 4096, 4096), Err(Status::Offline), "no hole is read");
            assert!(length(dir) < 4 * MIB);
        });
    }
}

/// A bio of two pieces: it goes by the ring also where a file lies in memory.
fn in_pieces(op: Op, offset: u64) -> Box<Bio> {
    let pieces = [IoBuf::zeroed(4096), IoBuf::zeroed(4096)].map(|buf| (buf, 0..4096));
    Bio::vectored(op, Sector::from_bytes(offset), pieces)
}

/// Cuts the file of a rig, and writes behind its new end, as a context does whose write is in
/// flight.
fn cut_and_write(dir: &Path) {
    cut(dir, MIB);
    let disk = std::fs::OpenOptions::new().write(true).open(dir.join("disk.img")).unwrap();
    disk.write_all_at(&[5; 8192], 2 * MIB).unwrap();
}

/// Two contexts on a file full of data; the ring claims success for operations of several pieces.
fn two_contexts(dir: &Path, engine: Engine) -> (Rig, Rig) {
    let (mut first, faults) = faulty(dir, engine);
    assert_eq!(first.write(0, &pattern(4 * MIB as usize, 3), NONE), Status::Ok);
    let clock = SystemClock::new();
    let (ring, others) = FaultRing::around(ring::open(engine, clock).unwrap());
    for faults in [&faults, &others] {
        plan(faults, |op| match op {
            FileOp::Readv { .. } | FileOp::Writev { .. } => Some(Fault::Result(8192)),
            _ => None,
        });
    }
    let second = first.beside(ring);
    (first, second)
}

/// The write made the file longer again, and no queue has checked its length since.
#[test]
fn no_read_beside_a_write_to_a_file_cut_short_is_told_a_hole() {
    for (engine, dir) in ENGINES.into_iter().flat_map(|engine| places().map(|dir| (engine, dir))) {
        let (mut writer, mut reader) = two_contexts(dir.path(), engine);
        writer.submit([in_pieces(Op::Write, 2 * MIB)]);
        cut_and_write(dir.path());
        assert_eq!(reader.read(MIB + 4096, 4096).err(), Some(Status::Offline), "a hole is read");
        assert_eq!(writer.drain()[0].status, Status::Offline);
    }
}

/// The other context has seen the cut while the read was in flight.
#[test]
fn no_read_ends_well_after_it_was_seen_that_a_file_was_cut_short() {
    for (engine, dir) in ENGINES.into_iter().flat_map(|engine| places().map(|dir| (engine, dir))) {
        let (mut writer, mut reader) = two_contexts(dir.path(), engine);
        reader.submit([in_pieces(Op::Read, MIB + 4096)]);
        writer.submit([in_pieces(Op::Write, 2 * MIB)]);
        cut_and_write(dir.path());
        assert_eq!(writer.drain()[0].status, Status::Offline);
        assert_eq!(reader.drain()[0].status, Status::Offline);
    }
}

/// Such a write alone would give the file its length back, and so hide its loss.
#[test]
fn a_write_of_the_last_block_does_not_hide_that_a_file_was_cut_short() {
    for range in [false, true] {
        everywhere(|mut rig, dir| {
            cut(dir, MIB);
            let status = match range {
                true => rig.range(Op::WriteZeroes, 4 * MIB - 8192, 8192, NONE),
                false => rig.write(4 * MIB - 8192, &[5; 8192], NONE),
            };
            assert_eq!((status, length(dir)), (Status::Offline, MIB));
        });
    }
}

/// Data that was flushed is on the disk, or the flush says that it is not.
#[test]
fn neither_a_flush_nor_zeroes_go_well_on_a_file_cut_short() {
    for op in [Op::Flush, Op::WriteZeroes, Op::Discard] {
        everywhere(|mut rig, dir| {
            assert_eq!(rig.write(2 * MIB, &pattern(4096, 3), NONE), Status::Ok);
            cut(dir, MIB);
            let status = match op {
                Op::Flush => rig.flush(),
                op => rig.range(op, 2 * MIB, 4096, NONE),
            };
            assert_eq!(status, Status::Offline, "{op:?}");
        });
    }
}

/// Some file systems refuse to go on with a direct read from inside a sector.
#[test]
fn a_direct_read_that_ends_inside_a_sector_is_an_error_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    if rig.device.attribute("direct").unwrap() == "0" {
        println!("SKIPPED a_direct_read_that_ends_inside_a_sector: no direct I/O here");
        return;
    }
    let mut results = vec![-libc::EINVAL, 1000].into_iter();
    plan(&faults, move |_| results.next_back().map(Fault::Result));
    assert_eq!(rig.read(0, 4096), Err(Status::IoError));
}

#[test]
fn a_full_file_system_is_said_to_be_full() {
    let dir = tempfile::tempdir().unwrap();
    let target = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    // SAFETY: strings that live for the call.
    let mounted = unsafe {
        let (kind, options) = (c"tmpfs".as_ptr(), c"size=1m".as_ptr().cast());
        libc::mount(kind, target.as_ptr(), kind, 0, options) == 0
    };
    if !mounted {
        println!("SKIPPED a_full_file_system_is_said_to_be_full: mounting is not permitted here");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        for engine in ENGINES {
            let mut rig = Rig::new(file(dir.path(), 8 * MIB), engine);
            let data = pattern(65536, 1);
            let end = (0..128).map(|i| rig.write(i * 65536, &data, NONE)).find(|s| !s.is_ok());
            assert_eq!(end, Some(Status::NoSpace));
            assert_eq!(rig.read(0, 65536).unwrap(), data, "the rest lives");
            assert_eq!(rig.flush(), Status::Ok);
            assert_eq!(rig.range(Op::Discard, 0, MIB, NONE), Status::Ok);
            assert_eq!(rig.write(0, &data, NONE), Status::Ok, "there is space again");
            drop(rig);
            std::fs::remove_file(dir.path().join("disk.img")).unwrap();
        }
    });
    // SAFETY: as above.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    assert!(result.is_ok());
}

#[test]
fn a_time_out_ends_when_the_kernel_gives_back() {
    // The operation is done at once here; the test shows that a late cancel harms nothing.
    let dir = tempfile::tempdir().unwrap();
    let options = QueueOptions { io_timeout_ms: Some(1), ..QueueOptions::default() };
    for engine in ENGINES {
        let driver = File::open(&super::options(dir.path(), Some(4 * MIB))).unwrap();
        let mut rig = Rig::with(driver, &options, engine, SystemClock::new());
        for i in 0..200u64 {
            rig.submit((0..8).map(|j| {
                let mut bio = Bio::write(Sector((i * 8 + j) % 4000), IoBuf::zeroed(512));
                bio.flags = BioFlags::FUA;
                bio
            }));
            let ended = rig.drain();
            assert_eq!(ended.len(), 8);
            assert!(ended.iter().all(|b| matches!(b.status, Status::Ok | Status::Timeout)));
        }
        assert_eq!(rig.device.stats().in_flight(), (0, 0));
    }
}
