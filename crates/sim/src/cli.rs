//! The command line of `drystone-sim`, to which `drystone sim` hands over.
//!
//! The simulator needs a build with points inside every call (`--cfg drystone_sim`), which an
//! ordinary build does not have: `make sim` makes one.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use drystone::failure::Failure;
use drystone::output;

use crate::outcome::Outcome;
use crate::runner::{self, Order, SCENARIOS, Scenario, Summary};
use crate::{HAS_POINTS, MISTAKES, Mistake, mistake, shrink, trace};

/// Seeds without `--runs`, `--minutes` or `--seed`.
const RUNS: u64 = 100;

/// Runs whole stacks on simulated disks that fail, in an order that a seed decides.
///
/// Exit status: 0 all seeds are well, 1 a seed failed, 2 wrong usage.
#[derive(Debug, Clone, Parser)]
#[command(name = "drystone-sim", bin_name = "drystone sim", version, max_term_width = 100)]
pub struct Cli {
    /// The first seed [default: one that was never used]; alone, the only one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of seeds [default: 100, unless --minutes or --seed is given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// Run seeds for this many minutes
    #[arg(
        long,
        value_name = "M",
        conflicts_with = "runs",
        value_parser = clap::value_parser!(u64).range(1..=100_000),
    )]
    minutes: Option<u64>,
    /// The scenario to simulate; --list lists them
    #[arg(long, value_name = "NAME", default_value = SCENARIOS[0].name)]
    scenario: String,
    /// Trace the failing I/O and all others to the same sectors; all I/Os if it is not known which
    /// one failed
    #[arg(long, requires = "seed", conflicts_with_all = ["runs", "minutes"])]
    trace: bool,
    /// Trace all I/Os
    #[arg(long, requires = "seed", conflicts_with_all = ["runs", "minutes", "trace"])]
    trace_all: bool,
    /// Do only these I/Os of the seed, as 3,7-9
    #[arg(long, value_name = "LIST", requires = "seed", conflicts_with_all = ["runs", "minutes"])]
    keep: Option<String>,
    /// Seeds at a time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Do not look for a smaller failure
    #[arg(long)]
    no_shrink: bool,
    /// Make this mistake on purpose, to see that it is found; --list lists them
    #[arg(long = "break", value_name = "NAME", conflicts_with = "list")]
    mistake: Option<String>,
    /// List scenarios and mistakes
    #[arg(long, exclusive = true)]
    list: bool,
}

impl Cli {
    fn is_one_seed(&self) -> bool {
        self.seed.is_some() && self.runs.is_none() && self.minutes.is_none()
    }
}

/// The message of a program without points.
const NO_POINTS: &str = "this drystone-sim has no points at which a simulated context could be \
    stopped inside a call: `make sim` builds one that has";

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    drystone::cli::run_program(|args: Cli| run(&args))
}

fn run(args: &Cli) -> Result<(), Failure> {
    if args.list {
        return list();
    }
    if args.jobs.is_some() && args.is_one_seed() {
        let text = "--jobs has no effect on one seed: leave it out, or add --runs or --minutes";
        return Err(Failure::Usage(text.to_owned()));
    }
    if !HAS_POINTS {
        return Err(Failure::Refused(NO_POINTS.to_owned()));
    }
    let scenario = runner::scenario(&args.scenario).ok_or_else(|| {
        Failure::Usage(format!("there is no scenario `{}`: --list lists them", args.scenario))
    })?;
    let order = order(args)?;
    runner::quiet_panics();
    match args.seed {
        Some(_) if args.is_one_seed() => one(args, scenario, &order),
        _ => many(args, scenario, &order),
    }
}

/// The order that the command line gives.
fn order(args: &Cli) -> Result<Order, Failure> {
    let keep = args.keep.as_deref().map(shrink::parse).transpose().map_err(Failure::Usage)?;
    let known = |name: &String| {
        let found = mistake(name).map(|mistake| mistake.name);
        found.ok_or_else(|| {
            Failure::Usage(format!("there is no mistake `{name}`: --list lists them"))
        })
    };
    let mistake = args.mistake.as_ref().map(known).transpose()?;
    let seed = args.seed.unwrap_or_else(new_seed);
    Ok(Order { seed, keep, trace: args.trace || args.trace_all, mistake })
}

/// A seed from the clock, so that each run has a new one.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000_000_000 * 1000
}

fn list() -> Result<(), Failure> {
    let mut text = "Scenarios:\n".to_owned();
    for Scenario { name, what, .. } in SCENARIOS {
        let _ = writeln!(text, "  {name:24} {what}");
    }
    text.push_str("Mistakes for --break:\n");
    for Mistake { name, what, .. } in MISTAKES {
        let _ = writeln!(text, "  {name:24} {what}");
    }
    output::print(&text).map(drop)
}

