//! `delay` on a clock that is moved by hand: what waits, for how long, and in what order it goes
//! on.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

mod common;

use common::{Disk, User};
use drystone_core::clock::{Clock, ManualClock, SystemClock};
use drystone_core::op::OpGroup;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, ContextSet, Device, IoBuf, Limits, Op, Sector, Status};
use drystone_targets::{
    Area, DelayClass, DelaySpec, Line, Table, TargetSpec, Volume, VolumeOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SECTORS: u64 = 64;
const MS: u64 = 1_000_000;

fn class(disk: &Arc<Disk>, sector: u64, delay_ms: u32) -> DelayClass {
    DelayClass { area: Area { device: disk.clone(), sector }, delay_ms }
}

/// The words of a table with one, two or three classes.
fn delay(classes: Vec<DelayClass>) -> TargetSpec {
    let mut classes = classes.into_iter();
    let read = classes.next().unwrap();
    TargetSpec::Delay(DelaySpec { read, write: classes.next(), flush: classes.next() })
}

fn line(start: u64, length: u64, target: TargetSpec) -> Line {
    Line { start, length, target }
}

fn linear(disk: &Arc<Disk>, sector: u64) -> TargetSpec {
    TargetSpec::Linear(Area { device: disk.clone(), sector })
}

fn volume(lines: Vec<Line>) -> Volume {
    let locks = LockCounters::new(ManualClock::new(1));
    let volume = Volume::new("v", VolumeOptions::default(), locks);
    volume.load(Table::new(lines).unwrap());
    volume.resume().unwrap();
    volume
}

fn bio(op: Op, sector: u64) -> Box<Bio> {
    let mut bio = match op {
        Op::Flush => Bio::flush(),
        Op::Read => Bio::read(Sector(sector), IoBuf::zeroed(512)),
        Op::Write => Bio::write(Sector(sector), IoBuf::from_slice(&[7; 512])),
        op => Bio::without_data(op, Sector(sector), 512),
    };
    bio.user_data = sector;
    bio
}

/// The I/O of a disk since the last look: operation and sector.
fn seen(disk: &Arc<Disk>) -> Vec<(Op, u64)> {
    disk.seen().iter().map(|seen| (seen.op, seen.sector)).collect()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "in a minute it did not come about that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A volume with one user, and the clock of its context.
struct Rig {
    clock: Arc<ManualClock>,
    set: Arc<ContextSet>,
    volume: Volume,
    user: User,
}

impl Rig {
    fn new(lines: Vec<Line>) -> Self {
        let (clock, volume) = (ManualClock::new(1_000_000), volume(lines));
        let set = ContextSet::new(clock.clone());
        let user = User::new(&set, &as_device(&volume));
        Rig { clock, set, volume, user }
    }

    fn status(&self) -> String {
        self.volume.table().unwrap().status()
    }

    /// Move the clock, and have the context read it. The result has the ended bios.
    fn advance(&mut self, ns: u64) -> Vec<u64> {
        self.clock.advance(ns);
        let ended = self.user.turn();
        ended.iter().for_each(|bio| assert_eq!(bio.status, Status::Ok));
        ended.iter().map(|bio| bio.user_data).collect()
    }

    /// Submit a bio that must wait exactly `ms`, and return when it has ended.
    fn waits(&mut self, bio: Box<Bio>, ms: u64) {
        let what = format!("{bio:?}");
        self.user.submit(bio);
        if ms > 0 {
            assert_eq!(self.user.turn().len(), 0, "{what} waits");
            assert_eq!(self.advance(ms * MS - 1).len(), 0, "{what} waits {ms} ms");
        }
        assert_eq!(self.advance(u64::from(ms > 0)).len(), 1, "{what} waits no longer than {ms} ms");
    }
}

fn as_device(volume: &Volume) -> Arc<dyn Device> {
    Arc::new(volume.clone())
}

const EVERY: [Op; 5] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush];

/// A context hears at once of a suspension and of the end that follows it: what waits goes on.
#[test]
fn the_end_of_a_volume_loses_nothing_that_waits() {
    let (disk, other) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let mut rig = Rig::new(vec![line(0, SECTORS, delay(vec![class(&disk, 0, 60_000)]))]);
    rig.user.submit(bio(Op::Write, 3));
    assert!(rig.user.turn().is_empty() && seen(&disk).is_empty(), "it waits");
    let volume = rig.volume.clone();
    other.state.lock().unwrap().meanwhile = Some(Box::new(move || {
        volume.start_suspend();
        volume.close();
    }));
    let other = rig.user.cx.open(&(other as Arc<dyn Device>)).unwrap();
    let mut list = drystone_core::BioList::new();
    list.push(bio(Op::Read, 5));
    rig.user.cx.submit(other, &mut list);
    let ended: Vec<_> = rig.user.turn().iter().map(|bio| (bio.user_data, bio.status)).collect();
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended.iter().all(|(_, status)| *status == Status::Ok), "{ended:?}");
    assert_eq!(seen(&disk), [(Op::Write, 3)]);
}

