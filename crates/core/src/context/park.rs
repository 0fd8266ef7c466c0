//! Going to sleep without missing a message.
//!
//! Invariant: whoever leaves something for the owner (a message, a knock) and then asks
//! [`Parking::should_wake`], and the owner that calls [`Parking::park`] and then looks for what
//! was left, cannot both miss the other.
//!
//! Memory order: each side writes, passes a full fence and reads what the other writes (Dekker),
//! so at least one sees the other.

use crate::primitive::{AtomicBool, Ordering::*, fence};

/// Whether the owner of a context has to be woken to see what was left for it.
pub(super) struct Parking {
    /// The owner sleeps, or is about to.
    parked: AtomicBool,
    /// Somebody watches the ring's descriptors, so they must show what is left. Stays set: a
    /// context that was watched once pays a wake-up for a message from then on.
    watched: AtomicBool,
}

impl Parking {
    pub(super) fn new() -> Self {
        Parking { parked: AtomicBool::new(false), watched: AtomicBool::new(false) }
    }

    /// The owner is about to sleep; it must look at mailbox and knock after this.
    pub(super) fn park(&self) {
        self.parked.store(true, Relaxed);
        if !cfg!(drystone_mutate = "park_fence") {
            fence(SeqCst);
        }
    }

    /// The owner is awake.
    pub(super) fn unpark(&self) {
        self.parked.store(false, Relaxed);
    }

    /// Somebody is about to watch; it must have the context's crank turned after this.
    pub(super) fn watch(&self) {
        self.watched.store(true, Relaxed);
        fence(SeqCst);
    }

    /// True if the waker is needed for what was left before this call.
    pub(super) fn should_wake(&self) -> bool {
        if !cfg!(drystone_mutate = "park_send_fence") {
            fence(SeqCst);
        }
        self.parked.load(Relaxed) || self.watched.load(Relaxed)
    }
}
