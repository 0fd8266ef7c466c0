//! The RAM device: sparse memory ([`RamStore`]) that ends its requests inline.
//!
//! Invariant: one call zeroes or frees at most one piece; `Zeroing` divides longer ranges.

#[cfg(all(test, not(loom)))]
mod histories;
mod store;
mod stream;
#[cfg(all(test, not(loom)))]
mod tests;
mod zeroing;

pub use store::RamStore;
pub(crate) use zeroing::Zeroing;

use drystone_core::ring::RingEvent;
use drystone_core::{Bio, ChannelId, Env, Error, Extent, Limits, Result, Status};
use drystone_queue::{Driver, DriverQueue, HwQueues, Issue, Request, Slots};
use std::ops::Range;
use std::sync::Arc;
use store::GRANULE;

/// Tags of each hardware queue. RAM completes inline, so this only bounds a batch.
const DEPTH: u32 = 256;
/// Hardware queues: as many contexts have one of their own.
const QUEUES: u32 = 64;

/// A RAM device.
pub struct Ram {
    store: Arc<RamStore>,
    discard: bool,
}

impl Ram {
    /// A device of `size_bytes` bytes (a multiple of 512). Without `discard`, discards are
    /// refused; write zeroes frees memory all the same.
    ///
    /// # Errors
    /// When the size is not positive, not a multiple of 512, or cannot be mapped.
    pub fn new(size_bytes: u64, discard: bool) -> Result<Self> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(512) {
            return Err(Error::invalid(format!(
                "size {size_bytes} of a RAM device is not a positive multiple of 512"
            )));
        }
        Ok(Ram { store: Arc::new(RamStore::new(size_bytes)?), discard })
    }
}

impl Driver for Ram {
    type Queue = RamQueue;

    fn kind(&self) -> &'static str {
        "ram"
    }

    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }

    fn limits(&self) -> Limits {
        Limits {
            io_min: GRANULE as u32,
            physical_block_size: 512,
            max_segments: 1024,
            max_discard_bytes: if self.discard { u64::MAX >> 1 } else { 0 },
            discard_granularity: GRANULE as u32,
            max_write_zeroes_bytes: u64::MAX >> 1,
            fast_zero: true,
            ..Limits::default()
        }
    }

    fn hw_queues(&self) -> HwQueues {
        HwQueues { default: QUEUES, poll: 0, depth: DEPTH }
    }

    fn wants_scheduler(&self) -> bool {
        false
    }

    fn fills_pipes(&self) -> bool {
        self.store.fills_pipes()
    }

    fn open_queue(&self, _: &mut Env, channel: ChannelId, _: u32) -> Result<RamQueue> {
        Ok(RamQueue { store: self.store.clone(), zeroing: Zeroing::new(channel) })
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        Ok(self.store.extents(offset, length, max))
    }
}

/// One context's queue of a RAM device.
pub struct RamQueue {
    store: Arc<RamStore>,
    zeroing: Zeroing,
}

impl DriverQueue for RamQueue {
    #[inline]
    fn queue_rq(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        if let Some(rest) = self.store.long_zeroing(rq) {
            self.zeroing.begin(env, rq, rest);
            return Issue::Started;
        }
        Issue::Done(self.store.execute(rq))
    }

    fn completes_inline(&self) -> bool {
        true
    }

    #[inline]
    fn do_bio(&mut self, _: &mut Env, bio: &mut Bio) -> Option<Status> {
        self.store.do_bio(bio)
    }

    fn ring_event(&mut self, env: &mut Env, _: RingEvent, slots: &mut Slots, done: &mut Vec<u32>) {
        if let Some(slot) = self.zeroing.go_on(env, &self.store) {
            slots.get(slot).status = Status::Ok;
            done.push(slot);
        }
    }

    fn withdraw(
        &mut self,
        _: &mut Env,
        range: &Range<u64>,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        let before = done.len();
        self.zeroing.withdraw(range, slots, done);
        done[before..].iter().for_each(|slot| slots.get(*slot).status = Status::Cancelled);
    }
}
