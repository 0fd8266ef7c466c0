//! The null device: takes requests and completes them without moving data, inline, from another
//! thread, or by a timer with a latency model. Parameters as Linux's null_blk
//! (`Documentation/block/null_blk.rst`).
//!
//! Invariants:
//! * Inline completion touches nothing shared: no lock, no allocation, no shared line.
//! * A device with a head ([`Seek`]) is a simulated disk: requests are served one after the other.
//! * In the two other modes the device is a party of its own (a thread, or the kernel's timer
//!   on the context's ring), so a request ends although its context's thread is away.

mod latency;
#[cfg(test)]
mod poll_modes;
mod poll_queue;
mod queue;
mod seek;
#[cfg(test)]
mod tests;
mod thread;

pub use latency::{Latency, Percentile};
pub use queue::NullQueue;
pub use seek::Seek;

use crate::ram::RamStore;
use crossbeam_utils::CachePadded;
use drystone_core::sync::{Lock, LockClass};
use drystone_core::{Error, Extent, Limits, Result};
use drystone_queue::{Driver, HwQueues, QUEUES_MAX};
use poll_queue::PollQueue;
use seek::Head;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
pub use thread::CompletionThread;

/// How requests complete (null_blk's `irqmode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Completion {
    /// In the submit call (`irqmode=0`).
    #[default]
    Inline,
    /// From another thread (`irqmode=1`).
    Thread,
    /// After a time (`irqmode=2`).
    Timer,
}

impl Completion {
    /// The names of all, by null_blk's numbers.
    pub const NAMES: [&'static str; 3] = ["none", "thread", "timer"];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Completion::Inline, Completion::Thread, Completion::Timer];
        all.into_iter().find(|completion| completion.name() == name)
    }
}

/// Parameters of a null device, named as null_blk's.
#[derive(Clone, Debug, PartialEq)]
pub struct NullOptions {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical and physical block size.
    pub blocksize: u32,
    /// How requests complete.
    pub irqmode: Completion,
    /// How long a request takes; without meaning for inline completion. `None` is 10 us with a
    /// timer, and no time from a thread.
    pub latency: Option<Latency>,
    /// For timer completion: a head that moves. Requests are then served one after the other, in
    /// the order in which the driver got them; each takes its `latency` and the head's way from
    /// the end of the one before it. Such a device is a spinning disk to its queue.
    pub seek: Option<Seek>,
    /// Hardware queues, at first.
    pub submit_queues: u32,
    /// Poll queues, at first: more than 0 lets polled bios complete by polling only, after their `latency` if
    /// the device has one. Contexts take turns at them: with fewer than contexts they share.
    pub poll_queues: u32,
    /// A poll queue that another context is polling is skipped; else it is waited for.
    pub skip_busy: bool,
    /// Tags of each hardware queue.
    pub hw_queue_depth: u32,
    /// Keep data.
    pub memory_backed: bool,
    /// Support discard (only with memory).
    pub discard: bool,
    /// Bandwidth limit in MiB/s; 0 for none.
    pub mbps: u32,
    /// Ranges of sectors (first, last) that fail with an I/O error.
    pub badblocks: Vec<(u64, u64)>,
    /// Say that there is a volatile write cache.
    pub write_cache: bool,
    /// Say that FUA is supported (only with a write cache).
    pub fua: bool,
    /// Largest request in bytes; 0 for the default.
    pub max_bytes: u32,
}

impl Default for NullOptions {
    fn default() -> Self {
        NullOptions {
            size_bytes: 250 << 30,
            blocksize: 512,
            irqmode: Completion::Inline,
            latency: None,
            seek: None,
            submit_queues: 1,
            poll_queues: 0,
            skip_busy: true,
            hw_queue_depth: 64,
            memory_backed: false,
            discard: false,
            mbps: 0,
            badblocks: Vec::new(),
            write_cache: false,
            fua: true,
            max_bytes: 0,
        }
    }
}

/// A null device.
pub struct Null {
    shared: Arc<NullShared>,
    options: NullOptions,
}

