//! The experiment `reorder` shows the purpose of a scheduler. A simulated disk with a seek time
//! serves random readers, and then a few readers beside writers that flood it, with `mq-deadline`
//! and without a scheduler.
//!
//! The disk is a model, ten times as fast as one of 7200 revolutions a minute, so that a short run
//! sees enough I/O; the expiry times of `mq-deadline` are a tenth of their defaults in return.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use drystone_core::context::PollMode;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::stats::GroupStats;
use drystone_core::{Device, Priority};
use drystone_queue::scheduler::MqDeadline;
use drystone_stack::live::open_with;
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::DeviceThrottle;
use serde_json::json;

use crate::measure::{self, on_device, sampled, warmup_ns};
use crate::outcome::{Machine, Outcome};
use crate::row::{BRACKETS, Compared, Row, measured};
use crate::table::{Columns, MILLISECONDS, Table, Unit, WHOLE_PERCENT};
use crate::{Experiment, Options, Progress};
use drystone_bench::{Pattern, Work, machine};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "reorder",
    about: "a simulated disk with a head that moves, with mq-deadline (ours) and without \
        a scheduler (none)",
    runs: crate::RUNS,
    threads: crate::THREADS,
    ignores: &["kernel", "bytes", "only"],
    run,
};

const SIZE: &str = "64GiB";
const BLOCK_BYTES: u64 = 4096;
/// The tags of the disk: few, so that the scheduler decides the order, and more than one, so that
/// the disk is not idle while a thread wakes up.
const TAGS: u32 = 2;
/// The latency of a request: a tenth of half a revolution at 7200 a minute.
const LATENCY_NS: u64 = 417_000;
/// A tenth of the settling time of such drives, and of their seek from edge to edge.
const SEEK_MIN_NS: u64 = 80_000;
const SEEK_MAX_NS: u64 = 1_700_000;
/// The expiry times: a tenth of the defaults.
const READ_EXPIRE_MS: u64 = 50;
const WRITE_EXPIRE_MS: u64 = 500;

/// Random reads that are in flight in the first part.
const READS: u32 = 64;
/// Readers of the second part, of depth 1, and writes beside them.
const READERS: u32 = 4;
const WRITES: u32 = 256;

const VARIANTS: [&str; 2] = ["ours", "none"];

/// Threads that read and threads that write, with the depth of each.
struct Load {
    name: String,
    readers: (u32, u32),
    writers: (u32, u32),
}

impl Load {
    fn threads(&self) -> u32 {
        self.readers.0 + self.writers.0
    }

    fn works(&self, device: &dyn Device) -> Vec<Work> {
        let blocks = device.info().size_bytes / BLOCK_BYTES;
        let work = |(lane, (pattern, depth)): (u64, (Pattern, u32))| Work {
            depth: depth as usize,
            batch: 1,
            batch_complete: 1,
            bs: BLOCK_BYTES,
            pattern,
            mode: PollMode::Interrupt,
            cookies: false,
            interval_ns: 0,
            priority: Priority::default(),
            groups: Vec::new(),
            blocks: (0, blocks),
            seed: lane + 1,
        };
        let of = |pattern, (lanes, depth)| (0..lanes).map(move |_| (pattern, depth));
        let lanes = of(Pattern::Randread, self.readers).chain(of(Pattern::Randwrite, self.writers));
        (0..).zip(lanes).map(work).collect()
    }
}

/// The loads that so many threads can make; one thread cannot read and write at a time.
fn loads(most: u32) -> Vec<Load> {
    let readers = 1 << READS.min(most).ilog2();
    let name = format!("{READS} random reads");
    let mut loads = vec![Load { name, readers: (readers, READS / readers), writers: (0, 0) }];
    let readers = READERS.min(most.saturating_sub(1));
    let many = 1 << most.saturating_sub(readers).clamp(1, 16).ilog2();
    for writers in [1, many] {
        if readers > 0 && loads.iter().all(|load| load.writers.0 != writers) {
            let depth = WRITES / writers;
            let (of_readers, of_writers) = (plural(readers), plural(writers));
            let name = format!(
                "{readers} reader{of_readers}, {writers} writer{of_writers} of depth {depth}"
            );
            loads.push(Load { name, readers: (readers, 1), writers: (writers, depth) });
        }
    }
    loads
}

fn plural(number: u32) -> &'static str {
    if number == 1 { "" } else { "s" }
}

fn spec(variant: &str) -> anyhow::Result<DeviceSpec> {
    let queue = match variant {
        "ours" => format!(
            "queue.scheduler=mq-deadline,queue.read_expire={READ_EXPIRE_MS},\
             queue.write_expire={WRITE_EXPIRE_MS}"
        ),
        _ => "queue.scheduler=none".to_owned(),
    };
    let text = format!(
        "null,size={SIZE},irqmode=timer,hw_queue_depth={TAGS},completion_nsec={LATENCY_NS},\
         seek_min_nsec={SEEK_MIN_NS},seek_max_nsec={SEEK_MAX_NS},{queue}"
    );
    DeviceSpec::parse(&text, Path::new("/")).map_err(|report| anyhow!(report.render(false)))
}

