//! A passage that many go through at hardly any cost, and that one at a time can close: a lock for
//! readers and writers, whose readers touch nothing shared while no writer is about.
//!
//! ```text
//!  goer     in_flight += 1 --light fence--> closed?  no: go   yes: in_flight -= 1, stay
//!  closer   closed = true  --heavy fence--> every in_flight 0? yes: work alone   no: wait
//! ```
//!
//! Invariants:
//! * Each user has a number, and a count of its goers in flight that it alone writes; so a goer
//!   writes no cache line of others. The fences make one of both see the other.
//! * One user is the closer; others who want to be are in line. While there is a closer the passage is
//!   closed, and the closer works only when nobody is in flight.
//! * Whoever stayed before the closed passage goes before the next closer works: neither goers nor closers
//!   wait for ever.
//! * Nothing here waits or wakes: who is to look again is told to the caller ([`Wake`]).

use crate::mistake;
use crate::primitive::{AtomicBool, AtomicU32, Barriers, Ordering::*};
use crate::sync::{Lock, LockClass, LockCounters};
use std::collections::VecDeque;

/// Numbers of users who are to look again at what they wait for.
pub type Wake = Vec<usize>;

/// A count in a cache line of its own (two, since processors fetch them in pairs).
#[repr(align(128))]
struct Slot(AtomicU32);

/// What is behind the lock, which is taken only while somebody closes.
struct Turns {
    closer: Option<usize>,
    line: VecDeque<usize>,
    /// Users who stayed before the closed passage.
    stayed: Vec<bool>,
    /// Users who stayed, and go before the next closer works.
    granted: Vec<bool>,
}

/// A passage for a fixed number of users. See the file's page.
pub struct Passage {
    closed: AtomicBool,
    slots: Box<[Slot]>,
    turns: Lock<Turns>,
    barriers: Barriers,
}

impl Passage {
    /// An open passage for the users `0..users`.
    pub fn new(users: usize) -> Self {
        Passage {
            closed: AtomicBool::new(false),
            slots: (0..users).map(|_| Slot(AtomicU32::new(0))).collect(),
            turns: Lock::new(
                LockClass::Control,
                Turns {
                    closer: None,
                    line: VecDeque::with_capacity(users),
                    stayed: vec![false; users],
                    granted: vec![false; users],
                },
            ),
            barriers: Barriers::detect(),
        }
    }

    /// User `me`, on its thread, lets one go. False: it must stay, and is told to look again with
    /// [`Passage::go_on`].
    #[inline]
    pub fn enter(&self, me: usize, wake: &mut Wake, user: &LockCounters) -> bool {
        self.add(me, 1);
        if !mistake!("passage_enter_fence") {
            self.barriers.light();
        }
        // Acquire: what the last closer did comes before what goes now.
        if !self.closed.load(Acquire) {
            return true;
        }
        self.stay(me, wake, user)
    }

    #[cold]
    fn stay(&self, me: usize, wake: &mut Wake, user: &LockCounters) -> bool {
        let mut turns = self.turns.lock(user);
        if turns.closer.is_none() {
            return true;
        }
        turns.stayed[me] = true;
        self.remove(me);
        self.tell_closer(&turns, wake);
        false
    }

    /// One that went has ended.
    #[inline]
    pub fn leave(&self, me: usize, wake: &mut Wake, user: &LockCounters) {
        self.remove(me);
        if !mistake!("passage_leave_fence") {
            self.barriers.light();
        }
        if self.closed.load(Relaxed) {
            self.tell_closer(&self.turns.lock(user), wake);
        }
    }

    #[inline]
    fn add(&self, me: usize, count: u32) {
        let slot = &self.slots[me].0;
        slot.store(slot.load(Relaxed) + count, Relaxed);
    }

    /// Release: the closer, who acquires the count, comes after what has ended.
    #[inline]
    fn remove(&self, me: usize) {
        let slot = &self.slots[me].0;
        slot.store(slot.load(Relaxed) - 1, Release);
    }

    fn tell_closer(&self, turns: &Turns, wake: &mut Wake) {
        if let Some(closer) = turns.closer
            && self.is_clear(turns)
        {
            wake.push(closer);
        }
    }

