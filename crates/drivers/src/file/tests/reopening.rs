//! Files that are opened again while they are used.

use super::fault_ring::{Fault, FaultRing, Faults};
use super::opening::byte_lock;
use super::retired::is_open;
use super::*;
use crate::file::testing::all_data;
use drystone_core::clock::SystemClock;
use drystone_core::error::ErrorKind;
use drystone_core::ring::{self, FileOp};
use drystone_queue::queue::QueueOptions;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool as Flag, AtomicU64 as Counter, Ordering::SeqCst};

/// A file on a ring that fails as told.
fn faulty(file: File, engine: Engine) -> (Rig, Faults) {
    let clock = SystemClock::new();
    let (ring, faults) = FaultRing::around(ring::open(engine, clock.clone()).unwrap());
    (Rig::on(file, &QueueOptions::default(), ring, clock), faults)
}

fn plan(faults: &Faults, plan: impl FnMut(&FileOp) -> Option<Fault> + Send + 'static) {
    *faults.lock().unwrap() = Box::new(plan);
}

fn reopen(rig: &Rig) -> Result<()> {
    rig.device.set_attribute("reopen", "")
}

fn replace(rig: &Rig) -> Result<()> {
    rig.device.set_attribute("reopen", "replaced")
}

fn shown(rig: &Rig, name: &str) -> String {
    rig.device.attribute(name).unwrap()
}

/// Tells threads that run beside a test to end, also when the test fails.
struct Ended<'a>(&'a Flag);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Puts another file of 4 MiB full of `byte` in the place of the first one. Returns the new path of
/// the first one.
fn put_another(dir: &Path, byte: u8) -> std::path::PathBuf {
    let (path, aside) = (dir.join("disk.img"), dir.join("aside.img"));
    std::fs::rename(&path, &aside).unwrap();
    std::fs::write(&path, vec![byte; 4 * MIB as usize]).unwrap();
    aside
}

#[test]
fn a_failed_flush_is_over() {
    for engine in ENGINES {
        for dir in places() {
            let (mut rig, faults) = faulty(file(dir.path(), 4 * MIB), engine);
            for round in 1..4 {
                plan(&faults, |op| {
                    matches!(op, FileOp::DataSync).then_some(Fault::Result(-libc::EIO))
                });
                assert_eq!(rig.write(0, &[round; 4096], NONE), Status::Ok);
                assert_eq!(rig.flush(), Status::IoError);
                plan(&faults, |_| None);
                assert_eq!(
                    (rig.flush(), shown(&rig, "flush_failed").as_str()),
                    (Status::IoError, "1")
                );
                reopen(&rig).unwrap();
                assert_eq!(shown(&rig, "flush_failed"), "0");
                assert_eq!(rig.flush(), Status::Ok);
                assert_eq!(rig.read(0, 4096).unwrap(), [round; 4096]);
                assert_eq!(shown(&rig, "reopening"), "0", "nothing was under way");
            }
        }
    }
}

#[test]
fn a_cut_that_was_mended_is_over_and_one_that_was_not_is_told() {
    everywhere(|mut rig, dir| {
        let path = dir.join("disk.img");
        let disk = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        disk.set_len(MIB).unwrap();
        assert_eq!(rig.read(2 * MIB, 4096), Err(Status::Offline));
        let error = reopen(&rig).unwrap_err().to_string();
        assert!(
            error.contains("has 1048576 bytes, fewer than the 4194304 of the device"),
            "{error}"
        );
        assert_eq!(shown(&rig, "cut_short"), "1", "an error leaves all as it was");
        disk.set_len(4 * MIB).unwrap();
        reopen(&rig).unwrap();
        assert_eq!(shown(&rig, "cut_short"), "0");
        assert_eq!(rig.write(2 * MIB, &[3; 4096], NONE), Status::Ok);
        assert_eq!(rig.read(2 * MIB, 4096).unwrap(), [3; 4096]);
        disk.set_len(MIB).unwrap();
        assert_eq!(rig.read(2 * MIB, 4096), Err(Status::Offline), "it is noticed again");
    });
}

