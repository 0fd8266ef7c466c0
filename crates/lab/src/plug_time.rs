//! The experiment `plug-time`: "block: cache current nsec time in struct blk_plug" (Jens Axboe,
//! linux-block, January 2024, Linux 6.9), whose lines say: random reads at peak with statistics,
//! 108.4M IOPS when each use reads the clock, 118.8M when a plug reads it once; the share of the
//! clock falls from 11.9 % to 0.8 %.
//!
//! The load is the mail's: batches of 32, on as many threads as there are cores.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::Engine;
use drystone_queue::ClockUse;
use drystone_queue::scheduler::MqDeadline;
use drystone_stack::live::{OpenDevice, OpenEnv, open_device, open_with};
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::DeviceThrottle;
use serde_json::json;

use crate::measure::{Load, Sample, on_counted, sampled, warmup_ns, write_zeroes};
use crate::outcome::{Machine, Outcome, threads_text};
use crate::row::{Compared, Row, WORDS, gain, measured};
use crate::scheduler::Clocked;
use crate::table::{Columns, MILLIONS, PERCENT, Table, Unit};
use crate::{Experiment, Options, Progress, RUNS, THREADS};
use drystone_bench::{Counts, Pattern, machine};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "plug-time",
    about: "the clock read at each use (before), once a plug for submissions (mailed), \
        once for completions too (ours), not at all (none)",
    runs: RUNS,
    threads: THREADS,
    ignores: &["kernel", "bytes", "only"],
    run,
};

/// The mail's `t/io_uring`: 512 B random reads in batches of 32.
const LOAD: Load = Load { pattern: Pattern::Randread, bytes: 512, depth: 32, batch: 32 };

/// Bytes of the devices: RAM that a processor's cache does not hold.
const SIZE_BYTES: u64 = 256 << 20;

/// The shortest run whose share of the clock is reported. The kernel updates the processor time of
/// a running thread at its ticks, up to 10 ms apart, so a run's time is wrong by up to one tick at
/// either end. In a shorter run this is more than a fifth, and shares above 1 were seen.
const SHARE_FROM_NS: u64 = 100_000_000;

/// A measured use of the clock.
struct Variant {
    name: &'static str,
    open: OpenDevice,
    iostats: u32,
}

const VARIANTS: [Variant; 4] = [
    Variant {
        name: "before",
        open: open_with::<Clocked<{ ClockUse::Each as u8 }>, DeviceThrottle>,
        iostats: 1,
    },
    Variant {
        name: "mailed",
        open: open_with::<Clocked<{ ClockUse::Plug as u8 }>, DeviceThrottle>,
        iostats: 1,
    },
    Variant { name: "ours", open: open_with::<MqDeadline, DeviceThrottle>, iostats: 1 },
    Variant {
        name: "none",
        open: open_with::<Clocked<{ ClockUse::Never as u8 }>, DeviceThrottle>,
        iostats: 0,
    },
];

const DEVICES: [(&str, &str); 2] = [("null", "null,irqmode=none"), ("ram", "ram")];

fn spec(device: &str, variant: &Variant) -> anyhow::Result<DeviceSpec> {
    let iostats = variant.iostats;
    let text = format!("{device},size={SIZE_BYTES},queue.scheduler=none,queue.iostats={iostats}");
    DeviceSpec::parse(&text, Path::new("/")).map_err(|report| anyhow!(report.render(false)))
}

/// One run: the figures of every experiment, and the sums of the lanes' counts.
struct Run {
    all: Sample,
    ios: u64,
    calls: u64,
    clock_reads: u64,
    /// The mean latency by the statistics, ns; not a number without statistics.
    latency_ns: f64,
}

impl Run {
    fn clock_reads_per_io(&self) -> f64 {
        self.clock_reads as f64 / self.ios as f64
    }

    fn ios_a_call(&self) -> f64 {
        self.ios as f64 / self.calls as f64
    }

    /// The share of clock readings, of `reading_ns` each, in the processor time of a run of
    /// `runtime_ns`. Not a number if the run is too short, or if `reading_ns` cannot be the real
    /// time of a reading in the run.
    fn clock_share(&self, reading_ns: f64, runtime_ns: u64) -> f64 {
        let share = self.clock_reads_per_io() * reading_ns / self.all.cpu_ns_per_io;
        if runtime_ns >= SHARE_FROM_NS && share <= 1.0 { share } else { f64::NAN }
    }

    /// As `t/io_uring` prints it.
    fn line(&self) -> String {
        let (millions, bytes) = (self.all.iops / 1e6, self.all.iops * LOAD.bytes as f64);
        let gib = bytes / f64::from(1 << 30);
        let call = self.ios_a_call();
        format!("IOPS={millions:.2}M, BW={gib:.2}GiB/s, IOS/call={call:.0}")
    }
}

