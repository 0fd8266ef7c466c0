//! What a back end offers to its front end.

use super::super::proto::{Features, ProtocolFeatures};

/// The most queues: the messages that set descriptors have 8 bits for the number of a queue.
pub const QUEUES_MAX: u16 = 256;
/// The most entries of a queue (virtio 1.3, section 2.7).
pub const QUEUE_SIZE_MAX: u16 = 1 << 15;
/// The most regions: a bound of our own, since the protocol has none. It limits a table's memory
/// and the search for regions that overlap. libvhost-user has the same number.
pub const SLOTS_MAX: usize = 509;

/// What a back end offers to its front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    features: Features,
    protocol_features: ProtocolFeatures,
    queues: u16,
    queue_size_max: u16,
}

impl Offer {
    /// An offer of `queues` queues of at most `queue_size_max` entries. Two features are always
    /// offered: [`Features::PROTOCOL_FEATURES`], and [`Features::ANY_LAYOUT`], since nothing here
    /// depends on the layout of a request.
    ///
    /// # Panics
    /// When there are no queues or more than [`QUEUES_MAX`], or no entries or more than
    /// [`QUEUE_SIZE_MAX`]: a mistake of the caller.
    pub fn new(
        features: Features,
        protocol_features: ProtocolFeatures,
        queues: u16,
        queue_size_max: u16,
    ) -> Self {
        assert!((1..=QUEUES_MAX).contains(&queues), "{queues} queues");
        assert!((1..=QUEUE_SIZE_MAX).contains(&queue_size_max), "{queue_size_max} entries");
        let features = features | Features::PROTOCOL_FEATURES | Features::ANY_LAYOUT;
        Self { features, protocol_features, queues, queue_size_max }
    }

    /// Features of the device.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Features of the protocol.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features
    }

    /// Number of queues.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The most entries of a queue.
    pub fn queue_size_max(&self) -> u16 {
        self.queue_size_max
    }
}
