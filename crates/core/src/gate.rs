//! The gate of a context: its owner passes freely, a visitor only while the owner is away.
//!
//! A thread may leave the library for an hour after any call. What its context still holds for
//! others (completions in its ring, tags, bios it may now issue) must go on without it, so
//! others may *visit* the context and turn its crank while the owner is outside a call. A
//! visitor that finds the owner inside *knocks*: the owner, on its way out, does the visitor's
//! errand itself. Either way the errand is done: that is the promise of [`Gate::visit`].
//!
//! Invariants:
//! * At most one of owner and visitors has access at a time. `inside` says the owner has it,
//!   `claim` that a visitor has it; each side raises its flag before it looks at the other's.
//! * A knock is answered after it was made: by the visitor itself, by the visitor that holds
//!   the claim when it leaves, or by the owner when it leaves.
//!
//! Memory order: access is handed over by the release stores of `inside` (owner leaves) and
//! `claim` (visitor leaves) and the acquire loads of the other side. The store-then-load on
//! both sides (Dekker) needs a full fence between them; the owner's is the light half of an
//! asymmetric fence, because it passes twice a call and visitors are rare.

use crate::primitive::{AtomicBool, AtomicU32, Barriers, Ordering::*};
use crate::sync::{LockClass, LockCounters, pause};

/// What [`Gate::visit`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Visit {
    /// Nobody is inside: the caller has access until [`Gate::end_visit`].
    Granted,
    /// The owner is inside and will do the errand before it leaves.
    OwnerWill,
    /// Another visitor is inside and will do the errand before it leaves.
    VisitorWill,
}

/// Guards the state of one context. See the module's text.
pub struct Gate {
    barriers: Barriers,
    inside: AtomicU32,
    claim: AtomicBool,
    knock: AtomicBool,
}

impl Gate {
    /// A gate with nobody inside.
    pub fn new(barriers: Barriers) -> Self {
        Gate {
            barriers,
            inside: AtomicU32::new(0),
            claim: AtomicBool::new(false),
            knock: AtomicBool::new(false),
        }
    }

    /// The owner enters. Waits only while a visitor is inside, which is counted for `user`.
    #[inline]
    pub fn enter(&self, user: &LockCounters) {
        self.inside.store(1, Relaxed);
        self.barriers.light();
        if self.claim.load(Acquire) {
            self.wait_for_visitor(user);
        }
    }

    #[cold]
    fn wait_for_visitor(&self, user: &LockCounters) {
        user.waited(LockClass::ContextGate, || {
            let mut tries = 0u32;
            loop {
                self.inside.store(0, Release);
                while self.claim.load(Acquire) {
                    pause(&mut tries);
                }
                self.inside.store(1, Relaxed);
                self.barriers.light();
                if !self.claim.load(Acquire) {
                    return;
                }
            }
        });
        user.acquired(LockClass::ContextGate);
    }

    /// The owner leaves. True if somebody knocked: enter again, do the errand, leave again.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
        self.inside.store(0, Release);
        self.barriers.light();
        self.knock.load(Relaxed)
    }

    /// True if the owner was inside at the moment of the look.
    pub fn is_inside(&self) -> bool {
        self.inside.load(Relaxed) != 0
    }

    /// True if somebody knocked and was not answered yet.
    pub fn knocked(&self) -> bool {
        self.knock.load(Relaxed)
    }

    /// Whoever is inside is about to do the errands of all who knocked so far.
    #[inline]
    pub fn answer_knock(&self) {
        if self.knock.load(Relaxed) {
            self.knock.swap(false, AcqRel);
        }
    }

    /// Somebody else wants the context's crank turned. See [`Visit`].
    pub fn visit(&self) -> Visit {
        self.knock.swap(true, AcqRel);
        fence_seq();
        loop {
            if self.claim.compare_exchange(false, true, Acquire, Relaxed).is_err() {
                return Visit::VisitorWill;
            }
            self.barriers.heavy();
            if self.inside.load(Acquire) == 0 {
                return Visit::Granted;
            }
            // The owner does the errand, unless it has left without seeing the knock of a
            // visitor that found our claim.
            let knocked = self.release_claim() && !(crate::mistake!("gate_visit_recheck"));
            self.barriers.heavy();
            if self.inside.load(Acquire) != 0 || !knocked {
                return Visit::OwnerWill;
            }
        }
    }

    /// A granted visit ends. True if another visitor knocked meanwhile and found the claim
    /// taken: then visit again.
    #[must_use]
    pub fn end_visit(&self) -> bool {
        self.release_claim()
    }

    /// Let go of the claim; true if somebody has knocked who may have found it taken.
    fn release_claim(&self) -> bool {
        self.claim.store(false, Release);
        fence_seq();
        !(crate::mistake!("gate_knock_recheck")) && self.knock.load(Relaxed)
    }
}

fn fence_seq() {
    crate::primitive::fence(SeqCst);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::primitive::{Arc, AtomicUsize};
    use loom::cell::UnsafeCell;

    struct Model {
        gate: Gate,
        /// What the gate guards: errands done.
        done: UnsafeCell<usize>,
        asked: AtomicUsize,
    }

    impl Model {
        fn errand(&self) {
            self.gate.answer_knock();
            let asked = self.asked.load(Relaxed);
            // SAFETY: only whoever has the gate calls this; loom checks that.
            self.done.with_mut(|d| unsafe { *d = asked });
        }

        fn visitor(&self) {
            self.asked.fetch_add(1, Relaxed);
            while self.gate.visit() == Visit::Granted {
                self.errand();
                if !self.gate.end_visit() {
                    break;
                }
            }
        }

        fn owner_call(&self, user: &LockCounters) {
            self.gate.enter(user);
            // As in every call that reaps: it answers knocks and turns the crank anyway.
            self.errand();
            while self.gate.leave() {
                self.gate.enter(user);
                self.errand();
            }
        }
    }

    fn run(visitors: usize, calls: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model {
                gate: Gate::new(Barriers::detect()),
                done: UnsafeCell::new(0),
                asked: AtomicUsize::new(0),
            });
            let threads: Vec<_> = (0..visitors)
                .map(|_| {
                    let model = model.clone();
                    loom::thread::spawn(move || model.visitor())
                })
                .collect();
            let user = LockCounters::new(ManualClock::new(1));
            (0..calls).for_each(|_| model.owner_call(&user));
            threads.into_iter().for_each(|t| t.join().unwrap());
            // The errands were asked for and the owner is away: all must be done.
            // SAFETY: every other thread has ended.
            model.done.with(|d| assert_eq!(unsafe { *d }, visitors, "an errand was lost"));
        });
    }

    /// Owner and one visitor: exclusive access, and the errand is done whoever does it.
    #[test]
    fn loom_gate_owner_and_visitor() {
        run(1, 2);
    }

    /// Two visitors and the owner: the one that finds the claim taken is served too.
    #[test]
    fn loom_gate_two_visitors() {
        run(2, 1);
    }
}
