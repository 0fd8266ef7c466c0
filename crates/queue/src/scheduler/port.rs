//! The port by which a shared scheduler reaches a channel of its device.
//!
//! Invariants:
//! * A granted unit has a tag of the queue at which the channel was, and there is a place for each
//!   tag of a queue: a grant always finds one. One place more is for a dispatcher that read
//!   `current_hctx` just before the channel left, and so grants it a tag of another queue.
//! * `counts` is written by the channel's context alone, with plain stores; others may read.

use crate::queues::HctxId;
use crate::unit::Unit;
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use drystone_core::SharedBioList;
use drystone_core::primitive::Ordering::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::current_hctx::CurrentHctx;
use super::deadline::LANES;

/// A unit that may go to the driver, in the slot of its tag.
pub(crate) struct Grant {
    pub(crate) tag: u32,
    /// The hardware queue that the tag is of.
    pub(crate) hctx: HctxId,
    pub(crate) unit: Unit,
}

/// One channel as the scheduler knows it. Its doorbell tells it of grants.
pub type Port = drystone_core::Port<PortState>;

/// The channels of a device, by number.
pub type Ports = drystone_core::Ports<PortState>;

/// State that a channel and the scheduler share.
pub struct PortState {
    /// The hardware queue whose tags its units get.
    pub(crate) current_hctx: CurrentHctx,
    grants: ArrayQueue<Grant>,
    /// Bios of it whose requests another channel has run.
    pub(crate) done: SharedBioList,
    /// Units of it are kept because tags are short.
    lacks_tags: AtomicBool,
    counts: CachePadded<Counts>,
}

/// Requests of a channel that a scheduler knows of.
#[derive(Default)]
struct Counts {
    /// Those that ended, by lane.
    ended: [AtomicU64; LANES],
    /// Those that were dispatched exclusively, by lane.
    exclusive: [AtomicU64; LANES],
}

impl PortState {
    pub(crate) fn new(current_hctx: CurrentHctx, depth: u32) -> Self {
        PortState {
            current_hctx,
            grants: ArrayQueue::new(depth as usize + 1),
            done: SharedBioList::new(),
            lacks_tags: AtomicBool::new(false),
            counts: CachePadded::default(),
        }
    }

    pub(crate) fn grant(&self, grant: Grant) {
        assert!(self.grants.push(grant).is_ok(), "a tag is granted once");
    }

    /// The unit granted first, for the channel.
    pub(crate) fn take_grant(&self) -> Option<Grant> {
        self.grants.pop()
    }

    /// Requests of `lane` that ended so far.
    pub fn ended(&self, lane: usize) -> u64 {
        self.counts.ended[lane].load(Acquire)
    }

    /// `n` more requests of `lane` have ended; by the channel.
    pub(crate) fn count_ended(&self, lane: usize, n: u64) {
        let ended = &self.counts.ended[lane];
        ended.store(ended.load(Relaxed) + n, Release);
    }

    /// Requests of `lane` that were dispatched exclusively so far.
    pub fn exclusive(&self, lane: usize) -> u64 {
        self.counts.exclusive[lane].load(Acquire)
    }

    /// One more of `lane` is dispatched exclusively; by the channel, before it can end.
    #[inline]
    pub(crate) fn count_exclusive(&self, lane: usize) {
        let exclusive = &self.counts.exclusive[lane];
        exclusive.store(exclusive.load(Relaxed) + 1, Release);
    }

    /// Note that units of this channel are kept for want of tags. True if that is news to it.
    pub fn set_lacks_tags(&self) -> bool {
        !self.lacks_tags.load(Relaxed) && !self.lacks_tags.swap(true, AcqRel)
    }

    pub(crate) fn lacks_tags(&self) -> bool {
        self.lacks_tags.load(Acquire)
    }

    /// Nothing of the channel is kept any more.
    pub(crate) fn clear_lack_of_tags(&self) {
        if self.lacks_tags.load(Relaxed) {
            self.lacks_tags.store(false, Release);
        }
    }
}

/// Requests of `lane` that ended, of all channels.
pub fn ended_of_all(ports: &Ports, lane: usize) -> u64 {
    ports.iter().map(|port| port.ended(lane)).sum()
}

/// Requests of `lane` that were dispatched exclusively, of all channels.
pub(crate) fn exclusive_of_all(ports: &Ports, lane: usize) -> u64 {
    ports.iter().map(|port| port.exclusive(lane)).sum()
}

/// True if no other context refers to a closed port or will ring its doorbell. A context that is
/// just about to wake a retired device's channels may still do so: the channel that gets the
/// message then finds nothing.
pub(crate) fn is_ours_alone(port: &Arc<Port>) -> bool {
    Arc::strong_count(port) == 1 && Arc::strong_count(port.doorbell()) == 1
}