    fn is_clear(&self, turns: &Turns) -> bool {
        let granted = turns.granted.contains(&true);
        !granted && self.slots.iter().all(|slot| slot.0.load(Acquire) == 0)
    }

    /// User `me` looks again whether the `count` that stayed go now; if so, all of them do.
    pub fn go_on(&self, me: usize, count: u32, user: &LockCounters) -> bool {
        let mut turns = self.turns.lock(user);
        let goes = std::mem::take(&mut turns.granted[me]) || turns.closer.is_none();
        if goes {
            turns.stayed[me] = false;
            self.add(me, count);
        }
        goes
    }

    /// User `me` wants to work alone, once: it gets into line.
    pub fn ask(&self, me: usize, user: &LockCounters) {
        let mut turns = self.turns.lock(user);
        match turns.closer {
            Some(_) => turns.line.push_back(me),
            None => {
                turns.closer = Some(me);
                self.closed.store(true, Relaxed);
                if !mistake!("passage_close_fence") {
                    self.barriers.heavy();
                }
            }
        }
    }

    /// Whether user `me`, who asked, is alone now. If not it is told to look again.
    pub fn is_alone(&self, me: usize, user: &LockCounters) -> bool {
        let turns = self.turns.lock(user);
        turns.closer == Some(me) && self.is_clear(&turns)
    }

    /// The closer is done. Who stayed goes, then the next in line is alone.
    pub fn end(&self, wake: &mut Wake, user: &LockCounters) {
        let mut turns = self.turns.lock(user);
        self.next(&mut turns, wake);
    }

    fn next(&self, turns: &mut Turns, wake: &mut Wake) {
        for number in 0..turns.stayed.len() {
            if std::mem::take(&mut turns.stayed[number]) {
                turns.granted[number] = true;
                wake.push(number);
            }
        }
        turns.closer = turns.line.pop_front();
        match turns.closer {
            Some(closer) => wake.push(closer),
            // Release: whoever finds it open comes after what the closer did.
            None => self.closed.store(false, Release),
        }
    }

