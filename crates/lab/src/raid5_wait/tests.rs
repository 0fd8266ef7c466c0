//! The ways to wait, step by step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::thread;

use drystone_core::clock::ManualClock;
use drystone_core::sync::LockCounters;

use super::cache::{Cache, HASH_LOCKS, STRIPE_SECTORS, STRIPES, Scheme, User};
use super::wait::Sleeper;

fn user() -> User {
    User { locks: LockCounters::new(ManualClock::new(1)), sleeper: Arc::new(Sleeper::default()) }
}

fn sector(stripe: usize) -> u64 {
    stripe as u64 * STRIPE_SECTORS
}

/// A cache of which every stripe is taken; `stripe % HASH_LOCKS` is its lock.
fn full(scheme: Scheme, user: &User) -> Cache<()> {
    let cache = Cache::new(scheme, HASH_LOCKS, STRIPES);
    (0..STRIPES).for_each(|n| assert_eq!(cache.get(user, sector(n), || ()), n as u32));
    cache
}

/// Frees the stripes of `locks` while a thread waits for one of lock 0, those of lock 0 first and
/// the others when it has looked again. Says how often the waiter slept, and whether it got a stripe
/// without being rescued.
fn waits(scheme: Scheme) -> (u32, bool) {
    let (own, waiter) = (user(), user());
    let cache = full(scheme, &own);
    let (sleeps, got) = (AtomicU32::new(0), AtomicU32::new(0));
    let until = |enough: &dyn Fn() -> bool| {
        while !enough() {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            cache.get(&waiter, sector(STRIPES), || {
                sleeps.fetch_add(1, SeqCst);
            });
            got.store(1, SeqCst);
        });
        until(&|| sleeps.load(SeqCst) == 1);
        let (mut first, mut others): (Vec<u32>, _) =
            (0..STRIPES as u32).partition(|n| n % HASH_LOCKS as u32 == 0);
        cache.retire(&mut first, &own.locks);
        until(&|| sleeps.load(SeqCst) == 2 || got.load(SeqCst) == 1);
        cache.retire(&mut others, &own.locks);
        assert_eq!(cache.freed(), STRIPES as u64);
        let woken = scheme != Scheme::Mailed;
        until(&|| !woken || got.load(SeqCst) == 1);
        let rescued = cache.rescue(&own.locks);
        until(&|| got.load(SeqCst) == 1);
        (sleeps.load(SeqCst), rescued == 0)
    })
}

#[test]
fn the_mailed_way_loses_a_wake_up() {
    // It slept again when 7/8 were taken, and nobody woke it when they were not.
    assert_eq!(waits(Scheme::Mailed), (2, false));
    assert_eq!(waits(Scheme::Before), (2, true));
    assert_eq!(waits(Scheme::Sharded), (1, true));
}

/// Stripes are found again by their sector, free or not, and made anew the longest free first.
#[test]
fn stripes_are_found_by_their_sector() {
    let user = user();
    let cache: Cache<()> = Cache::new(Scheme::Before, HASH_LOCKS, 2 * HASH_LOCKS);
    let get = |n: usize| cache.get(&user, sector(n), || ());
    let (first, second) = (get(0), get(HASH_LOCKS));
    assert_ne!(first, second);
    assert_eq!((get(0), cache.stripe(first).sector()), (first, 0));
    assert!(!cache.release(first), "there is another reference");
    assert!(cache.release(first) && !cache.release(second), "raid5d is woken once");
    let mut released = Vec::new();
    cache.take_released(&mut released);
    assert_eq!(released, [second, first]);
    cache.retire(&mut released, &user.locks);
    assert_eq!((get(0), cache.freed()), (first, 2));
    assert_eq!(get(2 * HASH_LOCKS), second, "the first is in use again");
}

/// Work goes before freedom; what has to read waits until nothing else is left.
#[test]
fn stripes_with_work_are_not_free() {
    let user = user();
    let cache: Cache<u32> = Cache::new(Scheme::Before, HASH_LOCKS, STRIPES);
    let locks = &user.locks;
    let retire = |numbers: &[u32]| cache.retire(&mut numbers.to_vec(), locks);
    let take = |most| {
        let mut out = Vec::new();
        cache.take_work(most, &mut out, locks);
        out
    };
    let all: Vec<u32> = (0..3).map(|n| cache.get(&user, sector(n), || ())).collect();
    all.iter().for_each(|n| cache.stripe(*n).add(*n, locks));
    retire(&all);
    assert_eq!((cache.freed(), take(2)), (0, all[..2].to_vec()));
    assert!(!cache.stripe(all[0]).may_read());
    retire(&all[..1]);
    assert_eq!(take(9), [all[2], all[0]]);
    assert!(cache.stripe(all[0]).may_read() && !cache.stripe(all[1]).may_read());
    retire(&all[1..2]);
    assert!(take(9).is_empty(), "another one reads");
    cache.end_preread(all[0]);
    assert_eq!(take(9), all[1..2]);
    assert_eq!(cache.stripe(all[0]).take(locks), [all[0]]);
    retire(&all[..1]);
    assert_eq!(cache.freed(), 1);
}
