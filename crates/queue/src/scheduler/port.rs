//! How a shared scheduler reaches the channels of its device.
//!
//! Invariants:
//! * A granted unit has a tag of the queue at which the channel was, and there is a place for each
//!   tag of a queue: a grant always finds one. One place more is for who looked where the channel
//!   is just before it left, and so grants it a tag of another queue.
//! * `counts` is written by the channel's context alone, with plain stores; others may read.

use crate::unit::Unit;
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use drystone_core::SharedBioList;
use drystone_core::mailbox::Message;
use drystone_core::primitive::Ordering::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::berth::Berth;
use super::deadline::LANES;

/// A unit that may go to the driver, in the slot of its tag.
pub(crate) struct Grant {
    pub(crate) tag: u32,
    /// The hardware queue that the tag is of.
    pub(crate) hctx: u32,
    pub(crate) unit: Unit,
}

/// One channel as the scheduler knows it.
pub struct Port {
    /// Its number among the device's channels, free again when it is closed.
    pub(crate) index: u32,
    /// Where its units get their tags.
    pub(crate) berth: Berth,
    /// The message by which it learns of grants.
    pub(crate) word: Arc<Message>,
    grants: ArrayQueue<Grant>,
    /// Bios of it whose requests another channel has run.
    pub(crate) done: SharedBioList,
    /// Units of it are kept because tags are short.
    starving: AtomicBool,
    counts: CachePadded<Counts>,
}

/// Requests of a channel that a scheduler knows of.
#[derive(Default)]
struct Counts {
    /// Those that ended, by lane.
    ended: [AtomicU64; LANES],
    /// Those that went alone, by lane.
    passed: [AtomicU64; LANES],
}

impl Port {
    pub(crate) fn new(index: u32, berth: Berth, word: Arc<Message>, depth: u32) -> Arc<Self> {
        Arc::new(Port {
            index,
            berth,
            word,
            grants: ArrayQueue::new(depth as usize + 1),
            done: SharedBioList::new(),
            starving: AtomicBool::new(false),
            counts: CachePadded::default(),
        })
    }

    /// Nobody else refers to it, nor will send its word. Who is just about to have a retired device's
    /// channels look may still do so: whichever channel gets the word then looks in vain.
    pub(crate) fn is_ours_alone(port: &Arc<Port>) -> bool {
        Arc::strong_count(port) == 1 && Arc::strong_count(&port.word) == 1
    }

    /// Its number among the device's channels, free again when it is closed.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
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

    /// Requests of `lane` that went alone so far.
    pub fn passed(&self, lane: usize) -> u64 {
        self.counts.passed[lane].load(Acquire)
    }

    /// One more of `lane` goes alone; by the channel, before it can end.
    #[inline]
    pub(crate) fn count_passed(&self, lane: usize) {
        let passed = &self.counts.passed[lane];
        passed.store(passed.load(Relaxed) + 1, Release);
    }

    /// Note that units of this channel are kept for want of tags. True if that is news to it.
    pub fn set_starving(&self) -> bool {
        !self.starving.load(Relaxed) && !self.starving.swap(true, AcqRel)
    }

    pub(crate) fn is_starving(&self) -> bool {
        self.starving.load(Acquire)
    }

    /// Nothing of the channel is kept any more.
    pub(crate) fn fed(&self) {
        if self.starving.load(Relaxed) {
            self.starving.store(false, Release);
        }
    }
}

/// The channels of a device, by number.
#[derive(Clone, Default)]
pub struct Ports(pub(crate) Vec<Option<Arc<Port>>>);

impl Ports {
    /// Port number `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Arc<Port>> {
        self.0.get(index as usize)?.as_ref()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.0.iter().flatten()
    }

    /// Requests of `lane` that ended, of all channels.
    pub fn ended(&self, lane: usize) -> u64 {
        self.iter().map(|port| port.ended(lane)).sum()
    }

    /// Requests of `lane` that went alone, of all channels.
    pub fn passed(&self, lane: usize) -> u64 {
        self.iter().map(|port| port.passed(lane)).sum()
    }

    /// The lowest number that no channel has.
    pub(crate) fn free_index(&self) -> u32 {
        self.0.iter().position(Option::is_none).unwrap_or(self.0.len()) as u32
    }

    pub(crate) fn insert(&mut self, port: Arc<Port>) {
        let index = port.index as usize;
        if index == self.0.len() {
            self.0.push(None);
        }
        self.0[index] = Some(port);
    }

    pub(crate) fn remove(&mut self, port: &Port) {
        self.0[port.index as usize] = None;
    }
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|port| port.index)).finish()
    }
}

impl PartialEq for Ports {
    fn eq(&self, other: &Self) -> bool {
        let same = |a: &Option<Arc<Port>>, b: &Option<Arc<Port>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| same(a, b))
    }
}

impl Eq for Ports {}
