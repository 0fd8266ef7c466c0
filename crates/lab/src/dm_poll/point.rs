//! One run of one scene in one mode.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::context::PollMode;
use drystone_core::sync::LockClass;
use drystone_core::{ContextSet, Device, Priority};
use drystone_stack::live::{LiveStack, OpenEnv};

use super::cores::{Cores, Pinned};
use super::scene::{MEMBERS, Scene, VOLUME};
use crate::measure::{stretch, warmup_ns};
use drystone_bench::{Counts, Pattern, Shared, Work, machine, phase};

/// The batch size of fio by default.
pub(super) const BATCH: usize = 1;

/// Counts of one poll queue, or their differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Polls {
    pub(super) considered: u64,
    pub(super) invoked: u64,
    pub(super) success: u64,
}

impl Polls {
    /// Lines of `queue/poll_stat`, one for each queue.
    fn parse(text: &str) -> Vec<Polls> {
        let number = |line: &str, key: &str| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix(key));
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        let polls = |line: &str| Polls {
            considered: number(line, "considered="),
            invoked: number(line, "invoked="),
            success: number(line, "success="),
        };
        text.lines().map(polls).collect()
    }

    fn since(self, earlier: Polls) -> Polls {
        Polls {
            considered: self.considered - earlier.considered,
            invoked: self.invoked - earlier.invoked,
            success: self.success - earlier.success,
        }
    }

    pub(super) fn skipped(self) -> u64 {
        self.considered - self.invoked
    }
}

/// Figures of a run.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) iops: f64,
    /// Of the threads that submit.
    pub(super) cpu_ns_per_io: f64,
    /// Of the device's thread.
    pub(super) device_cpu_ns_per_io: f64,
    pub(super) wakes_per_io: f64,
    pub(super) locks_per_io: f64,
    pub(super) contentions_per_io: f64,
    /// Waits for poll queues' locks over threads times wall time.
    pub(super) contention: f64,
    /// By member and queue.
    pub(super) polls: Vec<(String, Polls)>,
    /// The path of most polls by cookies, if there were any.
    pub(super) path: &'static str,
}

/// Make a run of `scene`; its members may stand on `files`.
///
/// # Errors
/// When the stack cannot be opened, a thread cannot be pinned, or an I/O fails.
pub(super) fn measure(
    scene: &Scene,
    mode: PollMode,
    cores: &Cores,
    files: &[PathBuf],
    runtime_ns: u64,
) -> anyhow::Result<Sample> {
    // The device's thread, which opening starts, stays on the core of the thread that starts it.
    let _pinned = Pinned::to(cores.device)?;
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv::new(scene.threads, clock);
    let spec = scene.stack(files)?;
    let stack = LiveStack::open(&spec, &at).map_err(|report| anyhow!(report.render(false)))?;
    let set = ContextSet::counted_by(at.locks.clone());
    let volume = device(&stack, VOLUME)?;
    let mut contexts = Vec::new();
    for _ in 0..scene.threads {
        let mut cx = set.open(stack.engine())?;
        let index = cx.open(&volume)?;
        contexts.push((cx, index));
    }
    let works: Vec<Work> = works(scene, mode, &*volume);
    let shared = Shared::new(contexts.len(), || 0);
    let read = || -> anyhow::Result<Vec<(String, Polls)>> { polls(&stack) };
    let (lanes, seen) = drystone_bench::run(contexts, &works, &shared, &cores.submit, |crew| {
        crew.enter(phase::WARM_UP);
        crew.pause(Instant::now() + Duration::from_nanos(warmup_ns(runtime_ns)))?;
        at.locks.reset();
        let (polls, helpers) = (read()?, machine::helpers_cpu_ns(&crew.threads));
        crew.enter(phase::MEASURE);
        // A lane sees the phase when it begins a round. What it completes before is not counted.
        let before = crew.progress().completed + u64::from(scene.threads) * scene.depth as u64;
        stretch(crew, runtime_ns, before)?;
        let helpers = machine::helpers_cpu_ns(&crew.threads).saturating_sub(helpers);
        let locks = at.locks.stats();
        let later = read()?;
        let since = later.into_iter().zip(polls).map(|((name, l), (_, e))| (name, l.since(e)));
        Ok((since.collect(), helpers, locks))
    })?;
    let (polls, helpers, locks): (Vec<(String, Polls)>, u64, _) = seen;
    let queues = locks.get(LockClass::NullDevice);
    Sample::of(
        &lanes,
        polls,
        helpers,
        [queues.acquisitions, queues.contentions, queues.waits.total_ns],
    )
    .with_context(|| format!("{}: no I/O ended", scene.name))
}

