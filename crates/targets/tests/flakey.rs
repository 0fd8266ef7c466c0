//! `flakey` on a clock that is moved by hand: when it is down, and what it does then.

mod common;

use common::{Disk, User};
use drystone_core::clock::{AGE_BOUND_NS, ManualClock};
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, ContextSet, Device, IoBuf, Limits, Op, Sector, Status};
use drystone_targets::{
    Area, CorruptByte, Faults, FlakeySpec, Line, Table, TargetSpec, Volume, VolumeOptions, Writes,
};
use std::sync::Arc;

const SECTORS: u64 = 64;
const SECOND: u64 = 1_000_000_000;
/// The clock when tables are made.
const SINCE: u64 = 123 * SECOND + 456;
/// Up for so long, then down for so long.
const TIMES: (u32, u32) = (2, 3);
const EVERY: [Op; 5] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush];

fn spec(disk: &Arc<Disk>, (up_seconds, down_seconds): (u32, u32), faults: Faults) -> FlakeySpec {
    let area = Area { device: disk.clone(), sector: 0 };
    FlakeySpec { area, up_seconds, down_seconds, faults, since_ns: SINCE, seed: 1 }
}

fn table(spec: FlakeySpec) -> Table {
    Table::new(vec![Line { start: 0, length: SECTORS, target: TargetSpec::Flakey(spec) }]).unwrap()
}

fn volume(table: Table) -> Volume {
    let locks = LockCounters::new(ManualClock::new(1));
    let volume = Volume::new("v", VolumeOptions::default(), locks);
    volume.load(table);
    volume.resume().unwrap();
    volume
}

fn bio(op: Op, sector: u64) -> Box<Bio> {
    match op {
        Op::Flush => Bio::flush(),
        Op::Read => Bio::read(Sector(sector), IoBuf::zeroed(512)),
        Op::Write => Bio::write(Sector(sector), IoBuf::from_slice(&[7; 512])),
        op => Bio::without_data(op, Sector(sector), 512),
    }
}

fn seen(disk: &Arc<Disk>) -> Vec<Op> {
    disk.seen().iter().map(|seen| seen.op).collect()
}

fn set_data(disk: &Arc<Disk>, byte: u8) {
    disk.state.lock().unwrap().data.fill(byte);
}

fn data(disk: &Arc<Disk>) -> Vec<u8> {
    disk.state.lock().unwrap().data.clone()
}

/// A volume on one disk with one user, and the clock of its context, which shows [`SINCE`].
struct Rig {
    clock: Arc<ManualClock>,
    set: Arc<ContextSet>,
    disk: Arc<Disk>,
    volume: Volume,
    user: User,
}

impl Rig {
    fn new(times: (u32, u32), faults: Faults) -> Self {
        let (clock, disk) = (ManualClock::new(SINCE), Disk::new("d", SECTORS));
        let volume = volume(table(spec(&disk, times, faults)));
        let set = ContextSet::new(clock.clone());
        let user = User::new(&set, &as_device(&volume));
        Rig { clock, set, disk, volume, user }
    }

    /// One that is down all the time.
    fn down(faults: Faults) -> Self {
        Rig::new((0, 1), faults)
    }

    fn status(&mut self, op: Op) -> Status {
        self.user.run(bio(op, 3)).status
    }

    /// The data that a read of `bytes` bytes from sector 0 finds.
    fn read(&mut self, bytes: usize) -> Vec<u8> {
        let done = self.user.run(Bio::read(Sector(0), IoBuf::zeroed(bytes)));
        assert!(done.status.is_ok());
        done.buf().unwrap().to_vec()
    }
}

fn as_device(volume: &Volume) -> Arc<dyn Device> {
    Arc::new(volume.clone())
}

fn corrupt(nth: u32, in_writes: bool, value: u8) -> Faults {
    let corrupt_byte = Some(CorruptByte { nth, in_writes, value });
    Faults { corrupt_byte, ..Faults::default() }
}

/// Which bytes of `found` are not `value`, and what they are.
fn strange(found: &[u8], value: u8) -> Vec<(usize, u8)> {
    found.iter().copied().enumerate().filter(|(_, byte)| *byte != value).collect()
}

