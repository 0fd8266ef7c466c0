//! The measured figures, for people and programs.

use drystone_core::sync::LockClass;
use serde_json::{Value, json};

use super::point::Sample;
use super::scene::Rules;
use super::variants::{Measured, VARIANTS};
use crate::Options;
use crate::outcome::Machine;
use crate::row::{BRACKETS, Compared, Row, measured, spread};
use crate::table::{Columns, NANOSECONDS, PERCENT, THOUSANDS, Table, Unit, WHOLE_PERCENT};
use crate::throttle::{QUEUE_LOCK, STATS_LOCK};

/// The mail's figures: kernel, acquisitions, us held.
const MAIL: [(&str, u64, f64); 2] =
    [("vanilla", 2_360_944, 1_850_183.07), ("patched", 2_098_599, 1_430_478.79)];
const MAILS_LOCK: &str = "&(&q->__queue_lock)->rlock";

const BEFORE: usize = 0;
const MAILED: usize = 1;
const OURS: usize = 2;
const NONE: usize = 3;

fn range(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<(f64, f64, f64)> {
    let values: Vec<f64> = samples.iter().map(of).collect();
    spread(&values)
}

impl Measured {
    fn median(&self, variant: usize, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        range(&self.samples[variant], of).map(|(_, median, _)| median)
    }

    /// The additional processor time of an I/O compared with no throttle, ns.
    fn to_none(&self, variant: usize) -> Option<f64> {
        let cpu = |variant| self.median(variant, |sample| sample.cpu_ns_per_io);
        Some(cpu(variant)? - cpu(NONE)?)
    }

    fn locks_per_io(&self, variant: usize) -> Option<f64> {
        self.median(variant, |sample| sample.lock_acquisitions_per_io)
    }
}

/// The name of the lock of `class` in a variant.
fn lock_name(variant: &str, class: LockClass) -> &'static str {
    match variant {
        "before" | "mailed" if class == QUEUE_LOCK => "queue_lock",
        "before" if class == STATS_LOCK => "group_stats",
        _ => class.name(),
    }
}

