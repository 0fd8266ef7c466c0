//! The model of `dm-poll`: pollers with a core each, on more cores than this machine has. Every
//! modelled figure is marked; its inputs and checks are measured in the same run.
//!
//! * `inputs`: measurements besides the points; `points`: the measured points, and an I/O's costs
//!   computed from them.
//! * `load`, `sim`, `parts`: the simulation, which takes all costs as values; `seeds`: the mean of
//!   some of its runs; `beyond`: its figures for more cores than the machine has.
//! * `verdict`, `page`: the error of the model, the effects that it lacks, and the page about both.
//!
//! Polled requests wait for no thread, so two pollers can have two cores of this machine: this
//! checks the model's cache lines and busy queues. By interrupt the device needs one of the cores.

mod beyond;
mod inputs;
mod load;
mod page;
mod parts;
mod points;
mod seeds;
mod sim;
#[cfg(test)]
mod tests;
mod verdict;

use std::time::Duration;

use super::cores::{Cores, Pinned};
use super::scene::{DEPTH, MAIL_DEPTH, PINNED, SEVERAL, STRIPE};
use super::variants::{JUDGED_US, POLLERS};
use super::{EXPERIMENT, wake};
use crate::Progress;
use crate::model::costs;
use crate::model::design::{Costs, Ps, Setting};
use crate::model::{ModelOptions, ModelOutcome};
use crate::outcome::Machine;
use beyond::Beyond;
use drystone_bench::machine;
use load::{Figures, Load, Way};
use page::Page;
use points::{IoCostsOf, Point};
use seeds::{SEED, figures};

/// The spread of the time of a submission around its mean, evenly.
const JITTER: f64 = 0.5;
/// Longest time that is simulated.
const LONGEST_PS: Ps = 300_000_000_000;

/// The tables that are modelled for more cores, each with its ways to learn of ends.
const TABLES: [(&str, &[Way]); 3] = [
    (SEVERAL, &[Way::Interrupt, Way::Poll { skips: true }, Way::Poll { skips: false }]),
    (PINNED, &[Way::Interrupt, Way::Poll { skips: true }]),
    (STRIPE, &[Way::Interrupt, Way::Poll { skips: true }]),
];

/// Run the model.
///
/// # Errors
/// When less than two cores may be used, or a measurement fails.
pub fn model(options: &ModelOptions, say: Progress<'_>) -> anyhow::Result<ModelOutcome> {
    let date = machine::now();
    let cores = Cores::here()?;
    let siblings = costs::are_siblings(costs::two_cores()?);
    say("costs of the machine");
    let each = Duration::from_nanos(options.runtime_ns / 4);
    let (mut costs, inputs) = (costs::measure(each)?, inputs::measure(&cores, each)?);
    let wake = {
        let _pinned = Pinned::to(cores.device)?;
        wake::measure(cores.submit[0])?
    };
    // The time of a wake-up lasts from the call until the context goes on; it includes the switch
    // to the context.
    costs.latency_ps = costs::ps(wake.latency_ns).saturating_sub(costs.switch_ps);
    let mut points = points::all(options.threads, &cores);
    points::measure(&mut points, options, say)?;
    let io = IoCostsOf::of(&points, &inputs, &wake)?;
    for number in 0..points.len() {
        points[number].modelled = Some(check(&points, number, &io, &costs, options.runtime_ns));
    }
    let mut beyond = Vec::new();
    for cores in shown(&options.cores) {
        say(&format!("modelling {cores} core{}", if cores == 1 { "" } else { "s" }));
        for depth in [DEPTH, MAIL_DEPTH] {
            beyond.extend(TABLES.iter().map(|(table, ways)| {
                let figures =
                    |way: &Way| (*way, figures_beyond(table, depth, *way, cores, &io, &costs));
                Beyond { table, depth, cores, ways: ways.iter().map(figures).collect() }
            }));
        }
    }
    let page = Page {
        date,
        machine: Machine::here(),
        options: options.clone(),
        cores,
        costs,
        siblings,
        inputs,
        wake,
        io,
        points,
        beyond,
    };
    Ok(page.outcome(EXPERIMENT.name))
}

/// The requested numbers of cores, and the mail's.
fn shown(asked: &[u32]) -> Vec<u32> {
    let mut cores = asked.to_vec();
    cores.push(POLLERS);
    cores.sort_unstable();
    cores.dedup();
    cores
}

/// The model's figures of a measured point, on the cores that it had.
fn check(
    points: &[Point],
    number: usize,
    io: &IoCostsOf,
    costs: &Costs,
    runtime_ns: u64,
) -> Figures {
    let point = &points[number];
    let load = Load {
        queues: point.queues(),
        devices_had: point.device_had(),
        ..load(point.way(), point.scene.depth, point.scene.striped)
    };
    let (cores, threads) = (point.cores() as usize, point.scene.threads as usize);
    let turn_ps = costs.slice_ps * threads.div_ceil(cores) as u64;
    let had = points::had(points, number);
    let longest = LONGEST_PS.min(runtime_ns * 1000).max(1_000_000_000);
    // If threads share cores or lose them, the time covers several turns of all threads.
    let alone = threads <= cores && had > 0.99;
    let time_ps = if alone { 20_000_000_000 } else { turn_ps * 40 }.clamp(1_000_000_000, longest);
    let setting = Setting { cores, threads, batch: 1, time_ps, had, jitter: JITTER, seed: SEED };
    figures(&load, io.of_table(point.scene.striped), costs, &setting)
}

fn load(way: Way, depth: usize, striped: bool) -> Load {
    let latency_ps = u64::from(JUDGED_US) * 1_000_000;
    Load { way, depth, striped, queues: 1, latency_ps, devices: 1, devices_had: 1.0 }
}

/// A poller on each of `cores`; by interrupt each has a core of its own that keeps its devices'
/// time.
fn figures_beyond(
    table: &str,
    depth: usize,
    way: Way,
    cores: u32,
    io: &IoCostsOf,
    costs: &Costs,
) -> Figures {
    let (cores, striped) = (cores as usize, table == STRIPE);
    let queues = if table == SEVERAL { 1 } else { cores };
    let load = Load { queues, devices: cores, ..load(way, depth, striped) };
    // More pollers end the same number of I/Os in less time.
    let time_ps = (40_000_000_000 / cores as u64).clamp(1_000_000_000, 10_000_000_000);
    let setting =
        Setting { cores, threads: cores, batch: 1, time_ps, had: 1.0, jitter: JITTER, seed: SEED };
    figures(&load, io.of_table(striped), costs, &setting)
}
