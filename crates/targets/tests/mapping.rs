//! Every sector of a volume has one place, for random stacks of tables; reads return what was
//! written, whatever way it went.

mod common;

use common::{Disk, User};
use drystone_core::clock::{ManualClock, SystemClock};
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, ContextSet, Device, IoBuf, Op, Sector, Status};
use drystone_targets::{
    Area, DelayClass, DelaySpec, Faults, FlakeySpec, Line, Table, TargetSpec, Volume,
    VolumeOptions, Writes,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

fn volume(name: &str, lines: Vec<Line>) -> Volume {
    let volume = Volume::new(name, VolumeOptions::default(), LockCounters::new(SystemClock::new()));
    volume.load(Table::new(lines).unwrap());
    volume.resume().unwrap();
    volume
}

/// One line of a random table, before it is known which devices it uses.
#[derive(Clone, Debug)]
enum Piece {
    Linear {
        sectors: u64,
        skip: u64,
    },
    Striped {
        chunk: u32,
        stripes: usize,
        rows: u64,
        skip: u64,
    },
    Zero {
        sectors: u64,
    },
    Error {
        sectors: u64,
    },
    /// Delays of reads, of writes and of flushes, which go to another device.
    Delay {
        sectors: u64,
        skip: u64,
        ms: [Option<u32>; 3],
    },
    /// Up all the time.
    Flakey {
        sectors: u64,
        skip: u64,
    },
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        3 => (1..60u64, 0..9u64).prop_map(|(sectors, skip)| Piece::Linear { sectors, skip }),
        4 => (1..12u32, 1..5usize, 1..6u64, 0..9u64).prop_map(|(chunk, stripes, rows, skip)| {
            Piece::Striped { chunk, stripes, rows, skip }
        }),
        1 => (1..20u64).prop_map(|sectors| Piece::Zero { sectors }),
        1 => (1..20u64).prop_map(|sectors| Piece::Error { sectors }),
        3 => (1..60u64, 0..9u64, any::<[Option<u32>; 3]>()).prop_map(|(sectors, skip, ms)| {
            Piece::Delay { sectors, skip, ms: ms.map(|ms| ms.map(|ms| ms % 4)) }
        }),
        2 => (1..60u64, 0..9u64).prop_map(|(sectors, skip)| Piece::Flakey { sectors, skip }),
    ];
    prop::collection::vec(piece, 1..5)
}

/// The contents of a sector of the flat model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Zero,
    Error,
}

fn flakey(area: Area, (up_seconds, down_seconds): (u32, u32), faults: Faults) -> TargetSpec {
    let (since_ns, seed) = (0, 0);
    TargetSpec::Flakey(FlakeySpec { area, up_seconds, down_seconds, faults, since_ns, seed })
}

/// Builds volumes of pieces.
#[derive(Default)]
struct Builder {
    disks: Vec<Arc<Disk>>,
    volumes: Vec<Volume>,
}

impl Builder {
    fn volume(&mut self, lines: Vec<Line>) -> Arc<dyn Device> {
        let volume = volume(&format!("v{}", self.volumes.len()), lines);
        self.volumes.push(volume.clone());
        Arc::new(volume)
    }

    /// The disk, by its number, and the sector of it where a sector of a device lies, by what each
    /// table on the way says.
    fn place(&self, device: &Arc<dyn Device>, sector: u64) -> Option<(usize, u64)> {
        let name = device.info().name;
        let number = |prefix| name.strip_prefix(prefix).map(|n: &str| n.parse::<usize>().unwrap());
        if let Some(disk) = number("d") {
            return Some((disk, sector));
        }
        let table = self.volumes[number("v").unwrap()].table().unwrap();
        let (member, sector) = table.place(sector)?;
        self.place(&table.members()[member], sector)
    }

    /// A device of `sectors` sectors: a disk, or at a depth a linear volume over one, split in two.
    fn leaf(&mut self, sectors: u64, depth: u32) -> Arc<dyn Device> {
        if depth == 0 || sectors < 2 {
            let disk = Disk::new(&format!("d{}", self.disks.len()), sectors);
            self.disks.push(disk.clone());
            return disk;
        }
        let first = sectors / 2;
        let lines = [(0, first), (first, sectors - first)].map(|(start, length)| {
            let device = self.leaf(length + 3, depth - 1);
            Line { start, length, target: TargetSpec::Linear(Area { device, sector: 3 }) }
        });
        self.volume(lines.to_vec())
    }

