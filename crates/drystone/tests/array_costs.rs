//! Costs of an I/O of an array in the steady state, as counts: allocations, locks, and I/O of the
//! members, which complete in the call.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

#[path = "../src/alloc.rs"]
mod alloc;

use std::path::Path;
use std::sync::Arc;

use drystone_core::clock::ManualClock;
use drystone_core::op::OpGroup;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, ChannelId, Context, Device, IoBuf, SECTOR_SIZE, Sector};
use drystone_stack::live::{LiveStack, OpenEnv};
use drystone_stack::{Source, check};

/// Sectors of a chunk.
const CHUNK: u64 = 128;
/// Rows of which each I/O has one.
const ROWS: u64 = 100;

struct Case {
    level: u32,
    disks: u64,
    policy: &'static str,
    cache_stripes: u32,
}

/// So few stripes that no row is found in the cache again.
const FEW: u32 = 17;
/// More than a row has.
const MANY: u32 = 1024;

impl Case {
    fn new(level: u32, disks: u64, policy: &'static str, cache_stripes: u32) -> Self {
        Case { level, disks, policy, cache_stripes }
    }

    fn data_disks(&self) -> u64 {
        self.disks - if self.level == 6 { 2 } else { 1 }
    }

    fn stack(&self) -> String {
        let disk = |n: u64| format!("[device.d{n}]\ntype = \"ram\"\nsize = \"16MiB\"\n");
        let disks: String = (0..self.disks).map(disk).collect();
        let members: Vec<_> = (0..self.disks).map(|n| format!("\"d{n}\"")).collect();
        format!(
            "{disks}[device.array]\ntype = \"raid{}\"\nmembers = [{}]\nchunk = \"64KiB\"\n\
             consistency_policy = \"{}\"\nstripe_cache_size = {}\n",
            self.level,
            members.join(", "),
            self.policy,
            self.cache_stripes
        )
    }
}

/// The counts so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    allocations: u64,
    locks: u64,
    reads: u64,
    writes: u64,
}

/// An array on RAM disks, on a clock that stands still: nothing happens of itself.
struct Bench {
    stack: LiveStack,
    cx: Context,
    index: ChannelId,
}

impl Bench {
    fn new(case: &Case) -> Self {
        let source = Source { name: "s.toml".to_owned(), text: case.stack() };
        let spec = check("s", source, Path::new(".")).unwrap_or_else(|report| panic!("{report}"));
        let at = OpenEnv::new(1, ManualClock::new(1_000));
        let stack = LiveStack::open(&spec, &at).unwrap_or_else(|report| panic!("{report}"));
        let mut cx = at.contexts.open(Engine::Plain).unwrap();
        let index = cx.open(&device(&stack, "array")).unwrap();
        Bench { stack, cx, index }
    }

    fn counts(&self) -> Counts {
        let (mut reads, mut writes) = (0, 0);
        for live in self.stack.devices().iter().filter(|live| live.name != "array") {
            let stats = live.device.stats();
            reads += stats.group(OpGroup::Read).completed;
            writes += stats.group(OpGroup::Write).completed;
        }
        let locks = self.cx.locks().total().acquisitions;
        Counts { allocations: alloc::count(), locks, reads, writes }
    }

    /// Submit `bios` together and wait for all of them.
    fn run(&mut self, bios: &mut BioList) {
        let mut left = bios.len();
        self.cx.submit(self.index, bios);
        while left > 0 {
            let ended = self.cx.reap(bios);
            left -= ended;
            if ended == 0 {
                self.cx.wait(None);
            }
        }
        assert!(bios.iter().all(|bio| bio.status.is_ok()));
    }

    /// One I/O of `bio`'s in each row.
    fn each_row(&mut self, bios: &mut BioList, case: &Case) {
        for row in 0..ROWS {
            let mut bio = bios.pop().unwrap();
            bio.sector = Sector(row * CHUNK * case.data_disks());
            bios.push(bio);
            self.run(bios);
        }
    }

