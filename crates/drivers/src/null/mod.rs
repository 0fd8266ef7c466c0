//! The null device: takes requests and completes them without moving data, inline, from another
//! thread, or by a timer with a latency model. Parameters as Linux's null_blk
//! (`Documentation/block/null_blk.rst`).
//!
//! Invariants:
//! * Inline completion takes no lock, allocates nothing and writes no shared cache line.
//! * A device with a head ([`Seek`]) is a simulated disk: requests are served one after the other.
//! * In the two other modes a thread, or the kernel's timer on the context's ring, acts as the
//!   device. So a request ends although its context's thread is away.

mod latency;
mod options;
#[cfg(all(test, not(loom)))]
mod poll_modes;
mod poll_queue;
mod queue;
mod seek;
mod shared;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread;

pub use latency::{Latency, Percentile};
pub use options::{Completion, NullOptions};
pub use queue::NullQueue;
pub use seek::Seek;
pub use thread::CompletionThread;

use crate::ram::RamStore;
use drystone_core::sync::{Lock, LockClass};
use drystone_core::{ChannelId, Extent, Limits, Result};
use drystone_queue::{Driver, HwQueues, QUEUES_MAX};
use seek::Head;
use shared::{Bandwidth, NullShared, TICK_NS};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// A null device.
pub struct Null {
    shared: Arc<NullShared>,
    options: NullOptions,
}

impl Null {
    /// A null device with `options`.
    ///
    /// # Errors
    /// When a parameter makes no sense, or no thread can be had for `irqmode` thread.
    pub fn new(options: NullOptions) -> Result<Self> {
        Self::on_thread(options, None)
    }

    /// A null device with `options`. For completion from a thread it uses `thread`; without one it
    /// starts its own. Devices whose requests take time should share a thread, because these
    /// requests keep it awake.
    ///
    /// # Errors
    /// As for [`Null::new`].
    pub fn on_thread(options: NullOptions, thread: Option<CompletionThread>) -> Result<Self> {
        options.check()?;
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

    fn has_settable_hw_queues(&self) -> bool {
        true
    }

    fn wants_scheduler(&self) -> bool {
        self.options.seek.is_some()
    }

    fn open_queue(
        &self,
        env: &mut drystone_core::Env,
        channel: ChannelId,
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
