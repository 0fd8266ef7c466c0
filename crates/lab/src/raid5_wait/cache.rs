//! A stripe cache of Linux's shape, and three ways to wait for a free stripe in it.
//!
//! ```text
//!            hash locks, each with its stripes and a list of those that are free
//!  writers   +------+------+-----+------+
//!  --get---> | 0    | 1    | ..  | 7    |     active: stripes not free, all locks together
//!            +--^---+------+-----+------+     blocked: nobody takes a free one but waiters that
//!               |                                      see fewer than 3/4 active
//!  --release--> released --> raid5d --> device lock: hold, handle, delayed
//!               (last reference)   \--> free again (`retire`): splice, then wake
//! ```
//!
//! Linux `drivers/md/raid5.c` (`raid5_get_active_stripe`, `release_inactive_stripe_list`); the
//! mail is "md/raid5: per hash value and exclusive wait_for_stripe" (Yuanhan Liu, 2015).
//!
//! Invariants:
//! * A stripe belongs to one hash lock for ever. That lock's table has it by its sector. It is in
//!   at most one of: the free list there, the device's lists, the hands of raid5d.
//! * `count` is the number of references. It leaves 0 and reaches 0 only under the device lock. A
//!   stripe with a count of 0 is free, about to be spliced, or in a list of the device.
//! * Only raid5d retires stripes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use drystone_core::primitive::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};

use super::wait::{Sleeper, WaitQueue};

/// Sectors of a stripe on each member.
pub const STRIPE_SECTORS: u64 = 8;
/// Hash locks (Linux `NR_STRIPE_HASH_LOCKS`).
pub const HASH_LOCKS: usize = 8;
/// Stripes (Linux `NR_STRIPES`).
pub const STRIPES: usize = 256;
/// No stripe, at the end of the released list.
const NONE: u32 = u32::MAX;

/// The scheme of waits for a free stripe: the queue, the condition, and the waiters to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// One queue, whose waiters are all woken; conditions of the whole array.
    Baseline,
    /// A queue for each hash lock; one waiter of it is woken and wakes the next; conditions of the
    /// whole array. Queues are those of the locks that got stripes (the mail's v2 takes another
    /// queue where stripes are released one by one).
    Patched,
    /// The mail's queues, with conditions of each lock's own.
    Sharded,
}

/// A thread that gets stripes.
pub struct User {
    /// Counts its locks.
    pub locks: Arc<LockCounters>,
    /// Its thread, while it waits for a stripe.
    pub sleeper: Arc<Sleeper>,
}

/// The state that a hash lock covers.
#[derive(Default)]
struct Shard {
    known: HashMap<u64, u32>,
    /// The free stripes, longest free first.
    free: VecDeque<u32>,
    stripes: usize,
    /// As the cache's, for [`Scheme::Sharded`].
    blocked: bool,
}

/// A stripe, without its data; `W` is the type of its writes.
pub struct Stripe<W> {
    shard: usize,
    sector: AtomicU64,
    count: AtomicU32,
    /// In the released list: the one below it.
    next: AtomicU32,
    /// It has work (Linux `STRIPE_HANDLE`).
    handle: AtomicBool,
    /// Its work needs reads, which may wait (Linux `STRIPE_DELAYED`).
    delayed: AtomicBool,
    /// It may read now, and counts as one that does (Linux `STRIPE_PREREAD_ACTIVE`).
    granted: AtomicBool,
    pending: Lock<Vec<W>>,
}

/// The state that the device lock covers.
#[derive(Default)]
struct Lists {
    handle: VecDeque<u32>,
    hold: VecDeque<u32>,
    delayed: VecDeque<u32>,
}

/// See the module's text.
pub struct Cache<W> {
    scheme: Scheme,
    shards: Vec<Lock<Shard>>,
    queues: Vec<WaitQueue>,
    stripes: Vec<Stripe<W>>,
    active: AtomicUsize,
    blocked: AtomicBool,
    released: AtomicU32,
    /// The number of stripes that may read.
    prereads: AtomicUsize,
    lists: Lock<Lists>,
    freed: AtomicU64,
}

