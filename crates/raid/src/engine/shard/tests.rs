//! A shard over members that are vectors. Their I/O ends in any order and may fail. The shard is
//! compared with a plain array of bytes.

use super::{Shard, TurnEffects};
use crate::engine::conf::{Conf, ConfSpec, IN_SYNC, Member, RoleSlot, SyncAction};
use crate::engine::plan::{data_of, parity_of};
use crate::engine::turn::{Fault, Report, TurnInput};
use crate::ids::{MemberNumber, Role};
use crate::layout::{BLOCK_BYTES, Layout, Level};
use crate::metadata::bad_blocks::BadBlocks;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::primitive::{AtomicU64, Ordering::*};
use drystone_core::stats::DiskStats;
use drystone_core::{
    Bio, BioFlags, Channel, ChannelId, Device, DeviceInfo, Env, Error, Extent, IoBuf, Limits, Op,
    PortId, Result, SECTOR_SIZE, Sector, Status,
};
use drystone_parity::{Parity, gf};
use proptest::prelude::*;
use std::sync::Arc;

#[cfg(not(loom))]
mod rows;

const USED: u64 = 128;
const OFFSET: u64 = 16;

/// A device that is never opened, for tests of code that only hands devices on.
struct NoDevice;

impl Device for NoDevice {
    fn info(&self) -> DeviceInfo {
        let limits = Limits::default();
        DeviceInfo { name: "none".to_owned(), kind: "none", size_bytes: 0, limits }
    }

    fn open_channel(&self, _env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
        Err(Error::invalid("there is no device"))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }

    fn stats(&self) -> DiskStats {
        DiskStats::default()
    }

    fn latencies(&self, _group: OpGroup) -> Snapshot {
        Snapshot::default()
    }

    fn attribute(&self, _name: &str) -> Option<String> {
        None
    }

    fn set_attribute(&self, _name: &str, _value: &str) -> Result<()> {
        Err(Error::invalid("there is no device"))
    }
}

/// An array with one shard, with the context that serves it.
struct Bench {
    shard: Shard,
    conf: Conf,
    epoch: u64,
    stripes: usize,
    members: Vec<Vec<u8>>,
    /// Members that fail all I/O.
    broken: Vec<bool>,
    /// A sector of a member that cannot be read or written.
    bad: Option<(u32, u64)>,
    flight: Vec<(u32, Box<Bio>)>,
    out: TurnEffects,
    model: Vec<u8>,
    /// Array sectors with I/O in flight, by `user_data` of the bio.
    busy: Vec<(u64, std::ops::Range<u64>)>,
    next: u64,
    mismatches: u64,
    /// Reports of blocks that must be put on bad block lists.
    lost: Vec<Report>,
    /// Reports of blocks that must come off these lists.
    made_good: Vec<Report>,
    /// Writes that failed.
    unwritten: Vec<Report>,
    corrected: u64,
    fits_below: u64,
    failed: u64,
}

pub(crate) fn member(number: u32, in_sync_below: u64) -> Member {
    Member {
        device: Arc::new(NoDevice),
        number: MemberNumber(number),
        data_offset: OFFSET,
        in_sync_below: Arc::new(AtomicU64::new(in_sync_below)),
        bad_blocks: Arc::new(BadBlocks::new(0).unwrap()),
        write_error: false,
        log: None,
        patches: None,
    }
}

/// The configuration of an array of RAID-5 with members 0, 1 and so on, in chunks of 4 KiB.
pub(crate) fn conf(disks: u32) -> Conf {
    let layout = Layout::new(Level::Raid5, 2, disks, 8).unwrap();
    conf_of(layout, 64 << 10)
}

fn conf_of(layout: Layout, size_bytes: u64) -> Conf {
    let slot = |n| RoleSlot { member: Some(member(n, IN_SYNC)), replacement: None };
    Conf::new(ConfSpec {
        layout,
        limits: Limits::default(),
        size_bytes,
        role_slots: (0..layout.disks()).map(slot).collect(),
        cache_stripes: 0,
        bitmap: None,
        ppl: None,
    })
}

