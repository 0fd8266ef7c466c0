//! The numbers of the protocol: magic values, codes and flags, all big-endian on the wire.
//!
//! Names follow the protocol text without its `NBD_` prefixes. Codes that a client may invent
//! (options, commands) convert through `from_wire`, which returns `None` for an unknown code.

use bitflags::bitflags;

/// First eight bytes of the greeting, ASCII `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the greeting and the start of every option request, ASCII `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of a 28-byte request header.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a 32-byte request header, in use after `EXTENDED_HEADERS`.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Start of an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of an option request before its data.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of an option reply before its data.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Bytes of a compact request header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply header.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured chunk header.
pub const STRUCTURED_REPLY_BYTES: usize = 20;
/// Bytes of an extended chunk header.
pub const EXTENDED_REPLY_BYTES: usize = 32;

/// Longest string (export name, query, message) that the protocol text permits, in bytes.
pub const STRING_MAX_BYTES: usize = 4096;
/// Payloads below this size must not be taken for an attack, even above the advertised maximum.
pub const PAYLOAD_TOLERATED_BYTES: u32 = 1 << 25;
/// Largest minimum block size that may be advertised.
pub const MIN_BLOCK_SIZE_MAX_BYTES: u32 = 1 << 16;
/// The status descriptors that one chunk should not exceed.
pub const STATUS_DESCRIPTORS_MAX: usize = 1 << 20;

bitflags! {
    /// The server's flags in its greeting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// Option replies are structured; options other than `EXPORT_NAME` are understood.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The server can leave out the 124 zeroes after `EXPORT_NAME`.
        const NO_ZEROES = 1 << 1;
    }
}

bitflags! {
    /// The client's answer to the greeting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// The client speaks fixed newstyle.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The client does not want the 124 zeroes.
        const NO_ZEROES = 1 << 1;
    }
}

bitflags! {
    /// The features of an export, as sent at the end of the handshake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// Always set on the wire; [`Handshake`](super::Handshake) adds it.
        const HAS_FLAGS = 1 << 0;
        /// Every command that would change the export is refused.
        const READ_ONLY = 1 << 1;
        /// `FLUSH` is served.
        const SEND_FLUSH = 1 << 2;
        /// The `FUA` command flag is served.
        const SEND_FUA = 1 << 3;
        /// The medium seeks; the client may order its I/O for that.
        const ROTATIONAL = 1 << 4;
        /// `TRIM` is served.
        const SEND_TRIM = 1 << 5;
        /// `WRITE_ZEROES` and its `NO_HOLE` flag are served.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// The `DF` flag of `READ` is served; only with structured or extended replies.
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers what all connections have completed.
        const CAN_MULTI_CONN = 1 << 8;
        /// `CACHE` is served.
        const SEND_CACHE = 1 << 10;
        /// The `FAST_ZERO` flag of `WRITE_ZEROES` is served.
        const SEND_FAST_ZERO = 1 << 11;
        /// `BLOCK_STATUS` may name the contexts that it wants; only with extended headers.
        const BLOCK_STATUS_PAYLOAD = 1 << 12;
    }
}

bitflags! {
    /// Flags of one request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CommandFlags: u16 {
        /// Reply only when the data is on stable storage.
        const FUA = 1 << 0;
        /// `WRITE_ZEROES`: leave the range allocated.
        const NO_HOLE = 1 << 1;
        /// `READ`: at most one content chunk.
        const DF = 1 << 2;
        /// `BLOCK_STATUS`: one extent, not longer than the request.
        const REQ_ONE = 1 << 3;
        /// `WRITE_ZEROES`: fail with `ENOTSUP` rather than be as slow as a write.
        const FAST_ZERO = 1 << 4;
        /// Extended headers: the length field counts payload bytes that follow the header.
        const PAYLOAD_LEN = 1 << 5;
        /// Unknown bits are kept, so that they can be refused.
        const _ = !0;
    }
}

bitflags! {
    /// Flags of a structured or extended reply chunk.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReplyFlags: u16 {
        /// The last chunk of this reply.
        const DONE = 1 << 0;
    }
}