    /// The costs of an I/O in each row, once everything has been used a few times.
    fn costs(&mut self, bio: Box<Bio>, case: &Case) -> Counts {
        let mut bios = BioList::new();
        bios.push(bio);
        (0..3).for_each(|_| self.each_row(&mut bios, case));
        let before = self.counts();
        self.each_row(&mut bios, case);
        let after = self.counts();
        // Counting takes memory itself: what it takes is the same each time.
        let own = self.counts().allocations - after.allocations;
        Counts {
            allocations: after.allocations - before.allocations - own,
            locks: after.locks - before.locks,
            reads: after.reads - before.reads,
            writes: after.writes - before.writes,
        }
    }
}

fn device(stack: &LiveStack, name: &str) -> Arc<dyn Device> {
    let devices = stack.devices();
    devices.iter().find(|live| live.name == name).unwrap().device.clone()
}

fn of_each(reads: u64, writes: u64, locks: u64) -> Counts {
    Counts { allocations: 0, locks: locks * ROWS, reads: reads * ROWS, writes: writes * ROWS }
}

fn write(bytes: u64) -> Box<Bio> {
    Bio::write(Sector(0), IoBuf::from_slice(&vec![0x5A; bytes as usize]))
}

/// As Linux does it: by what needs fewer reads. A shard's turn is one lock: to begin, for the
/// blocks that were read, and for those that were written; a log has one to begin, one for its
/// write, and one for the stripe that is done, and the shard one more to go on. RAM has no volatile
/// cache, so no flush comes before a log write.
#[test]
fn a_block_is_written_without_allocations() {
    let cases = [
        (Case::new(5, 3, "resync", FEW), of_each(1, 2, 3)),
        (Case::new(5, 4, "resync", FEW), of_each(2, 2, 3)),
        (Case::new(5, 4, "bitmap", FEW), of_each(2, 2, 3)),
        (Case::new(5, 4, "ppl", FEW), of_each(2, 3, 7)),
        (Case::new(5, 6, "resync", FEW), of_each(2, 2, 3)),
        (Case::new(5, 6, "ppl", FEW), of_each(2, 3, 7)),
        (Case::new(6, 6, "resync", FEW), of_each(3, 3, 3)),
        (Case::new(6, 8, "bitmap", FEW), of_each(3, 3, 3)),
    ];
    for (case, expected) in cases {
        let found = Bench::new(&case).costs(write(4096), &case);
        let Case { level, disks, policy, .. } = case;
        assert_eq!(found, expected, "RAID-{level} of {disks}, {policy}");
    }
}

/// No block is read, and each member gets one write.
#[test]
fn a_full_stripe_is_written_without_allocations() {
    for (level, disks, policy, logs, locks) in
        [(5, 4, "resync", 0, 2), (5, 4, "ppl", 1, 6), (6, 6, "resync", 0, 2)]
    {
        let case = Case::new(level, disks, policy, MANY);
        let row = CHUNK * case.data_disks() * SECTOR_SIZE;
        let found = Bench::new(&case).costs(write(row), &case);
        let expected = of_each(0, disks + logs, locks);
        assert_eq!(found, expected, "RAID-{level} of {disks}, {policy}");
    }
}

#[test]
fn a_read_of_a_whole_array_costs_its_member_one_read_and_nothing_else() {
    for (level, disks) in [(5, 4), (6, 6)] {
        let case = Case::new(level, disks, "resync", FEW);
        let mut bench = Bench::new(&case);
        bench.costs(write(4096), &case);
        let read = || Bio::read(Sector(0), IoBuf::zeroed(4096));
        assert_eq!(bench.costs(read(), &case), of_each(1, 0, 0), "RAID-{level} of {disks}");
        // Many at once, each of another chunk.
        let mut bios = BioList::new();
        for n in 0..32 {
            let mut bio = read();
            bio.sector = Sector(n * (CHUNK + 8));
            bios.push(bio);
        }
        bench.run(&mut bios);
        let before = bench.counts();
        (0..10).for_each(|_| bench.run(&mut bios));
        let after = bench.counts();
        assert_eq!((after.locks, after.writes), (before.locks, before.writes));
        assert_eq!(after.reads, before.reads + 320);
        let own = bench.counts().allocations - after.allocations;
        assert_eq!(after.allocations, before.allocations + own);
    }
}
