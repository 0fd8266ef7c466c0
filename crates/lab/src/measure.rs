//! One run of one variant: opens its device, lets the lanes warm up, and takes all counts over the
//! same period. [`on_device`] and [`sampled`] serve experiments that count something else.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::context::PollMode;
use drystone_core::ring::Engine;
use drystone_core::sync::{LockClass, LockRegistry, LockStats};
use drystone_core::{Bio, BioList, Context, ContextSet, Device, IoBuf, Priority, Sector};
use drystone_stack::live::{OpenDevice, OpenEnv, open_device};
use drystone_stack::spec::DeviceSpec;
use rustix::time::{ClockId, clock_gettime};

use drystone_bench::{Counts, Crew, Pattern, Shared, Sum, Work, phase};

/// A run to be made.
pub struct Point<'a> {
    pub spec: &'a DeviceSpec,
    pub open: OpenDevice,
    pub threads: u32,
    pub load: &'a Load,
    pub runtime_ns: u64,
    /// Also measure the hold times of locks, which cost two clock readings each.
    pub time_holds: bool,
}

/// The load of each thread.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub pattern: Pattern,
    pub bytes: u64,
    pub depth: usize,
    /// I/Os submitted, and waited for, together.
    pub batch: usize,
}

/// Figures of a run. Shares are from 0 to 1.
#[derive(Clone, Debug)]
pub struct Sample {
    pub iops: f64,
    pub cpu_ns_per_io: f64,
    /// Processor time over wall time.
    pub cores_used: f64,
    /// System time as a share of processor time; not a number if the kernel's clock of 10 ms
    /// counted none.
    pub sys_of_cpu: f64,
    /// System time as a share of threads times wall time.
    pub sys_of_threads: f64,
    /// Waits for locks over threads times wall time.
    pub contention: f64,
    /// Processor time of these waits over all processor time.
    pub contention_cpu: f64,
    /// Contexts that busy-poll for units that the scheduler has, over threads times wall time.
    pub grant_wait: f64,
    pub lock_acquisitions_per_io: f64,
    pub lock_contentions_per_io: f64,
    /// The locks of the run by class.
    pub locks: LockStats,
}

/// The longest time by which a run is extended because no I/O has ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// Classes whose waits are not waits for a lock: contexts that busy-poll, and helpers without work.
const NO_LOCKS: [LockClass; 2] = [LockClass::SchedulerGrant, LockClass::PlainIdle];

/// The time that the lanes run before anything is counted.
pub fn warmup_ns(runtime_ns: u64) -> u64 {
    (runtime_ns / 10).clamp(20_000_000, 500_000_000)
}

/// Open the device of `spec` with a context for each of `threads` lanes. The lanes do the `works`
/// for it, and `watch` controls them.
///
/// # Errors
/// When the device cannot be opened, or an I/O or `watch` fails.
pub fn on_device<T>(
    spec: &DeviceSpec,
    open: OpenDevice,
    threads: u32,
    works: impl FnOnce(&dyn Device) -> Vec<Work>,
    watch: impl FnOnce(&Crew<'_, '_>, &dyn Device, &LockRegistry) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let at = OpenEnv { open, ..OpenEnv::new(threads, clock) };
    at.locks.sample_wait_cpu(true);
    let device = open_device(spec, &at)?;
    let works = works(&*device);
    on_opened(&device, &at, &works, |crew| watch(crew, &*device, &at.locks))
}

