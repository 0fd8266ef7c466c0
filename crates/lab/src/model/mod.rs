//! Models: what a design would do on cores that this machine has not. Every figure of a model is
//! marked as modelled; what feeds and checks it is measured in the same run.
//!
//! * `costs`, `design`, `cores`, `line`, `outcome`: what all models have: the machine's costs, its
//!   cores and cache lines as a simulation knows them, and the shape of what was found.
//!
//! The others are of `mq-deadline`; the model of `dm-poll` is `dm_poll::model`.
//!
//! * `variants`: what is measured of each, and how it becomes the data of a design.
//! * `sim`: the simulation, which takes all costs as values.
//! * `mail`: the mail's pair, fitted to its first row.
//! * `verdict`, `page`: how far the model is off, and the page that says so.

pub(crate) mod cores;
pub(crate) mod costs;
pub(crate) mod design;
pub(crate) mod line;
mod mail;
pub(crate) mod outcome;
mod page;
mod sim;
#[cfg(test)]
mod tests;
mod variants;
pub(crate) mod verdict;

use std::time::Duration;

use anyhow::bail;

pub use outcome::ModelOutcome;

use self::design::{Costs, Design, Figures, Ps, Setting};
use self::page::Page;
use self::sim::simulate;
use self::variants::Measured;
use self::verdict::Check;
use crate::Say;
use crate::dm_poll;
use crate::kernel::LOAD;
use crate::measure::Sample;
use crate::mq_deadline::{EXPERIMENT, VARIANTS};
use crate::outcome::{Machine, spread, threads_text};
use drystone_bench::machine;

/// The models that there are, by the names of their experiments.
pub const MODELS: [&str; 2] = [EXPERIMENT.name, dm_poll::EXPERIMENT.name];

/// How a model is run.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Numbers of cores to model, ascending.
    pub cores: Vec<u32>,
    /// Runs of each measured point, in turns; at least 1.
    pub runs: u32,
    /// Time measured in each run, ns.
    pub runtime_ns: u64,
    /// The most threads of the measured points.
    pub threads: u32,
}

/// The most cores that can be modelled.
pub const CORES_MAX: u32 = 256;

/// The numbers of cores that a text means: `1..128` are the powers of two from the first to the
/// last and both of them, `2,24,96` are these.
///
/// # Errors
/// A sentence, when it means none.
pub fn parse_cores(text: &str) -> Result<Vec<u32>, String> {
    let number = |part: &str| match part.trim().parse::<u32>() {
        Ok(number) if (1..=CORES_MAX).contains(&number) => Ok(number),
        _ => Err(format!(
            "`{part}` is no number of cores from 1 to {CORES_MAX}: write 1..128, or 2,24,96"
        )),
    };
    let mut cores = match text.split_once("..") {
        None => text.split(',').map(number).collect::<Result<Vec<u32>, String>>()?,
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("{first}..{last} goes down: write {last}..{first}"));
            }
            let powers = (0..u32::BITS).map(|n| 1 << n).filter(|n| (first..=last).contains(n));
            powers.chain([first, last]).collect()
        }
    };
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// A variant with all that is measured and modelled of it.
pub(crate) struct Studied {
    measured: Measured,
    design: Design,
    /// The runs of each checked number of threads, and what the model says of it.
    points: Vec<(Check, Vec<Sample>, Figures)>,
    /// What the model says of so many cores with a thread each.
    beyond: Vec<(u32, Figures)>,
}

impl Studied {
    fn checks(&self) -> Vec<Check> {
        self.points.iter().map(|(check, ..)| *check).collect()
    }
}

/// Run the model `name`; `say` gets a line about each step.
///
/// # Errors
/// When there is no such model, less than two cores may be used, or a measurement fails.
pub fn model(name: &str, options: &ModelOptions, say: Say<'_>) -> anyhow::Result<ModelOutcome> {
    if name == EXPERIMENT.name {
        mq_deadline(options, say)
    } else if name == dm_poll::EXPERIMENT.name {
        dm_poll::model(options, say)
    } else {
        bail!("no model `{name}`: there is {}", MODELS.join(", "))
    }
}

fn mq_deadline(options: &ModelOptions, say: Say<'_>) -> anyhow::Result<ModelOutcome> {
    let date = machine::now();
    let siblings = costs::are_siblings(costs::two_cores()?);
    say("costs of the machine");
    let costs = costs::measure(Duration::from_nanos(options.runtime_ns / 4))?;
    say("costs of the variants, with 1 thread");
    let mut studied = study(options)?;
    let here = Machine::here();
    for threads in shown_threads(options.threads) {
        say(&threads_text(threads));
        check(&mut studied, &costs, threads, here.cores, options)?;
    }
    // Everything about the model is fixed by now; only then it is held against the mail.
    say("the mail's pair");
    let mail = mail::fit(&costs, &mail::BEFORE);
    for cores in &options.cores {
        say(&format!("modelling {cores} core{}", if *cores == 1 { "" } else { "s" }));
        for one in &mut studied {
            let place = Place { cores: *cores, threads: *cores, had: 1.0 };
            let found = figures(&one.design, &costs, place, LONGEST_PS);
            one.beyond.push((*cores, found));
        }
    }
    let page = Page {
        name: EXPERIMENT.name,
        date,
        machine: here,
        options: options.clone(),
        costs,
        siblings,
        studied,
        mail,
    };
    Ok(page.outcome())
}

