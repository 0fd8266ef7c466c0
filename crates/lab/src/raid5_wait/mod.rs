//! The experiment `raid5-wait`: "md/raid5: per hash value and exclusive wait_for_stripe" (Yuanhan
//! Liu, linux-raid, 2015). Writers that find no free stripe sleep; *before* all of them are woken
//! when some are free, *mailed* one of those that wait for the same hash lock. With 64 threads on
//! four ram disks the mail has +25 % to +262 % files a second, and 94 % less system time. It was
//! taken back a year later because it could get stuck, which [`cache`]'s models find.
//!
//! ```text
//! load: threads, files, sync --> array: Array, Writer
//!      --> shaped (before, mailed): cache --> raid5d --> members
//!      --> ours: context --> drystone_raid --> members
//! ```
//!
//! Each variant is an [`array::Array`] over members of the same kind under the same load; *ours* is
//! Drystone's own, with a stripe cache of the same size.

pub mod array;
pub mod cache;
mod fill;
pub mod load;
pub(crate) mod mails_form;
#[cfg(all(test, loom))]
mod models;
mod ours;
mod raid5d;
mod report;
pub mod scene;
mod shaped;
mod shared;
#[cfg(all(test, not(loom)))]
mod tests;
mod variants;
pub mod wait;

pub use variants::VARIANTS;

use std::sync::Arc;

use anyhow::Context as _;
use drystone_core::clock::{Clock, SystemClock};
use drystone_stack::live::OpenEnv;
use serde_json::json;

use crate::measure::warmup_ns;
use crate::outcome::{Machine, Outcome};
use crate::{Experiment, Options, Progress};
use array::Opening;
use drystone_bench::machine;
use load::{BIO_BYTES, FILE_BYTES};
use scene::{Members, Scene};
use variants::Measured;

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "raid5-wait",
    about: "writers that wait for a free stripe, all of them woken (before), one for \
        each hash lock (mailed), none asleep (ours)",
    runs: crate::RUNS,
    threads: 64,
    ignores: &["kernel", "bytes", "only"],
    run,
};

/// Run the experiment.
///
/// # Errors
/// When an array cannot be opened, or an I/O fails.
pub fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let date = machine::now();
    let mut all = Vec::new();
    let scenes = scene::scenes(options.threads);
    let mut steps = crate::steps::Steps::new(options, scenes.len());
    for scene in scenes {
        let point = format!("{} {}, {} threads", scene.disks, scene.device(), scene.threads);
        if !steps.next(&point, say) {
            break;
        }
        all.push(measure(scene, options)?);
    }
    let rows: Vec<_> = all.iter().flat_map(report::rows).collect();
    let mut threads: Vec<u32> = rows.iter().map(|row| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        more: mails_form::tables(&rows, mails_form::case),
        plots: Vec::new(),
        date,
        machine: Machine::here(),
        parameters: parameters(options),
        table: report::table(&rows),
        rows,
        shown_threads: threads,
        remarks: report::remarks(&all),
    })
}

fn parameters(options: &Options) -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("file_bytes", json!(FILE_BYTES)),
        ("bio_bytes", json!(BIO_BYTES)),
        ("stripes", json!(cache::STRIPES)),
        ("hash_locks", json!(cache::HASH_LOCKS)),
        ("runs", json!(options.runs)),
        ("runtime_ns", json!(options.runtime_ns)),
        ("warmup_ns", json!(warmup_ns(options.runtime_ns))),
        ("debug", json!(cfg!(debug_assertions))),
    ]
}

/// All variants over the same members, in turns.
fn measure(scene: Scene, options: &Options) -> anyhow::Result<Measured> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv::new(1, clock);
    let stack = scene.open(false, &at)?;
    let (layout, members) = (scene.layout()?, scene.members_of(&stack));
    if scene.members == Members::Ram {
        fill::fill(&scene, &members, &at.contexts)?;
    }
    let opening = Opening { scene: &scene, layout, members: &members, at: &at };
    let mut samples = [const { Vec::new() }; VARIANTS.len()];
    for _ in options.turns() {
        for ((name, open), samples) in VARIANTS.iter().zip(&mut samples) {
            let array = open(&opening)?;
            let sample = load::measure(&*array, scene.threads, options.runtime_ns, &at.locks);
            samples.push(sample.with_context(|| format!("{}: {name}", scene.device()))?);
        }
    }
    Ok(Measured { scene, samples })
}
