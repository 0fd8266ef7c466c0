//! The reasons why a session refuses a message.

use super::super::blk_config::WRITEBACK_OFFSET;
use super::super::proto::{Malformed, Region, Request, UserAddress};
use super::action::QueueIndex;
use super::offer::SLOTS_MAX;
use super::shape::InflightShape;
use std::fmt;

/// One of the two spaces of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// As the guest knows them.
    Guest,
    /// As the front end knows them.
    User,
}

impl fmt::Display for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressSpace::Guest => "guest",
            AddressSpace::User => "user",
        })
    }
}

/// A part of a ring. The second and third are the event areas of a packed ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPart {
    /// The descriptor table, or the packed ring.
    Descriptors,
    /// The available ring, or the driver's event area.
    Available,
    /// The used ring, or the device's event area.
    Used,
}

impl fmt::Display for RingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RingPart::Descriptors => "descriptor table",
            RingPart::Available => "available ring",
            RingPart::Used => "used ring",
        })
    }
}

/// The reason why a session refuses a message. The text is for the log; a front end gets a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Payload or descriptors do not belong to the message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The message belongs to a feature that was not negotiated.
    #[error("{request} belongs to the feature {name}, which was not negotiated")]
    NotNegotiated {
        /// The message.
        request: Request,
        /// The feature.
        name: &'static str,
    },
    /// Features are chosen that were not offered.
    #[error("SET_FEATURES has bits {bits:#x} that were not offered: offered are {offered:#x}")]
    FeaturesNotOffered {
        /// The bits.
        bits: u64,
        /// All that were offered.
        offered: u64,
    },
    /// Protocol features are chosen that were not offered.
    #[error(
        "SET_PROTOCOL_FEATURES has bits {bits:#x} that were not offered: offered are {offered:#x}"
    )]
    ProtocolFeaturesNotOffered {
        /// The bits.
        bits: u64,
        /// All that were offered.
        offered: u64,
    },
    /// The features of a queue that runs would change.
    #[error(
        "SET_FEATURES changes more than LOG_ALL while queue {queue} runs: GET_VRING_BASE stops it"
    )]
    FeaturesOfRunningQueue {
        /// The first queue that runs.
        queue: QueueIndex,
    },
    /// The device status has too many bits.
    #[error("SET_STATUS has {0:#x}: the device status has 8 bits")]
    Status(u64),
    /// No queue has this number.
    #[error("{request} names queue {number}: there are {queues}, and the first is 0")]
    NoSuchQueue {
        /// The message.
        request: Request,
        /// The number.
        number: u32,
        /// How many there are.
        queues: u16,
    },
    /// A queue that runs would change.
    #[error("{request} came while queue {queue} runs: GET_VRING_BASE stops it")]
    QueueRuns {
        /// The message.
        request: Request,
        /// The queue.
        queue: QueueIndex,
    },
    /// A queue has no entries or too many.
    #[error("SET_VRING_NUM gives queue {queue} {size} entries: 1 to {size_max} are possible")]
    QueueSize {
        /// The queue.
        queue: QueueIndex,
        /// Its entries.
        size: u32,
        /// The most.
        size_max: u16,
    },
    /// A split ring has an odd size.
    #[error("queue {queue} has {size} entries: those of a split ring are a power of two")]
    SizeNoPowerOfTwo {
        /// The queue.
        queue: QueueIndex,
        /// Its entries.
        size: u16,
    },
    /// A split ring has an index of a packed ring.
    #[error("queue {queue} is to begin at index {base:#x}: that of a split ring has 16 bits")]
    BaseTooLarge {
        /// The queue.
        queue: QueueIndex,
        /// The index.
        base: u32,
    },
    /// A queue is neither enabled nor disabled.
    #[error("SET_VRING_ENABLE has {value} for queue {queue}: 1 enables it, 0 disables it")]
    EnableValue {
        /// The queue.
        queue: QueueIndex,
        /// The value.
        value: u32,
    },
    /// A queue would have to be polled.
    #[error(
        "SET_VRING_KICK brings no descriptor for queue {queue}: this back end needs one, since it \
         does not poll all the time"
    )]
    NoKick {
        /// The queue.
        queue: QueueIndex,
    },
    /// A queue is started before all that it needs is known.
    #[error("SET_VRING_KICK starts queue {queue}, but {missing} did not come before it")]
    KickTooEarly {
        /// The queue.
        queue: QueueIndex,
        /// The message that did not come.
        missing: &'static str,
    },
    /// A part of a ring is not aligned.
    #[error(
        "the {part} of queue {queue} begins at user address {:#x}, which is no multiple of {align}",
        start.0
    )]
    Unaligned {
        /// The queue.
        queue: QueueIndex,
        /// The part.
        part: RingPart,
        /// Its address.
        start: UserAddress,
        /// Its alignment, bytes.
        align: u64,
    },
    /// A part of a ring is not in memory.
    #[error(
        "the {part} of queue {queue}, {bytes} bytes at user address {:#x}, lies in no region of \
         memory",
        start.0
    )]
    OutsideMemory {
        /// The queue.
        queue: QueueIndex,
        /// The part.
        part: RingPart,
        /// Its address.
        start: UserAddress,
        /// Its length, bytes.
        bytes: u64,
    },
    /// Two regions share addresses.
    #[error("{request}: the region of {new} shares {space} addresses with that of {old}")]
    RegionsOverlap {
        /// The message.
        request: Request,
        /// The region that it brings.
        new: Region,
        /// The region that was there.
        old: Region,
        /// Which addresses they share.
        space: AddressSpace,
    },
    /// A table is full.
    #[error("ADD_MEM_REG: there are {SLOTS_MAX} regions, and no more fit")]
    TooManyRegions,
    /// No such region can be removed.
    #[error("REM_MEM_REG: no region has {0}")]
    NoSuchRegion(Region),
    /// A field of the configuration space may not be written.
    #[error(
        "SET_CONFIG writes {size} bytes at {offset} of the configuration space: only the byte \
         writeback at {WRITEBACK_OFFSET} may be written"
    )]
    ConfigWrite {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        size: u32,
    },
    /// The driver did not negotiate that it sets the cache.
    #[error("SET_CONFIG sets writeback, but the driver did not negotiate CONFIG_WCE")]
    WritebackNotNegotiated,
    /// The cache is neither on nor off.
    #[error("SET_CONFIG sets writeback to {0}: 1 turns the cache on, 0 turns it off")]
    WritebackValue(u8),
    /// An in-flight region is for other queues than there are.
    #[error(
        "{request} is for {shape}: 1 to {queues_max} queues of 1 to {size_max} entries are possible"
    )]
    InflightShape {
        /// The message.
        request: Request,
        /// Its shape.
        shape: InflightShape,
        /// The most queues.
        queues_max: u16,
        /// The most entries.
        size_max: u16,
    },
    /// An in-flight region is shorter than its shape.
    #[error("{request}: the in-flight region has {bytes} bytes, but {shape} need {needed}")]
    InflightLength {
        /// The message.
        request: Request,
        /// Its shape.
        shape: InflightShape,
        /// Bytes that it has.
        bytes: u64,
        /// Bytes that it needs.
        needed: u64,
    },
    /// A queue is not within the in-flight region.
    #[error(
        "queue {queue} of {size} entries has no room in the in-flight region, which is for {shape}"
    )]
    OutsideInflight {
        /// The queue.
        queue: QueueIndex,
        /// Its entries.
        size: u16,
        /// The shape of the region.
        shape: InflightShape,
    },
    /// The server could not carry an action out.
    #[error("{request}: {why}")]
    NotDone {
        /// The message.
        request: Request,
        /// The reason.
        why: String,
    },
}
