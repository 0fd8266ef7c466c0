//! The set of contexts that share devices: how they find, wake and visit each other.
//!
//! Invariants:
//! * A handle stays in the set until its context is dropped *and* idle, so the memory that
//!   drivers and the kernel refer to stays.
//! * `kick` is lock-free but for the set's own lock, which is held for a look-up only.

use super::core::ContextCore;
use super::deliver;
use super::park::Parking;
use super::wake::WakeUp;
use crate::clock::Clock;
use crate::gate::{Gate, Visit};
use crate::mailbox::{Mailbox, Message};
use crate::mistake;
use crate::primitive::Barriers;
use crate::ring::{Ring, Token, Waker};
use crate::sync::{Lock, LockClass, LockCounters, LockRegistry};
use crate::units::ContextId;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// The part of a context that other threads may reach. On cache lines of its own: every call
/// writes to it.
#[repr(align(128))]
pub struct Handle {
    pub(super) id: ContextId,
    pub(super) gate: Gate,
    pub(super) mailbox: Mailbox,
    pub(super) locks: Arc<LockCounters>,
    pub(super) set: Arc<ContextSet>,
    pub(super) core: UnsafeCell<ContextCore>,
    waker: Arc<dyn Waker>,
    serial: u64,
    descriptors: [RawFd; 2],
    parking: Parking,
    wake_up: WakeUp,
}

// SAFETY: `core` is touched only inside the gate, which admits one thread at a time and orders
// their accesses; everything in it is Send.
unsafe impl Send for Handle {}
// SAFETY: as above; all other fields are Sync.
unsafe impl Sync for Handle {}

impl Handle {
    /// The context's number.
    pub fn id(&self) -> ContextId {
        self.id
    }

    /// A number that no other context of the set has had.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Make the context's current wait, or else its next one, return; from any thread. What
    /// the caller wrote before this is seen by the owner after that wait.
    pub fn wake(&self) {
        self.wake_up.ask(&*self.waker);
    }

    /// True while a wake-up waits for a wait to end.
    pub(super) fn is_woken(&self) -> bool {
        self.wake_up.is_asked()
    }

    /// A wait ends: the wake-ups so far have had their effect.
    pub(super) fn take_wake(&self) {
        self.wake_up.take();
    }

    /// Send `message` to the context, from any thread, and wake it if it sleeps.
    pub fn send(&self, message: Arc<Message>) {
        self.mailbox.push(message);
        if self.parking.should_wake() && !mistake!("wake_up_dropped") {
            self.waker.wake();
        }
    }

    /// After the owner has left the gate: true if a message came that no other thread will deliver.
    pub(super) fn mail_came(&self) -> bool {
        deliver::mail_came(|| !self.mailbox.is_empty())
    }

    /// Put `message` into the mailbox of a context that expects it. True if the caller must kick
    /// the context, because its owner is away.
    pub(super) fn notify_lazily(&self, message: Arc<Message>) -> bool {
        self.mailbox.push(message);
        let will_recheck = deliver::owner_will_recheck(|| self.gate.is_inside());
        if self.parking.is_parked() {
            if !mistake!("wake_up_dropped") {
                self.waker.wake();
            }
            return false;
        }
        !will_recheck
    }

    pub(super) fn parking(&self) -> &Parking {
        &self.parking
    }

    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        self.descriptors
    }

    pub(super) fn has_visit_request(&self) -> bool {
        self.gate.has_visit_request()
    }

    /// Run this context's pending work, or have its owner or another visitor run it. Everything
    /// that had arrived for the context before the call is delivered, though its owner may stay
    /// away.
    pub fn kick(self: &Arc<Self>) {
        Self::kick_all(Kicks::from_iter([self.clone()]));
    }

    /// Kick `work`, and whatever needs a kick as a consequence. Call outside every gate.
    pub(super) fn kick_all(mut work: Kicks) {
        while let Some(handle) = work.pop() {
            handle.kick_once(&mut work);
        }
    }

    fn kick_once(&self, work: &mut Kicks) {
        loop {
            match self.gate.visit() {
                Visit::Granted => {
                    // SAFETY: the visit was granted, so no other thread is inside the gate.
                    let core = unsafe { &mut *self.core.get() };
                    core.run_pending(&self.gate, &self.mailbox);
                    work.append(&mut core.take_kicks());
                    core.announce(self);
                    if !self.gate.end_visit() {
                        return;
                    }
                }
                Visit::VisitorWill => return,
                Visit::OwnerWill => {
                    // Not for watchers: they would be told of their own kicks.
                    if self.parking.is_parked() {
                        self.waker.wake();
                    }
                    return;
                }
            }
        }
    }

    /// Run the pending work, then say whether no driver refers to this context any more. False also
    /// while another thread is inside.
    fn is_idle(self: &Arc<Self>) -> bool {
        if self.gate.visit() != Visit::Granted {
            return false;
        }
        // SAFETY: the visit was granted, so no other thread is inside the gate.
        let core = unsafe { &mut *self.core.get() };
        core.run_pending(&self.gate, &self.mailbox);
        let (idle, kicks) = (core.is_idle(), core.take_kicks());
        let again = self.gate.end_visit();
        Self::kick_all(kicks);
        if again {
            self.kick();
        }
        idle && !again
    }
}

/// Contexts to be kicked. As many as a server has threads, as a rule, need no memory of their own.
pub(crate) type Kicks = SmallVec<[Arc<Handle>; 8]>;

