//! A user of one simulated disk, judged by the oracle: an honest disk with all its faults is never
//! reported, and each kind of wrong disk is.

use drystone_sim::disk::{Disk, DiskCounts, DiskOp, DiskOptions, EAGAIN, EINTR, Latency, OpId};
use drystone_sim::oracle::{
    Ended, FlushId, Oracle, OracleCounts, ReadId, Reason, Violation, WriteId, fill,
};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

const SECTORS: u64 = 512;
const SECTOR: u64 = 512;

/// An operation that the user of the disk has asked for.
enum Asked {
    Read(ReadId, Range<u64>),
    Write(WriteId, u64),
    Flush(FlushId),
}

/// A user with one disk and one oracle. Sectors and times come from its own generator.
struct User {
    disk: Disk,
    oracle: Oracle,
    rng: Rng,
    now: u64,
    /// Operations in flight, by the time at which each is due.
    due: BTreeMap<(u64, OpId), Asked>,
    /// Sectors that a request begins at a multiple of.
    align: u64,
    /// True if flushes that fail are followed by a word to the oracle.
    tells: bool,
}

impl User {
    fn new(options: DiskOptions, seed: u64) -> Self {
        let align = u64::from(options.physical_block) / SECTOR;
        let mut oracle = Oracle::new(5, options.size / SECTOR);
        oracle.set_atomic(align);
        User {
            disk: Disk::new(options, seed),
            oracle,
            rng: Rng::with_seed(seed ^ 0x5eed),
            now: 0,
            due: BTreeMap::new(),
            align,
            tells: true,
        }
    }

    fn range(&mut self) -> Range<u64> {
        let places = SECTORS / self.align;
        let length = self.rng.u64(1..=8);
        let first = self.rng.u64(0..=places - length);
        first * self.align..(first + length) * self.align
    }

    fn begin(&mut self, op: DiskOp, asked: Asked) {
        let (id, due) = self.disk.begin(self.now, op);
        self.due.insert((due, id), asked);
    }

    fn begin_any(&mut self) {
        let range = self.range();
        let (offset, length) = (range.start * SECTOR, (range.end - range.start) * SECTOR);
        match self.rng.u32(0..20) {
            0..=6 => {
                let id = self.oracle.read_begins(range.clone());
                self.begin(DiskOp::Read { offset, length }, Asked::Read(id, range));
            }
            7..=15 => {
                let fua = self.rng.u32(0..8) == 0;
                let id = self.oracle.write_begins(range.clone(), fua);
                let mut data = self.disk.buffer();
                data.resize(length as usize, 0);
                fill(&mut data, 5, range.start, id.stamp());
                self.begin(DiskOp::Write { offset, data, fua }, Asked::Write(id, length));
            }
            16 => {
                let id = self.oracle.zeroes_begin(range, false);
                self.begin(DiskOp::WriteZeroes { offset, length }, Asked::Write(id, length));
            }
            17 => {
                let id = self.oracle.discard_begins(range);
                self.begin(DiskOp::Discard { offset, length }, Asked::Write(id, length));
            }
            _ => {
                let id = self.oracle.flush_begins();
                self.begin(DiskOp::Flush, Asked::Flush(id));
            }
        }
    }

    fn finish_next(&mut self) -> Result<(), Box<Violation>> {
        let Some(((due, id), asked)) = self.due.pop_first() else { return Ok(()) };
        self.now = due;
        if self.rng.u32(0..64) == 0 && self.disk.cancel(id) {
            self.ends(asked, Ended::Cancelled);
            return Ok(());
        }
        let done = self.disk.finish(id);
        match asked {
            Asked::Read(read, range) => {
                let bytes = (range.end - range.start) * SECTOR;
                if done.result == bytes as i64 {
                    return self.oracle.read_ends_ok(read, done.data);
                }
                self.oracle.read_failed(read);
            }
            asked => {
                let ok = match asked {
                    Asked::Write(_, length) => done.result == length as i64,
                    _ => done.result == 0,
                };
                self.ends(asked, if ok { Ended::Ok } else { Ended::Failed });
            }
        }
        Ok(())
    }

    fn ends(&mut self, asked: Asked, how: Ended) {
        match asked {
            Asked::Read(read, _) => self.oracle.read_failed(read),
            Asked::Write(write, _) => self.oracle.write_ends(write, how),
            Asked::Flush(flush) => {
                self.oracle.flush_ends(flush, how == Ended::Ok);
                if how == Ended::Failed && self.tells && self.disk.faults().flush_error_drops {
                    self.oracle.drop_undurable(0..SECTORS);
                }
            }
        }
    }