bitflags! {
    /// Status flags of the `base:allocation` context.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AllocationFlags: u32 {
        /// Not allocated: a later write may run out of space.
        const HOLE = 1 << 0;
        /// Reads as zeroes.
        const ZERO = 1 << 1;
    }
}

/// Makes an enum of wire codes with `wire` and `from_wire`.
macro_rules! wire_codes {
    ($(#[$meta:meta])* $name:ident: $repr:ty {
        $($(#[$doc:meta])* $variant:ident = $value:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $name { $($(#[$doc])* $variant = $value,)* }

        impl $name {
            /// The number on the wire.
            #[inline]
            pub const fn wire(self) -> $repr {
                self as $repr
            }

            /// The code behind a number, or `None` when it is not known here.
            #[inline]
            pub const fn from_wire(value: $repr) -> Option<Self> {
                $(if value == Self::$variant as $repr {
                    return Some(Self::$variant);
                })*
                None
            }
        }
    };
}

wire_codes! {
    /// Options of the handshake.
    OptionCode: u32 {
        /// Choose an export, without any error reply.
        ExportName = 1,
        /// End the session politely.
        Abort = 2,
        /// Name the exports.
        List = 3,
        /// Upgrade to TLS.
        StartTls = 5,
        /// Describe an export.
        Info = 6,
        /// Describe an export and start transmission.
        Go = 7,
        /// Use structured replies.
        StructuredReply = 8,
        /// Name the metadata contexts of an export.
        ListMetaContext = 9,
        /// Select metadata contexts of an export.
        SetMetaContext = 10,
        /// Use 32-byte headers with 64-bit lengths.
        ExtendedHeaders = 11,
    }
}

/// Bit 31 marks an option reply as an error.
const REP_ERR: u32 = 1 << 31;

wire_codes! {
    /// Kinds of replies to options.
    ReplyCode: u32 {
        /// Done, or the end of a list.
        Ack = 1,
        /// One export of a list.
        Server = 2,
        /// One piece of information about an export.
        Info = 3,
        /// One metadata context.
        MetaContext = 4,
        /// The option is not known.
        ErrUnsup = REP_ERR + 1,
        /// The option is known and forbidden here.
        ErrPolicy = REP_ERR + 2,
        /// The option's data or moment is wrong.
        ErrInvalid = REP_ERR + 3,
        /// The option cannot work on this platform.
        ErrPlatform = REP_ERR + 4,
        /// TLS must come first.
        ErrTlsReqd = REP_ERR + 5,
        /// No such export.
        ErrUnknown = REP_ERR + 6,
        /// The server is going away.
        ErrShutdown = REP_ERR + 7,
        /// The client must ask for the block sizes first.
        ErrBlockSizeReqd = REP_ERR + 8,
        /// The request or its reply is too large.
        ErrTooBig = REP_ERR + 9,
        /// Extended headers must be, or already are, in use.
        ErrExtHeaderReqd = REP_ERR + 10,
    }
}

impl ReplyCode {
    /// True if a reply code, known or not, is an error.
    pub const fn wire_is_error(value: u32) -> bool {
        value & REP_ERR != 0
    }
}

wire_codes! {
    /// Kinds of information in a `ReplyCode::Info` reply.
    InfoCode: u16 {
        /// Size and transmission flags.
        Export = 0,
        /// Canonical name.
        Name = 1,
        /// Description for people.
        Description = 2,
        /// Minimum, preferred and maximum block size.
        BlockSize = 3,
    }
}

wire_codes! {
    /// Commands of the transmission phase.
    Command: u16 {
        /// Read data.
        Read = 0,
        /// Write the data that follows the header.
        Write = 1,
        /// End the session; no reply.
        Disc = 2,
        /// Make completed writes durable.
        Flush = 3,
        /// Discard a range.
        Trim = 4,
        /// Bring a range closer, if that helps.
        Cache = 5,
        /// Make a range read as zeroes.
        WriteZeroes = 6,
        /// Ask for the metadata of a range.
        BlockStatus = 7,
    }
}

/// Bit 15 marks a chunk type as an error.
const CHUNK_ERR: u16 = 1 << 15;

wire_codes! {
    /// Types of structured and extended reply chunks.
    ChunkType: u16 {
        /// Nothing but the end of the reply.
        None = 0,
        /// An offset and the data from there.
        OffsetData = 1,
        /// An offset and how many zeroes are there.
        OffsetHole = 2,
        /// Status descriptors with 32-bit lengths.
        BlockStatus = 5,
        /// Status descriptors with 64-bit lengths.
        BlockStatusExt = 6,
        /// An error with a message.
        Error = CHUNK_ERR + 1,
        /// An error with a message and the offset it happened at.
        ErrorOffset = CHUNK_ERR + 2,
    }
}

impl ChunkType {
    /// True if a chunk type, known or not, is an error.
    pub const fn wire_is_error(value: u16) -> bool {
        value & CHUNK_ERR != 0
    }
}

wire_codes! {
    /// Errors of the transmission phase.
    ErrorCode: u32 {
        /// The export is read-only.
        Eperm = 1,
        /// The device failed.
        Eio = 5,
        /// No memory for this request.
        Enomem = 12,
        /// The request breaks the rules.
        Einval = 22,
        /// No room, or a write beyond the end.
        Enospc = 28,
        /// Too long to answer in one piece.
        Eoverflow = 75,
        /// A fast zero would not be fast.
        Enotsup = 95,
        /// The server is going away.
        Eshutdown = 108,
    }
}

impl ErrorCode {
    /// The protocol's error for a Linux `errno`: `EDQUOT` and `EFBIG` become `ENOSPC`, `EROFS`
    /// becomes `EPERM`, and any `errno` without a number in the protocol becomes `EIO`.
    pub const fn from_errno(errno: i32) -> Self {
        const EROFS: i32 = 30;
        const EFBIG: i32 = 27;
        const EDQUOT: i32 = 122;
        match errno {
            1 | EROFS => Self::Eperm,
            12 => Self::Enomem,
            22 => Self::Einval,
            28 | EFBIG | EDQUOT => Self::Enospc,
            75 => Self::Eoverflow,
            95 => Self::Enotsup,
            108 => Self::Eshutdown,
            _ => Self::Eio,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_values_spell_their_names() {
        assert_eq!(&INIT_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
    }

    #[test]
    fn codes_convert_both_ways_and_refuse_gaps() {
        for value in 0..=20 {
            if let Some(code) = OptionCode::from_wire(value) {
                assert_eq!(code.wire(), value);
            }
        }
        assert_eq!(OptionCode::from_wire(4), None, "PEEK_EXPORT was withdrawn");
        assert_eq!(Command::from_wire(8), None, "RESIZE is not served");
        assert_eq!(Command::from_wire(7), Some(Command::BlockStatus));
        assert_eq!(ReplyCode::ErrTooBig.wire(), 0x8000_0009);
        assert!(ReplyCode::wire_is_error(ReplyCode::ErrUnsup.wire()));
        assert!(!ReplyCode::wire_is_error(ReplyCode::Ack.wire()));
        assert_eq!(ChunkType::ErrorOffset.wire(), 0x8002);
    }

    #[test]
    fn errno_maps_to_the_protocols_errors() {
        let pairs = [
            (1, ErrorCode::Eperm),
            (30, ErrorCode::Eperm),
            (5, ErrorCode::Eio),
            (12, ErrorCode::Enomem),
            (22, ErrorCode::Einval),
            (28, ErrorCode::Enospc),
            (27, ErrorCode::Enospc),
            (122, ErrorCode::Enospc),
            (75, ErrorCode::Eoverflow),
            (95, ErrorCode::Enotsup),
            (108, ErrorCode::Eshutdown),
            (110, ErrorCode::Eio),
            (-1, ErrorCode::Eio),
        ];
        for (errno, code) in pairs {
            assert_eq!(ErrorCode::from_errno(errno), code, "errno {errno}");
        }
    }
}