/// Each class has a device, an offset and a time of its own.
#[test]
fn three_classes() {
    let disks = ["r", "w", "f"].map(|name| Disk::new(name, 2 * SECTORS));
    let [r, w, f] = &disks;
    let target = delay(vec![class(r, 1, 50), class(w, 2, 100), class(f, 3, 333)]);
    let mut rig = Rig::new(vec![line(0, 8, linear(r, 100)), line(8, 16, target)]);
    for (op, ms, disk, offset) in [
        (Op::Read, 50, r, 1),
        (Op::Write, 100, w, 2),
        (Op::Discard, 100, w, 2),
        (Op::WriteZeroes, 100, w, 2),
    ] {
        rig.waits(bio(op, 13), ms);
        assert_eq!(seen(disk), [(op, 5 + offset)]);
        assert!(disks.iter().all(|disk| seen(disk).is_empty()), "{op:?} goes to one device");
    }
    rig.waits(bio(Op::Flush, 0), 333);
    assert_eq!((seen(r), seen(f)), (vec![(Op::Flush, 0)], vec![(Op::Flush, 0)]));
    assert_eq!(seen(w), [], "flushes go to the device of flushes only");
}

#[test]
fn classes_that_are_not_given() {
    for (classes, ms) in [(1, [20, 20, 20]), (2, [20, 30, 30]), (3, [20, 30, 40])] {
        let disk = Disk::new("d", SECTORS);
        let given = [20, 30, 40].into_iter().take(classes).map(|ms| class(&disk, 0, ms)).collect();
        let mut rig = Rig::new(vec![line(0, SECTORS, delay(given))]);
        for (op, at) in [(Op::Read, 0), (Op::Write, 1), (Op::Discard, 1), (Op::Flush, 2)] {
            rig.waits(bio(op, 1), ms[at]);
        }
    }
}

#[test]
fn no_delay_passes_at_once() {
    let disk = Disk::new("d", SECTORS);
    let target = delay(vec![class(&disk, 0, 0), class(&disk, 0, 10), class(&disk, 0, 0)]);
    let mut rig = Rig::new(vec![line(0, SECTORS, target)]);
    rig.waits(bio(Op::Read, 3), 0);
    rig.waits(bio(Op::Flush, 0), 0);
    assert_eq!(seen(&disk), [(Op::Read, 3), (Op::Flush, 0)]);
    // Beside what waits.
    rig.user.submit(bio(Op::Write, 4));
    rig.waits(bio(Op::Read, 3), 0);
    assert_eq!(rig.status(), "0 64 delay 0 1 0\n");
    assert_eq!(rig.advance(10 * MS), [4]);
}

