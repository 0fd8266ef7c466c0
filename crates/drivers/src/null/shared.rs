//! The state that the queues of a null device share.

use super::poll_queue::PollQueue;
use super::seek::Head;
use super::thread::CompletionThread;
use crate::ram::RamStore;
use crossbeam_utils::CachePadded;
use drystone_core::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Length of a bandwidth tick.
pub(crate) const TICK_NS: u64 = 20_000_000;

/// The state that the queues of a null device share.
pub(crate) struct NullShared {
    pub(crate) memory: Option<RamStore>,
    /// True if there are bad blocks to look up.
    pub(crate) has_badblocks: AtomicBool,
    pub(crate) badblocks: Lock<Vec<(u64, u64)>>,
    pub(crate) bandwidth: Option<Bandwidth>,
    pub(crate) thread: Option<CompletionThread>,
    pub(crate) head: Option<Head>,
    /// The poll queues that have been used, by number. A queue stays here when the number of poll
    /// queues falls and rises again.
    pub(super) poll_queues: Box<[OnceLock<Arc<CachePadded<PollQueue>>>]>,
    pub(super) skip_busy: bool,
}

impl NullShared {
    /// Poll queue number `number`, which is made when it is first used.
    pub(super) fn poll_queue(&self, number: u32) -> &Arc<CachePadded<PollQueue>> {
        let new = || Arc::new(CachePadded::new(PollQueue::new(self.skip_busy)));
        self.poll_queues[number as usize].get_or_init(new)
    }
}

/// A budget of bytes for each tick of 20 ms, which does not accumulate (null_blk's `mbps`).
pub(crate) struct Bandwidth {
    pub(crate) bytes_per_tick: u64,
    pub(crate) tick: AtomicU64,
    pub(crate) used: AtomicU64,
}
