//! The simulator: the whole stack in one thread, on simulated disks and a simulated clock, in an
//! order that a seed decides.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

pub mod cli;
pub mod counts;
pub mod crash;
pub mod disk;
pub mod fiber;
mod mistakes;
pub mod mixed;
pub mod oracle;
pub mod order;
pub mod outcome;
mod panics;
pub mod runner;
pub mod schedule;
pub mod shrink;
pub mod stack;
pub mod trace;
pub mod world;

pub use drystone_core::sim::HAS_POINTS;
pub use mistakes::{MISTAKES, Mistake, mistake};
