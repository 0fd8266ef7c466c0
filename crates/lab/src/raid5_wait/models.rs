//! Models of the waits for a stripe, for every order of steps (loom). The model must find that
//! array-wide conditions with a queue for each lock hang. `scripts/loom.sh` lists the mutations
//! that the other models must catch.

use std::sync::Arc;

use drystone_core::clock::ManualClock;
use drystone_core::sync::LockCounters;

use super::cache::{Cache, STRIPE_SECTORS, Scheme, User};
use super::wait::Sleeper;

fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

fn user() -> User {
    let sleeper = Arc::new(Sleeper::default());
    let user = User { locks: LockCounters::new(ManualClock::new(1)), sleeper };
    user.sleeper.wake(&user.locks);
    user
}

/// The `n`th stripe of lock `lock`, of `locks`.
fn sector(lock: u64, n: u64, locks: usize) -> u64 {
    (n * locks as u64 + lock) * STRIPE_SECTORS
}

/// A cache whose stripes the calling thread has all taken; the stripes are in the order of their
/// locks.
fn full(scheme: Scheme, locks: usize, stripes: usize, user: &User) -> (Arc<Cache<()>>, Vec<u32>) {
    let cache = Cache::new(scheme, locks, stripes);
    cache.rescue(&user.locks);
    let each = (stripes / locks) as u64;
    let places = (0..locks as u64).flat_map(|lock| (0..each).map(move |n| (lock, n)));
    let taken: Vec<u32> =
        places.map(|(lock, n)| cache.get(user, sector(lock, n, locks), || {})).collect();
    // Each lock is used before threads start.
    cache.retire(&mut Vec::new(), &user.locks);
    (Arc::new(cache), taken)
}

/// One thread waits for a stripe of lock 0. Four stripes come back, one by one, that of lock 0
/// first. At that time three quarters are still taken, and the later ones belong to other locks.
fn one_waiter(scheme: Scheme) {
    check(3, move || {
        let (own, waiter) = (user(), user());
        let (cache, taken) = full(scheme, 4, 4, &own);
        let other = cache.clone();
        let thread = loom::thread::spawn(move || {
            other.get(&waiter, sector(0, 1, 4), || {});
        });
        for stripe in taken {
            cache.retire(&mut vec![stripe], &own.locks);
        }
        thread.join().unwrap();
    });
}

/// Two threads wait for a stripe of lock 0; both of its stripes come back together, then others.
fn two_waiters(scheme: Scheme, preemptions: usize) {
    check(preemptions, move || {
        let own = user();
        let (cache, mut taken) = full(scheme, 2, 4, &own);
        let threads = [(2, user()), (3, user())].map(|(n, waiter)| {
            let cache = cache.clone();
            loom::thread::spawn(move || {
                cache.get(&waiter, sector(0, n, 2), || {});
            })
        });
        let mut others = taken.split_off(2);
        cache.retire(&mut taken, &own.locks);
        cache.retire(&mut others, &own.locks);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn loom_stripes_before() {
    one_waiter(Scheme::Baseline);
    // With two it takes a minute.
    two_waiters(Scheme::Baseline, 1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_stripes_mailed_gets_stuck() {
    one_waiter(Scheme::Patched);
}

#[test]
fn loom_stripes_sharded() {
    one_waiter(Scheme::Sharded);
    two_waiters(Scheme::Sharded, 2);
}
