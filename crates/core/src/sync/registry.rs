//! All users of locks that belong together (the contexts, control plane and devices of a stack),
//! so that their figures can be read as one, set to zero, and their holds be timed.
//!
//! Invariants:
//! * Every user counts in exactly one place of the sum: as a member, or, once nobody but the
//!   registry refers to its counters, in `gone`. So what a user counted does not vanish with it.
//! * Users that are gone are folded into `gone` whenever one comes: memory is bounded by the most
//!   users there ever were at once, not by how many there were.
//! * A reset of the members needs their lock.

use super::counters::Registry;
use super::{Lock, LockClass, LockCounters, LockStats};
use crate::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, fence};

struct Members {
    /// Holds are timed.
    timed: bool,
    /// The processor time of waits is sampled.
    sampled: bool,
    users: Vec<Arc<LockCounters>>,
    /// Counts of users that are gone, since the last reset.
    gone: LockStats,
}

/// The users of locks of one stack. Shared by all threads; every call may come from any of them,
/// and holds a lock for as long as it takes to read a few hundred words of each user.
pub struct LockRegistry {
    clock: Arc<dyn Clock>,
    /// Counts the registry's own lock; itself a member.
    own: Arc<LockCounters>,
    members: Lock<Members>,
}

impl LockRegistry {
    /// A registry without users, that times waits and holds with `clock`. Holds are not timed.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let own = LockCounters::made(clock.clone(), Some(this.clone() as _));
            let members = Members {
                timed: false,
                sampled: false,
                users: vec![own.clone()],
                gone: LockStats::default(),
            };
            LockRegistry { clock, own, members: Lock::new(LockClass::Control, members) }
        })
    }

    /// The clock of waits and holds.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Counters for a new user.
    pub fn counters(self: &Arc<Self>) -> Arc<LockCounters> {
        let user = LockCounters::made(self.clock.clone(), Some(Arc::downgrade(self) as _));
        let mut members = self.members.lock(&self.own);
        members.fold_gone();
        user.time_holds(members.timed);
        user.sample_wait_cpu(members.sampled);
        members.users.push(user.clone());
        user
    }

    /// The counts of all users since the registry was made or last reset.
    pub fn stats(&self) -> LockStats {
        self.read(false)
    }

    /// As [`LockRegistry::stats`], and from now on figures start from zero. No writer waits, and
    /// nothing is lost: each update is in the figures that this returns or in later ones, but a
    /// time that ends while this goes on may miss in the shortest and longest of both.
    pub fn reset(&self) -> LockStats {
        self.read(true)
    }

    /// Time holds from now on, or no longer. Without it taking a lock reads no clock.
    pub fn time_holds(&self, on: bool) {
        let mut members = self.members.lock(&self.own);
        members.timed = on;
        members.users.iter().for_each(|user| user.time_holds(on));
    }

    /// Sample the processor time of waits from now on ([`super::ClassStats::wait_cpu_ns`]), or no
    /// longer.
    pub fn sample_wait_cpu(&self, on: bool) {
        let mut members = self.members.lock(&self.own);
        members.sampled = on;
        members.users.iter().for_each(|user| user.sample_wait_cpu(on));
    }

    /// True while holds are timed.
    pub fn times_holds(&self) -> bool {
        self.members.lock(&self.own).timed
    }

    fn read(&self, reset: bool) -> LockStats {
        let mut members = self.members.lock(&self.own);
        members.fold_gone();
        let mut sum = if reset { std::mem::take(&mut members.gone) } else { members.gone.clone() };
        for user in &members.users {
            sum += user.read(reset);
        }
        sum
    }
}

impl Registry for LockRegistry {
    fn add_user(self: Arc<Self>) -> Arc<LockCounters> {
        self.counters()
    }
}

