//! Arguments of `drystone bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use drystone_core::context::PollMode;
use drystone_core::{Priority, PriorityClass};
use drystone_stack::duration::{Unit, parse_duration};
use drystone_stack::size::parse_size;

/// Measures peak IOPS of one device, in the manner of fio's t/io_uring.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// The device: null, ram,size=1GiB, file,path=disk.img,direct=true, ...
    #[arg(long, value_name = "SPEC", required_unless_present = "stack", conflicts_with = "stack")]
    pub device: Option<String>,
    /// A stack file that has the device
    #[arg(long, value_name = "FILE", requires = "name")]
    pub stack: Option<PathBuf>,
    /// The device's name in the stack file
    #[arg(long, value_name = "DEV", requires = "stack", conflicts_with = "device")]
    pub name: Option<String>,
    /// Threads that submit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// I/Os in flight for each thread
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: u32,
    /// I/Os submitted and reaped together [default: the depth]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch: Option<u32>,
    /// I/Os to wait for at once, as t/io_uring's -c [default: the batch]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch_complete: Option<u32>,
    /// Size of an I/O
    #[arg(long, default_value = "512", value_parser = block_size)]
    pub bs: u64,
    /// Operations of the I/Os
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    pub rw: Pattern,
    /// Time measured: seconds, or a number with us, ms, s or min
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = time)]
    pub runtime: u64,
    /// Time before the measurement: seconds, or a number with us, ms, s or min
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = time)]
    pub warmup: u64,
    /// Write the whole device once before the warm-up
    #[arg(long)]
    pub fill: bool,
    /// Overwrite a file system, a partition table or part of an array on the device
    #[arg(long, short)]
    pub force: bool,
    /// How threads wait for completions: asleep, by polling, or by whichever is faster
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = poll_mode)]
    pub poll_mode: PollMode,
    /// The same as --poll-mode poll
    #[arg(long, conflicts_with = "poll_mode")]
    pub poll: bool,
    /// I/Os a second that each thread starts [default: as many as end]
    #[arg(
        long,
        value_name = "IOPS",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    pub rate: Option<u64>,
    /// Priority class and level of the I/Os, as rt, rt:0, be:4 or idle
    #[arg(long, value_name = "CLASS[:LEVEL]", value_parser = priority)]
    pub prio: Option<Priority>,
    /// Cores to run the threads on, as in 0,2,4-7
    #[arg(long, value_name = "LIST", value_parser = cpu_list)]
    pub cpus: Option<CpuList>,
    /// Also write the figures as one JSON object; - is the standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl BenchArgs {
    /// The way the threads wait.
    pub fn mode(&self) -> PollMode {
        if self.poll { PollMode::Poll } else { self.poll_mode }
    }

    /// The option by which it overwrites what is on the device.
    pub fn overwrites(&self) -> Option<&'static str> {
        match (self.fill, self.writes()) {
            (true, _) => Some("--fill"),
            (false, true) => Some("--rw"),
            (false, false) => None,
        }
    }

    /// True if its I/Os are writes.
    pub fn writes(&self) -> bool {
        matches!(self.rw, Pattern::Write | Pattern::Randwrite)
    }
}

/// The operations of a benchmark's I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Reads all over the device.
    Randread,
    /// Writes all over the device.
    Randwrite,
}

impl From<Pattern> for drystone_bench::Pattern {
    fn from(pattern: Pattern) -> Self {
        match pattern {
            Pattern::Read => drystone_bench::Pattern::Read,
            Pattern::Write => drystone_bench::Pattern::Write,
            Pattern::Randread => drystone_bench::Pattern::Randread,
            Pattern::Randwrite => drystone_bench::Pattern::Randwrite,
        }
    }
}

/// Numbers of cores, rising, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

/// Most cores that a list may name: as many as Linux can have.
const MAX_CPUS: u32 = 8192;

fn block_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match bytes {
        bytes if bytes == 0 || bytes % 512 != 0 => Err("is not a multiple of 512 bytes".to_owned()),
        bytes if bytes > 64 << 20 => Err("is larger than 64MiB".to_owned()),
        bytes => Ok(bytes),
    }
}

fn priority(text: &str) -> Result<Priority, String> {
    let (class, level) = text.split_once(':').unwrap_or((text, "0"));
    let class = match class {
        "none" => PriorityClass::None,
        "rt" | "realtime" => PriorityClass::RealTime,
        "be" | "best-effort" => PriorityClass::BestEffort,
        "idle" => PriorityClass::Idle,
        _ => return Err(format!("`{class}` is no class: use rt, be, idle or none")),
    };
    match level.parse() {
        Ok(level) if level <= 7 => Ok(Priority { class, level }),
        _ => Err(format!("`{level}` is no level: use 0 (first) to 7")),
    }
}

fn poll_mode(text: &str) -> Result<PollMode, String> {
    let wrong = || format!("`{text}` is no poll mode: use interrupt, poll or adaptive");
    PollMode::from_name(text).ok_or_else(wrong)
}

fn time(text: &str) -> Result<u64, String> {
    parse_duration(text, Unit::Seconds).map_err(|error| error.to_string())
}

fn cpu_list(text: &str) -> Result<CpuList, String> {
    let wrong = |part: &str| format!("`{part}` is no core: write 0,2,4-7, each below {MAX_CPUS}");
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse().ok().filter(|cpu: &u32| *cpu < MAX_CPUS);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(wrong(part)),
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(CpuList(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_listed_as_taskset_lists_them() {
        assert_eq!(cpu_list("0,4-6,5"), Ok(CpuList(vec![0, 4, 5, 6])));
        for bad in ["", "x", "3-1", "8192", "1,,2", "0-99999"] {
            assert!(cpu_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn priorities_are_ionices() {
        let rt = Priority { class: PriorityClass::RealTime, level: 3 };
        assert_eq!(priority("rt:3"), Ok(rt));
        assert_eq!(priority("idle").map(|p| p.level), Ok(0));
        for bad in ["", "rt:8", "rt:", "real", "be:-1"] {
            assert!(priority(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn block_sizes_are_whole_sectors() {
        assert_eq!(block_size("4k"), Ok(4096));
        for bad in ["0", "100", "1G", "x"] {
            assert!(block_size(bad).is_err(), "{bad}");
        }
    }
}