    fn table(&mut self, pieces: &[Piece], depth: u32) -> (Arc<dyn Device>, Vec<Kind>) {
        let (mut lines, mut kinds, mut start) = (Vec::new(), Vec::new(), 0);
        for piece in pieces {
            let (length, kind, target) = match piece {
                Piece::Linear { sectors, skip } => {
                    let device = self.leaf(sectors + skip, depth);
                    (*sectors, Kind::Data, TargetSpec::Linear(Area { device, sector: *skip }))
                }
                Piece::Striped { chunk, stripes, rows, skip } => {
                    let each = rows * u64::from(*chunk);
                    let stripes: Vec<_> = (0..*stripes)
                        .map(|_| Area { device: self.leaf(each + skip, depth), sector: *skip })
                        .collect();
                    let length = each * stripes.len() as u64;
                    (length, Kind::Data, TargetSpec::Striped { chunk_sectors: *chunk, stripes })
                }
                Piece::Zero { sectors } => (*sectors, Kind::Zero, TargetSpec::Zero),
                Piece::Error { sectors } => (*sectors, Kind::Error, TargetSpec::Error),
                Piece::Delay { sectors, skip, ms } => {
                    let area = Area { device: self.leaf(sectors + skip, depth), sector: *skip };
                    let class = |area: &Area, ms| DelayClass { area: area.clone(), delay_ms: ms };
                    let flushed = ms[2].map(|ms| (self.leaf(*sectors, depth), ms));
                    let target = TargetSpec::Delay(DelaySpec {
                        read: class(&area, ms[0].unwrap_or(0)),
                        write: ms[1].map(|ms| class(&area, ms)),
                        flush: flushed.map(|(device, ms)| class(&Area { device, sector: 0 }, ms)),
                    });
                    (*sectors, Kind::Data, target)
                }
                Piece::Flakey { sectors, skip } => {
                    let area = Area { device: self.leaf(sectors + skip, depth), sector: *skip };
                    let faults = Faults { writes: Writes::Drop, ..Faults::default() };
                    (*sectors, Kind::Data, flakey(area, (u32::MAX - 1, 1), faults))
                }
            };
            lines.push(Line { start, length, target });
            kinds.extend((0..length).map(|_| kind));
            start += length;
        }
        (self.volume(lines), kinds)
    }
}

#[derive(Clone, Debug)]
struct Step {
    op: Op,
    at: u64,
    sectors: u64,
    /// Where the memory of the bio is cut.
    cut: usize,
    flags: BioFlags,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        4 => Just(Op::Read),
        4 => Just(Op::Write),
        1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes),
        1 => Just(Op::Flush),
    ];
    let flags = prop_oneof![
        3 => Just(BioFlags::empty()),
        1 => Just(BioFlags::FUA),
        1 => Just(BioFlags::PREFLUSH),
        1 => Just(BioFlags::PREFLUSH | BioFlags::FUA),
    ];
    let step = (op, any::<u64>(), 1..50u64, any::<usize>(), flags).prop_map(
        |(op, at, sectors, cut, flags)| {
            let flags = if op == Op::Write { flags } else { BioFlags::empty() };
            Step { op, at, sectors, cut, flags }
        },
    );
    prop::collection::vec(step, 1..40)
}

/// A bio of the step over `range`, with `content` in two pieces of memory.
fn bio(step: &Step, range: &Range<u64>, content: &[u8]) -> Box<Bio> {
    let bytes = content.len();
    let mut bio = match step.op {
        Op::Flush => Bio::flush(),
        Op::Read | Op::Write => {
            let cut = step.cut % (bytes / 512) * 512;
            let piece = |range: Range<usize>| {
                let mut buf = IoBuf::zeroed(range.len());
                buf.copy_from_slice(&content[range.clone()]);
                (buf, 0..range.len())
            };
            let pieces = [0..cut, cut..bytes].into_iter().filter(|range| !range.is_empty());
            Bio::vectored(step.op, Sector(range.start), pieces.map(piece))
        }
        op => Bio::without_data(op, Sector(range.start), bytes as u64),
    };
    (bio.flags, bio.user_data) = (step.flags, 7);
    bio
}

