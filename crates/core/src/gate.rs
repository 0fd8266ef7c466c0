//! The gate of a context: a lock that is biased to the context's owner (an asymmetric Dekker lock).
//!
//! A thread may leave the library for an hour after any call. Its context may still hold things
//! that others need (completions in its ring, tags, bios that can be issued now). So another thread
//! may *visit* the context while the owner is outside a call, and run its pending work. A visitor
//! first *requests* its visit. If it finds the owner inside, it goes away: the owner sees the
//! request when it leaves, and runs the pending work itself. In both cases the work that was
//! pending before [`Gate::visit`] is run. That is the promise of this module.
//!
//! Invariants:
//! * The owner or one visitor has access, never two threads. `inside` says that the owner has it,
//!   `claim` that a visitor has it; each side sets its own flag before it reads the other's.
//! * `expects_visits` is written by the owner only, before it stores `inside` to leave. So a
//!   visitor that acquires `inside` as 0 knows by which fence the owner enters next. It is released
//!   and acquired, too: a visitor that sees a later mark than that sees all that came before.
//! * A visit request is served after it was made: by the visitor itself, by the visitor that holds
//!   the claim when it leaves, or by the owner when it leaves.
//!
//! Memory order: access is handed over by the release stores of `inside` (owner leaves) and
//! `claim` (visitor leaves) and the acquire loads of the other side. The store-then-load on
//! both sides (Dekker) needs a full fence between them; the owner's is the light half of an
//! asymmetric fence, because it passes twice a call and visitors are rare. An owner that expects
//! visits until its next call says so when it leaves, and passes a full fence when it enters: then
//! a visitor that finds nobody inside needs no heavy half, which interrupts all processors.

#![allow(unsafe_code, reason = "its models look at what the gate guards")]

use crate::primitive::{AtomicBool, AtomicU32, Barriers, Ordering::*};
use crate::sync::{LockClass, LockCounters, pause};

/// The outcome of [`Gate::visit`].
#[derive(Debug, PartialEq, Eq)]
pub enum Visit {
    /// No thread is inside: the caller has access until [`Gate::end_visit`].
    Granted,
    /// The owner is inside, and runs the pending work before it leaves.
    OwnerWill,
    /// Another visitor is inside, and runs the pending work before it leaves.
    VisitorWill,
}

/// Guards the state of one context. See the module's text.
pub struct Gate {
    barriers: Barriers,
    inside: AtomicU32,
    /// The owner's next entry passes a full fence.
    expects_visits: AtomicBool,
    claim: AtomicBool,
    visit_requested: AtomicBool,
}

impl Gate {
    /// A gate with no thread inside.
    pub fn new(barriers: Barriers) -> Self {
        Gate {
            barriers,
            inside: AtomicU32::new(0),
            expects_visits: AtomicBool::new(false),
            claim: AtomicBool::new(false),
            visit_requested: AtomicBool::new(false),
        }
    }

    /// The owner enters. Waits only while a visitor is inside, which is counted for `user`.
    #[inline]
    pub fn enter(&self, user: &LockCounters) {
        self.set_inside();
        if self.claim.load(Acquire) {
            self.wait_for_visitor(user);
        }
    }

