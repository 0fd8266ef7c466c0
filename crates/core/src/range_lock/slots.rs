//! The slots of one user of a range lock: what it holds together with others.
//!
//! Invariants:
//! * Only the user writes them, other users read them. A slot that holds nothing ends at 0.
//! * A slot's start is written while it holds nothing, and before its end. So a thread that reads
//!   an end reads its start, or that of what the slot held later, and then knows that what it held
//!   before has ended.

use super::wake::Wake;
use crate::mistake;
use crate::primitive::{Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::*};
use std::ops::Range;

/// Slots of a cache line, or two, since processors fetch them in pairs.
const IN_LINE: usize = 8;

struct Slot {
    start: AtomicU64,
    end: AtomicU64,
}

#[repr(align(128))]
struct Line([Slot; IN_LINE]);

/// Release: the start is read with the end.
#[inline]
fn end_order() -> Ordering {
    if mistake!("range_end_order") { Relaxed } else { Release }
}

/// See the file's page.
#[repr(align(128))]
pub(super) struct Slots {
    lines: Box<[Line]>,
    /// The slots from here on have never held anything.
    used: AtomicUsize,
    /// The number of ranges held at slots that are not here.
    others: AtomicU32,
    /// The user must look at the queue.
    told: AtomicBool,
    thread: Arc<dyn Wake>,
}

/// A request's position in its scan of the slots of all users.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    user: usize,
    slot: usize,
}

impl Cursor {
    /// Go on until a slot that overlaps with `range`: none does if the end is reached. Slots that
    /// were passed must not begin to overlap.
    pub(super) fn reaches_end(&mut self, users: &[Option<Arc<Slots>>], range: &Range<u64>) -> bool {
        while let Some(user) = users.get(self.user) {
            let count = user.as_ref().map_or(0, |user| user.used.load(Acquire));
            while let Some(user) = user
                && self.slot < count
            {
                if user.overlaps(self.slot, range) {
                    return false;
                }
                self.slot += 1;
            }
            if user.as_ref().is_some_and(|user| user.others.load(Acquire) > 0) {
                return false;
            }
            *self = Cursor { user: self.user + 1, slot: 0 };
        }
        true
    }
}

impl Slots {
    pub(super) fn new(count: usize, thread: Arc<dyn Wake>) -> Self {
        let slot = || Slot { start: AtomicU64::new(0), end: AtomicU64::new(0) };
        let line = || Line(std::array::from_fn(|_| slot()));
        Slots {
            used: AtomicUsize::new(0),
            lines: (0..count.div_ceil(IN_LINE)).map(|_| line()).collect(),
            others: AtomicU32::new(0),
            told: AtomicBool::new(false),
            thread,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len() * IN_LINE
    }

    /// The slot is one of these.
    #[inline]
    pub(super) fn has(&self, slot: usize) -> bool {
        slot < self.len()
    }

    #[inline]
    fn slot(&self, slot: usize) -> Option<&Slot> {
        self.lines.get(slot / IN_LINE).map(|line| &line.0[slot % IN_LINE])
    }

    /// The user holds `range` there.
    #[inline]
    pub(super) fn set(&self, slot: usize, range: &Range<u64>) {
        if slot >= self.used.load(Relaxed) {
            self.used.store(self.len().min(slot + 1), Release);
        }
        match self.slot(slot) {
            Some(slot) => {
                slot.start.store(range.start, Release);
                slot.end.store(range.end, end_order());
            }
            None => self.others.store(self.others.load(Relaxed) + 1, Relaxed),
        }
    }

    /// The user holds nothing there. Release: a thread that reads the slot comes after what it was
    /// held for.
    #[inline]
    pub(super) fn clear(&self, slot: usize) {
        match self.slot(slot) {
            Some(slot) => slot.end.store(0, Release),
            None => self.others.store(self.others.load(Relaxed) - 1, Release),
        }
    }

    /// For the user: whether it holds something at a slot that is one of these.
    #[inline]
    pub(super) fn holds(&self, slot: usize) -> bool {
        self.slot(slot).is_some_and(|slot| slot.end.load(Relaxed) != 0)
    }

    fn overlaps(&self, slot: usize, range: &Range<u64>) -> bool {
        let Some(slot) = self.slot(slot) else { return false };
        let end = slot.end.load(Acquire);
        end > range.start && slot.start.load(Acquire) < range.end
    }

    /// Have the user look at the queue.
    pub(super) fn tell(&self) {
        self.told.store(true, Release);
        self.thread.wake();
    }

    #[inline]
    pub(super) fn is_told(&self) -> bool {
        self.told.load(Acquire)
    }

    pub(super) fn take_told(&self) {
        self.told.swap(false, AcqRel);
    }
}
