//! The kernel's own schedulers beside ours: a loop device over the same file in memory, without and
//! with `mq-deadline`, under fio with the same load. This takes root, losetup and fio. A remark
//! reports what is missing, and the rest of the experiment goes on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use drystone_bench::Pattern;
use serde_json::Value;

use crate::measure::{Load, warmup_ns};
use crate::outcome::threads_text;
use crate::row::{Row, measured};
use crate::{Options, Progress};

/// The device's name in rows.
pub const DEVICE: &str = "loop on tmpfs (kernel)";

/// The kernel's schedulers, and their names in rows. Linux's `mq-deadline` is the design of
/// *before*.
const SCHEDULERS: [(&str, &str); 2] = [("mq-deadline", "before"), ("none", "none")];

/// Rows that were found, and remarks on them.
#[derive(Default)]
pub struct Found {
    pub rows: Vec<Row>,
    pub remarks: Vec<String>,
}

/// Measure the kernel with each number of `threads`, on a loop device over `file`.
pub fn measure(options: &Options, file: &Path, threads: &[u32], say: Progress<'_>) -> Found {
    match try_measure(options, file, threads, say) {
        Ok(rows) => Found { rows, remarks: vec![REMARK.to_owned()] },
        Err(error) => {
            let skipped = format!("SKIPPED: --kernel: {error:#}");
            say(&skipped);
            Found { rows: Vec::new(), remarks: vec![skipped] }
        }
    }
}

/// The mail's: 512 B random reads, depth 4, in fours.
pub(crate) const LOAD: Load = Load { pattern: Pattern::Randread, bytes: 512, depth: 4, batch: 4 };

const REMARK: &str = "The loop rows are the kernel's own (fio's io_uring engine, numjobs threads): \
    `before` is its mq-deadline. A loop device passes each I/O to a kernel thread, which fio does \
    not count: only IOPS, and the ratio of the two, say something. sys is fio's.";

fn try_measure(
    options: &Options,
    file: &Path,
    threads: &[u32],
    say: Progress<'_>,
) -> anyhow::Result<Vec<Row>> {
    output("fio", &["--version"])?;
    let device = LoopDevice::attach(file)?;
    let mut rows = Vec::new();
    for threads in threads {
        say(&format!("{DEVICE}, {}", threads_text(*threads)));
        let mut samples = [Vec::new(), Vec::new()];
        for _ in options.turns() {
            for ((scheduler, _), samples) in SCHEDULERS.iter().zip(&mut samples) {
                device.set_scheduler(scheduler)?;
                samples.push(fio(options, &device.path, *threads)?);
            }
        }
        let named = SCHEDULERS.iter().zip(samples);
        rows.extend(named.map(|((_, variant), samples)| row(variant, *threads, &samples)));
    }
    Ok(rows)
}

/// Figures that fio reports of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    iops: f64,
    /// User and system time in percent of threads times time.
    user: f64,
    system: f64,
}

fn row(variant: &'static str, threads: u32, samples: &[Sample]) -> Row {
    Row {
        device: DEVICE,
        variant,
        threads,
        measured: measured(
            samples,
            &[
                ("iops", &|s| s.iops),
                ("sys_of_cpu", &|s| s.system / (s.user + s.system)),
                ("sys_of_threads", &|s| s.system / 100.0),
            ],
        ),
        ..Row::default()
    }
}

