//! `log-writes`: what goes into the log and in which order, read back as `replay-log` reads it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

mod common;

use common::{Disk, User};
use drystone_core::clock::SystemClock;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioFlags, BioList, Context, ContextSet, Device, IoBuf, Limits, Op, Sector, Status,
};
use drystone_targets::{
    Area, LOG_END_MARK, Line, LogCarrier, LogEntry, LogFlags, LogStep, LogSuper, LogWritesSpec,
    Table, TargetSpec, Volume, VolumeOptions, WriteLog,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECTORS: u64 = 64;
const LOG_SECTORS: u64 = 4096;
/// So long may what another thread does take at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// An entry as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    entry: LogEntry,
    text: String,
    data: Vec<u8>,
}

/// Reads what the super block counts. None before the first super block.
fn entries(log: &Disk) -> Option<Vec<Read>> {
    let bytes = log.state.lock().unwrap().data.clone();
    if bytes[..512] == [0; 512] {
        return None;
    }
    let LogSuper { entries, sector_bytes } = LogSuper::decode(&bytes).unwrap();
    let (block, mut at) = (sector_bytes as usize, sector_bytes as usize);
    let mut read = Vec::new();
    for _ in 0..entries {
        let header = &bytes[at..at + block];
        let entry = LogEntry::decode(header).unwrap();
        let length = entry.data_sectors() as usize * block;
        let text = String::from_utf8(entry.text(header).to_vec()).unwrap();
        at += block;
        read.push(Read { entry, text, data: bytes[at..at + length].to_vec() });
        at += length;
    }
    Some(read)
}

fn replay(entries: &[Read], block: u64, to: &mut [u8]) {
    for Read { entry, data, .. } in entries {
        let from = (entry.sector * block) as usize;
        let to = &mut to[from..from + (entry.sectors * block) as usize];
        match entry.flags.has(LogFlags::DISCARD) {
            true => to.fill(0),
            false => to.copy_from_slice(data),
        }
    }
}

