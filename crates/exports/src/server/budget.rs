//! The memory that requests of clients may have, all together.
//!
//! Each client has [`MINIMUM`] bytes of its own and takes more from the one [`Budget`] of the
//! process, by chunks. A client waits in line for bytes that are not there, or too many for one;
//! the [`Ledger`] orders those that wait.
//!
//! The guarantee: a request that takes at most [`MINIMUM`] waits for no other, as long as its
//! client has nothing else; and one of at most 1 MiB of a client that has nothing else waits for
//! the reserve alone, an eighth of the budget, of which each client has one such request. Nothing
//! that others hold beside it keeps that client waiting.
//!
//! Invariants:
//! * The ledger has the bytes of all shares, also those granted to clients that wait.
//! * Everything but the hints is under the lock.
//!
//! Progress: a share's bytes are for buffers. Those that are idle are freed by the
//! next sweep, or as soon as one is given back; and while a client that has nothing waits, one
//! whose share it needs begins nothing new with that ([`Share::is_revoked`]). Those of a device
//! come back, by its time-out at the latest, and those that wait for a limit when it lets them
//! pass. Those of replies and of data on its way are the client's affair: one that takes or sends
//! too little is cut off while a client that has nothing waits. And nobody waits for more than the
//! whole.

use super::ledger::{ClientId, Key, Ledger};
use drystone_core::context::Handle;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Bytes of buffers that each client may always have: 24 requests of 4 KiB, or one of 256 KiB.
pub(crate) const MINIMUM: u64 = 288 << 10;
/// More comes in multiples of this, so that the budget is rarely asked.
const CHUNK: u64 = 1 << 20;
/// The part of a budget that is a reserve, for first requests: one of 1 MiB for each 16 MiB, as
/// small a budget as a stack file may have.
const RESERVE: u64 = 8;
/// The longest first request that the reserve is for: a buffer of 1 MiB, in whole chunks.
const SHORT: u64 = 2 * CHUNK;

/// Memory for requests of clients of a process. Any thread may use it.
pub struct Budget {
    total: u64,
    /// Less than half is free, or a client waits: pools keep no idle buffers. A hint that is read
    /// without the lock.
    scarce: AtomicBool,
    /// A client that has nothing waits. A hint, too.
    starving: AtomicBool,
    /// Most bytes that count of one request.
    longest: u64,
    ledger: Lock<Ledger<Arc<Waiter>>>,
}

/// A client that waits.
struct Waiter {
    bytes: u64,
    /// The bytes were taken from the budget for it.
    granted: AtomicBool,
    /// The thread to wake then.
    thread: Arc<Handle>,
}

impl Budget {
    /// A budget of so many bytes; at least one chunk of 1 MiB.
    pub fn new(bytes: u64) -> Arc<Self> {
        let total = (bytes / CHUNK).max(1) * CHUNK;
        let reserve = total / RESERVE / CHUNK * CHUNK;
        let reserve = if reserve < SHORT { 0 } else { reserve };
        let longest = total - reserve;
        let ledger = Lock::new(LockClass::Buffers, Ledger::new(longest, reserve, SHORT));
        let (scarce, starving) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Budget { total, scarce, starving, longest, ledger })
    }

    /// A budget that never ends.
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// Its bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that no client has.
    pub fn free(&self, user: &LockCounters) -> u64 {
        self.ledger.lock(user).free()
    }

    /// The number of clients that wait for some.
    pub fn waiting(&self, user: &LockCounters) -> usize {
        self.ledger.lock(user).waiting()
    }

    fn is_scarce(&self) -> bool {
        self.scarce.load(Relaxed)
    }

    /// Change something, then serve those that wait as far as there is memory for them.
    fn change<T>(&self, user: &LockCounters, act: impl FnOnce(&mut Ledger<Arc<Waiter>>) -> T) -> T {
        let mut ledger = self.ledger.lock(user);
        let told = act(&mut ledger);
        let mut served = Vec::new();
        ledger.serve(|waiter| {
            waiter.granted.store(true, Release);
            served.push(waiter);
        });
        let scarce = ledger.free() < self.total / 2 || ledger.has_waiting();
        self.scarce.store(scarce, Relaxed);
        self.starving.store(ledger.is_starving(), Relaxed);
        drop(ledger);
        served.iter().for_each(|waiter| waiter.thread.wake());
        told
    }

    /// Whole chunks, but never more than there are.
    fn chunks(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX).min(self.longest)
    }
}

/// One client's part of a budget beyond its minimum. Belongs to one thread.
pub(crate) struct Share {
    budget: Arc<Budget>,
    user: Arc<LockCounters>,
    thread: Arc<Handle>,
    /// Among the clients of the budget, once it has joined them.
    client: Option<ClientId>,
    bytes: u64,
    waiter: Option<Arc<Waiter>>,
}

