//! Units and numbers that are types of their own. A sector is always 512 bytes, whatever the block
//! size of a device; sizes in public interfaces are bytes unless the name says sectors.

/// Bytes in a sector, as a shift.
pub const SECTOR_SHIFT: u32 = 9;
/// Bytes in a sector.
pub const SECTOR_SIZE: u64 = 1 << SECTOR_SHIFT;

/// A position on a device, in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Sector(pub u64);

impl Sector {
    /// The sector that holds byte `offset` (rounded down).
    #[inline]
    pub const fn from_bytes(offset: u64) -> Self {
        Sector(offset >> SECTOR_SHIFT)
    }

    /// Byte offset of the first byte of this sector. Wraps for positions no device can have
    /// (2^55 sectors and more); ranges are checked against the device before this matters.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 << SECTOR_SHIFT
    }

    /// This position moved forward by `bytes`, which must be a multiple of a sector.
    #[inline]
    pub const fn after(self, bytes: u64) -> Self {
        Sector(self.0.wrapping_add(bytes >> SECTOR_SHIFT))
    }
}

impl std::fmt::Display for Sector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a channel in its context, which has one channel for each device that it uses.
///
/// The context gives it out: to its owner for [`Context::open`](crate::Context::open), to a channel
/// for [`Env::channel_of`](crate::Env::channel_of), and to the channel itself as it is opened
/// ([`Device::open_channel`](crate::Device::open_channel)). In another context it names another
/// channel, or none. It is valid until [`Context::release`](crate::Context::release) for the owner,
/// until the end of the device among [`Channel::members`](crate::Channel::members) for a channel
/// above, and until the channel is dropped for the channel itself. A number that is valid for none
/// of them is given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ChannelId(pub u32);

impl ChannelId {
    /// The number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a channel's port among those of its device.
///
/// The device gives it out as it opens the port ([`Ports::open`](crate::Ports::open)). In another
/// device it names another port, or none. It is valid until the port is closed, and then given
/// again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PortId(pub u32);

impl PortId {
    /// The number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a context in its set; numbers of dropped contexts are given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ContextId(pub u32);

impl ContextId {
    /// The number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
