//! Models of [`drystone_core::turn`] as a scheduler uses it: with tags that may be short.

use crate::tags::TagSet;
use drystone_core::clock::ManualClock;
use drystone_core::primitive::{AtomicBool, AtomicUsize, Ordering::*};
use drystone_core::sync::{LockClass, LockCounters};
use drystone_core::turn::{InsertAt, TurnLock};
use drystone_core::{Bio, BioList, PortId};
use std::sync::Arc;

/// Bios that were brought, and how many of them were seen; tags, where they matter.
struct Model {
    turn: TurnLock<usize>,
    seen: AtomicUsize,
    /// Bios that wait for a tag.
    kept: AtomicUsize,
    tags: TagSet,
}

impl Model {
    fn new() -> Arc<Self> {
        let model = Model {
            turn: TurnLock::new(LockClass::Scheduler, 0),
            seen: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            tags: TagSet::new(1),
        };
        // The lock must have been used before threads meet at it.
        let locks = LockCounters::new(ManualClock::new(1));
        let turn = model.turn.enter(&locks, PortId(0), &mut BioList::new(), InsertAt::Tail);
        assert!(!model.turn.leave(turn.expect("it is free")));
        Arc::new(model)
    }

    /// As a scheduler's `run`, until there is no reason to come again.
    fn run(&self, bios: usize, needs_tags: bool) {
        let locks = LockCounters::new(ManualClock::new(1));
        let mut list = BioList::new();
        (0..bios).for_each(|_| list.push(Bio::flush()));
        loop {
            let turn = self.turn.enter(&locks, PortId(1), &mut list, InsertAt::Tail);
            let Some(mut turn) = turn else { return };
            *turn += list.take().len();
            *turn += self.turn.take().iter().map(|(list, _)| list.len()).sum::<usize>();
            let mut no_tag = false;
            while *turn > 0 && !no_tag {
                no_tag = needs_tags && self.tags.take(0, 1).mask == 0;
                if !no_tag {
                    *turn -= 1;
                    self.seen.fetch_add(1, Relaxed);
                }
            }
            let kept = *turn;
            self.kept.store(kept, Relaxed);
            let again = self.turn.leave(turn);
            if !again && !(kept > 0 && self.tags.any_free()) {
                return;
            }
        }
    }

    /// Give the tag back; the bio that waits for it is served.
    fn free(&self) {
        let _ = self.tags.free(self.tags.batch_of(0));
        if self.kept.load(Relaxed) > 0 || self.turn.has_published() {
            self.run(0, true);
        }
    }
}

/// A device whose scheduler is switched on or off while bios come and a tag goes round.
struct Switched {
    model: Arc<Model>,
    scheduled: AtomicBool,
}

impl Switched {
    /// As a channel does: past the scheduler only if it is off and has no work.
    fn submit(&self) {
        let model = &self.model;
        let has_work = model.kept.load(Relaxed) > 0 || model.turn.has_published();
        if self.scheduled.load(Acquire) || has_work {
            return model.run(1, true);
        }
        let tag = model.tags.take(0, 1);
        if tag.mask == 0 {
            // Without a scheduler a channel waits at the tags; here it comes back to them.
            return model.run(1, true);
        }
        model.seen.fetch_add(1, Relaxed);
        let _ = model.tags.free(tag);
        if model.kept.load(Relaxed) > 0 || model.turn.has_published() {
            model.run(0, true);
        }
    }
}

fn switch(on: bool) {
    check(2, move || {
        let model = Model::new();
        let switched = Arc::new(Switched { model, scheduled: AtomicBool::new(!on) });
        assert!(switched.model.tags.take(0, 1).mask != 0);
        let bringer = {
            let switched = switched.clone();
            loom::thread::spawn(move || switched.submit())
        };
        switched.scheduled.store(on, Release);
        switched.model.free();
        switched.submit();
        bringer.join().unwrap();
        // A unit that got the tag gives it back.
        while switched.model.kept.load(Relaxed) > 0 && switched.model.tags.in_use() > 0 {
            switched.model.free();
        }
        assert_eq!(switched.model.seen.load(Relaxed), 2, "a bio is left with the scheduler");
    });
}

/// The scheduler is switched off: what it has goes on.
#[test]
fn loom_turn_switched_off() {
    switch(false);
}

/// The scheduler is switched on while bios pass it by.
#[test]
fn loom_turn_switched_on() {
    switch(true);
}

fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// The only tag comes back while a bio that needs it is brought.
#[test]
fn loom_turn_tag_comes_back() {
    check(3, || {
        let model = Model::new();
        assert!(model.tags.take(0, 1).mask != 0);
        let other = {
            let model = model.clone();
            loom::thread::spawn(move || model.free())
        };
        model.run(1, true);
        other.join().unwrap();
        assert_eq!(model.seen.load(Relaxed), 1, "a bio waits while the tag is free");
    });
}