fn content(bio: &Bio) -> Vec<u8> {
    bio.bufs().iter().flat_map(|buf| buf.iter().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]
    #[test]
    fn as_a_flat_device(pieces in pieces(), depth in 0..7u32, steps in steps()) {
        let mut builder = Builder::default();
        let (device, kinds) = builder.table(&pieces, depth.min(3));
        // Further volumes on top, more than a bio's trail holds.
        let mut device = device;
        for _ in 3..depth.max(3) + 3 {
            let target = TargetSpec::Linear(Area { device, sector: 0 });
            let lines = vec![Line { start: 0, length: kinds.len() as u64, target }];
            device = builder.volume(lines);
        }
        let clock = ManualClock::new(1_000_000_000);
        let set = ContextSet::new(clock.clone());
        let mut user = User::new(&set, &device);
        let mut flat = vec![0u8; kinds.len() * 512];
        for (number, step) in steps.iter().enumerate() {
            let start = step.at % kinds.len() as u64;
            let range = start..(start + step.sectors).min(kinds.len() as u64);
            let bytes = range.start as usize * 512..range.end as usize * 512;
            let mut data: Vec<u8> =
                (0..bytes.len()).map(|n| (n / 512 + number * 31 + 1) as u8).collect();
            let done = user.run_by(&clock, bio(step, &range, &data));
            let sectors = &kinds[range.start as usize..range.end as usize];
            let fails = step.op != Op::Flush && sectors.contains(&Kind::Error);
            prop_assert_eq!(done.status, if fails { Status::IoError } else { Status::Ok });
            prop_assert_eq!(done.user_data, 7);
            prop_assert!(step.op == Op::Flush || done.sector.0 == range.start);
            prop_assert!(step.op == Op::Flush || done.bytes == bytes.len() as u64);
            if step.op.is_write() {
                if step.op != Op::Write {
                    data.fill(0);
                }
                // Sectors beside those that fail are written all the same.
                for (n, kind) in sectors.iter().enumerate().filter(|(_, k)| **k == Kind::Data) {
                    prop_assert_eq!(*kind, Kind::Data);
                    let at = bytes.start + n * 512;
                    flat[at..at + 512].copy_from_slice(&data[n * 512..][..512]);
                }
            }
            if step.op == Op::Read && !fails {
                prop_assert_eq!(&content(&done)[..], &flat[bytes]);
            }
        }
        // The disks hold what the model holds, no more and no less.
        let below: usize = builder
            .disks
            .iter()
            .map(|disk| disk.state.lock().unwrap().data.chunks(512).filter(|s| s[0] != 0).count())
            .sum();
        prop_assert_eq!(below, flat.chunks(512).filter(|sector| sector[0] != 0).count());
        // And each sector is where the tables say, alone.
        let mut taken = BTreeSet::new();
        for (sector, kind) in (0..).zip(&kinds) {
            let place = builder.place(&device, sector);
            prop_assert_eq!(place.is_some(), *kind == Kind::Data, "sector {}", sector);
            let Some((disk, there)) = place else { continue };
            prop_assert!(taken.insert((disk, there)), "sector {} lies on another", sector);
            let data = &builder.disks[disk].state.lock().unwrap().data;
            let range = |sector: u64| sector as usize * 512..(sector as usize + 1) * 512;
            prop_assert_eq!(data.get(range(there)), flat.get(range(sector)), "sector {}", sector);
        }
        prop_assert_eq!(device.info().size_bytes, flat.len() as u64);
        prop_assert_eq!(builder.place(&device, kinds.len() as u64), None);
        // The allocation query says the same.
        let extents = device.extents(0, flat.len() as u64, 1000).unwrap();
        let mut at = 0;
        for extent in extents {
            prop_assert_eq!(extent.offset, at);
            at += extent.length;
            for sector in extent.offset / 512..at / 512 {
                let sector = sector as usize;
                let zero = flat[sector * 512] == 0 && kinds[sector] != Kind::Error;
                prop_assert_eq!(extent.zero, zero, "sector {}", sector);
            }
        }
        prop_assert_eq!(at, flat.len() as u64);
        // So does one of a part, for a few extents: as far as it goes, and it goes on.
        for step in &steps {
            let (start, max) = (step.at % kinds.len() as u64, 1 + step.cut % 5);
            let sectors = step.sectors.min(kinds.len() as u64 - start);
            let found = device.extents(start * 512, sectors * 512, max).unwrap();
            prop_assert!((1..=max).contains(&found.len()), "{} of {}", found.len(), max);
            let mut at = start * 512;
            for extent in found {
                prop_assert!(extent.offset == at && extent.length > 0, "{:?} at {}", extent, at);
                at += extent.length;
                for sector in extent.offset / 512..at / 512 {
                    let zero = flat[sector as usize * 512] == 0
                        && kinds[sector as usize] != Kind::Error;
                    prop_assert_eq!(extent.zero, zero, "sector {}", sector);
                }
            }
            prop_assert!(at <= (start + sectors) * 512, "{} is too far", at);
        }
        // Nothing is in flight any more, and every bio was counted once.
        let stats = device.stats();
        let (started, completed) = stats.groups.iter().fold((0, 0), |(started, completed), g| {
            (started + g.started, completed + g.completed)
        });
        prop_assert_eq!((started, completed), (steps.len() as u64, steps.len() as u64));
    }
}