fn fio(options: &Options, device: &Path, threads: u32) -> anyhow::Result<Sample> {
    let milliseconds = |ns: u64| (ns / 1_000_000).max(1);
    let job = [
        "--name=lab".to_owned(),
        format!("--filename={}", device.display()),
        format!("--numjobs={threads}"),
        format!("--runtime={}ms", milliseconds(options.runtime_ns)),
        format!("--ramp_time={}ms", milliseconds(warmup_ns(options.runtime_ns))),
        format!("--bs={}", LOAD.bytes),
        format!("--iodepth={}", LOAD.depth),
        format!("--iodepth_batch_submit={}", LOAD.batch),
        format!("--iodepth_batch_complete_min={}", LOAD.batch),
        format!("--iodepth_batch_complete_max={}", LOAD.batch),
    ];
    const FIXED: [&str; 8] = [
        "--rw=randread",
        "--ioengine=io_uring",
        "--direct=1",
        "--norandommap",
        "--thread",
        "--time_based",
        "--group_reporting",
        "--output-format=json",
    ];
    let mut words: Vec<&str> = job.iter().map(String::as_str).collect();
    words.extend(FIXED);
    parse(&output("fio", &words)?)
}

fn parse(text: &str) -> anyhow::Result<Sample> {
    // Notes may stand before the JSON.
    let start = text.find('{').unwrap_or(0);
    let found: Value = serde_json::from_str(&text[start..]).context("fio's output is no JSON")?;
    let job = &found["jobs"][0];
    let number = |value: &Value| value.as_f64().context("fio's output lacks figures");
    Ok(Sample {
        iops: number(&job["read"]["iops"])?,
        user: number(&job["usr_cpu"])?,
        system: number(&job["sys_cpu"])?,
    })
}

/// Runs a program and gives its standard output.
fn output(program: &str, words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed: {}", message.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A loop device over a file, detached in the end.
struct LoopDevice {
    path: PathBuf,
    /// Its attribute `queue/scheduler`, and the attribute's original value.
    attribute: PathBuf,
    scheduler: String,
}

impl LoopDevice {
    fn attach(file: &Path) -> anyhow::Result<Self> {
        let path = output("losetup", &["--find", "--show", &file.display().to_string()])?;
        let path = PathBuf::from(path.trim());
        let name = path.file_name().unwrap_or_default();
        let attribute = Path::new("/sys/block").join(name).join("queue/scheduler");
        let mut device = LoopDevice { path, attribute, scheduler: String::new() };
        let text = std::fs::read_to_string(&device.attribute)
            .with_context(|| format!("cannot read {}", device.attribute.display()))?;
        match chosen(&text) {
            Some(scheduler) => device.scheduler = scheduler.to_owned(),
            None => bail!("{}: no scheduler in {text:?}", device.attribute.display()),
        }
        Ok(device)
    }

    fn set_scheduler(&self, name: &str) -> anyhow::Result<()> {
        std::fs::write(&self.attribute, name)
            .with_context(|| format!("cannot write {name} to {}", self.attribute.display()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A setting that cannot be restored stays; losetup itself reports its errors.
        let _ = self.set_scheduler(&self.scheduler);
        let _ = output("losetup", &["--detach", &self.path.display().to_string()]);
    }
}

/// The name in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_and_the_kernel_say_is_understood() {
        assert_eq!(chosen("none [mq-deadline] bfq\n"), Some("mq-deadline"));
        assert_eq!(chosen("none"), None);
        let text =
            "note: x\n{\"jobs\":[{\"read\":{\"iops\":27576.8},\"usr_cpu\":0.5,\"sys_cpu\":8.3}]}";
        let sample = Sample { iops: 27576.8, user: 0.5, system: 8.3 };
        assert_eq!(parse(text).expect("figures"), sample);
        assert!(parse("{\"jobs\":[]}").is_err() && parse("fio: no").is_err());
    }

    #[test]
    fn what_cannot_be_had_is_said_and_no_failure() {
        let options =
            Options { runs: 1, runtime_ns: 1, threads: 1, kernel: true, ..Options::default() };
        let mut said = Vec::new();
        let nowhere = Path::new("/nonexistent/file");
        let found = measure(&options, nowhere, &[1], &mut |line| said.push(line.to_owned()));
        assert!(found.rows.is_empty());
        assert!(said[0].starts_with("SKIPPED: --kernel: "), "{said:?}");
        assert_eq!(found.remarks, said);
    }
}