    /// User `me` is over: nothing of it stays, is in line or closes. What it has in flight still leaves.
    pub fn abandon(&self, me: usize, wake: &mut Wake, user: &LockCounters) {
        let mut turns = self.turns.lock(user);
        (turns.stayed[me], turns.granted[me]) = (false, false);
        turns.line.retain(|number| *number != me);
        match turns.closer == Some(me) {
            true => self.next(&mut turns, wake),
            false => self.tell_closer(&turns, wake),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn user() -> std::sync::Arc<LockCounters> {
        LockCounters::new(ManualClock::new(1))
    }

    #[test]
    fn goers_take_no_lock_while_nobody_closes() {
        let (passage, user, mut wake) = (Passage::new(2), user(), Wake::new());
        for _ in 0..3 {
            assert!(passage.enter(0, &mut wake, &user) && passage.enter(1, &mut wake, &user));
            passage.leave(0, &mut wake, &user);
            passage.leave(1, &mut wake, &user);
        }
        assert!(wake.is_empty());
        assert_eq!(user.total().acquisitions, 0);
    }

    #[test]
    fn a_closer_waits_for_those_who_go_and_keeps_later_ones_waiting() {
        let (passage, user, mut wake) = (Passage::new(3), user(), Wake::new());
        assert!(passage.enter(0, &mut wake, &user));
        passage.ask(1, &user);
        assert!(!passage.is_alone(1, &user));
        assert!(!passage.enter(2, &mut wake, &user));
        assert!(wake.is_empty());
        passage.leave(0, &mut wake, &user);
        assert_eq!(std::mem::take(&mut wake), [1]);
        assert!(passage.is_alone(1, &user) && !passage.go_on(2, 1, &user));
        passage.end(&mut wake, &user);
        assert_eq!(std::mem::take(&mut wake), [2]);
        assert!(passage.go_on(2, 1, &user));
        passage.leave(2, &mut wake, &user);
        assert!(wake.is_empty());
    }

    #[test]
    fn who_stayed_goes_before_the_next_closer() {
        let (passage, user, mut wake) = (Passage::new(3), user(), Wake::new());
        passage.ask(0, &user);
        passage.ask(1, &user);
        assert!(passage.is_alone(0, &user) && !passage.is_alone(1, &user));
        assert!(!passage.enter(2, &mut wake, &user));
        wake.clear();
        passage.end(&mut wake, &user);
        assert_eq!(std::mem::take(&mut wake), [2, 1]);
        assert!(!passage.is_alone(1, &user), "one was let go");
        assert!(passage.go_on(2, 2, &user));
        passage.leave(2, &mut wake, &user);
        passage.leave(2, &mut wake, &user);
        assert_eq!(wake, [1]);
        assert!(passage.is_alone(1, &user));
    }

    #[test]
    fn whoever_is_over_keeps_nobody() {
        let (passage, user, mut wake) = (Passage::new(3), user(), Wake::new());
        passage.ask(0, &user);
        passage.ask(1, &user);
        assert!(!passage.enter(2, &mut wake, &user));
        passage.abandon(1, &mut wake, &user);
        wake.clear();
        passage.abandon(0, &mut wake, &user);
        assert_eq!(wake, [2]);
        assert!(passage.go_on(2, 1, &user) && passage.enter(1, &mut wake, &user));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::primitive::Arc;
    use loom::cell::UnsafeCell;

    /// What goers read and the closer changes.
    struct Model {
        passage: Passage,
        data: UnsafeCell<u32>,
        /// The closer was told to look again.
        told: AtomicBool,
    }

    // SAFETY: the checker watches over every access to the data.
    unsafe impl Sync for Model {}
    // SAFETY: as above.
    unsafe impl Send for Model {}

    const CLOSER: usize = 0;

    fn user() -> std::sync::Arc<LockCounters> {
        LockCounters::new(ManualClock::new(1))
    }

    impl Model {
        fn new(users: usize) -> Arc<Self> {
            let model = Model {
                passage: Passage::new(users),
                data: UnsafeCell::new(0),
                told: AtomicBool::new(false),
            };
            // The lock must have been used before threads meet at it.
            model.passage.abandon(CLOSER, &mut Wake::new(), &user());
            Arc::new(model)
        }

        fn tell(&self, wake: Wake) {
            if wake.contains(&CLOSER) {
                self.told.store(true, Release);
            }
        }

        /// True if it went, and has ended.
        fn go(&self, me: usize) -> bool {
            let (user, mut wake) = (user(), Wake::new());
            let went = self.passage.enter(me, &mut wake, &user);
            if went {
                self.pass(me, &mut wake, &user);
            }
            self.tell(wake);
            went
        }

        fn pass(&self, me: usize, wake: &mut Wake, user: &LockCounters) {
            // SAFETY: the checker fails if the closer is at it.
            self.data.with(|data| unsafe { *data });
            self.passage.leave(me, wake, user);
        }

        /// True if the closer was alone, and has ended.
        fn work(&self, wake: &mut Wake) -> bool {
            let alone = self.passage.is_alone(CLOSER, &user());
            if alone {
                // SAFETY: the checker fails if anybody else is at it.
                self.data.with_mut(|data| unsafe { *data += 1 });
                self.passage.end(wake, &user());
            }
            alone
        }
    }

    fn check(goers: usize, rounds: usize, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            let model = Model::new(goers + 1);
            let go = |me| {
                let model = model.clone();
                loom::thread::spawn(move || (0..rounds).filter(|_| !model.go(me)).count() as u32)
            };
            let threads: Vec<_> = (1..=goers).map(go).collect();
            model.passage.ask(CLOSER, &user());
            let mut wake = Wake::new();
            let mut done = model.work(&mut wake);
            let stayed: Vec<u32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            if !done {
                assert!(model.told.load(Acquire), "nobody tells the closer");
                done = model.work(&mut wake);
            }
            assert!(done, "the closer is alone in the end");
            for (me, count) in (1..).zip(stayed) {
                assert!(count == 0 || model.passage.go_on(me, count, &user()));
                (0..count).for_each(|_| model.pass(me, &mut wake, &user()));
            }
            assert!(model.go(1), "it is open in the end");
        });
    }

    /// The closer and a goer are never at work together, and the last goer tells the closer.
    #[test]
    fn loom_passage_one_goer() {
        check(1, 2, 4);
    }

    #[test]
    fn loom_passage_two_goers() {
        check(2, 1, 2);
    }
}
