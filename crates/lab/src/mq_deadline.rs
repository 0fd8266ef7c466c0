//! The experiment `mq-deadline`: "block/mq-deadline: use separate insertion lists" (Bart Van Assche
//! and Jens Axboe, linux-block, 23 January 2024), whose table says: 512 B random reads, 32 jobs of
//! depth 4, submitted and completed in fours: 879K IOPS, 89 % system time and 93.6 % contention
//! before; 2867K, 11.1 % and 6.0 % after.
//!
//! The load is the mail's. The variants take turns, run by run, so that a disturbance of the
//! machine affects all of them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use drystone_core::sync::{ClassStats, LockClass, LockStats};
use drystone_queue::scheduler::MqDeadline;
use drystone_stack::live::{OpenDevice, open_with};
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::DeviceThrottle;
use serde_json::json;

use crate::kernel::LOAD;
use crate::measure::{Point, Sample, warmup_ns};
use crate::outcome::{Machine, Outcome, threads_text};
use crate::row::{BRACKETS, Compared, Row, measured};
use crate::scheduler::{Baseline, Patched, SharedOnly};
use crate::steps::Steps;
use crate::table::{Columns, PERCENT, THOUSANDS, Table, Unit, WHOLE_PERCENT};
use crate::temp_file::TempFile;
use crate::{Experiment, Options, Progress, kernel};
use drystone_bench::machine;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "mq-deadline",
    about: "one lock (before), separate insertion lists (mailed), and ours, which \
        never waits",
    runs: crate::RUNS,
    threads: crate::THREADS,
    ignores: &["bytes", "only"],
    run,
};

/// Size of both devices: far more than a processor's cache.
const SIZE_BYTES: u64 = 256 << 20;

/// Tags of the null device. 32 threads have at most 128 I/Os in flight, and as many again for each
/// thread that is pre-empted in a call. With so many tags no row depends on their number. A file
/// has 256.
const NULL_TAGS: u32 = 1024;

/// The devices, by their names in rows.
pub(crate) const NULL: &str = "null";
const FILE: &str = "file on tmpfs";

/// A design to be measured.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) note: Option<&'static str>,
    pub(crate) open: OpenDevice,
    /// Keys of its queue.
    queue: &'static str,
}

const SCHEDULED: &str = "queue.scheduler=mq-deadline,queue.straight=false";
const STRAIGHT: &str = "queue.scheduler=mq-deadline,queue.straight=true";

pub(crate) static VARIANTS: [Variant; 7] = [
    Variant {
        name: "before",
        note: None,
        open: open_with::<Baseline<false>, DeviceThrottle>,
        queue: SCHEDULED,
    },
    Variant {
        name: "mailed",
        note: None,
        open: open_with::<Patched, DeviceThrottle>,
        queue: SCHEDULED,
    },
    Variant {
        name: "ours",
        note: None,
        open: open_with::<MqDeadline, DeviceThrottle>,
        queue: SCHEDULED,
    },
    Variant {
        name: "ours",
        note: Some("always in turn"),
        open: open_with::<SharedOnly, DeviceThrottle>,
        queue: SCHEDULED,
    },
    Variant {
        name: "ours",
        note: Some("straight through"),
        open: open_with::<MqDeadline, DeviceThrottle>,
        queue: STRAIGHT,
    },
    Variant {
        name: "none",
        note: None,
        open: open_with::<MqDeadline, DeviceThrottle>,
        queue: "queue.scheduler=none",
    },
    Variant {
        name: "before",
        note: Some("pure spin lock, unfair"),
        open: open_with::<Baseline<true>, DeviceThrottle>,
        queue: SCHEDULED,
    },
];

/// A device, and the text that describes it for every variant.
struct Device {
    name: &'static str,
    text: String,
}

fn devices(file: &Path) -> [Device; 2] {
    let file = file.display().to_string().replace(',', ",,");
    [null(), Device { name: FILE, text: format!("file,path={file},queue.hw_queues=1") }]
}

fn null() -> Device {
    let text = format!(
        "null,size={SIZE_BYTES},submit_queues=1,hw_queue_depth={NULL_TAGS},\
         queue.nr_requests={NULL_TAGS},irqmode=none"
    );
    Device { name: NULL, text }
}