impl<W> Cache<W> {
    /// A cache of `stripes` free stripes below `locks` hash locks, at most 64.
    pub fn new(scheme: Scheme, locks: usize, stripes: usize) -> Self {
        let stripe = |number: usize| Stripe {
            shard: number % locks,
            sector: AtomicU64::new(u64::MAX),
            count: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            handle: AtomicBool::new(false),
            delayed: AtomicBool::new(false),
            granted: AtomicBool::new(false),
            pending: Lock::new(LockClass::Stripe, Vec::new()),
        };
        let shard = |lock: usize| {
            let free: VecDeque<u32> = (lock..stripes).step_by(locks).map(|n| n as u32).collect();
            let stripes = free.len();
            Lock::new(LockClass::StripeHash, Shard { free, stripes, ..Shard::default() })
        };
        let queues = if scheme == Scheme::Baseline { 1 } else { locks };
        Cache {
            scheme,
            shards: (0..locks).map(shard).collect(),
            queues: (0..queues).map(|_| WaitQueue::default()).collect(),
            stripes: (0..stripes).map(stripe).collect(),
            active: AtomicUsize::new(0),
            blocked: AtomicBool::new(false),
            released: AtomicU32::new(NONE),
            prereads: AtomicUsize::new(0),
            lists: Lock::new(LockClass::RaidDevice, Lists::default()),
            freed: AtomicU64::new(0),
        }
    }

    /// A reference to the stripe at the member sector `sector`. Waits until a stripe of its lock
    /// may be taken if it is not known; `before_sleep` releases what the caller holds, which
    /// nobody may keep while it waits.
    pub fn get(&self, user: &User, sector: u64, mut before_sleep: impl FnMut()) -> u32 {
        let lock = (sector / STRIPE_SECTORS) as usize % self.shards.len();
        let mut shard = self.shards[lock].lock(&user.locks);
        let stripe = loop {
            if let Some(stripe) = shard.known.get(&sector).copied() {
                self.hold(&mut shard, stripe, &user.locks);
                break stripe;
            }
            if let Some(stripe) = self.take_free(&mut shard, sector) {
                break stripe;
            }
            self.set_blocked(&mut shard, true);
            shard = self.wait(lock, shard, user, &mut before_sleep);
            self.set_blocked(&mut shard, false);
        };
        let chain = self.scheme != Scheme::Baseline && !drystone_core::mutated!("stripe_chain");
        if chain && !shard.free.is_empty() {
            self.queues[lock].wake_one(&user.locks);
        }
        stripe
    }

    fn take_free(&self, shard: &mut Shard, sector: u64) -> Option<u32> {
        if self.is_blocked(shard) {
            return None;
        }
        let number = shard.free.pop_front()?;
        let stripe = &self.stripes[number as usize];
        shard.known.remove(&stripe.sector.load(Relaxed));
        shard.known.insert(sector, number);
        stripe.sector.store(sector, Relaxed);
        stripe.count.store(1, Relaxed);
        self.active.fetch_add(1, AcqRel);
        Some(number)
    }

    /// Takes one more reference to a known stripe.
    fn hold(&self, shard: &mut Shard, number: u32, user: &LockCounters) {
        let count = &self.stripes[number as usize].count;
        if change(count, |count| (count > 0).then(|| count + 1)) {
            return;
        }
        let mut lists = self.lists.lock(user);
        // The count reaches 0 only under the device lock.
        if count.load(Relaxed) == 0 && !lists.remove(number) {
            shard.free.retain(|other| *other != number);
            self.active.fetch_add(1, AcqRel);
        }
        count.fetch_add(1, AcqRel);
    }

