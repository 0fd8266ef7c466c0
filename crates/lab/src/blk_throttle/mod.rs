//! The experiment `blk-throttle`: "blk-throttle: lockless bio processing for no throttle rule
//! group" (Vivek Goyal, linux-kernel, 18 May 2011), whose table says of the request queue's lock
//! while dd reads 1 GiB from a disk in direct 4 KiB reads: 2 360 944 acquisitions and 1 850 183 us
//! held before, 2 098 599 and 1 430 479 us after. One acquisition for each of the 262 144 reads had
//! gone.
//!
//! The load is the mail's, and one of many threads at depth 32, with and without rules. The
//! variants take turns, run by run.

mod accuracy;
mod point;
mod report;
mod scene;
mod variants;

use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

use crate::measure::warmup_ns;
use crate::outcome::{Machine, Outcome, threads_text};
use crate::temp_file::TempFile;
use crate::{Experiment, Options, Progress};
pub(crate) use accuracy::EXPERIMENT as ACCURACY;
use drystone_bench::machine;
use scene::{BLOCK_BYTES, DD_BYTES, DEPTH, Scene};
use variants::{Measured, VARIANTS};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "blk-throttle",
    about: "one lock for every bio (before), only for those with a rule (mailed), \
        ours, and compiled out (none)",
    runs: crate::RUNS,
    threads: crate::THREADS,
    ignores: &["kernel", "bytes", "only"],
    run,
};

/// The runtime from which on dd reads the mail's whole file; a shorter run reads a proportional
/// part.
const DD_RUNTIME_NS: u64 = 2_000_000_000;

fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let date = machine::now();
    let bytes = dd_bytes(options.runtime_ns);
    let file = TempFile::on_disk(bytes)?;
    let shown = shown_threads(options.threads);
    let mut scenes = scene::dd();
    scenes.extend(shown.iter().flat_map(|threads| scene::scaled(*threads)));
    say(&estimate(&scenes, options));
    let mut all = Vec::new();
    let mut steps = crate::steps::Steps::new(options, scenes.len());
    for scene in scenes {
        if !steps.next(&format!("{}, {}", scene.name, threads_text(scene.threads)), say) {
            break;
        }
        all.push(measure(scene, &file.path(), bytes, options)?);
    }
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        date,
        machine: Machine::here(),
        parameters: parameters(options, bytes),
        rows: all.iter().flat_map(report::rows).collect(),
        table: report::table(&all),
        more: vec![report::mails_form(&all), report::claims(&all)],
        plots: Vec::new(),
        shown_threads: shown,
        remarks: report::remarks(&all, options),
    })
}

fn dd_bytes(runtime_ns: u64) -> u64 {
    let part = u128::from(DD_BYTES) * u128::from(runtime_ns.min(DD_RUNTIME_NS));
    ((part / u128::from(DD_RUNTIME_NS)) as u64).max(1).next_multiple_of(1 << 20)
}

/// Numbers of threads, the most last.
fn shown_threads(most: u32) -> Vec<u32> {
    let mut shown = vec![1, 2, most];
    shown.retain(|threads| *threads <= most);
    shown.dedup();
    shown
}

fn parameters(options: &Options, bytes: u64) -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("bs", json!(BLOCK_BYTES)),
        ("dd_bytes", json!(bytes)),
        ("depth", json!(DEPTH)),
        ("threads", json!(options.threads)),
        ("runs", json!(options.runs)),
        ("runtime_ns", json!(options.runtime_ns)),
        ("warmup_ns", json!(warmup_ns(options.runtime_ns))),
        ("debug", json!(cfg!(debug_assertions))),
    ]
}

fn estimate(scenes: &[Scene], options: &Options) -> String {
    let runs = scenes.iter().filter(|scene| !scene.is_dd).count() as u64
        * VARIANTS.len() as u64
        * u64::from(options.runs);
    let seconds = runs * (options.runtime_ns + 2 * warmup_ns(options.runtime_ns)) / 1_000_000_000;
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    format!("{runs} runs, about {minutes} min {seconds} s, and what dd takes on this disk")
}

/// All variants, in turns.
fn measure(scene: Scene, file: &Path, bytes: u64, options: &Options) -> anyhow::Result<Measured> {
    let spec = scene.spec(file, bytes)?;
    let mut samples = [const { Vec::new() }; VARIANTS.len()];
    for _ in options.turns() {
        for ((name, open), samples) in VARIANTS.iter().zip(&mut samples) {
            let sample = point::measure(&scene, &spec, *open, options.runtime_ns);
            samples.push(sample.with_context(|| format!("{}: {name}", scene.name))?);
        }
    }
    Ok(Measured { scene, samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_reads_less() {
        assert_eq!(dd_bytes(DD_RUNTIME_NS), DD_BYTES);
        assert_eq!(dd_bytes(10 * DD_RUNTIME_NS), DD_BYTES);
        assert_eq!(dd_bytes(DD_RUNTIME_NS / 4), DD_BYTES / 4);
        assert_eq!(dd_bytes(1), 1 << 20);
    }

    #[test]
    fn the_most_threads_come_last() {
        assert_eq!((shown_threads(32), shown_threads(2)), (vec![1, 2, 32], vec![1, 2]));
        assert_eq!(shown_threads(1), [1]);
    }
}
