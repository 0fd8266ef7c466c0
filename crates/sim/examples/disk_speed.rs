//! The cost of the simulated disk and the oracle: `cargo run --release -p drystone-sim --example
//! disk_speed [RUNS]`. Each run has a new disk of 4 MiB and 2000 I/Os, mostly of 4 KiB, 16 at once.

use drystone_sim::disk::{Disk, DiskOp, DiskOptions, OpId};
use drystone_sim::oracle::{Ended, FlushId, Oracle, ReadId, WriteId, fill};
use fastrand::Rng;
use std::collections::VecDeque;
use std::time::Instant;

const SIZE: u64 = 4 << 20;
const OPERATIONS: u64 = 2000;
const AT_ONCE: usize = 16;

/// An operation as the oracle knows it, if there is an oracle.
enum Asked {
    Read(ReadId),
    Write(WriteId),
    Flush(FlushId),
    Nothing,
}

struct Run {
    disk: Option<Disk>,
    oracle: Option<Oracle>,
    /// The bytes that reads give where there is no disk.
    contents: Vec<u8>,
    stamp: u64,
    in_flight: VecDeque<(Option<OpId>, Asked, u64, u64)>,
}

impl Run {
    fn begin(&mut self, rng: &mut Rng) {
        let length = if rng.u32(0..16) == 0 { 65536 } else { 4096 };
        let offset = rng.u64(0..=(SIZE - length) / 4096) * 4096;
        let range = offset / 512..(offset + length) / 512;
        let oracle = self.oracle.as_mut();
        self.stamp += 1;
        let (op, asked) = match rng.u32(0..64) {
            0 => {
                let asked = oracle.map_or(Asked::Nothing, |o| Asked::Flush(o.flush_begins()));
                (DiskOp::Flush, asked)
            }
            1..=31 => {
                let asked = oracle.map_or(Asked::Nothing, |o| Asked::Read(o.read_begins(range)));
                (DiskOp::Read { offset, length }, asked)
            }
            _ => {
                let first = range.start;
                let write = oracle.map(|o| o.write_begins(range, false));
                let mut data = self.disk.as_mut().map_or(Vec::new(), Disk::buffer);
                data.resize(length as usize, 0);
                fill(&mut data, 1, first, write.map_or(self.stamp, WriteId::stamp));
                if self.disk.is_none() {
                    self.contents[offset as usize..][..length as usize].copy_from_slice(&data);
                }
                (
                    DiskOp::Write { offset, data, fua: false },
                    write.map_or(Asked::Nothing, Asked::Write),
                )
            }
        };
        let id = self.disk.as_mut().map(|disk| disk.begin(0, op).0);
        self.in_flight.push_back((id, asked, offset, length));
    }

    fn finish(&mut self) {
        let Some((id, asked, offset, length)) = self.in_flight.pop_front() else { return };
        let data = match (id, &mut self.disk) {
            (Some(id), Some(disk)) => disk.finish(id).data,
            _ => &self.contents[offset as usize..][..length as usize],
        };
        let Some(oracle) = &mut self.oracle else { return };
        match asked {
            Asked::Read(id) => {
                oracle.read_ends_ok(id, data).unwrap_or_else(|wrong| panic!("{wrong}"))
            }
            Asked::Write(id) => oracle.write_ends(id, Ended::Ok),
            Asked::Flush(id) => oracle.flush_ends(id, true),
            Asked::Nothing => {}
        }
    }

    fn all(&mut self, rng: &mut Rng) {
        for _ in 0..OPERATIONS {
            self.begin(rng);
            if self.in_flight.len() > AT_ONCE {
                self.finish();
            }
        }
        while !self.in_flight.is_empty() {
            self.finish();
        }
    }
}

fn measure(what: &str, runs: u64, disk: bool, oracle: bool) {
    let start = Instant::now();
    for seed in 0..runs {
        let mut run = Run {
            disk: disk.then(|| Disk::new(DiskOptions::new(SIZE), seed)),
            oracle: oracle.then(|| Oracle::new(1, SIZE / 512)),
            contents: if disk { Vec::new() } else { vec![0; SIZE as usize] },
            stamp: 0,
            in_flight: VecDeque::new(),
        };
        run.all(&mut Rng::with_seed(seed));
    }
    let ns = start.elapsed().as_nanos() as u64;
    println!("{what:28} {:6} ns an I/O, {:4} ms", ns / (runs * OPERATIONS), ns / 1_000_000);
}

fn main() {
    let runs = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1000);
    measure("stamps and one copy", runs, false, false);
    measure("with a disk", runs, true, false);
    measure("with a disk and an oracle", runs, true, true);
}
