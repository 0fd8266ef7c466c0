//! The variants of the experiment `mq-deadline` as designs, with costs measured in this run.
//!
//! Each variant is measured with one thread: the processor time of an I/O, and the number and time
//! of each lock's holds. Figures that come from the code instead of measurements are constants
//! here, each with its reason.

use anyhow::Context as _;
use drystone_core::sync::{ClassStats, LockClass};

use super::costs::ps;
use super::design::{Act, Design, Loser, Section};
use crate::kernel::LOAD;
use crate::measure::{Point, Sample};
use crate::mq_deadline::{Variant, null_spec};
use crate::row::spread;
use crate::scheduler::Patched;

/// Lines that a holder of the lock of *before* or *mailed* writes besides the lock's: the counts
/// and positions, and the heads of tree and FIFO.
const QUEUE_LINES: u32 = 2;

/// The same for the turn of *ours*: its trees are memory of the turn's holder.
const TURN_LINES: u32 = 1;

/// Lines that move for an I/O that another core runs: the bio there, and on the way back.
const FOREIGN_LINES: u32 = 2;

/// The part of the processor time of an I/O without a scheduler that runs and ends it. Assumed,
/// because counts cannot separate it.
const RUN_SHARE: f64 = 0.5;

/// Figures of a variant with one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub name: &'static str,
    pub note: Option<&'static str>,
    /// Processor time of an I/O, ns, without timing holds.
    pub cpu_ns: f64,
    /// The scheduler's main lock or turn, and the lock of the staging lists.
    pub main: Held,
    pub staging: Held,
}

/// The hold of a lock, without the cost of its measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Times taken for an I/O.
    pub per_io: f64,
    /// Mean, ns.
    pub mean_ns: f64,
    /// Shortest, ns.
    pub least_ns: f64,
}

impl Measured {
    pub fn title(&self) -> String {
        self.note.map_or_else(|| self.name.to_owned(), |note| format!("{}, {note}", self.name))
    }
}

/// Measure `variant` with one thread: runs without and with the timing of holds.
///
/// # Errors
/// When a run cannot be made.
pub fn measure(
    variant: &Variant,
    runs: u32,
    runtime_ns: u64,
    empty_ns: f64,
) -> anyhow::Result<Measured> {
    let mut all = Vec::new();
    for time_holds in [false, true] {
        for _ in 0..runs {
            all.push(point(variant, 1, runtime_ns, time_holds)?);
        }
    }
    let (plain, timed) = all.split_at(runs as usize);
    let median = |samples: &[Sample], of: &dyn Fn(&Sample) -> f64| {
        let values: Vec<f64> = samples.iter().map(of).collect();
        spread(&values).map(|(_, median, _)| median).context("a figure is missing")
    };
    let held = |class: LockClass| -> anyhow::Result<Held> {
        let of = |sample: &Sample| *sample.locks.get(class);
        let ios = |sample: &Sample| sample.iops * runtime_ns as f64 / 1e9;
        let hold = |ns: f64| (ns - empty_ns).max(0.0);
        // The clock also counts the time in which a holder is off its core.
        let on_core = |sample: &Sample| mean(&of(sample)) * sample.cores_used.min(1.0);
        Ok(Held {
            per_io: median(timed, &|sample| of(sample).acquisitions as f64 / ios(sample))?,
            mean_ns: median(timed, &|sample| hold(on_core(sample)))?,
            least_ns: median(timed, &|sample| hold(of(sample).holds.min_ns.unwrap_or(0) as f64))?,
        })
    };
    Ok(Measured {
        name: variant.name,
        note: variant.note,
        cpu_ns: median(plain, &|sample| sample.cpu_ns_per_io)?,
        main: held(LockClass::Scheduler)?,
        staging: held(Patched::INSERT_LOCK)?,
    })
}

fn mean(class: &ClassStats) -> f64 {
    if class.holds.count == 0 {
        0.0
    } else {
        class.holds.total_ns as f64 / class.holds.count as f64
    }
}

/// One run of `variant` on the null device.
///
/// # Errors
/// When it cannot be made.
pub fn point(
    variant: &Variant,
    threads: u32,
    runtime_ns: u64,
    time_holds: bool,
) -> anyhow::Result<Sample> {
    let spec = null_spec(variant)?;
    let point =
        Point { spec: &spec, open: variant.open, threads, load: &LOAD, runtime_ns, time_holds };
    point.measure().with_context(|| format!("{}, {threads} threads", variant.name))
}

