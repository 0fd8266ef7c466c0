//! One thread of a benchmark: keeps its I/Os in flight and counts what that takes.
//!
//! Invariants:
//! - In the loop nothing allocates, locks, or reads a clock: the watcher says when to begin and to
//!   stop by [`Shared::phase`], which is read once a round.
//! - A bio is either in `idle` or in flight; together they are as many as the depth.
//! - Counts are taken by this thread, of this thread, at the first and last moment of the phase
//!   that is measured.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;

use crossbeam_utils::CachePadded;
use drystone_core::clock::Ns;
use drystone_core::context::{PollMode, WaitCounts};
use drystone_core::sync::LockCounts;
use drystone_core::{Arena, Bio, BioFlags, BioList, ChannelId, Context, IoBuf, Priority, Sector};

use super::Pattern;
use super::cookies::{Cookies, Paths};

/// After so many fruitless polls in a row the core is offered to others: above all to a thread
/// that was pre-empted with a poll queue in hand, which cannot happen to the kernel.
const FRUITLESS_POLLS_MAX: u32 = 64;

/// Phases of a run, in order.
pub mod phase {
    /// Threads get ready.
    pub const PREPARE: u32 = 0;
    /// I/O runs, but is not counted yet.
    pub const WARM_UP: u32 = 1;
    /// I/O is counted.
    pub const MEASURE: u32 = 2;
    /// Enough.
    pub const STOP: u32 = 3;
}

/// Progress of a lane, as its watcher sees it; on a cache line of its own.
#[derive(Default)]
pub struct Progress {
    /// I/Os completed.
    pub completed: AtomicU64,
    /// I/Os submitted.
    pub submitted: AtomicU64,
    /// Submit calls.
    pub calls: AtomicU64,
}

/// State that lanes and their watcher share.
pub struct Shared {
    /// See [`phase`]; only the watcher changes it.
    pub phase: CachePadded<AtomicU32>,
    /// One for each lane.
    pub progress: Vec<CachePadded<Progress>>,
    /// Heap allocations that the calling thread has made so far, where somebody counts them.
    pub allocations: fn() -> u64,
}

impl Shared {
    /// The state that `lanes` lanes share before they begin.
    pub fn new(lanes: usize, allocations: fn() -> u64) -> Self {
        let progress = (0..lanes).map(|_| Default::default()).collect();
        Shared { phase: Default::default(), progress, allocations }
    }
}

/// The work of a lane.
#[derive(Clone, Debug)]
pub struct Work {
    /// I/Os in flight.
    pub depth: usize,
    /// I/Os submitted, and waited for, together.
    pub batch: usize,
    /// I/Os waited for when none is free.
    pub batch_complete: usize,
    /// Bytes of an I/O.
    pub bs: u64,
    /// The pattern of the I/Os.
    pub pattern: Pattern,
    /// The poll mode; with *poll* every I/O is polled, and the context is asked over and over.
    pub mode: PollMode,
    /// With *poll*: poll by the cookie of the oldest submission, as io_uring with IOPOLL does.
    pub cookies: bool,
    /// Time from the start of one I/O to that of the next; 0 is as soon as one has ended.
    pub interval_ns: Ns,
    /// Class and level of the I/Os.
    pub priority: Priority,
    /// The throttle groups of the I/Os, dealt out in turn; none is the root.
    pub groups: Vec<u32>,
    /// First block and number of blocks that this lane uses, in units of `bs`.
    pub blocks: (u64, u64),
    /// Start of the generator of random places.
    pub seed: u64,
}

/// Counts of a lane while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// I/Os completed.
    pub ios: u64,
    /// I/Os submitted.
    pub submitted: u64,
    /// Submit calls.
    pub calls: u64,
    /// Time on the clock.
    pub wall_ns: Ns,
    /// CPU time of the thread.
    pub cpu_ns: u64,
    /// Clock readings of the context.
    pub clock_reads: u64,
    /// Locks of the context, all classes.
    pub locks: LockCounts,
    /// Heap allocations of the thread.
    pub allocations: u64,
    /// Waits of the context.
    pub waits: WaitCounts,
    /// Looks by cookies.
    pub paths: Paths,
}

/// The order in which blocks are read or written.
trait BlockOrder {
    /// Number of a block.
    fn next(&mut self) -> u64;
}

/// Uniform over all blocks: xorshift, reduced to the range by a multiplication.
struct Random {
    state: u64,
    first: u64,
    count: u64,
}

impl BlockOrder for Random {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.first + ((u128::from(self.state) * u128::from(self.count)) >> 64) as u64
    }
}

/// One block after the other, again from the first behind the last.
struct Sequential {
    at: u64,
    first: u64,
    end: u64,
}