/// Call `with` with the input of a turn by `conf`.
#[cfg(not(loom))]
pub(crate) fn with_turn(conf: &Conf, with: impl FnOnce(&TurnInput<'_>)) {
    let parity = Parity::detect();
    with(&TurnInput { conf, epoch: 1, parity, fits_below: u64::MAX, port: PortId(0) });
}

impl Bench {
    fn new(level: Level, number: u32, disks: u32, stripes: usize) -> Self {
        Self::with_layout(Layout::new(level, number, disks, 16).unwrap(), stripes)
    }

    fn with_layout(layout: Layout, stripes: usize) -> Self {
        let disks = layout.disks();
        let size_bytes = layout.array_sectors(USED).unwrap() * SECTOR_SIZE;
        let conf = conf_of(layout, size_bytes);
        let mut bench = Bench {
            shard: Shard::new(),
            conf,
            epoch: 1,
            stripes,
            members: vec![vec![0; ((OFFSET + USED) * SECTOR_SIZE) as usize]; disks as usize],
            broken: vec![false; disks as usize],
            bad: None,
            flight: Vec::new(),
            out: TurnEffects::default(),
            model: vec![0; size_bytes as usize],
            busy: Vec::new(),
            next: 1,
            mismatches: 0,
            lost: Vec::new(),
            made_good: Vec::new(),
            unwritten: Vec::new(),
            corrected: 0,
            fits_below: u64::MAX,
            failed: 0,
        };
        bench.turn(|_, _, _| {});
        bench
    }

    /// Run a turn as a context does.
    fn turn(&mut self, bring: impl FnOnce(&mut Shard, &TurnInput<'_>, &mut TurnEffects)) {
        let turn = TurnInput {
            conf: &self.conf,
            epoch: self.epoch,
            parity: Parity::detect(),
            fits_below: self.fits_below,
            port: PortId(0),
        };
        let (shard, out) = (&mut self.shard, &mut self.out);
        shard.refresh(&turn, self.stripes, out);
        bring(shard, &turn, out);
        shard.handle_ready(&turn, self.stripes, out);
        let flight = &mut self.flight;
        let number = |role, new| turn.conf.member(role, new).expect("it is there").number;
        shard.make_runs(&turn, out, |role, new, bio| flight.push((number(role, new).0, bio)));
        self.mismatches += std::mem::take(&mut out.mismatches);
        self.collect();
    }

    fn publish(&mut self, change: impl FnOnce(&mut Conf)) {
        change(&mut self.conf);
        self.conf.role_slots_changed();
        self.epoch += 1;
    }

    fn collect(&mut self) {
        while let Some(bio) = self.out.done.pop() {
            let position = self.busy.iter().position(|(n, _)| *n == bio.user_data).expect("once");
            let (_, range) = self.busy.swap_remove(position);
            if !bio.status.is_ok() {
                self.failed += 1;
                continue;
            }
            if bio.op == Op::Read {
                let start = (range.start * SECTOR_SIZE) as usize;
                let mut read = vec![0; bio.bytes as usize];
                bio.copy_data_to(&mut read);
                assert!(read == self.model[start..start + read.len()], "wrong data at {range:?}");
            }
        }
        for report in std::mem::take(&mut self.out.reports) {
            match report.fault {
                Fault::NoRoom => unreachable!("the bench's members have room"),
                Fault::Corrected => self.corrected += 1,
                Fault::Log | Fault::Flush | Fault::Gone => panic!("no member does that"),
                Fault::MadeGood => self.made_good.push(report),
                Fault::Lost => self.lost.push(report),
                Fault::Write => {
                    self.publish(|conf| {
                        for slot in &mut conf.role_slots {
                            slot.member.take_if(|member| member.number == report.number);
                            slot.replacement.take_if(|member| member.number == report.number);
                        }
                    });
                    self.unwritten.push(report);
                }
            }
        }
    }

    /// Handle a report of a bad block as the manager does.
    fn list(&mut self, report: Report) {
        self.publish(|conf| {
            let members = conf.role_slots.iter_mut().filter_map(|slot| slot.member.as_mut());
            for member in members.filter(|member| member.number == report.number) {
                let blocks = Arc::make_mut(&mut member.bad_blocks);
                let start = OFFSET + report.sector;
                match report.fault {
                    Fault::Lost => blocks.add(start..start + 8).expect("there is room"),
                    _ => blocks.clear(start..start + 8).expect("there is room"),
                }
            }
        });
        self.turn(|_, _, _| {});
    }

    fn submit(&mut self, op: Op, sector: u64, sectors: u64) {
        let range = sector..sector + sectors;
        if self.busy.iter().any(|(_, b)| b.start < range.end && range.start < b.end) {
            return;
        }
        let number = self.next;
        self.next += 1;
        let mut buf = IoBuf::zeroed((sectors * SECTOR_SIZE) as usize);
        if op == Op::Write {
            let words = buf.chunks_exact_mut(8).enumerate();
            words.for_each(|(n, word)| {
                word.copy_from_slice(&(number << 20 | n as u64).to_le_bytes())
            });
            let start = (sector * SECTOR_SIZE) as usize;
            self.model[start..start + buf.len()].copy_from_slice(&buf);
        }
        let mut bio = match op {
            Op::Write => Bio::write(Sector(sector), buf),
            _ => Bio::read(Sector(sector), buf),
        };
        bio.flags.set(BioFlags::STABLE, number.is_multiple_of(2));
        bio.user_data = number;
        self.busy.push((number, range));
        self.turn(|shard, _, _| shard.accept(bio, false));
    }

    fn sync(&mut self, action: SyncAction) {
        self.publish(|conf| conf.action = Some(action));
        let mut bio = Bio::without_data(Op::Discard, Sector(0), USED * SECTOR_SIZE);
        bio.user_data = self.next;
        self.next += 1;
        self.busy.push((bio.user_data, 0..0));
        self.turn(|shard, _, _| shard.accept(bio, true));
        self.drain();
    }

    /// End one I/O of a member.
    fn end_one(&mut self, which: usize) {
        if self.flight.is_empty() {
            return self.turn(|_, _, _| {});
        }
        let (number, mut bio) = self.flight.swap_remove(which % self.flight.len());
        let bytes = &mut self.members[number as usize];
        let start = (bio.sector.0 * SECTOR_SIZE) as usize;
        let range = start..start + bio.bytes as usize;
        assert!(bio.sector.0 >= OFFSET && range.end <= bytes.len());
        let (first, end) = (bio.sector.0, bio.end_sector().0);
        let is_bad = self.bad.is_some_and(|(n, at)| n == number && (first..end).contains(&at));
        let fails = is_bad || self.broken[number as usize];
        bio.status = if fails { Status::IoError } else { Status::Ok };
        match (bio.op, bio.status) {
            (Op::Read, Status::Ok) => bio.fill_data_from(&bytes[range]),
            (Op::Write, Status::Ok) => bio.copy_data_to(&mut bytes[range]),
            _ => {}
        }
        self.turn(|shard, turn, out| shard.run_ended(turn, bio, out));
    }

    fn drain(&mut self) {
        let mut left = 100_000;
        // The shard must also get the last configuration: a rewrite that no bio waits for may wait
        // for that.
        let is_heard = |bench: &Self| bench.shard.epoch == bench.epoch;
        while !self.busy.is_empty() || !self.flight.is_empty() || !is_heard(self) {
            self.end_one(left * 7);
            left -= 1;
            assert!(
                left > 0,
                "stuck: {:?} of {:?}",
                self.busy,
                self.shard.items.waiting().collect::<Vec<_>>()
            );
        }
        assert_eq!((self.shard.items.len(), self.shard.active()), (0, 0));
    }

    fn read_all(&mut self) {
        let end = self.model.len() as u64 / SECTOR_SIZE;
        for sector in (0..end).step_by(16) {
            self.submit(Op::Read, sector, 16.min(end - sector));
        }
        self.drain();
        assert_eq!(self.failed, 0);
    }

    /// The number of rows whose P and Q do not fit the members' data, computed the slow way.
    fn rows_that_do_not_fit(&self) -> usize {
        let layout = &self.conf.layout;
        (0..USED / 8).filter(|n| !self.row_fits(layout, n * 8)).count()
    }

    fn row_fits(&self, layout: &Layout, sector: u64) -> bool {
        let row = layout.row_at(sector);
        let start = ((OFFSET + sector) * SECTOR_SIZE) as usize;
        (start..start + 4096).step_by(61).all(|at| {
            let byte = |role: Role| self.members[role.index()][at];
            let data = data_of(layout, &row);
            let p = data.iter().fold(0, |p, role| p ^ byte(role));
            let times = |role| gf::mul(byte(role), gf::power(row.power(role) as u8));
            let q = data.iter().fold(0, |q, role| q ^ times(role));
            p == byte(row.p) && row.q.is_none_or(|role| q == byte(role))
        })
    }
}

fn levels() -> impl Strategy<Value = (Level, u32, u32)> {
    prop_oneof![
        (0u32..6, 3u32..7).prop_map(|(number, disks)| (Level::Raid5, number, disks)),
        (2u32..7).prop_map(|disks| (Level::Raid4, 0, disks)),
        (prop_oneof![Just(0u32), Just(2), Just(8), Just(10), Just(18)], 4u32..8)
            .prop_map(|(number, disks)| (Level::Raid6, number, disks)),
    ]
}

/// Steps: (kind, place, length).
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    proptest::collection::vec((0u8..16, any::<u64>(), 1u64..100), 1..150)
}

impl Bench {
    fn step(&mut self, (what, number, length): (u8, u64, u64)) {
        let end = self.model.len() as u64 / SECTOR_SIZE;
        let sector = number % end;
        let length = length.min(end - sector);
        match what {
            0..=4 => self.submit(Op::Write, sector, length),
            5 => {
                let sector = sector - sector % 8;
                self.submit(Op::Write, sector, length.div_ceil(8).min((end - sector) / 8) * 8);
            }
            6 | 7 => self.submit(Op::Read, sector, length),
            _ => self.end_one(number as usize),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Data is right and parity fits, in whatever order I/O ends.
    #[test]
    fn writes_and_reads(
        (level, number, disks) in levels(),
        stripes in 1usize..12,
        steps in steps(),
    ) {
        let mut bench = Bench::new(level, number, disks, stripes);
        steps.into_iter().for_each(|step| bench.step(step));
        bench.drain();
        prop_assert_eq!(bench.rows_that_do_not_fit(), 0);
        bench.read_all();
        let counts = bench.shard.counts();
        prop_assert!(counts.woken <= counts.freed + bench.stripes as u64, "{:?}", counts);
    }

    /// As many members as parity makes up for fail at any time. Others take their places
    /// afterwards.
    #[test]
    fn members_fail_and_are_rebuilt(
        (level, number, disks) in levels(),
        stripes in 1usize..12,
        before in steps(),
        after in steps(),
        victims in proptest::collection::vec(any::<u32>(), 2),
    ) {
        let mut bench = Bench::new(level, number, disks, stripes);
        before.into_iter().for_each(|step| bench.step(step));
        let victims = &victims[..level.parity_disks() as usize];
        victims.iter().for_each(|victim| bench.broken[(victim % disks) as usize] = true);
        after.into_iter().for_each(|step| bench.step(step));
        bench.drain();
        bench.read_all();
        // The new members are full of random data.
        for victim in victims.iter().map(|victim| (victim % disks) as usize) {
            bench.members[victim].fill(0xa5);
            bench.broken[victim] = false;
            let new = member(victim as u32, 0);
            bench.publish(|conf| conf.role_slots[victim].member = Some(new));
        }
        bench.sync(SyncAction::Recover);
        for slot in &bench.conf.role_slots {
            slot.member.iter().for_each(|member| member.in_sync_below.store(IN_SYNC, Release));
        }
        bench.publish(|_| {});
        prop_assert_eq!(bench.rows_that_do_not_fit(), 0);
        bench.read_all();
        bench.sync(SyncAction::Check);
        prop_assert_eq!(bench.mismatches, 0);
    }
}

#[test]
fn checks_count_and_repairs_mend() {
    for (level, disks) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut bench = Bench::new(level, 2, disks, 4);
        bench.submit(Op::Write, 3, 100);
        bench.drain();
        for (sector, parity) in [(8, 0), (24, 0), (24, 1)] {
            let row = bench.conf.layout.row_at(sector);
            let role = parity_of(&row).iter().nth(parity).unwrap_or(row.p);
            bench.members[role.index()][((OFFSET + sector) * SECTOR_SIZE) as usize + 61] ^= 1;
            if level == Level::Raid5 && parity == 1 {
                bench.members[role.index()][((OFFSET + sector) * SECTOR_SIZE) as usize] ^= 2;
            }
        }
        bench.sync(SyncAction::Check);
        assert_eq!((bench.mismatches, bench.rows_that_do_not_fit() > 0), (16, true), "{level}");
        bench.sync(SyncAction::Repair);
        assert_eq!((bench.mismatches, bench.rows_that_do_not_fit()), (32, 0), "{level}");
        bench.sync(SyncAction::Check);
        assert_eq!(bench.mismatches, 32);
        bench.read_all();
    }
}

#[test]
fn a_replacement_gets_all_that_its_member_gets() {
    let mut bench = Bench::new(Level::Raid5, 2, 4, 8);
    bench.submit(Op::Write, 0, 200);
    bench.drain();
    bench.members.push(vec![0; bench.members[0].len()]);
    bench.broken.push(false);
    bench.publish(|conf| conf.role_slots[1].replacement = Some(member(4, 0)));
    bench.submit(Op::Write, 50, 77);
    bench.sync(SyncAction::Recover);
    bench.submit(Op::Write, 0, 33);
    bench.drain();
    let data = (OFFSET * SECTOR_SIZE) as usize;
    assert!(bench.members[4][data..] == bench.members[1][data..]);
    assert_eq!(bench.rows_that_do_not_fit(), 0);
}

/// The member is gone, and its replacement holds the only copy of its blocks: it must get parity
/// too.
#[test]
fn a_replacement_without_its_member_gets_parity_too() {
    for (level, disks) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
        let mut bench = Bench::new(level, 2, disks, 8);
        bench.submit(Op::Write, 0, 200);
        bench.drain();
        bench.members.push(vec![0; bench.members[0].len()]);
        bench.broken.push(false);
        bench.publish(|conf| conf.role_slots[1].replacement = Some(member(disks, 0)));
        bench.sync(SyncAction::Recover);
        bench.publish(|conf| conf.role_slots[1].member = None);
        for sector in (0..bench.model.len() as u64 / SECTOR_SIZE).step_by(24) {
            bench.submit(Op::Write, sector, 8);
            bench.drain();
        }
        bench.members[1] = bench.members[disks as usize].clone();
        assert_eq!(bench.rows_that_do_not_fit(), 0, "{level}");
    }
}

#[test]
fn resync_makes_parity_fit_and_writes_meanwhile_do_not_carry_it_on() {
    let mut bench = Bench::new(Level::Raid5, 2, 6, 8);
    bench.members[2][(OFFSET * SECTOR_SIZE) as usize..].fill(7);
    let start = (OFFSET * SECTOR_SIZE) as usize;
    bench.fits_below = 0;
    // The array holds now what its data blocks say.
    for sector in 0..bench.model.len() as u64 / SECTOR_SIZE {
        let address = bench.conf.layout.map_sector(sector);
        let from = start + (address.sector * SECTOR_SIZE) as usize;
        let to = (sector * SECTOR_SIZE) as usize;
        let bytes: Vec<u8> = bench.members[address.role.index()][from..from + 512].to_vec();
        bench.model[to..to + 512].copy_from_slice(&bytes);
    }
    bench.submit(Op::Write, 5, 3);
    bench.drain();
    assert!(bench.row_fits(&bench.conf.layout.clone(), 0), "it was reconstructed");
    bench.sync(SyncAction::Resync);
    assert_eq!(bench.rows_that_do_not_fit(), 0);
    bench.read_all();
}

#[test]
fn a_block_that_cannot_be_read_is_computed_and_rewritten() {
    let mut bench = Bench::new(Level::Raid5, 2, 4, 8);
    bench.submit(Op::Write, 0, 300);
    bench.drain();
    bench.sync(SyncAction::Check);
    bench.publish(|conf| conf.action = None);
    // A resize empties the cache.
    bench.stripes = 1;
    bench.publish(|_| {});
    bench.submit(Op::Read, 0, 1);
    bench.broken[0] = true;
    bench.end_one(0);
    bench.broken[0] = false;
    bench.drain();
    assert_eq!((bench.corrected, bench.lost.len(), bench.failed), (1, 0, 0));
}

/// Blocks that shared a bio with a failed block are not faulty: they are not corrected, and a write
/// of them, to a member or its replacement, does not count as failed.
#[test]
fn only_the_block_fails_that_is_bad() {
    let blocks = |bench: &Bench| bench.unwritten.iter().map(|r| r.sector).collect::<Vec<_>>();
    for number in [0, 4] {
        let mut bench = Bench::new(Level::Raid5, 2, 4, 8);
        bench.submit(Op::Write, 0, 300);
        bench.drain();
        bench.members.push(vec![0; bench.members[0].len()]);
        bench.broken.push(false);
        bench.publish(|conf| conf.role_slots[0].replacement = Some(member(4, 0)));
        bench.bad = Some((number, OFFSET + 11));
        match number {
            4 => bench.sync(SyncAction::Recover),
            _ => bench.submit(Op::Write, 0, 96),
        }
        bench.drain();
        assert_eq!(blocks(&bench), [8], "member {number}");
    }
    let mut bench = Bench::new(Level::Raid5, 2, 4, 8);
    bench.submit(Op::Write, 0, 300);
    bench.drain();
    bench.stripes = 1;
    bench.publish(|_| {});
    bench.turn(|_, _, _| {});
    bench.stripes = 8;
    bench.publish(|_| {});
    bench.bad = Some((1, OFFSET + 11));
    bench.publish(|conf| conf.action = Some(SyncAction::Check));
    let mut check = Bio::without_data(Op::Discard, Sector(0), 4 * BLOCK_BYTES as u64);
    check.user_data = bench.next;
    bench.busy.push((bench.next, 0..0));
    bench.next += 1;
    bench.turn(|shard, _, _| shard.accept(check, true));
    let together = bench.flight.iter().position(|(n, bio)| *n == 1 && bio.bytes > 4096);
    let first = bench.flight.len();
    bench.end_one(together.expect("its blocks are read in one bio"));
    let alone = &bench.flight[first - 1..];
    assert!(alone.len() > 1, "each block by itself");
    let lone = |bio: &Bio| bio.bytes == 4096 && bio.flags.contains(BioFlags::NOMERGE);
    assert!(alone.iter().all(|(number, bio)| *number == 1 && lone(bio)));
    bench.bad = None;
    bench.drain();
    assert_eq!((bench.corrected, bench.failed), (0, 0));
}

#[test]
fn with_too_much_lost_what_is_left_is_read_and_nothing_is_written() {
    let mut bench = Bench::new(Level::Raid5, 2, 4, 8);
    bench.submit(Op::Write, 0, 300);
    bench.drain();
    bench.publish(|conf| {
        conf.role_slots[0].member = None;
        conf.role_slots[1].member = None;
    });
    let at = |bench: &Bench, role| {
        (0..).find(|s| bench.conf.layout.map_sector(*s).role == Role(role)).expect("it holds data")
    };
    let (gone, there) = (at(&bench, 1), at(&bench, 2));
    bench.submit(Op::Read, there, 1);
    bench.drain();
    assert_eq!(bench.failed, 0);
    bench.submit(Op::Read, gone, 1);
    bench.drain();
    bench.submit(Op::Write, there, 1);
    bench.drain();
    assert_eq!(bench.failed, 2);
}

/// Members get the writer's own memory if a write covers a whole stripe and is declared stable, and
/// a copy of the data otherwise. Lent memory does not stay in the cache.
#[test]
fn stable_memory_of_a_whole_stripe_is_not_copied() {
    for (flags, sectors, lent) in
        [(BioFlags::STABLE, 24, 2), (BioFlags::empty(), 24, 0), (BioFlags::STABLE, 16, 0)]
    {
        let mut bench = Bench::new(Level::Raid5, 2, 3, 4);
        // With chunks of 16 sectors, the second blocks of two chunks are the data of one stripe.
        let (start, end) = (8 * 512, (8 + sectors) * 512);
        let mut bio = Bio::write(Sector(8), IoBuf::from_slice(&[7; 24 * 512][..sectors * 512]));
        (bio.flags, bio.user_data) = (flags, 1);
        let memory = bio.buf().expect("its own").as_ptr_range();
        bench.model[start..end].fill(7);
        bench.busy.push((1, 8..8 + sectors as u64));
        bench.turn(|shard, _, _| shard.accept(bio, false));
        while bench.flight.iter().any(|(_, bio)| bio.op == Op::Read) {
            bench.end_one(0);
        }
        let is_lent =
            |bio: &Bio| bio.bufs().iter().all(|buf| memory.contains(&buf.as_ptr().cast_const()));
        let found = bench.flight.iter().filter(|(_, bio)| is_lent(bio)).count();
        assert_eq!(found, lent, "{flags:?}, {sectors} sectors");
        bench.drain();
        let before = bench.shard.counts().reads;
        bench.submit(Op::Read, 8, 8);
        bench.drain();
        assert_eq!(bench.shard.counts().reads > before, lent > 0, "{flags:?}, {sectors} sectors");
    }
}

/// Two blocks of a RAID-5 row are lost, one of them on a member that is being rebuilt. A write of
/// the row waits until both are recorded as lost, and so takes them off the record again.
#[test]
fn what_is_lost_is_listed_before_it_is_rewritten() {
    let mut bench = Bench::new(Level::Raid5, 2, 3, 1);
    bench.publish(|conf| {
        let fresh = member(0, 0);
        (conf.role_slots[0].member, conf.action) = (Some(fresh), Some(SyncAction::Recover));
    });
    let mut sync = Bio::without_data(Op::Discard, Sector(0), BLOCK_BYTES as u64);
    sync.user_data = 1;
    bench.busy.push((1, 0..0));
    bench.next = 2;
    bench.broken[1] = true;
    bench.turn(|shard, _, _| shard.accept(sync, true));
    while !bench.flight.is_empty() {
        bench.end_one(0);
    }
    bench.broken[1] = false;
    let numbers = |reports: &[Report]| reports.iter().map(|r| r.number.0).collect::<Vec<_>>();
    assert_eq!(numbers(&bench.lost), [1, 0]);
    // A whole row, which could be written at once without that.
    bench.submit(Op::Write, 0, 8);
    bench.submit(Op::Write, 16, 8);
    assert_eq!((bench.flight.len(), bench.busy.len()), (0, 3), "it is not on record yet");
    let [first, second] = std::mem::take(&mut bench.lost).try_into().expect("two of them");
    bench.list(first);
    assert_eq!((bench.flight.len(), bench.busy.len()), (0, 3), "one is not on record yet");
    // The other block is reported again.
    assert_eq!(numbers(&std::mem::take(&mut bench.lost)), [0]);
    bench.list(second);
    bench.drain();
    assert_eq!(std::mem::take(&mut bench.failed), 3, "what is not off the record may be lost yet");
    let mut made_good = numbers(&bench.made_good);
    made_good.sort_unstable();
    assert_eq!(made_good, [0, 1]);
    std::mem::take(&mut bench.made_good).into_iter().for_each(|report| bench.list(report));
    bench.submit(Op::Write, 0, 8);
    bench.submit(Op::Write, 16, 8);
    bench.drain();
    assert_eq!(bench.failed, 0);
    assert!(bench.row_fits(&bench.conf.layout.clone(), 0));
}

/// A read that a removed member did not do must not be sent to the device that has its number and
/// role by then.
#[test]
fn a_read_is_not_tried_again_on_a_successor_that_lacks_the_block() {
    for status in [Status::IoError, Status::Cancelled] {
        let mut bench = Bench::new(Level::Raid5, 2, 3, 4);
        bench.submit(Op::Write, 0, 64);
        bench.drain();
        // A resize empties the cache.
        bench.stripes = 1;
        bench.publish(|_| {});
        bench.turn(|_, _, _| {});
        bench.stripes = 4;
        bench.publish(|_| {});
        // The neighbours are read for the comparison, two blocks at a time.
        bench.publish(|conf| conf.action = Some(SyncAction::Check));
        let mut check = Bio::without_data(Op::Discard, Sector(0), 2 * BLOCK_BYTES as u64);
        check.user_data = bench.next;
        bench.busy.push((bench.next, 0..0));
        bench.next += 1;
        bench.turn(|shard, _, _| shard.accept(check, true));
        let position =
            bench.flight.iter().position(|(number, bio)| *number == 0 && bio.bytes == 8192);
        let (_, mut late) = bench.flight.swap_remove(position.expect("both blocks at once"));
        bench.publish(|conf| {
            conf.role_slots[0].member = Some(member(0, 0));
            conf.action = None;
        });
        bench.members[0].fill(0);
        late.status = status;
        bench.turn(|shard, turn, out| shard.run_ended(turn, late, out));
        let to_successor = |(number, bio): &(u32, Box<Bio>)| *number == 0 && bio.op == Op::Read;
        assert!(!bench.flight.iter().any(to_successor), "{status:?}");
        bench.drain();
        // The check was cancelled.
        assert_eq!(std::mem::take(&mut bench.failed), 1);
        bench.read_all();
    }
}