impl Members {
    fn fold_gone(&mut self) {
        for user in self.users.extract_if(.., |user| Arc::strong_count(user) == 1) {
            // Pairs with the release of the last user's reference: its last counts are seen.
            fence(Acquire);
            self.gone += user.stats();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::sync::{ClassStats, LockTimes};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    const CLASS: LockClass = LockClass::Other;

    fn wait(clock: &ManualClock, user: &LockCounters, ns: u64) {
        user.waited(CLASS, || clock.advance(ns));
        user.acquired(CLASS);
    }

    fn waited(all: &[u64]) -> ClassStats {
        let waits = LockTimes {
            count: all.len() as u64,
            total_ns: all.iter().sum(),
            min_ns: all.iter().min().copied(),
            max_ns: all.iter().max().copied(),
        };
        let count = waits.count;
        ClassStats { contentions: count, waits, acquisitions: count, ..Default::default() }
    }

    #[test]
    fn those_who_are_gone_count_on_and_take_no_room() {
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        let stays = registry.counters();
        wait(&clock, &stays, 9);
        (0..1000).for_each(|_| drop(registry.counters()));
        wait(&clock, &stays.sibling(), 4);
        let gone = registry.counters();
        wait(&clock, &gone, 20);
        drop(gone);
        assert_eq!(*registry.stats().get(CLASS), waited(&[9, 4, 20]));
        assert_eq!(registry.members.lock(&registry.own).users.len(), 2, "`own` and `stays`");
        assert_eq!(stays.total().contentions, 1);
    }

    #[test]
    fn a_reset_starts_all_figures_from_zero() {
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        let (user, gone) = (registry.counters(), registry.counters());
        wait(&clock, &user, 5);
        wait(&clock, &gone, 50);
        drop(gone);
        assert_eq!(*registry.reset().get(CLASS), waited(&[5, 50]));
        assert_eq!(*registry.stats().get(CLASS), ClassStats::default());
        assert_eq!(registry.stats().used().count(), 1, "the registry's own lock");
        wait(&clock, &user, 30);
        assert_eq!(*user.stats().get(CLASS), waited(&[30]));
        assert_eq!(user.get(CLASS).wait_ns, 35, "a context's own counts go on");
        drop(user);
        assert_eq!(*registry.stats().get(CLASS), waited(&[30]));
        assert_eq!(*registry.reset().get(CLASS), waited(&[30]));
        assert_eq!(*registry.reset().get(CLASS), ClassStats::default());
    }

    /// A waiting thread that has its processor all the time.
    struct Busy;

    impl Clock for Busy {
        fn now(&self) -> u64 {
            0
        }
        fn cycles(&self) -> Option<u64> {
            None
        }
        fn cycles_in(&self, _: u64) -> u64 {
            0
        }
        fn thread_cpu(&self) -> u64 {
            SPENT.fetch_add(5, Relaxed)
        }
    }

    static SPENT: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn the_processor_time_of_waits_is_sampled_when_asked_for() {
        let registry = LockRegistry::new(Arc::new(Busy));
        let early = registry.counters();
        early.waited(CLASS, || ());
        assert_eq!(registry.stats().get(CLASS).wait_cpu_ns, 0);
        registry.sample_wait_cpu(true);
        let late = registry.counters();
        (0..64).for_each(|_| late.waited(CLASS, || ()));
        assert_eq!(registry.reset().get(CLASS).wait_cpu_ns, 64 * 5);
        (0..31).for_each(|_| early.waited(CLASS, || ()));
        assert_eq!(registry.stats().get(CLASS).wait_cpu_ns, 0, "each has a turn of its own");
        early.waited(CLASS, || ());
        assert_eq!(registry.stats().get(CLASS).wait_cpu_ns, 32 * 5);
    }

    #[test]
    fn who_comes_later_is_timed_too() {
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        let lock = Lock::new(CLASS, ());
        assert!(!registry.times_holds());
        registry.time_holds(true);
        assert!(registry.times_holds());
        drop(lock.lock(&registry.counters()));
        registry.time_holds(false);
        drop(lock.lock(&registry.counters()));
        let stats = *registry.stats().get(CLASS);
        assert_eq!((stats.acquisitions, stats.holds.count), (2, 1));
    }

    /// Every update is in the figures of exactly one reset, or in the last.
    #[test]
    fn resets_beside_a_writer_lose_nothing() {
        const HOLD_NS: u64 = 3;
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        registry.time_holds(true);
        let (user, lock, done) =
            (registry.counters(), Lock::new(CLASS, 0u64), AtomicBool::new(false));
        let mut sum = ClassStats::default();
        std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Relaxed) {
                    let mut times = lock.lock(&user);
                    *times += 1;
                    clock.advance(HOLD_NS);
                }
            });
            for _ in 0..2000 {
                let part = *registry.reset().get(CLASS);
                assert!(part.holds.min_ns.is_none_or(|ns| ns == HOLD_NS), "{part:?}");
                assert!(part.holds.count > 0 || part.holds.min_ns.is_none(), "{part:?}");
                sum += part;
                std::thread::yield_now();
            }
            done.store(true, Relaxed);
        });
        sum += *registry.stats().get(CLASS);
        let times = *lock.lock(&LockCounters::new(clock));
        assert_eq!((sum.acquisitions, sum.holds.count), (times, times));
        assert_eq!(sum.holds.total_ns, times * HOLD_NS);
        assert!(times > 0);
    }
}
