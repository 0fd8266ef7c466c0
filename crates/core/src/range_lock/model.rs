#![allow(unsafe_code, reason = "its models look at what the lock guards")]

use super::*;
use crate::clock::ManualClock;
use loom::cell::UnsafeCell;

/// Looks at `has_news` itself.
struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// A block that shared writes look at, and exclusive ones change, and another.
struct Model {
    lock: Arc<RangeLock>,
    block: UnsafeCell<u32>,
}

// SAFETY: the checker watches over every access to the block.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

const BLOCK: Range<u64> = 0..8;
const OTHER: Range<u64> = 8..16;

fn user(lock: &Arc<RangeLock>) -> RangeUser {
    lock.join(1, Arc::new(Nobody), LockCounters::new(ManualClock::new(1)))
}

impl Model {
    fn shared(&self) {
        // SAFETY: the checker fails if somebody changes it.
        self.block.with(|block| unsafe { *block });
    }

    fn exclusive(&self) {
        // SAFETY: the checker fails if anybody else is at it.
        self.block.with_mut(|block| unsafe { *block += 1 });
    }

    /// So many shared writes, if they need not wait. True if one waits in the end.
    fn write(&self, user: &mut RangeUser, rounds: usize) -> bool {
        for _ in 0..rounds {
            if !user.lock_shared(0, &BLOCK) {
                return true;
            }
            self.shared();
            user.unlock(0);
        }
        false
    }

    /// A user that waits is told, and goes.
    fn go(&self, user: &mut RangeUser, act: impl FnOnce(&Self)) {
        assert!(user.has_news(), "nobody tells it");
        let mut slots = Vec::new();
        user.take_granted(&mut slots);
        assert_eq!(slots, [0]);
        act(self);
        user.unlock(0);
    }
}

fn check(writers: usize, rounds: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let lock = RangeLock::new();
        let mut alone = user(&lock);
        let users: Vec<RangeUser> = (0..writers).map(|_| user(&lock)).collect();
        let model = Arc::new(Model { lock, block: UnsafeCell::new(0) });
        let start = |mut user: RangeUser| {
            let model = model.clone();
            loom::thread::spawn(move || {
                let waits = model.write(&mut user, rounds);
                (user, waits)
            })
        };
        let threads: Vec<_> = users.into_iter().map(start).collect();
        let done = alone.lock_exclusive(0, &BLOCK);
        if done {
            model.exclusive();
            alone.unlock(0);
        }
        let users: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        if !done {
            model.go(&mut alone, Model::exclusive);
        }
        for (mut user, waits) in users {
            if waits {
                model.go(&mut user, Model::shared);
            }
            assert!(user.lock_shared(0, &BLOCK), "it is free in the end");
            model.shared();
            user.unlock(0);
        }
        assert_eq!(model.lock.exclusives.load(Relaxed), 0);
    });
}

/// A shared and an exclusive write are never at work together, and a user that waits is told.
#[test]
fn loom_range_lock_one_writer() {
    check(1, 2, 4);
}

#[test]
fn loom_range_lock_two_writers() {
    check(2, 1, 2);
}

/// Two that want to be alone, and one that writes another block, which neither waits nor is waited
/// for.
#[test]
fn loom_range_lock_two_exclusives() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let lock = RangeLock::new();
        let [mut one, mut two, mut beside] = std::array::from_fn(|_| user(&lock));
        let model = Arc::new(Model { lock, block: UnsafeCell::new(0) });
        let other = {
            let model = model.clone();
            loom::thread::spawn(move || {
                let done = two.lock_exclusive(0, &BLOCK);
                if done {
                    model.exclusive();
                    two.unlock(0);
                }
                (two, done)
            })
        };
        assert!(beside.lock_shared(0, &OTHER), "nobody else wants that block");
        let done = one.lock_exclusive(0, &BLOCK);
        if done {
            model.exclusive();
            one.unlock(0);
        }
        let (mut two, two_done) = other.join().unwrap();
        // Whichever came first goes first.
        for (user, done) in [(&mut one, done), (&mut two, two_done)] {
            if !done {
                model.go(user, Model::exclusive);
            }
        }
        beside.unlock(0);
        assert_eq!(model.lock.exclusives.load(Relaxed), 0);
    });
}