/// A write that begins with a flush: the flush waits as flushes do, then the data as writes do.
#[test]
fn a_flush_before_data_waits_by_itself() {
    let disk = Disk::new("d", SECTORS);
    let target = delay(vec![class(&disk, 0, 1), class(&disk, 0, 10), class(&disk, 0, 100)]);
    let mut rig = Rig::new(vec![line(0, SECTORS, target)]);
    let mut write = bio(Op::Write, 9);
    write.flags = BioFlags::PREFLUSH | BioFlags::FUA;
    rig.user.submit(write);
    assert_eq!(rig.status(), "0 64 delay 0 0 1\n");
    assert_eq!(rig.advance(100 * MS), []);
    assert_eq!(seen(&disk), [(Op::Flush, 0)]);
    assert_eq!(rig.status(), "0 64 delay 0 1 0\n");
    assert_eq!(rig.advance(10 * MS - 1), []);
    assert_eq!(rig.advance(1), [9]);
    let [write] = disk.seen()[..] else { panic!("one write") };
    assert_eq!((write.op, write.flags), (Op::Write, BioFlags::FUA));
}

#[test]
fn what_waits_goes_when_its_own_time_has_come() {
    let disk = Disk::new("d", SECTORS);
    let lines = |disk| vec![line(0, SECTORS, delay(vec![class(disk, 0, 30), class(disk, 0, 10)]))];
    let mut rig = Rig::new(lines(&disk));
    let submit = |rig: &mut Rig| {
        for (op, sector) in [(Op::Read, 1), (Op::Write, 2), (Op::Read, 3), (Op::Write, 4)] {
            rig.user.submit(bio(op, sector));
            rig.clock.advance(MS);
        }
    };
    submit(&mut rig);
    // 4 ms have gone by; reads are due at 30 and 32, writes at 11 and 13.
    assert_eq!(rig.advance(7 * MS - 1), []);
    assert_eq!(rig.advance(1), [2]);
    assert_eq!(rig.advance(2 * MS), [4]);
    assert_eq!(rig.advance(17 * MS), [1]);
    assert_eq!(rig.advance(2 * MS), [3]);
    // Bios that are due together go in the order in which they came.
    submit(&mut rig);
    assert_eq!(rig.advance(27 * MS), [1, 2, 4]);
    assert_eq!(rig.advance(MS), [3]);
    assert_eq!(seen(&disk).iter().map(|seen| seen.1).collect::<Vec<_>>(), [2, 4, 1, 3, 1, 2, 4, 3]);
}

/// The time of the I/O is that of its submission to the volume, and it is in flight meanwhile.
#[test]
fn a_delay_counts_as_latency() {
    let disk = Disk::new("d", SECTORS);
    let mut rig = Rig::new(vec![line(0, SECTORS, delay(vec![class(&disk, 0, 25)]))]);
    rig.user.submit(bio(Op::Read, 1));
    assert_eq!(rig.volume.stats().in_flight(), (1, 0));
    assert_eq!(rig.advance(25 * MS), [1]);
    let reads = *rig.volume.stats().group(OpGroup::Read);
    assert_eq!((reads.started, reads.completed, reads.sectors), (1, 1, 1));
    assert_eq!(reads.time_ns, 25 * MS);
    // Also of one that was kept for the volume to be resumed.
    rig.volume.start_suspend();
    rig.user.submit(bio(Op::Read, 2));
    rig.clock.advance(5 * MS);
    rig.volume.resume().unwrap();
    assert_eq!(rig.advance(25 * MS), [2]);
    assert_eq!(rig.volume.stats().group(OpGroup::Read).time_ns, (25 + 30) * MS);
}

