//! Runs a benchmark: opens the device, starts the lanes, tells them the phases, reports.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure};
use drystone_bench::{Crew, Shared, Stop, Work, machine, phase};
use drystone_core::clock::SystemClock;
use drystone_core::context::PollMode;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::{ChannelId, Context, ContextSet, Device, DeviceInfo, ring};
use drystone_stack::live::{OpenEnv, engine_of, open_device, open_one};
use drystone_stack::spec::{DeviceKind, DeviceSpec, StackSpec};
use serde_json::{Value, json};

use super::report::{Figures, Rate};
use super::{BenchArgs, CpuList, Pattern, contents, fill};
use crate::draft::{Draft, is_standard_output};
use crate::failure::Failure;
use crate::signals::stop_on_signals;
use crate::{alloc, output};

/// Opened and ready to start.
struct Run<'a> {
    args: &'a BenchArgs,
    device: Arc<dyn Device>,
    shared: Shared,
    works: Vec<Work>,
    engine: &'static str,
    stop: Stop,
}

/// The time that a Ctrl-C may be unnoticed.
const GLANCE: Duration = Duration::from_millis(50);

/// Observations of the watcher in the measured time.
struct Watched {
    helpers_cpu_ns: u64,
    latency: Snapshot,
}

/// The subject of a measurement.
pub enum Subject {
    /// A device as given on the command line.
    Device(Box<DeviceSpec>),
    /// A device of a stack, with what it stands on.
    InStack(Box<StackSpec>, String),
}

impl Subject {
    /// Refuses to write to what is part of something else: that would be spoilt, here unseen.
    fn check_writes(&self) -> anyhow::Result<()> {
        let Subject::InStack(stack, name) = self else { return Ok(()) };
        let user = stack
            .devices
            .iter()
            .find(|user| user.members().iter().any(|member| member.device == *name));
        match user {
            Some(user) => bail!(
                "--name: `{name}` is part of `{}`, so it must not be written to; measure `{}`, or \
                 only read",
                user.name,
                user.name
            ),
            None => Ok(()),
        }
    }

    /// The name that the user gives it.
    fn name(&self) -> String {
        match self {
            Subject::Device(spec) => match &spec.kind {
                DeviceKind::File(file) => file.options.path.display().to_string(),
                _ => "the device".to_owned(),
            },
            Subject::InStack(_, name) => format!("`{name}`"),
        }
    }

    /// Says which files have more holes than data: a hole is read without the disk, and gets blocks
    /// when it is written to.
    fn tell_of_holes(&self, writes: bool) {
        let devices = match self {
            Subject::Device(spec) => std::slice::from_ref(&**spec),
            Subject::InStack(stack, _) => &stack.devices,
        };
        let files = devices.iter().filter_map(|device| match &device.kind {
            DeviceKind::File(file) => Some(file.options.path.as_path()),
            _ => None,
        });
        for path in files.filter(|path| is_sparse(path)) {
            let path = path.display();
            let why = match writes {
                true => "a write to one of its holes also has to find a place on the disk",
                false => "its holes are read without the disk",
            };
            output::note(&format!("{path} is sparse: {why}; --fill writes it first"));
        }
    }

    fn open(&self, at: &OpenEnv) -> anyhow::Result<(Arc<dyn Device>, ring::Engine)> {
        match self {
            Subject::Device(spec) => Ok((open_device(spec, at)?, engine_of(spec, &at.clock)?)),
            Subject::InStack(stack, name) => {
                open_one(stack, name, at).map_err(|report| anyhow!(report.render(false)))
            }
        }
    }
}

