//! The turn: a combining lock (Hendler, Incze, Shavit, Tzafrir, "Flat combining and the
//! synchronization-parallelism tradeoff", SPAA 2010). Threads publish their work and try the lock;
//! the holder, the paper's combiner, does the work of all. Unlike the paper's, a publisher does not
//! wait for its work to be done.
//!
//! Invariants:
//! * The data path only ever tries the lock. A publisher that finds it taken has published its
//!   bios. The control plane waits for the lock to close a channel, and leaves it as all do.
//! * Published bios are seen: by the holder, by a holder that leaves and rechecks, or by their
//!   publisher, which tries the lock once more. So is a request that the holder recheck something
//!   that changed elsewhere ([`TurnLock::enter_to_recheck`]).
//!
//! Memory order: the publisher publishes, passes a full fence and reads whether the lock is free;
//! the holder frees the lock, passes a full fence and reads the published list (Dekker), so at
//! least one sees the other. The same fences serve a thread that brings something in another way (a
//! tag that it freed before a fence of its own) and then tries the lock.

use crate::list::BioList;
use crate::mistake;
use crate::primitive::{AtomicBool, AtomicU32, Ordering::*, fence};
use crate::shared_list::SharedBioList;
use crate::sync::{Guard, Lock, LockClass, LockCounters};
use crate::units::PortId;

/// The end at which published bios are inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertAt {
    /// Behind those that were published before, or where their class, sector and deadline put them.
    Tail,
    /// Before everything else (Linux `BLK_MQ_INSERT_AT_HEAD`).
    Head,
}

/// See the module's text. On cache lines of its own.
#[repr(align(128))]
pub struct TurnLock<T> {
    published: SharedBioList,
    /// The same for what goes before everything.
    published_at_head: SharedBioList,
    /// The port of the last channel to publish, or to want a recheck.
    publisher: AtomicU32,
    /// A thread wanted a recheck, and did not get the turn.
    wanted: AtomicBool,
    /// A thread has the turn: a hint that spares a try.
    busy: AtomicBool,
    class: LockClass,
    lock: Lock<T>,
}

impl<T> TurnLock<T> {
    /// A turn at `value`, whose lock is counted as one of `class`.
    pub fn new(class: LockClass, value: T) -> Self {
        TurnLock {
            published: SharedBioList::new(),
            published_at_head: SharedBioList::new(),
            publisher: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            class,
            lock: Lock::new(class, value),
        }
    }

