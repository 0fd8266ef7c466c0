//! The threads of a measurement, and the phases they go through.
//!
//! Invariant: whatever happens to the watcher or a lane, the phase becomes [`phase::STOP`] and all
//! threads are joined before [`run`] returns.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::{Context as _, anyhow, bail};
use drystone_core::{ChannelId, Context};
use rustix::thread::CpuSet;

use super::lane::{Counts, Lane, Shared, Work, phase};

/// A lane's words to the watcher: its thread's number when it is ready, or what went wrong.
type News = Result<i32, String>;

/// The running lanes, for their watcher.
pub struct Crew<'a, 'scope> {
    shared: &'a Shared,
    lanes: &'a [ScopedJoinHandle<'scope, Option<Counts>>],
    inbox: &'a Receiver<News>,
    /// The numbers of their threads.
    pub threads: Vec<i32>,
}

/// I/Os and calls of all lanes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// I/Os completed.
    pub completed: u64,
    /// I/Os submitted.
    pub submitted: u64,
    /// Submit calls.
    pub calls: u64,
}

/// Start a lane on each of `contexts`, on the cores `cpus` in turn (none: anywhere), and let
/// `watch` lead them; when it returns they stop. Gives what they counted and what `watch` gave.
///
/// # Errors
/// The error of `watch`; the first I/O that failed; a thread that cannot be pinned or panicked.
pub fn run<T>(
    contexts: Vec<(Context, ChannelId)>,
    works: &[Work],
    shared: &Shared,
    cpus: &[u32],
    watch: impl FnOnce(&Crew<'_, '_>) -> anyhow::Result<T>,
) -> anyhow::Result<(Vec<Counts>, T)> {
    thread::scope(|scope| {
        let (news, inbox) = channel();
        let start = |(number, (cx, index)): (usize, (Context, ChannelId))| {
            let (news, work) = (news.clone(), works[number].clone());
            scope.spawn(move || {
                let pinned = pin(cpus, number);
                let lane = pinned.and_then(|()| Lane::new(cx, index, work, shared, number));
                lane_thread(lane, shared, &news)
            })
        };
        let lanes: Vec<_> = contexts.into_iter().enumerate().map(start).collect();
        drop(news);
        let mut crew = Crew { shared, lanes: &lanes, inbox: &inbox, threads: Vec::new() };
        let watched = crew.await_ready().and_then(|()| watch(&crew));
        crew.enter(phase::STOP);
        let counts: Vec<_> = lanes.into_iter().map(|lane| lane.join().ok().flatten()).collect();
        let watched = watched?;
        // A lane may have failed after the watcher looked away.
        if let Some(error) = inbox.try_iter().find_map(Result::err) {
            bail!(error);
        }
        let counts: Option<Vec<Counts>> = counts.into_iter().collect();
        Ok((counts.ok_or_else(|| anyhow!("a thread ended by a panic"))?, watched))
    })
}

fn lane_thread(
    lane: Result<Lane<'_>, String>,
    shared: &Shared,
    news: &Sender<News>,
) -> Option<Counts> {
    let counts = lane.and_then(|lane| {
        let _ = news.send(Ok(rustix::thread::gettid().as_raw_nonzero().get()));
        while shared.phase.load(Relaxed) == phase::PREPARE {
            thread::park();
        }
        lane.run()
    });
    counts.map_err(|error| news.send(Err(error))).ok()
}

impl Crew<'_, '_> {
    fn await_ready(&mut self) -> anyhow::Result<()> {
        for _ in self.lanes {
            let news = self.inbox.recv().context("a thread ended by a panic")?;
            self.threads.push(news.map_err(|error| anyhow!(error))?);
        }
        Ok(())
    }

    /// Begin a phase.
    pub fn enter(&self, phase: u32) {
        self.shared.phase.store(phase, Relaxed);
        self.lanes.iter().for_each(|lane| lane.thread().unpark());
    }

    /// Wait until `end`.
    ///
    /// # Errors
    /// When a lane fails meanwhile, at once.
    pub fn pause(&self, end: Instant) -> anyhow::Result<()> {
        match self.inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Err(error)) => bail!(error),
            Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => bail!("all threads ended by a panic"),
        }
    }

    /// I/Os that lane `number` has completed so far.
    pub fn completed(&self, number: usize) -> u64 {
        self.shared.progress[number].completed.load(Relaxed)
    }

    /// Progress of all lanes so far.
    pub fn progress(&self) -> Sum {
        self.shared.progress.iter().fold(Sum::default(), |sum, lane| Sum {
            completed: sum.completed + lane.completed.load(Relaxed),
            submitted: sum.submitted + lane.submitted.load(Relaxed),
            calls: sum.calls + lane.calls.load(Relaxed),
        })
    }
}

/// Keeps the calling thread on one of the cores, dealt out in turn.
fn pin(cpus: &[u32], number: usize) -> Result<(), String> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[number % cpus.len()] as usize;
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(format!("--cpus: core {cpu} is beyond {}", CpuSet::MAX_CPU - 1));
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| format!("--cpus: a thread cannot run on core {cpu}: {error}"))
}