#[test]
fn another_file_is_taken_only_on_demand_and_the_first_one_is_let_go() {
    everywhere(|mut rig, dir| {
        assert_eq!(rig.write(0, &[1; 4096], NONE), Status::Ok);
        let aside = put_another(dir, 2);
        let error = reopen(&rig).unwrap_err().to_string();
        assert!(error.contains("was replaced"), "{error}");
        assert_eq!(rig.write(0, &[3; 4096], NONE), Status::Ok);
        assert_eq!(std::fs::read(&aside).unwrap()[..4096], [3; 4096], "the first one is in use");
        replace(&rig).unwrap();
        assert_eq!(rig.read(0, 4096).unwrap(), [2; 4096]);
        assert_eq!(
            (shown(&rig, "path_replaced"), shown(&rig, "reopening")),
            ("0".into(), "0".into())
        );
        assert!(!is_open(&aside), "nobody needs it");
        let of = |path: &Path| FileOptions { path: path.to_owned(), ..FileOptions::default() };
        File::open(&of(&aside)).expect("it is free");
        let error = File::open(&of(&dir.join("disk.img"))).err().expect("it is in use");
        assert_eq!(error.kind, ErrorKind::Busy);
        // The path leads to no file.
        std::fs::remove_file(dir.join("disk.img")).unwrap();
        assert!(replace(&rig).unwrap_err().message.contains("No such file"));
        assert_eq!(rig.read(0, 4096).unwrap(), [2; 4096]);
    });
}

#[test]
fn another_file_that_is_in_use_or_too_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(file(dir.path(), 4 * MIB), Engine::Auto);
    put_another(dir.path(), 2);
    let other = File::open(&options(dir.path(), None)).unwrap();
    assert_eq!(replace(&rig).unwrap_err().kind, ErrorKind::Busy);
    drop(other);
    std::fs::write(dir.path().join("disk.img"), [2; 4096]).unwrap();
    assert!(replace(&rig).unwrap_err().message.contains("has 4096 bytes, fewer than"));
    assert_eq!(rig.read(0, 4096).unwrap(), [0; 4096]);
}

#[test]
fn what_is_under_way_ends_where_it_began() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let (mut rig, faults) = faulty(file(dir.path(), 4 * MIB), engine);
        let mut beside = rig.beside(ring::open(engine, SystemClock::new()).unwrap());
        plan(&faults, |op| matches!(op, FileOp::Write { .. }).then_some(Fault::Held));
        rig.submit([Bio::write(Sector(0), IoBuf::from_slice(&[9; 4096]))]);
        let aside = put_another(dir.path(), 2);
        replace(&rig).unwrap();
        assert_eq!(shown(&rig, "reopening"), "1");
        let error = replace(&rig).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy, "{error}");
        assert!(is_open(&aside));
        assert_eq!(beside.read(0, 4096).unwrap(), [2; 4096]);
        // The context that waits goes on with the new one, too.
        rig.submit([Bio::read(Sector(8), IoBuf::zeroed(4096))]);
        while rig.cx.outstanding() > 1 {
            rig.cx.wait(None);
            for bio in rig.reap() {
                assert_eq!((bio.status, &bio.buf().unwrap()[..]), (Status::Ok, &[2; 4096][..]));
            }
        }
        plan(&faults, |_| None);
        assert_eq!(rig.drain().len(), 1);
        assert_eq!(shown(&rig, "reopening"), "0");
        assert!(!is_open(&aside));
        assert_eq!(std::fs::read(&aside).unwrap()[..4096], [9; 4096]);
        assert_eq!(rig.read(0, 4096).unwrap(), [2; 4096]);
        put_another(dir.path(), 4);
        replace(&rig).expect("the next one");
        assert_eq!(
            (rig.read(0, 4096).unwrap(), beside.read(0, 4096).unwrap()),
            (vec![4; 4096], vec![4; 4096])
        );
    }
}

/// A flush that was begun before fails after: it counts for both openings of the same file.
#[test]
fn a_flush_that_fails_late_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (mut rig, faults) = faulty(file(dir.path(), 4 * MIB), Engine::Auto);
    let mut beside = rig.beside(ring::open(Engine::Auto, SystemClock::new()).unwrap());
    plan(&faults, |op| matches!(op, FileOp::DataSync).then_some(Fault::Held));
    rig.submit([Bio::flush()]);
    reopen(&rig).unwrap();
    assert_eq!(beside.flush(), Status::Ok);
    plan(&faults, |op| matches!(op, FileOp::DataSync).then_some(Fault::Result(-libc::EIO)));
    assert_eq!(rig.drain()[0].status, Status::IoError);
    assert_eq!((beside.flush(), shown(&rig, "flush_failed")), (Status::IoError, "1".to_owned()));
    reopen(&rig).unwrap();
    assert_eq!((beside.flush(), shown(&rig, "flush_failed")), (Status::Ok, "0".to_owned()));
}

/// A file that loses its writes, once, when `meanwhile` is over.
struct Losing(Arc<Flag>, fn());

impl Backing for Losing {
    all_data!();