#[test]
fn up_and_down_in_whole_seconds() {
    let mut rig = Rig::new(TIMES, Faults::default());
    for round in 0..3 {
        // Just before each whole second, and on it.
        for second in 1..=5 {
            let is_up = |second: u32| second % 5 < 2;
            rig.clock.advance(SECOND - AGE_BOUND_NS);
            let was = rig.status(Op::Read).is_ok();
            rig.clock.advance(AGE_BOUND_NS);
            let is = rig.status(Op::Read).is_ok();
            assert_eq!((was, is), (is_up(second - 1), is_up(second)), "round {round}, {second} s");
        }
    }
    for (times, up) in [((1, 0), true), ((0, 1), false)] {
        let mut rig = Rig::new(times, Faults::default());
        for _ in 0..3 {
            EVERY.into_iter().for_each(|op| assert_eq!(rig.status(op).is_ok(), up, "{times:?}"));
            rig.clock.advance(SECOND);
        }
    }
    // The longest, whose nanoseconds are more than 32 bits.
    let mut rig = Rig::new((u32::MAX - 1, 1), Faults::default());
    rig.clock.advance(u64::from(u32::MAX - 2) * SECOND);
    assert_eq!(rig.status(Op::Read), Status::Ok);
    rig.clock.advance(SECOND);
    assert_eq!(rig.status(Op::Read), Status::IoError);
    rig.clock.advance(SECOND);
    assert_eq!(rig.status(Op::Read), Status::Ok);
}

/// The fate of each operation while the device is down: it reaches the disk, fails, or is dropped.
#[test]
fn faults_by_operation() {
    #[derive(Debug, PartialEq)]
    enum Does {
        Pass,
        Fail,
        Drop,
    }
    use Does::*;
    let faults = |error_reads, writes| Faults { error_reads, writes, ..Faults::default() };
    for (faults, reads, others) in [
        (Faults::default(), Fail, Fail),
        (faults(true, Writes::Fail), Fail, Fail),
        (faults(true, Writes::Pass), Fail, Pass),
        (faults(false, Writes::Drop), Pass, Drop),
        (faults(true, Writes::Drop), Fail, Drop),
        (faults(false, Writes::Fail), Pass, Fail),
        (corrupt(1, true, 0), Pass, Pass),
        (corrupt(1, false, 0), Pass, Pass),
    ] {
        let mut rig = Rig::new(TIMES, faults);
        EVERY.into_iter().for_each(|op| assert!(rig.status(op).is_ok(), "it is up"));
        assert_eq!(seen(&rig.disk), EVERY);
        rig.clock.advance(2 * SECOND);
        for op in EVERY {
            let does = match (rig.status(op), &seen(&rig.disk)[..]) {
                (Status::Ok, [reached]) if *reached == op => Pass,
                (Status::Ok, []) => Drop,
                (Status::IoError, []) => Fail,
                other => panic!("{op:?} is {other:?}"),
            };
            assert_eq!(&does, if op == Op::Read { &reads } else { &others }, "{faults:?} {op:?}");
        }
    }
}

#[test]
fn what_is_dropped_has_no_effect() {
    let mut rig = Rig::new(TIMES, Faults { writes: Writes::Drop, ..Faults::default() });
    set_data(&rig.disk, 5);
    rig.clock.advance(2 * SECOND);
    EVERY.into_iter().for_each(|op| assert!(rig.status(op).is_ok()));
    assert_eq!(strange(&rig.read(4096), 5), []);
    rig.clock.advance(3 * SECOND);
    assert!(rig.status(Op::Write).is_ok());
    assert_eq!(strange(&rig.read(4096), 5).len(), 512);
}

/// A flush before data is judged first, by itself.
#[test]
fn a_flush_before_data() {
    let write = || {
        let mut bio = bio(Op::Write, 3);
        bio.flags = BioFlags::PREFLUSH;
        bio
    };
    let outcome = |faults| {
        let mut rig = Rig::down(faults);
        (rig.user.run(write()).status, seen(&rig.disk))
    };
    let writes = |writes| Faults { writes, ..Faults::default() };
    assert_eq!(outcome(writes(Writes::Fail)), (Status::IoError, vec![]));
    assert_eq!(outcome(writes(Writes::Drop)), (Status::Ok, vec![]));
    let both = vec![Op::Flush, Op::Write];
    assert_eq!(outcome(Faults { error_reads: true, ..Faults::default() }), (Status::Ok, both));
}

