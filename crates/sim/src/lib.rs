//! The simulator: the whole stack in one thread, on simulated disks and a simulated clock, in an
//! order that a seed decides.
//!
//! ```
//! use drystone_sim::disk::{Disk, DiskOp, DiskOptions};
//!
//! // Seed 1 decides what becomes of writes that nobody flushed.
//! let mut disk = Disk::new(DiskOptions::new(1 << 20), 1);
//! let mut run = |op| {
//!     let (id, ends_at) = disk.begin(0, op);
//!     (disk.finish(id).result, ends_at)
//! };
//! assert_eq!(run(DiskOp::Write { offset: 0, data: vec![7; 4096], fua: false }).0, 4096);
//! assert_eq!(run(DiskOp::Flush).0, 0);
//! disk.power_cut();
//! assert_eq!(disk.contents()[..4096], [7; 4096]);
//! ```

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
