//! Tables that change under load: nothing is lost, doubled or sent by an old table after the swap.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

mod common;

use common::{Disk, User};
use drystone_core::clock::SystemClock;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, ContextSet, Device, IoBuf, Op, Sector, Status};
use drystone_targets::{Area, Line, Table, TargetSpec, Volume, VolumeOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SECTORS: u64 = 64;

fn linear(device: &Arc<Disk>, sectors: u64) -> Table {
    let target = TargetSpec::Linear(Area { device: device.clone(), sector: 0 });
    Table::new(vec![Line { start: 0, length: sectors, target }]).unwrap()
}

fn empty_volume() -> Volume {
    Volume::new("v", VolumeOptions::default(), LockCounters::new(SystemClock::new()))
}

fn volume(table: Table) -> Volume {
    let volume = empty_volume();
    volume.load(table);
    volume.resume().unwrap();
    volume
}

fn as_device(volume: &Volume) -> Arc<dyn Device> {
    Arc::new(volume.clone())
}

fn write(sector: u64, value: u8) -> Box<Bio> {
    let mut buf = IoBuf::zeroed(512);
    buf.fill(value);
    let mut bio = Bio::write(Sector(sector), buf);
    bio.user_data = sector;
    bio
}

fn read(sector: u64) -> Box<Bio> {
    Bio::read(Sector(sector), IoBuf::zeroed(512))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "in a minute it did not come about that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn suspend(volume: &Volume) {
    volume.start_suspend();
    until("the volume is quiet", || volume.is_quiesced());
}

#[test]
fn without_a_table_everything_fails_and_nothing_resumes() {
    let volume = empty_volume();
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    assert_eq!(volume.info().size_bytes, 0);
    assert_eq!(user.run(read(0)).status, Status::IoError);
    assert!(volume.resume().unwrap_err().message.contains("no table"));
    assert!(!volume.clear());
}

#[test]
fn a_reload_waits_in_the_inactive_slot() {
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", 2 * SECTORS));
    let volume = volume(linear(&a, SECTORS));
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    volume.load(linear(&b, 2 * SECTORS));
    assert_eq!(volume.table().unwrap().text(), "0 64 linear a 0\n");
    assert_eq!(volume.inactive_table().unwrap().text(), "0 128 linear b 0\n");
    assert!(user.run(write(1, 1)).status.is_ok());
    assert_eq!((a.seen().len(), b.seen().len()), (1, 0));
    // Without a suspension there is no swap, and nothing changes.
    assert!(volume.resume().unwrap_err().message.contains("suspend it"));
    assert_eq!(volume.info().size_bytes, SECTORS * 512);
    assert_eq!(user.run(read(SECTORS)).status, Status::IoError);

    suspend(&volume);
    volume.resume().unwrap();
    assert!(volume.inactive_table().is_none() && !volume.is_suspended());
    assert_eq!(volume.info().size_bytes, 2 * SECTORS * 512, "it has grown");
    assert!(user.run(write(SECTORS, 2)).status.is_ok());
    assert_eq!((a.seen().len(), b.seen().len()), (0, 1));

    volume.load(linear(&a, SECTORS));
    assert!(volume.clear() && volume.inactive_table().is_none());
}

#[test]
fn old_io_drains_and_new_io_waits() {
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let volume = volume(linear(&a, SECTORS));
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    a.hold(true);
    user.submit(write(1, 1));
    volume.start_suspend();
    assert!(!volume.is_quiesced(), "a write is in flight");
    for sector in 2..5 {
        user.submit(write(sector, 2));
    }
    let mut nowait = write(5, 3);
    nowait.flags |= BioFlags::NOWAIT;
    user.submit(nowait);
    assert_eq!(user.reap().iter().map(|bio| bio.status).collect::<Vec<_>>(), [Status::Again]);
    assert_eq!(a.seen().len(), 1);
    a.release();
    until("the volume is quiet", || volume.is_quiesced());
    assert_eq!(user.wait().user_data, 1);
    volume.load(linear(&b, SECTORS));
    volume.resume().unwrap();
    // In the order in which they came, on the new table only.
    let ended: Vec<u64> = (0..3).map(|_| user.wait().user_data).collect();
    assert_eq!(ended, [2, 3, 4]);
    let sectors: Vec<u64> = b.seen().iter().map(|seen| seen.sector).collect();
    assert_eq!((sectors, a.seen().len()), (vec![2, 3, 4], 0));
    let writes = volume.stats().groups[1];
    assert_eq!((writes.started, writes.completed), (4, 4));
}

/// A suspension that is given up is a resume without a new table.
#[test]
fn a_resume_without_a_new_table_goes_on_with_the_old() {
    let a = Disk::new("a", SECTORS);
    let volume = volume(linear(&a, SECTORS));
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    a.hold(true);
    user.submit(write(1, 1));
    volume.start_suspend();
    user.submit(write(2, 1));
    volume.resume().unwrap();
    assert!(!volume.is_quiesced(), "not suspended");
    assert_eq!(a.seen().len(), 2);
    a.release();
    assert_eq!((user.wait().user_data, user.wait().user_data), (1, 2));
}

#[test]
fn bios_kept_for_a_context_that_goes_end_with_it() {
    let a = Disk::new("a", SECTORS);
    let volume = volume(linear(&a, SECTORS));
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    suspend(&volume);
    user.submit(write(1, 1));
    drop(user);
    assert_eq!(set.free_idle_orphans(), 0);
    assert!(volume.is_quiesced());
    volume.resume().unwrap();
    assert!(a.seen().is_empty());
}

/// A context whose thread is asleep in code of its own, with I/O in flight and kept, holds nobody
/// up: not the suspension, not the swap, not the others.
#[test]
fn a_swap_waits_for_no_thread_outside_the_library() {
    const CONTEXTS: usize = 32;
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let volume = volume(linear(&a, SECTORS));
    let device = as_device(&volume);
    let set = ContextSet::new(SystemClock::new());
    let mut users: Vec<User> = (0..CONTEXTS).map(|_| User::new(&set, &device)).collect();
    a.hold(true);
    for (n, user) in users.iter_mut().enumerate().skip(1) {
        user.submit(write(n as u64, n as u8));
    }
    // From here on 31 contexts are not called; the first goes on.
    volume.load(linear(&b, SECTORS));
    volume.start_suspend();
    assert!(!volume.is_quiesced());
    users[0].submit(write(0, 1));
    a.release();
    until("the volume is quiet", || volume.is_quiesced());
    volume.resume().unwrap();
    assert_eq!(users[0].wait().status, Status::Ok);
    assert_eq!(b.seen().len(), 1);
    for (n, user) in users.iter_mut().enumerate().skip(1) {
        let ended = user.reap();
        assert_eq!(ended.iter().map(|bio| bio.user_data).collect::<Vec<_>>(), [n as u64]);
        user.submit(write(n as u64, 9));
        assert!(user.wait().status.is_ok());
    }
    assert_eq!(b.seen().len(), CONTEXTS - 1);
    assert_eq!(a.seen().len(), CONTEXTS - 1);
}

#[test]
fn a_flush_goes_to_every_member_once_and_data_follow_it() {
    let disks = ["a", "b", "c"].map(|name| Disk::new(name, SECTORS));
    let [a, b, c] = &disks;
    let stripes = [a, b, a].into_iter().zip([0, 0, 32]);
    let stripes = stripes.map(|(disk, sector)| Area { device: disk.clone(), sector }).collect();
    let lines = vec![
        Line { start: 0, length: 48, target: TargetSpec::Striped { chunk_sectors: 8, stripes } },
        Line {
            start: 48,
            length: 8,
            target: TargetSpec::Linear(Area { device: c.clone(), sector: 0 }),
        },
        Line { start: 56, length: 8, target: TargetSpec::Zero },
    ];
    let volume = volume(Table::new(lines).unwrap());
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    let ops = |disk: &Arc<Disk>| disk.seen().iter().map(|s| (s.op, s.flags)).collect::<Vec<_>>();
    assert!(user.run(Bio::flush()).status.is_ok());
    for disk in &disks {
        assert_eq!(ops(disk), [(Op::Flush, BioFlags::empty())]);
    }
    // A write with a flush before it: all flush, then the data, and only they are FUA.
    b.hold(true);
    let mut bio = write(3, 5);
    bio.flags = BioFlags::PREFLUSH | BioFlags::FUA;
    user.submit(bio);
    assert!(user.reap().is_empty());
    assert_eq!(ops(a), [(Op::Flush, BioFlags::empty())]);
    b.release();
    let done = user.wait();
    assert_eq!((done.status, done.flags), (Status::Ok, BioFlags::PREFLUSH | BioFlags::FUA));
    assert_eq!(ops(a), [(Op::Write, BioFlags::FUA)]);
    // Where the flush fails nothing is written.
    for disk in [b, c] {
        ops(disk);
    }
    c.state.lock().unwrap().status = Status::Medium;
    let mut bio = write(3, 6);
    bio.flags = BioFlags::PREFLUSH;
    assert_eq!(user.run(bio).status, Status::Medium);
    assert_eq!(ops(a), [(Op::Flush, BioFlags::empty())]);
    assert_eq!(user.run(read(3)).buf().unwrap()[0], 5);
}

/// Operations without data reach each stripe as one range.
#[test]
fn a_discard_is_one_range_for_each_stripe() {
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let stripes =
        [&a, &b].map(|disk| Area { device: disk.clone() as Arc<dyn Device>, sector: 4 }).to_vec();
    let target = TargetSpec::Striped { chunk_sectors: 4, stripes };
    let volume = volume(Table::new(vec![Line { start: 0, length: 96, target }]).unwrap());
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&volume));
    let discard = Bio::without_data(Op::Discard, Sector(2), 40 * 512);
    assert!(user.run(discard).status.is_ok());
    let ranges = |disk: &Arc<Disk>| {
        disk.seen().iter().map(|s| (s.op, s.sector, s.bytes / 512)).collect::<Vec<_>>()
    };
    // Sectors 2..42: of a 2..4, 8..12, .. 40..42; of b 4..8, .. 36..40.
    assert_eq!(ranges(&a), [(Op::Discard, 6, 20)]);
    assert_eq!(ranges(&b), [(Op::Discard, 4, 20)]);
}