#[test]
fn a_byte_of_what_is_read_is_replaced() {
    let mut rig = Rig::new(TIMES, corrupt(600, false, 9));
    set_data(&rig.disk, 5);
    assert_eq!(strange(&rig.read(1024), 5), [], "it is up");
    rig.clock.advance(2 * SECOND);
    assert_eq!(strange(&rig.read(1024), 5), [(599, 9)]);
    assert_eq!(strange(&rig.read(512), 5), [], "it has no 600th byte");
    assert_eq!(strange(&data(&rig.disk), 5), [], "the disk has what it had");
    // In memory of several pieces, of which the bio's data is a part.
    let pieces = [(512, 0..512), (1024, 256..768), (512, 0..512)];
    let pieces = pieces.map(|(length, range)| (IoBuf::zeroed(length), range));
    let done = rig.user.run(Bio::vectored(Op::Read, Sector(0), pieces));
    let found: Vec<_> = done.bufs().iter().map(|buf| buf.to_vec()).collect();
    assert_eq!((strange(&found[0], 5), strange(&found[2], 5)), (vec![], vec![]));
    assert_eq!(strange(&found[1][256..768], 5), [(600 - 1 - 512, 9)]);
    assert_eq!(strange(&found[1][..256], 0), []);
    // The last byte, and the first one after it.
    for (nth, wrong) in [(1, vec![(0, 9)]), (1024, vec![(1023, 9)]), (1025, vec![])] {
        let mut rig = Rig::down(corrupt(nth, false, 9));
        set_data(&rig.disk, 5);
        assert_eq!(strange(&rig.read(1024), 5), wrong, "byte {nth}");
    }
}

/// The time at which a read is sent counts, not that of its end; and a read that failed is left
/// alone.
#[test]
fn a_read_is_judged_when_it_is_sent() {
    let mut rig = Rig::new(TIMES, corrupt(1, false, 9));
    for (sent_after, ends_after, wrong) in [(SECOND, 2 * SECOND, vec![]), (0, SECOND, vec![(0, 9)])]
    {
        rig.clock.advance(sent_after);
        rig.disk.hold(true);
        rig.user.submit(bio(Op::Read, 0));
        rig.clock.advance(ends_after);
        rig.disk.release();
        assert_eq!(strange(rig.user.wait().buf().unwrap(), 0), wrong);
    }
    rig.disk.state.lock().unwrap().status = Status::Medium;
    let done = rig.user.run(bio(Op::Read, 0));
    assert_eq!((done.status, strange(done.buf().unwrap(), 0)), (Status::Medium, vec![]));
}

#[test]
fn a_byte_of_what_is_written_is_replaced() {
    let mut rig = Rig::new(TIMES, corrupt(600, true, 9));
    let write = |bytes| Bio::write(Sector(0), IoBuf::from_slice(&vec![5; bytes]));
    assert!(rig.user.run(write(SECTORS as usize * 512)).status.is_ok());
    assert_eq!(strange(&data(&rig.disk), 5), [], "it is up");
    rig.clock.advance(2 * SECOND);
    let done = rig.user.run(write(1024));
    assert!(done.status.is_ok());
    assert_eq!(strange(&data(&rig.disk), 5), [(599, 9)]);
    // The submitter's memory is as it was, and all there.
    assert_eq!((done.bytes, strange(done.buf().unwrap(), 5)), (1024, vec![]));
    // Shorter ones go as they are; reads too.
    assert!(rig.user.run(write(512)).status.is_ok());
    assert_eq!(strange(&rig.read(1024), 5), [(599, 9)]);
    // Memory of several pieces.
    let pieces = [512, 1024].map(|length| (IoBuf::from_slice(&vec![6; length]), 0..length));
    let done = rig.user.run(Bio::vectored(Op::Write, Sector(8), pieces));
    done.bufs().iter().for_each(|buf| assert_eq!(strange(buf, 6), []));
    assert_eq!(strange(&data(&rig.disk)[8 * 512..11 * 512], 6), [(599, 9)]);
    // One that fails below.
    rig.disk.state.lock().unwrap().status = Status::NoSpace;
    assert_eq!(rig.user.run(write(1024)).status, Status::NoSpace);
}