    /// Sleep until a stripe of this lock may be taken.
    fn wait<'a>(
        &'a self,
        lock: usize,
        mut shard: Guard<'a, Shard>,
        user: &User,
        before_sleep: &mut impl FnMut(),
    ) -> Guard<'a, Shard> {
        let queue = self.queue(lock);
        loop {
            let early = drystone_core::mutated!("stripe_look_first").then(|| self.may_take(&shard));
            queue.enter(&user.sleeper, &user.locks);
            if early.unwrap_or_else(|| self.may_take(&shard)) {
                queue.leave(&user.sleeper, &user.locks);
                return shard;
            }
            drop(shard);
            before_sleep();
            user.sleeper.sleep(&user.locks);
            shard = self.shards[lock].lock(&user.locks);
        }
    }

    fn queue(&self, lock: usize) -> &WaitQueue {
        &self.queues[lock % self.queues.len()]
    }

    fn is_blocked(&self, shard: &Shard) -> bool {
        match self.scheme {
            Scheme::Sharded => shard.blocked,
            _ => self.blocked.load(Acquire),
        }
    }

    fn set_blocked(&self, shard: &mut Shard, blocked: bool) {
        match self.scheme {
            Scheme::Sharded => shard.blocked = blocked,
            _ => self.blocked.store(blocked, Release),
        }
    }

    /// True if a waiter of this lock may go on.
    fn may_take(&self, shard: &Shard) -> bool {
        let (taken, all) = match self.scheme {
            Scheme::Sharded => (shard.stripes - shard.free.len(), shard.stripes),
            _ => (self.active.load(Acquire), self.stripes.len()),
        };
        !shard.free.is_empty() && (taken * 4 < all * 3 || !self.is_blocked(shard))
    }

    /// Give a reference back. True if raid5d has to be woken for it.
    pub fn release(&self, number: u32) -> bool {
        let stripe = &self.stripes[number as usize];
        if change(&stripe.count, |count| (count > 1).then(|| count - 1)) {
            return false;
        }
        let mut first = self.released.load(Relaxed);
        loop {
            stripe.next.store(first, Relaxed);
            match self.released.compare_exchange_weak(first, number, Release, Relaxed) {
                Ok(_) => return first == NONE,
                Err(now) => first = now,
            }
        }
    }

    /// For raid5d: moves all released stripes to `out`; it now has their references.
    pub fn take_released(&self, out: &mut Vec<u32>) {
        let mut at = self.released.swap(NONE, Acquire);
        while at != NONE {
            out.push(at);
            at = self.stripes[at as usize].next.load(Relaxed);
        }
    }

    /// For raid5d: gives references back. A stripe without another reference is queued if it has
    /// work, and becomes free if not; then waiters are woken.
    pub fn retire(&self, stripes: &mut Vec<u32>, user: &LockCounters) {
        if stripes.is_empty() {
            return;
        }
        let mut free = vec![Vec::new(); self.shards.len()];
        let mut lists = self.lists.lock(user);
        for number in stripes.drain(..) {
            let stripe = &self.stripes[number as usize];
            if stripe.count.fetch_sub(1, AcqRel) > 1 {
                continue;
            }
            if stripe.handle.load(Relaxed) {
                lists.add(number, stripe.delayed.load(Relaxed));
            } else {
                self.active.fetch_sub(1, AcqRel);
                free[stripe.shard].push(number);
            }
        }
        drop(lists);
        self.splice(free, user);
    }

    fn splice(&self, free: Vec<Vec<u32>>, user: &LockCounters) {
        let mut got = 0u64;
        for (lock, numbers) in free.into_iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            let mut shard = self.shards[lock].lock(user);
            // A stripe that a writer has found meanwhile is in use.
            let unused = |number: &u32| self.stripes[*number as usize].count.load(Relaxed) == 0;
            let before = shard.free.len();
            shard.free.extend(numbers.into_iter().filter(unused));
            self.freed.fetch_add((shard.free.len() - before) as u64, Relaxed);
            got |= 1 << lock;
        }
        match self.scheme {
            Scheme::Baseline if got != 0 => self.queues[0].wake_all(user),
            Scheme::Baseline => {}
            _ => (0..self.shards.len()).filter(|lock| got >> lock & 1 != 0).for_each(|lock| {
                self.queues[lock].wake_one(user);
            }),
        }
    }

    /// For raid5d: takes up to `most` stripes with work into `out`, with a reference to each.
    /// Stripes that need reads go on when no other work is left and no other such stripe is being
    /// handled.
    pub fn take_work(&self, most: usize, out: &mut Vec<u32>, user: &LockCounters) {
        let mut lists = self.lists.lock(user);
        if self.prereads.load(Relaxed) == 0 {
            self.prereads.store(lists.delayed.len(), Relaxed);
            let Lists { hold, delayed, .. } = &mut *lists;
            for number in delayed.iter() {
                let stripe = &self.stripes[*number as usize];
                stripe.granted.store(true, Relaxed);
                stripe.delayed.store(false, Relaxed);
            }
            hold.append(delayed);
        }
        while out.len() < most {
            let Some(number) = lists.next() else { break };
            self.stripes[number as usize].count.fetch_add(1, AcqRel);
            out.push(number);
        }
    }

    /// For raid5d: a stripe has its reads, or needs none.
    pub fn end_preread(&self, number: u32) {
        if self.stripes[number as usize].granted.swap(false, Relaxed) {
            self.prereads.fetch_sub(1, Relaxed);
        }
    }

    /// Wake one sleeper of each queue that has a free stripe although sleepers remain: the state
    /// after a lost wake-up. Returns how many were woken. Only meaningful without any progress.
    pub fn rescue(&self, user: &LockCounters) -> usize {
        let stuck = |lock: &usize| {
            let shard = self.shards[*lock].lock(user);
            self.may_take(&shard) && self.queue(*lock).len(user) > 0
        };
        let stuck: Vec<usize> = (0..self.shards.len()).filter(stuck).collect();
        stuck.iter().filter(|lock| self.queue(**lock).wake_one(user)).count()
    }

    /// The stripe of a number, to which the caller has a reference.
    pub fn stripe(&self, number: u32) -> &Stripe<W> {
        &self.stripes[number as usize]
    }

    /// Stripes that became free so far.
    pub fn freed(&self) -> u64 {
        self.freed.load(Relaxed)
    }

    /// Wake-ups of threads that waited for a stripe so far.
    pub fn woken(&self) -> u64 {
        self.queues.iter().map(WaitQueue::woken).sum()
    }
}

