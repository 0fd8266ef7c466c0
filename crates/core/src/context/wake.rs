//! The bare wake-up: making a wait return without leaving a message (a binary semaphore).
//!
//! Invariant: after [`WakeUp::ask`] the flag is up until a wait ends, and the wake-up descriptor
//! is readable or about to become so until a reap. A reap that has nothing to do with the wake-up
//! (the owner's, or a visitor's) may clear the descriptor, so the owner looks at the flag before
//! it sleeps, after the last reap.
//!
//! Memory order: the flag is raised before the descriptor, so an owner that has cleared the
//! descriptor sees the flag, by the ring's own hand-over. One that takes the flag acquires what
//! *every* waker that raised it wrote before: raising is a swap, because a plain store of a second
//! waker would cut off the release of the first.

use crate::primitive::{AtomicBool, Ordering::*};
use crate::ring::Waker;

/// The request of another thread that the next wait return.
pub(super) struct WakeUp {
    asked: AtomicBool,
}

/// Order of the raised flag; the mutation check weakens it.
#[inline(always)]
fn raise_order() -> crate::primitive::Ordering {
    if crate::mutated!("wake_release") { Relaxed } else { Release }
}

impl Default for WakeUp {
    fn default() -> Self {
        WakeUp { asked: AtomicBool::new(false) }
    }
}

impl WakeUp {
    /// Make the current wait, or else the next one, return. `waker` makes the descriptor readable.
    pub(super) fn ask(&self, waker: &dyn Waker) {
        let too_early = crate::mutated!("wake_order");
        if too_early {
            waker.wake();
        }
        self.raise();
        if !too_early {
            waker.wake();
        }
    }

    fn raise(&self) {
        if crate::mutated!("wake_store") {
            return self.asked.store(true, raise_order());
        }
        self.asked.swap(true, raise_order());
    }

    /// True while a wake-up waits for a wait to end.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    /// A wait ends: the wake-ups so far have had their effect. A swap, so that it acquires what
    /// the waker wrote.
    pub(super) fn take(&self) {
        self.asked.swap(false, AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitive::Arc;
    use loom::sync::{Condvar, Mutex};

    /// The wake-up descriptor.
    #[derive(Default)]
    struct Descriptor {
        readable: Mutex<bool>,
        changed: Condvar,
    }

    impl Waker for Descriptor {
        fn wake(&self) {
            *self.readable.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    struct Model {
        wake_up: WakeUp,
        descriptor: Descriptor,
        /// The flag that each waker wrote before it woke the owner.
        written: Vec<AtomicBool>,
    }

    impl Model {
        fn waker(&self, number: usize) {
            self.written[number].store(true, Relaxed);
            self.wake_up.ask(&self.descriptor);
        }

        /// The owner's, which may be for anything: it forgets the wake-ups of the descriptor.
        fn reap(&self) {
            *self.descriptor.readable.lock().unwrap() = false;
        }

        /// As a context's wait. A wake-up that is slept over leaves the model without a thread
        /// that can go on, which the checker reports.
        fn wait(&self) {
            self.reap();
            if !self.wake_up.is_asked() {
                let mut readable = self.descriptor.readable.lock().unwrap();
                while !*readable {
                    readable = self.descriptor.changed.wait(readable).unwrap();
                }
            }
            self.wake_up.take();
            self.reap();
        }

        fn all_seen(&self) -> bool {
            self.written.iter().all(|written| written.load(Relaxed))
        }
    }

    fn run(wakers: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model {
                wake_up: WakeUp::default(),
                descriptor: Descriptor::default(),
                written: (0..wakers).map(|_| AtomicBool::new(false)).collect(),
            });
            let threads: Vec<_> = (0..wakers)
                .map(|number| {
                    let model = model.clone();
                    loom::thread::spawn(move || model.waker(number))
                })
                .collect();
            model.reap();
            model.wait();
            while !model.all_seen() {
                model.wait();
            }
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    /// The owner reaps and waits while it is woken: a wait returns, and after it the owner sees
    /// what the waker wrote.
    #[test]
    fn loom_wake_ends_a_wait() {
        run(1);
    }

    /// Two wakers: one may lower the flag of the other by the wait that it ends.
    #[test]
    fn loom_wake_ends_waits_of_two() {
        run(2);
    }
}