impl BlockOrder for Sequential {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        let block = self.at;
        self.at = if block + 1 == self.end { self.first } else { block + 1 };
        block
    }
}

/// A thread's context with its bios.
pub struct Lane<'a> {
    cx: Context,
    device: ChannelId,
    work: Work,
    shared: &'a Shared,
    progress: &'a Progress,
    idle: BioList,
    out: BioList,
    counts: Counts,
    /// With a rate: the time of the next I/O.
    next_at: Ns,
    cookies: Option<Cookies>,
}

impl<'a> Lane<'a> {
    /// Makes the bios and touches their memory. Call on the thread that will run.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(
        mut cx: Context,
        device: ChannelId,
        work: Work,
        shared: &'a Shared,
        number: usize,
    ) -> Result<Self, String> {
        let short = || format!("no memory for {} buffers of {} bytes", work.depth, work.bs);
        let each = (work.bs as usize).next_multiple_of(IoBuf::ALIGN);
        let arena = each.checked_mul(work.depth).and_then(Arena::new).ok_or_else(short)?;
        // A context that polls itself looks for a while in each wait; a lane that polls never
        // waits.
        if work.mode == PollMode::Adaptive {
            cx.set_poll_mode(work.mode);
        }
        if let Err(error) = cx.register_memory(arena.clone()) {
            // If nobody reads the standard error, nobody misses it.
            let _ = writeln!(io::stderr(), "note: {error}; buffers stay unregistered");
        }
        let mut idle = BioList::new();
        for index in 0..work.depth {
            let buf = arena.cut(work.bs as usize).ok_or_else(short)?;
            idle.push(bio(buf, &work, index as u64));
        }
        let cookies = work.cookies.then(|| Cookies::new(work.depth));
        Ok(Lane {
            cx,
            device,
            work,
            shared,
            progress: &shared.progress[number],
            idle,
            out: BioList::new(),
            counts: Counts::default(),
            next_at: 0,
            cookies,
        })
    }

    /// Runs until the watcher says stop, then lets everything in flight end.
    ///
    /// # Errors
    /// The first I/O that failed.
    pub fn run(mut self) -> Result<Counts, String> {
        let (first, count) = self.work.blocks;
        match self.work.pattern {
            Pattern::Randread | Pattern::Randwrite => {
                let state = self.work.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                self.phases(Random { state, first, count })
            }
            Pattern::Read | Pattern::Write => {
                self.phases(Sequential { at: first, first, end: first + count })
            }
        }
    }

    fn phases(&mut self, mut order: impl BlockOrder) -> Result<Counts, String> {
        self.rounds(&mut order, phase::MEASURE)?;
        let begin = self.begin();
        self.rounds(&mut order, phase::STOP)?;
        let measured = self.end(&begin);
        while self.idle.len() < self.work.depth {
            self.reap(1);
        }
        Ok(measured)
    }

    /// Rounds until the watcher has reached a phase.
    #[inline(never)]
    fn rounds(&mut self, order: &mut impl BlockOrder, until: u32) -> Result<(), String> {
        while self.shared.phase.load(Relaxed) < until {
            let due = self.due();
            if due > 0 {
                self.submit(order, due)?;
            }
            let want = match self.idle.is_empty() {
                true => self.work.batch_complete,
                false => 0,
            };
            self.reap(want);
            self.progress.completed.store(self.counts.ios, Relaxed);
            self.progress.submitted.store(self.counts.submitted, Relaxed);
            self.progress.calls.store(self.counts.calls, Relaxed);
        }
        Ok(())
    }

    /// The number of I/Os that may start now; with a rate it waits until the next one's time, or
    /// until something has completed.
    #[inline(always)]
    fn due(&mut self) -> usize {
        let most = self.idle.len().min(self.work.batch);
        if self.work.interval_ns == 0 || most == 0 { most } else { self.paced(most) }
    }

    fn paced(&mut self, most: usize) -> usize {
        let now = self.cx.now();
        if self.next_at == 0 {
            self.next_at = now;
        }
        if now < self.next_at {
            match self.work.mode {
                PollMode::Poll => {}
                _ => self.cx.wait(Some(self.next_at)),
            }
            return 0;
        }
        let due = ((now - self.next_at) / self.work.interval_ns + 1).min(most as u64);
        self.next_at += due * self.work.interval_ns;
        due as usize
    }

    #[inline(always)]
    fn submit(&mut self, order: &mut impl BlockOrder, count: usize) -> Result<(), String> {
        let sectors = self.work.bs >> drystone_core::SECTOR_SHIFT;
        for _ in 0..count {
            let Some(mut bio) = self.idle.pop() else { break };
            if !bio.status.is_ok() {
                return Err(failure(&bio));
            }
            bio.sector = Sector(order.next() * sectors);
            self.out.push(bio);
        }
        match &mut self.cookies {
            Some(cookies) => cookies.submit(&mut self.cx, self.device, &mut self.out),
            None => self.cx.submit(self.device, &mut self.out),
        }
        self.counts.submitted += count as u64;
        self.counts.calls += 1;
        Ok(())
    }

    /// Reaps what has completed, and at least `want`.
    #[inline(always)]
    fn reap(&mut self, want: usize) {
        let (mut got, mut fruitless) = (0, 0u32);
        loop {
            let polls = self.work.mode == PollMode::Poll;
            got += match (polls, &mut self.cookies) {
                (true, Some(cookies)) => cookies.poll(&mut self.cx, &mut self.idle),
                (true, None) => self.cx.poll(&mut self.idle),
                (false, _) => self.cx.reap(&mut self.idle),
            };
            if got >= want {
                break;
            }
            if !polls {
                self.cx.wait(None);
                continue;
            }
            fruitless += 1;
            if fruitless.is_multiple_of(FRUITLESS_POLLS_MAX) {
                thread::yield_now();
            }
        }
        self.counts.ios += got as u64;
    }

    /// Processor time of this thread.
    fn cpu_ns(&self) -> u64 {
        self.cx.set().clock().thread_cpu()
    }

    fn paths(&self) -> Paths {
        self.cookies.as_ref().map(Cookies::paths).unwrap_or_default()
    }

    /// The counts at the first moment that is measured.
    fn begin(&mut self) -> Counts {
        Counts {
            wall_ns: self.cx.now(),
            cpu_ns: self.cpu_ns(),
            clock_reads: self.cx.clock_reads(),
            locks: self.cx.locks().total(),
            allocations: (self.shared.allocations)(),
            waits: self.cx.wait_counts(),
            paths: self.paths(),
            ..self.counts
        }
    }

    /// Counts since `begin`. The two readings of the clock at the ends are not part of
    /// what they measure.
    fn end(&mut self, begin: &Counts) -> Counts {
        let allocations = (self.shared.allocations)() - begin.allocations;
        let (locks, waits) = (self.cx.locks().total(), self.cx.wait_counts());
        Counts {
            paths: self.paths().since(begin.paths),
            waits: WaitCounts {
                sleeps: waits.sleeps - begin.waits.sleeps,
                polls: waits.polls - begin.waits.polls,
                fruitless_polls: waits.fruitless_polls - begin.waits.fruitless_polls,
            },
            ios: self.counts.ios - begin.ios,
            submitted: self.counts.submitted - begin.submitted,
            calls: self.counts.calls - begin.calls,
            allocations,
            locks: LockCounts {
                acquisitions: locks.acquisitions - begin.locks.acquisitions,
                contentions: locks.contentions - begin.locks.contentions,
                wait_ns: locks.wait_ns - begin.locks.wait_ns,
            },
            clock_reads: self.cx.clock_reads() - begin.clock_reads,
            cpu_ns: self.cpu_ns() - begin.cpu_ns,
            wall_ns: self.cx.now() - begin.wall_ns,
        }
    }
}