    fn descriptor(&self) -> std::os::fd::RawFd {
        -1
    }

    fn size(&self) -> std::io::Result<u64> {
        Ok(MIB)
    }

    fn sync(&self) -> std::io::Result<()> {
        (self.1)();
        match self.0.swap(false, SeqCst) {
            true => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }

    fn reopened(&self) -> Option<Box<dyn Backing>> {
        Some(Box::new(Losing(self.0.clone(), self.1)))
    }
}

#[test]
fn a_loss_that_nobody_was_told_of_is_told() {
    let loses = Arc::new(Flag::new(true));
    let file = File::over(Box::new(Losing(loses, || {})), Path::new("lost"), 4096).unwrap();
    let error = file.reopen(false).unwrap_err().to_string();
    assert!(error.contains("what was written before may be lost"), "{error}");
    assert_eq!(file.attribute("flush_failed").unwrap(), "1");
    file.reopen(false).unwrap();
    assert_eq!(file.attribute("flush_failed").unwrap(), "0");
}

#[test]
fn one_at_a_time_reopens_it() {
    static FILE: OnceLock<File> = OnceLock::new();
    static TRIES: Counter = Counter::new(0);
    let meanwhile = || {
        if TRIES.fetch_add(1, SeqCst) == 0 {
            let error = FILE.get().unwrap().reopen(false).unwrap_err();
            assert!(
                error.kind == ErrorKind::Busy && error.message.contains("try again"),
                "{error}"
            );
        }
    };
    let backing = Losing(Arc::new(Flag::new(false)), meanwhile);
    let file = File::over(Box::new(backing), Path::new("busy"), 4096).unwrap();
    let file = FILE.get_or_init(|| file);
    file.reopen(false).unwrap();
    file.reopen(false).unwrap();
    assert_eq!(TRIES.load(SeqCst), 2);
}

/// No other opener gets a lock in between, neither a writer nor a lock as QEMU takes it.
#[test]
fn the_lock_is_held_all_the_while() {
    for read_only in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        drop(file(dir.path(), 4 * MIB));
        let with = FileOptions { read_only, ..options(dir.path(), None) };
        let rig = Rig::new(File::open(&with).unwrap(), Engine::Auto);
        let (ended, tries, taken) = (Flag::new(false), Counter::new(0), Counter::new(0));
        let other = std::fs::File::options().read(true).write(true).open(&with.path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(SeqCst) {
                    // "I share no writing", which neither a writer lets anybody say, nor a reader
                    // use.
                    let (done, _) = byte_lock(&other, libc::F_OFD_SETLK, libc::F_WRLCK, 201);
                    taken.fetch_add(u64::from(done == 0), SeqCst);
                    tries.fetch_add(1, SeqCst);
                }
            });
            let _ended = Ended(&ended);
            for _ in 0..200 {
                reopen(&rig).unwrap();
            }
            while tries.load(SeqCst) < 200 {
                std::thread::yield_now();
            }
        });
        assert_eq!(taken.load(SeqCst), 0, "read only: {read_only}");
        drop(rig);
        assert_eq!(
            byte_lock(&other, libc::F_OFD_SETLK, libc::F_WRLCK, 201).0,
            0,
            "free at the end"
        );
    }
}

/// Each context has blocks of its own, and knows their contents.
#[test]
fn nothing_is_lost_while_it_is_reopened_again_and_again() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig::new(file(dir.path(), 4 * MIB), engine);
        let ended = Flag::new(false);
        let rounds: [Counter; 3] = Default::default();
        std::thread::scope(|scope| {
            for (number, round) in rounds.iter().enumerate() {
                let mut beside = rig.beside(ring::open(engine, SystemClock::new()).unwrap());
                let ended = &ended;
                scope.spawn(move || {
                    let at = number as u64 * MIB;
                    while !ended.load(SeqCst) {
                        let seed = round.fetch_add(1, SeqCst) as u8;
                        let data = pattern(65536, seed);
                        assert_eq!(beside.write(at, &data, NONE), Status::Ok);
                        assert_eq!(beside.read(at, 65536).unwrap(), data);
                        assert_eq!(beside.flush(), Status::Ok);
                    }
                });
            }
            let _ended = Ended(&ended);
            let mut exchanged = 0;
            while exchanged < 50 || rounds.iter().any(|round| round.load(SeqCst) < 20) {
                match reopen(&rig) {
                    Ok(()) => exchanged += 1,
                    Err(error) => assert_eq!(error.kind, ErrorKind::Busy, "{error}"),
                }
            }
        });
    }
}