impl Share {
    /// Nothing yet. `thread` is woken when what was waited for is there.
    pub(crate) fn new(budget: Arc<Budget>, user: Arc<LockCounters>, thread: Arc<Handle>) -> Self {
        Share { budget, user, thread, client: None, bytes: 0, waiter: None }
    }

    /// The client is one of this consumer from now on; once, before it has or wants anything.
    pub(super) fn join(&mut self, consumer: Key) {
        debug_assert!(self.client.is_none(), "a client joins once");
        self.client = Some(self.budget.ledger.lock(&self.user).enter(consumer));
    }

    /// The client's number in the ledger, once it has asked for anything.
    fn client(&self) -> ClientId {
        self.client.expect("it has joined a consumer")
    }

    /// Bytes that the client may have.
    #[inline]
    pub(super) fn room(&self) -> u64 {
        MINIMUM + self.bytes
    }

    /// It has none beyond its minimum.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// It was granted memory that it has not taken yet.
    pub(super) fn is_granted(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| waiter.granted.load(Acquire))
    }

    /// Idle memory is wanted elsewhere.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_empty() && self.budget.is_scarce()
    }

    /// True if a client that has no memory waits, and would go on with what this client has.
    pub(super) fn is_wanted_by_others(&self) -> bool {
        let is_wanted = |client| self.budget.ledger.lock(&self.user).is_wanted_from(client);
        self.budget.is_scarce() && self.client.is_some_and(is_wanted)
    }

    /// True if a client without memory waits for some, and gets on only when this one gives back
    /// all that it has beyond its minimum.
    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        !self.is_empty() && self.budget.starving.load(Relaxed) && self.is_revoked_now()
    }

    #[cold]
    fn is_revoked_now(&self) -> bool {
        let is_revoked = |client| self.budget.ledger.lock(&self.user).is_revoked_from(client);
        self.client.is_some_and(is_revoked)
    }

    /// Take so many bytes more, if they are there and not too much for one.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let wanted = self.budget.chunks(bytes);
        let client = self.client();
        let taken = self.budget.change(&self.user, |ledger| ledger.take(client, wanted));
        self.bytes += if taken { wanted } else { 0 };
        taken
    }

    /// Wait in line for so many bytes more.
    pub(super) fn wait_for(&mut self, bytes: u64) {
        debug_assert!(self.waiter.is_none(), "one request waits at a time");
        let (bytes, granted) = (self.budget.chunks(bytes), AtomicBool::new(false));
        let waiter = Arc::new(Waiter { bytes, granted, thread: self.thread.clone() });
        let client = self.client();
        self.budget.change(&self.user, |ledger| ledger.wait(client, bytes, waiter.clone()));
        self.waiter = Some(waiter);
    }

    /// It has asked for memory by [`Share::wait_for`], and not taken it yet.
    #[inline]
    pub(super) fn has_asked(&self) -> bool {
        self.waiter.is_some()
    }

    /// Wait no more; what was granted meanwhile goes to others.
    pub(super) fn wait_no_more(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let client = self.client();
        self.budget.change(&self.user, |ledger| match waiter.granted.load(Acquire) {
            true => ledger.give_back(client, waiter.bytes),
            false => ledger.wait_no_more(client),
        });
    }

    /// It waits, and what it waits for is not there yet.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| !waiter.granted.load(Acquire))
    }

    /// True if it has waited, and got what it waited for: once.
    pub(super) fn take_granted(&mut self) -> bool {
        let granted = self.waiter.take_if(|waiter| waiter.granted.load(Acquire));
        self.bytes += granted.as_ref().map_or(0, |waiter| waiter.bytes);
        granted.is_some()
    }

    /// Give back what is not needed for `held` bytes; one chunk may stay for what comes next.
    #[inline]
    pub(super) fn settle(&mut self, held: u64) {
        let spare = if self.is_wanted() { 0 } else { CHUNK };
        let needed = held.saturating_sub(MINIMUM) + spare;
        if self.bytes >= needed + CHUNK {
            self.give_back(needed);
        }
    }

    /// Give back all that is not needed for `held` bytes.
    pub(super) fn settle_all(&mut self, held: u64) {
        self.give_back(held.saturating_sub(MINIMUM));
    }

    #[cold]
    fn give_back(&mut self, needed: u64) {
        let spare = self.bytes.saturating_sub(needed) / CHUNK * CHUNK;
        if spare > 0 {
            self.bytes -= spare;
            let client = self.client();
            self.budget.change(&self.user, |ledger| ledger.give_back(client, spare));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.wait_no_more();
        self.give_back(0);
        if let Some(client) = self.client {
            self.budget.change(&self.user, |ledger| ledger.leave(client));
        }
    }
}