#[test]
fn a_bio_across_segments_ends_with_its_last_part() {
    let disk = Disk::new("d", SECTORS);
    let lines = vec![
        line(0, 8, linear(&disk, 0)),
        line(8, 8, delay(vec![class(&disk, 8, 10)])),
        line(16, 8, delay(vec![class(&disk, 16, 0), class(&disk, 16, 20)])),
    ];
    let mut rig = Rig::new(lines);
    let mut write = Bio::write(Sector(7), IoBuf::from_slice(&[7; 512 * 11]));
    write.user_data = 5;
    rig.user.submit(write);
    assert_eq!(seen(&disk), [(Op::Write, 7)]);
    assert_eq!(rig.advance(10 * MS), []);
    assert_eq!(seen(&disk), [(Op::Write, 8)]);
    assert_eq!(rig.advance(10 * MS), [5]);
    assert_eq!(disk.state.lock().unwrap().data[7 * 512..18 * 512], [7; 512 * 11]);
    // A discard of the same, and a flush: to the device at once, and later for each segment.
    rig.user.submit(Bio::without_data(Op::Discard, Sector(7), 512 * 11));
    disk.seen();
    assert_eq!(rig.advance(20 * MS).len(), 1);
    assert_eq!(seen(&disk), [(Op::Discard, 8), (Op::Discard, 16)]);
    rig.user.submit(bio(Op::Flush, 0));
    assert_eq!(rig.status(), "0 8 linear\n8 8 delay 0 0 1\n16 8 delay 0 0 1\n");
    assert_eq!(seen(&disk), [(Op::Flush, 0)]);
    assert_eq!(rig.advance(20 * MS).len(), 1);
    assert_eq!(seen(&disk), [(Op::Flush, 0), (Op::Flush, 0)]);
}

#[test]
fn what_may_not_wait_does_not() {
    let disk = Disk::new("d", SECTORS);
    let target = delay(vec![class(&disk, 0, 5), class(&disk, 0, 0)]);
    let mut rig = Rig::new(vec![line(0, SECTORS, target)]);
    let nowait = |op| {
        let mut bio = bio(op, 1);
        bio.flags |= BioFlags::NOWAIT;
        bio
    };
    assert_eq!(rig.user.run(nowait(Op::Read)).status, Status::Again);
    assert_eq!(rig.user.run(nowait(Op::Write)).status, Status::Ok);
    assert_eq!(seen(&disk), [(Op::Write, 1)]);
}

#[test]
fn tables_and_statuses() {
    let disks = ["a", "b", "c"].map(|name| Disk::new(name, SECTORS));
    let classes = |n| disks.iter().zip([(0, 1), (2, 3), (4, 5)]).take(n);
    for (n, text) in
        [(1, "a 0 1"), (2, "a 0 1 b 2 3"), (3, "a 0 1 b 2 3 c 4 5")].map(|(n, t)| (n, t.to_owned()))
    {
        let given = classes(n).map(|(disk, (sector, ms))| class(disk, sector, ms)).collect();
        let volume = volume(vec![line(0, 8, delay(given))]);
        assert_eq!(volume.table().unwrap().text(), format!("0 8 delay {text}\n"));
        assert_eq!(volume.info().kind, "delay");
    }
    // Over all contexts; a table that is not live has nothing that waits.
    let given = || classes(3).map(|(disk, _)| class(disk, 0, 9)).collect();
    let mut rig = Rig::new(vec![line(0, 8, delay(given()))]);
    let mut other = User::new(&rig.set, &as_device(&rig.volume));
    EVERY.into_iter().for_each(|op| rig.user.submit(bio(op, 1)));
    other.submit(bio(Op::Read, 1));
    rig.volume.load(Table::new(vec![line(0, 8, delay(given()))]).unwrap());
    assert_eq!(rig.status(), "0 8 delay 2 3 1\n");
    assert_eq!(rig.volume.inactive_table().unwrap().status(), "0 8 delay 0 0 0\n");
    assert_eq!(rig.advance(9 * MS).len(), 5);
    assert_eq!(rig.status(), "0 8 delay 1 0 0\n");
    assert_eq!(other.turn().len(), 1);
    assert_eq!(rig.status(), "0 8 delay 0 0 0\n");
}

