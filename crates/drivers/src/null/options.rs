//! Options of a null device, named as null_blk's, and their ranges.

use super::latency::Latency;
use super::seek::Seek;
use drystone_core::{Error, Result};
use drystone_queue::QUEUES_MAX;

/// The longest movement of a head: an hour, as for the other times of a stack file.
const SEEK_MAX_NS: u64 = 3_600_000_000_000;

/// The way requests complete (null_blk's `irqmode`).
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
    /// All names, in the order of null_blk's numbers.
    pub const NAMES: [&'static str; 3] = ["none", "thread", "timer"];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The mode with that name.
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
    /// The way requests complete.
    pub irqmode: Completion,
    /// The time that a request takes; ignored for inline completion. `None` is 10 us with a timer,
    /// and no time from a thread.
    pub latency: Option<Latency>,
    /// For timer completion: a head that moves. Requests are then served one after the other, in
    /// the order in which the driver got them. Each takes its `latency` and the seek time of the
    /// head, from the end of the previous one. Such a device reports itself as rotational.
    pub seek: Option<Seek>,
    /// Hardware queues, at first.
    pub submit_queues: u32,
    /// Poll queues, at first: more than 0 lets polled bios complete by polling only, after their
    /// `latency` if the device has one. Contexts take turns at them: with fewer than contexts they
    /// share.
    pub poll_queues: u32,
    /// True to skip a poll queue that another context is polling; otherwise the poll waits for it.
    pub skip_busy: bool,
    /// Tags of each hardware queue.
    pub hw_queue_depth: u32,
    /// True to keep data in memory.
    pub memory_backed: bool,
    /// Support discard (only with memory).
    pub discard: bool,
    /// Bandwidth limit in MiB/s; 0 for none.
    pub mbps: u32,
    /// Ranges of sectors (first, last) that fail with an I/O error.
    pub badblocks: Vec<(u64, u64)>,
    /// Report a volatile write cache.
    pub write_cache: bool,
    /// Report support of FUA (only with a write cache).
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

impl NullOptions {
    /// The latency of a request.
    pub(super) fn latency(&self) -> Latency {
        let by_itself = match self.irqmode {
            Completion::Timer => 10_000,
            Completion::Inline | Completion::Thread => 0,
        };
        self.latency.clone().unwrap_or(Latency::constant(by_itself))
    }

    /// Checks the options.
    ///
    /// # Errors
    /// A sentence on the first option that makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        check(self)
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
