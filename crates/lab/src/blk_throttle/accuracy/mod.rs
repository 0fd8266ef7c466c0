//! The experiment `blk-throttle-accuracy` compares limits with the achieved rates over time. It
//! runs in real time on a null device, because users see real time.

mod sheet;
mod taken;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use drystone_core::Priority;
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::context::PollMode;
use drystone_stack::live::{OpenEnv, open_device};
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::Change;
use serde_json::json;

use crate::measure::{on_opened, process_cpu_ns};
use crate::outcome::{Curve, Machine, Outcome, Plot};
use crate::row::{Row, measured};
use crate::table::{Columns, FINE_PERCENT, Table, Unit};
use crate::{Experiment, Options, Progress};
use drystone_bench::{Crew, Pattern, Work, machine, phase};
use sheet::{Flow, RateUnit, Sheet};
use taken::{Look, Steps, Taken};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "blk-throttle-accuracy",
    about: "the limits of throttle groups beside the rates they give, over \
        time, in ours",
    runs: crate::RUNS,
    threads: crate::THREADS,
    ignores: &["kernel", "threads", "bytes", "only"],
    run,
};

/// A change that removes all limits.
const MAX: Change =
    Change { rbps: Some(None), wbps: Some(None), riops: Some(None), wiops: Some(None) };

/// A sheet with its runs.
struct Measured {
    sheet: Sheet,
    runs: Vec<Taken>,
}

fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let date = machine::now();
    let steps = Steps::of(options.runtime_ns);
    let sheets = sheet::all();
    let each = steps.all() as u64 * steps.step_ns;
    let seconds = sheets.len() as u64 * u64::from(options.runs) * each / 1_000_000_000;
    say(&format!("{} sheets, about {} min {} s", sheets.len(), seconds / 60, seconds % 60));
    let mut all = Vec::new();
    let mut steps_of_all = crate::steps::Steps::new(options, sheets.len());
    for sheet in sheets {
        if !steps_of_all.next(sheet.name, say) {
            break;
        }
        let runs = options.turns().map(|_| measure(&sheet, steps));
        let runs = runs.collect::<anyhow::Result<_>>().with_context(|| sheet.name.to_owned())?;
        all.push(Measured { sheet, runs });
    }
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        date,
        machine: Machine::here(),
        parameters: vec![
            ("step_ns", json!(steps.step_ns)),
            ("settle_ns", json!(steps.settle as u64 * steps.step_ns)),
            ("window_ns", json!(steps.window as u64 * steps.step_ns)),
            ("runs", json!(options.runs)),
            ("runtime_ns", json!(options.runtime_ns)),
            ("debug", json!(cfg!(debug_assertions))),
        ],
        rows: all.iter().flat_map(|it| rows(it, steps)).collect(),
        table: table(&all, steps),
        more: Vec::new(),
        plots: all.iter().filter_map(|it| plot(it, steps)).collect(),
        shown_threads: Vec::new(),
        remarks: remarks(steps),
    })
}

/// A run of `sheet`.
///
/// # Errors
/// When the device cannot be opened or an I/O fails.
fn measure(sheet: &Sheet, steps: Steps) -> anyhow::Result<Taken> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv::new(sheet.flows.len() as u32, clock);
    let text = "null,size=1GiB,irqmode=none,queue.scheduler=none";
    let spec = DeviceSpec::parse(text, Path::new("/"));
    let spec = spec.map_err(|report| anyhow!(report.render(false)))?;
    let device = open_device(&spec, &at)?;
    let group = |path: &&'static str| Ok((*path, at.groups.create(path)?.id().as_u32()));
    let groups = sheet.groups.iter().map(group).collect::<anyhow::Result<Vec<_>>>()?;
    let limit = |change: &Change| at.groups.set_max(sheet.limited, &spec.name, change);
    limit(&sheet.limits)?;
    let of = |flow: &Flow| groups.iter().find(|(path, _)| *path == flow.group);
    let works = sheet.flows.iter().map(|flow| Some(work(flow, of(flow)?.1)));
    let works: Vec<Work> = works.collect::<Option<_>>().context("a flow without its group")?;
    on_opened(&device, &at, &works, |crew| {
        let taken = watch(sheet, steps, crew, limit)?;
        // Bios that still wait for a limit would delay the end of the threads.
        limit(&MAX)?;
        Ok(taken)
    })
}

