//! The fixed parts of the messages, field by field, as in "Message Specification" of the protocol
//! text.
//!
//! Invariants:
//! * A structure is as long as the protocol text says, without padding.
//! * Numbers are little-endian, at any address.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header, which every message begins with.
pub const HEADER_BYTES: usize = 12;
/// The longest payload that is read. The longest of a message that is served is a table of
/// [`DESCRIPTORS_MAX`] regions; more are read so that the reason of a refusal can name the message.
/// The `vhost` crate has this bound.
pub const PAYLOAD_BYTES_MAX: usize = 4096;
/// The most descriptors with one message, and so the most regions of a table. The protocol text
/// draws 8 regions, and the `vhost` crate sends up to 32.
pub const DESCRIPTORS_MAX: usize = 32;
/// The most bytes of the configuration space in one message (`VHOST_USER_MAX_CONFIG_SIZE` of QEMU).
pub const CONFIG_BYTES_MAX: usize = 256;

/// The version, in the lowest two bits of the flags.
pub(super) const VERSION: u32 = 1;
/// The bits of the version.
pub(super) const VERSION_BITS: u32 = 3;
/// The message is a reply.
pub(super) const REPLY: u32 = 1 << 2;
/// The sender asks for a reply.
pub(super) const NEED_REPLY: u32 = 1 << 3;

/// Bytes of an in-flight description as the compilers of QEMU and libvhost-user lay it out: four
/// more than its fields.
pub(super) const PADDED_INFLIGHT_BYTES: usize = 24;

/// Defines structures of the wire, and compares their sizes with the protocol's at compile time.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident: $bytes:expr, { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            pub(super) struct $name { $(pub(super) $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

wire! {
    /// The header of a message.
    Header: HEADER_BYTES, { request: U32, flags: U32, size: U32, }
    /// A single 64-bit integer.
    Number: 8, { value: U64, }
    /// A vring state description.
    VringState: 8, { index: U32, num: U32, }
    /// A vring address description.
    VringAddress: 40, {
        index: U32, flags: U32, descriptors: U64, used: U64, available: U64, log: U64,
    }
    /// The beginning of a memory regions description; the regions follow.
    MemoryTable: 8, { regions: U32, padding: U32, }
    /// A region.
    MemoryRegion: 32, { guest: U64, bytes: U64, user: U64, offset: U64, }
    /// A single memory region description.
    SingleRegion: 40, { padding: U64, region: MemoryRegion, }
    /// A log description.
    Log: 16, { bytes: U64, offset: U64, }
    /// The beginning of a part of the configuration space; its bytes follow.
    Config: 12, { offset: U32, size: U32, flags: U32, }
    /// An in-flight description.
    InflightArea: 20, { bytes: U64, offset: U64, queues: U16, queue_size: U16, }
}

const _: () = assert!(
    size_of::<MemoryTable>() + DESCRIPTORS_MAX * size_of::<MemoryRegion>() <= PAYLOAD_BYTES_MAX
);

/// Reads a structure from the beginning of `bytes`; `None` if they are too few.
pub(super) fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Reads a structure that is all of `bytes`; `None` if their number is another.
pub(super) fn read_whole<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_at_any_address() {
        let bytes: Vec<u8> = (0..41).collect();
        let address: VringAddress = read_whole(&bytes[1..]).expect("40 bytes");
        assert_eq!(address.index.get(), 0x0403_0201);
        assert_eq!(address.descriptors.get(), 0x100f_0e0d_0c0b_0a09);
        assert_eq!(address.log.get(), 0x2827_2625_2423_2221);
        assert!(read_whole::<VringAddress>(&bytes).is_none(), "one byte more");
        assert!(read::<VringAddress>(&bytes).is_some(), "a prefix is enough");
        assert!(read::<VringAddress>(&bytes[2..]).is_none(), "one byte less");
    }
}