/// A suspension sends on what waits, in contexts whose owners are somewhere else too.
#[test]
fn a_suspension_waits_for_no_delay() {
    const CONTEXTS: usize = 8;
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let mut rig = Rig::new(vec![line(0, SECTORS, delay(vec![class(&a, 0, 1000)]))]);
    let device = as_device(&rig.volume);
    let mut users: Vec<User> = (0..CONTEXTS).map(|_| User::new(&rig.set, &device)).collect();
    for (n, user) in (0..).zip(&mut users) {
        user.submit(bio(Op::Write, n));
        user.submit(bio(Op::Flush, n));
    }
    rig.user.submit(bio(Op::Read, 60));
    assert_eq!(rig.status(), format!("0 64 delay 1 {CONTEXTS} {CONTEXTS}\n"));
    a.hold(true);
    rig.volume.start_suspend();
    assert!(!rig.volume.is_quiesced(), "what waited is in flight");
    assert_eq!(rig.status(), "0 64 delay 0 0 0\n");
    assert_eq!(a.seen().len(), 1 + 2 * CONTEXTS);
    a.release();
    until("the volume is quiet", || rig.volume.is_quiesced());
    // Meanwhile bios are kept, without a delay running.
    rig.user.submit(bio(Op::Read, 61));
    assert_eq!(rig.status(), "0 64 delay 0 0 0\n");
    let next = delay(vec![class(&b, 0, 1000)]);
    rig.volume.load(Table::new(vec![line(0, SECTORS, next)]).unwrap());
    rig.volume.resume().unwrap();
    for (n, user) in (0..).zip(&mut users) {
        let ended: Vec<u64> = user.reap().iter().map(|bio| bio.user_data).collect();
        assert_eq!(ended, [n, n]);
    }
    // After it delays are in force again, by the new table.
    assert_eq!(rig.user.reap().len(), 1);
    assert_eq!(rig.status(), "0 64 delay 1 0 0\n");
    users[3].submit(bio(Op::Read, 62));
    assert_eq!(rig.advance(1000 * MS - 1), []);
    assert_eq!(rig.advance(1), [61]);
    assert_eq!(users[3].turn().len(), 1);
    assert_eq!((a.seen().len(), b.seen().len()), (0, 2));
}

/// Nor does a suspension that nobody waits for (`--noflush`) leave anything waiting.
#[test]
fn what_waits_goes_on_when_a_suspension_begins() {
    let disk = Disk::new("d", SECTORS);
    let mut rig = Rig::new(vec![line(0, SECTORS, delay(vec![class(&disk, 0, 1000)]))]);
    rig.user.submit(bio(Op::Write, 9));
    rig.volume.start_suspend();
    assert_eq!(rig.status(), "0 64 delay 0 0 0\n");
    assert_eq!(seen(&disk), [(Op::Write, 9)]);
    assert_eq!(rig.user.reap().len(), 1);
    rig.user.submit(bio(Op::Write, 10));
    rig.volume.resume().unwrap();
    assert_eq!(rig.status(), "0 64 delay 0 1 0\n");
    assert_eq!(rig.advance(1000 * MS), [10]);
}

/// Lets the threads of a storm come to their end, and their I/O out of a suspension.
struct Stops<'a>(&'a AtomicBool, &'a Volume);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        self.1.cancel_suspend();
    }
}

