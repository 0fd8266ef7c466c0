//! Time as a parameter, and the reading that a plug shares.
//!
//! A clock reading is the dearest single step of a fast I/O path (23 ns here, where a whole
//! I/O is to take 20), so it is read once a plug: "block: cache current nsec time in struct
//! blk_plug" (Jens Axboe, January 2024, Linux 6.9).
//!
//! Rules of [`TimeCache`]:
//! * One reading serves all bios submitted in a plug, and one all completions reaped together;
//!   the latter may open the next plug.
//! * A latency is never the difference of a reading with itself: a reading that was given out
//!   as a start time is never given out as a completion time.
//! * The parts of one submission on the devices below a volume were submitted at the same time:
//!   `TimeCache::begin_below`. So a stack of volumes reads the clock as often as one device.
//! * It dies when the plug flushes (for completions), when the thread sleeps, and when it is
//!   older than [`AGE_BOUND_NS`]. A kernel learns when a thread was pre-empted, a user program
//!   does not (Linux itself once showed waits ten times too long: "10x I/O await times in 6.12",
//!   linux-block, April 2025). So the age is bounded by the distance of the processor's cycle
//!   counter, one unserialised register read a submit call; where there is none, no reading is
//!   kept across calls.

#![allow(unsafe_code, reason = "reads the system's clock and the cycle counter")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds of some monotonic clock.
pub type Ns = u64;

/// The oldest a shared reading may be when it is given out, in nanoseconds. Larger than the
/// 3 us that a plug of 32 takes on the fastest path, far smaller than a pre-emption (1 ms).
pub const AGE_BOUND_NS: Ns = 20_000;

