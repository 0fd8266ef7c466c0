//! Every lock and every waiting spin of Drystone comes from here, has a named class, and is
//! counted for the context (or control thread) that takes it.
//!
//! Acquisitions and contended waits are always counted; the time of a wait is measured with the
//! clock of whoever waits. No lock is on the way of a bio that no rule concerns: these counters
//! are how that is shown.

mod counters;
mod lock;
#[cfg(loom)]
mod modelled;
mod signal;
mod spin;

pub use counters::{LockClass, LockCounters, LockCounts};
pub use lock::{Guard, Lock};
pub use signal::Signal;
pub(crate) use spin::pause;
