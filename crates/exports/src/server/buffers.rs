//! Buffers of one connection or session, used again and again: so none is allocated in steady state, and
//! none that held one client's data is ever sent to another.
//!
//! Invariant: every buffer has room for a reply header before its data ([`DATA_AT`]), and its
//! data is aligned for direct I/O.

use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Arena, Bio, BioList, IoBuf, Priority};
use std::sync::Arc;

/// Where data begins in a buffer; the header of its reply ends there.
pub(crate) const DATA_AT: usize = IoBuf::ALIGN;
/// Classes of buffers: room for 4 KiB of data times 4 to the power of the class.
const CLASSES: usize = 8;
/// Bytes of idle buffers that a pool keeps unless it is told otherwise.
const KEEP_BYTES: usize = 8 << 20;
/// Idle bios that a connection keeps.
const KEEP_BIOS: usize = 256;

/// Buffers in memory that a worker's ring knows, lent to its connections. What comes back is
/// zeroed before another connection gets it. Belongs to one worker, so its lock is never waited
/// for; it is taken only when a connection's own pool has nothing.
pub(crate) struct Reserve {
    arena: Option<Arc<Arena>>,
    idle: Lock<[Vec<IoBuf>; CLASSES]>,
    locks: Arc<LockCounters>,
}

impl Reserve {
    /// A reserve that cuts its buffers from `arena`; without one it is always empty.
    pub(crate) fn new(arena: Option<Arc<Arena>>, locks: Arc<LockCounters>) -> Arc<Self> {
        let idle = Lock::new(LockClass::Buffers, Default::default());
        Arc::new(Reserve { arena, idle, locks })
    }

    /// A buffer with exactly this much room for data, a length that pools have; `None` if there is none.
    pub(crate) fn take_of(&self, data_bytes: usize) -> Option<IoBuf> {
        self.take(class_of(data_bytes)?).filter(|buf| buf.len() == DATA_AT + data_bytes)
    }

    /// Give a buffer of the reserve back.
    pub(crate) fn give_back(&self, buf: IoBuf) {
        if let Some(class) = buf.len().checked_sub(DATA_AT).and_then(class_of) {
            self.give(class, buf);
        }
    }

    fn take(&self, class: usize) -> Option<IoBuf> {
        let arena = self.arena.as_ref()?;
        let idle = self.idle.lock(&self.locks)[class].pop();
        idle.or_else(|| arena.cut(DATA_AT + (4096 << (2 * class))))
    }

    fn give(&self, class: usize, mut buf: IoBuf) {
        buf.fill(0);
        self.idle.lock(&self.locks)[class].push(buf);
    }
}

/// A pool of buffers and bios.
pub(crate) struct Pool {
    reserve: Arc<Reserve>,
    idle: [Vec<IoBuf>; CLASSES],
    idle_bytes: usize,
    /// Bytes of idle buffers that it keeps.
    pub(crate) keep_bytes: usize,
    bios: BioList,
    /// What every bio is marked with.
    pub(crate) priority: Priority,
    /// As is this: its throttle group.
    pub(crate) group: u32,
}

fn class_of(data_bytes: usize) -> Option<usize> {
    (0..CLASSES).find(|class| data_bytes <= 4096 << (2 * class))
}

impl Pool {
    pub(crate) fn new(reserve: Arc<Reserve>) -> Self {
        Pool {
            reserve,
            idle: Default::default(),
            idle_bytes: 0,
            keep_bytes: KEEP_BYTES,
            bios: BioList::new(),
            priority: Priority::default(),
            group: 0,
        }
    }

    /// A buffer with room for `data_bytes` from [`DATA_AT`] on. Its contents are whatever this
    /// connection last had in it. `None` when memory is short.
    pub(crate) fn take(&mut self, data_bytes: usize) -> Option<IoBuf> {
        let Some(class) = class_of(data_bytes) else {
            return IoBuf::try_zeroed(DATA_AT + data_bytes);
        };
        match self.idle[class].pop() {
            Some(buf) => {
                self.idle_bytes -= buf.len();
                Some(buf)
            }
            None => self.take_new(class),
        }
    }

    #[cold]
    fn take_new(&self, class: usize) -> Option<IoBuf> {
        let lent = self.reserve.take(class);
        lent.or_else(|| IoBuf::try_zeroed(DATA_AT + (4096 << (2 * class))))
    }

    /// Give a buffer back.
    pub(crate) fn give(&mut self, buf: IoBuf) {
        let Some(class) = buf.len().checked_sub(DATA_AT).and_then(class_of) else { return };
        let exact = buf.len() == DATA_AT + (4096 << (2 * class));
        if exact && self.idle_bytes + buf.len() <= self.keep_bytes {
            self.idle_bytes += buf.len();
            self.idle[class].push(buf);
        } else if buf.is_in_arena() {
            self.reserve.give(class, buf);
        }
    }

    /// An idle bio.
    pub(crate) fn bio(&mut self) -> Box<Bio> {
        let mut bio = self.bios.pop().unwrap_or_else(Bio::flush);
        (bio.priority, bio.group) = (self.priority, self.group);
        bio
    }

    /// Give a completed bio back; its buffer, if it has one, is returned.
    pub(crate) fn give_bio(&mut self, mut bio: Box<Bio>) -> Option<IoBuf> {
        let buf = bio.take_buf();
        if self.bios.len() < KEEP_BIOS {
            self.bios.push(bio);
        }
        buf
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (class, idle) in self.idle.iter_mut().enumerate() {
            let lent = idle.drain(..).filter(IoBuf::is_in_arena);
            lent.for_each(|buf| self.reserve.give(class, buf));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(arena: Option<Arc<Arena>>) -> Pool {
        let locks = LockCounters::new(drystone_core::clock::ManualClock::new(1));
        Pool::new(Reserve::new(arena, locks))
    }

    #[test]
    fn lent_buffers_go_on_without_their_contents() {
        let mut first = pool(Arena::new(1 << 16));
        let mut second = Pool::new(first.reserve.clone());
        let mut buf = first.take(4096).unwrap();
        assert!(buf.is_in_arena());
        let address = buf.as_ptr();
        buf.fill(7);
        first.give(buf);
        drop(first);
        let buf = second.take(4096).unwrap();
        assert_eq!(buf.as_ptr(), address);
        assert!(buf.iter().all(|b| *b == 0), "another client's data");
        let more: Vec<_> = (0..9).map(|_| second.take(4096).unwrap()).collect();
        assert!(!more[8].is_in_arena(), "when the reserve is used up, memory is taken as ever");
    }

    #[test]
    fn buffers_come_back() {
        let mut pool = pool(None);
        for bytes in [1, 4096, 4097, 1 << 20, 65 << 20] {
            let buf = pool.take(bytes).unwrap();
            assert!(buf.len() >= DATA_AT + bytes);
            let kept = pool.idle_bytes;
            pool.give(buf);
            assert_eq!(pool.idle_bytes > kept, bytes <= 1 << 20, "{bytes} bytes");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut pool = pool(None);
        let bufs: Vec<_> = (0..100).map(|_| pool.take(1 << 20).unwrap()).collect();
        bufs.into_iter().for_each(|b| pool.give(b));
        assert!(pool.idle_bytes <= KEEP_BYTES && pool.idle_bytes > 0);
    }
}