fn watch<E: std::error::Error + Send + Sync + 'static>(
    sheet: &Sheet,
    steps: Steps,
    crew: &Crew<'_, '_>,
    limit: impl Fn(&Change) -> Result<(), E>,
) -> anyhow::Result<Taken> {
    let look = |start: Instant| {
        let ios = (0..sheet.flows.len()).map(|flow| crew.completed(flow)).collect();
        Look { at: start.elapsed().as_secs_f64(), ios }
    };
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    crew.enter(phase::MEASURE);
    let mut looks = vec![look(start)];
    for step in 1..=steps.all() {
        crew.pause(start + Duration::from_nanos(step as u64 * steps.step_ns))?;
        looks.push(look(start));
        if let Some(then) = sheet.then.filter(|_| step == steps.half()) {
            limit(&then)?;
        }
    }
    let cpu = (process_cpu_ns() - cpu) as f64;
    let ios = looks.last().map_or(0, |last| last.ios.iter().sum::<u64>());
    Ok(Taken { looks, cpu_ns_per_io: cpu / ios as f64 })
}

fn work(flow: &Flow, group: u32) -> Work {
    Work {
        depth: flow.depth,
        batch: flow.depth,
        batch_complete: 1,
        bs: flow.bytes,
        pattern: if flow.is_write { Pattern::Randwrite } else { Pattern::Randread },
        mode: PollMode::Interrupt,
        cookies: false,
        interval_ns: flow.wants.map_or(0, |rate| 1_000_000_000 / rate),
        priority: Priority::default(),
        groups: vec![group],
        blocks: (0, (1 << 30) / flow.bytes),
        seed: u64::from(group) + 1,
    }
}

/// The flows to judge: each, and all together if they share a limit.
fn judged(sheet: &Sheet) -> Vec<(String, Vec<usize>)> {
    let each = sheet.flows.iter().enumerate().map(|(n, flow)| (flow.name.to_owned(), vec![n]));
    let writes = sheet.flows.iter().filter(|flow| flow.is_write).count();
    let together = (sheet.flows.len() > 1 && writes == 0)
        .then(|| ("together".to_owned(), (0..sheet.flows.len()).collect()));
    each.chain(together).collect()
}

fn rows(Measured { sheet, runs }: &Measured, steps: Steps) -> Vec<Row> {
    let row = |(name, flows): (String, Vec<usize>)| {
        let sum = |of: &dyn Fn(usize) -> f64| flows.iter().map(|flow| of(*flow)).sum::<f64>();
        let rate = |run: &Taken, half: usize| {
            let unit = |flow: usize| sheet.unit.of(1.0, sheet.flows[flow].bytes);
            sum(&|flow| unit(flow) * run.mean(flow, steps, half))
        };
        let series = match (&flows[..], runs.last()) {
            ([flow], Some(last)) => json!(last.series(sheet, *flow, steps)),
            _ => json!(null),
        };
        Row {
            device: sheet.name,
            variant: "ours",
            note: (sheet.flows.len() > 1).then_some(name),
            threads: flows.len() as u32,
            labels: vec![
                ("rules", json!(sheet.name)),
                ("unit", json!(sheet.unit.name())),
                ("asked", json!([0, 1].map(|half| sum(&|flow| sheet.share(flow, half))))),
                ("series", series),
            ],
            measured: measured(
                runs,
                &[
                    ("iops", &|run| sum(&|flow| run.mean(flow, steps, 0))),
                    ("rate", &|run| rate(run, 0)),
                    ("rate_second_half", &|run| rate(run, 1)),
                    ("deviation", &|run| run.deviation(sheet, &flows, steps)),
                    ("cpu_ns_per_io", &|run| run.cpu_ns_per_io),
                ],
            ),
            ..Row::default()
        }
    };
    judged(sheet).into_iter().map(row).collect()
}

/// A line of the table: a flow of a sheet, or all of them together.
struct FlowLine<'a> {
    sheet: &'a Sheet,
    name: String,
    flows: Vec<usize>,
    row: Row,
}