/// Opens a context on `device` for each of the `works`; the locks are counted in the registry of
/// `at`. Lanes do the works there, and `watch` controls them.
///
/// # Errors
/// When a context cannot be opened, or an I/O or `watch` fails.
pub fn on_opened<T>(
    device: &Arc<dyn Device>,
    at: &OpenEnv,
    works: &[Work],
    watch: impl FnOnce(&Crew<'_, '_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    Ok(on_counted(device, at, works, watch)?.1)
}

/// As [`on_opened`], with the counts of each lane.
///
/// # Errors
/// As of [`on_opened`].
pub fn on_counted<T>(
    device: &Arc<dyn Device>,
    at: &OpenEnv,
    works: &[Work],
    watch: impl FnOnce(&Crew<'_, '_>) -> anyhow::Result<T>,
) -> anyhow::Result<(Vec<Counts>, T)> {
    let set = ContextSet::counted_by(at.locks.clone());
    let mut contexts = Vec::new();
    for _ in works {
        let mut cx = set.open(Engine::Auto)?;
        let index = cx.open(device)?;
        contexts.push((cx, index));
    }
    let shared = Shared::new(works.len(), || 0);
    drystone_bench::run(contexts, works, &shared, &[], watch)
}

/// Let the lanes warm up, then measure. Returns the results of `begin` and `end`, called at the
/// begin and the end of the measured time.
///
/// # Errors
/// When a lane, `begin` or `end` fails, or no I/O ends.
fn span<B, E>(
    crew: &Crew<'_, '_>,
    runtime_ns: u64,
    begin: impl FnOnce() -> anyhow::Result<B>,
    end: impl FnOnce() -> anyhow::Result<E>,
) -> anyhow::Result<(B, E)> {
    crew.enter(phase::WARM_UP);
    crew.pause(Instant::now() + Duration::from_nanos(warmup_ns(runtime_ns)))?;
    crew.enter(phase::MEASURE);
    let (begin, before) = (begin()?, crew.progress().completed);
    stretch(crew, runtime_ns, before)?;
    Ok((begin, end()?))
}

/// Wait for `runtime_ns`, and repeat that while no more than `before` I/Os have ended: if a lock's
/// holder or a whole lane has lost its core, this may take a while.
///
/// # Errors
/// When a lane fails, or no I/O ends.
pub fn stretch(crew: &Crew<'_, '_>, runtime_ns: u64, before: u64) -> anyhow::Result<()> {
    let (start, runtime) = (Instant::now(), Duration::from_nanos(runtime_ns));
    let (mut until, completed) = (start + runtime, || crew.progress().completed);
    crew.pause(until)?;
    while completed() <= before && until - start < PATIENCE {
        until += runtime;
        crew.pause(until)?;
    }
    ensure!(completed() > before, "no I/O completed in {} s", PATIENCE.as_secs());
    Ok(())
}

/// As [`span`], with the figures that every experiment has; `read` returns further readings, at
/// both ends of the time.
///
/// # Errors
/// As of [`span`].
pub fn sampled<T>(
    crew: &Crew<'_, '_>,
    locks: &LockRegistry,
    threads: u32,
    runtime_ns: u64,
    read: impl Fn() -> T,
) -> anyhow::Result<(Sample, [T; 2])> {
    let first = || {
        locks.reset();
        Ok((Reading::now(crew)?, read()))
    };
    let last = || Ok((Reading::now(crew)?, read(), locks.reset()));
    let ((begin, early), (end, late, locks)) = span(crew, runtime_ns, first, last)?;
    Ok((Sample::between(&begin, &end, threads, locks), [early, late]))
}

impl Point<'_> {
    /// Make the run.
    ///
    /// # Errors
    /// When the device cannot be opened, an I/O fails, or none ends in the time.
    pub fn measure(&self) -> anyhow::Result<Sample> {
        let works = |device: &dyn Device| self.works(device);
        on_device(self.spec, self.open, self.threads, works, |crew, _, locks| {
            locks.time_holds(self.time_holds);
            let (sample, _) = sampled(crew, locks, self.threads, self.runtime_ns, || ())?;
            Ok(sample)
        })
    }

    fn works(&self, device: &dyn Device) -> Vec<Work> {
        self.load.works(device, self.threads)
    }
}

impl Load {
    /// The same work for each of so many threads, over the whole device.
    pub fn works(&self, device: &dyn Device, threads: u32) -> Vec<Work> {
        let blocks = device.info().size_bytes / self.bytes;
        let work = |lane: u64| Work {
            depth: self.depth,
            batch: self.batch,
            batch_complete: self.batch,
            bs: self.bytes,
            pattern: self.pattern,
            mode: PollMode::Interrupt,
            cookies: false,
            interval_ns: 0,
            priority: Priority::default(),
            groups: Vec::new(),
            blocks: (0, blocks),
            seed: lane + 1,
        };
        (0..u64::from(threads)).map(work).collect()
    }
}

