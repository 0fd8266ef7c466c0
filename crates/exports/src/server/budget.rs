//! The memory that requests of clients may have, all together.
//!
//! Each client has [`MINIMUM`] bytes of its own and takes more from the one [`Budget`] of the process, by
//! chunks. What is not there is waited for in line.
//!
//! Invariants:
//! * `free` and what all shares have (granted to those that wait, too) is the whole.
//! * Who waits is served in order, and nobody takes while somebody waits: so no request is too long to get
//!   its turn, whatever others keep asking for.
//! * Everything but the hints is under the lock.
//!
//! Why whoever waits gets on: what a share has is for buffers. Those that are idle are freed by the next
//! sweep, or as soon as one is given back. Those of a device come back, by its time-out at the latest.
//! Those of replies and of data on its way are the client's affair: one that neither takes nor sends
//! anything is cut off while others wait. And nobody waits for more than the whole.

use drystone_core::context::Handle;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// Bytes of buffers that each client may have whatever others do: 36 requests of 4 KiB, or one of 256 KiB.
pub(crate) const MINIMUM: u64 = 288 << 10;
/// What is beyond that comes in multiples of this, so that the budget is rarely asked.
const CHUNK: u64 = 1 << 20;

/// How much is left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Pressure {
    None,
    /// Less than half is free: nobody keeps what is idle.
    Scarce,
    /// Somebody waits.
    Short,
}

/// Memory for requests of clients of a process. Any thread may use it.
pub struct Budget {
    total: u64,
    /// A hint that is read without the lock.
    pressure: AtomicU8,
    state: Lock<State>,
}

struct State {
    free: u64,
    line: VecDeque<Arc<Waiter>>,
}

/// A client that waits.
struct Waiter {
    bytes: u64,
    /// The bytes were taken from the budget for it.
    granted: AtomicBool,
    /// Whom to wake then.
    thread: Arc<Handle>,
}

impl Budget {
    /// A budget of so many bytes; at least one chunk of 1 MiB.
    pub fn new(bytes: u64) -> Arc<Self> {
        let total = (bytes / CHUNK).max(1) * CHUNK;
        let state = Lock::new(LockClass::Buffers, State { free: total, line: VecDeque::new() });
        Arc::new(Budget { total, pressure: AtomicU8::new(Pressure::None as u8), state })
    }

    /// A budget that never ends.
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// Its bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that nobody has.
    pub fn free(&self, user: &LockCounters) -> u64 {
        self.state.lock(user).free
    }

    /// How many clients wait for some.
    pub fn waiting(&self, user: &LockCounters) -> usize {
        self.state.lock(user).line.len()
    }

    /// Somebody waits for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.pressure.load(Relaxed) == Pressure::Short as u8
    }

    fn is_scarce(&self) -> bool {
        self.pressure.load(Relaxed) != Pressure::None as u8
    }

    /// Change something, then serve those that wait as far as there is memory for them.
    fn change<T>(&self, user: &LockCounters, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock(user);
        let told = act(&mut state);
        let mut served = Vec::new();
        let State { free, line } = &mut *state;
        while let Some(first) = line.pop_front_if(|first| first.bytes <= *free) {
            *free -= first.bytes;
            first.granted.store(true, Release);
            served.push(first);
        }
        let pressure = match state.free < self.total / 2 {
            _ if !state.line.is_empty() => Pressure::Short,
            true => Pressure::Scarce,
            false => Pressure::None,
        };
        self.pressure.store(pressure as u8, Relaxed);
        drop(state);
        served.iter().for_each(|waiter| waiter.thread.wake());
        told
    }

    /// Whole chunks, but never more than there are.
    fn chunks(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX).min(self.total)
    }
}

/// What one client has of a budget beyond its minimum. Belongs to one thread.
pub(crate) struct Share {
    budget: Arc<Budget>,
    user: Arc<LockCounters>,
    thread: Arc<Handle>,
    bytes: u64,
    waiter: Option<Arc<Waiter>>,
}

impl Share {
    /// Nothing yet. `thread` is woken when what was waited for is there.
    pub(crate) fn new(budget: Arc<Budget>, user: Arc<LockCounters>, thread: Arc<Handle>) -> Self {
        Share { budget, user, thread, bytes: 0, waiter: None }
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

    /// Idle memory is wanted elsewhere.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_empty() && self.budget.is_scarce()
    }

    /// Take so many bytes more, if they are there and nobody waits.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let wanted = self.budget.chunks(bytes);
        let taken = self.budget.change(&self.user, |state| {
            let there = state.line.is_empty() && state.free >= wanted;
            state.free -= if there { wanted } else { 0 };
            there
        });
        self.bytes += if taken { wanted } else { 0 };
        taken
    }

    /// Wait in line for so many bytes more.
    pub(super) fn wait_for(&mut self, bytes: u64) {
        debug_assert!(self.waiter.is_none(), "one request waits at a time");
        let (bytes, granted) = (self.budget.chunks(bytes), AtomicBool::new(false));
        let waiter = Arc::new(Waiter { bytes, granted, thread: self.thread.clone() });
        self.budget.change(&self.user, |state| state.line.push_back(waiter.clone()));
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
        self.budget.change(&self.user, |state| match waiter.granted.load(Acquire) {
            true => state.free += waiter.bytes,
            false => state.line.retain(|other| !Arc::ptr_eq(other, &waiter)),
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
            self.budget.change(&self.user, |state| state.free += spare);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.wait_no_more();
        self.give_back(0);
    }
}
