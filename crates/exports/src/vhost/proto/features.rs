//! Feature bits: those of virtio, which the driver in the guest negotiates, and those of the
//! protocol, which concern front end and back end only.

bitflags::bitflags! {
    /// Features of the device (virtio 1.3, sections 5.2.3 and 6) and of vhost. Bits without a name
    /// are kept, so that a refusal can show them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// A segment has at most so many bytes (`size_max`).
        const SIZE_MAX = 1 << 1;
        /// A request has at most so many segments (`seg_max`).
        const SEG_MAX = 1 << 2;
        /// The device is read-only.
        const RO = 1 << 5;
        /// The block size is known (`blk_size`).
        const BLK_SIZE = 1 << 6;
        /// The device has a cache and flushes it on request.
        const FLUSH = 1 << 9;
        /// The device has optimal alignments (`topology`).
        const TOPOLOGY = 1 << 10;
        /// The driver may turn the cache on and off (`writeback`).
        const CONFIG_WCE = 1 << 11;
        /// The device has several queues (`num_queues`).
        const MQ = 1 << 12;
        /// The device discards.
        const DISCARD = 1 << 13;
        /// The device writes zeroes without data.
        const WRITE_ZEROES = 1 << 14;
        /// Writes to memory are logged, for a migration (`VHOST_F_LOG_ALL`).
        const LOG_ALL = 1 << 26;
        /// The parts of a request may be cut into descriptors in any way (`ANY_LAYOUT`). Drivers of
        /// virtio 1.0 do so without asking, older ones choose it.
        const ANY_LAYOUT = 1 << 27;
        /// Descriptors may name a table of further ones.
        const RING_INDIRECT_DESC = 1 << 28;
        /// Each side says at which index it wants to be notified.
        const RING_EVENT_IDX = 1 << 29;
        /// Protocol features are negotiated (`VHOST_USER_F_PROTOCOL_FEATURES`). Rings then start
        /// disabled.
        const PROTOCOL_FEATURES = 1 << 30;
        /// The device follows virtio 1.0 or later.
        const VERSION_1 = 1 << 32;
        /// Rings are packed; split ones otherwise.
        const RING_PACKED = 1 << 34;
    }
}

bitflags::bitflags! {
    /// Features of the protocol ("Protocol features" of the protocol text), those that this back
    /// end has. Bits without a name are kept, so that a refusal can show them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ProtocolFeatures: u64 {
        /// `GET_QUEUE_NUM` tells the most queues.
        const MQ = 1 << 0;
        /// The log of a migration is shared memory.
        const LOG_SHMFD = 1 << 1;
        /// Any message may ask for a reply.
        const REPLY_ACK = 1 << 3;
        /// The back end has a channel for requests of its own.
        const BACKEND_REQ = 1 << 5;
        /// The front end reads and writes the configuration space.
        const CONFIG = 1 << 9;
        /// Requests in flight are noted in shared memory, which outlives the back end.
        const INFLIGHT_SHMFD = 1 << 12;
        /// `RESET_DEVICE` resets the device.
        const RESET_DEVICE = 1 << 13;
        /// Regions of memory are added and removed one by one.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        /// The front end reads and writes the device status.
        const STATUS = 1 << 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_standards() {
        let ring = Features::RING_INDIRECT_DESC | Features::RING_EVENT_IDX | Features::ANY_LAYOUT;
        assert_eq!((ring | Features::VERSION_1).bits(), 0x1_3800_0000);
        assert_eq!((Features::RING_PACKED | Features::LOG_ALL).bits(), 0x4_0400_0000);
        assert_eq!(Features::PROTOCOL_FEATURES.bits(), 0x4000_0000);
        assert_eq!(ProtocolFeatures::all().bits(), 0x1_b22b);
    }

    #[test]
    fn unknown_bits_stay() {
        let features = Features::from_bits_retain(1 << 63 | 1 << 5);
        assert_eq!(features - Features::all(), Features::from_bits_retain(1 << 63));
    }
}
