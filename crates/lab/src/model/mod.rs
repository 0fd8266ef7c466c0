//! Models: the behaviour of a design on more cores than this machine has. Every figure of a model
//! is marked as modelled; its inputs and checks are measured in the same run.
//!
//! * `options`: the parameters of a model.
//! * `costs`, `design`, `cores`, `line`, `outcome`: the parts of all models: the machine's costs,
//!   its cores and cache lines in a simulation, and the form of the findings.
//!
//! The other files belong to `mq-deadline`; the model of `dm-poll` is `dm_poll::model`.
//!
//! * `variants`: the measurements of each variant, and their conversion to a design.
//! * `studied`: a variant with its measurements and its model.
//! * `sim`, `figures`: the simulation, which takes all costs as values, and the mean of some runs.
//! * `mail`: the mail's pair, fitted to its first row.
//! * `verdict`, `page`: the error of the model, and the page about it.

pub(crate) mod cores;
pub(crate) mod costs;
pub(crate) mod design;
mod figures;
pub(crate) mod line;
mod mail;
mod options;
pub(crate) mod outcome;
mod page;
mod sim;
mod studied;
mod variants;
pub(crate) mod verdict;

use std::time::Duration;

use anyhow::bail;

pub use options::{CORES_MAX, ModelOptions, parse_cores};
pub use outcome::ModelOutcome;

use self::design::Costs;
use self::figures::{LONGEST_PS, ModelledMachine, figures};
use self::page::Page;
use self::studied::Studied;
use self::variants::Measured;
use self::verdict::Check;
use crate::Progress;
use crate::dm_poll;
use crate::measure::Sample;
use crate::mq_deadline::{EXPERIMENT, VARIANTS};
use crate::outcome::{Machine, threads_text};
use crate::row::spread;
use drystone_bench::machine;

/// The models, by the names of their experiments.
pub const MODELS: [&str; 2] = [EXPERIMENT.name, dm_poll::EXPERIMENT.name];

/// Run the model `name`; `say` gets a line about each step.
///
/// # Errors
/// When there is no such model, less than two cores may be used, or a measurement fails.
pub fn model(
    name: &str,
    options: &ModelOptions,
    say: Progress<'_>,
) -> anyhow::Result<ModelOutcome> {
    if name == EXPERIMENT.name {
        mq_deadline(options, say)
    } else if name == dm_poll::EXPERIMENT.name {
        dm_poll::model(options, say)
    } else {
        bail!("no model `{name}`: there is {}", MODELS.join(", "))
    }
}

fn mq_deadline(options: &ModelOptions, say: Progress<'_>) -> anyhow::Result<ModelOutcome> {
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
    // The model is complete by now; only then it is compared with the mail.
    say("the mail's pair");
    let mail = mail::fit(&costs, &mail::BEFORE);
    for cores in &options.cores {
        say(&format!("modelling {cores} core{}", if *cores == 1 { "" } else { "s" }));
        for one in &mut studied {
            let on = ModelledMachine { cores: *cores, threads: *cores, had: 1.0 };
            let found = figures(&one.design, &costs, on, LONGEST_PS);
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
    // Without a scheduler no thread waits or sleeps, so time that it did not use was not available.
    let none = VARIANTS.iter().position(|variant| variant.name == "none");
    let used = none.map_or(1.0, |none| median(&samples[none], |sample| sample.cores_used));
    let had = (used / f64::from(threads).min(cores as f64)).min(1.0);
    for (one, samples) in studied.iter_mut().zip(samples) {
        // A single thread has its share of one core.
        let on = ModelledMachine { cores: threads.min(cores as u32), threads, had };
        let found = figures(&one.design, costs, on, options.runtime_ns * 1000);
        let measured = median(&samples, |sample| sample.iops);
        let check = Check { threads, measured, modelled: found.iops, had };
        one.points.push((check, samples, found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_other_model() {
        let options = ModelOptions { cores: vec![1], runs: 1, runtime_ns: 1, threads: 1 };
        let error = model("x", &options, &mut |_| ()).err().expect("no such model");
        assert!(error.to_string().contains("mq-deadline"), "{error}");
    }
}
