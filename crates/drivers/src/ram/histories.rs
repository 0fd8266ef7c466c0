//! Random histories of bios through the queue, with limits as small and odd as can be, against
//! a vector of bytes.

use super::*;
use crate::testing::Rig;
use drystone_core::clock::ManualClock;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioFlags, ChannelId, IoBuf, Op, Sector};
use drystone_queue::queue::QueueOptions;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SECTORS: u64 = 96;

/// A RAM device that reports smaller limits.
struct Limited {
    ram: Ram,
    limits: Limits,
    depth: u32,
}

impl Driver for Limited {
    type Queue = CheckedQueue;

    fn kind(&self) -> &'static str {
        "limited"
    }

    fn size_bytes(&self) -> u64 {
        self.ram.size_bytes()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn hw_queues(&self) -> HwQueues {
        HwQueues { default: 1, poll: 0, depth: self.depth }
    }

    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<CheckedQueue> {
        let queue = self.ram.open_queue(env, channel, slots)?;
        Ok(CheckedQueue { queue, limits: self.limits, busy: 0 })
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.ram.extents(offset, length, max)
    }
}

/// A queue that checks each request against the limits, and is busy now and then.
struct CheckedQueue {
    queue: RamQueue,
    limits: Limits,
    busy: u32,
}

impl DriverQueue for CheckedQueue {
    fn queue_rq(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        self.busy += 1;
        if self.busy.is_multiple_of(7) {
            return Issue::Busy(0);
        }
        let (l, start, bytes) = (&self.limits, rq.offset(), rq.unit.bytes);
        let mut segments = 0;
        if rq.unit.op.has_data() {
            rq.each_segment(|_| segments += 1);
            assert!(bytes <= u64::from(l.max_bytes) && segments <= usize::from(l.max_segments));
            let chunk = |at: u64| at.checked_div(l.chunk_bytes);
            assert_eq!(chunk(start), chunk(start + bytes - 1));
        }
        assert!(rq.unit.op != Op::Discard || bytes <= l.max_discard_bytes);
        assert!(rq.unit.op != Op::WriteZeroes || bytes <= l.max_write_zeroes_bytes);
        assert!(bytes > 0 || rq.unit.op == Op::Flush);
        self.queue.queue_rq(env, rq)
    }

    fn ring_event(&mut self, _: &mut Env, _: RingEvent, _: &mut Slots, _: &mut Vec<u32>) {}
}

#[derive(Clone, Debug)]
struct Step {
    op: u8,
    sector: u64,
    sectors: u64,
    pieces: u64,
    flags: u8,
    fill: u8,
}

impl Step {
    fn op(&self) -> Op {
        [Op::Read, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush]
            [usize::from(self.op)]
    }

    fn range(&self) -> std::ops::Range<usize> {
        let end = (self.sector + self.sectors).min(SECTORS);
        self.sector as usize * 512..end as usize * 512
    }

    fn bio(&self, id: u64) -> Box<Bio> {
        let (op, range, sector) = (self.op(), self.range(), Sector(self.sector));
        let mut bio = if op.has_data() {
            Bio::vectored(op, sector, self.buffers(range.len()))
        } else if op == Op::Flush {
            Bio::flush()
        } else {
            Bio::without_data(op, sector, range.len() as u64)
        };
        if op.is_write() {
            bio.flags.set(BioFlags::FUA, self.flags & 1 != 0);
            bio.flags.set(BioFlags::PREFLUSH, self.flags & 2 != 0);
        }
        bio.flags.set(BioFlags::NOMERGE, self.flags & 4 != 0);
        bio.user_data = id;
        bio
    }

    /// The data in several pieces of whole sectors.
    fn buffers(&self, len: usize) -> Vec<(IoBuf, std::ops::Range<usize>)> {
        let each = (len / 512).div_ceil(self.pieces as usize) * 512;
        let lengths = (0..len).step_by(each).map(|at| each.min(len - at));
        let fill = if self.op() == Op::Write { self.fill } else { 0xEE };
        lengths.map(|n| (IoBuf::from_slice(&vec![fill; n]), 0..n)).collect()
    }
}

fn step() -> impl Strategy<Value = Step> {
    (0u8..6, 0..SECTORS, 1u64..40, 1u64..6, 0u8..8, any::<u8>()).prop_map(
        |(op, sector, sectors, pieces, flags, fill)| Step {
            op,
            sector,
            sectors,
            pieces,
            flags,
            fill,
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    (1u32..20, 0u64..12, 1u16..5, 1u64..20, 1u64..20, 0u8..4).prop_map(
        |(max, chunk, segments, discard, zeroes, flags)| Limits {
            max_bytes: max * 512,
            chunk_bytes: chunk * 512,
            max_segments: segments,
            max_discard_bytes: discard * 512,
            max_write_zeroes_bytes: zeroes * 512,
            write_cache: flags & 1 != 0,
            fua: flags & 2 != 0,
            ..Limits::default()
        },
    )
}

/// Submits `steps`, whose ranges do not overlap within a round.
fn round(rig: &mut Rig, clock: &ManualClock, steps: &[Step], disk: &mut [u8]) {
    let mut touched = vec![false; disk.len()];
    let (mut bios, mut pending, before) = (Vec::new(), BTreeSet::new(), disk.to_vec());
    for (id, step) in steps.iter().enumerate() {
        let range = step.range();
        if step.op() != Op::Flush {
            if touched[range.clone()].contains(&true) {
                continue;
            }
            touched[range.clone()].fill(true);
        }
        match step.op() {
            Op::Write => disk[range].fill(step.fill),
            Op::Discard | Op::WriteZeroes => disk[range].fill(0),
            _ => {}
        }
        bios.push(step.bio(id as u64));
        pending.insert(id as u64);
    }
    rig.submit(bios);
    while rig.cx.outstanding() > 0 {
        for bio in rig.reap() {
            assert!(pending.remove(&bio.user_data), "ended twice");
            assert_eq!(bio.status, Status::Ok, "{bio:?}");
            if bio.op == Op::Read {
                let data: Vec<u8> = bio.bufs().iter().flat_map(|b| b.to_vec()).collect();
                assert_eq!(data, before[steps[bio.user_data as usize].range()]);
            }
        }
        // The queue asks a busy driver again when the clock has moved.
        clock.advance(10_000_000);
        rig.cx.wait(Some(0));
    }
    assert!(pending.is_empty(), "never ended: {pending:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_bio_ends_once_and_the_disk_holds_what_was_written(
        limits in limits(), depth in 1u32..6, nomerges in 0u8..3, plugged in any::<bool>(),
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..12), 1..8),
    ) {
        let clock = ManualClock::new(1_000_000_000);
        let ram = Ram::new(SECTORS * 512, true).unwrap();
        let driver = Limited { ram, limits: limits.normalized(), depth };
        let options = QueueOptions { nomerges: Some(nomerges), ..QueueOptions::default() };
        let mut rig = Rig::with(driver, &options, Engine::Plain, clock.clone());
        let mut disk = vec![0u8; SECTORS as usize * 512];
        for steps in &rounds {
            if plugged {
                rig.cx.start_plug();
            }
            round(&mut rig, &clock, steps, &mut disk);
        }
        let check = Step { op: 0, sector: 0, sectors: SECTORS, pieces: 1, flags: 0, fill: 0 };
        round(&mut rig, &clock, &[check], &mut disk);
        prop_assert_eq!(rig.device.stats().in_flight(), (0, 0));
    }
}