/// The design of a variant; `none_ns` is the processor time of an I/O without a scheduler.
pub fn design(measured: &Measured, none_ns: f64) -> Design {
    let batch = LOAD.batch as f64;
    let sections = sections(measured);
    let holds: u64 = sections.iter().map(|section| times(section) * section.hold_ps).sum();
    let run_ps = ps(none_ns * RUN_SHARE);
    let whole = ps(measured.cpu_ns * batch);
    Design {
        outside_ps: whole.saturating_sub(holds + run_ps * LOAD.batch as u64),
        run_ps,
        sections,
        foreign_lines: FOREIGN_LINES,
    }
}

/// The number of holds of a section in an undisturbed batch, in the unit of its `hold_ps`.
fn times(section: &Section) -> u64 {
    match section.act {
        Act::Look | Act::Insert => section.times.into(),
        Act::TakeOne | Act::InsertAndTakeAll => LOAD.batch as u64,
    }
}

fn sections(measured: &Measured) -> Vec<Section> {
    let Measured { main, staging, .. } = measured;
    let batch = LOAD.batch as u32;
    let section = |lock, times, act, loser, hold_ns: f64, lines| Section {
        lock,
        times,
        act,
        loser,
        hold_ps: ps(hold_ns).max(1),
        lines,
    };
    // A design that does not take the lock for its own batch, for example because it bypasses an
    // empty scheduler.
    if main.per_io < 0.5 / f64::from(batch) {
        return Vec::new();
    }
    match measured.name {
        "before" => {
            let loser = if measured.note.is_some() { Loser::Spin } else { Loser::Sleep };
            let hold = main.mean_ns;
            vec![
                section(0, 1, Act::Insert, loser, hold, QUEUE_LINES),
                section(0, 1, Act::TakeOne, loser, hold, QUEUE_LINES),
            ]
        }
        "mailed" => {
            // There are as many look-ups of merges as dispatches. The look-ups, in an empty tree,
            // are the shortest holds.
            let look = main.least_ns.min(main.mean_ns);
            let dispatch = 2.0 * main.mean_ns - look;
            vec![
                section(0, batch, Act::Look, Loser::GoOn, look, 0),
                section(1, 1, Act::Insert, Loser::Sleep, staging.mean_ns, 0),
                section(0, 1, Act::TakeOne, Loser::HandOver, dispatch, QUEUE_LINES),
            ]
        }
        // One turn for a batch, with a hold time for each I/O.
        _ => {
            let hold = main.mean_ns * main.per_io;
            vec![section(0, 1, Act::InsertAndTakeAll, Loser::HandOver, hold, TURN_LINES)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::design::{Costs, Setting};
    use crate::model::sim::simulate;
    use crate::mq_deadline::VARIANTS;

    fn measured(name: &'static str, per_io: f64) -> Measured {
        let main = Held { per_io, mean_ns: 12.5, least_ns: 2.0 };
        let staging = Held { per_io: 0.5, mean_ns: 3.0, least_ns: 1.0 };
        Measured { name, note: None, cpu_ns: 100.0, main, staging }
    }

    /// With every design, one thread needs the measured time.
    #[test]
    fn one_thread_takes_what_was_measured() {
        let costs = Costs { line_ps: 50_000, slice_ps: 1_000_000, ..Costs::default() };
        for (name, per_io) in [("before", 1.25), ("mailed", 2.0), ("ours", 0.25), ("none", 0.0)] {
            let design = design(&measured(name, per_io), 40.0);
            let time_ps = 100_000_000;
            let setting =
                Setting { cores: 2, threads: 1, batch: 4, time_ps, had: 1.0, jitter: 0.0, seed: 1 };
            let iops = simulate(&design, &costs, &setting).iops;
            assert!((iops / 1e7 - 1.0).abs() < 0.01, "{name}: {iops}");
            assert_eq!(design.sections.is_empty(), name == "none");
        }
    }

    #[test]
    fn variants_have_the_locks_that_they_take() {
        for variant in &VARIANTS {
            let sample = point(variant, 1, 20_000_000, true).expect("a run");
            let taken = sample.locks.get(LockClass::Scheduler);
            let alone = variant.name == "none" || variant.note == Some("straight through");
            if alone {
                assert_eq!(taken.acquisitions, 0, "{}", variant.name);
            }
            if ["before", "mailed"].contains(&variant.name) {
                assert!(taken.holds.count > 0, "{}", variant.name);
            }
        }
    }
}
