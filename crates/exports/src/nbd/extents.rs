//! The extents of a range as block status chunks. Nothing here allocates.
//!
//! Extents come from the device in order, without gaps, from the first byte of the request. They
//! may end early (the rest is unknown, and counts as data) or late (the surplus is cut off).

use super::proto::{AllocationFlags, ChunkType, Command, CommandFlags, STATUS_DESCRIPTORS_MAX};
use super::reply::{ReplyStyle, ReplyTag};
use super::request::Request;
use super::wire::{Descriptor, ExtendedDescriptor, write};
use zerocopy::byteorder::big_endian::U32;

/// A run of bytes with the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length, bytes; 0 is skipped.
    pub length: u64,
    /// Space is allocated for it.
    pub data: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

impl Extent {
    /// The `base:allocation` status of this extent.
    pub fn allocation(&self) -> AllocationFlags {
        let mut flags = AllocationFlags::empty();
        flags.set(AllocationFlags::HOLE, !self.data);
        flags.set(AllocationFlags::ZERO, self.zero);
        flags
    }
}

/// The bounds of a block status reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// The request's length; descriptors do not reach beyond it.
    pub length: u64,
    /// The client wants one descriptor only.
    pub req_one: bool,
    /// The export's minimum block size, of which descriptor lengths are multiples.
    pub min_block: u32,
}

impl StatusQuery {
    /// The limits of this request on an export with this minimum block size.
    pub fn new(request: &Request, min_block: u32) -> Self {
        assert_eq!(request.command, Command::BlockStatus, "only block status reports extents");
        let req_one = request.flags.contains(CommandFlags::REQ_ONE);
        Self { length: request.length, req_one, min_block }
    }
}

/// Cuts extents into pieces of whole blocks. A block with several states gets the properties that
/// hold for all of it.
struct Blocks<'a> {
    extents: std::slice::Iter<'a, Extent>,
    /// The rest of the extent last taken from `extents`.
    current: Option<(u64, AllocationFlags)>,
    block: u64,
    /// The rest of the query.
    remaining: u64,
}

impl Blocks<'_> {
    fn take(&mut self, limit: u64) -> Option<(u64, AllocationFlags)> {
        while self.current.is_none_or(|(left, _)| left == 0) {
            let next = self.extents.next()?;
            self.current = Some((next.length, next.allocation()));
        }
        let (left, status) = self.current.as_mut()?;
        let taken = limit.min(*left);
        *left -= taken;
        Some((taken, *status))
    }

    /// A block that begins with `filled` bytes of `status` and goes on with other extents.
    fn mixed(&mut self, mut filled: u64, mut status: AllocationFlags) -> AllocationFlags {
        while filled < self.block {
            let (taken, other) =
                self.take(self.block - filled).unwrap_or((self.block, AllocationFlags::empty()));
            filled += taken;
            status &= other;
        }
        status
    }
}

impl Iterator for Blocks<'_> {
    type Item = (u64, AllocationFlags);

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        let (mut length, mut status) = self.take(u64::MAX)?;
        let unaligned = length & (self.block - 1);
        if length == unaligned {
            status = self.mixed(unaligned, status);
            length = self.block;
        } else {
            length -= unaligned;
            self.current = Some((unaligned, status));
        }
        length = length.min(self.remaining);
        self.remaining -= length;
        Some((length, status))
    }
}

/// Joins pieces of one status to descriptors, none longer than a descriptor can express.
struct Descriptors<'a> {
    blocks: std::iter::Peekable<Blocks<'a>>,
    longest: u64,
    /// The joined extent that was not returned yet.
    pending: Option<(u64, AllocationFlags)>,
}

impl<'a> Descriptors<'a> {
    fn new(extents: &'a [Extent], query: StatusQuery, longest: u64) -> Self {
        let block = u64::from(query.min_block);
        let extents = extents.iter();
        let blocks = Blocks { extents, current: None, block, remaining: query.length };
        let mut blocks = blocks.peekable();
        // A reply needs at least one descriptor, and "allocated, contents unknown" is always true.
        let unknown = (query.length, AllocationFlags::empty());
        let pending = blocks.peek().is_none().then_some(unknown);
        Self { blocks, longest: longest & !(block - 1), pending }
    }
}

impl Iterator for Descriptors<'_> {
    type Item = (u64, AllocationFlags);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut length, status) = self.pending.take().or_else(|| self.blocks.next())?;
        while length < self.longest
            && let Some((more, _)) = self.blocks.next_if(|(_, next)| *next == status)
        {
            length += more;
        }
        if length > self.longest {
            self.pending = Some((length - self.longest, status));
        }
        Some((length.min(self.longest), status))
    }
}

impl ReplyStyle {
    /// Bytes of a block status chunk with so many descriptors.
    ///
    /// # Panics
    /// For `Simple`, which has no chunks.
    pub const fn status_bytes(self, descriptors: usize) -> usize {
        match self {
            Self::Extended => self.chunk_header_bytes() + 8 + 16 * descriptors,
            Self::Simple | Self::Structured => self.chunk_header_bytes() + 4 + 8 * descriptors,
        }
    }

    /// Writes the `base:allocation` chunk of a block status reply for the context `id`. It has as
    /// many descriptors as there are, as the client wants and as fit into `out`, at least one.
    /// `done` marks the last chunk of the reply. Returns the number of bytes written.
    ///
    /// # Panics
    /// When `out` has no room for one descriptor, and for `Simple`: mistakes of the driver.
    pub fn status_chunk(
        self,
        out: &mut [u8],
        tag: ReplyTag,
        id: u32,
        extents: &[Extent],
        query: StatusQuery,
        done: bool,
    ) -> usize {
        let extended = self == Self::Extended;
        let (longest, each) = if extended { (u64::MAX, 16) } else { (u32::MAX.into(), 8) };
        let start = self.status_bytes(0);
        let room = out.len().saturating_sub(start) / each;
        assert!(room > 0, "no room for a status descriptor");
        let limit = if query.req_one { 1 } else { room.min(STATUS_DESCRIPTORS_MAX) };
        let mut count = 0;
        for (length, status) in Descriptors::new(extents, query, longest).take(limit) {
            let out = &mut out[start + count * each..];
            let status = status.bits();
            if extended {
                let (length, status) = (length.into(), u64::from(status).into());
                write(out, &ExtendedDescriptor { length, status });
            } else {
                let (length, status) = ((length as u32).into(), status.into());
                write(out, &Descriptor { length, status });
            }
            count += 1;
        }
        self.status_header(out, tag, id, count, done)
    }

    /// Writes the headers before `count` descriptors, and returns the size of the chunk.
    fn status_header(
        self,
        out: &mut [u8],
        tag: ReplyTag,
        id: u32,
        count: usize,
        done: bool,
    ) -> usize {
        let extended = self == Self::Extended;
        let chunk = if extended { ChunkType::BlockStatusExt } else { ChunkType::BlockStatus };
        let total = self.status_bytes(count);
        let payload = (total - self.chunk_header_bytes()) as u32;
        let header = self.chunk_header(out, tag, chunk, done, payload);
        let count_at = header + write(&mut out[header..], &U32::new(id));
        if extended {
            write(&mut out[count_at..], &U32::new(count as u32));
        }
        total
    }
}

#[cfg(test)]
mod tests;
