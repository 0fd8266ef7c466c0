//! Input of the simulation, measured on this machine: polls of a queue, their lock hold times, and
//! messages to another thread.
//!
//! Each is a median of many short series, since a series in which a thread lost its core is
//! useless.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::context::Cookie;
use drystone_core::mailbox::Message;
use drystone_core::ring::Engine;
use drystone_core::sync::LockClass;
use drystone_core::{Bio, BioFlags, BioList, ChannelId, Context, ContextSet, IoBuf, Sector};
use drystone_stack::live::{LiveStack, OpenEnv};

use super::super::cores::{Cores, Pinned, pin};
use super::super::scene::{self, VOLUME};
use crate::model::costs::empty_hold_ns;
use crate::row::spread;

/// Polls that are timed together; short beside the device's latency.
const LOOKS: u32 = 20;
/// I/Os of a successful poll.
const FOUND: usize = 8;
/// The longest wait for a poll that finds all of them.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages that are sent one after the other.
const WORDS: usize = 64;

/// The costs of polls and messages, ns: medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// The time of a poll that finds nothing, and its hold of the lock.
    pub look_ns: f64,
    pub hold_ns: f64,
    /// The time that each found I/O adds, and the part of it with the lock.
    pub found_ns: f64,
    pub found_hold_ns: f64,
    /// The time in which the device's core takes in a request from another core.
    pub take_in_ns: f64,
    /// The time to notify a thread that is awake: on another core, and without any transfer.
    pub tell_ns: f64,
    pub send_ns: f64,
}

/// Measure them in about seven times `each`, on the first core that submits and the device's.
///
/// # Errors
/// When the stack cannot be opened, a thread cannot be pinned, or an I/O fails.
pub fn measure(cores: &Cores, each: Duration) -> anyhow::Result<Inputs> {
    let core = cores.submit[0];
    let (look_ns, hold_ns) = {
        let _pinned = Pinned::to(core)?;
        // The device is so slow that no I/O ends during the polls.
        let mut one = Polled::open(5_000)?;
        (one.empty_look_ns(each)?, one.empty_hold_ns(each)?)
    };
    let (found_ns, found_hold_ns) = {
        let _pinned = Pinned::to(core)?;
        let mut many = Polled::open(5)?;
        (many.full_look_ns(each, false)?, many.full_look_ns(each, true)?)
    };
    let more = |full: f64, empty: f64| ((full - empty) / FOUND as f64).max(0.0);
    Ok(Inputs {
        look_ns,
        hold_ns,
        found_ns: more(found_ns, look_ns),
        found_hold_ns: more(found_hold_ns, hold_ns),
        take_in_ns: take_in_ns(core, cores.device, each)?,
        tell_ns: tell_ns(core, cores.device, each)?,
        send_ns: send_ns(core, each)?,
    })
}

/// A context with polled I/O on the volume of the experiment's first scene.
struct Polled {
    // Dropped before the stack that it uses.
    cx: Context,
    device: ChannelId,
    at: OpenEnv,
    _stack: LiveStack,
    latency: Duration,
    idle: BioList,
    reaped: BioList,
}