/// A bio that lies in several segments: each part is one of the segment's bios.
#[test]
fn each_part_is_a_bio_of_its_own() {
    let disk = Disk::new("d", SECTORS);
    let line = |start, faults, writes| {
        let faults = Faults { writes, ..faults };
        let mut spec = spec(&disk, (0, 1), faults);
        spec.area.sector = start;
        Line { start, length: 8, target: TargetSpec::Flakey(spec) }
    };
    let linear = TargetSpec::Linear(Area { device: disk.clone(), sector: 16 });
    let lines = vec![
        line(0, corrupt(2, true, 9), Writes::Pass),
        line(8, Faults::default(), Writes::Drop),
        Line { start: 16, length: 8, target: linear },
        line(24, corrupt(3, true, 8), Writes::Pass),
    ];
    let volume = volume(Table::new(lines).unwrap());
    let set = ContextSet::new(ManualClock::new(SINCE));
    let mut user = User::new(&set, &as_device(&volume));
    let done = user.run(Bio::write(Sector(4), IoBuf::from_slice(&[5; 28 * 512])));
    assert!(done.status.is_ok());
    assert_eq!(strange(done.buf().unwrap(), 5), []);
    let found = data(&disk);
    assert_eq!(strange(&found[4 * 512..8 * 512], 5), [(1, 9)]);
    assert_eq!(strange(&found[8 * 512..16 * 512], 0), []);
    assert_eq!(strange(&found[16 * 512..24 * 512], 5), []);
    assert_eq!(strange(&found[24 * 512..32 * 512], 5), [(2, 8)]);
    // A flush goes to the disk once for linear, and once for each segment that lets it through.
    disk.seen();
    assert!(user.run(Bio::flush()).status.is_ok());
    assert_eq!(seen(&disk), [Op::Flush; 3]);
}

/// Reads so many times where there are zeroes: which bytes were replaced by what, each time.
fn random_reads(rig: &mut Rig, count: usize) -> Vec<Vec<(usize, u8)>> {
    (0..count).map(|_| strange(&rig.read(1024), 0)).collect()
}

fn random(read: u32, write: u32) -> Faults {
    Faults { random_read_corrupt: read, random_write_corrupt: write, ..Faults::default() }
}

#[test]
fn random_bytes_of_what_is_read() {
    let faults = random(Faults::CERTAIN, 0);
    let mut rig = Rig::new(TIMES, faults);
    assert!(random_reads(&mut rig, 20).iter().all(Vec::is_empty), "it is up");
    rig.clock.advance(2 * SECOND);
    let found = random_reads(&mut rig, 200);
    assert!(found.iter().all(|wrong| wrong.len() < 2), "a byte each at the most");
    // One in 256 is replaced by the zero that was there.
    let hits: Vec<(usize, u8)> = found.concat();
    assert!(hits.len() > 190, "{hits:?}");
    assert!(hits.iter().any(|hit| hit.0 < 256) && hits.iter().any(|hit| hit.0 >= 768));
    assert!(hits.iter().any(|hit| hit.1 < 64) && hits.iter().any(|hit| hit.1 >= 192));
    // The same again from the same beginning, also after a reload of the table.
    let mut again = Rig::down(faults);
    assert_eq!(random_reads(&mut again, 200), found);
    let (volume, disk) = (again.volume.clone(), again.disk.clone());
    volume.load(table(spec(&disk, (0, 1), faults)));
    volume.start_suspend();
    assert!(volume.is_quiesced());
    volume.resume().unwrap();
    assert_eq!(random_reads(&mut again, 200), found);
    // Another context, and another seed, have other numbers.
    again.user = User::new(&again.set, &as_device(&again.volume));
    assert_ne!(random_reads(&mut again, 200), found);
    let mut other = Rig::down(faults);
    let spec = FlakeySpec { seed: 2, ..spec(&other.disk, (0, 1), faults) };
    other.volume = self::volume(table(spec));
    other.user = User::new(&other.set, &as_device(&other.volume));
    assert_ne!(random_reads(&mut other, 200), found);
}

#[test]
fn probabilities() {
    let hits = |faults| {
        let found = random_reads(&mut Rig::down(faults), 1000);
        found.iter().filter(|wrong| !wrong.is_empty()).count()
    };
    // A quarter of a thousand, by a seed that stays the same; reads of writes' probability: none.
    let some = hits(random(Faults::CERTAIN / 4, 0));
    assert!((200..300).contains(&some), "{some} of 1000");
    assert_eq!(hits(random(0, Faults::CERTAIN)), 0);
}

#[test]
fn random_bytes_of_what_is_written() {
    let mut rig = Rig::down(random(0, Faults::CERTAIN));
    let mut hits = 0;
    for _ in 0..100 {
        let done = rig.user.run(Bio::write(Sector(0), IoBuf::from_slice(&[5; 1024])));
        assert!(done.status.is_ok());
        assert_eq!(strange(done.buf().unwrap(), 5), []);
        let wrong = strange(&data(&rig.disk)[..1024], 5).len();
        assert!(wrong < 2);
        hits += wrong;
    }
    assert!(hits > 90, "{hits}");
}

