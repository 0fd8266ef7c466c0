//! The laboratory: experiments that compare a design of Drystone with those it replaces, on the
//! present machine. Each is one library call, which `drystone-lab run` makes.
//!
//! * [`drystone_bench`] keeps I/O in flight and counts; `drystone bench` uses it too.
//! * [`scheduler`] has the schedulers that Drystone replaces, [`throttle`] the throttles.
//! * [`run`] runs an experiment by name and returns an [`Outcome`]: text, JSON, or one HTML page.
//! * [`run_all`] runs those of the five mails, and makes one page of them.
//! * [`model`] models one on more cores than the machine has, and marks every such figure.
//!
//! An outcome has only figures of its own run.
//!
//! ```
//! use drystone_lab::Options;
//!
//! let options = Options { runs: 1, runtime_ns: 1_000_000, threads: 1, ..Options::default() };
//! let outcome = drystone_lab::run("reorder", &options, &mut |step| println!("{step}"))?;
//! println!("{}", outcome.text());
//! assert!(outcome.rows.iter().any(|row| row.variant == "ours"));
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

mod blk_throttle;
#[cfg(not(loom))]
pub mod cli;
mod dm_poll;
mod folder;
mod html;
mod kernel;
mod mails;
mod measure;
mod model;
mod mq_deadline;
mod outcome;
mod plug_time;
pub mod raid5_fsmark;
pub mod raid5_wait;
mod reorder;
mod row;
pub mod scheduler;
mod steps;
mod table;
mod temp_file;
pub mod throttle;

pub use drystone_bench::Stop;
pub use mails::{Pages, is_of_a_mail, run_all};
pub use model::{CORES_MAX, MODELS, ModelOptions, ModelOutcome, model, parse_cores};
pub use outcome::{Curve, Machine, Outcome, Plot};
pub use row::Row;
pub use table::Table;

/// The parameters of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Runs of each variant, in turns; at least 1.
    pub runs: u32,
    /// Time measured in each run, ns.
    pub runtime_ns: u64,
    /// The most threads.
    pub threads: u32,
    /// Also measure the points that only the page's chart over threads shows.
    pub chart: bool,
    /// Also run the kernel's own, which takes root and fio.
    pub kernel: bool,
    /// Of `raid5-fsmark`: bytes of files that a run writes; `None` is its own choice.
    pub bytes: Option<u64>,
    /// For `raid5-fsmark`: only cases whose names contain these words are run.
    pub only: Vec<String>,
    /// Set to end after the present run, with the figures so far.
    pub stop: Stop,
}

/// Runs and most threads of most experiments.
const RUNS: u32 = 5;
const THREADS: u32 = 32;
/// The default of the time measured in a run, ns.
pub const RUNTIME_NS: u64 = 2_000_000_000;

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The name that [`run`] takes.
    pub name: &'static str,
    /// What it compares, in one line.
    pub about: &'static str,
    /// The default number of runs of each variant.
    pub runs: u32,
    /// The default of the most threads.
    pub threads: u32,
    /// The fields of [`Options`] that have no effect on it: the command line refuses them.
    pub ignores: &'static [&'static str],
    run: Run,
}

/// A function that gets a line about each step.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

type Run = fn(&Options, Progress<'_>) -> anyhow::Result<Outcome>;

/// All experiments.
pub const EXPERIMENTS: [Experiment; 8] = [
    mq_deadline::EXPERIMENT,
    dm_poll::EXPERIMENT,
    reorder::EXPERIMENT,
    blk_throttle::EXPERIMENT,
    blk_throttle::ACCURACY,
    raid5_wait::EXPERIMENT,
    plug_time::EXPERIMENT,
    raid5_fsmark::EXPERIMENT,
];

/// Run the experiment `name`; `say` gets a line about each step.
///
/// # Errors
/// When there is no such experiment, a device cannot be opened, or an I/O fails.
pub fn run(name: &str, options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let Some(experiment) = EXPERIMENTS.iter().find(|experiment| experiment.name == name) else {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
        anyhow::bail!("no experiment `{name}`: there is {}", names.join(", "));
    };
    Ok((experiment.run)(options, say)?.ended_early(options))
}
