//! Buffers in memory that is registered with a worker's ring, lent to its pools and sessions.
//!
//! Invariants:
//! * A buffer has room for a reply header before its data ([`DATA_AT`]), and its data is aligned
//!   for direct I/O.
//! * A buffer that comes back is zeroed before another client gets it.

use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Arena, IoBuf, trim_heap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where data begins in a buffer; the header of its reply ends there.
pub(crate) const DATA_AT: usize = IoBuf::ALIGN;
/// Classes of buffers: room for 4 KiB of data times 4 to the power of the class. Longer buffers are
/// made to measure, and not kept.
pub(super) const CLASSES: usize = 6;
/// Bytes of freed buffers for which the heap is trimmed.
const TRIM_BYTES: u64 = 4 << 20;

/// The reserve of one worker. Its pools and sessions lock it only when they have no buffer. All of
/// them belong to one thread, so nobody waits for the lock.
pub(crate) struct Reserve {
    arena: Option<Arc<Arena>>,
    /// Bytes that pools freed since the heap was trimmed.
    freed: AtomicU64,
    idle: Lock<[Vec<IoBuf>; CLASSES]>,
    locks: Arc<LockCounters>,
}

impl Reserve {
    /// A reserve that cuts its buffers from `arena`; without an arena it is always empty.
    pub(crate) fn new(arena: Option<Arc<Arena>>, locks: Arc<LockCounters>) -> Arc<Self> {
        let idle = Lock::new(LockClass::Buffers, Default::default());
        Arc::new(Reserve { arena, freed: AtomicU64::new(0), idle, locks })
    }

    /// Lends a buffer with exactly this much room for data, if a class has that size and a buffer.
    pub(crate) fn take_of(&self, data_bytes: usize) -> Option<IoBuf> {
        let class = class_of(data_bytes)?;
        if class_bytes(class) == DATA_AT + data_bytes { self.take(class) } else { None }
    }

    /// Takes a buffer of the reserve back.
    pub(crate) fn give_back(&self, buf: IoBuf) {
        if let Some(class) = buf.len().checked_sub(DATA_AT).and_then(class_of) {
            self.give(class, buf);
        }
    }

    /// The number of buffers that were lent and have come back.
    #[cfg(test)]
    pub(crate) fn idle_count(&self) -> usize {
        self.idle.lock(&self.locks).iter().map(Vec::len).sum()
    }

    /// True if pools have freed enough for a trim.
    pub(crate) fn wants_trim(&self) -> bool {
        self.freed.load(Relaxed) >= TRIM_BYTES
    }

    /// Returns the memory that pools have freed to the system.
    pub(crate) fn trim(&self) {
        self.freed.store(0, Relaxed);
        trim_heap();
    }

    /// Lends a buffer of a class.
    pub(super) fn take(&self, class: usize) -> Option<IoBuf> {
        let arena = self.arena.as_ref()?;
        let idle = self.idle.lock(&self.locks)[class].pop();
        idle.or_else(|| arena.cut(class_bytes(class)))
    }

    /// Takes a buffer of a class back, and zeroes it.
    pub(super) fn give(&self, class: usize, mut buf: IoBuf) {
        buf.fill(0);
        self.idle.lock(&self.locks)[class].push(buf);
    }

    /// Notes that a pool has freed memory.
    #[inline]
    pub(super) fn note_freed(&self, bytes: u64) {
        self.freed.fetch_add(bytes, Relaxed);
    }
}

/// The class of buffers with room for so much data, if there is one.
pub(super) fn class_of(data_bytes: usize) -> Option<usize> {
    (0..CLASSES).find(|class| data_bytes <= 4096 << (2 * class))
}

/// Bytes of a buffer of a class.
pub(super) fn class_bytes(class: usize) -> usize {
    DATA_AT + (4096 << (2 * class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    fn reserve(arena: Option<Arc<Arena>>) -> Arc<Reserve> {
        Reserve::new(arena, LockCounters::new(ManualClock::new(1)))
    }

    #[test]
    fn it_lends_only_lengths_that_pools_have() {
        let reserve_of_none = reserve(None);
        assert!(reserve_of_none.take_of(4096).is_none(), "there is no arena");
        let reserve = reserve(Arena::new(class_bytes(1)));
        assert!(reserve.take_of(5000).is_none(), "no class has this room");
        assert!(reserve.take_of(16 << 10).is_some(), "the arena has lost nothing");
        for class in 0..CLASSES {
            let bytes = class_bytes(class) - DATA_AT;
            assert_eq!(
                (class_of(bytes), class_of(bytes + 1) > class_of(bytes)),
                (Some(class), class + 1 < CLASSES)
            );
        }
    }

    #[test]
    fn the_next_client_gets_a_buffer_of_zeroes() {
        let reserve = reserve(Arena::new(1 << 20));
        let mut buf = reserve.take_of(4096).expect("the arena has room");
        buf.fill(7);
        let address = buf.as_ptr();
        reserve.give_back(buf);
        assert_eq!(reserve.idle_count(), 1);
        let buf = reserve.take_of(4096).expect("it is idle");
        assert_eq!((buf.as_ptr(), reserve.idle_count()), (address, 0));
        assert!(buf.iter().all(|byte| *byte == 0));
    }
}