    /// Say that the owner is inside, before `claim` is read.
    #[inline]
    fn set_inside(&self) {
        self.inside.store(1, Relaxed);
        if !self.expects_visits.load(Relaxed) {
            self.barriers.light();
        } else if !crate::mutated!("gate_enter_fence") {
            fence_seq();
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
                self.set_inside();
                if !self.claim.load(Acquire) {
                    return;
                }
            }
        });
        user.acquired(LockClass::ContextGate);
    }

    /// The owner leaves, and says whether it expects visits until it comes back. True if a visit
    /// was requested: enter again, run the pending work, leave again.
    #[inline]
    #[must_use]
    pub fn leave(&self, expects_visits: bool) -> bool {
        if crate::mutated!("gate_mark_late") {
            self.inside.store(0, Release);
        }
        if self.expects_visits.load(Relaxed) != expects_visits {
            let order = if crate::mutated!("gate_mark_release") { Relaxed } else { Release };
            self.expects_visits.store(expects_visits, order);
        }
        self.inside.store(0, Release);
        self.barriers.light();
        self.visit_requested.load(Relaxed)
    }

    /// True if the owner was inside at the moment of the call.
    pub fn is_inside(&self) -> bool {
        self.inside.load(Relaxed) != 0
    }

    /// True while a visit request is not served.
    pub fn has_visit_request(&self) -> bool {
        self.visit_requested.load(Relaxed)
    }

    /// The thread that is inside is about to run the pending work, and so serves all requests so
    /// far.
    #[inline]
    pub fn take_visit_request(&self) {
        if self.visit_requested.load(Relaxed) {
            self.visit_requested.swap(false, AcqRel);
        }
    }

    /// Another thread than the owner asks that the pending work be run. See [`Visit`].
    pub fn visit(&self) -> Visit {
        self.visit_requested.swap(true, AcqRel);
        fence_seq();
        loop {
            if self.claim.compare_exchange(false, true, Acquire, Relaxed).is_err() {
                return Visit::VisitorWill;
            }
            if self.is_expected_and_alone() {
                return Visit::Granted;
            }
            #[cfg(loom)]
            if self.barriers == Barriers::None {
                self.claim.store(false, Release);
                return Visit::OwnerWill;
            }
            self.barriers.heavy();
            if self.inside.load(Acquire) == 0 {
                return Visit::Granted;
            }
            // The owner runs the work, unless it left without seeing the request of a visitor that
            // found our claim.
            let requested = self.release_claim() && !(crate::mistake!("gate_visit_recheck"));
            self.barriers.heavy();
            if self.inside.load(Acquire) != 0 || !requested {
                return Visit::OwnerWill;
            }
        }
    }

    /// With the claim: the owner is away, and is to see the claim when it comes back, although no
    /// heavy fence was passed. The owner may change its mind before it leaves, so the answer that
    /// counts is the one after it was seen to have left.
    fn is_expected_and_alone(&self) -> bool {
        if !self.expects_visits.load(Acquire) {
            return false;
        }
        if !crate::mutated!("gate_claim_fence") {
            fence_seq();
        }
        let is_away = self.inside.load(Acquire) == 0;
        is_away && (crate::mutated!("gate_mark_once") || self.expects_visits.load(Acquire))
    }

    /// A granted visit ends. True if another visitor requested one meanwhile and found the claim
    /// taken: then visit again.
    #[must_use]
    pub fn end_visit(&self) -> bool {
        self.release_claim()
    }

    /// Release the claim; true if a visitor may have found it taken, because a request is there.
    fn release_claim(&self) -> bool {
        self.claim.store(false, Release);
        fence_seq();
        !(crate::mistake!("gate_request_recheck")) && self.visit_requested.load(Relaxed)
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
        /// The state that the gate guards: how many requests were served.
        done: UnsafeCell<usize>,
        asked: AtomicUsize,
    }

    impl Model {
        fn new(barriers: Barriers) -> Self {
            Model {
                gate: Gate::new(barriers),
                done: UnsafeCell::new(0),
                asked: AtomicUsize::new(0),
            }
        }

        /// Use the access, and nothing else that could order the threads.
        fn touch(&self) {
            // SAFETY: only the thread that has the gate calls this; loom checks that.
            self.done.with_mut(|d| unsafe { *d += 1 });
        }

        fn run_pending(&self) {
            self.gate.take_visit_request();
            let asked = self.asked.load(Relaxed);
            // SAFETY: only the thread that has the gate calls this; loom checks that.
            self.done.with_mut(|d| unsafe { *d = asked });
        }

        fn visitor(&self) {
            self.asked.fetch_add(1, Relaxed);
            while self.gate.visit() == Visit::Granted {
                self.run_pending();
                if !self.gate.end_visit() {
                    break;
                }
            }
        }

        fn owner_call(&self, user: &LockCounters, expects_visits: bool) {
            self.gate.enter(user);
            // As in every call that reaps, which runs the pending work anyway.
            self.run_pending();
            while self.gate.leave(expects_visits) {
                self.gate.enter(user);
                self.run_pending();
            }
        }
    }

    /// `calls` has whether the owner expects visits after each of its calls.
    fn run(visitors: usize, calls: &'static [bool]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model::new(Barriers::detect()));
            let threads: Vec<_> = (0..visitors)
                .map(|_| {
                    let model = model.clone();
                    loom::thread::spawn(move || model.visitor())
                })
                .collect();
            let user = LockCounters::new(ManualClock::new(1));
            calls.iter().for_each(|expects| model.owner_call(&user, *expects));
            threads.into_iter().for_each(|t| t.join().unwrap());
            // All visits were requested and the owner is away: all must be served.
            // SAFETY: every other thread has ended.
            model.done.with(|d| assert_eq!(unsafe { *d }, visitors, "a request was lost"));
        });
    }

    /// Owner and one visitor: access is exclusive, and one of them serves the request.
    #[test]
    fn loom_gate_owner_and_visitor() {
        run(1, &[false, false]);
    }

    /// The same with an owner that expects the visitor.
    #[test]
    fn loom_gate_expected_visitor() {
        run(1, &[true, true]);
    }

    /// The same with an owner that expects it at times.
    #[test]
    fn loom_gate_visitor_expected_at_times() {
        run(1, &[true, false, false]);
        run(1, &[false, true, false]);
    }

    /// Two visitors and the owner: the visitor that finds the claim taken is served, too.
    #[test]
    fn loom_gate_two_visitors() {
        run(2, &[false]);
        run(2, &[true]);
    }

    /// A visitor that passes no heavy fence, beside an owner that passes no light one: only one of
    /// them has access, whatever the owner says it expects. Requests may be missed here.
    fn exclude(calls: &'static [bool]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model::new(Barriers::None));
            let visitor = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    if model.gate.visit() == Visit::Granted {
                        model.touch();
                        let _ = model.gate.end_visit();
                    }
                })
            };
            let user = LockCounters::new(ManualClock::new(1));
            for expects in calls {
                model.gate.enter(&user);
                model.touch();
                let _ = model.gate.leave(*expects);
            }
            visitor.join().unwrap();
        });
    }

    #[test]
    fn loom_gate_mark() {
        exclude(&[true, false, true]);
        exclude(&[false, true, false]);
        exclude(&[true, true, false]);
    }
}