#[test]
fn texts_and_statuses() {
    let faults = |error_reads, writes| Faults { error_reads, writes, ..Faults::default() };
    let all = Faults {
        error_reads: true,
        writes: Writes::Pass,
        corrupt_byte: Some(CorruptByte { nth: 224, in_writes: true, value: 255 }),
        random_read_corrupt: 1,
        random_write_corrupt: Faults::CERTAIN,
    };
    for (faults, text) in [
        (Faults::default(), "2 error_reads error_writes"),
        (faults(true, Writes::Fail), "2 error_reads error_writes"),
        (faults(true, Writes::Pass), "1 error_reads"),
        (faults(false, Writes::Drop), "1 drop_writes"),
        (faults(true, Writes::Drop), "2 error_reads drop_writes"),
        (faults(false, Writes::Fail), "1 error_writes"),
        (corrupt(32, false, 1), "5 corrupt_bio_byte 32 r 1 0"),
        (random(5, 0), "2 random_read_corrupt 5"),
        (
            all,
            "10 error_reads corrupt_bio_byte 224 w 255 0 random_read_corrupt 1 \
             random_write_corrupt 1000000000",
        ),
    ] {
        let volume = volume(table(spec(&Disk::new("d", SECTORS), TIMES, faults)));
        let table = volume.table().unwrap();
        assert_eq!(table.text(), format!("0 64 flakey d 0 2 3 {text}\n"));
        assert_eq!(table.status(), "0 64 flakey\n");
        assert_eq!(volume.info().kind, "flakey");
    }
}

#[test]
fn limits_and_extents_are_those_of_the_device() {
    let limits = Limits { logical_block_size: 4096, write_cache: true, ..Limits::default() };
    let disk = Disk::with_limits("d", SECTORS, limits);
    disk.state.lock().unwrap().data[16 * 512..20 * 512].fill(1);
    let mut spec = spec(&disk, (0, 1), Faults::default());
    spec.area.sector = 8;
    let line = Line { start: 0, length: 32, target: TargetSpec::Flakey(spec.clone()) };
    let volume = volume(Table::new(vec![line]).unwrap());
    let limits = volume.info().limits;
    assert_eq!((limits.logical_block_size, limits.write_cache), (4096, true));
    let extents = volume.extents(0, 32 * 512, 100).unwrap();
    let found: Vec<_> = extents.iter().map(|e| (e.offset / 512, e.length / 512, e.zero)).collect();
    assert_eq!(found, [(0, 8, true), (8, 4, false), (12, 20, true)]);
    let line = Line { start: 0, length: SECTORS, target: TargetSpec::Flakey(spec) };
    assert!(Table::new(vec![line]).err().unwrap().message.contains("`d` is too small"));
}

#[test]
fn bad_arguments_are_refused() {
    let writes = |writes, faults| Faults { writes, ..faults };
    for (times, faults, sentence) in [
        ((0, 0), Faults::default(), "0 seconds up and 0 down: at least 1"),
        (TIMES, corrupt(0, false, 1), "the first byte is 1"),
        (TIMES, random(Faults::CERTAIN + 1, 0), "at most 1000000000"),
        (TIMES, random(0, u32::MAX), "at most 1000000000"),
        (TIMES, writes(Writes::Drop, corrupt(1, true, 1)), "drop_writes leaves nothing"),
        (TIMES, writes(Writes::Fail, corrupt(1, true, 1)), "error_writes leaves nothing"),
        ((u32::MAX, 1), Faults::default(), "more than 4294967295 seconds"),
    ] {
        let target = TargetSpec::Flakey(spec(&Disk::new("d", SECTORS), times, faults));
        let error = Table::new(vec![Line { start: 0, length: SECTORS, target }]).err();
        let message = error.expect(sentence).message;
        assert!(message.contains(sentence), "{message}");
        assert!(message.starts_with("line 1 of the table: "), "{message}");
    }
    // These are fine together.
    for faults in [
        writes(Writes::Drop, corrupt(1, false, 1)),
        writes(Writes::Drop, random(0, 1)),
        writes(Writes::Fail, random(1, 1)),
    ] {
        table(spec(&Disk::new("d", SECTORS), TIMES, faults));
    }
}
