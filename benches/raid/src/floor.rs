//! Floor of full-stripe writes: only the parity and the copies that they cannot do without.
//!
//! A row takes these steps:
//! * copy new data once, because its writer may change it while parity is computed; not if the
//!   writer declares its memory stable;
//! * compute parity, block by block, so that copied data is still in the core's own caches;
//! * copy each chunk to its member, with the very code of a RAM disk.
//!
//! The writers' buffers and the members are as large as those of the array beside it. There is no
//! look-up of blocks, no queue and no accounting.

use std::time::{Duration, Instant};

use drystone_core::{Bio, IoBuf, SECTOR_SIZE, Sector};
use drystone_drivers::ram::RamStore;
use drystone_parity::{Parity, Source};

use crate::load::{Sample, process_cpu_ns};

const PAGE: usize = 4096;
/// Rows between two readings of the clock.
const ROWS: u64 = 32;
/// Most chunks of data of a row here.
const DATA_MAX: usize = 8;

/// The rows to be written.
#[derive(Clone, Copy)]
pub struct Rows {
    pub data: usize,
    pub parity: usize,
    pub chunk_bytes: usize,
    pub member_bytes: u64,
    /// Rows whose data lies in memory: those that an array beside it has in flight.
    pub depth: usize,
    /// The memory of the data does not change.
    pub is_stable: bool,
}

/// Memory for writes of whole rows.
pub struct Floor {
    of: Rows,
    /// The writers' buffers: of each row, a chunk for each member.
    rows: Vec<Vec<Option<IoBuf>>>,
    /// A copy of a row, with its parity.
    copy: Vec<Option<IoBuf>>,
    members: Vec<RamStore>,
    bio: Box<Bio>,
    arithmetic: Parity,
    next_row: usize,
    next_place: u64,
}

fn filled(bytes: usize) -> Option<IoBuf> {
    let mut buf = IoBuf::zeroed(bytes);
    buf.fill(0xA5);
    Some(buf)
}

fn block(buf: &Option<IoBuf>, at: usize) -> &[u8] {
    &buf.as_deref().expect("it is here")[at..at + PAGE]
}

fn block_mut(buf: &mut Option<IoBuf>, at: usize) -> &mut [u8] {
    &mut buf.as_deref_mut().expect("it is here")[at..at + PAGE]
}

impl Floor {
    pub fn new(of: Rows) -> Self {
        let disks = of.data + of.parity;
        let row = |_| (0..of.data).map(|_| filled(of.chunk_bytes)).collect();
        let member = |_| RamStore::new(of.member_bytes).expect("memory for a member");
        let mut floor = Floor {
            of,
            rows: (0..of.depth).map(row).collect(),
            copy: (0..disks).map(|_| filled(of.chunk_bytes)).collect(),
            members: (0..disks).map(member).collect(),
            bio: Bio::write(Sector(0), IoBuf::zeroed(0)),
            arithmetic: Parity::detect(),
            next_row: 0,
            next_place: 0,
        };
        // All memory of the members is there before anything is measured.
        (0..of.member_bytes / of.chunk_bytes as u64).for_each(|_| floor.row());
        floor
    }

    /// Write rows for some time.
    pub fn run(&mut self, time: Duration) -> Sample {
        self.write(time / 4);
        let (wall, cpu) = (Instant::now(), process_cpu_ns());
        let ios = self.write(time);
        let (wall_ns, cpu_ns) = (wall.elapsed().as_nanos() as u64, process_cpu_ns() - cpu);
        Sample { ios, wall_ns, cpu_ns, ..Sample::default() }
    }

    fn write(&mut self, time: Duration) -> u64 {
        let (end, mut ios) = (Instant::now() + time, 0);
        while Instant::now() < end {
            (0..ROWS).for_each(|_| self.row());
            ios += ROWS;
        }
        ios
    }

    fn row(&mut self) {
        for at in (0..self.of.chunk_bytes).step_by(PAGE) {
            if !self.of.is_stable {
                for (to, from) in self.copy.iter_mut().zip(&self.rows[self.next_row]) {
                    block_mut(to, at).copy_from_slice(block(from, at));
                }
            }
            self.parity(at);
        }
        for number in 0..self.members.len() {
            self.write_chunk(number);
        }
        self.next_row = (self.next_row + 1) % self.of.depth;
        self.next_place = (self.next_place + self.of.chunk_bytes as u64) % self.of.member_bytes;
    }

    fn parity(&mut self, at: usize) {
        let (data, parity) = self.copy.split_at_mut(self.of.data);
        let data = if self.of.is_stable { &self.rows[self.next_row] } else { &*data };
        let powers = (0..self.of.data as u8).rev();
        match parity {
            [p] => {
                let mut sources: [&[u8]; DATA_MAX] = [&[]; DATA_MAX];
                sources.iter_mut().zip(data).for_each(|(source, buf)| *source = block(buf, at));
                self.arithmetic.xor_of(block_mut(p, at), &sources[..self.of.data]);
            }
            [p, q] => {
                let mut sources: [Source<'_>; DATA_MAX] = [(0, &[]); DATA_MAX];
                for (source, power) in sources.iter_mut().zip(powers) {
                    *source = (power, block(&data[usize::from(power)], at));
                }
                let (p, q) = (block_mut(p, at), block_mut(q, at));
                self.arithmetic.pq_of(p, q, &sources[..self.of.data]);
            }
            _ => unreachable!("one parity or two"),
        }
    }

    fn write_chunk(&mut self, number: usize) {
        let is_writers = self.of.is_stable && number < self.of.data;
        let row = if is_writers { &mut self.rows[self.next_row] } else { &mut self.copy };
        self.bio.set_buf(row[number].take().expect("it is here"), None);
        self.bio.sector = Sector(self.next_place / SECTOR_SIZE);
        assert!(self.members[number].do_bio(&mut self.bio).is_some_and(|status| status.is_ok()));
        row[number] = self.bio.take_buf();
    }
}
