//! Contexts are dropped while they wait for a stripe. No context behind them must wait forever.

use super::*;
use drystone_core::ChannelId;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, Context, IoBuf, Sector};
use std::sync::Arc;

/// The number of contexts; each writes to a stripe of a shard that has two.
const USERS: u64 = 5;
const ROW: u64 = 8;

/// A context that has begun a write.
struct User {
    ctx: Context,
    number: u64,
    has_ended: bool,
}

fn open(stand: &Stand) -> (Context, ChannelId) {
    let array: Arc<dyn Device> = Arc::new(stand.array.as_ref().unwrap().0.clone());
    let mut ctx = stand.set.open(Engine::Plain).unwrap();
    let index = ctx.open(&array).unwrap();
    (ctx, index)
}

fn begin(stand: &Stand, number: u64) -> User {
    let (mut ctx, index) = open(stand);
    let mut list = BioList::new();
    list.push(Bio::write(Sector(number * ROW), IoBuf::from_slice(&[number as u8 + 1; 4096])));
    ctx.submit(index, &mut list);
    User { ctx, number, has_ended: false }
}

/// Begins writes, most of which wait for a stripe, and drops the contexts whose bits are set in
/// `dropped`.
fn with_dropped(dropped: u64) {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    let array = stand.array.as_ref().unwrap().0.clone();
    array.set_attribute("md/stripe_cache_size", "17").unwrap();
    assert!(stand.write(0, 9, 64 << 10).is_ok());
    let before = array.counts();
    stand.memories[array.status().layout.map_sector(0).role.index()].hold();
    let mut users: Vec<User> = (0..USERS).map(|number| begin(&stand, number)).collect();
    stand.turn();
    assert!(array.counts().waited >= before.waited + USERS - 2, "they wait for a stripe");
    users.retain(|user| dropped & 1 << user.number == 0);
    stand.turn();
    stand.memories.iter().for_each(|memory| memory.release());
    for _ in 0..1000 {
        stand.turn();
        stand.set.free_idle_orphans();
        for user in &mut users {
            let mut done = BioList::new();
            user.ctx.reap(&mut done);
            while let Some(bio) = done.pop() {
                assert!(bio.status.is_ok());
                user.has_ended = true;
            }
        }
    }
    let left: Vec<u64> = users.iter().filter(|u| !u.has_ended).map(|u| u.number).collect();
    assert!(left.is_empty(), "{left:?} wait for ever, {dropped:#b} were dropped");
    let counts = array.counts();
    assert!(counts.woken - before.woken <= counts.freed - before.freed, "{counts:?}");
    assert_eq!(array.attribute("md/stripe_cache_active").unwrap(), "0");
    for user in &users {
        assert!(stand.reads(user.number * ROW, user.number as u8 + 1, 4096));
    }
    // All stripes are free again, and no state of the dropped users is left.
    assert!(stand.write(0, 7, 64 << 10).is_ok() && stand.reads(0, 7, 64 << 10));
    drop(users);
    assert_eq!(stand.set.free_idle_orphans(), 0);
}

#[test]
fn who_waits_for_a_stripe_and_is_dropped_keeps_nobody_waiting() {
    (0..1 << USERS).for_each(with_dropped);
}

#[test]
fn a_context_that_goes_on_lets_go_of_a_stopped_array() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    let device: Arc<dyn Device> = Arc::new(stand.array.as_ref().unwrap().0.clone());
    let mut ctx = stand.set.open(Engine::Plain).unwrap();
    let index = ctx.open(&device).unwrap();
    let kept = Arc::downgrade(&device);
    drop(device);
    assert!(stand.write(0, 9, 64 << 10).is_ok());
    stand.stop();
    ctx.reap(&mut BioList::new());
    assert_eq!(kept.strong_count(), 1, "the owner has not released it");
    ctx.release(index);
    assert_eq!(kept.strong_count(), 0);
}