/// Measures a device.
///
/// # Errors A device that cannot be opened, arguments that do not fit it, an I/O that failed, a
/// JSON file that cannot be written.
pub fn run(args: &BenchArgs, subject: &Subject) -> anyhow::Result<()> {
    match args.overwrites() {
        Some(_) => subject.check_writes()?,
        None if args.force => {
            let text = "--force is for --fill and for --rw write or randwrite: leave it out";
            return Err(Failure::Usage(text.to_owned()).into());
        }
        None => {}
    }
    let stop = stop_on_signals()?;
    let json = args.json.as_deref().map(Draft::new).transpose()?;
    let at = OpenEnv::new(args.threads, SystemClock::new());
    let (device, engine) = subject.open(&at)?;
    let works = works(args, &device.info())?;
    if args.mode() != PollMode::Interrupt {
        enable_poll(&*device, args.mode());
    }
    let set = ContextSet::counted_by(at.locks.clone());
    let mut contexts = Vec::new();
    for _ in 0..args.threads {
        let mut cx = set.open(engine)?;
        let index = cx.open(&device)?;
        contexts.push((cx, index));
    }
    if args.fill {
        fill::check(&*device)?;
    }
    if let Some(option) = args.overwrites().filter(|_| !args.force) {
        let (cx, index) = &mut contexts[0];
        contents::check(cx, *index, &*device, option, &subject.name())?;
    }
    if args.fill {
        let (cx, index) = &mut contexts[0];
        fill::fill(cx, *index, &*device, &stop)?;
    }
    if !args.fill {
        subject.tell_of_holes(args.writes());
    }
    let engine = contexts[0].0.engine();
    let shared = Shared::new(args.threads as usize, alloc::count);
    let run = Run { args, device, shared, works, engine, stop };
    let figures = run.measure(contexts)?;
    let is_stopped = run.stop.is_asked();
    ensure!(figures.ios() > 0 || !is_stopped, "stopped before anything was measured");
    ensure!(figures.ios() > 0, "no I/O completed in the measured time; take a longer --runtime");
    if is_stopped {
        output::note("stopped early: the averages are of the time until then");
    }
    if let Some(json) = &json {
        json.write(&format!("{}\n", figures.json(run.configuration())))?;
    }
    run.print(&figures.lines())
}

fn is_sparse(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.blocks() * 512 < meta.len() / 2)
}

/// The work of each lane: random I/O goes everywhere, sequential I/O to a part for each lane.
fn works(args: &BenchArgs, info: &DeviceInfo) -> anyhow::Result<Vec<Work>> {
    let (threads, block) = (u64::from(args.threads), info.limits.logical_block_size);
    ensure!(
        args.bs.is_multiple_of(block.into()),
        "--bs: {} is not a multiple of the device's block of {block} bytes",
        args.bs
    );
    let blocks = info.size_bytes / args.bs;
    let sequential = matches!(args.rw, Pattern::Read | Pattern::Write);
    let needed = if sequential { threads } else { 1 };
    ensure!(
        blocks >= needed,
        "--bs: the device has {} bytes, too few for {needed} blocks of {}",
        info.size_bytes,
        args.bs
    );
    ensure!(!(args.writes() && info.limits.read_only), "--rw: the device is read-only");
    let part = |lane: u64| match sequential {
        true => (lane * (blocks / threads), blocks / threads),
        false => (0, blocks),
    };
    let batch = args.batch.unwrap_or(args.depth).min(args.depth) as usize;
    Ok((0..threads)
        .map(|lane| Work {
            depth: args.depth as usize,
            batch,
            batch_complete: args.batch_complete.map_or(batch, |n| n.min(args.depth) as usize),
            bs: args.bs,
            pattern: args.rw.into(),
            mode: args.mode(),
            cookies: false,
            interval_ns: args.rate.map_or(0, |rate| 1_000_000_000 / rate),
            priority: args.prio.unwrap_or_default(),
            groups: Vec::new(),
            blocks: part(lane),
            seed: lane + 1,
        })
        .collect())
}

fn enable_poll(device: &dyn Device, mode: PollMode) {
    let refused = device.set_attribute("queue/io_poll", "1").is_err();
    if refused && mode == PollMode::Poll {
        output::note("the device has no queues to poll; completions are looked for without sleep");
    }
}

