//! The figures of a design: the mean of several simulations with different seeds.

use super::design::{Costs, Design, Figures, Ps, Setting};
use super::sim::simulate;
use crate::kernel::LOAD;

/// The machine that a design is modelled on: cores, and threads on them.
#[derive(Clone, Copy)]
pub(super) struct ModelledMachine {
    pub(super) cores: u32,
    pub(super) threads: u32,
    /// The share of the cores' time that the threads get.
    pub(super) had: f64,
}

/// The figures of a design. The simulated time covers several turns of all threads if they share
/// cores. It is extended until they have ended some batches on average, but not beyond `longest`.
pub(super) fn figures(design: &Design, costs: &Costs, on: ModelledMachine, longest: Ps) -> Figures {
    const BATCHES: u64 = 50;
    let ModelledMachine { cores, threads, had } = on;
    let turns =
        if threads > cores || had < 1.0 { 2 * u64::from(threads.div_ceil(cores)) } else { 0 };
    let turn_ps = costs.slice_ps as f64 / had;
    let mut time_ps = ((turns as f64 * turn_ps) as Ps).max(1_000_000_000).min(longest);
    loop {
        let all: Vec<Figures> =
            (SEED..SEED + SEEDS).map(|seed| run(design, costs, on, time_ps, seed)).collect();
        let done: u64 = all.iter().map(|found| found.done).sum();
        let enough = done >= SEEDS * BATCHES * LOAD.batch as u64 * u64::from(threads);
        // On a busy machine a short time may pass without an ended I/O, which gives no figure.
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

fn run(design: &Design, costs: &Costs, on: ModelledMachine, time_ps: Ps, seed: u64) -> Figures {
    let (cores, threads) = (on.cores as usize, on.threads as usize);
    let (batch, had) = (LOAD.batch as u32, on.had);
    simulate(design, costs, &Setting { cores, threads, batch, time_ps, had, jitter: 0.5, seed })
}

/// The longest simulated time for points without a measurement.
pub(super) const LONGEST_PS: Ps = 200_000_000_000;

/// The first of the seeds.
pub(super) const SEED: u64 = 1;

/// The number of runs, with different seeds, of which each figure is the mean: a lock may settle in
/// one of several rhythms.
const SEEDS: u64 = 4;