/// What the queues of a null device share.
pub(crate) struct NullShared {
    pub(crate) memory: Option<RamStore>,
    /// There are bad blocks: look them up.
    pub(crate) has_badblocks: AtomicBool,
    pub(crate) badblocks: Lock<Vec<(u64, u64)>>,
    pub(crate) bandwidth: Option<Bandwidth>,
    pub(crate) thread: Option<CompletionThread>,
    pub(crate) head: Option<Head>,
    /// By number: those that have been used. One that was taken away is there when it comes back.
    poll_queues: Box<[OnceLock<Arc<CachePadded<PollQueue>>>]>,
    skip_busy: bool,
}

impl NullShared {
    /// Poll queue number `number`, which is made when it is first used.
    fn poll_queue(&self, number: u32) -> &Arc<CachePadded<PollQueue>> {
        let new = || Arc::new(CachePadded::new(PollQueue::new(self.skip_busy)));
        self.poll_queues[number as usize].get_or_init(new)
    }
}

/// A budget of bytes for each tick of 20 ms, refilled and not accumulated (null_blk's `mbps`).
pub(crate) struct Bandwidth {
    pub(crate) bytes_per_tick: u64,
    pub(crate) tick: AtomicU64,
    pub(crate) used: AtomicU64,
}

/// The longest movement of a head: an hour, as for the other times of a stack file.
const SEEK_MAX_NS: u64 = 3_600_000_000_000;

/// Length of a bandwidth tick.
pub(crate) const TICK_NS: u64 = 20_000_000;

impl Null {
    /// A null device with `options`.
    ///
    /// # Errors
    /// When a parameter makes no sense, or no thread can be had for `irqmode` thread.
    pub fn new(options: NullOptions) -> Result<Self> {
        Self::on_thread(options, None)
    }

    /// A null device with `options`, which for completion from a thread takes `thread`; without one it starts its own.
    /// Devices whose requests take time should share a thread, because these requests keep it awake.
    ///
    /// # Errors
    /// As for [`Null::new`].
    pub fn on_thread(options: NullOptions, thread: Option<CompletionThread>) -> Result<Self> {
        check(&options)?;
        let thread = match (options.irqmode, thread) {
            (Completion::Thread, Some(shared)) => Some(shared),
            (Completion::Thread, None) => Some(CompletionThread::start()?),
            _ => None,
        };
        let bandwidth = (options.mbps > 0).then(|| Bandwidth {
            bytes_per_tick: (u64::from(options.mbps) << 20) / (1_000_000_000 / TICK_NS),
            tick: AtomicU64::new(0),
            used: AtomicU64::new(0),
        });
        let memory =
            options.memory_backed.then(|| RamStore::new(options.size_bytes)).transpose()?;
        let shared = NullShared {
            memory,
            has_badblocks: AtomicBool::new(!options.badblocks.is_empty()),
            badblocks: Lock::new(LockClass::NullDevice, options.badblocks.clone()),
            bandwidth,
            thread,
            head: options.seek.map(|seek| Head::new(seek, options.size_bytes)),
            poll_queues: (0..QUEUES_MAX).map(|_| OnceLock::new()).collect(),
            skip_busy: options.skip_busy,
        };
        (0..options.poll_queues).for_each(|number| _ = shared.poll_queue(number));
        Ok(Null { shared: Arc::new(shared), options })
    }
}

fn check(o: &NullOptions) -> Result<()> {
    let refuse = |what: String| Err(Error::invalid(what));
    if !o.blocksize.is_power_of_two() || !(512..=4096).contains(&o.blocksize) {
        return refuse(format!("blocksize {} is not 512, 1024, 2048 or 4096", o.blocksize));
    }
    if o.size_bytes < u64::from(o.blocksize) || !o.size_bytes.is_multiple_of(u64::from(o.blocksize))
    {
        return refuse(format!(
            "size {} is not a positive multiple of blocksize {}",
            o.size_bytes, o.blocksize
        ));
    }
    if !(1..=drystone_queue::tags::MAX_DEPTH).contains(&o.hw_queue_depth) {
        return refuse(format!("hw_queue_depth {} is not 1 to 10240", o.hw_queue_depth));
    }
    if !(1..=QUEUES_MAX).contains(&o.submit_queues) || o.poll_queues > QUEUES_MAX {
        return refuse("submit_queues is 1 to 1024 and poll_queues 0 to 1024".to_owned());
    }
    if o.mbps > 40_960 {
        return refuse(format!("mbps {} is more than 40960", o.mbps));
    }
    if let Some(seek) = o.seek {
        check_seek(seek, o.irqmode)?;
    }
    if o.badblocks.iter().any(|(first, last)| first > last) {
        return refuse("a range of badblocks ends before it begins".to_owned());
    }
    Ok(())
}