/// The null device under `variant`.
pub(crate) fn null_spec(variant: &Variant) -> anyhow::Result<DeviceSpec> {
    spec(&null(), variant)
}

/// Numbers of threads of the table, in its order: on two cores, two threads give the least
/// distorted figures.
fn shown_threads(most: u32) -> Vec<u32> {
    let mut shown = Vec::new();
    for threads in [2, 1, most] {
        if threads <= most && !shown.contains(&threads) {
            shown.push(threads);
        }
    }
    shown
}

/// Numbers of threads that only the chart has.
fn chart_threads(most: u32) -> Vec<u32> {
    let shown: BTreeSet<u32> = shown_threads(most).into_iter().collect();
    (0..).map(|n| 1 << n).take_while(|n| *n < most).filter(|n| !shown.contains(n)).collect()
}

fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let date = machine::now();
    let scratch = TempFile::in_memory(SIZE_BYTES)?;
    let shown = shown_threads(options.threads);
    let mut threads = shown.clone();
    if options.chart {
        threads.extend(chart_threads(options.threads));
    }
    say(&estimate(threads.len(), options));
    let mut rows = Vec::new();
    let devices = devices(&scratch.path());
    let mut steps = Steps::new(options, devices.len() * threads.len());
    for device in devices {
        for threads in &threads {
            if !steps.next(&format!("{}, {}", device.name, threads_text(*threads)), say) {
                break;
            }
            rows.extend(measure(&device, *threads, options)?);
        }
    }
    let mut remarks = remarks(options);
    remarks.extend(not_quiet(&rows));
    if options.kernel && !options.stop.is_asked() {
        let found = kernel::measure(options, &scratch.path(), &shown, say);
        rows.extend(found.rows);
        remarks.extend(found.remarks);
        remarks.extend(shown.iter().filter_map(|threads| taxes(&rows, *threads)));
    }
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        more: Vec::new(),
        plots: Vec::new(),
        date,
        machine: Machine::here(),
        parameters: parameters(options),
        table: table(&rows, &shown),
        rows,
        shown_threads: shown,
        remarks,
    })
}

fn parameters(options: &Options) -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("rw", json!("randread")),
        ("bs", json!(LOAD.bytes)),
        ("depth", json!(LOAD.depth)),
        ("batch", json!(LOAD.batch)),
        ("threads", json!(options.threads)),
        ("runs", json!(options.runs)),
        ("runtime_ns", json!(options.runtime_ns)),
        ("warmup_ns", json!(warmup_ns(options.runtime_ns))),
        ("size_bytes", json!(SIZE_BYTES)),
        ("hw_queue_depth", json!(NULL_TAGS)),
        ("debug", json!(cfg!(debug_assertions))),
    ]
}

fn estimate(points: usize, options: &Options) -> String {
    let runs = 2 * points as u64 * VARIANTS.len() as u64 * u64::from(options.runs);
    let seconds = runs * (options.runtime_ns + warmup_ns(options.runtime_ns)) / 1_000_000_000;
    format!("{runs} runs, about {} min {} s", seconds / 60, seconds % 60)
}

/// All variants with so many threads, in turns.
fn measure(device: &Device, threads: u32, options: &Options) -> anyhow::Result<Vec<Row>> {
    let mut samples: Vec<Vec<Sample>> = VARIANTS.iter().map(|_| Vec::new()).collect();
    let specs = VARIANTS.iter().map(|variant| spec(device, variant));
    let specs = specs.collect::<anyhow::Result<Vec<DeviceSpec>>>()?;
    for _ in options.turns() {
        for ((variant, spec), samples) in VARIANTS.iter().zip(&specs).zip(&mut samples) {
            let runtime_ns = options.runtime_ns;
            let point = Point {
                spec,
                open: variant.open,
                threads,
                load: &LOAD,
                runtime_ns,
                time_holds: false,
            };
            let sample = point.measure();
            samples.push(sample.with_context(|| format!("{}: {}", device.name, variant.name))?);
        }
    }
    let rows = VARIANTS.iter().zip(samples);
    Ok(rows.map(|(variant, samples)| row(device.name, variant, threads, &samples)).collect())
}