/// Four threads write and verify while the table changes between two ways to the same sectors.
#[test]
fn a_storm_of_swaps_under_load() {
    const THREADS: u64 = 4;
    let disk = Disk::new("a", SECTORS);
    let halves = || {
        let half = |start| Line {
            start,
            length: SECTORS / 2,
            target: TargetSpec::Linear(Area { device: disk.clone(), sector: start }),
        };
        Table::new(vec![half(0), half(SECTORS / 2)]).unwrap()
    };
    let volume = volume(linear(&disk, SECTORS));
    let device = as_device(&volume);
    let set = ContextSet::new(SystemClock::new());
    let (stop, ios) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (set, device, stop, ios) = (&set, &device, &stop, &ios);
            scope.spawn(move || {
                let mut user = User::new(set, device);
                let own = thread * SECTORS / THREADS..(thread + 1) * SECTORS / THREADS;
                let mut round = 0u8;
                while !stop.load(Relaxed) {
                    round = round.wrapping_add(1);
                    own.clone().for_each(|sector| user.submit(write(sector, round)));
                    for _ in own.clone() {
                        assert!(user.wait().status.is_ok());
                    }
                    for sector in own.clone() {
                        assert_eq!(user.run(read(sector)).buf().unwrap()[7], round);
                    }
                    ios.fetch_add(2 * SECTORS / THREADS, Relaxed);
                }
            });
        }
        for swap in 0..300 {
            let before = ios.load(Relaxed);
            volume.load(if swap % 2 == 0 { halves() } else { linear(&disk, SECTORS) });
            suspend(&volume);
            volume.resume().unwrap();
            if swap % 10 == 0 {
                until("I/O goes on", || ios.load(Relaxed) > before);
            }
        }
        stop.store(true, Relaxed);
    });
    let [reads, writes, ..] = volume.stats().groups;
    assert_eq!((reads.started, writes.started), (reads.completed, writes.completed));
    assert_eq!(reads.completed + writes.completed, ios.load(Relaxed));
}