/// A monotonic clock. Shared by all threads.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now(&self) -> Ns;

    /// A cheap counter that grows while time passes, or `None` if there is none.
    fn cycles(&self) -> Option<u64>;

    /// How many [`Clock::cycles`] go into `ns` nanoseconds, at the most.
    fn cycles_in(&self, ns: Ns) -> u64;

    /// Nanoseconds that the calling thread has had a processor; 0 where they are not counted.
    fn thread_cpu(&self) -> Ns {
        0
    }
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC`).
pub struct SystemClock {
    cycles_per_us: u64,
}

impl SystemClock {
    /// The clock. The first call of a process measures the cycle counter for 200 us.
    pub fn new() -> Arc<Self> {
        static CYCLES_PER_US: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        let cycles_per_us = *CYCLES_PER_US.get_or_init(Self::calibrate);
        Arc::new(SystemClock { cycles_per_us })
    }

    fn calibrate() -> u64 {
        let Some(c0) = cycle_counter() else { return 0 };
        let t0 = monotonic_ns();
        while monotonic_ns() - t0 < 200_000 {}
        let (t1, c1) = (monotonic_ns(), cycle_counter().unwrap_or(c0));
        c1.saturating_sub(c0).saturating_mul(1000) / (t1 - t0)
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Ns {
        monotonic_ns()
    }

    #[inline]
    fn cycles(&self) -> Option<u64> {
        if self.cycles_per_us == 0 { None } else { cycle_counter() }
    }

    fn cycles_in(&self, ns: Ns) -> u64 {
        ns.saturating_mul(self.cycles_per_us) / 1000
    }

    fn thread_cpu(&self) -> Ns {
        read(libc::CLOCK_THREAD_CPUTIME_ID)
    }
}

fn monotonic_ns() -> Ns {
    read(libc::CLOCK_MONOTONIC)
}

#[inline]
fn read(clock: libc::clockid_t) -> Ns {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec; both clocks always exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn cycle_counter() -> Option<u64> {
    // SAFETY: every x86-64 has RDTSC, and Linux does not forbid it to user programs unless a
    // process asks for that (PR_SET_TSC), which we never do.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn cycle_counter() -> Option<u64> {
    None
}

/// A clock that stands still until told to move, for tests and the simulator.
pub struct ManualClock {
    now: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Ns) -> Arc<Self> {
        Arc::new(ManualClock { now: AtomicU64::new(now) })
    }

    /// Move it forward by `ns`.
    pub fn advance(&self, ns: Ns) {
        self.now.fetch_add(ns, Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Ns {
        self.now.load(Relaxed)
    }

    fn cycles(&self) -> Option<u64> {
        Some(self.now())
    }

    fn cycles_in(&self, ns: Ns) -> u64 {
        ns
    }
}

/// The reading that a context shares between the I/Os of a plug. Belongs to the context.
pub struct TimeCache {
    clock: Arc<dyn Clock>,
    /// The shared reading; 0 is none. A real time of 0 only costs an extra reading.
    reading: Ns,
    /// The cycle counter at that reading.
    stamp: u64,
    age_bound_cycles: u64,
    /// The reading was given out as a start time.
    started: bool,
    /// The start time of the submission whose parts are being submitted; 0 is none.
    below: Ns,
    /// The start time given out last.
    submitted: Ns,
    /// Readings so far.
    reads: u64,
}

impl TimeCache {
    /// A cache over `clock` without a reading.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let age_bound_cycles = clock.cycles_in(AGE_BOUND_NS);
        TimeCache {
            clock,
            reading: 0,
            stamp: 0,
            age_bound_cycles,
            started: false,
            below: 0,
            submitted: 0,
            reads: 0,
        }
    }

    /// The clock itself.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The number of readings of the clock.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The start time for the bios of one submit call.
    #[inline]
    pub fn submit_time(&mut self) -> Ns {
        if self.below != 0 {
            return self.below;
        }
        self.recent();
        self.started = true;
        self.submitted = self.reading;
        self.reading
    }

    /// A submission has been given to its device, which took the time for it: what follows until
    /// [`TimeCache::end_below`] are its parts, for the devices below.
    #[inline]
    pub(crate) fn begin_below(&mut self) {
        self.below = self.submitted;
    }

    /// The last part has been submitted.
    #[inline]
    pub(crate) fn end_below(&mut self) {
        self.below = 0;
    }

    /// The time for completions that are reaped together: later than every start time given
    /// out before, shared until the next submission.
    #[inline]
    pub fn completion_time(&mut self) -> Ns {
        if self.reading == 0 || self.started {
            self.read();
        }
        self.reading
    }

    /// A new batch of completions begins: it gets a reading of its own, since it may come long
    /// after the last one where somebody polls. The last one's still opens the next plug.
    #[inline]
    pub fn new_batch(&mut self) {
        self.started = true;
    }

    /// The thread slept or is about to: no reading survives.
    pub fn slept(&mut self) {
        self.reading = 0;
    }

    /// The reading that is kept now; 0 if none.
    pub fn last(&self) -> Ns {
        self.reading
    }

    /// The shared reading if it is young, else a new one.
    #[inline]
    pub fn recent(&mut self) -> Ns {
        if self.reading == 0 || !self.is_young() {
            self.read();
        }
        self.reading
    }

    /// A fresh reading that is not shared (deadlines of waits).
    pub fn now(&mut self) -> Ns {
        self.reads += 1;
        self.clock.now()
    }

    #[inline]
    fn is_young(&self) -> bool {
        match self.clock.cycles() {
            Some(cycles) => cycles.wrapping_sub(self.stamp) < self.age_bound_cycles,
            None => false,
        }
    }

    fn read(&mut self) {
        self.reading = self.clock.now();
        self.stamp = self.clock.cycles().unwrap_or(0);
        self.started = false;
        self.reads += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submit_reap_loop_reads_once_a_round() {
        let clock = ManualClock::new(100);
        let mut time = TimeCache::new(clock.clone());
        let mut last = time.submit_time();
        let before = time.reads();
        for _ in 0..10 {
            clock.advance(50);
            let end = time.completion_time();
            assert_eq!(end, time.completion_time());
            assert_eq!(end - last, 50);
            time.new_batch();
            last = time.submit_time();
            assert_eq!(last, end);
        }
        assert_eq!(time.reads() - before, 10);
    }

    #[test]
    fn no_latency_is_a_reading_with_itself() {
        let clock = ManualClock::new(100);
        let mut time = TimeCache::new(clock.clone());
        let start = time.submit_time();
        clock.advance(1);
        assert_eq!(time.completion_time() - start, 1);
    }

    #[test]
    fn parts_are_submitted_when_the_whole_was() {
        let clock = ManualClock::new(100);
        let mut time = TimeCache::new(clock.clone());
        assert_eq!(time.submit_time(), 100);
        time.begin_below();
        clock.advance(5);
        assert_eq!((time.submit_time(), time.completion_time()), (100, 105));
        clock.advance(5);
        assert_eq!((time.submit_time(), time.completion_time()), (100, 105), "one reading for all");
        time.end_below();
        assert_eq!((time.reads(), time.submit_time()), (2, 105));
        clock.advance(1);
        assert_eq!(time.completion_time(), 111);
    }

    #[test]
    fn age_is_bounded_without_anybody_telling() {
        let clock = ManualClock::new(100);
        let mut time = TimeCache::new(clock.clone());
        time.submit_time();
        time.completion_time();
        clock.advance(AGE_BOUND_NS - 1);
        assert_eq!(time.submit_time(), 100);
        clock.advance(1);
        assert_eq!(time.submit_time(), 100 + AGE_BOUND_NS, "pre-empted: read again");
    }

    #[test]
    fn sleep_drops_the_reading() {
        let clock = ManualClock::new(100);
        let mut time = TimeCache::new(clock.clone());
        time.completion_time();
        time.slept();
        clock.advance(3);
        assert_eq!(time.submit_time(), 103);
    }

    #[test]
    fn system_clock_moves_and_calibrates() {
        let clock = SystemClock::new();
        let (a, c) = (clock.now(), clock.cycles());
        while clock.now() == a {}
        assert!(clock.now() > a);
        if c.is_some() {
            assert!(clock.cycles_in(1000) > 0);
        }
    }
}
