//! The reasons why bytes and descriptors are no message.

use super::request::Request;
use super::wire::{DESCRIPTORS_MAX, PAYLOAD_BYTES_MAX};

/// The reason why bytes and descriptors are no message. The text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The flags of a header have another version.
    #[error("message {request} has version {version}: only version 1 is known")]
    Version {
        /// The number of the message.
        request: u32,
        /// Its version.
        version: u32,
    },
    /// The header is one of a reply.
    #[error("message {request} is a reply, but the back end asked nothing")]
    UnexpectedReply {
        /// The number of the message.
        request: u32,
    },
    /// The flags have bits that the protocol does not define.
    #[error("message {request} has flags {flags:#x}: bits 4 to 31 must be zero")]
    Flags {
        /// The number of the message.
        request: u32,
        /// Its flags.
        flags: u32,
    },
    /// The payload is longer than any message's.
    #[error("message {request} has {bytes} bytes of payload: at most {PAYLOAD_BYTES_MAX} are read")]
    TooLong {
        /// The number of the message.
        request: u32,
        /// Bytes of its payload.
        bytes: u32,
    },
    /// More descriptors came than with any message.
    #[error("more than {DESCRIPTORS_MAX} descriptors came with one message")]
    TooManyDescriptors,
    /// The kernel did not hand over all descriptors of a message.
    #[error(
        "descriptors of a message are lost: more came than {DESCRIPTORS_MAX}, or the process has \
         no room for them"
    )]
    LostDescriptors,
    /// The message is none that this back end has.
    #[error("message {request} is not known here: it belongs to a feature that was not offered")]
    Unknown {
        /// Its number.
        request: u32,
    },
    /// The payload has another length.
    #[error("{request} has {bytes} bytes of payload: it needs {expected}")]
    PayloadLength {
        /// The message.
        request: Request,
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that it needs; of several right numbers the least.
        expected: usize,
    },
    /// Another number of descriptors came than belongs to the message.
    #[error("{request} came with {count} descriptors: it needs {expected}")]
    Descriptors {
        /// The message.
        request: Request,
        /// The number that came.
        count: usize,
        /// The right number.
        expected: usize,
    },
    /// A table has more regions than fit.
    #[error(
        "SET_MEM_TABLE has {0} regions: at most {DESCRIPTORS_MAX} fit, and ADD_MEM_REG adds more"
    )]
    TooManyRegions(u32),
    /// A region is empty, or passes the end of an address space.
    #[error(
        "{request}: a region of {bytes:#x} bytes at guest {guest:#x}, user {user:#x}, file offset \
         {offset:#x} is empty or passes 2^64"
    )]
    Region {
        /// The message.
        request: Request,
        /// Guest address.
        guest: u64,
        /// User address.
        user: u64,
        /// Bytes.
        bytes: u64,
        /// The place in its file, bytes.
        offset: u64,
    },
    /// The number of a queue and its flag have further bits.
    #[error("{request} has {value:#x}: only bits 0 to 7 (the queue) and 8 (no descriptor) exist")]
    VringBits {
        /// The message.
        request: Request,
        /// Its payload.
        value: u64,
    },
    /// The address flags have bits that the protocol does not define.
    #[error("SET_VRING_ADDR has flags {0:#x}: only bit 0 (log) exists")]
    VringFlags(u32),
    /// An area of shared memory is empty or passes the end of its file.
    #[error("{request}: an area of {bytes:#x} bytes at offset {offset:#x} is empty or passes 2^64")]
    Area {
        /// The message.
        request: Request,
        /// Bytes.
        bytes: u64,
        /// The place in its file, bytes.
        offset: u64,
    },
    /// A part of the configuration space is longer than a message may hold.
    #[error(
        "{request}: {size} bytes at {offset} of the configuration space: only bytes 0 to 255 \
             can be named"
    )]
    ConfigRange {
        /// The message.
        request: Request,
        /// First byte.
        offset: u32,
        /// Number of bytes.
        size: u32,
    },
    /// The flags of a configuration message have bits that the protocol does not define.
    #[error("{request} has flags {flags:#x}: only 0 (writable fields) and 1 (migration) exist")]
    ConfigFlags {
        /// The message.
        request: Request,
        /// Its flags.
        flags: u32,
    },
}
