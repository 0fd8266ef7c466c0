//! The hardware queue whose tags the units of a channel get, as any context finds it: none while
//! the channel moves from one queue to another.
//!
//! Invariants:
//! * The channel's context alone writes it.
//! * A dispatcher that finds the channel moving keeps its unit, lets go of the turn, passes a full
//!   fence and reads again. A channel that arrives passes a full fence and reads whether units are
//!   kept, for which it tries the turn. So one of the two lets the unit go (Dekker's algorithm).

use crate::queues::HctxId;
use drystone_core::mistake;
use drystone_core::primitive::{AtomicU64, Ordering::*, fence};

/// See the module's text.
pub(crate) struct CurrentHctx(AtomicU64);

/// No hardware queue.
const MOVING: u64 = u64::MAX;

fn pack(hctx: HctxId, hint: u32) -> u64 {
    u64::from(hctx.0) << 32 | u64::from(hint)
}

impl CurrentHctx {
    /// Hardware queue `hctx`, whose word `hint` of tags is tried first.
    pub(crate) fn new(hctx: HctxId, hint: u32) -> Self {
        CurrentHctx(AtomicU64::new(pack(hctx, hint)))
    }

    /// Take no tags for the channel from now on. A dispatcher that read the queue before may grant
    /// it one more.
    pub(crate) fn leave(&self) {
        self.0.store(MOVING, Relaxed);
    }

    /// The channel is at queue `hctx`. It must then look for units that are kept.
    pub(crate) fn arrive(&self, hctx: HctxId, hint: u32) {
        self.0.store(pack(hctx, hint), Release);
        if !drystone_core::mutated!("hctx_fence") {
            fence(SeqCst);
        }
    }

    /// The queue and the hint. `None` while the channel moves.
    pub(crate) fn get(&self) -> Option<(HctxId, u32)> {
        let at = self.0.load(Acquire);
        (at != MOVING).then_some((HctxId((at >> 32) as u32), at as u32))
    }

    /// True if the channel has arrived; for a dispatcher that kept a unit of it, after the turn.
    pub(crate) fn has_arrived(&self) -> bool {
        !(mistake!("hctx_recheck")) && self.get().is_some()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::scheduler::InsertAt;
    use drystone_core::clock::ManualClock;
    use drystone_core::primitive::AtomicUsize;
    use drystone_core::sync::{LockClass, LockCounters};
    use drystone_core::turn::TurnLock;
    use drystone_core::{Bio, BioList, PortId};
    use std::sync::Arc;

    /// A channel whose unit is brought while it moves.
    struct Model {
        turn: TurnLock<usize>,
        kept: AtomicUsize,
        current_hctx: CurrentHctx,
        granted: AtomicUsize,
    }

    impl Model {
        /// As a scheduler's `run`, until there is no reason to come again.
        fn run(&self, bios: usize) {
            let locks = LockCounters::new(ManualClock::new(1));
            let mut list = BioList::new();
            (0..bios).for_each(|_| list.push(Bio::flush()));
            loop {
                let turn = self.turn.enter(&locks, PortId(1), &mut list, InsertAt::Tail);
                let Some(mut turn) = turn else { return };
                *turn += list.take().len();
                *turn += self.turn.take().iter().map(|(list, _)| list.len()).sum::<usize>();
                let moves = self.current_hctx.get().is_none();
                if !moves {
                    self.granted.fetch_add(std::mem::take(&mut *turn), Relaxed);
                }
                let kept = *turn;
                self.kept.store(kept, Relaxed);
                let again = self.turn.leave(turn);
                if !again && !(kept > 0 && moves && self.current_hctx.has_arrived()) {
                    return;
                }
            }
        }

        /// The channel arrives; it goes to the scheduler only if that has work.
        fn arrive(&self) {
            self.current_hctx.arrive(HctxId(1), 0);
            if self.kept.load(Relaxed) > 0 || self.turn.has_published() {
                self.run(0);
            }
        }
    }

    /// A unit is brought by another context, or published to one that has the turn, while its
    /// channel arrives: it is let go.
    #[test]
    fn loom_hctx_arrives() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Model {
                turn: TurnLock::new(LockClass::Scheduler, 0),
                kept: AtomicUsize::new(0),
                current_hctx: CurrentHctx::new(HctxId(0), 0),
                granted: AtomicUsize::new(0),
            };
            model.current_hctx.leave();
            // The lock must have been used before threads meet at it.
            let locks = LockCounters::new(ManualClock::new(1));
            let turn = model.turn.enter(&locks, PortId(0), &mut BioList::new(), InsertAt::Tail);
            assert!(!model.turn.leave(turn.expect("it is free")));
            let model = Arc::new(model);
            let bringer = {
                let model = model.clone();
                loom::thread::spawn(move || model.run(1))
            };
            model.arrive();
            bringer.join().unwrap();
            assert_eq!(model.granted.load(Relaxed), 1, "a unit is left with the scheduler");
        });
    }
}
