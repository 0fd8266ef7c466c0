//! Long reads that end in a pipe.

use super::fault_ring::{Fault, FaultRing, Faults};
use super::*;
use drystone_core::clock::SystemClock;
use drystone_core::ring::{self, FileOp};
use drystone_queue::queue::QueueOptions;

const LONG: usize = 1 << 20;

/// A directory that is not in memory, as /tmp may be.
fn on_disk() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// A file that is read and written through the page cache.
fn cached(dir: &Path) -> File {
    let options = FileOptions { direct: Direct::No, ..options(dir, Some(4 * MIB)) };
    File::open(&options).expect("a new file")
}

/// A file of 4 MiB of known data on a ring that fails as told.
fn faulty(dir: &Path, engine: Engine) -> (Rig, Faults) {
    let clock = SystemClock::new();
    let (ring, faults) = FaultRing::around(ring::open(engine, clock.clone()).unwrap());
    let mut rig = Rig::on(cached(dir), &QueueOptions::default(), ring, clock);
    for part in 0..4 {
        assert_eq!(rig.write(part * MIB, &pattern(LONG, part as u8), NONE), Status::Ok);
    }
    (rig, faults)
}

fn plan(faults: &Faults, plan: impl FnMut(&FileOp) -> Option<Fault> + Send + 'static) {
    *faults.lock().unwrap() = Box::new(plan);
}

#[test]
fn a_long_read_ends_in_its_pipe() {
    for engine in ENGINES {
        let dir = on_disk();
        let (mut rig, _faults) = faulty(dir.path(), engine);
        assert!(rig.device.fills_pipes());
        let (bio, data) = rig.read_with_pipe(MIB, LONG);
        assert!(bio.status == Status::Ok && data == pattern(LONG, 1));
        assert!(bio.buf().expect("its buffer").iter().all(|byte| *byte == 0), "nobody copied");
        let (bio, data) = rig.read_with_pipe(MIB + 4096, 128 << 10);
        assert!(bio.status == Status::Ok && data == pattern(LONG, 1)[4096..4096 + (128 << 10)]);
    }
}

/// Reads that are short, or begin inside a page, and those of files without a page cache of their
/// own have their data in memory.
#[test]
fn other_reads_leave_the_pipe_empty() {
    for (dir, is_on_disk) in places().into_iter().zip([true, false]) {
        let dir = if is_on_disk { on_disk() } else { dir };
        let mut rig = Rig::new(cached(dir.path()), Engine::Auto);
        assert_eq!(rig.device.fills_pipes(), is_on_disk);
        rig.write(0, &pattern(LONG, 5), NONE);
        for (offset, len) in [(0, 4096), (512, 512 << 10), (0, (128 << 10) + 512)] {
            let (bio, data) = rig.read_with_pipe(offset, len);
            let at = offset as usize;
            assert!(bio.status == Status::Ok && data.is_empty(), "{offset} {len}");
            assert!(bio.buf().expect("its buffer")[..] == pattern(LONG, 5)[at..at + len]);
        }
        let (_, data) = rig.read_with_pipe(0, LONG);
        assert_eq!(data.len(), if is_on_disk { LONG } else { 0 });
    }
}

#[test]
fn interrupted_and_short_moves_go_on() {
    for engine in ENGINES {
        let dir = on_disk();
        let (mut rig, faults) = faulty(dir.path(), engine);
        let mut n = 0;
        plan(&faults, move |op| {
            assert!(matches!(op, FileOp::Splice { .. }), "{op:?}");
            n += 1;
            match n % 3 {
                0 => Some(Fault::Result(-libc::EINTR)),
                1 => Some(Fault::Short(96 << 10)),
                _ => Some(Fault::Result(-libc::ECANCELED)),
            }
        });
        let (bio, data) = rig.read_with_pipe(2 * MIB, LONG);
        assert!(bio.status == Status::Ok && data == pattern(LONG, 2));
    }
}

#[test]
fn what_does_not_go_into_the_pipe_is_read() {
    for (error, splices) in [(libc::EAGAIN, true), (libc::EIO, true), (libc::EINVAL, false)] {
        let dir = on_disk();
        let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
        let mut n = 0;
        plan(&faults, move |op| {
            n += usize::from(matches!(op, FileOp::Splice { .. }));
            match (op, n) {
                (FileOp::Splice { .. }, 1) => Some(Fault::Short(64 << 10)),
                (FileOp::Splice { .. }, _) => Some(Fault::Result(-error)),
                _ => None,
            }
        });
        let mut bio = Bio::read(Sector::from_bytes(3 * MIB), IoBuf::zeroed(LONG));
        bio.set_pipe(drystone_core::Pipe::open().expect("a pipe"));
        let mut bio = rig.one(bio);
        assert!(bio.status == Status::Ok && bio.buf().expect("its")[..] == pattern(LONG, 3));
        let pipe = bio.take_pipe().expect("it comes back");
        assert!(pipe.is_empty() && !pipe.is_idle(), "what it holds is not known");
        assert_eq!(rig.device.fills_pipes(), splices);
    }
}

#[test]
fn a_read_that_fails_leaves_nothing_to_send() {
    let dir = on_disk();
    let (mut rig, faults) = faulty(dir.path(), Engine::Auto);
    plan(&faults, |op| match op {
        FileOp::Splice { .. } => Some(Fault::Short(64 << 10)),
        _ => Some(Fault::Result(-libc::EIO)),
    });
    let whole = std::fs::OpenOptions::new().write(true).open(dir.path().join("disk.img")).unwrap();
    whole.set_len(MIB / 2).unwrap();
    let (bio, data) = rig.read_with_pipe(0, LONG);
    assert!(bio.status != Status::Ok && data.is_empty(), "{:?}", bio.status);
}

/// A pipe holds the data of one bio, so neighbours with and without one do not merge.
#[test]
fn reads_with_pipes_do_not_merge() {
    let dir = on_disk();
    let (mut rig, _faults) = faulty(dir.path(), Engine::Auto);
    let half = 128 << 10;
    let bios = [0, 1, 2].map(|n| {
        let mut bio = Bio::read(Sector::from_bytes(n * half as u64), IoBuf::zeroed(half));
        if n != 1 {
            bio.set_pipe(drystone_core::Pipe::open().expect("a pipe"));
        }
        bio
    });
    rig.submit(bios);
    let mut ended = rig.drain();
    ended.sort_by_key(|bio| bio.sector);
    for (mut bio, wanted) in ended.into_iter().zip(pattern(LONG, 0).chunks(half)) {
        match bio.take_pipe() {
            Some(pipe) => assert!(pipe.copy_out(half) == wanted),
            None => assert!(bio.buf().expect("its buffer")[..] == *wanted),
        }
    }
}