fn spec(device: &Device, variant: &Variant) -> anyhow::Result<DeviceSpec> {
    let text = format!("{},{}", device.text, variant.queue);
    DeviceSpec::parse(&text, Path::new("/")).map_err(|report| anyhow!(report.render(false)))
}

fn row(device: &'static str, variant: &Variant, threads: u32, samples: &[Sample]) -> Row {
    let mut locks = LockStats::default();
    samples.iter().for_each(|sample| locks += sample.locks.clone());
    Row {
        device,
        variant: variant.name,
        note: variant.note.map(str::to_owned),
        threads,
        measured: measured(
            samples,
            &[
                ("iops", &|s| s.iops),
                ("sys_of_cpu", &|s| s.sys_of_cpu),
                ("sys_of_threads", &|s| s.sys_of_threads),
                ("contention", &|s| s.contention),
                ("contention_cpu", &|s| s.contention_cpu),
                ("grant_wait", &|s| s.grant_wait),
                ("cores_used", &|s| s.cores_used),
                ("cpu_ns_per_io", &|s| s.cpu_ns_per_io),
                ("lock_acquisitions_per_io", &|s| s.lock_acquisitions_per_io),
                ("lock_contentions_per_io", &|s| s.lock_contentions_per_io),
            ],
        ),
        locks: classes(variant, &locks),
        ..Row::default()
    }
}

/// The classes that the data path used. The control plane's classes only count the opening of the
/// device.
fn classes(variant: &Variant, locks: &LockStats) -> Vec<(String, ClassStats)> {
    let control = [LockClass::Control, LockClass::ContextSet];
    let used = locks.used().filter(|(class, _)| !control.contains(class));
    used.map(|(class, stats)| {
        let name = match class {
            Patched::INSERT_LOCK if variant.name == "mailed" => "insert_lock",
            _ => class.name(),
        };
        (name.to_owned(), *stats)
    })
    .collect()
}

/// A line for each row with one of the numbers of `threads`, compared with *before* on the same
/// device with as many.
fn table(rows: &[Row], threads: &[u32]) -> Table {
    let is_base = |row: &Row, base: &Row| {
        let is_plain = base.variant == "before" && base.note.is_none();
        is_plain && (base.device, base.threads) == (row.device, row.threads)
    };
    let lines = Compared::all(rows, is_base).filter(|it| threads.contains(&it.row.threads));
    Columns::of(lines)
        .text("Device", |it| it.row.device.to_owned())
        .text("Variant", |it| it.row.name())
        .text("Threads", |it| it.row.threads.to_string())
        .figure("IOPS", |it| it.row.text("iops", THOUSANDS))
        .figure("sys", |it| it.row.text("sys_of_cpu", PERCENT))
        .figure("contention", |it| it.row.text("contention", PERCENT))
        .figure("diff", |it| it.change("iops", WHOLE_PERCENT))
        .figure("IOPS, least to most", |it| it.row.range("iops", THOUSANDS, BRACKETS))
        .figure("contention, CPU", |it| it.row.text("contention_cpu", PERCENT))
        .figure("grant wait", |it| it.row.text("grant_wait", PERCENT))
        .figure("cores", |it| it.row.text("cores_used", Unit::number(2)))
        .figure("CPU ns/IO", |it| it.row.text("cpu_ns_per_io", Unit::number(0)))
        .table()
}

/// The cost of a scheduler in IOPS, compared with none: the kernel's on its loop device, ours on a
/// file.
fn taxes(rows: &[Row], threads: u32) -> Option<String> {
    let iops = |device: &str, variant: &str| {
        let row = rows.iter().find(|row| {
            (row.device, row.variant, row.threads) == (device, variant, threads)
                && row.note.is_none()
        })?;
        row.median("iops")
    };
    let tax =
        |device, variant| Some((iops(device, variant)? / iops(device, "none")? - 1.0) * 100.0);
    Some(format!(
        "mq-deadline's IOPS to none's with {}: {:+.0}% in the kernel (loop on tmpfs), {:+.0}% \
         here (file on tmpfs).",
        threads_text(threads),
        tax(kernel::DEVICE, "before")?,
        tax(FILE, "ours")?,
    ))
}