fn bio(mut buf: IoBuf, work: &Work, index: u64) -> Box<Bio> {
    // Different bytes in every buffer, and every page of it is real memory.
    let mut fill = Random { state: (work.seed << 32 | index) * 2 + 1, first: 0, count: u64::MAX };
    buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&fill.next().to_le_bytes()));
    let mut bio = match work.pattern {
        Pattern::Read | Pattern::Randread => Bio::read(Sector(0), buf),
        Pattern::Write | Pattern::Randwrite => Bio::write(Sector(0), buf),
    };
    if work.mode == PollMode::Poll {
        bio.flags |= BioFlags::POLLED;
    }
    bio.priority = work.priority;
    bio.user_data = index;
    if !work.groups.is_empty() {
        bio.group = work.groups[index as usize % work.groups.len()];
    }
    bio
}

/// The message about a bio that failed.
#[cold]
pub fn failure(bio: &Bio) -> String {
    let op = if bio.op.is_write() { "write" } else { "read" };
    format!("a {op} of {} bytes at sector {} failed: {}", bio.bytes, bio.sector, bio.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_places_are_inside_and_everywhere() {
        let mut order = Random { state: 1, first: 100, count: 8 };
        let mut seen = [0u32; 8];
        (0..8000).for_each(|_| seen[(order.next() - 100) as usize] += 1);
        assert!(seen.iter().all(|hits| (700..1300).contains(hits)), "{seen:?}");
    }

    #[test]
    fn sequential_places_begin_again() {
        let mut order = Sequential { at: 5, first: 5, end: 8 };
        let places: Vec<u64> = (0..7).map(|_| order.next()).collect();
        assert_eq!(places, [5, 6, 7, 5, 6, 7, 5]);
    }
}
