//! The device's side of a virtqueue: takes chains of descriptors that the driver made available,
//! and gives them back as used (virtio 1.3, section 2.7).
//!
//! Every value in guest memory is read once, then checked, then used. What no driver may do breaks
//! the ring with a [`RingError`], and nothing more is taken from it.

#![forbid(unsafe_code)]

mod chain;
mod error;
mod heads;
mod notices;
#[cfg(all(test, loom))]
mod notices_models;
mod setup;
mod split;
#[cfg(test)]
pub(super) mod tests;

pub use chain::Chain;
pub use error::RingError;
pub use setup::{DESCRIPTORS_MAX, RingSetup};
pub use split::SplitRing;