impl Sample {
    fn between(begin: &Reading, end: &Reading, threads: u32, locks: LockStats) -> Self {
        let ios = (end.sum.completed - begin.sum.completed) as f64;
        let wall = (end.at - begin.at).as_nanos() as f64;
        let threads_wall = wall * f64::from(threads);
        let cpu = (end.cpu_ns - begin.cpu_ns) as f64;
        let (user, sys) = (end.user_ns - begin.user_ns, end.sys_ns - begin.sys_ns);
        let waits = locks.used().filter(|(class, _)| !NO_LOCKS.contains(class));
        let (mut wait, mut wait_cpu, mut taken, mut found_taken) = (0, 0, 0, 0);
        for (_, stats) in waits {
            wait += stats.waits.total_ns;
            wait_cpu += stats.wait_cpu_ns;
            taken += stats.acquisitions;
            found_taken += stats.contentions;
        }
        Sample {
            iops: ios * 1e9 / wall,
            cpu_ns_per_io: cpu / ios,
            cores_used: cpu / wall,
            sys_of_cpu: sys / (user + sys),
            sys_of_threads: sys / threads_wall,
            contention: wait as f64 / threads_wall,
            contention_cpu: (wait_cpu as f64 / cpu).min(1.0),
            grant_wait: locks.get(LockClass::SchedulerGrant).waits.total_ns as f64 / threads_wall,
            lock_acquisitions_per_io: taken as f64 / ios,
            lock_contentions_per_io: found_taken as f64 / ios,
            locks,
        }
    }
}

/// The readings at both ends of the measured time.
struct Reading {
    at: Instant,
    sum: Sum,
    cpu_ns: u64,
    user_ns: f64,
    sys_ns: f64,
}

impl Reading {
    fn now(crew: &Crew<'_, '_>) -> anyhow::Result<Self> {
        let (user_ns, sys_ns) = process_times()?;
        let cpu_ns = process_cpu_ns();
        Ok(Reading { at: Instant::now(), sum: crew.progress(), cpu_ns, user_ns, sys_ns })
    }
}

/// Processor time of this process, all its threads.
pub fn process_cpu_ns() -> u64 {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

/// User and system time of this process, all its threads, in ns (`proc_pid_stat(5)`, fields 14
/// and 15, in clock ticks).
///
/// # Errors
/// When they cannot be read.
pub fn process_times() -> anyhow::Result<(f64, f64)> {
    let path = "/proc/self/stat";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let tick_ns = 1e9 / rustix::param::clock_ticks_per_second() as f64;
    stat_times(&text)
        .map(|(user, sys)| (user as f64 * tick_ns, sys as f64 * tick_ns))
        .with_context(|| format!("{path} has no times"))
}

/// User and system time in a text of `proc_pid_stat(5)`, clock ticks.
pub(crate) fn stat_times(text: &str) -> Option<(u64, u64)> {
    // The second field is the program's name in parentheses, which may contain any characters.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let user = fields.nth(11)?.parse().ok()?;
    Some((user, fields.next()?.parse().ok()?))
}

/// Writes bytes of a device, so that its memory is allocated: a RAM device that was never written
/// reads one page of zeroes from the processor's cache.
///
/// # Errors
/// When it cannot be opened or written.
pub(crate) fn write_zeroes(
    cx: &mut Context,
    device: &Arc<dyn Device>,
    bytes: Range<u64>,
) -> anyhow::Result<()> {
    const AT_ONCE: u64 = 1 << 20;
    let device = cx.open(device)?;
    for from in bytes.clone().step_by(AT_ONCE as usize) {
        let length = AT_ONCE.min(bytes.end - from) as usize;
        let mut bios = BioList::new();
        bios.push(Bio::write(Sector::from_bytes(from), IoBuf::zeroed(length)));
        cx.submit(device, &mut bios);
        while cx.reap(&mut bios) == 0 {
            cx.wait(None);
        }
        let failed = bios.pop().filter(|bio| !bio.status.is_ok());
        ensure!(failed.is_none(), "the device cannot be written");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "1 (a) b) c) R 2 3 4 0 -1 4194304 160 0 0 0 17 29 0 0 20 0 1 0 5 6 7";
        assert_eq!(stat_times(stat), Some((17, 29)));
        assert_eq!(stat_times("1 (a) R 2 3"), None);
        assert!(process_times().is_ok());
    }
}
