//! The turn at something that many may bring work to, and one at a time does it: for all.
//!
//! Invariants:
//! * On the data path the lock is only ever tried. Whoever finds it taken has published what it
//!   brought. Whoever closes a channel waits for it, and leaves it as all do.
//! * What is published is seen: by whoever has the turn, by whoever leaves it and looks again, or
//!   by its bringer, which tries the turn once more.
//!
//! Memory order: the bringer publishes, passes a full fence and looks whether the lock is free;
//! the holder frees the lock, passes a full fence and looks what is published (Dekker), so at
//! least one sees the other. The same fences serve whoever brings something in another way (a tag
//! that it freed before a fence of its own) and then tries the turn.

use super::Place;
use drystone_core::mistake;
use drystone_core::primitive::{AtomicBool, AtomicU32, Ordering::*, fence};
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_core::{BioList, SharedBioList};

/// See the module's text. On cache lines of its own.
#[repr(align(128))]
pub(super) struct TurnLock<T> {
    published: SharedBioList,
    /// The same for what goes before everything.
    published_at_head: SharedBioList,
    /// Who published last.
    publisher: AtomicU32,
    /// Somebody has the turn: a hint that spares a try.
    busy: AtomicBool,
    lock: Lock<T>,
}

impl<T: Default> Default for TurnLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> TurnLock<T> {
    pub(super) fn new(value: T) -> Self {
        TurnLock {
            published: SharedBioList::new(),
            published_at_head: SharedBioList::new(),
            publisher: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            lock: Lock::new(LockClass::Scheduler, value),
        }
    }

    /// Get the turn. Without it, `bios` of `who` are published, and will be seen.
    #[inline]
    pub(super) fn enter(
        &self,
        locks: &LockCounters,
        who: u32,
        bios: &mut BioList,
        place: Place,
    ) -> Option<Guard<'_, T>> {
        if !self.busy.load(Relaxed)
            && let Some(turn) = self.lock.try_lock(locks)
        {
            self.busy.store(true, Relaxed);
            return Some(turn);
        }
        self.publisher.store(who, Relaxed);
        self.publish(locks, bios, place);
        let turn = self.lock.try_lock(locks)?;
        self.busy.store(true, Relaxed);
        Some(turn)
    }

    fn publish(&self, locks: &LockCounters, bios: &mut BioList, place: Place) {
        let list = match place {
            Place::Tail => &self.published,
            Place::Head => &self.published_at_head,
        };
        list.add_counted(bios, locks, LockClass::Scheduler);
        if !cfg!(drystone_mutate = "turn_publish_fence") {
            fence(SeqCst);
        }
    }

    /// What was published, first published first: for the head, and for the tail. With the turn.
    pub(super) fn take(&self) -> [(BioList, Place); 2] {
        [(self.published_at_head.take(), Place::Head), (self.published.take(), Place::Tail)]
    }

    /// Leave the turn. True if something was published meanwhile: then try it again. After this
    /// call it may also be looked whether anything else that was missing has come.
    #[inline]
    #[must_use]
    pub(super) fn leave(&self, turn: Guard<'_, T>) -> bool {
        self.busy.store(false, Relaxed);
        drop(turn);
        if !cfg!(drystone_mutate = "turn_leave_fence") {
            fence(SeqCst);
        }
        self.has_published() && !(mistake!("turn_recheck"))
    }

    /// True while something is published.
    #[inline]
    pub(super) fn has_published(&self) -> bool {
        !self.published.is_empty() || !self.published_at_head.is_empty()
    }

    /// True while somebody has the turn, as far as can be seen.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// Who published last.
    pub(super) fn publisher(&self) -> u32 {
        self.publisher.load(Relaxed)
    }

    /// Wait for the turn, for the control plane. [`TurnLock::leave`] ends it like any other.
    pub(super) fn wait(&self, locks: &LockCounters) -> Guard<'_, T> {
        let turn = self.lock.lock(locks);
        self.busy.store(true, Relaxed);
        turn
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::tags::TagSet;
    use drystone_core::Bio;
    use drystone_core::clock::ManualClock;
    use drystone_core::primitive::AtomicUsize;
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
                turn: TurnLock::new(0),
                seen: AtomicUsize::new(0),
                kept: AtomicUsize::new(0),
                tags: TagSet::new(1),
            };
            // The lock must have been used before threads meet at it.
            let locks = LockCounters::new(ManualClock::new(1));
            let turn = model.turn.enter(&locks, 0, &mut BioList::new(), Place::Tail);
            assert!(!model.turn.leave(turn.expect("it is free")));
            Arc::new(model)
        }

        /// As a scheduler's `run`, until there is no reason to come again.
        fn run(&self, bios: usize, needs_tags: bool) {
            let locks = LockCounters::new(ManualClock::new(1));
            let mut list = BioList::new();
            (0..bios).for_each(|_| list.push(Bio::flush()));
            loop {
                let Some(mut turn) = self.turn.enter(&locks, 1, &mut list, Place::Tail) else {
                    return;
                };
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

        /// Give the tag back; whoever waits for it is served.
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
        elevated: AtomicBool,
    }

    impl Switched {
        /// As a channel does: past the scheduler only if it is off and has no work.
        fn submit(&self) {
            let model = &self.model;
            let has_work = model.kept.load(Relaxed) > 0 || model.turn.has_published();
            if self.elevated.load(Acquire) || has_work {
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
            let switched = Arc::new(Switched { model, elevated: AtomicBool::new(!on) });
            assert!(switched.model.tags.take(0, 1).mask != 0);
            let bringer = {
                let switched = switched.clone();
                loom::thread::spawn(move || switched.submit())
            };
            switched.elevated.store(on, Release);
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

    /// Two bring bios at the same time: all are taken, whoever does it.
    #[test]
    fn loom_turn_two_submitters() {
        check(3, || {
            let model = Model::new();
            let other = {
                let model = model.clone();
                loom::thread::spawn(move || model.run(1, false))
            };
            model.run(2, false);
            other.join().unwrap();
            assert_eq!(model.seen.load(Relaxed), 3, "a bio is stranded");
        });
    }

    /// Three bring bios: those that meet a holder on its way out are taken too.
    #[test]
    fn loom_turn_three_submitters() {
        check(1, || {
            let model = Model::new();
            let others = [(); 2].map(|()| {
                let model = model.clone();
                loom::thread::spawn(move || model.run(1, false))
            });
            model.run(1, false);
            others.into_iter().for_each(|o| o.join().unwrap());
            assert_eq!(model.seen.load(Relaxed), 3, "a bio is stranded");
        });
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
}