fn measure_one(
    device: &str,
    variant: &Variant,
    threads: u32,
    options: &Options,
) -> anyhow::Result<Run> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv { open: variant.open, ..OpenEnv::new(threads, clock) };
    let keeps = device == "ram";
    let device = open_device(&spec(device, variant)?, &at)?;
    if keeps {
        write_zeroes(&mut at.contexts.open(Engine::Auto)?, &device, 0..SIZE_BYTES)?;
    }
    let works = LOAD.works(&*device, threads);
    let (lanes, (all, _)) = on_counted(&device, &at, &works, |crew| {
        sampled(crew, &at.locks, threads, options.runtime_ns, || ())
    })?;
    let sum = |of: fn(&Counts) -> u64| lanes.iter().map(of).sum::<u64>();
    let reads = *device.stats().group(drystone_core::op::OpGroup::Read);
    Ok(Run {
        all,
        ios: sum(|lane| lane.ios),
        calls: sum(|lane| lane.calls),
        clock_reads: sum(|lane| lane.clock_reads),
        latency_ns: reads.time_ns as f64 / reads.completed as f64,
    })
}

/// The time of one reading, ns: the shortest of several series, which was not interrupted.
fn reading_ns() -> f64 {
    const READINGS: u32 = 20_000;
    let clock = SystemClock::new();
    let stretch = |_| {
        let start = Instant::now();
        (0..READINGS).for_each(|_| _ = black_box(clock.now()));
        start.elapsed().as_nanos() as f64 / f64::from(READINGS)
    };
    (0..50).map(stretch).fold(f64::MAX, f64::min)
}

/// Numbers of threads: as many as there are cores, as the mail has it, and one.
fn shown_threads(most: u32, cores: u64) -> Vec<u32> {
    let all = most.min(u32::try_from(cores).unwrap_or(most)).max(1);
    if all == 1 { vec![1] } else { vec![all, 1] }
}

fn run(options: &Options, say: Progress<'_>) -> anyhow::Result<Outcome> {
    let (date, machine) = (machine::now(), Machine::here());
    let shown = shown_threads(options.threads, machine.cores);
    let reading_ns = reading_ns();
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let mut steps = crate::steps::Steps::new(options, DEVICES.len() * shown.len());
    for (name, device) in DEVICES {
        for threads in &shown {
            let title = format!("{name}, {}", threads_text(*threads));
            if !steps.next(&title, say) {
                break;
            }
            let runs = measure((name, device), *threads, options)?;
            for (variant, runs) in VARIANTS.iter().zip(&runs) {
                rows.push(row((name, variant), *threads, runs, (reading_ns, options.runtime_ns)));
            }
            lines.push((format!("Lines as in the mail: {title}"), mails_lines(&runs)));
        }
    }
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        about: EXPERIMENT.about,
        more: lines,
        plots: Vec::new(),
        date,
        machine,
        parameters: parameters(options, reading_ns),
        table: table(&rows),
        remarks: remarks(reading_ns),
        rows,
        shown_threads: shown,
    })
}

fn parameters(options: &Options, reading_ns: f64) -> Vec<(&'static str, serde_json::Value)> {
    vec![
        ("rw", json!("randread")),
        ("bs", json!(LOAD.bytes)),
        ("depth", json!(LOAD.depth)),
        ("batch", json!(LOAD.batch)),
        ("size_bytes", json!(SIZE_BYTES)),
        ("reading_ns", json!((reading_ns * 10.0).round() / 10.0)),
        ("runs", json!(options.runs)),
        ("runtime_ns", json!(options.runtime_ns)),
        ("warmup_ns", json!(warmup_ns(options.runtime_ns))),
        ("debug", json!(cfg!(debug_assertions))),
    ]
}

/// All variants, in turns.
fn measure(
    (name, device): (&str, &str),
    threads: u32,
    options: &Options,
) -> anyhow::Result<Vec<Vec<Run>>> {
    let mut runs: Vec<Vec<Run>> = VARIANTS.iter().map(|_| Vec::new()).collect();
    for _ in options.turns() {
        for (variant, runs) in VARIANTS.iter().zip(&mut runs) {
            let run = measure_one(device, variant, threads, options);
            runs.push(run.with_context(|| format!("{name}: {}", variant.name))?);
        }
    }
    Ok(runs)
}