impl Polled {
    fn open(latency_us: u32) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let at = OpenEnv::new(1, clock);
        let [scene, ..] = scene::tables(latency_us, 1, 1);
        let stack = LiveStack::open(&scene.stack(&[])?, &at)
            .map_err(|report| anyhow!(report.render(false)))?;
        let volume = stack.devices().into_iter().find(|live| live.name == VOLUME);
        let volume = volume.context("the stack has no volume")?.device.clone();
        let mut cx = ContextSet::counted_by(at.locks.clone()).open(stack.engine())?;
        let device = cx.open(&volume)?;
        let mut idle = BioList::new();
        for _ in 0..FOUND {
            let mut bio = Bio::read(Sector(0), IoBuf::zeroed(4096));
            bio.flags |= BioFlags::POLLED;
            idle.push(bio);
        }
        let latency = Duration::from_micros(latency_us.into());
        Ok(Polled { cx, device, at, _stack: stack, latency, idle, reaped: BioList::new() })
    }

    /// Submit `count` bios to one member.
    fn submit(&mut self, count: usize) -> Option<Cookie> {
        let mut cookie = None;
        for _ in 0..count {
            let mut one = BioList::new();
            one.push(self.idle.pop()?);
            cookie = Some(self.cx.submit_polled(self.device, &mut one));
        }
        cookie
    }

    /// Poll until all I/Os have ended.
    fn drain(&mut self, cookie: &Cookie) -> anyhow::Result<()> {
        while self.idle.len() < FOUND {
            self.cx.poll_for(cookie, &mut self.reaped);
            self.keep()?;
        }
        Ok(())
    }

    fn keep(&mut self) -> anyhow::Result<()> {
        while let Some(bio) = self.reaped.pop() {
            ensure!(bio.status.is_ok(), "a read of a null device failed: {}", bio.status);
            self.idle.push(bio);
        }
        Ok(())
    }

    /// The median of `one`, called repeatedly while a bio is in flight.
    fn fruitless(
        &mut self,
        each: Duration,
        mut one: impl FnMut(&mut Self, &Cookie) -> f64,
    ) -> anyhow::Result<f64> {
        let (begin, mut all) = (Instant::now(), Vec::new());
        while begin.elapsed() < each || all.is_empty() {
            let started = Instant::now();
            let cookie = self.submit(1).context("nothing was submitted")?;
            while started.elapsed() < self.latency / 2 {
                all.push(one(self, &cookie));
            }
            self.drain(&cookie)?;
        }
        Ok(median(&all))
    }

    fn empty_look_ns(&mut self, each: Duration) -> anyhow::Result<f64> {
        self.fruitless(each, |own, cookie| {
            let begin = Instant::now();
            for _ in 0..LOOKS {
                own.cx.poll_for(cookie, &mut own.reaped);
            }
            begin.elapsed().as_nanos() as f64 / f64::from(LOOKS)
        })
    }

    fn empty_hold_ns(&mut self, each: Duration) -> anyhow::Result<f64> {
        self.at.locks.time_holds(true);
        let measuring = empty_hold_ns();
        self.fruitless(each, |own, cookie| {
            own.at.locks.reset();
            for _ in 0..LOOKS {
                own.cx.poll_for(cookie, &mut own.reaped);
            }
            (own.hold_ns() - measuring).max(0.0)
        })
    }

    /// The mean time for which polls held the queue's lock.
    fn hold_ns(&self) -> f64 {
        let holds = self.at.locks.reset().get(LockClass::NullDevice).holds;
        holds.total_ns as f64 / holds.count.max(1) as f64
    }

    /// The time of a poll that finds all I/Os: its hold of the lock if `holds`, otherwise all of
    /// it.
    fn full_look_ns(&mut self, each: Duration, holds: bool) -> anyhow::Result<f64> {
        self.at.locks.time_holds(holds);
        let measuring = if holds { empty_hold_ns() } else { clock_ns() };
        let (begin, mut all) = (Instant::now(), Vec::new());
        while begin.elapsed() < each || all.is_empty() && begin.elapsed() < PATIENCE {
            let cookie = self.submit(FOUND).context("nothing was submitted")?;
            let submitted = Instant::now();
            while submitted.elapsed() < self.latency * 11 {
                std::hint::spin_loop();
            }
            self.at.locks.reset();
            let begin = Instant::now();
            let got = self.cx.poll_for(&cookie, &mut self.reaped);
            let whole = begin.elapsed().as_nanos() as f64;
            if got == FOUND {
                all.push((if holds { self.hold_ns() } else { whole } - measuring).max(0.0));
            }
            self.keep()?;
            self.drain(&cookie)?;
        }
        ensure!(!all.is_empty(), "no look found all {FOUND} I/Os that were due");
        Ok(median(&all))
    }
}

fn median(values: &[f64]) -> f64 {
    spread(values).map_or(0.0, |(_, median, _)| median)
}

/// The time that a clock reading adds to a timed interval.
fn clock_ns() -> f64 {
    let all: Vec<f64> = (0..1000).map(|_| Instant::now().elapsed().as_nanos() as f64).collect();
    median(&all)
}