    fn outage(&mut self) {
        match self.rng.u32(0..3) {
            0 => {
                self.disk.process_killed();
                self.oracle.process_killed();
            }
            1 => {
                self.disk.power_cut();
                self.oracle.power_cut();
                self.disk.power_on();
            }
            _ => {
                self.disk.vanish();
                self.oracle.power_cut();
                self.disk.come_back();
            }
        }
        // Each operation in flight when the power went ends with ENODEV, and nobody hears it.
        for (_, id) in std::mem::take(&mut self.due).into_keys() {
            if self.disk.is_in_flight(id) {
                assert!(self.disk.finish(id).result < 0);
            }
        }
        assert_eq!(self.disk.in_flight(), 0);
    }

    fn read_all(&mut self) -> Result<(), Box<Violation>> {
        self.holes_are_zero();
        let id = self.oracle.read_begins(0..SECTORS);
        self.oracle.read_ends_ok(id, &self.disk.contents())
    }

    /// A run of some operations with an outage now and then; all is read at the end.
    fn run(&mut self, operations: u32, outages: u32) -> Result<(), Box<Violation>> {
        for _ in 0..operations {
            self.begin_any();
            while self.due.len() > 12 || !self.due.is_empty() && self.rng.bool() {
                self.finish_next()?;
            }
            if outages > 0 && self.rng.u32(0..operations / outages) == 0 {
                self.outage();
                if self.rng.bool() {
                    self.read_all()?;
                }
            }
        }
        while !self.due.is_empty() {
            self.finish_next()?;
        }
        self.read_all()
    }

    fn holes_are_zero(&self) {
        let size = self.disk.size();
        let hole = self.disk.next_hole(0, size);
        let data = self.disk.next_data(hole, size);
        assert!(self.disk.contents()[hole as usize..data as usize].iter().all(|byte| *byte == 0));
    }
}

fn options(block: u32) -> DiskOptions {
    let mut options = DiskOptions::new(SECTORS * SECTOR);
    options.physical_block = block;
    options
}

/// Faults of an honest disk, some each time.
fn faulty(user: &mut User) {
    let rng = &mut user.rng;
    let mut ppm = || if rng.bool() { rng.u32(0..100_000) } else { 0 };
    let faults = user.disk.faults();
    faults.read_error_ppm = ppm();
    faults.write_error_ppm = ppm();
    faults.flush_error_ppm = ppm() * 3;
    faults.stall_ppm = ppm();
    faults.short_ppm = ppm();
    faults.interrupted_ppm = ppm();
    faults.again_ppm = ppm();
    faults.flush_error_drops = user.rng.bool();
    faults.write_repairs = user.rng.bool();
    faults.full = user.rng.u32(0..4) == 0;
    for _ in 0..user.rng.u32(0..4) {
        user.disk.faults().bad_reads.insert(user.rng.u64(0..SECTORS));
        user.disk.faults().bad_writes.insert(user.rng.u64(0..SECTORS));
    }
}

fn run_honest(seed: u64) -> (DiskCounts, OracleCounts, Vec<u8>) {
    let mut options = options(if seed.is_multiple_of(2) { 512 } else { 4096 });
    options.cache = !seed.is_multiple_of(5);
    options.cache_bytes_max = if seed.is_multiple_of(3) { 64 << 10 } else { 1 << 30 };
    options.latency = if seed.is_multiple_of(7) { Latency::hdd() } else { Latency::ssd() };
    let mut user = User::new(options, seed);
    for round in 0..4 {
        if round > 0 && !seed.is_multiple_of(4) {
            faulty(&mut user);
        }
        if let Err(wrong) = user.run(150, 3) {
            panic!("seed {seed}: {wrong}");
        }
        let all_fail = user.rng.u32(0..8) == 0;
        user.disk.faults().reads_fail = all_fail;
        user.disk.faults().writes_fail = all_fail;
    }
    (*user.disk.counts(), *user.oracle.counts(), user.disk.contents())
}

#[test]
fn an_honest_disk_is_never_reported_and_does_all_it_can() {
    let mut disks = DiskCounts::default();
    let (mut sectors, mut candidates) = (0, 0);
    for seed in 0..300 {
        let (disk, oracle, _) = run_honest(seed);
        disks.add(&disk);
        sectors += oracle.open_sectors;
        candidates = candidates.max(oracle.candidates_max);
    }
    // Wrong, or done by others: an outsider cuts files in the scenario `shrinks`, whose test
    // demands it.
    let not_here =
        ["misdirected", "corrupted", "lost_writes", "lies", "past_end", "no_device", "cuts"];
    for (name, count) in
        disks.each().filter(|(name, _)| !not_here.iter().any(|w| name.starts_with(w)))
    {
        assert!(count > 0, "{name} never happened");
    }
    assert!(sectors > 10_000 && candidates > 5, "{sectors} open sectors, {candidates} candidates");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert!(run_honest(seed) == run_honest(seed), "seed {seed}");
    }
    assert!(run_honest(1).2 != run_honest(3).2);
}

