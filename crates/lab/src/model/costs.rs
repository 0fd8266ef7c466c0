//! Costs of the machine, measured in the run: the transfer of a cache line between two cores, a
//! spin, a yield, a thread switch, a wake-up, and the length of a slice.
//!
//! Each is the median of many short series, because a series in which a thread lost its core is
//! useless. No measurement waits longer than its deadline.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use crossbeam_utils::CachePadded;
use drystone_core::clock::SystemClock;
use drystone_core::sync::{Lock, LockClass, LockRegistry};
use rustix::thread::CpuSet;

use super::design::{Costs, Ps};
use crate::row::spread;

/// The rounds of a line's transfer that are timed together. They are few, so that most series are
/// undisturbed, and take long beside a reading of the clock.
const STRETCH: u32 = 50;

/// The first two cores that may be used.
///
/// # Errors
/// When fewer than two cores may be used.
pub fn two_cores() -> anyhow::Result<[usize; 2]> {
    let set = rustix::thread::sched_getaffinity(None).context("cannot read the cores to use")?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    let two = cores.next().zip(cores.next());
    let (a, b) = two.context(
        "the model needs two cores to measure what a cache line between them costs: \
         this process may use one",
    )?;
    Ok([a, b])
}

/// True if two cores are hardware threads of one, as far as the kernel says.
pub fn are_siblings([a, b]: [usize; 2]) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{a}/topology/thread_siblings_list");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().split(',').any(|part| match part.split_once('-') {
        Some((first, last)) => {
            let within = |first: usize, last: usize| (first..=last).contains(&b);
            first.parse().ok().zip(last.parse().ok()).is_some_and(|(f, l)| within(f, l))
        }
        None => part.parse() == Ok(b),
    })
}

/// Measure them all, in about five times `each`.
///
/// # Errors
/// When there are not two cores, or threads cannot be pinned to them.
pub fn measure(each: Duration) -> anyhow::Result<Costs> {
    let cores = two_cores()?;
    let pause = pause_ns();
    let (way, wake) = wake_ns(cores, each)?;
    Ok(Costs {
        line_ps: ps(line_ns(cores, each)?),
        // The same number of pauses as in `Lock::spin` between two tries, and as in a futex and a
        // context that busy-polls before they enter the kernel.
        rest_ps: ps(16.0 * pause),
        spin_ps: ps(100.0 * pause),
        yield_ps: ps(median(each, || stretch(100, thread::yield_now))?),
        switch_ps: ps(switch_ns(cores[0], each)?),
        wake_ps: ps(wake),
        latency_ps: ps((way - wake).max(0.0)),
        slice_ps: ps(slice_ns(cores[0], each)?),
    })
}

pub fn ps(ns: f64) -> Ps {
    (ns.max(0.0) * 1000.0).round() as Ps
}

/// The measured time of an empty hold, ns: the cost of a measurement.
pub fn empty_hold_ns() -> f64 {
    let registry = LockRegistry::new(SystemClock::new());
    registry.time_holds(true);
    let user = registry.counters();
    let lock = Lock::new(LockClass::Other, ());
    let one = || {
        (0..500).for_each(|_| drop(lock.lock(&user)));
        let holds = registry.reset().get(LockClass::Other).holds;
        holds.total_ns as f64 / holds.count as f64
    };
    let all: Vec<f64> = (0..40).map(|_| one()).collect();
    spread(&all).map_or(0.0, |(_, median, _)| median)
}

/// Calls `what` `count` times. Returns the time of one call, ns.
fn stretch(count: u32, mut what: impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..count).for_each(|_| what());
    begin.elapsed().as_nanos() as f64 / f64::from(count)
}

/// The median of the results of `one`, called until the time is over, at least once.
fn median(each: Duration, mut one: impl FnMut() -> f64) -> anyhow::Result<f64> {
    let end = Instant::now() + each;
    let mut found = vec![one()];
    while Instant::now() < end {
        found.push(one());
    }
    spread(&found).map(|(_, median, _)| median).context("nothing was measured")
}

fn pause_ns() -> f64 {
    let all: Vec<f64> = (0..50).map(|_| stretch(2000, spin_loop)).collect();
    spread(&all).map_or(0.0, |(_, median, _)| median)
}

fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("a thread cannot run on core {cpu}"))
}