/// Runs one seed.
fn one(args: &Cli, scenario: &Scenario, order: &Order) -> Result<(), Failure> {
    let outcome = (scenario.run)(order);
    if order.trace {
        print_trace(&outcome, args.trace_all)?;
    }
    if outcome.failure.is_some() {
        return Err(failed(args, scenario, order, &outcome));
    }
    let Outcome { ios, simulated_ns, digest, .. } = outcome;
    let seconds = simulated_ns as f64 / 1e9;
    let seed = order.seed;
    output::print(&format!(
        "seed {seed}: all well: {ios} I/Os in {seconds:.3} simulated seconds, digest \
         {digest:016x}\n"
    ))?;
    Ok(())
}

/// Runs many seeds, until one fails.
fn many(args: &Cli, scenario: &Scenario, order: &Order) -> Result<(), Failure> {
    let (started, first) = (Instant::now(), order.seed);
    let over = args.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let count = if over.is_some() { u64::MAX } else { args.runs.unwrap_or(RUNS) };
    let seeds = runner::seeds(first, count);
    let next = || seeds().filter(|_| over.is_none_or(|over| started.elapsed() < over));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs =
        args.jobs.map_or(jobs, usize::from).min(usize::try_from(count).unwrap_or(usize::MAX));
    output::print(&format!(
        "scenario {}, seeds from {first} on, {jobs} at a time\n",
        scenario.name
    ))?;
    let mut told = started;
    let summary = runner::run(scenario, order.mistake, jobs, next, |so_far| {
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let (seeds, seconds) = (so_far.seeds, started.elapsed().as_secs());
            output::note(&format!("{seeds} seeds in {seconds} s"));
        }
    });
    if let Some((seed, outcome)) = &summary.failed {
        let order = Order { seed: *seed, ..order.clone() };
        return Err(failed(args, scenario, &order, outcome));
    }
    output::print(&report(&summary, started.elapsed()))?;
    Ok(())
}

/// The events that happened, and how often.
fn report(summary: &Summary, took: Duration) -> String {
    let mut text = String::new();
    for (name, count) in summary.counts.iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(text, "{count:>14}  {name}");
    }
    let Summary { seeds, ios, simulated_ns, .. } = summary;
    let (took, simulated) = (took.as_secs_f64(), *simulated_ns as f64 / 1e9);
    let _ = writeln!(
        text,
        "{seeds} seeds, all well: {ios} I/Os in {took:.1} s ({simulated:.0} simulated seconds)"
    );
    text
}

/// The command line that runs the seed again.
fn replay(scenario: &Scenario, order: &Order) -> String {
    let mut line = format!("drystone sim --scenario {} --seed {}", scenario.name, order.seed);
    if let Some(keep) = &order.keep {
        let _ = write!(line, " --keep {}", shrink::text_of(keep));
    }
    if let Some(mistake) = order.mistake {
        let _ = write!(line, " --break {mistake}");
    }
    line
}

/// Reports the failure at once, and then looks for a smaller one.
fn failed(args: &Cli, scenario: &Scenario, order: &Order, outcome: &Outcome) -> Failure {
    let why = outcome.failure.as_ref().map(ToString::to_string).unwrap_or_default();
    output::error(&format!("seed {} failed: {why}", order.seed));
    output::note(&format!("again: {}", replay(scenario, order)));
    if args.no_shrink || order.keep.is_some() || order.trace {
        return Failure::Refused("a simulated stack has failed".to_owned());
    }
    output::note("looking for a smaller failure");
    let keep = runner::smallest(scenario, order, outcome.ios);
    let count = keep.len();
    let order = Order { keep: Some(keep), ..order.clone() };
    let why = (scenario.run)(&order).failure.map(|why| why.to_string()).unwrap_or_default();
    let (all, again) = (outcome.ios, replay(scenario, &order));
    Failure::Report(format!(
        "error: a simulated stack has failed, also with {count} of {all} I/Os: {why}\nagain: \
         {again} --trace"
    ))
}

/// Prints the stack and the trace of the I/O that failed. The trace is of all I/Os if `all` is set
/// or if the failing one is unknown.
fn print_trace(outcome: &Outcome, all: bool) -> Result<(), Failure> {
    let lines = match outcome.culprit.filter(|_| !all) {
        Some(culprit) => trace::way_of(culprit, &outcome.trace),
        None => outcome.trace.iter().collect(),
    };
    let mut text = format!("{}\n", outcome.stack);
    for (at, fiber, line) in lines {
        let _ = writeln!(text, "{:>16.9} {fiber:12} {line}", *at as f64 / 1e9);
    }
    output::print(&text).map(drop)
}