fn row(
    (device, variant): (&'static str, &Variant),
    threads: u32,
    runs: &[Run],
    (reading_ns, runtime_ns): (f64, u64),
) -> Row {
    let share = |run: &Run| run.clock_share(reading_ns, runtime_ns);
    Row {
        device,
        variant: variant.name,
        threads,
        measured: measured(
            runs,
            &[
                ("iops", &|run| run.all.iops),
                ("cpu_ns_per_io", &|run| run.all.cpu_ns_per_io),
                ("clock_reads_per_io", &Run::clock_reads_per_io),
                ("clock_share", &share),
                ("ios_per_call", &Run::ios_a_call),
                ("mean_latency_ns", &|run| run.latency_ns),
                ("contention", &|run| run.all.contention),
                ("lock_acquisitions_per_io", &|run| run.all.lock_acquisitions_per_io),
            ],
        ),
        ..Row::default()
    }
}

fn mails_lines(runs: &[Vec<Run>]) -> Table {
    let all = VARIANTS.iter().zip(runs);
    Columns::of(all.flat_map(|(variant, runs)| runs.iter().map(move |run| (variant, run))))
        .text("Variant", |(variant, _)| variant.name.to_owned())
        .text("t/io_uring's line", |(_, run)| run.line())
        .table()
}

/// A line for each row, compared with *before* on the same device with as many threads.
fn table(rows: &[Row]) -> Table {
    let is_base = |row: &Row, base: &Row| {
        base.variant == "before" && (base.device, base.threads) == (row.device, row.threads)
    };
    Columns::of(Compared::all(rows, is_base))
        .text("Device", |it| it.row.device.to_owned())
        .text("Variant", |it| it.row.variant.to_owned())
        .text("Threads", |it| it.row.threads.to_string())
        .figure("IOPS", |it| it.row.text("iops", MILLIONS))
        .figure("IOPS, least to most", |it| it.row.range("iops", MILLIONS, WORDS))
        .figure("diff", |it| gain(it.row, it.base, "iops").map(|part| PERCENT.change(part)))
        .figure("CPU ns/IO", |it| it.row.text("cpu_ns_per_io", Unit::number(1)))
        .figure("clock reads/IO", |it| it.row.text("clock_reads_per_io", Unit::number(3)))
        .figure("clock's share", |it| it.row.text("clock_share", PERCENT))
        .table()
}

fn remarks(reading_ns: f64) -> Vec<String> {
    vec![
        "Medians of the runs, which took turns; diff is against `before`.".to_owned(),
        format!(
            "clock's share: readings that the contexts counted, times {reading_ns:.1} ns that \
             one took in a loop before the runs, of all processor time; `-` (null in the JSON) \
             where a run was too short to say, less than {} ms.",
            SHARE_FROM_NS / 1_000_000
        ),
        "`none` keeps no statistics and does not read the clock at all: nobody can have more."
            .to_owned(),
        "The mail, on a machine of the field's fastest: 108.4M to 118.8M IOPS (+9.6 %), the \
         clock's share from 11.9 % to 0.8 %. A kernel has more uses of the clock for each I/O \
         than the two here."
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Options {
        Options { runs: 1, runtime_ns: 20_000_000, threads: 1, ..Options::default() }
    }

    /// Each variant reads the clock as often for each I/O as it claims.
    #[test]
    fn variants_read_the_clock_as_often_as_they_say() {
        for (_, device) in DEVICES {
            let reads = VARIANTS.iter().map(|variant| {
                measure_one(device, variant, 1, &short()).expect("it runs").clock_reads_per_io()
            });
            let reads: Vec<f64> = reads.collect();
            let [before, mailed, ours, none] = reads[..] else { panic!("{reads:?}") };
            assert!(before >= 2.0, "{device}: {reads:?}");
            assert!((1.0..1.2).contains(&mailed), "{device}: {reads:?}");
            assert!(ours > 0.0 && ours < 0.1, "{device}: {reads:?}");
            assert!(none < 0.001, "{device}: {reads:?}");
        }
    }

    /// A share above 1 is impossible and is not reported, nor is one measured in less than some
    /// ticks.
    #[test]
    fn a_share_that_is_not_known_is_null() {
        let run = measure_one("null,irqmode=none", &VARIANTS[0], 1, &short()).expect("it runs");
        let one = run.all.cpu_ns_per_io / run.clock_reads_per_io();
        let share = run.clock_share(one / 4.0, SHARE_FROM_NS);
        assert!((share - 0.25).abs() < 1e-9, "{share}");
        assert!(run.clock_share(one * 1.1, SHARE_FROM_NS).is_nan());
        assert!(run.clock_share(one / 4.0, SHARE_FROM_NS - 1).is_nan());
        let row = row(("null", &VARIANTS[0]), 1, &[run], (one / 4.0, 1_000_000));
        assert_eq!(serde_json::json!(row.values("clock_share")), serde_json::json!([null]));
        let cells = &table(std::slice::from_ref(&row)).lines[0];
        assert_eq!(cells.last().map(String::as_str), Some("-"), "{cells:?}");
        assert_ne!(cells[3], "-", "what was measured is shown");
    }

    #[test]
    fn lines_are_those_of_the_mail() {
        let run = measure_one("null,irqmode=none", &VARIANTS[2], 1, &short()).expect("it runs");
        let line = run.line();
        assert!(line.starts_with("IOPS=") && line.ends_with("IOS/call=32"), "{line}");
    }

    #[test]
    fn threads_are_all_cores_and_one() {
        assert_eq!(shown_threads(32, 8), [8, 1]);
        assert_eq!(shown_threads(2, 8), [2, 1]);
        assert_eq!(shown_threads(32, 1), [1]);
    }
}
