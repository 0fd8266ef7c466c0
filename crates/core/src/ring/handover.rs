//! Jobs that one thread gives to another, which gives them back in order when they are done.
//!
//! A ring buffer with one giver and one taker (Lamport 1983). The same place serves both ways: the
//! taker leaves the result where the job was.
//!
//! Invariants:
//! * The places from `done` to `given` are the taker's, all others the giver's. Both numbers only
//!   grow, and `given - done` is at most the number of places.
//! * A taker that sleeps is unparked after each [`Giver::tell`] and [`Giver::end`]. An unpark
//!   before the park makes that return at once, so none is missed.
//!
//! Memory order: each side releases with the store of its number, and acquires with the load of
//! the other's. So a side sees what the other has written to a place before it got that.

#![allow(unsafe_code, reason = "places that belong to one thread at a time")]

use crate::primitive::{Arc, AtomicBool, AtomicU32, Ordering};
#[cfg(loom)]
use loom::cell::UnsafeCell;

#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

struct Places<J> {
    places: Box<[UnsafeCell<Option<J>>]>,
    given: AtomicU32,
    done: AtomicU32,
    is_over: AtomicBool,
}

// SAFETY: a place belongs to one side at a time (the invariants), and jobs may change threads.
unsafe impl<J: Send> Sync for Places<J> {}

impl<J> Places<J> {
    fn take(&self, number: u32) -> Option<J> {
        // SAFETY: the caller's side owns this place, and its handle is borrowed by one call at a
        // time.
        self.place(number).with_mut(|place| unsafe { (*place).take() })
    }

    fn put(&self, number: u32, job: J) {
        // SAFETY: as above.
        self.place(number).with_mut(|place| unsafe { *place = Some(job) });
    }

    fn place(&self, number: u32) -> &UnsafeCell<Option<J>> {
        &self.places[number as usize % self.places.len()]
    }
}

/// The side that gives jobs and gets them back.
pub(super) struct Giver<J> {
    shared: Arc<Places<J>>,
    /// Jobs put into their places; the taker is told of them later.
    put: u32,
    /// Jobs taken back.
    back: u32,
}

/// The side that does them.
pub(super) struct Taker<J> {
    shared: Arc<Places<J>>,
    done: u32,
}

/// The two sides of a hand-over of at most `places` jobs, a power of two.
pub(super) fn handover<J: Send>(places: usize) -> (Giver<J>, Taker<J>) {
    debug_assert!(places.is_power_of_two());
    let shared = Arc::new(Places {
        places: (0..places).map(|_| UnsafeCell::new(None)).collect(),
        given: AtomicU32::new(0),
        done: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
    });
    (Giver { shared: shared.clone(), put: 0, back: 0 }, Taker { shared, done: 0 })
}

impl<J> Giver<J> {
    /// Puts a job into a place; back if there is none.
    pub(super) fn put(&mut self, job: J) -> Result<(), J> {
        if self.in_flight() == self.shared.places.len() {
            return Err(job);
        }
        self.shared.put(self.put, job);
        self.put = self.put.wrapping_add(1);
        Ok(())
    }

    /// Makes the jobs that were put the taker's. The caller unparks its thread afterwards.
    pub(super) fn tell(&mut self) {
        let order =
            if crate::mutated!("handover_tell") { Ordering::Relaxed } else { Ordering::Release };
        self.shared.given.store(self.put, order);
    }

    /// The job that was done first and is not back yet.
    pub(super) fn take_done(&mut self) -> Option<J> {
        if self.back == self.shared.done.load(Ordering::Acquire) {
            return None;
        }
        let job = self.shared.take(self.back);
        self.back = self.back.wrapping_add(1);
        job
    }

    /// No more jobs come, and nobody takes them back. The caller unparks the taker's thread.
    pub(super) fn end(&self) {
        self.shared.is_over.store(true, Ordering::Release);
    }

    /// Jobs that are not back yet.
    pub(super) fn in_flight(&self) -> usize {
        self.put.wrapping_sub(self.back) as usize
    }
}

impl<J> Taker<J> {
    /// The next job, or `None` if there is none for now.
    pub(super) fn next(&mut self) -> Option<J> {
        if self.done == self.shared.given.load(Ordering::Acquire) {
            return None;
        }
        self.shared.take(self.done)
    }

    /// Gives the job of the last [`Taker::next`] back.
    pub(super) fn finish(&mut self, job: J) {
        self.shared.put(self.done, job);
        self.done = self.done.wrapping_add(1);
        let order =
            if crate::mutated!("handover_done") { Ordering::Relaxed } else { Ordering::Release };
        self.shared.done.store(self.done, order);
    }

    /// True if no more jobs come. Jobs that were not begun are nobody's then.
    pub(super) fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_back_in_order() {
        let (mut giver, mut taker) = handover(4);
        for round in 0..3 {
            for n in 0..4 {
                giver.put(round * 10 + n).unwrap();
            }
            assert_eq!(giver.put(99), Err(99), "all places are taken");
            assert_eq!(taker.next(), None, "the taker was not told yet");
            giver.tell();
            for n in 0..4 {
                assert_eq!(giver.take_done(), None);
                let job = taker.next().unwrap();
                assert_eq!(job, round * 10 + n);
                taker.finish(job + 100);
                assert_eq!(giver.take_done(), Some(round * 10 + n + 100));
            }
            assert_eq!((taker.next(), giver.in_flight()), (None, 0));
        }
        assert!(!taker.is_over());
        giver.end();
        assert!(taker.is_over());
    }

    #[test]
    fn numbers_wrap_around() {
        let (mut giver, mut taker) = handover(2);
        let near_the_end = u32::MAX - 1;
        (giver.put, giver.back, taker.done) = (near_the_end, near_the_end, near_the_end);
        giver.shared.given.store(near_the_end, Ordering::Relaxed);
        giver.shared.done.store(near_the_end, Ordering::Relaxed);
        for n in 0..5 {
            giver.put(n).unwrap();
            giver.tell();
            let job = taker.next().unwrap();
            taker.finish(job);
            assert_eq!(giver.take_done(), Some(n));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Every job comes back with its result, in order, and the taker ends although it parks.
    #[test]
    fn loom_handover() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let (mut giver, mut taker) = handover(2);
            let worker = thread::spawn(move || {
                while !taker.is_over() {
                    match taker.next() {
                        Some(job) => taker.finish(job * 2),
                        None => thread::park(),
                    }
                }
            });
            let mut expected = Vec::new();
            let mut back = Vec::new();
            for job in 1..4_u32 {
                while giver.put(job).is_err() {
                    back.extend(giver.take_done());
                    thread::yield_now();
                }
                expected.push(job * 2);
                giver.tell();
                // The taker may run here, which learns of the job by the number alone.
                back.extend(giver.take_done());
                worker.thread().unpark();
            }
            while back.len() < expected.len() {
                back.extend(giver.take_done());
                thread::yield_now();
            }
            assert_eq!(back, expected);
            giver.end();
            worker.thread().unpark();
            worker.join().unwrap();
        });
    }
}