impl Run<'_> {
    fn measure(&self, contexts: Vec<(Context, ChannelId)>) -> anyhow::Result<Figures> {
        let cpus = self.args.cpus.as_ref().map_or(&[][..], |CpuList(cpus)| cpus);
        let watch = |crew: &Crew<'_, '_>| self.watch(crew);
        let (lanes, watched) =
            drystone_bench::run(contexts, &self.works, &self.shared, cpus, watch)?;
        Ok(Figures {
            bs: self.args.bs,
            lanes,
            helpers_cpu_ns: watched.helpers_cpu_ns,
            latency: watched.latency,
        })
    }

    /// Leads the lanes through the phases up to the end of the measured time.
    fn watch(&self, crew: &Crew<'_, '_>) -> anyhow::Result<Watched> {
        crew.enter(phase::WARM_UP);
        self.pause(crew, Instant::now() + Duration::from_nanos(self.args.warmup))?;
        let (helpers, latency) = (machine::helpers_cpu_ns(&crew.threads), self.latencies());
        crew.enter(phase::MEASURE);
        self.print_seconds(crew)?;
        Ok(Watched {
            latency: self.latencies().since(&latency),
            helpers_cpu_ns: machine::helpers_cpu_ns(&crew.threads).saturating_sub(helpers),
        })
    }

    /// Waits, but no longer than until it must stop.
    fn pause(&self, crew: &Crew<'_, '_>, end: Instant) -> anyhow::Result<()> {
        while Instant::now() < end && !self.stop.is_asked() {
            crew.pause(end.min(Instant::now() + GLANCE))?;
        }
        Ok(())
    }

    /// Writes lines for people: beside the JSON if that is what the standard output has.
    fn print(&self, lines: &str) -> anyhow::Result<()> {
        match self.args.json.as_deref().is_some_and(is_standard_output) {
            true => output::draw(lines),
            false => _ = output::print(lines)?,
        }
        Ok(())
    }

    /// Waits for the end of the measured time, with a line for each second of it.
    fn print_seconds(&self, crew: &Crew<'_, '_>) -> anyhow::Result<()> {
        let start = Instant::now();
        let end = start + Duration::from_nanos(self.args.runtime);
        let (mut before, mut at) = (crew.progress(), start);
        loop {
            let next = at + Duration::from_secs(1);
            if next > end {
                return self.pause(crew, end);
            }
            self.pause(crew, next)?;
            if self.stop.is_asked() {
                return Ok(());
            }
            let (now, seconds) = (crew.progress(), at.elapsed().as_secs_f64());
            let completed = now.completed - before.completed;
            let rate = Rate {
                iops: completed as f64 / seconds,
                bs: self.args.bs,
                completed,
                submitted: now.submitted - before.submitted,
                calls: now.calls - before.calls,
            };
            self.print(&format!("{}\n", rate.line()))?;
            (before, at) = (now, next);
        }
    }

    fn latencies(&self) -> Snapshot {
        let group = match self.args.rw {
            Pattern::Read | Pattern::Randread => OpGroup::Read,
            Pattern::Write | Pattern::Randwrite => OpGroup::Write,
        };
        self.device.latencies(group)
    }

    /// Everything that the figures depend on.
    fn configuration(&self) -> Value {
        let (args, info) = (self.args, self.device.info());
        let attributes = drystone_stack::attributes::ATTRIBUTES.iter().filter_map(|attribute| {
            let value = self.device.attribute(attribute.name)?;
            let is_fixed = !["stat", "inflight", "queue/poll_stat"].contains(&attribute.name);
            is_fixed.then(|| (attribute.name.to_owned(), json!(value)))
        });
        json!({
            "device": args.device,
            "stack": args.stack,
            "name": args.name,
            "threads": args.threads,
            "depth": args.depth,
            "batch": self.works[0].batch,
            "batch_complete": self.works[0].batch_complete,
            "bs": args.bs,
            "rw": format!("{:?}", args.rw).to_lowercase(),
            "runtime_ns": args.runtime,
            "stopped_early": self.stop.is_asked(),
            "warmup_ns": args.warmup,
            "fill": args.fill,
            "mode": args.mode().name(),
            "rate": args.rate,
            "prio": args.prio.map(|prio| format!("{:?}:{}", prio.class, prio.level)),
            "cpus": args.cpus.as_ref().map(|cpus| &cpus.0),
            "kind": info.kind,
            "size_bytes": info.size_bytes,
            "attributes": attributes.collect::<serde_json::Map<String, Value>>(),
            "engine": self.engine,
            "machine": machine::describe(),
            "version": env!("CARGO_PKG_VERSION"),
            "debug": cfg!(debug_assertions),
            "date": machine::now(),
        })
    }
}