/// Counters that are read at both ends of the measured time.
struct Reading {
    at: Instant,
    groups: [(GroupStats, Snapshot); 2],
}

impl Reading {
    fn now(device: &dyn Device) -> Self {
        let stats = device.stats();
        let group = |group| (*stats.group(group), device.latencies(group));
        Reading { at: Instant::now(), groups: [OpGroup::Read, OpGroup::Write].map(group) }
    }
}

/// The reads or the writes of a run: their rate, and their time from submission to end, ns. Not a
/// number if none ended.
#[derive(Clone, Copy, Debug)]
struct Measured {
    iops: f64,
    mean_ns: f64,
    p99_ns: f64,
    max_ns: f64,
}

impl Measured {
    fn between(begin: &Reading, end: &Reading, group: usize) -> Self {
        let ((first, early), (last, late)) = (&begin.groups[group], &end.groups[group]);
        let (ios, all) = ((last.completed - first.completed) as f64, late.since(early));
        let number = |ns: Option<u64>| ns.map_or(f64::NAN, |ns| ns as f64);
        Measured {
            iops: ios / (end.at - begin.at).as_secs_f64(),
            mean_ns: (last.time_ns - first.time_ns) as f64 / ios,
            p99_ns: number(all.percentile(99.0).filter(|_| all.total() > 0)),
            max_ns: number(all.max()),
        }
    }
}

/// One run: the figures of every experiment, and reads and writes.
struct Sample {
    all: measure::Sample,
    groups: [Measured; 2],
}

fn sample(load: &Load, spec: &DeviceSpec, runtime_ns: u64) -> anyhow::Result<Sample> {
    let works = |device: &dyn Device| load.works(device);
    on_device(
        spec,
        open_with::<MqDeadline, DeviceThrottle>,
        load.threads(),
        works,
        |crew, device, locks| {
            let read = || Reading::now(device);
            let (all, [begin, end]) = sampled(crew, locks, load.threads(), runtime_ns, read)?;
            Ok(Sample { all, groups: [0, 1].map(|group| Measured::between(&begin, &end, group)) })
        },
    )
}

fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let date = machine::now();
    let loads = loads(options.threads);
    say(&estimate(loads.len(), options));
    let mut rows = Vec::new();
    let mut steps = crate::steps::Steps::new(options, loads.len());
    for load in &loads {
        if !steps.next(&load.name, say) {
            break;
        }
        rows.extend(measure(load, options)?);
    }
    let mut shown_threads: Vec<u32> = rows.iter().map(|row| row.threads).collect();
    shown_threads.sort_unstable();
    shown_threads.dedup();
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        more: Vec::new(),
        plots: Vec::new(),
        date,
        machine: Machine::here(),
        parameters: parameters(options),
        table: table(&rows),
        remarks: remarks(&rows, options),
        rows,
        shown_threads,
    })
}

fn estimate(loads: usize, options: &Options) -> String {
    let runs = (loads * VARIANTS.len()) as u64 * u64::from(options.runs);
    let seconds = runs * (options.runtime_ns + warmup_ns(options.runtime_ns)) / 1_000_000_000;
    format!("{runs} runs, about {} min {} s", seconds / 60, seconds % 60)
}

fn parameters(options: &Options) -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("bs", json!(BLOCK_BYTES)),
        ("size", json!(SIZE)),
        ("hw_queue_depth", json!(TAGS)),
        ("completion_nsec", json!(LATENCY_NS)),
        ("seek_min_nsec", json!(SEEK_MIN_NS)),
        ("seek_max_nsec", json!(SEEK_MAX_NS)),
        ("read_expire", json!(READ_EXPIRE_MS)),
        ("write_expire", json!(WRITE_EXPIRE_MS)),
        ("threads", json!(options.threads)),
        ("runs", json!(options.runs)),
        ("runtime_ns", json!(options.runtime_ns)),
        ("warmup_ns", json!(warmup_ns(options.runtime_ns))),
        ("debug", json!(cfg!(debug_assertions))),
    ]
}

/// Both variants, in turns.
fn measure(load: &Load, options: &Options) -> anyhow::Result<Vec<Row>> {
    let mut samples = VARIANTS.map(|_| Vec::new());
    for _ in options.turns() {
        for (variant, samples) in VARIANTS.iter().zip(&mut samples) {
            let sample = sample(load, &spec(variant)?, options.runtime_ns);
            samples.push(sample.with_context(|| format!("{}: {variant}", load.name))?);
        }
    }
    Ok(VARIANTS.iter().zip(samples).map(|(variant, all)| row(variant, load, &all)).collect())
}