/// Threads write and read back what they wrote, while tables come and go that delay it for no time,
/// a little, or so long (a minute and a half) that only a suspension sends it on.
#[test]
fn a_storm_of_swaps_over_what_waits() {
    const THREADS: u64 = 4;
    const EACH: u64 = SECTORS / THREADS;
    let disk = Disk::new("d", SECTORS);
    let table = |ms: [u32; 3]| {
        let classes = ms.map(|ms| class(&disk, 0, ms)).to_vec();
        Table::new(vec![line(0, SECTORS, delay(classes))]).unwrap()
    };
    let tables = [[1, 0, 2], [90_000; 3], [0; 3], [0, 90_000, 0], [2, 1, 0]];
    let volume = volume(vec![line(0, SECTORS, linear(&disk, 0))]);
    let (device, set) = (as_device(&volume), ContextSet::new(SystemClock::new()));
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (set, device, stop, rounds) = (&set, &device, &stop, &rounds);
            scope.spawn(move || {
                let mut user = User::new(set, device);
                for round in 1.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let own = thread * EACH..(thread + 1) * EACH;
                    for sector in own.clone() {
                        let mut buf = IoBuf::zeroed(512);
                        buf.fill(round as u8);
                        user.submit(Bio::write(Sector(sector), buf));
                    }
                    user.submit(Bio::flush());
                    (0..=EACH).for_each(|_| assert_eq!(user.wait().status, Status::Ok));
                    own.clone().for_each(|sector| user.submit(bio(Op::Read, sector)));
                    for _ in own {
                        let read = user.wait();
                        assert_eq!(
                            (read.status, read.buf().unwrap()[9]),
                            (Status::Ok, round as u8)
                        );
                    }
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        // Also if the test fails here: then they come to an end within some minutes.
        let stops = Stops(&stop, &volume);
        let swap = |n: usize| {
            volume.load(table(tables[n % tables.len()]));
            volume.start_suspend();
            until("the volume is quiet", || volume.is_quiesced());
            volume.resume().unwrap();
        };
        let mut swaps = 0;
        while swaps < 1000 || rounds.load(Relaxed) < 200 {
            swap(swaps);
            swaps += 1;
            assert!(swaps < 1_000_000, "{} rounds", rounds.load(Relaxed));
        }
        drop(stops);
        // I/O that waits for a table of long delays goes on by this one.
        swap(2);
    });
    assert_eq!(volume.table().unwrap().status(), "0 64 delay 0 0 0\n");
    let groups = volume.stats().groups;
    assert!(groups.iter().all(|group| group.started == group.completed));
}

/// The data of a write whose flush ends only while the volume is suspended does not wait either.
#[test]
fn nothing_begins_to_wait_in_a_suspended_volume() {
    let disk = Disk::new("d", SECTORS);
    let target = delay(vec![class(&disk, 0, 50), class(&disk, 0, 50), class(&disk, 0, 0)]);
    let mut rig = Rig::new(vec![line(0, SECTORS, target)]);
    disk.hold(true);
    let mut write = bio(Op::Write, 9);
    write.flags = BioFlags::PREFLUSH;
    rig.user.submit(write);
    rig.volume.start_suspend();
    assert!(!rig.volume.is_quiesced());
    disk.release();
    until("the volume is quiet", || rig.volume.is_quiesced());
    assert_eq!(rig.status(), "0 64 delay 0 0 0\n");
    assert_eq!(seen(&disk), [(Op::Flush, 0), (Op::Write, 9)]);
    assert_eq!(rig.user.reap().len(), 1);
}

/// I/O that waits stays where it is when only the limits of the members change.
#[test]
fn waiting_outlives_a_change_of_limits() {
    let disk = Disk::new("d", SECTORS);
    let mut rig = Rig::new(vec![line(0, SECTORS, delay(vec![class(&disk, 0, 10)]))]);
    rig.user.submit(bio(Op::Write, 1));
    disk.set_attribute("queue/io_poll", "1").unwrap();
    rig.clock.advance(MS);
    rig.user.submit(bio(Op::Write, 2));
    assert_eq!(rig.status(), "0 64 delay 0 2 0\n");
    assert_eq!(rig.advance(9 * MS), [1]);
    assert_eq!(rig.advance(MS), [2]);
}

