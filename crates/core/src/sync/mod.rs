//! Every lock and every waiting spin of Drystone comes from here, has a named class, and is
//! counted for the context (or control thread) that takes it.
//!
//! Acquisitions and contended waits are always counted; the time of a wait is measured with the
//! clock of the waiting user. The times of holds are measured only when a [`LockRegistry`] is told
//! to. No lock is on the way of a bio that no rule concerns, which these counters show.

#![allow(unsafe_code, reason = "locks hand out what they guard")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is the one module of locks and counted spins"
)]

mod cells;
mod class;
mod counters;
mod lock;
#[cfg(loom)]
mod modelled;
mod registry;
mod signal;
mod spin;
mod stats;

pub use class::LockClass;
pub use counters::{LockCounters, LockCounts};
pub use lock::{Guard, Lock};
pub use registry::LockRegistry;
pub use signal::Signal;
pub use spin::between_polls;
pub(crate) use spin::pause;
pub use stats::{ClassStats, LOCK_COLUMNS, LockStats, LockTimes, lock_table};
