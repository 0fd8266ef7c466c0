//! One run of one scene with one variant. A second pass measures how long locks are held, because
//! that takes two clock readings for each lock.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::context::PollMode;
use drystone_core::ring::Engine;
use drystone_core::sync::{LockClass, LockStats};
use drystone_core::{Bio, BioList, ChannelId, Context, ContextSet, IoBuf, Priority, Sector};
use drystone_stack::live::{OpenDevice, OpenEnv};
use drystone_stack::spec::DeviceSpec;

use super::scene::{BLOCK_BYTES, Opened, Scene};
use crate::measure::{on_opened, process_cpu_ns, sampled, stretch, warmup_ns};
use drystone_bench::{Crew, Pattern, Work, failure};

/// The divisor of dd's I/Os that gives its warm-up.
const DD_WARM_UP: u64 = 16;

/// Figures of a run.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) iops: f64,
    pub(super) cpu_ns_per_io: f64,
    pub(super) cores_used: f64,
    pub(super) contention: f64,
    pub(super) lock_acquisitions_per_io: f64,
    pub(super) lock_contentions_per_io: f64,
    pub(super) timed: Timed,
}

/// Counts of the pass with timed locks.
#[derive(Clone, Debug, Default)]
pub(super) struct Timed {
    pub(super) ios: u64,
    pub(super) locks: LockStats,
}

impl Timed {
    /// The classes of the data path that were used. The control plane's locks are taken to read
    /// these very figures, and a helper without work waits for no lock.
    pub(super) fn classes(&self) -> Vec<(LockClass, u64, f64)> {
        let others = [LockClass::Control, LockClass::ContextSet, LockClass::PlainIdle];
        let used = self.locks.used().filter(|(class, _)| !others.contains(class));
        used.map(|(class, stats)| (class, stats.acquisitions, stats.holds.total_ns as f64 / 1e3))
            .collect()
    }

    pub(super) fn acquisitions(&self) -> u64 {
        self.classes().iter().map(|(_, acquisitions, _)| acquisitions).sum()
    }

    pub(super) fn hold_us(&self) -> f64 {
        self.classes().iter().map(|(_, _, us)| us).sum()
    }
}

/// Make a run.
///
/// # Errors
/// When the device cannot be opened or an I/O fails.
pub(super) fn measure(
    scene: &Scene,
    spec: &DeviceSpec,
    open: OpenDevice,
    runtime_ns: u64,
) -> anyhow::Result<Sample> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv { open, ..OpenEnv::new(scene.threads, clock) };
    at.locks.sample_wait_cpu(true);
    let opened = scene.open(spec, at)?;
    match scene.is_dd {
        true => dd(&opened),
        false => lanes(scene, &opened, runtime_ns),
    }
}

fn lanes(scene: &Scene, opened: &Opened, runtime_ns: u64) -> anyhow::Result<Sample> {
    let blocks = opened.device.info().size_bytes / BLOCK_BYTES;
    let work = |lane: u32| Work {
        depth: scene.depth,
        batch: scene.depth,
        batch_complete: scene.depth,
        bs: BLOCK_BYTES,
        pattern: Pattern::Randread,
        mode: PollMode::Interrupt,
        cookies: false,
        interval_ns: 0,
        priority: Priority::default(),
        groups: scene.groups_of(lane, &opened.groups),
        blocks: (0, blocks),
        seed: u64::from(lane) + 1,
    };
    let works: Vec<Work> = (0..scene.threads).map(work).collect();
    let locks = &opened.at.locks;
    let watch = |crew: &Crew<'_, '_>| {
        let (plain, _) = sampled(crew, locks, scene.threads, runtime_ns, || ())?;
        locks.time_holds(true);
        locks.reset();
        let before = crew.progress().completed;
        stretch(crew, warmup_ns(runtime_ns), before)?;
        let ios = crew.progress().completed - before;
        let timed = Timed { ios, locks: locks.reset() };
        Ok(Sample {
            iops: plain.iops,
            cpu_ns_per_io: plain.cpu_ns_per_io,
            cores_used: plain.cores_used,
            contention: plain.contention,
            lock_acquisitions_per_io: plain.lock_acquisitions_per_io,
            lock_contentions_per_io: plain.lock_contentions_per_io,
            timed,
        })
    };
    on_opened(&opened.device, &opened.at, &works, watch)
}

/// `dd if=FILE of=/dev/null bs=4K iflag=direct`: one block after the other, one at a time.
struct Dd {
    cx: Context,
    device: ChannelId,
    list: BioList,
}

impl Dd {
    fn new(opened: &Opened) -> anyhow::Result<Self> {
        let set = ContextSet::counted_by(opened.at.locks.clone());
        let mut cx = set.open(Engine::Auto)?;
        let device = cx.open(&opened.device)?;
        let mut bio = Bio::read(Sector(0), IoBuf::zeroed(BLOCK_BYTES as usize));
        bio.group = opened.groups.first().copied().unwrap_or(0);
        let mut list = BioList::new();
        list.push(bio);
        Ok(Dd { cx, device, list })
    }

    fn read(&mut self, blocks: u64) -> anyhow::Result<()> {
        let mut at = 0;
        while at < blocks {
            if let Some(bio) = self.list.front_mut() {
                bio.sector = Sector(at * (BLOCK_BYTES >> drystone_core::SECTOR_SHIFT));
            }
            self.cx.submit(self.device, &mut self.list);
            while self.cx.reap(&mut self.list) == 0 {
                self.cx.wait(None);
            }
            let bio = self.list.front().expect("it was reaped");
            ensure!(bio.status.is_ok(), failure(bio));
            at += 1;
        }
        Ok(())
    }
}

fn dd(opened: &Opened) -> anyhow::Result<Sample> {
    let blocks = opened.device.info().size_bytes / BLOCK_BYTES;
    let locks = &opened.at.locks;
    let mut dd = Dd::new(opened)?;
    dd.read(blocks / DD_WARM_UP)?;
    locks.reset();
    let (cpu, start) = (process_cpu_ns(), Instant::now());
    dd.read(blocks)?;
    let (wall, cpu) = (start.elapsed().as_nanos() as f64, process_cpu_ns() - cpu);
    let plain = locks.reset();
    locks.time_holds(true);
    locks.reset();
    dd.read(blocks)?;
    let timed = Timed { ios: blocks, locks: locks.reset() };
    let sum = |of: fn(&drystone_core::sync::ClassStats) -> u64| -> f64 {
        let used = plain.used().filter(|(class, _)| *class != LockClass::PlainIdle);
        used.map(|(_, stats)| of(stats)).sum::<u64>() as f64
    };
    let ios = blocks as f64;
    Ok(Sample {
        iops: ios * 1e9 / wall,
        cpu_ns_per_io: cpu as f64 / ios,
        cores_used: cpu as f64 / wall,
        contention: sum(|stats| stats.waits.total_ns) / wall,
        lock_acquisitions_per_io: sum(|stats| stats.acquisitions) / ios,
        lock_contentions_per_io: sum(|stats| stats.contentions) / ios,
        timed,
    })
}