fn row(variant: &'static str, load: &Load, samples: &[Sample]) -> Row {
    let [reads, writes] = [0, 1].map(|group| move |sample: &Sample| sample.groups[group]);
    Row {
        device: "disk",
        variant,
        note: Some(load.name.clone()),
        threads: load.threads(),
        measured: measured(
            samples,
            &[
                ("iops", &|s| s.all.iops),
                ("cpu_ns_per_io", &|s| s.all.cpu_ns_per_io),
                ("contention", &|s| s.all.contention),
                ("lock_acquisitions_per_io", &|s| s.all.lock_acquisitions_per_io),
                ("read_iops", &|s| reads(s).iops),
                ("read_mean_ns", &|s| reads(s).mean_ns),
                ("read_p99_ns", &|s| reads(s).p99_ns),
                ("read_max_ns", &|s| reads(s).max_ns),
                ("write_iops", &|s| writes(s).iops),
                ("write_mean_ns", &|s| writes(s).mean_ns),
                ("write_p99_ns", &|s| writes(s).p99_ns),
                ("write_max_ns", &|s| writes(s).max_ns),
            ],
        ),
        ..Row::default()
    }
}

/// A line for each row, compared with that without a scheduler under the same load.
fn table(rows: &[Row]) -> Table {
    let is_base = |row: &Row, base: &Row| base.variant == "none" && base.note == row.note;
    Columns::of(Compared::all(rows, is_base))
        .text("Load", |it| it.row.note.clone().unwrap_or_default())
        .text("Variant", |it| it.row.variant.to_owned())
        .text("Threads", |it| it.row.threads.to_string())
        .figure("IOPS", |it| it.row.text("iops", Unit::number(0)))
        .figure("IOPS, least to most", |it| it.row.range("iops", Unit::number(0), BRACKETS))
        .figure("diff", |it| it.change("iops", WHOLE_PERCENT))
        .figure("reads/s", |it| it.row.text("read_iops", Unit::number(0)))
        .figure("read mean", |it| it.row.text("read_mean_ns", MILLISECONDS))
        .figure("read p99", |it| it.row.text("read_p99_ns", MILLISECONDS))
        .figure("read max", |it| it.row.text("read_max_ns", MILLISECONDS))
        .figure("writes/s", |it| it.row.text("write_iops", Unit::number(0)))
        .figure("write p99", |it| it.row.text("write_p99_ns", MILLISECONDS))
        .table()
}

fn remarks(rows: &[Row], options: &Options) -> Vec<String> {
    let mut remarks =
        vec![
        "IOPS and figures: medians of the runs, which took turns; times are from submission to \
         end, known to 6 %.".to_owned(),
        format!(
            "The disk is a model: it serves one I/O after the other, {} us each and {} to {} us \
             for the head's way (with the root of the distance).",
            LATENCY_NS / 1000,
            SEEK_MIN_NS / 1000,
            SEEK_MAX_NS / 1000
        ),
        "diff: IOPS to those without a scheduler, where each thread's I/O goes in its own order \
         and threads take turns at tags.".to_owned(),
    ];
    remarks.extend(rows.iter().filter_map(longest_read));
    if options.threads == 1 {
        remarks.push("One thread cannot read and write at a time: no flood.".to_owned());
    }
    remarks
}

/// A sentence that compares the longest read beside writers, of all runs, with the expiry.
fn longest_read(row: &Row) -> Option<String> {
    row.median("write_p99_ns").filter(|_| row.variant == "ours")?;
    let longest = row.values("read_max_ns")?.iter().copied().fold(0.0, f64::max);
    Some(format!(
        "{}: the longest read of all runs took {:.1} ms with mq-deadline, its own service \
         included; read_expire is {READ_EXPIRE_MS} ms.",
        row.note.as_deref()?,
        longest / 1e6
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_stay_within_the_threads() {
        for most in 1..=256 {
            let loads = loads(most);
            assert_eq!(
                loads.len(),
                [1, 2, 2, 2, 2][..].get(most as usize - 1).copied().unwrap_or(3),
                "{most}"
            );
            for load in loads {
                assert!(load.threads() <= most, "{} of {most}", load.name);
                let all = |(lanes, depth): (u32, u32)| lanes * depth;
                let reads = if load.writers.0 == 0 { READS } else { load.readers.0 };
                let writes = if load.writers.0 == 0 { 0 } else { WRITES };
                assert_eq!((all(load.readers), all(load.writers)), (reads, writes), "{most}");
            }
        }
    }

    #[test]
    fn every_variant_is_a_device() {
        for variant in VARIANTS {
            spec(variant).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn differences_are_to_none_under_the_same_load() {
        let row = |variant, note: &str, iops| Row {
            device: "disk",
            variant,
            note: Some(note.to_owned()),
            threads: 4,
            measured: vec![("iops", vec![iops]), ("write_p99_ns", vec![f64::NAN])],
            ..Row::default()
        };
        let rows = [row("ours", "a", 300.0), row("none", "a", 200.0), row("none", "b", 1.0)];
        let lines = table(&rows).lines;
        assert_eq!([&lines[0][5], &lines[1][5], &lines[2][5]], ["+50%", "-", "-"]);
        assert_eq!(lines[0][11], "-", "what was not measured is not shown");
        assert_eq!(longest_read(&rows[0]), None);
    }
}