/// Messages to a channel that `cx` does not have: it drops them when it reaps.
fn words(cx: &Context) -> Vec<Arc<Message>> {
    let to = Arc::downgrade(cx.handle());
    (0..WORDS).map(|n| Message::to(to.clone(), ChannelId(u32::MAX), n as u64)).collect()
}

/// Send all `words`. Returns the time of one, ns.
fn send(words: &[Arc<Message>]) -> f64 {
    let begin = Instant::now();
    words.iter().for_each(|word| word.clone().send());
    begin.elapsed().as_nanos() as f64 / words.len() as f64
}

/// The time to send to the own thread: no cache line moves.
fn send_ns(core: u32, each: Duration) -> anyhow::Result<f64> {
    let _pinned = Pinned::to(core)?;
    let mut cx = ContextSet::new(SystemClock::new()).open(Engine::Auto)?;
    let (words, mut list) = (words(&cx), BioList::new());
    let (begin, mut all) = (Instant::now(), Vec::new());
    while begin.elapsed() < each || all.is_empty() {
        all.push(send(&words));
        cx.reap(&mut list);
    }
    Ok(median(&all))
}

/// The time to send from core `from` to a thread on core `to` that reaps constantly, as a submitter
/// does.
fn tell_ns(to: u32, from: u32, each: Duration) -> anyhow::Result<f64> {
    let _pinned = Pinned::to(from)?;
    let mut cx = ContextSet::new(SystemClock::new()).open(Engine::Auto)?;
    let (words, done) = (words(&cx), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reaper = scope.spawn(|| -> Result<(), String> {
            pin(&[to])?;
            let mut list = BioList::new();
            while !done.load(Acquire) {
                cx.reap(&mut list);
            }
            Ok(())
        });
        let (begin, mut all) = (Instant::now(), Vec::new());
        while begin.elapsed() < each && !reaper.is_finished() || all.is_empty() {
            all.push(send(&words));
            // Wait until all have been taken.
            while words.iter().any(|word| Arc::strong_count(word) > 1) && !reaper.is_finished() {
                std::hint::spin_loop();
            }
        }
        done.store(true, Release);
        let ended = reaper.join().map_err(|_| anyhow!("a thread ended by a panic"))?;
        ended.map_err(anyhow::Error::msg)?;
        Ok(median(&all))
    })
}

/// The time to receive messages from core `from` on core `to`, as the device's thread does.
fn take_in_ns(from: u32, to: u32, each: Duration) -> anyhow::Result<f64> {
    let _pinned = Pinned::to(to)?;
    let (sender, receiver) = channel();
    let (asked, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let submitter = scope.spawn(|| -> Result<(), String> {
            pin(&[from])?;
            let word = Arc::new(());
            while !done.load(Acquire) {
                if asked.load(Acquire) > sent.load(Relaxed) {
                    // The receiver is gone only when the measurement has ended.
                    (0..WORDS as u64).for_each(|n| _ = sender.send((n, word.clone())));
                    sent.fetch_add(1, Release);
                }
                std::hint::spin_loop();
            }
            Ok(())
        });
        let (begin, mut all) = (Instant::now(), Vec::new());
        while begin.elapsed() < each && !submitter.is_finished() || all.is_empty() {
            let wanted = asked.fetch_add(1, Release) + 1;
            while sent.load(Acquire) < wanted && !submitter.is_finished() {
                std::hint::spin_loop();
            }
            let mut due = Vec::with_capacity(WORDS);
            let begin = Instant::now();
            while let Ok(word) = receiver.try_recv() {
                due.push(word);
            }
            all.push(begin.elapsed().as_nanos() as f64 / WORDS as f64);
        }
        done.store(true, Release);
        let ended = submitter.join().map_err(|_| anyhow!("a thread ended by a panic"))?;
        ended.map_err(anyhow::Error::msg)?;
        Ok(median(&all))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_measured() {
        let cores = Cores::here().expect("cores");
        let found = measure(&cores, Duration::from_millis(2)).expect("inputs");
        let Inputs { look_ns, hold_ns, tell_ns, send_ns, .. } = found;
        assert!([look_ns, hold_ns, tell_ns, send_ns].iter().all(|ns| ns.is_finite()), "{found:?}");
        assert!(look_ns > 0.0 && tell_ns > 0.0 && send_ns > 0.0, "{found:?}");
    }
}