/// Run `other` beside `own`, each pinned, until `own` is done.
fn beside<T>(
    [a, b]: [usize; 2],
    own: impl FnOnce(&AtomicBool, &Thread) -> anyhow::Result<T> + Send,
    other: impl Fn(&AtomicBool) + Sync,
) -> anyhow::Result<T>
where
    T: Send,
{
    let done = AtomicBool::new(false);
    let (done, other) = (&done, &other);
    thread::scope(|scope| {
        let other = scope.spawn(move || pin(b).map(|()| other(done)));
        let its_thread = other.thread().clone();
        let own = scope.spawn(move || {
            let found = pin(a).and_then(|()| own(done, &its_thread));
            done.store(true, SeqCst);
            its_thread.unpark();
            found
        });
        let found = own.join().expect("it does not panic");
        other.join().expect("it does not panic")?;
        found
    })
}

/// The time of a line's transfer from the other core, ns: two threads answer each other on the
/// line.
fn line_ns(cores: [usize; 2], each: Duration) -> anyhow::Result<f64> {
    let line = CachePadded::new(AtomicU64::new(0));
    // It reads `done` only now and then, so that nothing disturbs the measurement.
    let await_parity = |parity: u64, done: &AtomicBool| {
        let mut looks = 0u32;
        loop {
            let found = line.load(Acquire);
            if found % 2 == parity {
                return Some(found);
            }
            looks += 1;
            if looks.is_multiple_of(1 << 16) && done.load(Relaxed) {
                return None;
            }
        }
    };
    let own = |done: &AtomicBool, _: &Thread| {
        let hand_over = || {
            if let Some(found) = await_parity(0, done) {
                line.store(found + 1, Release);
            }
        };
        // A round is two transfers.
        median(each, || stretch(STRETCH, hand_over) / 2.0)
    };
    beside(cores, own, |done| {
        while let Some(found) = await_parity(1, done) {
            line.store(found + 1, Release);
        }
    })
}

/// The time of a thread switch on a core, ns: two threads yield to each other.
fn switch_ns(core: usize, each: Duration) -> anyhow::Result<f64> {
    let own = |_: &AtomicBool, _: &Thread| median(each, || stretch(100, thread::yield_now));
    beside([core, core], own, |done| {
        while !done.load(Relaxed) {
            thread::yield_now();
        }
    })
    // Between two of its own yields the other thread yields once.
    .map(|both| both / 2.0)
}

/// The time from the call that wakes a sleeper on another core until it runs, and the time of the
/// call itself, ns.
fn wake_ns(cores: [usize; 2], each: Duration) -> anyhow::Result<(f64, f64)> {
    let (ball, waker) = (AtomicU64::new(0), std::sync::OnceLock::<Thread>::new());
    let own = |_: &AtomicBool, other: &Thread| {
        let _ = waker.set(thread::current());
        let mut calls = Vec::new();
        let round = || {
            let begin = Instant::now();
            ball.store(1, SeqCst);
            other.unpark();
            calls.push(begin.elapsed().as_nanos() as f64);
            while ball.load(SeqCst) == 1 {
                thread::park();
            }
            begin.elapsed().as_nanos() as f64
        };
        let both = median(each, round)?;
        let (_, call, _) = spread(&calls).context("nobody was woken")?;
        Ok((both / 2.0, call))
    };
    beside(cores, own, |done| {
        while !done.load(SeqCst) {
            thread::park();
            if ball.swap(0, SeqCst) == 1
                && let Some(waker) = waker.get()
            {
                waker.unpark();
            }
        }
    })
}

/// The time that a thread keeps a core which another wants, ns: its processor time over its number
/// of preemptions. Without a preemption it is the whole time, as a lower bound.
fn slice_ns(core: usize, each: Duration) -> anyhow::Result<f64> {
    let each = each.max(Duration::from_millis(50));
    let own = |_: &AtomicBool, _: &Thread| {
        let (before, begin) = (put_off()?, Instant::now());
        while begin.elapsed() < each {
            spin_loop();
        }
        let times = put_off()? - before;
        ensure!(times <= 1 << 32, "the kernel counts backwards");
        // The other thread has half of the time.
        Ok(each.as_nanos() as f64 / 2.0 / times.max(1) as f64)
    };
    beside([core, core], own, |done| {
        while !done.load(Relaxed) {
            spin_loop();
        }
    })
}

/// The number of preemptions of the calling thread (`proc_pid_status(5)`).
fn put_off() -> anyhow::Result<u64> {
    let path = "/proc/thread-self/status";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok())
        .with_context(|| format!("{path} does not count switches"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_or_refused_in_words() {
        match measure(Duration::from_millis(5)) {
            Ok(costs) => {
                assert!(costs.line_ps > 0 && costs.slice_ps > 0, "{costs:?}");
                assert!(costs.spin_ps > costs.rest_ps && costs.switch_ps > 0, "{costs:?}");
            }
            Err(error) => assert!(format!("{error:#}").contains("core"), "{error:#}"),
        }
        assert!(empty_hold_ns() > 0.0);
        assert!(put_off().is_ok());
    }
}