fn check_seek(seek: Seek, irqmode: Completion) -> Result<()> {
    let Seek { min_ns, max_ns } = seek;
    if irqmode != Completion::Timer {
        return Err(Error::invalid("seek_max_nsec needs irqmode 2 (timer)"));
    }
    if min_ns > max_ns || max_ns > SEEK_MAX_NS {
        return Err(Error::invalid(format!(
            "seek_min_nsec {min_ns} and seek_max_nsec {max_ns} are not ascending up to an hour"
        )));
    }
    Ok(())
}

impl Null {
    /// A line for each poll queue.
    fn poll_stat(&self) -> Option<String> {
        let queues = self.shared.poll_queues.iter().enumerate();
        let lines: Vec<_> = queues
            .filter_map(|(n, queue)| Some(format!("hctx{n} {}", queue.get()?.counts())))
            .collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl NullOptions {
    /// How long a request takes.
    fn latency(&self) -> Latency {
        let by_itself = match self.irqmode {
            Completion::Timer => 10_000,
            Completion::Inline | Completion::Thread => 0,
        };
        self.latency.clone().unwrap_or(Latency::constant(by_itself))
    }
}

impl Driver for Null {
    type Queue = NullQueue;

    fn kind(&self) -> &'static str {
        "null"
    }

    fn size_bytes(&self) -> u64 {
        self.options.size_bytes
    }

    fn limits(&self) -> Limits {
        let o = &self.options;
        let discard = o.memory_backed && o.discard;
        Limits {
            logical_block_size: o.blocksize,
            physical_block_size: o.blocksize,
            max_bytes: if o.max_bytes > 0 { o.max_bytes } else { Limits::DEFAULT_MAX_BYTES },
            max_discard_bytes: if discard { u64::MAX >> 1 } else { 0 },
            discard_granularity: o.blocksize,
            max_write_zeroes_bytes: if o.memory_backed { u64::MAX >> 1 } else { 0 },
            fast_zero: o.memory_backed,
            write_cache: o.write_cache,
            fua: o.write_cache && o.fua,
            rotational: o.seek.is_some(),
            ..Limits::default()
        }
    }

    fn hw_queues(&self) -> HwQueues {
        let o = &self.options;
        HwQueues { default: o.submit_queues, poll: o.poll_queues, depth: o.hw_queue_depth }
    }

    fn has_null_queues(&self) -> bool {
        true
    }

    fn wants_scheduler(&self) -> bool {
        self.options.seek.is_some()
    }

    fn open_queue(
        &self,
        env: &mut drystone_core::Env,
        channel: u32,
        slots: u32,
    ) -> Result<NullQueue> {
        Ok(NullQueue::new(self.shared.clone(), &self.options, env, channel, slots))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        Ok(match &self.shared.memory {
            Some(memory) => memory.extents(offset, length, max),
            None => vec![Extent::data(offset, length)],
        })
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let o = &self.options;
        Some(match name {
            "completion_nsec" => o.latency().describe(),
            "seek_min_nsec" => o.seek.map_or(0, |seek| seek.min_ns).to_string(),
            "seek_max_nsec" => o.seek.map_or(0, |seek| seek.max_ns).to_string(),
            "irqmode" => (o.irqmode as u8).to_string(),
            "queue/poll_stat" => self.poll_stat()?,
            "hw_queue_depth" => o.hw_queue_depth.to_string(),
            "memory_backed" => u8::from(o.memory_backed).to_string(),
            "mbps" => o.mbps.to_string(),
            _ => return None,
        })
    }
}