impl FlowLine<'_> {
    /// The rate of the first half, and that of the second if the limit changes.
    fn both(&self, rate: impl Fn(usize) -> Option<f64>) -> String {
        let [first, second] = [0, 1].map(|half| rate(half).map_or("-".to_owned(), shown));
        if self.sheet.then.is_some() { format!("{first}, {second}") } else { first }
    }

    fn asked(&self, half: usize) -> f64 {
        self.flows.iter().map(|flow| self.sheet.share(*flow, half)).sum()
    }

    /// The worst deviation of all runs.
    fn deviation(&self) -> f64 {
        let all = self.row.values("deviation").unwrap_or_default().iter().copied();
        all.fold(0.0, |most: f64, it| if it.abs() > most.abs() { it } else { most })
    }

    /// One I/O as a part of a window's I/Os.
    fn one_io(&self, steps: Steps) -> f64 {
        let ios = self.flows.iter().map(|flow| self.sheet.flows[*flow].asked[0]).sum::<f64>();
        1.0 / (ios * steps.window_seconds())
    }
}

fn table(all: &[Measured], steps: Steps) -> Table {
    let window = format!("greatest deviation in {} s", steps.window_seconds());
    let lines = all.iter().flat_map(|it| {
        let flows = judged(&it.sheet).into_iter().zip(rows(it, steps));
        flows.map(|((name, flows), row)| FlowLine { sheet: &it.sheet, name, flows, row })
    });
    Columns::of(lines)
        .text("Limit", |it| it.sheet.name.to_owned())
        .text("Flow", |it| it.name.clone())
        .text("asked", |it| it.both(|half| Some(it.asked(half))))
        .text("given", |it| it.both(|half| it.row.median(["rate", "rate_second_half"][half])))
        .text("", |it| it.sheet.unit.name().to_owned())
        .text(window, |it| FINE_PERCENT.change(it.deviation()))
        .text("one I/O is", move |it| FINE_PERCENT.text(it.one_io(steps)))
        .figure("CPU ns/IO", |it| it.row.text("cpu_ns_per_io", Unit::number(0)))
        .table()
}

fn shown(rate: f64) -> String {
    let decimals = if rate < 10.0 { 4 } else { 2 };
    format!("{rate:.decimals$}")
}

/// The last run of a sheet as a picture.
fn plot(measured: &Measured, steps: Steps) -> Option<Plot> {
    let (sheet, last) = (&measured.sheet, measured.runs.last()?);
    let end = last.looks.last()?.at;
    let half = last.looks.get(steps.half()).map_or(end, |look| look.at);
    let curve = |(number, flow): (usize, &Flow)| {
        let [before, after] = [0, 1].map(|half| sheet.share(number, half));
        Curve {
            name: flow.name.to_owned(),
            asked: vec![(0.0, before), (half, before), (half, after), (end, after)],
            given: last.series(sheet, number, steps),
        }
    };
    let title = match sheet.unit {
        RateUnit::Iops => format!("{} (IOPS)", sheet.name),
        RateUnit::Mib => format!("{} (MiB/s)", sheet.name),
    };
    Some(Plot { title, curves: sheet.flows.iter().enumerate().map(curve).collect() })
}

fn remarks(steps: Steps) -> Vec<String> {
    let window = steps.window_seconds();
    let settle = (steps.settle as u64 * steps.step_ns) as f64 / 1e9;
    vec![
        format!(
            "In real time, on a null device, which ends what it gets at once; each flow is a \
             thread of its own. Deviation: the greatest, over any {window} s after the first \
             {settle} s, of all runs, of what was given from what was asked; where the limit \
             changes, over the {window} s before and after."
        ),
        "given: the mean of the first half, and of the second where the limit changes; medians \
         of the runs. one I/O is: what one I/O more or less makes in such a time. CPU: of the \
         whole process, those who look at the counts included."
            .to_owned(),
        "Each of two sibling groups should get half of their parent's limit, measured by what \
         the I/Os cost against it, unless it asks for less. Threads of one group have its limit \
         together, and no share of it each: the table compares each with a quarter of it."
            .to_owned(),
    ]
}