fn device(stack: &LiveStack, name: &str) -> anyhow::Result<Arc<dyn Device>> {
    let found = stack.devices().into_iter().find(|live| live.name == name);
    Ok(found.with_context(|| format!("no device {name}"))?.device.clone())
}

fn polls(stack: &LiveStack) -> anyhow::Result<Vec<(String, Polls)>> {
    let mut all = Vec::new();
    for name in (0..MEMBERS).map(Scene::member) {
        let text = device(stack, &name)?.attribute("queue/poll_stat").unwrap_or_default();
        let queues = (0..).zip(Polls::parse(&text));
        all.extend(queues.map(|(n, polls)| (format!("{name}/hctx{n}"), polls)));
    }
    Ok(all)
}

fn works(scene: &Scene, mode: PollMode, volume: &dyn Device) -> Vec<Work> {
    let blocks = volume.info().size_bytes / scene.bytes;
    let work = |lane| Work {
        depth: scene.depth,
        batch: BATCH,
        batch_complete: 1,
        bs: scene.bytes,
        pattern: Pattern::Randread,
        mode,
        cookies: mode == PollMode::Poll,
        interval_ns: 0,
        priority: Priority::default(),
        groups: Vec::new(),
        blocks: (0, blocks),
        seed: lane + 1,
    };
    (0..u64::from(scene.threads)).map(work).collect()
}

impl Sample {
    fn of(
        lanes: &[Counts],
        polls: Vec<(String, Polls)>,
        helpers_ns: u64,
        [locks, contentions, wait_ns]: [u64; 3],
    ) -> anyhow::Result<Self> {
        let sum = |of: fn(&Counts) -> u64| lanes.iter().map(of).sum::<u64>() as f64;
        let (ios, wall) = (sum(|lane| lane.ios), sum(|lane| lane.wall_ns));
        ensure!(ios > 0.0, "none");
        let ways = [
            ("queue", sum(|lane| lane.paths.queue)),
            ("context", sum(|lane| lane.paths.context)),
            ("other", sum(|lane| lane.paths.other)),
        ];
        let most = ways.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Ok(Sample {
            iops: lanes.iter().map(|lane| lane.ios as f64 * 1e9 / lane.wall_ns.max(1) as f64).sum(),
            cpu_ns_per_io: sum(|lane| lane.cpu_ns) / ios,
            device_cpu_ns_per_io: helpers_ns as f64 / ios,
            wakes_per_io: sum(|lane| lane.waits.sleeps) / ios,
            locks_per_io: locks as f64 / ios,
            contentions_per_io: contentions as f64 / ios,
            contention: wait_ns as f64 / wall,
            polls,
            path: most.filter(|(_, looks)| *looks > 0.0).map_or("none", |(way, _)| way),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_are_shown() {
        let text = "hctx0 considered=9 invoked=7 success=3\nhctx1 considered=1 invoked=1 success=0";
        let polls = Polls::parse(text);
        assert_eq!(polls[0], Polls { considered: 9, invoked: 7, success: 3 });
        assert_eq!((polls.len(), polls[0].skipped(), polls[1].skipped()), (2, 2, 0));
    }
}
