//! Instructions that mq-deadline needs for an I/O: batches of random reads of 512 B are inserted,
//! and as many dispatched again. To be counted, not timed:
//!
//! ```sh
//! cargo build --release -p drystone-queue --example deadline
//! valgrind --tool=callgrind target/release/examples/deadline 32 0 1000 run
//! ```
//!
//! Arguments: bios of a batch, units kept beside them all the time, batches, and `run` or `base`.
//! `base` makes units of the same bios first in, first out: the difference is what the scheduler
//! costs. What the start costs goes away in the difference of two numbers of batches.

use drystone_core::{Bio, BioList, IoBuf, Limits, PortId, Sector};
use drystone_queue::scheduler::deadline::{Deadline, Insertion, Position, Tunables};
use drystone_queue::unit::Unit;
use std::hint::black_box;

/// Reads begin at any of these places, 4 KiB apart, so that none merge.
const PLACES: u64 = 1 << 21;

struct Random(u64);

impl Random {
    #[inline]
    fn sector(&mut self) -> Sector {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Sector(self.0 % PLACES * 8)
    }
}

/// The object of the measurement: mq-deadline, or first in, first out without any scheduler.
struct Bench {
    deadline: Option<Deadline>,
    position: Position,
    waiting: BioList,
    limits: Limits,
    tunables: Tunables,
}

impl Bench {
    #[inline(always)]
    fn insert(&mut self, bio: Box<Bio>) {
        let Some(deadline) = &mut self.deadline else { return self.waiting.push(bio) };
        let (limits, tunables) = (&self.limits, &self.tunables);
        let how = Insertion { limits, nomerges: black_box(0), tunables };
        deadline.insert(PortId(0), bio, &how);
    }

    #[inline(always)]
    fn dispatch(&mut self, now: u64, unit: &mut Unit) {
        let Some(deadline) = &mut self.deadline else {
            return unit.set(self.waiting.pop().expect("a bio"));
        };
        let in_flight = |_| black_box(false);
        let next =
            deadline.dispatch_into(&mut self.position, now, &self.tunables, in_flight, |_| unit);
        next.expect("a unit");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number =
        |at: usize, default| args.get(at).map_or(default, |s| s.parse().expect("a number"));
    let (batch, kept, batches) = (number(1, 32), number(2, 0), number(3, 1000));
    let mut bench = Bench {
        deadline: args.get(4).is_none_or(|s| s != "base").then(Deadline::new),
        position: Position::default(),
        waiting: BioList::new(),
        limits: Limits::default(),
        tunables: Tunables::new(256),
    };
    let mut idle = BioList::new();
    (0..batch + kept).for_each(|_| idle.push(Bio::read(Sector(0), IoBuf::zeroed(512))));
    let mut random = Random(88_172_645_463_325_252);
    let (mut now, mut unit) = (1_000_000_000, Unit::default());
    for n in 0..=batches {
        now += 10_000;
        for _ in 0..if n == 0 { kept } else { batch } {
            let mut bio = idle.pop().expect("a bio");
            (bio.sector, bio.start_ns) = (random.sector(), now);
            bench.insert(bio);
        }
        for _ in 0..if n == 0 { 0 } else { batch } {
            bench.dispatch(now, &mut unit);
            idle.append(&mut black_box(&mut unit).bios);
        }
    }
    black_box(&bench.position);
}
