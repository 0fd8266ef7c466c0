//! Requests as the driver gets them: decoded, checked, in range.

use super::export::CONTEXTS_MAX;
use super::proto::{Command, CommandFlags, ErrorCode};
use super::reply::ReplyTag;
use super::wire::{CompactRequest, ExtendedRequest, read};

/// A set of the connection's selected metadata contexts, by their index in
/// [`Negotiated::contexts`](super::Negotiated::contexts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ContextSet(u8);

const _: () = assert!(CONTEXTS_MAX <= u8::BITS as usize);

impl ContextSet {
    /// The first `count` contexts.
    pub(super) const fn first(count: usize) -> Self {
        Self(((1_u16 << count) - 1) as u8)
    }

    /// Adds a context; false when it is in the set already.
    pub(super) const fn insert(&mut self, index: usize) -> bool {
        let bit = 1 << index;
        let new = self.0 & bit == 0;
        self.0 |= bit;
        new
    }

    /// True if the set is empty, as it is for every command but `BlockStatus`.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of contexts that are asked for: the number of status chunks of the reply.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The indices, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..CONTEXTS_MAX).filter(move |index| self.0 & (1 << index) != 0)
    }
}

/// A request that may be carried out.
///
/// Guarantees for all commands except `Flush` (whose offset and length are 0): the length is not 0;
/// the range lies within the export (it need not be whole blocks); a read or write fits the maximum
/// payload; the export serves the command and each flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command; never `Disc`, which ends the connection.
    pub command: Command,
    /// `FUA` on writing commands only (elsewhere it has no effect and is dropped), `DF`, `NO_HOLE`,
    /// `FAST_ZERO`, `REQ_ONE` on theirs.
    pub flags: CommandFlags,
    /// `BlockStatus`: the contexts to report.
    pub contexts: ContextSet,
    /// The client's name for this request, returned in the reply.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range, bytes.
    pub length: u64,
}

impl Request {
    /// Bytes of data that follow the request in the stream: the length of a write, otherwise 0.
    #[inline]
    pub const fn payload_bytes(&self) -> u64 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }

    /// The fields that a reply to this request must repeat.
    #[inline]
    pub const fn tag(&self) -> ReplyTag {
        ReplyTag { cookie: self.cookie, offset: self.offset }
    }
}

/// A request that must be answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The fields that the reply must repeat.
    pub tag: ReplyTag,
    /// The error to reply.
    pub error: ErrorCode,
    /// The error in words, for the reply and the log.
    pub message: &'static str,
}

/// A request header as it is on the wire, lengths widened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) magic: u32,
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Header {
    /// Decodes a compact header from the start of `bytes`, or `None` when there are too few.
    #[inline]
    pub(super) fn compact(bytes: &[u8]) -> Option<Self> {
        let of: CompactRequest = read(bytes)?;
        Some(Header {
            magic: of.magic.get(),
            flags: of.flags.get(),
            command: of.command.get(),
            cookie: of.cookie.get(),
            offset: of.offset.get(),
            length: of.length.get().into(),
        })
    }

    /// Decodes an extended header from the start of `bytes`, or `None` when there are too few.
    #[inline]
    pub(super) fn extended(bytes: &[u8]) -> Option<Self> {
        let of: ExtendedRequest = read(bytes)?;
        Some(Header {
            magic: of.magic.get(),
            flags: of.flags.get(),
            command: of.command.get(),
            cookie: of.cookie.get(),
            offset: of.offset.get(),
            length: of.length.get(),
        })
    }

    pub(super) const fn refusal(&self, error: ErrorCode, message: &'static str) -> Refusal {
        let tag = ReplyTag { cookie: self.cookie, offset: self.offset };
        Refusal { tag, error, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::proto::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC};

    #[test]
    fn headers_decode_big_endian_fields() {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend([0, 1, 0, 6]);
        bytes.extend(0x1122_3344_5566_7788_u64.to_be_bytes());
        bytes.extend(0x99_u64.to_be_bytes());
        bytes.extend([0, 0, 2, 0]);
        let header = Header::compact(&bytes).unwrap();
        assert_eq!((header.magic, header.flags, header.command), (REQUEST_MAGIC, 1, 6));
        assert_eq!((header.cookie, header.offset), (0x1122_3344_5566_7788, 0x99));
        assert_eq!(header.length, 512);
        assert_eq!(Header::compact(&bytes[..27]), None);
        assert_eq!(Header::extended(&bytes), None);
        bytes[..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        bytes.extend([0, 0, 0, 1]);
        let header = Header::extended(&bytes).unwrap();
        assert_eq!(header.length, (512 << 32) + 1);
    }

    #[test]
    fn context_sets_count_and_iterate() {
        let mut set = ContextSet::first(3);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(set.insert(5) && !set.insert(5));
        assert_eq!(set.len(), 4);
        assert_eq!(ContextSet::first(CONTEXTS_MAX).len(), CONTEXTS_MAX);
        assert!(ContextSet::first(0).is_empty());
    }

    #[test]
    fn a_request_stays_within_half_a_cache_line() {
        assert!(size_of::<Request>() <= 32);
    }
}
