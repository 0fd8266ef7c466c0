//! The present hardware queues of a device, and the queues that each context uses.
//!
//! Invariants:
//! * A tag set keeps its number as long as the device lives. If its queue is removed, channels use
//!   the set until they have moved, and all may use it again when the queue comes back. So no tag
//!   is lost.
//! * The queues of a context depend only on its number and on the numbers of queues.

use crate::driver::HwQueues;
use crate::tags::TagSet;
use crossbeam_utils::CachePadded;
use drystone_core::ContextId;
use std::sync::Arc;

/// The most hardware queues of a kind.
pub const QUEUES_MAX: u32 = 1024;

/// The number of a hardware queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HctxId(pub(crate) u32);

impl HctxId {
    /// The number as an index.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A tag set, on cache lines of its own.
pub(crate) type Tags = Arc<CachePadded<TagSet>>;

/// The hardware queues of a device.
#[derive(Clone)]
pub(crate) struct QueueMap {
    hw: HwQueues,
    /// The tag sets by number: those of the present queues, then those of removed queues.
    sets: Arc<[Tags]>,
    /// The count of changes.
    generation: u64,
}

/// The hardware queues that a context maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueSlot {
    /// The context's hardware queue.
    pub(crate) hctx: HctxId,
    /// The word of tags that the context tries first.
    pub(crate) hint: u32,
    /// The context's poll queue, if the device polls.
    pub(crate) poll: Option<u32>,
}

impl QueueSlot {
    /// True if `other` has the same queues.
    pub(crate) fn has_queues_of(&self, other: &QueueSlot) -> bool {
        (self.hctx, self.poll) == (other.hctx, other.poll)
    }
}

fn new_set(depth: u32) -> Tags {
    Arc::new(CachePadded::new(TagSet::new(depth)))
}

impl QueueMap {
    pub(crate) fn new(hw: HwQueues) -> Self {
        let hw = HwQueues { default: hw.default.max(1), depth: hw.depth.max(1), ..hw };
        QueueMap { hw, sets: (0..hw.default).map(|_| new_set(hw.depth)).collect(), generation: 0 }
    }

    /// The numbers of queues and their depth.
    pub(crate) fn hw(&self) -> HwQueues {
        self.hw
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The tags of every queue, including removed queues.
    #[inline]
    pub(crate) fn sets(&self) -> &[Tags] {
        &self.sets
    }

    /// The tags of removed queues that are still in use.
    fn left_over(&self) -> impl Iterator<Item = &Tags> {
        self.sets[self.hw.default as usize..].iter().filter(|tags| tags.users() > 0)
    }

    /// True if requests may have tags of more than one queue.
    pub(crate) fn has_several(&self) -> bool {
        self.hw.default > 1 || self.left_over().next().is_some()
    }

    /// The most tags that may be in use.
    pub(crate) fn most_in_use(&self) -> u32 {
        self.hw.depth * (self.hw.default + self.left_over().count() as u32)
    }

    /// The tags of queue `hctx`, even if it was removed.
    #[inline]
    pub(crate) fn set(&self, hctx: HctxId) -> &Tags {
        &self.sets[hctx.index()]
    }

    /// The queues of `context`.
    pub(crate) fn slot_of(&self, context: ContextId) -> QueueSlot {
        let queues = self.hw.default;
        let hctx = HctxId(context.0 % queues);
        QueueSlot {
            hctx,
            hint: context.0 / queues % self.set(hctx).words(),
            poll: context.0.checked_rem(self.hw.poll),
        }
    }

    /// Change to `default` and `poll` queues. New queues hand out only tags below `limit`.
    pub(crate) fn change(&mut self, default: u32, poll: u32, limit: u32) {
        if (default, poll) == (self.hw.default, self.hw.poll) {
            return;
        }
        let more = self.sets.len() as u32..default;
        if !more.is_empty() {
            let new = more.map(|_| new_set(self.hw.depth)).inspect(|tags| tags.set_limit(limit));
            self.sets = self.sets.iter().cloned().chain(new).collect();
        }
        self.hw = HwQueues { default, poll, ..self.hw };
        self.generation += 1;
    }
}

impl std::fmt::Debug for QueueMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("QueueMap").field(&self.hw).field(&self.generation).finish()
    }
}

impl PartialEq for QueueMap {
    fn eq(&self, other: &Self) -> bool {
        self.hw == other.hw
            && self.generation == other.generation
            && Arc::ptr_eq(&self.sets, &other.sets)
    }
}

impl Eq for QueueMap {}
