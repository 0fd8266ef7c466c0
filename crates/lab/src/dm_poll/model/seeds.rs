//! The mean of several simulations with different seeds.

use super::load::{Figures, IoCosts, Load};
use super::sim::simulate;
use crate::model::design::{Costs, Ps, Setting};

/// The first seed; each figure is the mean of several runs with different seeds.
pub(super) const SEED: u64 = 1;
pub(super) const SEEDS: u64 = 3;
/// The multiples of the requested time that are simulated in turn, until an I/O ends.
const STRETCHES: [Ps; 4] = [1, 4, 16, 64];

/// The mean of some seeds. On a busy machine, where devices hardly had a core, a short time may
/// pass without an ended I/O. That gives no figure, so a longer time is simulated.
pub(super) fn figures(load: &Load, io: &IoCosts, costs: &Costs, setting: &Setting) -> Figures {
    let times = STRETCHES.map(|times| setting.time_ps.saturating_mul(times));
    let runs = times.map(|time_ps| Setting { time_ps, ..*setting });
    let (last, first) = runs.split_last().expect("some");
    let any = |found: &Figures| found.iops > 0.0;
    let mut tried = first.iter().map(|setting| mean_of_seeds(load, io, costs, setting));
    tried.find(any).unwrap_or_else(|| mean_of_seeds(load, io, costs, last))
}

fn mean_of_seeds(load: &Load, io: &IoCosts, costs: &Costs, setting: &Setting) -> Figures {
    let all: Vec<Figures> = (setting.seed..setting.seed + SEEDS)
        .map(|seed| simulate(load, io, costs, &Setting { seed, ..*setting }))
        .collect();
    let mean = |of: fn(&Figures) -> f64| all.iter().map(of).sum::<f64>() / SEEDS as f64;
    Figures {
        iops: mean(|f| f.iops),
        polls_per_io: mean(|f| f.polls_per_io),
        fruitful_per_io: mean(|f| f.fruitful_per_io),
        skipped_per_io: mean(|f| f.skipped_per_io),
        waits_per_io: mean(|f| f.waits_per_io),
        contention: mean(|f| f.contention),
        foreign_per_io: mean(|f| f.foreign_per_io),
        sleeps_per_io: mean(|f| f.sleeps_per_io),
        device_busy: mean(|f| f.device_busy),
        ..all[0]
    }
}