/// The error for a table names the line, the fault and what would be right.
#[test]
fn bad_tables_are_refused() {
    let disk = || Area { device: Disk::new("d", SECTORS), sector: 0 };
    let line = |start, length, target| Line { start, length, target };
    let zero = |start, length| line(start, length, TargetSpec::Zero);
    let striped = |length, chunk_sectors, count: usize| {
        let stripes = (0..count).map(|_| disk()).collect();
        vec![line(0, length, TargetSpec::Striped { chunk_sectors, stripes })]
    };
    let big = Limits4k::disk();
    let cases: Vec<(Vec<Line>, &str)> = vec![
        (vec![], "is empty"),
        (vec![zero(1, 1)], "line 1 of the table: gap in the table: it starts at sector 1, where 0"),
        (vec![zero(0, 8), zero(9, 1)], "line 2 of the table: gap"),
        (vec![zero(0, 8), zero(7, 1)], "line 2 of the table: overlap"),
        (vec![zero(0, 0)], "zero-length target"),
        (vec![zero(0, u64::MAX)], "beyond sector"),
        (vec![zero(0, 8), zero(8, u64::MAX)], "line 2 of the table: it ends beyond sector"),
        (vec![line(0, 65, TargetSpec::Linear(disk()))], "`d` is too small: 65 sectors from 0"),
        (
            vec![line(0, 1, TargetSpec::Linear(Area { sector: u64::MAX, ..disk() }))],
            "`d` is too small",
        ),
        (striped(16, 0, 2), "a chunk of 0 sectors"),
        (striped(16, 4, 0), "at least one stripe"),
        (striped(20, 4, 2), "multiple of 8, 2 stripes of 4 sectors"),
        (striped(136, 4, 2), "`d` is too small: 68 sectors from 0 are used, it has 64"),
        (vec![line(0, 4, TargetSpec::Linear(big.clone()))], "not whole blocks of 4096 bytes"),
        (
            vec![line(0, 8, TargetSpec::Linear(Area { sector: 4, ..big.clone() }))],
            "sector 4 of `big` does not begin a block of 4096 bytes",
        ),
        (
            vec![line(
                0,
                8,
                TargetSpec::Striped { chunk_sectors: 4, stripes: vec![big.clone(), big] },
            )],
            "a chunk of 4 sectors is not whole blocks of 4096 bytes",
        ),
    ];
    for (lines, sentence) in cases {
        let error = Table::new(lines).err().expect(sentence).message;
        assert!(error.contains(sentence), "{error}");
    }
}

