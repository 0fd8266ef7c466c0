//! The experiment `raid5-fsmark`: `raid5-wait` with the mail's own benchmark. fs_mark writes files
//! to btrfs, ext4 and xfs on a loop device of a file by FUSE, behind which is an array that lets
//! writers wait for stripes as Linux did (*before*), as the mail has it (*mailed*), or Drystone's
//! (*ours*).
//!
//! ```text
//! case --> rig: server (a child process: served, lane), loop device, file system
//!      --> load: fs_mark, watched --> report
//! ```
//!
//! Invariants:
//! * The lab's own process never touches the file system or the file, because both may hang: it
//!   runs programs for that.
//! * A dropped `rig` has removed everything, whatever happened.

mod case;
mod fs_mark;
mod lane;
mod load;
mod report;
mod rig;
mod served;
#[cfg(all(test, not(loom)))]
mod tests;
mod tool;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::outcome::{Machine, Outcome};
use crate::raid5_wait::cache::{HASH_LOCKS, STRIPES};
use crate::{Experiment, Options, Progress};
use case::{Case, FILE_BYTES};
use drystone_bench::machine;
use load::Sample;
use report::Measured;
use rig::Rig;

pub use served::{Asked, Task, execute, serve};

/// See the module's text.
pub const EXPERIMENT: Experiment = Experiment {
    name: "raid5-fsmark",
    about: "raid5-wait with fs_mark on btrfs, ext4 and xfs, over FUSE and a loop \
        device; takes root and fs_mark",
    runs: 3,
    threads: 64,
    ignores: &["kernel", "runtime"],
    run,
};

/// Bytes of files that a run writes.
const BYTES: u64 = 4 << 30;
/// The longest time without progress before forgotten waiters are woken.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause after a failed setup of a run, before the second try.
const AGAIN: Duration = Duration::from_secs(5);

/// Run the experiment.
///
/// # Errors
/// When a required program or privilege is missing, a run cannot be set up, or a signal came.
pub fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    check()?;
    let (date, stop) = (machine::now(), stop_on_signals()?);
    let bytes = options.bytes.unwrap_or(BYTES);
    let cases = case::cases(bytes, options.threads, &options.only);
    if cases.is_empty() {
        let all: Vec<String> =
            case::cases(bytes, options.threads, &[]).iter().map(Case::name).collect();
        bail!("no case has {} in its name: there are {}", options.only.join(", "), all.join("; "));
    }
    let mut all = Vec::new();
    for case in cases {
        let samples = measure(&case, options.runs, &stop, say).with_context(|| case.name())?;
        all.push(Measured { case, samples });
    }
    let rows: Vec<_> = all.iter().flat_map(report::rows).collect();
    let mut threads: Vec<u32> = rows.iter().map(|row| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        more: report::mails_tables(&rows),
        plots: Vec::new(),
        date,
        machine: Machine::here(),
        parameters: parameters(options, bytes),
        table: report::table(&rows),
        rows,
        shown_threads: threads,
        remarks: report::remarks(&all),
    })
}

fn parameters(options: &Options, bytes: u64) -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("file_bytes", json!(FILE_BYTES)),
        ("bytes", json!(bytes)),
        ("stripes", json!(STRIPES)),
        ("hash_locks", json!(HASH_LOCKS)),
        ("runs", json!(options.runs)),
        ("debug", json!(cfg!(debug_assertions))),
    ]
}

/// Checks the requirements of the experiment.
fn check() -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "raid5-fsmark mounts file systems, which takes root"
    );
    fs_mark::check()?;
    for device in ["/dev/fuse", "/dev/loop-control"] {
        ensure!(
            std::path::Path::new(device).exists(),
            "raid5-fsmark needs {device}, which is not there"
        );
    }
    Ok(())
}

/// Returns a flag that the first Ctrl-C sets, after which everything is removed. The second Ctrl-C
/// ends the process.
fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// All variants of a case, in turns.
fn measure(
    case: &Case,
    runs: u32,
    stop: &AtomicBool,
    say: Progress<'_>,
) -> anyhow::Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::new(); case.variants().len()];
    for run in 1..=runs {
        for (variant, samples) in case.variants().iter().zip(&mut samples) {
            let mut rig = build(case, variant, stop, say).with_context(|| (*variant).to_owned())?;
            let sample = load::measure(&mut rig, case, PATIENCE, stop);
            let sample = sample.with_context(|| (*variant).to_owned())?;
            say(&told(case, variant, run, &sample));
            // A rig that cannot be removed in order is removed by force; the figures are valid.
            let ended = if sample.is_stuck { Ok(()) } else { rig.end(case) };
            tool::check(stop)?;
            ended.unwrap_or_else(|error| say(&format!("{variant}, in the end: {error:#}")));
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Sets up a run, if need be in a second try: other processes of the machine may disturb `mkfs`.
fn build<'a>(
    case: &Case,
    variant: &str,
    stop: &'a AtomicBool,
    say: Progress<'_>,
) -> anyhow::Result<Rig<'a>> {
    Rig::build(case, variant, stop).or_else(|error| {
        tool::check(stop)?;
        say(&format!("{variant}: {error:#}: once more"));
        std::thread::sleep(AGAIN);
        Rig::build(case, variant, stop)
    })
}

fn told(case: &Case, variant: &str, run: u32, sample: &Sample) -> String {
    let name = case.name();
    match sample.is_stuck {
        true => format!("{name}, {variant}, run {run}: STUCK, all of it is taken away"),
        false => format!("{name}, {variant}, run {run}: {} files/s", sample.files_per_second),
    }
}
