//! The engine of measurements: [`Lane`]s, one on each thread, keep I/O in flight in the manner of
//! fio's t/io_uring and count what that takes; a [`Crew`] starts them and leads them through the
//! phases of a run. `drystone bench` and the experiments of `drystone-lab` use it.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod cookies;
mod crew;
mod lane;
pub mod machine;
mod stop;

pub use cookies::Paths;
pub use crew::{Crew, Sum, run};
pub use lane::{Counts, Lane, Progress, Shared, Work, failure, phase};
pub use stop::Stop;

/// What the I/Os of a measurement do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Reads all over the device.
    Randread,
    /// Writes all over the device.
    Randwrite,
}