fn study(options: &ModelOptions) -> anyhow::Result<Vec<Studied>> {
    let empty_ns = costs::empty_hold_ns();
    let measure = |variant| variants::measure(variant, options.runs, options.runtime_ns, empty_ns);
    let all = VARIANTS.iter().map(measure).collect::<anyhow::Result<Vec<Measured>>>()?;
    let none_ns = all.iter().find(|one| one.name == "none").map_or(0.0, |none| none.cpu_ns);
    let study = |measured: Measured| {
        let design = variants::design(&measured, none_ns);
        Studied { measured, design, points: Vec::new(), beyond: Vec::new() }
    };
    Ok(all.into_iter().map(study).collect())
}

fn shown_threads(most: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|n| 1 << n).take_while(move |n| *n <= most)
}

/// Measure all variants with so many threads, in turns, and model the same.
fn check(
    studied: &mut [Studied],
    costs: &Costs,
    threads: u32,
    cores: u64,
    options: &ModelOptions,
) -> anyhow::Result<()> {
    let mut samples: Vec<Vec<Sample>> = studied.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.runs {
        for (variant, samples) in VARIANTS.iter().zip(&mut samples) {
            samples.push(variants::point(variant, threads, options.runtime_ns, false)?);
        }
    }
    let median = |samples: &[Sample], of: fn(&Sample) -> f64| {
        let values: Vec<f64> = samples.iter().map(of).collect();
        spread(&values).map_or(f64::NAN, |(_, median, _)| median)
    };
    // Without a scheduler nobody waits or sleeps: what it lacks of its cores was not to be had.
    let none = VARIANTS.iter().position(|variant| variant.name == "none");
    let used = none.map_or(1.0, |none| median(&samples[none], |sample| sample.cores_used));
    let had = (used / f64::from(threads).min(cores as f64)).min(1.0);
    for (one, samples) in studied.iter_mut().zip(samples) {
        // A thread alone has what it had of one core.
        let place = Place { cores: threads.min(cores as u32), threads, had };
        let found = figures(&one.design, costs, place, options.runtime_ns * 1000);
        let measured = median(&samples, |sample| sample.iops);
        let check = Check { threads, measured, modelled: found.iops, had };
        one.points.push((check, samples, found));
    }
    Ok(())
}

/// Where a design is modelled.
#[derive(Clone, Copy)]
struct Place {
    cores: u32,
    threads: u32,
    had: f64,
}

/// The figures of a design: simulated for some turns of all threads where they share cores, and
/// for longer until they have ended some batches on average; but no longer than `longest`.
fn figures(design: &Design, costs: &Costs, place: Place, longest: Ps) -> Figures {
    const BATCHES: u64 = 50;
    let Place { cores, threads, had } = place;
    let turns =
        if threads > cores || had < 1.0 { 2 * u64::from(threads.div_ceil(cores)) } else { 0 };
    let turn_ps = costs.slice_ps as f64 / had;
    let mut time_ps = ((turns as f64 * turn_ps) as Ps).max(1_000_000_000).min(longest);
    loop {
        let all: Vec<Figures> =
            (SEED..SEED + SEEDS).map(|seed| run(design, costs, place, time_ps, seed)).collect();
        let done: u64 = all.iter().map(|found| found.done).sum();
        let enough = done >= SEEDS * BATCHES * LOAD.batch as u64 * u64::from(threads);
        // On a busy machine a short time may pass without an end that counts, which is no figure.
        let counted = all.iter().any(|found| found.iops > 0.0);
        let most = if counted { longest } else { longest.saturating_mul(64) };
        if enough || time_ps * 2 > most {
            let mean = |of: fn(&Figures) -> f64| all.iter().map(of).sum::<f64>() / SEEDS as f64;
            return Figures {
                iops: mean(|f| f.iops),
                contention: mean(|f| f.contention),
                ..all[0]
            };
        }
        time_ps *= 2;
    }
}

fn run(design: &Design, costs: &Costs, place: Place, time_ps: Ps, seed: u64) -> Figures {
    let (cores, threads) = (place.cores as usize, place.threads as usize);
    let (batch, had) = (LOAD.batch as u32, place.had);
    simulate(design, costs, &Setting { cores, threads, batch, time_ps, had, jitter: 0.5, seed })
}

/// The longest time that is simulated where nothing was measured.
const LONGEST_PS: Ps = 200_000_000_000;

/// The first of the seeds.
const SEED: u64 = 1;

/// Each figure is the mean of so many runs with seeds of their own: a lock may fall into one gait
/// or another, and stay in it.
const SEEDS: u64 = 4;

#[cfg(test)]
mod option_tests {
    use super::*;

    #[test]
    fn cores_are_ranges_or_lists() {
        assert_eq!(parse_cores("1..128"), Ok(vec![1, 2, 4, 8, 16, 32, 64, 128]));
        assert_eq!(parse_cores("3..24"), Ok(vec![3, 4, 8, 16, 24]));
        assert_eq!(parse_cores("96, 2,2"), Ok(vec![2, 96]));
        assert_eq!(parse_cores("7"), Ok(vec![7]));
        for bad in ["", "0", "257", "x", "1..", "..4", "1,,2", "1..2..3", "-1"] {
            assert!(parse_cores(bad).is_err_and(|text| text.contains("1..128")), "{bad}");
        }
        assert_eq!(parse_cores("8..2"), Err("8..2 goes down: write 2..8".to_owned()));
    }

    #[test]
    fn there_is_no_other_model() {
        let options = ModelOptions { cores: vec![1], runs: 1, runtime_ns: 1, threads: 1 };
        let error = model("x", &options, &mut |_| ()).err().expect("no such model");
        assert!(error.to_string().contains("mq-deadline"), "{error}");
    }
}
