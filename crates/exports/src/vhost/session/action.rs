//! What the server, which owns the socket and the queues, is told to do.

use super::super::proto::{
    Features, GuestAddress, Inflight, LogArea, MappedRegion, Region, VringAddresses,
};
use super::shape::InflightShape;
use std::sync::Arc;

/// The number of a queue that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueIndex(u16);

impl QueueIndex {
    pub(super) const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number, from 0 on.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl std::fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// All that a queue needs.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueStart<F> {
    /// Which.
    pub queue: QueueIndex,
    /// Its entries: of a split ring a power of two.
    pub size: u16,
    /// Where to begin. Split: the available index in the lower 16 bits. Packed: the available index
    /// with its wrap counter (bit 15) in the lower 16 bits, the used one in the upper.
    ///
    /// It counts only without an in-flight region. With one the queue begins at what the region
    /// says: the used index, and the requests in flight beyond it. After the end of a server that
    /// did not tell its index, front ends differ in what they send here: QEMU takes the used index
    /// from the ring, others the available index, which would pass over the requests in flight.
    pub base: u32,
    /// Its addresses: aligned, and each part in one region of memory.
    pub addresses: VringAddresses,
    /// The features that the guest's driver chose.
    pub features: Features,
    /// True if the queue may take requests.
    pub enabled: bool,
    /// The descriptor by which the guest tells of requests.
    pub kick: F,
    /// The descriptor by which the guest is told of ended requests; `None` if it polls.
    pub call: Option<Arc<F>>,
    /// The descriptor by which the front end is told if the queue breaks.
    pub err: Option<Arc<F>>,
}

/// A change outside of the session. It is done when all queues that run have taken it.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<F> {
    /// Map these regions instead of all others. A queue whose rings are not in the new memory takes
    /// no requests until they are again: front ends replace regions one by one.
    ReplaceMemory(Vec<MappedRegion<F>>),
    /// Map one region more.
    AddRegion(MappedRegion<F>),
    /// Unmap a region when nothing in flight uses it. The same holds for its rings as above.
    RemoveRegion(Region),
    /// Start a queue.
    StartQueue(Box<QueueStart<F>>),
    /// Let a queue take no more requests, wait for those in flight, then call
    /// [`Session::queue_stopped`](super::Session::queue_stopped).
    StopQueue(QueueIndex),
    /// Let a queue that was started take requests, or no more. When it may take none, the action
    /// is done only once nothing of the queue is in flight, as for [`Action::StopQueue`]: Cloud
    /// Hypervisor pauses and snapshots a guest after no other message than this.
    EnableQueue {
        /// Which.
        queue: QueueIndex,
        /// True if it may take requests. False: wait for those in flight, too.
        enabled: bool,
    },
    /// Give a queue that was started another descriptor for kicks. The old one may have been
    /// signalled, so the queue looks for requests once.
    SetKick {
        /// Which.
        queue: QueueIndex,
        /// The descriptor.
        kick: F,
    },
    /// Give a queue that was started another descriptor for calls.
    SetCall {
        /// Which.
        queue: QueueIndex,
        /// The descriptor; `None` if the guest polls.
        call: Option<Arc<F>>,
    },
    /// Give a queue that was started another descriptor for errors.
    SetErr {
        /// Which.
        queue: QueueIndex,
        /// The descriptor.
        err: Option<Arc<F>>,
    },
    /// Log the writes of a queue that was started to its used ring, or do not. The log may be
    /// missing, and each bit is compared with its length, as for [`Action::SetLogging`].
    SetRingLog {
        /// Which.
        queue: QueueIndex,
        /// The guest address of the ring, for the log.
        log: Option<GuestAddress>,
    },
    /// Log the writes of all queues to memory ([`Features::LOG_ALL`]), or do not. The session does
    /// not ask for a log first: without one nothing is logged. Addresses come from the guest, and
    /// that of a used ring from the front end, so the server compares the place of each bit with
    /// the length of the log before it sets the bit.
    SetLogging(bool),
    /// Use this area as the log of a migration, instead of any other. It may come before logging is
    /// on and after, and may be shorter than the guest's memory: see [`Action::SetLogging`]. The
    /// server compares the area with the length of the file.
    SetLog {
        /// The area.
        log: LogArea,
        /// Its file.
        file: F,
    },
    /// Make an in-flight region, then call
    /// [`Session::inflight_made`](super::Session::inflight_made).
    MakeInflight {
        /// Its queues. It has [`InflightShape::bytes`] bytes, zeroes.
        shape: InflightShape,
        /// True for packed rings, by the features that are chosen so far.
        packed: bool,
    },
    /// Use this in-flight region for all queues that start from now on. None runs. Its length is
    /// at least that of its shape ([`InflightShape`]) for the features that are chosen so far, and
    /// the session refuses to start a queue beyond it. The server compares offset and length with
    /// the length of the file: the action fails if the file is shorter.
    SetInflight {
        /// The region.
        inflight: Inflight,
        /// Its file.
        file: F,
    },
    /// Turn the write cache on or off.
    SetWriteback(bool),
    /// Use this socket for messages of the back end ([`config_change`]).
    ///
    /// [`config_change`]: super::super::proto::config_change
    SetBackendChannel(F),
    /// Stop all queues, and wait for what is in flight. Forget the in-flight region and the log.
    Reset,
}