/// A row for each variant.
pub(super) fn rows(Measured { scene, samples }: &Measured) -> Vec<Row> {
    let row = |((variant, _), samples): (&(&'static str, _), &Vec<Sample>)| Row {
        device: scene.name,
        variant,
        threads: scene.threads,
        labels: vec![
            ("load", json!(if scene.is_dd { "dd" } else { "randread" })),
            ("driver", json!(if scene.on_file { "file" } else { "null" })),
            ("rules", json!(scene.rules.text())),
            ("depth", json!(scene.depth)),
            ("locks", by_class(variant, samples)),
        ],
        measured: measured(
            samples,
            &[
                ("iops", &|s| s.iops),
                ("cpu_ns_per_io", &|s| s.cpu_ns_per_io),
                ("cores_used", &|s| s.cores_used),
                ("contention", &|s| s.contention),
                ("lock_acquisitions_per_io", &|s| s.lock_acquisitions_per_io),
                ("lock_contentions_per_io", &|s| s.lock_contentions_per_io),
                ("lock_acquisitions", &|s| s.timed.acquisitions() as f64),
                ("lock_hold_us", &|s| s.timed.hold_us()),
                ("lock_ios", &|s| s.timed.ios as f64),
            ],
        ),
        ..Row::default()
    };
    VARIANTS.iter().zip(samples).map(row).collect()
}

/// Acquisitions and us held of `class` in a run.
fn of_class(sample: &Sample, class: LockClass) -> (u64, f64) {
    let classes = sample.timed.classes();
    let found = classes.iter().find(|(it, ..)| *it == class);
    found.map_or((0, 0.0), |(_, acquisitions, us)| (*acquisitions, *us))
}

fn classes(samples: &[Sample]) -> impl Iterator<Item = LockClass> {
    let used = |class: &LockClass| samples.iter().any(|it| of_class(it, *class).0 > 0);
    LockClass::ALL.into_iter().filter(used)
}

/// Each class's counts, run by run.
fn by_class(variant: &str, samples: &[Sample]) -> Value {
    let class = |class| {
        let (acquisitions, hold_us): (Vec<u64>, Vec<f64>) =
            samples.iter().map(|it| of_class(it, class)).unzip();
        json!({
            "class": lock_name(variant, class),
            "acquisitions": acquisitions,
            "hold_us": hold_us,
        })
    };
    classes(samples).map(class).collect()
}

/// A line for each variant of each scene, compared with *none* there.
pub(super) fn table(all: &[Measured]) -> Table {
    let scenes: Vec<Vec<Row>> = all.iter().map(rows).collect();
    let lines = scenes
        .iter()
        .flat_map(|rows| Compared::all(rows, |_, base| base.variant == VARIANTS[NONE].0));
    Columns::of(lines)
        .text("Load", |it| it.row.device.to_owned())
        .text("Variant", |it| it.row.variant.to_owned())
        .text("Threads", |it| it.row.threads.to_string())
        .figure("IOPS", |it| it.row.text("iops", THOUSANDS))
        .figure("IOPS, least to most", |it| it.row.range("iops", THOUSANDS, BRACKETS))
        .figure("to none", |it| it.change("iops", WHOLE_PERCENT))
        .figure("CPU ns/IO", |it| it.row.text("cpu_ns_per_io", Unit::number(1)))
        .figure("CPU, least to most", |it| it.row.range("cpu_ns_per_io", Unit::number(1), BRACKETS))
        .figure("to none", |it| {
            let none = it.other()?.median("cpu_ns_per_io")?;
            Some(NANOSECONDS.change(it.row.median("cpu_ns_per_io")? - none))
        })
        .figure("locks/IO", |it| it.row.text("lock_acquisitions_per_io", Unit::number(4)))
        .figure("contention", |it| it.row.text("contention", PERCENT))
        .table()
}

/// A line of the mail's table: the lock that it is about, of a scene, with its threads and I/Os.
struct LockLine {
    load: &'static str,
    lock: String,
    on: Option<(u32, f64)>,
    acquisitions: f64,
    hold_us: f64,
}

/// The mail's table: acquisitions and time held by class.
pub(super) fn mails_form(all: &[Measured]) -> (String, Table) {
    let mail = MAIL.iter().map(|(kernel, acquisitions, hold_us)| LockLine {
        load: "the mail's dd, 4 CPUs, SSD: context, not measured here",
        lock: format!("{kernel}: {MAILS_LOCK}"),
        on: None,
        acquisitions: *acquisitions as f64,
        hold_us: *hold_us,
    });
    let lines = all.iter().flat_map(|it| (0..VARIANTS.len()).flat_map(|n| lock_lines(it, n)));
    let title =
        "Locks in the mail's form (holdtime-total in us; a pass of its own, with timed holds)";
    let table = Columns::of(mail.chain(lines))
        .text("Load", |it| it.load.to_owned())
        .text("class name", |it| it.lock.clone())
        .figure("Threads", |it| it.on.map(|(threads, _)| threads.to_string()))
        .text("acquisitions", |it| Unit::number(0).text(it.acquisitions))
        .text("holdtime-total", |it| Unit::number(2).text(it.hold_us))
        .figure("I/Os", |it| it.on.map(|(_, ios)| Unit::number(0).text(ios)))
        .figure("a bio", |it| it.on.map(|(_, ios)| Unit::number(4).text(it.acquisitions / ios)))
        .table();
    (title.to_owned(), table)
}

fn lock_lines(measured: &Measured, variant: usize) -> Vec<LockLine> {
    let (samples, name) = (&measured.samples[variant], VARIANTS[variant].0);
    let median = |of: &dyn Fn(&Sample) -> f64| measured.median(variant, of).unwrap_or(f64::NAN);
    let ios = median(&|sample| sample.timed.ios as f64);
    let line = |lock: &str, acquisitions: f64, hold_us: f64| LockLine {
        load: measured.scene.name,
        lock: format!("{name}: {lock}"),
        on: Some((measured.scene.threads, ios)),
        acquisitions,
        hold_us,
    };
    let lines: Vec<_> = classes(samples)
        .map(|class| {
            let acquisitions = median(&|sample| of_class(sample, class).0 as f64);
            line(lock_name(name, class), acquisitions, median(&|sample| of_class(sample, class).1))
        })
        .collect();
    if lines.is_empty() { vec![line("no lock", 0.0, 0.0)] } else { lines }
}

/// The locks and the processor time of a bio in each variant, compared with none.
pub(super) fn claims(all: &[Measured]) -> (String, Table) {
    let locks = |variant: usize| {
        move |it: &&Measured| it.locks_per_io(variant).map(|locks| Unit::number(6).text(locks))
    };
    let to_none = |variant: usize| {
        move |it: &&Measured| it.to_none(variant).map(|ns| Unit::number(1).change(ns))
    };
    let table = Columns::of(all)
        .text("Load", |it| it.scene.name.to_owned())
        .text("Rules", |it| it.scene.rules.text())
        .text("Threads", |it| it.scene.threads.to_string())
        .figure("locks a bio: before", locks(BEFORE))
        .figure("mailed", locks(MAILED))
        .figure("ours", locks(OURS))
        .figure("none", locks(NONE))
        .figure("ns a bio to none: before", to_none(BEFORE))
        .figure("mailed", to_none(MAILED))
        .figure("ours", to_none(OURS))
        .table();
    ("What a bio takes".to_owned(), table)
}

/// Sentences below the tables.
pub(super) fn remarks(all: &[Measured], options: &Options) -> Vec<String> {
    let mut remarks = vec![
        "Figures are medians of the runs, which took turns; to none: IOPS and ns of processor \
         time an I/O more than without a throttle. locks/IO: of all classes, while no hold is \
         timed."
            .to_owned(),
        "before and mailed hold limits by Linux's slices under the device's one lock \
         (queue_lock), and before counts under a lock of the group's statistics (group_stats); \
         their bios wait in their channel, not under the lock. mailed and ours count for each \
         context by itself."
            .to_owned(),
        "The mail's figures are of another machine and kernel, whose queue lock served the \
         whole request layer: they stand there as context. What its series saved, 262345 \
         acquisitions, is one for each bio of dd."
            .to_owned(),
        "A hold is timed by two clock readings, and the hold of queue_lock in before encloses \
         that of group_stats with its own."
            .to_owned(),
    ];
    remarks.extend(ours(all, false, "Where no rule applies"));
    remarks.extend(ours(all, true, "Where a rule applies that does not bind"));
    remarks.extend(many(all));
    let cores = Machine::here().cores;
    if u64::from(options.threads) > cores {
        remarks.push(format!(
            "{cores} cores cannot show what more than {cores} threads do to one lock at once: \
             with more, a wait is mostly for a thread that is off its core."
        ));
    }
    remarks
}

/// The claim about ours, for the scenes where a rule applies or does not.
fn ours(all: &[Measured], applies: bool, what: &str) -> Option<String> {
    let on_null = all.iter().filter(|it| !it.scene.on_file && it.scene.rules.apply() == applies);
    let locks =
        on_null.clone().filter_map(|it| Some(it.locks_per_io(OURS)? - it.locks_per_io(NONE)?));
    let costs = on_null.filter_map(|it| it.to_none(OURS));
    let (_, _, locks) = spread(&locks.collect::<Vec<f64>>())?;
    let (least, _, most) = spread(&costs.collect::<Vec<f64>>())?;
    Some(format!(
        "{what}, ours takes at most {locks:.6} acquisitions a bio more than none, and \
         {least:+.1} to {most:+.1} ns of processor time (on null)."
    ))
}

/// The claim about many groups against one, of ours.
fn many(all: &[Measured]) -> Option<String> {
    let cpu = |rules: Rules, threads: u32| {
        let same = |it: &&Measured| {
            it.scene.rules == rules
                && it.scene.depth == super::scene::ACTIVE
                && it.scene.threads == threads
        };
        all.iter().find(same)?.median(OURS, |sample| sample.cpu_ns_per_io)
    };
    let (one, many) = (cpu(Rules::One, 1)?, cpu(Rules::Many, 1)?);
    Some(format!(
        "With rules for 10000 groups, 100 of them active, an I/O of ours takes {many:.1} ns \
         with one thread, and {one:.1} ns where all are of one group."
    ))
}

#[cfg(test)]
mod tests {
    use super::super::point::Timed;
    use super::super::scene;
    use super::*;

    fn sample(cpu: f64, locks: f64) -> Sample {
        Sample {
            iops: 1e9 / cpu,
            cpu_ns_per_io: cpu,
            cores_used: 1.0,
            contention: 0.0,
            lock_acquisitions_per_io: locks,
            lock_contentions_per_io: 0.0,
            timed: Timed { ios: 100, ..Timed::default() },
        }
    }

    fn measured(scene: scene::Scene, cpu: [f64; 4]) -> Measured {
        let locks = [2.0, 0.0, 0.0, 0.0];
        Measured { scene, samples: [0, 1, 2, 3].map(|n| vec![sample(cpu[n], locks[n]); 3]) }
    }

    #[test]
    fn claims_are_computed_of_the_rows() {
        let all: Vec<Measured> = scene::scaled(1)
            .into_iter()
            .map(|it| {
                let ours = if it.rules == Rules::Many { 31.0 } else { 20.0 };
                measured(it, [90.0, 45.0, ours, 15.0])
            })
            .collect();
        let (_, table) = claims(&all);
        assert_eq!(
            table.lines[0][3..],
            ["2.000000", "0.000000", "0.000000", "0.000000", "+75.0", "+30.0", "+5.0"]
        );
        let remarks =
            remarks(&all, &Options { runs: 1, runtime_ns: 1, threads: 1, ..Options::default() });
        let says = |text: &str| remarks.iter().any(|remark| remark.contains(text));
        assert!(says(
            "no rule applies, ours takes at most 0.000000 acquisitions a bio more than none, \
             and +5.0 to +5.0 ns"
        ));
        assert!(says(
            "does not bind, ours takes at most 0.000000 acquisitions a bio more than none, and \
             +5.0 to +16.0 ns"
        ));
        assert!(says("31.0 ns with one thread, and 20.0 ns"));
    }

    #[test]
    fn the_mails_figures_are_marked_and_no_lock_is_said() {
        let all = [measured(scene::dd()[1], [90.0, 45.0, 20.0, 15.0])];
        let (_, table) = mails_form(&all);
        assert!(table.lines[..2].iter().all(|line| line[0].contains("not measured here")));
        assert_eq!(table.lines[0][3..5], ["2360944", "1850183.07"]);
        assert_eq!(table.lines[5][1], "none: no lock");
        assert_eq!((table.lines.len(), &table.lines[5][6][..]), (6, "0.0000"));
    }
}
