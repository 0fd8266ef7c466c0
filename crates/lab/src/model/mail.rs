//! The pair of "block/mq-deadline: use separate insertion lists" (Bart Van Assche and Jens Axboe,
//! linux-block, 23 January 2024), null_blk: 32 jobs on 16 cores of two hardware threads each.
//!
//! Two costs are fitted to the two figures of the row *before*: the hold time of a section, and the
//! time outside. Everything else was measured here in this run, or is structure that was fixed
//! beforehand: the sections, and the threads that wait. The row *after* is computed from the same
//! two costs, and compared.

use super::costs::ps;
use super::design::{Act, Costs, Design, Figures, Loser, Section, Setting};
use super::sim::simulate;

/// A row of the mail's table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MailRow {
    pub iops: f64,
    pub contention: f64,
}

pub const BEFORE: MailRow = MailRow { iops: 879e3, contention: 0.936 };
pub const AFTER: MailRow = MailRow { iops: 2867e3, contention: 0.06 };

/// The mail's hardware threads, each of which counts as a core.
pub const THREADS: usize = 32;
const BATCH: u32 = 4;

/// Sections of a batch before: a look-up of a merge for each bio, one insertion, one dispatch for
/// each request (Linux 6.8, `block/mq-deadline.c`).
const SECTIONS: f64 = 9.0;

/// Lines that a section moves besides the lock's: counts and positions, heads of tree and FIFO.
const LINES: u32 = 2;

/// The part of the time outside that runs and ends an I/O; unknown, so assumed.
const RUN_SHARE: f64 = 0.5;

/// Steps of the fit. Each more than halves the distance.
const STEPS: u32 = 16;

/// The fitted costs, and the figures that the model then gives.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// True if a line costs as much as here; otherwise its transfers are part of the hold.
    pub own_lines: bool,
    /// The hold of one section, ns.
    pub hold_ns: f64,
    /// The time of one I/O outside the lock, ns.
    pub outside_ns: f64,
    pub before: Figures,
    pub after: Figures,
}

impl Fit {
    fn is_met(&self, row: &MailRow) -> bool {
        (self.before.iops / row.iops - 1.0).abs() < 0.05
            && (self.before.contention - row.contention).abs() < 0.02
    }

    /// The error of the row after.
    pub fn error(&self) -> f64 {
        self.after.iops / AFTER.iops - 1.0
    }
}

/// Fit the two costs to `row`, and compute the row after. If lines cost as much as here and this
/// leaves no time for the holds, the row cannot be met; then lines count as part of the hold.
pub fn fit(costs: &Costs, row: &MailRow) -> Fit {
    let own_lines = fit_with(costs, row, true);
    if own_lines.is_met(row) {
        own_lines
    } else {
        fit_with(&Costs { line_ps: 0, ..*costs }, row, false)
    }
}

fn fit_with(costs: &Costs, row: &MailRow, own_lines: bool) -> Fit {
    let serial_ns = 1e9 / row.iops;
    let sections = SECTIONS / f64::from(BATCH);
    let lines_ns = costs.line_ps as f64 / 1000.0 * f64::from(LINES + 1);
    // A saturated lock serves one I/O after the other; the rest of each thread's time is outside.
    let mut hold_ns = (serial_ns / sections - lines_ns).max(1.0);
    let own = |contention: f64, iops: f64| (1.0 - contention) * THREADS as f64 * 1e9 / iops;
    let mut outside_ns = (own(row.contention, row.iops) - serial_ns).max(1.0);
    let mut found = run(&before(hold_ns, outside_ns), costs);
    for _ in 0..STEPS {
        hold_ns = (hold_ns + 0.7 * (serial_ns - 1e9 / found.iops) / sections).max(1.0);
        let missing = own(row.contention, row.iops) - own(found.contention, found.iops);
        outside_ns = (outside_ns + 0.7 * missing).max(1.0);
        found = run(&before(hold_ns, outside_ns), costs);
    }
    let after = run(&after(hold_ns, outside_ns), costs);
    Fit { own_lines, hold_ns, outside_ns, before: found, after }
}

fn run(design: &Design, costs: &Costs) -> Figures {
    let time_ps = 10_000_000_000;
    let setting = Setting {
        cores: THREADS,
        threads: THREADS,
        batch: BATCH,
        time_ps,
        had: 1.0,
        jitter: 0.5,
        seed: 1,
    };
    simulate(design, costs, &setting)
}

fn section(lock: usize, times: u32, act: Act, loser: Loser, hold_ns: f64, lines: u32) -> Section {
    Section { lock, times, act, loser, hold_ps: ps(hold_ns).max(1), lines }
}

fn design(outside_ns: f64, sections: Vec<Section>) -> Design {
    Design {
        outside_ps: ps(outside_ns * (1.0 - RUN_SHARE) * f64::from(BATCH)),
        run_ps: ps(outside_ns * RUN_SHARE),
        sections,
        foreign_lines: 2,
    }
}

/// One lock for all, a queued spin lock.
pub fn before(hold_ns: f64, outside_ns: f64) -> Design {
    let queue = |times, act| section(0, times, act, Loser::Queue, hold_ns, LINES);
    let sections = vec![queue(BATCH, Act::Look), queue(1, Act::Insert), queue(1, Act::TakeOne)];
    design(outside_ns, sections)
}

/// Look-ups that give up, staging under a second lock, and one dispatcher at a time, which inserts
/// the staged I/Os: the work of the insertion is part of the dispatches.
pub fn after(hold_ns: f64, outside_ns: f64) -> Design {
    let dispatch = hold_ns * (1.0 + 1.0 / f64::from(BATCH));
    let sections = vec![
        section(0, BATCH, Act::Look, Loser::GoOn, hold_ns, LINES),
        section(1, 1, Act::Insert, Loser::Queue, 0.0, 1),
        section(0, 1, Act::TakeOne, Loser::HandOver, dispatch, LINES),
    ];
    design(outside_ns, sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        line_ps: 60_000,
        rest_ps: 200_000,
        spin_ps: 1_400_000,
        yield_ps: 300_000,
        switch_ps: 1_000_000,
        wake_ps: 2_000_000,
        latency_ps: 5_000_000,
        slice_ps: 3_000_000_000,
    };

    #[test]
    fn the_row_before_is_met() {
        for (line_ps, own_lines) in [(60_000, true), (300_000, false)] {
            let found = fit(&Costs { line_ps, ..COSTS }, &BEFORE);
            assert!(found.is_met(&BEFORE) && found.own_lines == own_lines, "{found:?}");
        }
    }

    /// The fit finds the costs from which the row was computed.
    #[test]
    fn costs_are_found_again() {
        let truth = run(&before(200.0, 2000.0), &COSTS);
        let found = fit(&COSTS, &MailRow { iops: truth.iops, contention: truth.contention });
        assert!((found.hold_ns / 200.0 - 1.0).abs() < 0.1, "{found:?}");
        assert!((found.outside_ns / 2000.0 - 1.0).abs() < 0.1, "{found:?}");
    }
}
