//! The places of one user of a range lock: what it holds together with others.
//!
//! Invariants:
//! * Only the user writes them, other users read them. A place that holds nothing ends at 0.
//! * A place's start is written while it holds nothing, and before its end. So whoever reads an end
//!   reads its start, or that of what the place held later, and then knows that what it held before
//!   has ended.

use super::wake::Wake;
use crate::mistake;
use crate::primitive::{Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::*};
use std::ops::Range;

/// Places of a cache line, or two, since processors fetch them in pairs.
const IN_LINE: usize = 8;

struct Place {
    start: AtomicU64,
    end: AtomicU64,
}

#[repr(align(128))]
struct Line([Place; IN_LINE]);

/// Release: the start is read with the end.
#[inline]
fn end_order() -> Ordering {
    if mistake!("range_end_order") { Relaxed } else { Release }
}

/// See the file's page.
#[repr(align(128))]
pub(super) struct Places {
    lines: Box<[Line]>,
    /// The places from here on have never held anything.
    used: AtomicUsize,
    /// What is held at places that are not here.
    others: AtomicU32,
    /// The user is to look at the queue.
    told: AtomicBool,
    thread: Arc<dyn Wake>,
}

/// How far one has looked through the places of all users.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor {
    user: usize,
    place: usize,
}

impl Cursor {
    /// Go on until a place that overlaps with `range`: none does if the end is reached. What was
    /// passed must not begin to overlap.
    pub(super) fn reaches_end(
        &mut self,
        users: &[Option<Arc<Places>>],
        range: &Range<u64>,
    ) -> bool {
        while let Some(user) = users.get(self.user) {
            let count = user.as_ref().map_or(0, |user| user.used.load(Acquire));
            while let Some(user) = user
                && self.place < count
            {
                if user.overlaps(self.place, range) {
                    return false;
                }
                self.place += 1;
            }
            if user.as_ref().is_some_and(|user| user.others.load(Acquire) > 0) {
                return false;
            }
            *self = Cursor { user: self.user + 1, place: 0 };
        }
        true
    }
}

impl Places {
    pub(super) fn new(count: usize, thread: Arc<dyn Wake>) -> Self {
        let place = || Place { start: AtomicU64::new(0), end: AtomicU64::new(0) };
        let line = || Line(std::array::from_fn(|_| place()));
        Places {
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

    /// The place is one of these.
    #[inline]
    pub(super) fn has(&self, place: usize) -> bool {
        place < self.len()
    }

    #[inline]
    fn place(&self, place: usize) -> Option<&Place> {
        self.lines.get(place / IN_LINE).map(|line| &line.0[place % IN_LINE])
    }

    /// The user holds `range` there.
    #[inline]
    pub(super) fn set(&self, place: usize, range: &Range<u64>) {
        if place >= self.used.load(Relaxed) {
            self.used.store(self.len().min(place + 1), Release);
        }
        match self.place(place) {
            Some(place) => {
                place.start.store(range.start, Release);
                place.end.store(range.end, end_order());
            }
            None => self.others.store(self.others.load(Relaxed) + 1, Relaxed),
        }
    }

    /// The user holds nothing there. Release: who looks at the place comes after what it was held
    /// for.
    #[inline]
    pub(super) fn clear(&self, place: usize) {
        match self.place(place) {
            Some(place) => place.end.store(0, Release),
            None => self.others.store(self.others.load(Relaxed) - 1, Release),
        }
    }

    /// For the user: whether it holds something at a place that is one of these.
    #[inline]
    pub(super) fn holds(&self, place: usize) -> bool {
        self.place(place).is_some_and(|place| place.end.load(Relaxed) != 0)
    }

    fn overlaps(&self, place: usize, range: &Range<u64>) -> bool {
        let Some(place) = self.place(place) else { return false };
        let end = place.end.load(Acquire);
        end > range.start && place.start.load(Acquire) < range.end
    }

    /// The user is to look.
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