struct Limits4k;

impl Limits4k {
    fn disk() -> Area {
        let limits =
            drystone_core::Limits { logical_block_size: 4096, ..drystone_core::Limits::default() };
        Area { device: Disk::with_limits("big", SECTORS, limits), sector: 0 }
    }
}

/// Of a member that cannot be written to its end, as far as each sector of the volume tells.
#[test]
fn how_far_a_volume_can_be_written_is_told() {
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let area = |disk: &Arc<Disk>, sector| Area { device: disk.clone() as Arc<dyn Device>, sector };
    let half = SECTORS / 2;
    let striped = |sector| TargetSpec::Striped {
        chunk_sectors: 8,
        stripes: vec![area(&a, sector), area(&b, 0)],
    };
    let linear = |start, disk, sector| Line {
        start,
        length: half,
        target: TargetSpec::Linear(area(disk, sector)),
    };
    let lines = [
        vec![linear(0, &a, 16), linear(half, &b, 0)],
        vec![linear(0, &b, half), linear(half, &a, half)],
        vec![
            Line { start: 0, length: SECTORS, target: striped(16) },
            Line { start: SECTORS, length: 8, target: TargetSpec::Zero },
        ],
    ];
    for lines in lines {
        for limit in [None, Some(0), Some(17), Some(half), Some(half + 21), Some(SECTORS)] {
            a.state.lock().unwrap().file_limit = limit.map(|sectors| sectors * 512);
            let table = Table::new(lines.clone()).unwrap();
            let is_beyond = |sector: &u64| match (table.place(*sector), limit) {
                (Some((member, sector)), Some(limit)) => {
                    table.members()[member].info().name == "a" && sector >= limit
                }
                _ => false,
            };
            let first = (0..table.size_bytes() / 512).find(is_beyond);
            let row = if lines[0].length == half { 1 } else { 16 };
            let expected = first.map(|first| (first / row * row * 512).to_string());
            let lower = volume(table);
            assert_eq!(lower.attribute("file_limit"), expected, "{limit:?} of {SECTORS}");
            let size = lower.info().size_bytes / 512;
            let target = TargetSpec::Linear(Area { device: Arc::new(lower), sector: 0 });
            let upper = volume(Table::new(vec![Line { start: 0, length: size, target }]).unwrap());
            assert_eq!(upper.attribute("file_limit"), expected, "of a volume above it");
        }
    }
}

