//! Keeps I/O in flight on a device, and counts its cost.
//!
//! Invariants:
//! * Counting begins when all threads are warm and stand still, and ends when all stand still
//!   again. No figure includes later work (the end of I/O in flight, the closing of contexts).
//! * Each I/O begins and ends in its context; a context has as many in flight as the depth says.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use drystone_core::ring::Engine;
use drystone_core::sync::LockCounts;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, IoBuf, SECTOR_SIZE, Sector,
};
use rustix::time::{ClockId, clock_gettime};

use crate::alloc;
use crate::devices::Subject;

/// The access pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    RandomRead,
    RandomWrite,
    /// One block after the other; contexts share one row of them.
    Write,
}

/// A load on a device.
#[derive(Clone, Copy)]
pub struct Load {
    pub pattern: Pattern,
    pub bytes: u64,
    /// I/Os in flight for each context, submitted together.
    pub depth: usize,
    /// Contexts of each thread.
    pub contexts: usize,
    pub threads: usize,
    /// The memory of writes does not change while they are in flight.
    pub is_stable: bool,
}

/// The counts of a sample.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    pub ios: u64,
    pub wall_ns: u64,
    /// CPU time of the whole process.
    pub cpu_ns: u64,
    pub allocations: u64,
    pub locks: u64,
    pub lock_wait_ns: u64,
    pub member_reads: u64,
    pub member_writes: u64,
}

/// CPU time of the whole process: of those who submit, and of managers.
pub fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Rounds of a thread between two readings of the clock.
const ROUNDS: usize = 16;

/// Puts a load on a device for some time.
pub fn run(set: &Arc<ContextSet>, subject: &Subject, load: &Load, time: Duration) -> Sample {
    // All threads and this one meet twice at each end; in between only this one does anything.
    let meeting = Barrier::new(load.threads + 1);
    let meet_twice = || {
        meeting.wait();
        meeting.wait();
    };
    let next = AtomicU64::new(0);
    let measure = |thread| {
        let mut lane = Lane::new(set, &subject.device, load, thread, &next);
        lane.rounds(time / 4);
        meet_twice();
        let sample = lane.sample(time);
        meet_twice();
        lane.drain();
        sample
    };
    thread::scope(|scope| {
        let measure = &measure;
        let lanes: Vec<_> =
            (0..load.threads).map(|thread| scope.spawn(move || measure(thread))).collect();
        meeting.wait();
        let (cpu, io) = (process_cpu_ns(), subject.member_io());
        meeting.wait();
        meeting.wait();
        let (cpu_ns, now) = (process_cpu_ns() - cpu, subject.member_io());
        meeting.wait();
        let (member_reads, member_writes) = (now.0 - io.0, now.1 - io.1);
        let sum = Sample { cpu_ns, member_reads, member_writes, ..Sample::default() };
        lanes.into_iter().map(|lane| lane.join().expect("a lane")).fold(sum, add)
    })
}

fn add(sum: Sample, lane: Sample) -> Sample {
    Sample {
        ios: sum.ios + lane.ios,
        wall_ns: sum.wall_ns.max(lane.wall_ns),
        allocations: sum.allocations + lane.allocations,
        locks: sum.locks + lane.locks,
        lock_wait_ns: sum.lock_wait_ns + lane.lock_wait_ns,
        ..sum
    }
}

/// A thread's contexts, with their I/O.
struct Lane<'a> {
    contexts: Vec<(Context, ChannelId, BioList)>,
    load: Load,
    blocks: u64,
    random: u64,
    /// The next block of all lanes that write one after the other.
    next: &'a AtomicU64,
}

impl<'a> Lane<'a> {
    fn new(
        set: &Arc<ContextSet>,
        device: &Arc<dyn Device>,
        load: &Load,
        thread: usize,
        next: &'a AtomicU64,
    ) -> Self {
        let context = |number: usize| {
            let mut cx = set.open(Engine::Auto).expect("a context");
            let index = cx.open(device).expect("a channel");
            let mut idle = BioList::new();
            (0..load.depth).for_each(|n| idle.push(bio(load, number * load.depth + n)));
            (cx, index, idle)
        };
        let contexts = (0..load.contexts).map(context).collect();
        let blocks = device.info().size_bytes / load.bytes;
        let random = (thread as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Lane { contexts, load: *load, blocks, random, next }
    }

    fn place(&mut self) -> u64 {
        if self.load.pattern == Pattern::Write {
            return self.next.fetch_add(1, Relaxed) % self.blocks;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(self.blocks)) >> 64) as u64
    }

    fn sample(&mut self, time: Duration) -> Sample {
        let (wall, before) = (Instant::now(), self.counted());
        let ios = self.rounds(time);
        let after = self.counted();
        Sample {
            ios,
            wall_ns: wall.elapsed().as_nanos() as u64,
            allocations: after.0 - before.0,
            locks: after.1.acquisitions - before.1.acquisitions,
            lock_wait_ns: after.1.wait_ns - before.1.wait_ns,
            ..Sample::default()
        }
    }

    /// Submits ended I/Os again, for some time. Returns how many have ended.
    fn rounds(&mut self, time: Duration) -> u64 {
        let (end, mut ios) = (Instant::now() + time, 0);
        while Instant::now() < end {
            for _ in 0..ROUNDS {
                ios += (0..self.contexts.len()).map(|context| self.round(context)).sum::<u64>();
            }
        }
        ios
    }

    fn round(&mut self, context: usize) -> u64 {
        let mut out = BioList::new();
        while let Some(mut bio) = self.contexts[context].2.pop() {
            assert!(bio.status.is_ok(), "an I/O failed: {bio:?}");
            bio.sector = Sector(self.place() * (self.load.bytes / SECTOR_SIZE));
            out.push(bio);
        }
        let alone = self.contexts.len() == 1;
        let (cx, index, idle) = &mut self.contexts[context];
        if !out.is_empty() {
            cx.submit(*index, &mut out);
        }
        loop {
            let ended = cx.reap(idle);
            if ended > 0 || !alone {
                return ended as u64;
            }
            cx.wait(None);
        }
    }

    fn drain(&mut self) {
        for (cx, _, idle) in &mut self.contexts {
            while cx.outstanding() > 0 {
                if cx.reap(idle) == 0 {
                    cx.wait(None);
                }
            }
        }
    }

    /// Allocations of the thread, and locks of its contexts, so far.
    fn counted(&self) -> (u64, LockCounts) {
        let mut locks = LockCounts::default();
        self.contexts.iter().for_each(|(cx, ..)| locks += cx.locks().total());
        (alloc::count(), locks)
    }
}

fn bio(load: &Load, number: usize) -> Box<Bio> {
    let mut buf = IoBuf::zeroed(load.bytes as usize);
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + number) as u8);
    let mut bio = match load.pattern {
        Pattern::RandomRead => Bio::read(Sector(0), buf),
        Pattern::RandomWrite | Pattern::Write => Bio::write(Sector(0), buf),
    };
    bio.flags.set(BioFlags::STABLE, load.is_stable);
    bio
}

/// Writes all of a device, so that all of its memory is there.
pub fn fill(set: &Arc<ContextSet>, device: &Arc<dyn Device>) {
    let next = AtomicU64::new(0);
    let load = Load {
        pattern: Pattern::Write,
        bytes: 192 << 10,
        depth: 16,
        contexts: 1,
        threads: 1,
        is_stable: false,
    };
    let mut lane = Lane::new(set, device, &load, 0, &next);
    let mut ended = 0;
    while ended < lane.blocks {
        ended += lane.round(0);
    }
    lane.drain();
}
