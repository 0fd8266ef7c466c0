//! What a split ring needs to start.

use super::super::proto::{Features, VringAddresses};
use super::super::session::QueueStart;

/// The most descriptors of a chain, all those of its indirect table counted, but not the one that
/// names the table. This is a bound of our own, so that no chain costs much: the standard allows as
/// many as the ring has entries.
pub const DESCRIPTORS_MAX: u32 = 1024;

/// What a split ring needs to start.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Its entries: a power of two, at most 2^15.
    pub size: u16,
    /// The available index to begin at.
    pub base: u16,
    /// Its addresses.
    pub addresses: VringAddresses,
    /// The features that the driver chose.
    pub features: Features,
}

impl<F> From<&QueueStart<F>> for RingSetup {
    /// # Panics
    /// If the ring is packed: a mistake of the caller.
    fn from(start: &QueueStart<F>) -> Self {
        assert!(!start.features.contains(Features::RING_PACKED), "a split ring");
        let QueueStart { size, addresses, features, .. } = *start;
        // The session takes no base of a split ring that has more bits.
        Self { size, base: start.base as u16, addresses, features }
    }
}