/// Turning polling off on a member is seen by every volume above before it takes effect; a bio that
/// wants to be polled is not from then on. Turning it on again is seen too.
#[test]
fn polling_ends_above_before_it_ends_below() {
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    for disk in [&a, &b] {
        disk.set_attribute("queue/io_poll", "1").unwrap();
    }
    let areas = [&a, &b].map(|disk| Area { device: disk.clone() as Arc<dyn Device>, sector: 0 });
    let target = TargetSpec::Striped { chunk_sectors: 8, stripes: areas.to_vec() };
    let lower = volume(Table::new(vec![Line { start: 0, length: 2 * SECTORS, target }]).unwrap());
    let target = TargetSpec::Linear(Area { device: as_device(&lower), sector: 0 });
    let upper = volume(Table::new(vec![Line { start: 0, length: 2 * SECTORS, target }]).unwrap());
    let io_poll = |volume: &Volume| volume.attribute("queue/io_poll").unwrap();
    assert_eq!((io_poll(&lower), io_poll(&upper)), ("1".to_owned(), "1".to_owned()));
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &as_device(&upper));
    let polled = || {
        let mut bio = read(8);
        bio.flags |= BioFlags::POLLED;
        bio
    };
    assert!(user.run(polled()).status.is_ok());
    assert_eq!(b.seen()[0].flags, BioFlags::POLLED);

    *b.above.lock().unwrap() = Some(as_device(&upper));
    b.set_attribute("queue/io_poll", "0").unwrap();
    assert_eq!(*b.noted.lock().unwrap(), ["0"], "seen above before it took effect");
    assert_eq!((io_poll(&lower), io_poll(&upper)), ("0".to_owned(), "0".to_owned()));
    assert!(user.run(polled()).status.is_ok());
    assert_eq!(b.seen()[0].flags, BioFlags::empty());
    let refused = upper.set_attribute("queue/io_poll", "1").unwrap_err();
    assert!(refused.message.contains("not every device below"), "{}", refused.message);

    b.set_attribute("queue/io_poll", "1").unwrap();
    assert_eq!((io_poll(&lower), io_poll(&upper)), ("1".to_owned(), "1".to_owned()));
    // Off in the middle of the stack.
    lower.set_attribute("queue/io_poll", "0").unwrap();
    assert_eq!((io_poll(&lower), io_poll(&upper)), ("0".to_owned(), "0".to_owned()));
    lower.set_attribute("queue/io_poll", "1").unwrap();
    assert_eq!(io_poll(&upper), "1");

    // A table without the member that does not poll can poll again, and is not told of the other.
    b.set_attribute("queue/io_poll", "0").unwrap();
    lower.load(linear(&a, 2));
    suspend(&lower);
    lower.resume().unwrap();
    assert_eq!((io_poll(&lower), io_poll(&upper)), ("1".to_owned(), "1".to_owned()));
    b.set_attribute("queue/io_poll", "0").unwrap();
    assert_eq!(*b.noted.lock().unwrap(), ["0", "0", "1"]);
}