/// Runs a wrong disk until it is reported; how often in 40 runs, and the last report.
fn reports(block: u32, wrong: impl Fn(&mut User)) -> (u32, Option<Box<Violation>>) {
    let (mut count, mut last) = (0, None);
    for seed in 0..40 {
        let mut user = User::new(options(block), seed);
        wrong(&mut user);
        if let Err(violation) = user.run(400, 4) {
            count += 1;
            last = Some(violation);
        }
    }
    (count, last)
}

fn assert_reported(what: &str, wrong: impl Fn(&mut User)) {
    for block in [512, 4096] {
        let (count, _) = reports(block, &wrong);
        assert!(count >= 25, "{what} with blocks of {block}: {count} of 40 runs reported");
    }
}

#[test]
fn a_right_disk_is_not_reported() {
    assert_eq!(reports(4096, |_| ()).0, 0);
}

#[test]
fn wrong_disks_are_reported() {
    assert_reported("lost writes", |user| user.disk.faults().lost_write_ppm = 20_000);
    assert_reported("misdirected writes", |u| u.disk.faults().misdirect_write_ppm = 20_000);
    assert_reported("misdirected reads", |u| u.disk.faults().misdirect_read_ppm = 100_000);
    assert_reported("corrupted writes", |u| u.disk.faults().corrupt_write_ppm = 20_000);
    assert_reported("corrupted reads", |u| u.disk.faults().corrupt_read_ppm = 20_000);
    assert_reported("a failed flush that drops", |user| {
        user.tells = false;
        user.disk.faults().flush_error_drops = true;
        user.disk.faults().flush_error_ppm = 500_000;
    });
}

/// A user of another disk than it thinks.
fn reports_of(options: &DiskOptions, align: u64, tell: impl Fn(&mut Oracle)) -> (u32, u32) {
    let (mut all, mut torn) = (0, 0);
    for seed in 0..40 {
        let mut user = User::new(options.clone(), seed);
        user.align = align;
        user.oracle.set_atomic(align);
        tell(&mut user.oracle);
        if let Err(violation) = user.run(400, 6) {
            all += 1;
            torn += u32::from(violation.reason == Reason::Torn);
        }
    }
    (all, torn)
}

#[test]
fn a_disk_that_lies_is_reported_unless_the_oracle_knows() {
    let mut lying = options(512);
    lying.lying = true;
    assert!(reports_of(&lying, 1, |_| ()).0 >= 30);
    assert_eq!(reports_of(&lying, 1, |oracle| oracle.distrust_flushes(0..SECTORS)).0, 0);
}

#[test]
fn a_physical_block_that_tears_is_reported() {
    let (all, torn) = reports_of(&options(512), 8, |_| ());
    assert!(all >= 30 && torn > 0, "{all} reported, {torn} as torn");
}

#[test]
fn a_stale_read_is_reported() {
    let mut user = User::new(options(512), 1);
    user.run(100, 0).unwrap();
    let old = user.disk.contents();
    user.run(100, 0).unwrap();
    let id = user.oracle.read_begins(0..SECTORS);
    let violation = user.oracle.read_ends_ok(id, &old).unwrap_err();
    let text = violation.to_string();
    assert!(text.contains("must not hold what was read") && text.contains("permitted"), "{text}");
}

#[test]
fn each_image_of_a_snapshot_is_what_a_power_cut_may_leave() {
    for seed in 0..20 {
        let mut user = User::new(options(if seed % 2 == 0 { 512 } else { 4096 }), seed);
        user.run(60, 0).unwrap();
        for _ in 0..6 {
            user.begin_any();
        }
        let snapshot = user.disk.snapshot();
        let mut seen = 0;
        for image in snapshot.images(100, Rng::with_seed(seed)) {
            let mut oracle = user.oracle.clone();
            oracle.power_cut();
            let id = oracle.read_begins(0..SECTORS);
            oracle.read_ends_ok(id, &image.contents()).unwrap_or_else(|w| panic!("{seed}: {w}"));
            assert_eq!(image.contents(), image.durable());
            seen += 1;
        }
        assert!(seen > 0);
    }
}

#[test]
fn repeats_and_short_transfers_say_what_happened() {
    let mut disk = Disk::new(options(512), 1);
    disk.faults().interrupted_ppm = 500_000;
    disk.faults().again_ppm = 500_000;
    for _ in 0..20 {
        let (id, _) = disk.begin(0, DiskOp::Write { offset: 0, data: vec![1; 512], fua: true });
        assert!([-EINTR, -EAGAIN].contains(&disk.finish(id).result));
    }
    assert_eq!(disk.contents()[0], 0);
    *disk.faults() = Default::default();
    disk.faults().short_ppm = 1_000_000;
    let (id, _) = disk.begin(0, DiskOp::Write { offset: 0, data: vec![1; 4096], fua: false });
    let written = disk.finish(id).result;
    assert!((512..4096).contains(&written) && written % 512 == 0);
    let length = disk.contents().iter().take_while(|byte| **byte == 1).count();
    assert_eq!(length as i64, written);
}