/// `w3` is a write of sector 3, `F` a flush, `u` FUA, `d` a discard, a mark its text.
fn words(entries: &[Read]) -> String {
    let word = |Read { entry, text, .. }: &Read| match entry.flags {
        LogFlags::FLUSH => "F".to_owned(),
        LogFlags::FUA => format!("u{}", entry.sector),
        LogFlags::DISCARD => format!("d{}", entry.sector),
        LogFlags::MARK => text.clone(),
        LogFlags(0) => format!("w{}", entry.sector),
        other => panic!("{other}"),
    };
    entries.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn spec(device: &Arc<Disk>, log: &Arc<Disk>, start: u64) -> LogWritesSpec {
    LogWritesSpec {
        area: Area { device: device.clone(), sector: start },
        log: Area { device: log.clone(), sector: 0 },
    }
}

fn try_table(device: &Arc<Disk>, log: &Arc<Disk>) -> Result<Table, String> {
    let target = TargetSpec::LogWrites(spec(device, log, 0));
    let line = Line { start: 0, length: device.info().size_bytes / 512, target };
    Table::new(vec![line]).map_err(|error| error.message)
}

/// A volume over a disk and a log, with one user.
struct Rig {
    set: Arc<ContextSet>,
    disk: Arc<Disk>,
    log: Arc<Disk>,
    volume: Volume,
    user: User,
}

impl Rig {
    fn new() -> Self {
        Rig::of(Disk::new("d", SECTORS), Disk::new("log", LOG_SECTORS))
    }

    fn of(disk: Arc<Disk>, log: Arc<Disk>) -> Self {
        let clock = SystemClock::new();
        let locks = LockCounters::new(clock.clone());
        let volume = Volume::new("v", VolumeOptions::default(), locks);
        volume.load(try_table(&disk, &log).unwrap());
        volume.resume().unwrap();
        let set = ContextSet::new(clock);
        let user = User::new(&set, &as_device(&volume));
        Rig { set, disk, log, volume, user }
    }

    fn another(&self) -> User {
        User::new(&self.set, &as_device(&self.volume))
    }

    fn ok(&mut self, bio: Box<Bio>) {
        assert_eq!(self.user.run(bio).status, Status::Ok);
    }

    fn words(&self) -> String {
        entries(&self.log).map_or("nothing".to_owned(), |read| words(&read))
    }

    fn status(&self) -> String {
        self.volume.table().unwrap().status().trim().to_owned()
    }

    fn write_log(&self) -> WriteLog {
        self.volume.table().unwrap().logs().next().unwrap().clone()
    }

    fn mark(&self, text: &str) {
        let mut cx = self.set.open(Engine::Plain).unwrap();
        let log = self.write_log();
        let carrier = log.mark(text, cx.locks()).unwrap();
        carry(&log, carrier, &mut cx);
    }

    fn end(&self) {
        let mut cx = self.set.open(Engine::Plain).unwrap();
        let log = self.write_log();
        if let Some(carrier) = log.end(cx.locks()) {
            carry(&log, carrier, &mut cx);
        }
    }

    /// The device has what the whole log is replayed to.
    fn check_replay(&self) {
        let block = u64::from(self.disk.limits.logical_block_size);
        let data = self.disk.state.lock().unwrap().data.clone();
        let mut replayed = vec![0; data.len()];
        replay(&entries(&self.log).unwrap(), block, &mut replayed);
        assert!(replayed == data, "the replayed log is not what the device has");
    }
}

/// Writes to a log what is carried, as a caller without a bio on the volume does.
fn carry(log: &WriteLog, mut carrier: LogCarrier, cx: &mut Context) {
    let device = cx.open(log.device()).unwrap();
    let (mut wakes, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        let locks = cx.locks().clone();
        let step = log.step(&mut carrier, &locks, &mut wakes);
        wakes.drain(..).filter_map(|w| Some((w.receiver()?, w))).for_each(|(handle, word)| {
            handle.send(word);
            handle.kick();
        });
        let writes = match step {
            LogStep::Done => return,
            LogStep::Wait => Vec::new(),
            LogStep::Write(writes) => writes,
        };
        let mut bios = BioList::new();
        writes.into_iter().for_each(|w| bios.push(Bio::write(Sector(w.sector), w.data)));
        cx.submit(device, &mut bios);
        while cx.outstanding() > 0 {
            let mut done = BioList::new();
            if cx.reap(&mut done) == 0 {
                cx.wait(None);
            }
            done.iter().filter(|bio| !bio.status.is_ok()).for_each(|_| carrier.fail());
        }
        assert!(Instant::now() < deadline, "it is waited for in vain");
    }
}

fn as_device(volume: &Volume) -> Arc<dyn Device> {
    Arc::new(volume.clone())
}

fn write(sector: u64, sectors: u64, byte: u8) -> Box<Bio> {
    Bio::write(Sector(sector), IoBuf::from_slice(&vec![byte; sectors as usize * 512]))
}

fn fua(mut bio: Box<Bio>) -> Box<Bio> {
    bio.flags |= BioFlags::FUA;
    bio
}

fn discard(sector: u64, sectors: u64) -> Box<Bio> {
    Bio::without_data(Op::Discard, Sector(sector), sectors * 512)
}

#[test]
fn a_write_is_logged_by_the_flush_that_was_sent_after_its_end() {
    let mut rig = Rig::new();
    rig.ok(write(3, 1, 3));
    rig.ok(write(2, 1, 2));
    assert_eq!((rig.words(), rig.status()), ("nothing".into(), "0 64 log-writes 0 0".into()));
    rig.disk.hold(true);
    rig.user.submit(write(1, 1, 1));
    rig.user.submit(Bio::flush());
    assert_eq!(rig.words(), "nothing", "the flush has not ended");
    rig.disk.release();
    assert!(rig.user.wait().status.is_ok() && rig.user.wait().status.is_ok());
    assert_eq!((rig.words(), rig.status()), ("w3 w2 F".into(), "0 64 log-writes 3 5".into()));
    rig.ok(Bio::flush());
    assert_eq!(rig.words(), "w3 w2 F w1 F");
    rig.check_replay();
}

/// Durable writes go first, unless they would come before what they have replaced.
#[test]
fn writes_with_fua_are_logged_at_once() {
    let mut rig = Rig::new();
    rig.ok(write(8, 2, 1));
    rig.ok(fua(write(4, 4, 2)));
    assert_eq!(rig.words(), "u4", "an older write of other sectors waits");
    rig.ok(fua(write(9, 1, 3)));
    assert_eq!(rig.words(), "u4 w8 u9", "one of the same sectors does not");
    let mut both = fua(write(1, 1, 4));
    both.flags |= BioFlags::PREFLUSH;
    rig.ok(write(20, 1, 4));
    rig.ok(both);
    assert_eq!(rig.words(), "u4 w8 u9 w20 F u1");
    rig.check_replay();
}

#[test]
fn discards_are_logged_among_writes_and_zeroes_are_not_taken() {
    let mut rig = Rig::new();
    rig.ok(write(0, 8, 7));
    rig.ok(discard(2, 4));
    rig.ok(write(3, 1, 9));
    let zeroes = Bio::without_data(Op::WriteZeroes, Sector(0), 512);
    assert_eq!(rig.user.run(zeroes).status, Status::NotSupported);
    rig.ok(Bio::read(Sector(0), IoBuf::zeroed(4096)));
    rig.ok(Bio::flush());
    assert_eq!(rig.words(), "w0 d2 w3 F");
    let found = entries(&rig.log).unwrap();
    assert_eq!((found[1].entry.sectors, found[1].data.len()), (4, 0));
    assert_eq!((found[2].entry.sectors, &found[2].data[..]), (1, &[9; 512][..]));
    rig.check_replay();
}

#[test]
fn what_the_memory_of_a_bio_is_made_of_does_not_matter() {
    let mut rig = Rig::new();
    let parts = [(1, 100..612), (2, 0..1024), (3, 512..1024)];
    let parts = parts.map(|(byte, range)| (IoBuf::from_slice(&[byte; 1024]), range));
    rig.ok(Bio::vectored(Op::Write, Sector(5), parts));
    rig.ok(Bio::flush());
    let data = &entries(&rig.log).unwrap()[0].data;
    assert_eq!((data.len(), data[511], data[512], data[1535], data[1536]), (2048, 1, 2, 2, 3));
    rig.check_replay();
}

#[test]
fn marks_stand_behind_what_is_durable_and_the_end_behind_all() {
    let mut rig = Rig::new();
    rig.mark("begin");
    rig.ok(write(1, 1, 1));
    rig.ok(Bio::flush());
    rig.ok(write(2, 1, 2));
    rig.mark("here");
    assert_eq!(rig.words(), "begin w1 F here");
    rig.end();
    assert_eq!(rig.words(), format!("begin w1 F here w2 {LOG_END_MARK}"));
    rig.end();
    assert_eq!(entries(&rig.log).unwrap().len(), 6, "it has ended already");
    let longest = "x".repeat(512 - 32 - 1);
    rig.mark(&longest);
    assert_eq!(entries(&rig.log).unwrap()[6].text, longest);
    let locks = LockCounters::new(SystemClock::new());
    assert!(rig.write_log().mark(&(longest + "x"), &locks).is_none(), "a text that is too long");
    rig.end();
    assert!(rig.words().ends_with(LOG_END_MARK), "another end, after the mark");
    rig.check_replay();
}

#[test]
fn a_log_that_nothing_came_to_has_an_end() {
    let rig = Rig::new();
    assert_eq!(entries(&rig.log), None);
    rig.end();
    assert_eq!(rig.words(), LOG_END_MARK);
}

/// A log that was there before is not mistaken for ours at any moment.
#[test]
fn the_first_super_block_comes_before_the_first_entry() {
    let mut rig = Rig::new();
    rig.ok(write(1, 2, 1));
    rig.ok(Bio::flush());
    let seen: Vec<_> = rig.log.seen().iter().map(|seen| (seen.sector, seen.bytes)).collect();
    assert_eq!(seen, [(0, 512), (1, 512), (2, 1024), (4, 512), (0, 512)]);
}

#[test]
fn a_full_log_keeps_what_it_has_and_io_goes_on() {
    // The super block, a write of one sector with its header and its flush, a header.
    let mut rig = Rig::of(Disk::new("d", SECTORS), Disk::new("log", 5));
    rig.ok(write(1, 1, 1));
    rig.ok(Bio::flush());
    assert_eq!(rig.words(), "w1 F");
    rig.ok(write(2, 1, 2));
    rig.ok(Bio::flush());
    assert_eq!(
        (rig.words(), rig.status()),
        ("w1 F".into(), "0 64 log-writes 2 3 logging_disabled".into())
    );
    rig.ok(write(3, 1, 3));
    rig.ok(fua(write(4, 1, 3)));
    rig.ok(Bio::flush());
    rig.end();
    assert_eq!(rig.words(), "w1 F");
    assert_eq!(rig.disk.state.lock().unwrap().data[3 * 512], 3);
}

/// Entries that had room before the log was full are written.
#[test]
fn a_log_that_gets_full_in_the_middle_has_the_beginning() {
    let mut rig = Rig::of(Disk::new("d", SECTORS), Disk::new("log", 6));
    (1..=4).for_each(|n| rig.ok(write(n, 1, 1)));
    rig.ok(Bio::flush());
    assert_eq!(
        (rig.words(), rig.status()),
        ("w1 w2".into(), "0 64 log-writes 2 4 logging_disabled".into())
    );
}

#[test]
fn an_error_of_the_log_is_not_one_of_the_volume() {
    let mut rig = Rig::new();
    rig.ok(write(1, 1, 1));
    rig.ok(Bio::flush());
    rig.log.state.lock().unwrap().status = Status::IoError;
    rig.ok(write(2, 1, 2));
    rig.ok(Bio::flush());
    assert!(rig.status().ends_with(" logging_disabled"), "{}", rig.status());
    rig.log.state.lock().unwrap().status = Status::Ok;
    rig.ok(fua(write(3, 1, 3)));
    assert_eq!(rig.words(), "w1 F", "what was there before the error");
    assert!(rig.disk.seen().len() >= 5);
}

#[test]
fn an_error_of_the_log_ends_the_waiting_of_others() {
    let mut rig = Rig::new();
    let mut other = rig.another();
    rig.ok(write(1, 1, 1));
    rig.log.hold(true);
    rig.user.submit(Bio::flush());
    other.submit(fua(write(2, 1, 2)));
    other.submit(fua(write(3, 1, 3)));
    rig.log.state.lock().unwrap().status = Status::IoError;
    assert!(rig.user.reap().is_empty() && other.reap().is_empty());
    rig.log.release();
    assert!([rig.user.wait(), other.wait(), other.wait()].iter().all(|bio| bio.status.is_ok()));
    assert_eq!(entries(&rig.log), None);
}

#[test]
fn what_fails_on_the_device_is_not_logged() {
    let mut rig = Rig::new();
    rig.ok(write(1, 1, 1));
    rig.disk.state.lock().unwrap().status = Status::IoError;
    assert_eq!(rig.user.run(write(2, 1, 2)).status, Status::IoError);
    assert_eq!(rig.user.run(fua(write(3, 1, 2))).status, Status::IoError);
    assert_eq!(rig.user.run(Bio::flush()).status, Status::IoError);
    assert_eq!(rig.words(), "nothing", "a flush that failed says nothing of the write before it");
    rig.disk.state.lock().unwrap().status = Status::Ok;
    rig.ok(Bio::flush());
    assert_eq!(rig.words(), "w1 F");
}

/// Every write that ended is in the log, also where another context's super block says so.
#[test]
fn contexts_wait_for_one_another() {
    let mut rig = Rig::new();
    let (mut second, mut third) = (rig.another(), rig.another());
    rig.ok(fua(write(0, 1, 9)));
    rig.log.hold(true);
    rig.user.submit(fua(write(1, 1, 1)));
    second.submit(fua(write(2, 1, 2)));
    third.submit(fua(write(3, 1, 3)));
    third.submit(Bio::flush());
    let quiet = |user: &mut User| user.reap().is_empty();
    assert!(quiet(&mut rig.user) && quiet(&mut second) && quiet(&mut third));
    assert_eq!(rig.words(), "u0");
    rig.log.release();
    for user in [&mut third, &mut second, &mut rig.user] {
        assert!(user.wait().status.is_ok());
    }
    assert!(third.wait().status.is_ok());
    assert_eq!(rig.words(), "u0 u1 u2 u3 F");
    rig.check_replay();
}

/// A super block counts no entry that is not there, though later ones are.
#[test]
fn later_entries_wait_for_earlier_ones() {
    let mut rig = Rig::new();
    let mut other = rig.another();
    rig.ok(fua(write(0, 1, 9)));
    rig.log.hold(true);
    rig.user.submit(fua(write(1, 1, 1)));
    // I/O that is kept stays so; new I/O is done at once.
    rig.log.hold(false);
    other.submit(fua(write(2, 1, 2)));
    assert!(other.reap().is_empty() && rig.user.reap().is_empty());
    assert_eq!(rig.words(), "u0");
    rig.log.release();
    assert!(rig.user.wait().status.is_ok() && other.wait().status.is_ok());
    assert_eq!(rig.words(), "u0 u1 u2");

    // The first of three comes into place by the third, the second does not.
    rig.log.hold(true);
    rig.user.submit(fua(write(3, 1, 3)));
    other.submit(fua(write(4, 1, 4)));
    rig.log.hold(false);
    rig.user.submit(fua(write(5, 1, 5)));
    let ended = rig.user.reap();
    assert_eq!((ended.len(), rig.words()), (1, "u0 u1 u2 u3".to_owned()));
    rig.log.release();
    assert!(rig.user.wait().status.is_ok() && other.wait().status.is_ok());
    assert_eq!(rig.words(), "u0 u1 u2 u3 u4 u5");
}

/// Two contexts at the very beginning, of which one has to wait for the other's first super block.
#[test]
fn the_first_super_block_is_waited_for() {
    let mut rig = Rig::new();
    let mut other = rig.another();
    rig.log.hold(true);
    rig.user.submit(fua(write(1, 1, 1)));
    other.submit(fua(write(2, 1, 2)));
    assert!(rig.user.reap().is_empty() && other.reap().is_empty());
    assert_eq!(rig.log.seen().len(), 1);
    rig.log.release();
    assert!(other.wait().status.is_ok() && rig.user.wait().status.is_ok());
    assert_eq!(rig.words(), "u1 u2");
}

#[test]
fn a_context_that_is_dropped_finishes_its_log() {
    let mut rig = Rig::new();
    let (mut gone, mut waiting) = (rig.another(), rig.another());
    rig.ok(fua(write(0, 1, 9)));
    rig.log.hold(true);
    gone.submit(write(1, 1, 1));
    gone.submit(Bio::flush());
    waiting.submit(fua(write(2, 1, 2)));
    drop(gone);
    drop(waiting);
    rig.log.release();
    let deadline = Instant::now() + PATIENCE;
    while rig.set.free_idle_orphans() > 0 {
        assert!(Instant::now() < deadline, "a dropped context does not come to its end");
    }
    rig.ok(fua(write(3, 1, 3)));
    assert_eq!(rig.words(), "u0 w1 F u2 u3");
    rig.check_replay();
}

#[test]
fn a_suspended_volume_is_quiesced_when_its_log_is_written() {
    let mut rig = Rig::new();
    rig.log.hold(true);
    rig.user.submit(fua(write(1, 1, 1)));
    rig.volume.start_suspend();
    assert!(!rig.volume.is_quiesced());
    rig.log.release();
    assert!(rig.user.wait().status.is_ok());
    let deadline = Instant::now() + PATIENCE;
    while !rig.volume.is_quiesced() {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(rig.words(), "u1");
}

#[test]
fn a_volume_that_is_closed_meanwhile_gives_its_log_up() {
    let mut rig = Rig::new();
    let mut other = rig.another();
    rig.ok(fua(write(0, 1, 9)));
    rig.log.hold(true);
    rig.user.submit(fua(write(1, 1, 1)));
    other.submit(fua(write(2, 1, 2)));
    rig.volume.close();
    rig.log.release();
    assert!(rig.user.wait().status.is_ok() && other.wait().status.is_ok());
    assert_eq!(rig.words(), "u0");
}

/// More than is kept goes into the log without a flush, in order.
#[test]
fn what_is_kept_unflushed_is_bounded() {
    const BOUND: u64 = 16384;
    let mut rig = Rig::of(Disk::new("d", SECTORS), Disk::new("log", 2 * BOUND + 100));
    for n in 0..BOUND {
        rig.ok(write(n % SECTORS, 1, n as u8));
    }
    assert_eq!(rig.words(), "nothing");
    rig.ok(write(7, 1, 77));
    let found = entries(&rig.log).unwrap();
    assert_eq!((found.len() as u64, found[100].data[0]), (BOUND + 1, 100));
    assert!(found.iter().all(|read| read.entry.flags == LogFlags::default()));
    rig.ok(Bio::flush());
    assert_eq!(entries(&rig.log).unwrap().len() as u64, BOUND + 2);
    rig.check_replay();
}

/// A log counts in blocks of the device, and its volume in sectors of 512 bytes.
#[test]
fn sectors_of_a_log_are_the_devices_blocks() {
    let limits = Limits { logical_block_size: 4096, ..Disk::new("x", 8).limits };
    let disk = Disk::with_limits("d", SECTORS, limits);
    let mut rig = Rig::of(disk, Disk::new("log", LOG_SECTORS));
    rig.ok(write(16, 24, 5));
    rig.ok(discard(8, 8));
    rig.ok(Bio::flush());
    let found = entries(&rig.log).unwrap();
    assert_eq!((found[0].entry.sector, found[0].entry.sectors), (2, 3));
    assert_eq!((found[1].entry.sector, found[1].entry.sectors), (1, 1));
    assert_eq!(rig.status(), "0 64 log-writes 3 55", "a super, a header, 3 blocks, 2 headers");
    rig.check_replay();
}

/// The kernel's target has no offset: a line that begins at sector 8 has the device's sector 8.
#[test]
fn a_line_further_on_has_the_same_sectors() {
    let (a, disk, log) = (Disk::new("a", 8), Disk::new("d", SECTORS), Disk::new("log", 64));
    let linear = TargetSpec::Linear(Area { device: a.clone(), sector: 0 });
    let logged = TargetSpec::LogWrites(spec(&disk, &log, 8));
    let lines = [(0, 8, linear), (8, 16, logged)];
    let lines = lines.map(|(start, length, target)| Line { start, length, target });
    let table = Table::new(lines.to_vec()).unwrap();
    assert_eq!(table.text(), "0 8 linear a 0\n8 16 log-writes d log\n");
    let place =
        table.place(9).map(|(member, sector)| (table.members()[member].info().name, sector));
    assert_eq!(place, Some(("d".to_owned(), 9)));
    assert_eq!(table.members().len(), 3);
    assert!(table.log_at(7).is_none() && table.log_at(8).is_some() && table.log_at(24).is_none());
    let volume = Volume::new("v", VolumeOptions::default(), LockCounters::new(SystemClock::new()));
    volume.load(table);
    volume.resume().unwrap();
    let mut user = User::new(&ContextSet::new(SystemClock::new()), &as_device(&volume));
    assert!(user.run(write(4, 8, 7)).status.is_ok(), "half here, half there");
    assert!(user.run(Bio::flush()).status.is_ok());
    assert_eq!(words(&entries(&log).unwrap()), "w8 F");
    assert_eq!(disk.state.lock().unwrap().data[8 * 512], 7);
    let ops = |disk: &Disk| disk.seen().iter().map(|seen| seen.op).collect::<Vec<_>>();
    assert_eq!((ops(&a), ops(&disk)), (vec![Op::Write, Op::Flush], vec![Op::Write, Op::Flush]));
}

#[test]
fn limits_are_the_devices_with_a_cache() {
    let limits = Limits { write_cache: false, fua: false, ..Disk::new("x", 8).limits };
    let disk = Disk::with_limits("d", SECTORS, limits);
    let small = Limits { max_bytes: 512, max_discard_bytes: 0, ..limits };
    let log = Disk::with_limits("log", 64, small);
    let found = try_table(&disk, &log).unwrap().limits();
    assert!(found.write_cache && found.fua && !found.fast_zero);
    assert_eq!((found.max_write_zeroes_bytes, found.max_discard_bytes), (0, 1 << 40));
    assert_eq!(found.max_bytes, limits.max_bytes);
}

#[test]
fn devices_that_do_not_do() {
    let disk = Disk::new("d", SECTORS);
    let of = |sectors, change: fn(&mut Limits)| {
        let mut limits = disk.limits;
        change(&mut limits);
        Disk::with_limits("log", sectors, limits)
    };
    let message = |log: &Arc<Disk>| try_table(&disk, log).err().unwrap_or_default();
    assert_eq!(message(&of(3, |_| {})), "");
    assert!(message(&disk).contains("the log of `d` needs another device"));
    assert!(message(&of(2, |_| {})).contains("no room for a log"));
    assert!(message(&of(64, |limits| limits.read_only = true)).contains("`log` is read-only"));
    let blocks = message(&of(64, |limits| limits.logical_block_size = 4096));
    assert!(blocks.contains("blocks of 512 bytes, as `d` has them; those of `log` have 4096"));
    let target = TargetSpec::LogWrites(spec(&disk, &of(64, |_| {}), 8));
    let moved = Table::new(vec![Line { start: 0, length: 8, target }]).err().unwrap();
    assert!(moved.message.contains("no offsets"));
}

const THREADS: u64 = 4;
/// Sectors that a thread has of its own.
const OWN: u64 = SECTORS / THREADS;

/// Writes to its own sectors. The result has their contents after each of its flushes, and the
/// least number of entries that the log had then.
fn storm(mut user: User, log: &Disk, thread: u64) -> Vec<(u64, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(thread);
    let (first, mut own) = (thread * OWN, vec![0; OWN as usize * 512]);
    let mut moments = Vec::new();
    for serial in 0..150u64 {
        let at = random.u64(0..OWN);
        let sectors = 1 + random.u64(0..OWN - at);
        let range = at as usize * 512..(at + sectors) as usize * 512;
        let (byte, kind) = (serial as u8 | 1, random.u64(0..8));
        let bio = match kind {
            0..4 => write(first + at, sectors, byte),
            4 => fua(write(first + at, sectors, byte)),
            5 => discard(first + at, sectors),
            _ => Bio::flush(),
        };
        assert!(user.run(bio).status.is_ok());
        match kind {
            0..5 => own[range].fill(byte),
            5 => own[range].fill(0),
            _ => {
                let bytes = log.state.lock().unwrap().data[..512].to_vec();
                moments.push((LogSuper::decode(&bytes).unwrap().entries, own.clone()));
            }
        }
    }
    moments
}

/// Up to each flush the log has all that its thread wrote before, and nothing of what it wrote
/// after.
#[test]
fn four_threads_find_each_of_their_moments() {
    let rig = Rig::of(Disk::new("d", SECTORS), Disk::new("log", 32 << 10));
    let log = rig.log.clone();
    let moments: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (user, log) = (rig.another(), &log);
                scope.spawn(move || storm(user, log, thread))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    rig.end();
    let found = entries(&rig.log).unwrap();
    for (thread, moments) in moments.iter().enumerate() {
        assert!(moments.len() > 10);
        for (entries, own) in moments {
            let mut replayed = vec![0; SECTORS as usize * 512];
            replay(&found[..*entries as usize], 512, &mut replayed);
            let from = thread * OWN as usize * 512;
            assert!(replayed[from..from + own.len()] == own[..], "{entries} of thread {thread}");
        }
    }
    assert_eq!(found.last().unwrap().text, LOG_END_MARK);
    rig.check_replay();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u64, u64),
    Fua(u64, u64),
    Discard(u64, u64),
    Flush,
    Mark,
}

/// The entries of the log after `steps`, one after the other.
fn expected(steps: &[Step]) -> String {
    let (mut log, mut unflushed): (Vec<String>, Vec<(String, u64, u64)>) = Default::default();
    for step in steps {
        match *step {
            Step::Write(at, sectors) => unflushed.push((format!("w{at}"), at, at + sectors)),
            Step::Discard(at, sectors) => unflushed.push((format!("d{at}"), at, at + sectors)),
            Step::Fua(at, sectors) => {
                if unflushed.iter().any(|(_, start, end)| *start < at + sectors && at < *end) {
                    log.extend(unflushed.drain(..).map(|(word, ..)| word));
                }
                log.push(format!("u{at}"));
            }
            Step::Flush => {
                log.extend(unflushed.drain(..).map(|(word, ..)| word));
                log.push("F".to_owned());
            }
            Step::Mark => log.push("m".to_owned()),
        }
    }
    log.extend(unflushed.drain(..).map(|(word, ..)| word));
    log.push(LOG_END_MARK.to_owned());
    log.join(" ")
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..SECTORS - 8, 1..8u64);
    let step = prop_oneof![
        4 => range().prop_map(|(at, sectors)| Step::Write(at, sectors)),
        2 => range().prop_map(|(at, sectors)| Step::Fua(at, sectors)),
        1 => range().prop_map(|(at, sectors)| Step::Discard(at, sectors)),
        1 => Just(Step::Flush),
        1 => Just(Step::Mark),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn as_the_plain_rules_say(steps in steps()) {
        let mut rig = Rig::new();
        for (n, step) in steps.iter().enumerate() {
            let byte = n as u8 + 1;
            match *step {
                Step::Write(at, sectors) => rig.ok(write(at, sectors, byte)),
                Step::Fua(at, sectors) => rig.ok(fua(write(at, sectors, byte))),
                Step::Discard(at, sectors) => rig.ok(discard(at, sectors)),
                Step::Flush => rig.ok(Bio::flush()),
                Step::Mark => rig.mark("m"),
            }
        }
        rig.end();
        prop_assert_eq!(rig.words(), expected(&steps));
        rig.check_replay();
    }
}
