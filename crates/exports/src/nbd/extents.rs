//! What a device says of a range (its extents), turned into block status chunks and into the chunks of a
//! sparse read. Nothing here allocates.
//!
//! Extents come from the device in order, without gaps, from the first byte of the request. They may end
//! early (the rest is not known, which reads as "data") or late (the surplus is cut off).

use super::proto::{AllocationFlags, ChunkType, Command, CommandFlags, STATUS_DESCRIPTORS_MAX};
use super::reply::{ReplyStyle, ReplyTag};
use super::request::Request;

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

/// What a block status reply must keep to.
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

/// Cuts extents into pieces of whole blocks. A block with several states gets what is true of all of it.
struct Blocks<'a> {
    extents: std::slice::Iter<'a, Extent>,
    /// What is left of the extent last taken from `extents`.
    current: Option<(u64, AllocationFlags)>,
    block: u64,
    /// What is left of the query.
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
        let ragged = length & (self.block - 1);
        if length == ragged {
            status = self.mixed(ragged, status);
            length = self.block;
        } else {
            length -= ragged;
            self.current = Some((ragged, status));
        }
        length = length.min(self.remaining);
        self.remaining -= length;
        Some((length, status))
    }
}

/// Descriptors: pieces of one status joined, none longer than a descriptor can say.
struct Descriptors<'a> {
    blocks: std::iter::Peekable<Blocks<'a>>,
    longest: u64,
    /// What was joined and not yet given.
    pending: Option<(u64, AllocationFlags)>,
}

impl<'a> Descriptors<'a> {
    fn new(extents: &'a [Extent], query: StatusQuery, longest: u64) -> Self {
        let block = u64::from(query.min_block);
        let extents = extents.iter();
        let blocks = Blocks { extents, current: None, block, remaining: query.length };
        let mut blocks = blocks.peekable();
        // A reply needs a descriptor, and "allocated, contents unknown" is true of everything.
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

    /// Writes the `base:allocation` chunk of a block status reply for the context `id`, with as many
    /// descriptors as there are, as are wanted and as `out` has room for, at least one. `done` marks the
    /// last chunk of the reply. Returns the bytes written.
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
            let field = &mut out[start + count * each..][..each];
            let status = status.bits().to_be_bytes();
            if extended {
                field[..8].copy_from_slice(&length.to_be_bytes());
                field[8..12].fill(0);
                field[12..].copy_from_slice(&status);
            } else {
                field[..4].copy_from_slice(&(length as u32).to_be_bytes());
                field[4..].copy_from_slice(&status);
            }
            count += 1;
        }
        self.status_header(out, tag, id, count, done)
    }

    /// Writes what goes before `count` descriptors, and returns the size of all.
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
        out[header..header + 4].copy_from_slice(&id.to_be_bytes());
        if extended {
            out[header + 4..header + 8].copy_from_slice(&(count as u32).to_be_bytes());
        }
        total
    }
}

/// One content chunk of a read's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadChunk {
    /// First byte, in the export.
    pub offset: u64,
    /// Length, bytes; at least 1.
    pub length: u32,
    /// No data follows: the range reads as zeroes.
    pub hole: bool,
    /// The last chunk of the reply.
    pub done: bool,
}

impl ReadChunk {
    /// Writes the chunk without its data: after a header with `hole` unset, `length` bytes of data
    /// must follow. Returns the bytes written.
    pub fn encode(&self, style: ReplyStyle, out: &mut [u8], tag: ReplyTag) -> usize {
        match (style, self.hole) {
            (ReplyStyle::Simple, _) => style.read_header(out, tag, self.length),
            (_, true) => style.hole_chunk(out, tag, self.offset, self.length, self.done),
            (_, false) => style.data_chunk(out, tag, self.offset, self.length, self.done),
        }
    }
}

/// Plans the reply to a read over data and holes: content chunks in order that cover the request
/// exactly, the last marked done.
///
/// With the `DF` flag it is one chunk, and so it is with simple replies (always data).
#[derive(Clone, Debug)]
pub struct ReadChunks<'a> {
    extents: &'a [Extent],
    offset: u64,
    remaining: u64,
    min_hole: u64,
    /// One chunk is all there may be.
    whole: bool,
}

impl<'a> ReadChunks<'a> {
    /// Plans the reply to `request`, a read, in this style. Zeroes in runs shorter than
    /// `min_hole_bytes` are sent as data, since a chunk of their own costs more.
    pub fn new(
        request: &Request,
        style: ReplyStyle,
        extents: &'a [Extent],
        min_hole_bytes: u64,
    ) -> Self {
        assert_eq!(request.command, Command::Read, "only a read has content chunks");
        let whole = style == ReplyStyle::Simple || request.flags.contains(CommandFlags::DF);
        let zeroes = zero_run(extents).1 >= request.length && style != ReplyStyle::Simple;
        let min_hole = min_hole_bytes.max(1);
        let extents = if whole && !zeroes { &[] } else { extents };
        Self { extents, offset: request.offset, remaining: request.length, min_hole, whole }
    }

    /// The length of the next chunk, and whether it is a hole.
    fn run(&mut self) -> (u64, bool) {
        let (count, zeroes) = self.hole_ahead(0);
        if zeroes > 0 {
            self.extents = &self.extents[count..];
            return (zeroes, true);
        }
        (self.data_run(), false)
    }

    /// The extents and the length of a hole worth a chunk that begins after `skipped` bytes, or zeroes.
    fn hole_ahead(&self, skipped: u64) -> (usize, u64) {
        let (count, zeroes) = zero_run(self.extents);
        let zeroes = zeroes.min(self.remaining - skipped);
        if zeroes >= self.min_hole { (count, zeroes) } else { (0, 0) }
    }

    /// Takes extents up to the next hole worth a chunk, or all.
    fn data_run(&mut self) -> u64 {
        let mut length: u64 = 0;
        while length < self.remaining && self.hole_ahead(length) == (0, 0) {
            let (count, zeroes) = zero_run(self.extents);
            let Some(data) = self.extents.get(count) else { return self.remaining };
            length = length.saturating_add(zeroes).saturating_add(data.length);
            self.extents = &self.extents[count + 1..];
        }
        length.min(self.remaining)
    }
}

/// How many extents at the start are zeroes (or empty), and how long they are together.
fn zero_run(extents: &[Extent]) -> (usize, u64) {
    let run = extents.iter().take_while(|extent| extent.zero || extent.length == 0);
    run.fold((0, 0), |(count, sum), extent| (count + 1, extent.length.saturating_add(sum)))
}

impl Iterator for ReadChunks<'_> {
    type Item = ReadChunk;

    fn next(&mut self) -> Option<ReadChunk> {
        if self.remaining == 0 {
            return None;
        }
        let (length, hole) = self.run();
        debug_assert!(!self.whole || length == self.remaining, "one chunk was promised");
        let chunk = ReadChunk {
            offset: self.offset,
            length: u32::try_from(length).expect("a read fits the maximum payload"),
            hole,
            done: length == self.remaining,
        };
        self.offset += length;
        self.remaining -= length;
        Some(chunk)
    }
}

#[cfg(test)]
mod tests;
