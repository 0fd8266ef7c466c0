//! Upper bound of full-stripe writes: only the copies and the arithmetic that they consist of.
//!
//! Each stripe of 4 KiB of each member takes these steps:
//! * copy new data from the writer's buffer into a block of the stripe cache, because a writer may
//!   change its buffer while parity is computed;
//! * compute parity from the cache's blocks;
//! * copy each block to its member, as a RAM disk does for a write.
//!
//! The steps run stripe by stripe, so that copied data is still in the core's own caches. Buffers,
//! cache and members are as large as those of the array beside it. There is no look-up of blocks
//! and no accounting.

use std::time::{Duration, Instant};

use drystone_core::IoBuf;
use drystone_parity::{Parity, Source};

use crate::load::{Sample, process_cpu_ns};

const PAGE: usize = 4096;
const CHUNK: usize = 64 << 10;
const MEMBER_BYTES: usize = 64 << 20;
/// Most blocks of data of a stripe here.
const DATA_MAX: usize = 8;

/// Memory for writes of whole rows.
pub struct Ceiling {
    data: usize,
    parity: usize,
    /// The writers' buffers, of a row each.
    rows: Vec<IoBuf>,
    /// Blocks of the cache, of a stripe each.
    cache: Vec<Vec<IoBuf>>,
    members: Vec<IoBuf>,
    arithmetic: Parity,
    next_row: usize,
    next_stripe: usize,
    next_place: usize,
}

impl Ceiling {
    /// Makes memory for arrays of `data` and `parity` members, with `stripes` stripes in the cache
    /// and `depth` writes in flight.
    pub fn new(data: usize, parity: usize, stripes: usize, depth: usize) -> Self {
        let filled = |bytes: usize| {
            let mut buf = IoBuf::zeroed(bytes);
            buf.fill(0xA5);
            buf
        };
        let stripe = |_| (0..data + parity).map(|_| filled(PAGE)).collect();
        Ceiling {
            data,
            parity,
            rows: (0..depth).map(|_| filled(data * CHUNK)).collect(),
            cache: (0..stripes).map(stripe).collect(),
            members: (0..data + parity).map(|_| filled(MEMBER_BYTES)).collect(),
            arithmetic: Parity::detect(),
            next_row: 0,
            next_stripe: 0,
            next_place: 0,
        }
    }

    /// Write rows for some time.
    pub fn run(&mut self, time: Duration) -> Sample {
        self.rows(time / 4);
        let (wall, cpu) = (Instant::now(), process_cpu_ns());
        let ios = self.rows(time);
        let (wall_ns, cpu_ns) = (wall.elapsed().as_nanos() as u64, process_cpu_ns() - cpu);
        Sample { ios, wall_ns, cpu_ns, ..Sample::default() }
    }

    fn rows(&mut self, time: Duration) -> u64 {
        let (end, mut ios) = (Instant::now() + time, 0);
        while Instant::now() < end {
            (0..8).for_each(|_| self.row());
            ios += 8;
        }
        ios
    }

    fn row(&mut self) {
        for at in (0..CHUNK).step_by(PAGE) {
            self.stripe(at);
            self.next_stripe = (self.next_stripe + 1) % self.cache.len();
        }
        self.next_row = (self.next_row + 1) % self.rows.len();
        self.next_place = (self.next_place + CHUNK) % MEMBER_BYTES;
    }

    fn stripe(&mut self, at: usize) {
        let row = &self.rows[self.next_row];
        let blocks = &mut self.cache[self.next_stripe];
        let (data, parity) = blocks.split_at_mut(self.data);
        for (number, block) in data.iter_mut().enumerate() {
            let from = number * CHUNK + at;
            block.copy_from_slice(&row[from..from + PAGE]);
        }
        match parity {
            [p] => {
                let mut sources: [&[u8]; DATA_MAX] = [&[]; DATA_MAX];
                sources.iter_mut().zip(&*data).for_each(|(source, block)| *source = block);
                self.arithmetic.xor_of(p, &sources[..self.data]);
            }
            [p, q] => {
                let mut sources: [Source<'_>; DATA_MAX] = [(0, &[]); DATA_MAX];
                for (source, (power, block)) in
                    sources.iter_mut().zip(data.iter().enumerate().rev())
                {
                    *source = (power as u8, block);
                }
                self.arithmetic.pq_of(p, q, &sources[..self.data]);
            }
            _ => unreachable!("one parity or two"),
        }
        debug_assert_eq!(blocks.len(), self.data + self.parity);
        let place = self.next_place + at;
        for (member, block) in self.members.iter_mut().zip(blocks.iter()) {
            member[place..place + PAGE].copy_from_slice(block);
        }
    }
}