impl<W> Stripe<W> {
    /// Its place on each member.
    pub fn sector(&self) -> u64 {
        self.sector.load(Relaxed)
    }

    /// Add a write. The adder must release its reference after this.
    pub fn add(&self, write: W, user: &LockCounters) {
        self.pending.lock(user).push(write);
        self.delayed.store(false, Relaxed);
        self.handle.store(true, Relaxed);
    }

    /// For raid5d: calls `look` with its writes.
    pub fn look<T>(&self, user: &LockCounters, look: impl FnOnce(&[W]) -> T) -> T {
        look(&self.pending.lock(user))
    }

    /// For raid5d: take its writes.
    pub fn take(&self, user: &LockCounters) -> Vec<W> {
        let mut pending = self.pending.lock(user);
        self.handle.store(false, Relaxed);
        std::mem::take(&mut *pending)
    }

    /// For raid5d: true if the stripe may read. If not, its work now waits until it may.
    pub fn may_read(&self) -> bool {
        let granted = self.granted.load(Relaxed);
        self.delayed.store(!granted, Relaxed);
        granted
    }
}

/// Changes a count to the value of `to`, unless that is `None`. True if changed.
fn change(count: &AtomicU32, to: impl Fn(u32) -> Option<u32>) -> bool {
    let mut now = count.load(Relaxed);
    while let Some(next) = to(now) {
        match count.compare_exchange_weak(now, next, AcqRel, Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

impl Lists {
    fn add(&mut self, number: u32, delayed: bool) {
        if delayed { &mut self.delayed } else { &mut self.handle }.push_back(number);
    }

    fn next(&mut self) -> Option<u32> {
        self.handle.pop_front().or_else(|| self.hold.pop_front())
    }

    fn remove(&mut self, number: u32) -> bool {
        let mut lists = [&mut self.handle, &mut self.hold, &mut self.delayed].into_iter();
        let found = lists.find_map(|list| {
            let at = list.iter().position(|other| *other == number)?;
            list.remove(at)
        });
        found.is_some()
    }
}
