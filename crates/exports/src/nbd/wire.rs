//! The fixed parts of the protocol's messages, field by field.
//!
//! Invariants:
//! * A structure is as long as the protocol text says ([`super::proto`]), without padding.
//! * Numbers are big-endian, at any address.

use super::proto::{
    EXTENDED_REPLY_BYTES, EXTENDED_REQUEST_BYTES, OPTION_HEADER_BYTES, OPTION_REPLY_HEADER_BYTES,
    REQUEST_BYTES, SIMPLE_REPLY_BYTES, STRUCTURED_REPLY_BYTES,
};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the greeting.
pub(super) const GREETING_BYTES: usize = 18;

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
    /// The server's first message.
    Greeting: GREETING_BYTES, { init_magic: U64, option_magic: U64, flags: U16, }
    /// The header of an option.
    OptionHeader: OPTION_HEADER_BYTES, { magic: U64, option: U32, length: U32, }
    /// The header of a reply to an option.
    OptionReplyHeader: OPTION_REPLY_HEADER_BYTES, {
        magic: U64, option: U32, code: U32, length: U32,
    }
    /// A request.
    CompactRequest: REQUEST_BYTES, {
        magic: U32, flags: U16, command: U16, cookie: U64, offset: U64, length: U32,
    }
    /// A request with extended headers.
    ExtendedRequest: EXTENDED_REQUEST_BYTES, {
        magic: U32, flags: U16, command: U16, cookie: U64, offset: U64, length: U64,
    }
    /// A simple reply.
    SimpleReply: SIMPLE_REPLY_BYTES, { magic: U32, error: U32, cookie: U64, }
    /// The header of a chunk of a structured reply.
    StructuredChunk: STRUCTURED_REPLY_BYTES, {
        magic: U32, flags: U16, kind: U16, cookie: U64, length: U32,
    }
    /// The header of a chunk of an extended reply.
    ExtendedChunk: EXTENDED_REPLY_BYTES, {
        magic: U32, flags: U16, kind: U16, cookie: U64, offset: U64, length: U64,
    }
    /// The payload of a hole chunk.
    Hole: 12, { offset: U64, length: U32, }
    /// The fields of an error chunk before its message.
    ErrorHeader: 6, { error: U32, message_bytes: U16, }
    /// A descriptor of a block status chunk.
    Descriptor: 8, { length: U32, status: U32, }
    /// A descriptor of an extended block status chunk.
    ExtendedDescriptor: 16, { length: U64, status: U64, }
}

/// Reads a structure from the beginning of `bytes`; `None` if they are too few.
#[inline]
pub(super) fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Writes a structure to the beginning of `out`. Returns its length.
///
/// # Panics
/// If there is no room: our own mistake.
#[inline]
pub(super) fn write<T: IntoBytes + Immutable>(out: &mut [u8], value: &T) -> usize {
    let written = value.write_to_prefix(out);
    assert!(written.is_ok(), "no room for {} bytes of a message", size_of::<T>());
    size_of::<T>()
}