    /// Get the turn. Without it, `bios` of port `publisher` are published, and will be seen.
    #[inline]
    pub fn enter(
        &self,
        locks: &LockCounters,
        publisher: PortId,
        bios: &mut BioList,
        at: InsertAt,
    ) -> Option<Guard<'_, T>> {
        if !self.busy.load(Relaxed)
            && let Some(turn) = self.lock.try_lock(locks)
        {
            self.busy.store(true, Relaxed);
            return Some(turn);
        }
        self.publisher.store(publisher.0, Relaxed);
        self.publish(locks, bios, at);
        let turn = self.lock.try_lock(locks)?;
        self.busy.store(true, Relaxed);
        Some(turn)
    }

    /// Get the turn with nothing but news that lie elsewhere. Without it, the holder takes
    /// ([`TurnLock::take`]) once more, and sees after that what the caller saw before this call.
    pub fn enter_to_recheck(
        &self,
        locks: &LockCounters,
        publisher: PortId,
    ) -> Option<Guard<'_, T>> {
        if !self.busy.load(Relaxed)
            && let Some(turn) = self.lock.try_lock(locks)
        {
            self.busy.store(true, Relaxed);
            return Some(turn);
        }
        self.publisher.store(publisher.0, Relaxed);
        if crate::mutated!("turn_want_order") {
            self.wanted.store(true, Release);
        } else if !crate::mutated!("turn_want") {
            // A thread that wanted it before may get no recheck but ours, which must see all that
            // the thread saw.
            self.wanted.swap(true, AcqRel);
        }
        fence(SeqCst);
        let turn = self.lock.try_lock(locks)?;
        self.busy.store(true, Relaxed);
        Some(turn)
    }

    /// Publish `bios` without trying the turn, for a caller that must not work: the next holder
    /// sees them, and the caller has somebody try the turn.
    pub fn leave_to_others(&self, locks: &LockCounters, bios: &mut BioList, at: InsertAt) {
        self.publish(locks, bios, at);
    }

    fn publish(&self, locks: &LockCounters, bios: &mut BioList, at: InsertAt) {
        let list = match at {
            InsertAt::Tail => &self.published,
            InsertAt::Head => &self.published_at_head,
        };
        list.add_counted(bios, locks, self.class);
        if !crate::mutated!("turn_publish_fence") {
            fence(SeqCst);
        }
    }

    /// Take the published bios, first published first: for the head, and for the tail. With the
    /// turn. Look only afterwards at what may have changed elsewhere.
    pub fn take(&self) -> [(BioList, InsertAt); 2] {
        if self.wanted.load(Relaxed) {
            self.wanted.swap(false, Acquire);
        }
        [(self.published_at_head.take(), InsertAt::Head), (self.published.take(), InsertAt::Tail)]
    }

    /// Leave the turn. True if something was published meanwhile: then try it again. After this
    /// call the caller may also check whether anything else that was missing has come.
    #[inline]
    #[must_use]
    pub fn leave(&self, turn: Guard<'_, T>) -> bool {
        self.busy.store(false, Relaxed);
        drop(turn);
        if !crate::mutated!("turn_leave_fence") {
            fence(SeqCst);
        }
        self.has_published() && !(mistake!("turn_recheck"))
    }

    /// True while something is published, or a recheck is wanted.
    #[inline]
    pub fn has_published(&self) -> bool {
        !self.published.is_empty()
            || !self.published_at_head.is_empty()
            || self.wanted.load(Relaxed)
    }

    /// True while somebody has the turn, as far as can be seen.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// The port of the last channel to publish, or to want a recheck; number 0 before any did.
    pub fn publisher(&self) -> PortId {
        PortId(self.publisher.load(Relaxed))
    }

    /// Wait for the turn, for the control plane. [`TurnLock::leave`] ends it like any other.
    pub fn wait(&self, locks: &LockCounters) -> Guard<'_, T> {
        let turn = self.lock.lock(locks);
        self.busy.store(true, Relaxed);
        turn
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::bio::Bio;
    use crate::clock::ManualClock;
    use crate::primitive::{Arc, AtomicUsize};

    /// Bios that were brought, and how many of them were seen.
    struct Model {
        turn: TurnLock<()>,
        seen: AtomicUsize,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let turn = TurnLock::new(LockClass::Other, ());
            // The lock must have been used before threads meet at it.
            let locks = LockCounters::new(ManualClock::new(1));
            let first = turn.enter(&locks, PortId(0), &mut BioList::new(), InsertAt::Tail);
            assert!(!turn.leave(first.expect("it is free")));
            Arc::new(Model { turn, seen: AtomicUsize::new(0) })
        }

        /// Copy `news[0]` to `news[1]`, which is done with the turn only.
        fn look(&self, news: &[AtomicUsize; 2]) {
            let locks = LockCounters::new(ManualClock::new(1));
            while let Some(turn) = self.turn.enter_to_recheck(&locks, PortId(1)) {
                let published = self.turn.take().iter().map(|(list, _)| list.len()).sum::<usize>();
                self.seen.fetch_add(published, Relaxed);
                news[1].store(news[0].load(Relaxed), Relaxed);
                if !self.turn.leave(turn) {
                    return;
                }
            }
        }

        fn bring(&self, bios: usize) {
            let locks = LockCounters::new(ManualClock::new(1));
            let mut list = BioList::new();
            (0..bios).for_each(|_| list.push(Bio::flush()));
            while let Some(turn) = self.turn.enter(&locks, PortId(1), &mut list, InsertAt::Tail) {
                let published = self.turn.take().iter().map(|(list, _)| list.len()).sum::<usize>();
                self.seen.fetch_add(published + list.take().len(), Relaxed);
                if !self.turn.leave(turn) {
                    return;
                }
            }
        }
    }

    fn bring(preemptions: usize, others: &'static [usize]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            let model = Model::new();
            let bring = |bios: &usize| {
                let (model, bios) = (model.clone(), *bios);
                loom::thread::spawn(move || model.bring(bios))
            };
            let threads: Vec<_> = others.iter().map(bring).collect();
            model.bring(2);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let all = 2 + others.iter().sum::<usize>();
            assert_eq!(model.seen.load(Relaxed), all, "a bio is stranded");
        });
    }

    /// A change elsewhere is seen, though another thread has the turn when its writer comes.
    #[test]
    fn loom_turn_a_recheck_is_not_lost() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(1);
        builder.check(|| {
            let model = Model::new();
            let news = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let other = {
                let (model, news) = (model.clone(), news.clone());
                loom::thread::spawn(move || {
                    news[0].store(1, Relaxed);
                    model.look(&news);
                })
            };
            model.look(&news);
            other.join().unwrap();
            assert_eq!(news[1].load(Relaxed), 1, "nobody looked");
        });
    }

    /// Changes come one after the other, while a thread rechecks because of the first: the last are
    /// seen.
    #[test]
    fn loom_turn_of_two_rechecks() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Model::new();
            let news = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let other = {
                let (model, news) = (model.clone(), news.clone());
                loom::thread::spawn(move || {
                    for last in [1, 2] {
                        news[0].store(last, Relaxed);
                        model.look(&news);
                    }
                })
            };
            model.look(&news);
            other.join().unwrap();
            assert_eq!(news[1].load(Relaxed), 2, "nobody looked");
        });
    }

    /// Two bring bios at the same time: all are taken, by one or the other.
    #[test]
    fn loom_turn_two_bring() {
        bring(3, &[1]);
    }

    /// Three bring bios: those that meet a holder on its way out are taken too.
    #[test]
    fn loom_turn_three_bring() {
        bring(1, &[1, 1]);
    }
}
