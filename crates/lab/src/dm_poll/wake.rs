//! The cost of the model device's interrupt: one wake-up of a context that sleeps, from another
//! core.

#![expect(clippy::disallowed_types, reason = "a laboratory joins its threads, and serves nobody")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use drystone_core::ContextSet;
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::Engine;

use super::cores;
use crate::row::spread;

/// The wake-ups of a measurement.
const WAKES: usize = 2000;
/// The time between two wake-ups: long enough to fall asleep.
const PAUSE: Duration = Duration::from_micros(60);

/// The cost of a wake-up, ns: medians.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// From the call until the sleeper goes on.
    pub(super) latency_ns: f64,
    /// Processor time of the sleeper, falling asleep included.
    pub(super) sleeper_ns: f64,
    /// The call itself.
    pub(super) waker_ns: f64,
}

/// Wake a context on core `sleeper` from the calling thread.
///
/// # Errors
/// When a context cannot be had.
pub(super) fn measure(sleeper: u32) -> anyhow::Result<Cost> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let mut cx = ContextSet::new(clock.clone()).open(Engine::Auto)?;
    let handle = cx.handle().clone();
    let start = Instant::now();
    let at = Arc::new(AtomicU64::new(0));
    let ns = move || start.elapsed().as_nanos() as u64;
    let (called, woken) = (at.clone(), std::thread::Builder::new());
    let woken = woken.spawn(move || -> Result<(Vec<f64>, f64), String> {
        cores::pin(&[sleeper])?;
        let (mut latencies, cpu) = (Vec::with_capacity(WAKES), clock.thread_cpu());
        while latencies.len() < WAKES {
            cx.wait(None);
            let (now, from) = (ns(), called.swap(0, AcqRel));
            if from > 0 {
                latencies.push(now.saturating_sub(from) as f64);
            }
        }
        Ok((latencies, (clock.thread_cpu() - cpu) as f64 / WAKES as f64))
    })?;
    let mut calls = Vec::with_capacity(WAKES);
    while !woken.is_finished() {
        std::thread::sleep(PAUSE);
        let begin = ns();
        at.store(begin, Release);
        handle.wake();
        calls.push((ns() - begin) as f64);
    }
    let panicked = |_| anyhow::anyhow!("a thread ended by a panic");
    let (latencies, sleeper_ns) = woken.join().map_err(panicked)?.map_err(anyhow::Error::msg)?;
    let median = |values: &[f64]| spread(values).map_or(f64::NAN, |(_, median, _)| median);
    Ok(Cost { latency_ns: median(&latencies), sleeper_ns, waker_ns: median(&calls) })
}
