//! The ports by which the channels of an array reach one another.
//!
//! Invariants:
//! * A port is open before its channel brings anything to a shard, and is closed after the last
//!   item of the channel has come back. So the channel that ends an item finds the item's port.
//! * The holder of a shard sets `expects_remote` before it rings the doorbell that tells of it. The
//!   channel itself clears it while it has nothing in any shard.

use drystone_core::SharedBioList;
use drystone_core::primitive::{AtomicBool, AtomicU64, Ordering::*};
use drystone_core::quiesced::Quiesced;

/// The kind of items that a channel brings to the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// I/O of the array.
    Io,
    /// Member sectors that must be synchronised.
    Sync,
}

/// One channel. Its doorbell has the channel look at what is published, at its items and at the
/// shards.
pub(crate) type Port = drystone_core::Port<PortState>;

/// The ports of an array, by number.
pub(crate) type Ports = drystone_core::Ports<PortState>;

/// One channel as the others know it. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct PortState {
    pub(crate) origin: Origin,
    /// Items of the channel that others have ended.
    pub(crate) done: SharedBioList,
    /// Nothing of the channel is in flight since a suspension.
    pub(crate) quiesced: Quiesced,
    /// No write of the channel is in flight since writes were stopped.
    pub(crate) writes_quiesced: Quiesced,
    /// Items of the channel wait for work of another context, whose owner may be away.
    expects_remote: AtomicBool,
    /// The number of writes that the channel has let pass; written by the channel.
    writes: AtomicU64,
}

impl PortState {
    pub(crate) fn new(origin: Origin) -> Self {
        PortState {
            origin,
            done: SharedBioList::new(),
            quiesced: Quiesced::new(),
            writes_quiesced: Quiesced::new(),
            expects_remote: AtomicBool::new(false),
            writes: AtomicU64::new(0),
        }
    }

    /// Note that another context has an item of this channel. True if that was not noted already.
    pub(crate) fn set_remote(&self) -> bool {
        !self.expects_remote.swap(true, AcqRel)
    }

    pub(crate) fn expects_remote(&self) -> bool {
        self.expects_remote.load(Acquire)
    }

    /// Note that the channel has nothing in any shard.
    pub(crate) fn clear_remote(&self) {
        if self.expects_remote.load(Relaxed) {
            self.expects_remote.store(false, Release);
        }
    }

    /// Count writes; called by the channel.
    pub(crate) fn count_writes(&self, n: u64) {
        self.writes.store(self.writes.load(Relaxed) + n, Release);
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Acquire)
    }
}