/// I/O that waits for a context that goes ends with it, and none begins to wait there afterwards.
#[test]
fn what_waits_ends_with_its_context() {
    let (disk, flushed) = (Disk::new("d", SECTORS), Disk::new("f", SECTORS));
    let target = delay(vec![class(&disk, 0, 10), class(&disk, 0, 10), class(&flushed, 0, 0)]);
    let rig = Rig::new(vec![line(0, SECTORS, target)]);
    let Rig { mut user, set, volume, .. } = rig;
    EVERY.into_iter().for_each(|op| user.submit(bio(op, 1)));
    flushed.hold(true);
    let mut write = bio(Op::Write, 9);
    write.flags = BioFlags::PREFLUSH;
    user.submit(write);
    assert_eq!(volume.table().unwrap().status(), "0 64 delay 1 3 0\n");
    drop(user);
    assert_eq!(volume.table().unwrap().status(), "0 64 delay 0 0 0\n");
    assert_eq!(set.free_idle_orphans(), 1, "a flush is in flight");
    flushed.release();
    assert_eq!(set.free_idle_orphans(), 0);
    assert_eq!(volume.table().unwrap().status(), "0 64 delay 0 0 0\n");
    assert!(seen(&disk).is_empty(), "nothing of it was sent on");
    let groups = volume.stats().groups;
    assert!(groups.iter().all(|group| group.started == group.completed), "{groups:?}");
}

#[test]
fn limits_are_those_of_all_devices() {
    let with = |name, limits| Disk::with_limits(name, SECTORS, limits);
    let r = with("r", Limits::default());
    let w = with("w", Limits { logical_block_size: 4096, ..Limits::default() });
    let f = with("f", Limits { write_cache: true, ..Limits::default() });
    let of = |classes| Table::new(vec![line(0, 8, delay(classes))]).unwrap().limits();
    assert_eq!(of(vec![class(&r, 0, 1)]).logical_block_size, 512);
    let limits = of(vec![class(&r, 0, 1), class(&w, 0, 1), class(&f, 0, 1)]);
    assert_eq!((limits.logical_block_size, limits.write_cache), (4096, true));
    // Each must have all sectors of the segment, on its blocks.
    let refused = |length, classes| {
        Table::new(vec![line(0, length, delay(classes))]).err().expect("is refused").message
    };
    let small = |sector| vec![class(&r, 0, 1), class(&r, 0, 1), class(&f, sector, 1)];
    assert!(refused(64, small(1)).contains("`f` is too small: 64 sectors from 1"));
    assert!(refused(8, vec![class(&r, 0, 1), class(&w, 4, 1)]).contains("sector 4 of `w`"));
}

#[test]
fn the_allocation_query_asks_where_reads_go() {
    let (r, w) = (Disk::new("r", SECTORS), Disk::new("w", SECTORS));
    r.state.lock().unwrap().data[10 * 512..12 * 512].fill(1);
    let target = delay(vec![class(&r, 4, 0), class(&w, 0, 0)]);
    let volume = volume(vec![line(0, 8, TargetSpec::Zero), line(8, 16, target)]);
    let extents = volume.extents(0, 24 * 512, 100).unwrap();
    let found: Vec<_> = extents.iter().map(|e| (e.offset / 512, e.length / 512, e.zero)).collect();
    assert_eq!(found, [(0, 14, true), (14, 2, false), (16, 8, true)]);
}

/// On the machine's clock: a wait sleeps until something is due, and does not spin.
#[test]
fn a_wait_sleeps_until_something_is_due() {
    const DELAY_MS: u32 = 20;
    let disk = Disk::new("d", SECTORS);
    let volume = volume(vec![line(0, SECTORS, delay(vec![class(&disk, 0, DELAY_MS)]))]);
    let clock = SystemClock::new();
    let set = ContextSet::new(clock.clone());
    let mut user = User::new(&set, &as_device(&volume));
    let (reads, cpu) = (user.cx.clock_reads(), clock.thread_cpu());
    assert!(user.run(bio(Op::Read, 1)).status.is_ok());
    let latency = volume.stats().group(OpGroup::Read).time_ns;
    assert!(latency >= u64::from(DELAY_MS) * MS, "{latency} ns are too little");
    let (reads, cpu) = (user.cx.clock_reads() - reads, clock.thread_cpu() - cpu);
    assert!(reads < 20 && cpu < u64::from(DELAY_MS) * MS / 2, "{reads} readings, {cpu} ns of CPU");
}