fn remarks(options: &Options) -> Vec<String> {
    let cores = Machine::here().cores;
    let mut remarks = vec![
        "IOPS and figures: medians of the runs, which took turns. sys: system time as a share \
         of processor time."
            .to_owned(),
        "contention: time from a lock's first failed attempt until it was taken, of all \
         threads, over threads times wall time; contention, CPU: processor time of these waits \
         (one in 32 sampled) over all processor time."
            .to_owned(),
        "grant wait: contexts that busy-poll for units that the scheduler has; no lock, \
         and not part of contention."
            .to_owned(),
        "ours: while nothing is kept and there are tags, as here, a call's I/Os go through a \
         FIFO and sort order of their thread's own; `always in turn` puts them through those \
         that all threads share even so, and `straight through` past both."
            .to_owned(),
        "Who gives up (a merge attempt, a turn that is taken) has no wait. A compare-and-swap \
         tried again is one where bios are published for others, and not where tags are taken, \
         which all variants do alike."
            .to_owned(),
        format!(
            "The null device has {NULL_TAGS} tags, more than all threads use. The file has 256; \
             a call that starts I/O takes up to 32 at once, so pre-empted callers can leave \
             others without: those wait for completions."
        ),
    ];
    if u64::from(options.threads) > cores {
        remarks.push(format!(
            "{cores} cores cannot show what more than {cores} threads do to a lock at once: \
             with more, a wait is mostly for a thread that is off its core, and the mail's \
             collapse, 32 cores at one cache line, does not take place. 2 threads are the pair \
             least distorted."
        ));
    }
    remarks
}

/// A sentence about processor time that the machine did not give. The null device without a
/// scheduler neither sleeps nor waits, so it shows this.
fn not_quiet(rows: &[Row]) -> Option<String> {
    let cores = Machine::here().cores as f64;
    let rows = rows.iter().filter(|row| (row.device, row.variant) == (NULL, "none"));
    let shares = rows.flat_map(|row| {
        let most = f64::from(row.threads).min(cores);
        row.values("cores_used").unwrap_or_default().iter().map(move |used| used / most)
    });
    let least = shares.fold(1.0, f64::min);
    (least < 0.9).then(|| {
        format!(
            "The machine was not quiet: null without a scheduler, which never waits, had only \
             {:.0}% of its cores in one run. Threads that share a core do not meet at a lock, \
             so little of the contention shows.",
            least * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_come_first() {
        assert_eq!(shown_threads(32), [2, 1, 32]);
        assert_eq!(chart_threads(32), [4, 8, 16]);
        assert_eq!((shown_threads(2), shown_threads(1)), (vec![2, 1], vec![1]));
        assert_eq!((chart_threads(2), chart_threads(6)), (vec![], vec![4]));
    }

    /// The README begins with a run that takes "about a minute".
    #[test]
    fn the_first_run_of_the_readme_is_short() {
        let readme = include_str!("../../../README.md");
        let first = readme.lines().find(|line| line.starts_with("drystone lab run "));
        let first = first.expect("a run");
        assert!(first.starts_with("drystone lab run mq-deadline --runs 1 --runtime 1s "));
        assert!(first.contains("about a minute"), "{first}");
        let options = Options { runs: 1, runtime_ns: 1_000_000_000, ..Options::default() };
        let told = estimate(shown_threads(EXPERIMENT.threads).len(), &options);
        let (_, time) = told.split_once("about ").expect("a time");
        let words: Vec<u32> = time.split(' ').filter_map(|word| word.parse().ok()).collect();
        let seconds = words[0] * 60 + words[1];
        assert!((30..=75).contains(&seconds), "{told}");
    }

    #[test]
    fn every_variant_is_a_device() {
        for device in devices(Path::new("/dev/shm/a,b")) {
            for variant in &VARIANTS {
                spec(&device, variant).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn differences_are_to_before_in_the_same_place() {
        let row = |variant, threads, iops: f64| Row {
            device: "null",
            variant,
            threads,
            measured: vec![("iops", vec![iops])],
            ..Row::default()
        };
        let rows = [row("before", 2, 50.0), row("before", 1, 100.0), row("ours", 1, 326.0)];
        let lines = table(&rows, &[1]).lines;
        assert_eq!([&lines[0][6], &lines[1][6]], ["-", "+226%"]);
        assert_eq!(lines[1][4], "-", "what was not measured is not shown");
    }
}
