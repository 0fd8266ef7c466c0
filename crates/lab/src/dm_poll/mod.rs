//! The experiment `dm-poll`: "dm: support IO polling" (Jeffle Xu, dm-devel, 20 February 2021),
//! whose tables compare interrupts with polling on volumes over three disks: +32 %, +16 %, +32 % on
//! linear, +34 % on a stripe, and -20 % against +13 % where busy queues are waited for or skipped.
//!
//! The disks are null devices whose time another thread keeps, on a core of its own. With
//! interrupts it wakes the submitter, if that sleeps, and adds no other cost; the cost of a wake-up
//! is measured and printed. Polled requests need no thread. Each variant is a way to wait, on the
//! same stack: *before* sleeps, *mailed* always polls, by the cookies' paths, *ours* is adaptive.
//!
//! The mail's load has 128 I/Os in flight, each of which interrupted its processor. Here 128 I/Os
//! keep a thread awake, so no wake-up occurs. They are measured, and so is one I/O in flight, where
//! every completion finds its submitter asleep; this case decides whether targets are met.

mod cores;
mod model;
mod point;
mod report;
mod scene;
mod variants;
mod wake;

use std::path::PathBuf;

pub(crate) use model::model;

use anyhow::Context as _;
use serde_json::json;

use crate::measure::warmup_ns;
use crate::outcome::{Machine, Outcome};
use crate::temp_file::TempFile;
use crate::{Experiment, Options, Progress};
use cores::{Cores, Pinned};
use drystone_bench::machine;
use point::BATCH;
use scene::{DEPTH, MAIL_DEPTH, Scene};
use variants::{JUDGED_US, Measured, POLLERS, VARIANTS};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "dm-poll",
    about: "volumes over three disks by interrupts (before), polled (mailed), and \
        adaptively (ours)",
    runs: crate::RUNS,
    threads: crate::THREADS,
    ignores: &["kernel", "bytes", "only"],
    run,
};

/// The other latencies, us.
const OTHERS_US: [u32; 3] = [5, 20, 80];
fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let date = machine::now();
    let cores = Cores::here()?;
    let made: anyhow::Result<Vec<TempFile>> =
        (0..scene::MEMBERS).map(|_| TempFile::on_disk(scene::MEMBER_BYTES)).collect();
    let made = made?;
    let files: Vec<PathBuf> = made.iter().map(TempFile::path).collect();
    let scenes = scenes(options.threads, &cores);
    say(&estimate(scenes.len(), options));
    let wake = {
        let _pinned = Pinned::to(cores.device)?;
        wake::measure(cores.submit[0])?
    };
    let mut all = Vec::new();
    let mut steps = crate::steps::Steps::new(options, scenes.len());
    for scene in scenes {
        let latency = scene.latency_us().map(|us| format!(", {us} us")).unwrap_or_default();
        if !steps.next(&format!("{}{latency}, depth {}", scene.name, scene.depth), say) {
            break;
        }
        all.push(measure(scene, &cores, &files, options)?);
    }
    let parameters = vec![
        ("rw", json!("randread")),
        ("depth", json!([DEPTH, MAIL_DEPTH])),
        ("batch", json!(BATCH)),
        ("judged_at_us", json!(JUDGED_US)),
        ("submit_cores", json!(cores.submit)),
        ("device_core", json!(cores.device)),
        ("wake_latency_ns", json!(wake.latency_ns)),
        ("wake_sleeper_cpu_ns", json!(wake.sleeper_ns)),
        ("wake_waker_ns", json!(wake.waker_ns)),
        ("runs", json!(options.runs)),
        ("runtime_ns", json!(options.runtime_ns)),
        ("warmup_ns", json!(warmup_ns(options.runtime_ns))),
        ("debug", json!(cfg!(debug_assertions))),
    ];
    let mut threads: Vec<u32> = all.iter().map(|measured| measured.scene.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        more: Vec::new(),
        plots: Vec::new(),
        date,
        machine: Machine::here(),
        parameters,
        rows: all.iter().flat_map(report::rows).collect(),
        table: report::table(&all),
        shown_threads: threads,
        remarks: report::remarks(&all, &cores, wake),
    })
}

/// All scenes: the mail's tables at each latency, then waits for busy queues, then files; and all
/// of them again at the mail's depth.
fn scenes(most: u32, cores: &Cores) -> Vec<Scene> {
    let pollers = POLLERS.min(most);
    // A core for each if there are enough; at least two, since one poller is another table.
    let pinned = (cores.submit.len() as u32).clamp(2, POLLERS).min(most);
    let latencies = std::iter::once(JUDGED_US).chain(OTHERS_US);
    let mut scenes: Vec<Scene> =
        latencies.flat_map(|us| scene::tables(us, pollers, pinned)).collect();
    scenes.push(scene::waiting(JUDGED_US, pollers));
    scenes.push(scene::files());
    let deep: Vec<Scene> = scenes.iter().map(Scene::deep).collect();
    scenes.extend(deep);
    scenes
}

fn estimate(scenes: usize, options: &Options) -> String {
    let runs = scenes as u64 * VARIANTS.len() as u64 * u64::from(options.runs);
    let seconds = runs * (options.runtime_ns + warmup_ns(options.runtime_ns)) / 1_000_000_000;
    format!("{runs} runs, about {} min {} s", seconds / 60, seconds % 60)
}

/// All variants, in turns.
fn measure(
    scene: Scene,
    cores: &Cores,
    files: &[PathBuf],
    options: &Options,
) -> anyhow::Result<Measured> {
    let mut samples = [const { Vec::new() }; 3];
    for _ in options.turns() {
        for ((name, mode), samples) in VARIANTS.iter().zip(&mut samples) {
            let sample = point::measure(&scene, *mode, cores, files, options.runtime_ns);
            samples.push(sample.with_context(|| format!("{}: {name}", scene.name))?);
        }
    }
    Ok(Measured { scene, samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_at_every_latency_the_judged_one_first() {
        let cores = Cores { submit: vec![0], device: 1 };
        let all = scenes(32, &cores);
        assert_eq!(all.len(), 36);
        assert!(all[..18].iter().all(|scene| scene.depth == DEPTH));
        assert!(all[..4].iter().all(|scene| scene.latency_us() == Some(JUDGED_US)));
        assert_eq!(all.iter().map(|scene| scene.threads).max(), Some(3));
        assert_eq!(all[2].threads, 2);
        assert!(scenes(1, &cores).iter().all(|scene| scene.threads == 1));
    }
}