/// A context as another one that watches it knows it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) id: ContextId,
    /// Numbers and descriptors are used again after a context was dropped, serials are not.
    serial: u64,
    pub(super) descriptors: [RawFd; 2],
}

impl Other {
    /// The token of the watch's events.
    pub(super) fn token(&self) -> Token {
        Token::new(Token::CONTEXT, self.id.0.into())
    }
}

struct Members {
    serial: u64,
    /// By number; a gap is a context that is gone.
    handles: Vec<Option<Arc<Handle>>>,
    orphans: Vec<Arc<Handle>>,
}

impl Members {
    /// Free the number of `handle`, unless somebody else has it by now.
    fn forget(&mut self, handle: &Arc<Handle>) {
        let place = &mut self.handles[handle.id.index()];
        if place.as_ref().is_some_and(|there| Arc::ptr_eq(there, handle)) {
            *place = None;
        }
    }
}

/// The contexts of one stack. Shared by all threads.
pub struct ContextSet {
    clock: Arc<dyn Clock>,
    registry: Arc<LockRegistry>,
    locks: Arc<LockCounters>,
    members: Lock<Members>,
    pid: u32,
}

impl ContextSet {
    /// An empty set on `clock`, with a lock registry of its own.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::counted_by(LockRegistry::new(clock))
    }

    /// An empty set on the clock of `registry`, which counts the locks of its contexts.
    pub fn counted_by(registry: Arc<LockRegistry>) -> Arc<Self> {
        let clock = registry.clock().clone();
        let members = Members { serial: 0, handles: Vec::new(), orphans: Vec::new() };
        Arc::new(ContextSet {
            locks: registry.counters(),
            registry,
            clock,
            members: Lock::new(LockClass::ContextSet, members),
            pid: std::process::id(),
        })
    }

    /// The clock of the set.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The registry that counts the locks of all its contexts.
    pub fn lock_registry(&self) -> &Arc<LockRegistry> {
        &self.registry
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Give a context on `ring` a number and a handle. `make_core` makes its state.
    pub(super) fn add<M>(self: &Arc<Self>, mut ring: Box<dyn Ring>, make_core: M) -> Arc<Handle>
    where
        M: FnOnce(Box<dyn Ring>, Arc<LockCounters>, Weak<Handle>, ContextId) -> ContextCore,
    {
        let barriers = Barriers::detect();
        let mut members = self.members.lock(&self.locks);
        let free = members.handles.iter().position(Option::is_none);
        let id = ContextId(free.unwrap_or(members.handles.len()) as u32);
        let locks = self.registry.counters();
        ring.count_locks_for(&locks);
        members.serial += 1;
        let serial = members.serial;
        let handle = Arc::new_cyclic(|weak: &Weak<Handle>| Handle {
            id,
            gate: Gate::new(barriers),
            mailbox: Mailbox::new(),
            locks: locks.clone(),
            set: self.clone(),
            waker: ring.waker(),
            descriptors: ring.descriptors(),
            serial,
            parking: Parking::default(),
            wake_up: WakeUp::default(),
            core: UnsafeCell::new(make_core(ring, locks, weak.clone(), id)),
        });
        match free {
            Some(_) => members.handles[id.index()] = Some(handle.clone()),
            None => members.handles.push(Some(handle.clone())),
        }
        handle
    }

    /// Context number `id`.
    pub(super) fn find(&self, id: ContextId) -> Option<Arc<Handle>> {
        self.members.lock(&self.locks).handles.get(id.index()).cloned().flatten()
    }

    /// Run the pending work of context number `id` ([`Handle::kick`]).
    pub fn kick(&self, id: ContextId) {
        if let Some(handle) = self.find(id) {
            handle.kick();
        }
    }

    /// Run the pending work of every context.
    pub fn kick_all(&self) {
        let all: Vec<_> =
            self.members.lock(&self.locks).handles.iter().flatten().cloned().collect();
        all.iter().for_each(|handle| handle.kick());
    }

    /// Put every context but `id` into `found`; they count as watched from now on.
    pub(super) fn others(&self, id: ContextId, found: &mut Vec<Other>) {
        self.others_do(id, |h| {
            h.parking.watch();
            found.push(Other { id: h.id, serial: h.serial, descriptors: h.descriptors });
        });
    }

    /// Call `f` with each context but `id`.
    pub(super) fn others_do(&self, id: ContextId, f: impl FnMut(&Arc<Handle>)) {
        let members = self.members.lock(&self.locks);
        members.handles.iter().flatten().filter(|h| h.id != id).for_each(f);
    }

    /// Keep the state of a dropped context until its drivers have given everything back.
    pub(super) fn orphan(&self, handle: &Arc<Handle>) {
        if handle.is_idle() {
            self.members.lock(&self.locks).forget(handle);
        } else {
            self.members.lock(&self.locks).orphans.push(handle.clone());
        }
        self.free_idle_orphans();
    }

    /// Free the state of dropped contexts whose I/O has ended. Returns how many are left.
    pub fn free_idle_orphans(&self) -> usize {
        let orphans = self.members.lock(&self.locks).orphans.clone();
        let idle: Vec<_> = orphans.into_iter().filter(|handle| handle.is_idle()).collect();
        let mut members = self.members.lock(&self.locks);
        idle.iter().for_each(|handle| members.forget(handle));
        members.orphans.retain(|o| !idle.iter().any(|i| Arc::ptr_eq(i, o)));
        members.orphans.len()
    }
}
