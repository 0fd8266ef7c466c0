//! The memory budget for the requests of all clients.
//!
//! Each client has [`MINIMUM`] bytes of its own and takes more, in chunks, from the process's one
//! [`Budget`]. A client waits in line for bytes that are not free, or that would be too many for
//! one client. The [`Ledger`] orders those that wait.
//!
//! The budget guarantees two things. A request of at most [`MINIMUM`] does not wait for other
//! clients, as long as its client has nothing else. A request of at most 1 MiB, of a client that
//! has nothing else, waits only for the reserve: an eighth of the budget, of which each client gets
//! at most one such request. So memory that others hold outside the reserve never delays it.
//!
//! Invariants:
//! * The ledger counts the bytes of all shares, also those granted to clients that wait.
//! * The lock protects everything except the hints.
//!
//! Progress: the bytes of a share are in buffers, and each kind of buffer comes back. The next
//! sweep frees idle buffers; while a client without memory waits, a buffer is freed as soon as it
//! is given back, and a client whose share is needed begins nothing new with it
//! ([`Share::is_revoked`]). Buffers at a device come back at its time-out at the latest; those that
//! wait for a limit, when the limit lets them pass. Buffers of replies and of arriving data depend
//! on the client: one that takes or sends too little is disconnected while a client without memory
//! waits. And no client waits for more than the whole budget.

use super::ledger::{ClientId, Key, Ledger};
use drystone_core::context::Handle;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// The bytes of buffers that each client may always have: 24 requests of 4 KiB, or one of 256 KiB.
pub(crate) const MINIMUM: u64 = 288 << 10;
/// The unit of further memory: large, so that clients rarely call the budget.
const CHUNK: u64 = 1 << 20;
/// The divisor that gives the reserve for first requests: one request of 1 MiB for each 16 MiB, the
/// smallest budget that a stack file may have.
const RESERVE: u64 = 8;
/// The longest first request that may use the reserve: a buffer of 1 MiB, in whole chunks.
const SHORT: u64 = 2 * CHUNK;

/// The memory budget of a process. Any thread may use it.
pub struct Budget {
    total: u64,
    /// A hint, read without the lock: less than half is free, or a client waits. Then pools keep no
    /// idle buffers.
    scarce: AtomicBool,
    /// A hint, too: a client that holds nothing waits.
    starving: AtomicBool,
    /// The most bytes that one request counts for.
    longest: u64,
    ledger: Lock<Ledger<Arc<Waiter>>>,
}

/// A client that waits.
struct Waiter {
    bytes: u64,
    /// Set once its bytes were taken from the budget.
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

    /// An unlimited budget.
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

    /// Change the ledger by `act`, then serve the waiting clients as far as memory suffices.
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
    /// Its number in the ledger, once it has joined.
    client: Option<ClientId>,
    bytes: u64,
    waiter: Option<Arc<Waiter>>,
}

impl Share {
    /// An empty share. `thread` is woken when memory that it waits for is granted.
    pub(crate) fn new(budget: Arc<Budget>, user: Arc<LockCounters>, thread: Arc<Handle>) -> Self {
        Share { budget, user, thread, client: None, bytes: 0, waiter: None }
    }

    /// Makes the client one of this consumer. Called once, before it has or wants memory.
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

    /// True if it has nothing beyond its minimum.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// True if it was granted memory that it has not taken yet.
    pub(super) fn is_granted(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| waiter.granted.load(Acquire))
    }

    /// True if others want its idle memory.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_empty() && self.budget.is_scarce()
    }

    /// True if a client without memory waits, and this client's memory would let it go on.
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

    /// Take so many more bytes, if they are free and not too many for one client. True if taken.
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

    /// True if it has asked for memory by [`Share::wait_for`] and not taken it yet.
    #[inline]
    pub(super) fn has_asked(&self) -> bool {
        self.waiter.is_some()
    }

    /// Leave the line; memory granted meanwhile goes to others.
    pub(super) fn wait_no_more(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let client = self.client();
        self.budget.change(&self.user, |ledger| match waiter.granted.load(Acquire) {
            true => ledger.give_back(client, waiter.bytes),
            false => ledger.wait_no_more(client),
        });
    }

    /// True while it waits and its memory was not granted yet.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| !waiter.granted.load(Acquire))
    }

    /// True once, if memory that it waited for was granted.
    pub(super) fn take_granted(&mut self) -> bool {
        let granted = self.waiter.take_if(|waiter| waiter.granted.load(Acquire));
        self.bytes += granted.as_ref().map_or(0, |waiter| waiter.bytes);
        granted.is_some()
    }

    /// Give back the bytes beyond `held`; one chunk may stay for the next request.
    #[inline]
    pub(super) fn settle(&mut self, held: u64) {
        let spare = if self.is_wanted() { 0 } else { CHUNK };
        let needed = held.saturating_sub(MINIMUM) + spare;
        if self.bytes >= needed + CHUNK {
            self.give_back(needed);
        }
    }

    /// Give back all bytes beyond `held`.
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
