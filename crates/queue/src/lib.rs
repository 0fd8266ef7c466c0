//! The request queue of a leaf device: plug, merging, splitting, tags, schedulers, the flush
//! machine, time-outs and statistics, between bios above and a driver below.
//!
//! The order is that of Linux's blk-mq: a bio is checked, split to the device's limits, merged
//! with what the plug or scheduler holds, gets a tag and becomes a request, and goes to the
//! driver. One [`channel::RequestChannel`] does this for one context; what contexts share is a
//! tag set for each hardware queue and a configuration that is read by copy.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod channel;
mod clock_use;
pub mod config;
pub mod driver;
mod flush;
pub mod queue;
mod queues;
pub mod request;
pub mod scheduler;
mod shared;
pub mod split;
pub mod tags;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod unit;

pub use clock_use::ClockUse;
pub use driver::{Driver, DriverQueue, HwQueues, INLINE_BYTES_MAX, Issue};
pub use queue::RequestQueue;
pub use queues::QUEUES_MAX;
pub use request::{Request, Slots};
