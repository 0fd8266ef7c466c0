//! A write, or zeroing, of parts of blocks: a device writes whole blocks only.
//!
//! ```text
//!   Waiting --> read the edge blocks --> merge --> write all blocks back --> ended
//! ```
//!
//! [`Blocks`] draws the edges. The blocks are locked meanwhile ([`super::write_locks`]).
//!
//! Invariants:
//! * A step begins when all bios of the previous one are back, and only if none failed.
//! * A write has its data in one buffer for all its blocks; the edge buffers only supply the
//!   missing bytes.
//! * Zeroing writes its edge buffers, and the device zeroes the blocks between them.

use crate::server::{Blocks, DATA_AT};
use drystone_core::{BioFlags, IoBuf};
use std::ops::Range;

/// The part of an operation whose bio covers all blocks, or those between the edges. Parts 0 and 1
/// are the edges.
const WHOLE: usize = 2;

/// The change of the range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write(BioFlags),
    Zeroes(BioFlags),
    /// Zeroes from the new end of a file to the end of its block; the truncation of whole blocks
    /// follows.
    Truncate,
}

impl Kind {
    /// The flags of the bio that zeroes whole blocks, if this kind has one.
    fn zeroes(self) -> Option<BioFlags> {
        match self {
            Kind::Write(_) => None,
            Kind::Zeroes(flags) => Some(flags),
            Kind::Truncate => Some(BioFlags::empty()),
        }
    }
}

impl Default for Kind {
    fn default() -> Self {
        Kind::Write(BioFlags::empty())
    }
}

/// The step that an operation is in.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Waiting,
    Reading,
    Writing,
}

/// The step that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read [`UnalignedWrite::edge_reads`].
    ReadEdges,
    /// Submit all of [`UnalignedWrite::next_write`].
    WriteBack,
    /// It is done, or has failed.
    End,
}

/// A bio that writes blocks back.
pub(super) struct WriteBack {
    /// The number of the bio in its operation.
    pub(super) part: usize,
    /// Bytes of the device.
    pub(super) range: Range<u64>,
    pub(super) flags: BioFlags,
    /// Its data from [`DATA_AT`] on; `None` if the device zeroes the range.
    pub(super) data: Option<IoBuf>,
}

/// Buffers of the two edge blocks and, of a write, of all its blocks.
#[derive(Default)]
struct EdgeBlocks {
    bufs: [Option<IoBuf>; 2],
    whole: Option<IoBuf>,
}

/// A write, or zeroing, of parts of blocks.
#[derive(Default)]
pub(super) struct UnalignedWrite {
    kind: Kind,
    blocks: Blocks,
    state: State,
    edges: EdgeBlocks,
    /// True if the blocks between the edges have their bio.
    has_zeroed: bool,
}

impl UnalignedWrite {
    fn new(kind: Kind, blocks: Blocks, whole: Option<IoBuf>) -> Self {
        let edges = EdgeBlocks { bufs: [None, None], whole };
        UnalignedWrite { kind, blocks, state: State::Waiting, edges, has_zeroed: false }
    }

    /// A write of the range of `blocks`. `data` has room for all blocks from [`DATA_AT`] on, and
    /// the data of the range where it belongs.
    pub(super) fn write(blocks: Blocks, flags: BioFlags, data: IoBuf) -> Self {
        UnalignedWrite::new(Kind::Write(flags), blocks, Some(data))
    }

    /// Zeroes over the range of `blocks`.
    pub(super) fn zeroes(blocks: Blocks, flags: BioFlags) -> Self {
        UnalignedWrite::new(Kind::Zeroes(flags), blocks, None)
    }

    /// Zeroes from the new end of a file to the end of its block.
    pub(super) fn truncate(blocks: Blocks) -> Self {
        UnalignedWrite::new(Kind::Truncate, blocks, None)
    }

    /// The blocks.
    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// True for a write of data.
    pub(super) fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Write(_))
    }

    /// True for the edge of a truncation.
    pub(super) fn is_truncation(&self) -> bool {
        self.kind == Kind::Truncate
    }

    /// True once it writes back and can no longer stop.
    pub(super) fn is_writing(&self) -> bool {
        self.state == State::Writing
    }

    /// Takes the next step, once all bios are back. `failed`: one of them failed, or nobody waits
    /// for the answer.
    pub(super) fn advance(&mut self, failed: bool) -> Step {
        match self.state {
            State::Waiting if !failed => {
                self.state = State::Reading;
                Step::ReadEdges
            }
            State::Reading if !failed => {
                self.state = State::Writing;
                self.merge();
                Step::WriteBack
            }
            _ => Step::End,
        }
    }

    /// The begin of each edge block to read, by the number of its part.
    pub(super) fn edge_reads(&self) -> [Option<u64>; 2] {
        self.blocks.edges()
    }

    /// Takes the next bio of [`Step::WriteBack`].
    pub(super) fn next_write(&mut self) -> Option<WriteBack> {
        if let Kind::Write(flags) = self.kind {
            let data = Some(self.edges.whole.take()?);
            return Some(WriteBack { part: WHOLE, range: self.blocks.all(), flags, data });
        }
        self.next_edge().or_else(|| self.zero_inside())
    }

    fn next_edge(&mut self) -> Option<WriteBack> {
        for (part, block) in self.blocks.edges().into_iter().enumerate() {
            let (Some(start), data @ Some(_)) = (block, self.edges.bufs[part].take()) else {
                continue;
            };
            let (range, flags) = (start..start + self.blocks.block() as u64, BioFlags::empty());
            return Some(WriteBack { part, range, flags, data });
        }
        None
    }

    fn zero_inside(&mut self) -> Option<WriteBack> {
        let (flags, range) = (self.kind.zeroes()?, self.blocks.inside());
        if range.is_empty() || std::mem::replace(&mut self.has_zeroed, true) {
            return None;
        }
        Some(WriteBack { part: WHOLE, range, flags, data: None })
    }

    /// Takes the buffer of a bio back.
    pub(super) fn put(&mut self, part: usize, buf: Option<IoBuf>) {
        match self.edges.bufs.get_mut(part) {
            Some(edge) => *edge = buf,
            None => self.edges.whole = buf.or(self.edges.whole.take()),
        }
    }

    /// Takes all buffers out, to be given back.
    pub(super) fn take_bufs(&mut self) -> impl Iterator<Item = IoBuf> {
        let EdgeBlocks { bufs, whole } = &mut self.edges;
        bufs.each_mut().into_iter().filter_map(Option::take).chain(whole.take())
    }

    /// Merges the edges that were read with the change.
    fn merge(&mut self) {
        let UnalignedWrite { blocks, edges, kind, .. } = self;
        for (block, buf) in blocks.edges().into_iter().zip(&mut edges.bufs) {
            let (Some(block), Some(edge)) = (block, buf) else { continue };
            let edge = &mut edge[DATA_AT..DATA_AT + blocks.block()];
            match (*kind, &mut edges.whole) {
                (Kind::Write(_), Some(whole)) => {
                    let whole = &mut whole[DATA_AT..DATA_AT + blocks.all_bytes()];
                    blocks.complete(whole, block, edge);
                }
                _ => edge[blocks.covered(block)].fill(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 8;

    fn buf(bytes: usize, fill: u8) -> IoBuf {
        let mut buf = IoBuf::zeroed(DATA_AT + bytes);
        buf[DATA_AT..].fill(fill);
        buf
    }

    /// Carries the write out on `disk`, as a session does.
    fn carry_out(mut write: UnalignedWrite, disk: &mut [u8]) {
        assert_eq!(write.advance(false), Step::ReadEdges);
        for (part, block) in write.edge_reads().into_iter().enumerate() {
            let Some(start) = block else { continue };
            let mut edge = buf(BLOCK as usize, 0);
            let at = start as usize..(start + BLOCK) as usize;
            edge[DATA_AT..].copy_from_slice(&disk[at]);
            write.put(part, Some(edge));
        }
        assert!(!write.is_writing());
        assert_eq!(write.advance(false), Step::WriteBack);
        assert!(write.is_writing());
        let mut written = Vec::new();
        while let Some(back) = write.next_write() {
            let at = back.range.start as usize..back.range.end as usize;
            match &back.data {
                Some(data) => disk[at.clone()].copy_from_slice(&data[DATA_AT..][..at.len()]),
                None => disk[at].fill(0),
            }
            assert!(written.iter().all(|(part, _)| *part != back.part), "each part once");
            written.push((back.part, back.data));
        }
        written.into_iter().for_each(|(part, data)| write.put(part, data));
        assert_eq!(write.advance(false), Step::End);
    }

    /// Compares all ranges of some blocks with an array of bytes.
    #[test]
    fn only_the_range_changes() {
        for start in 0..3 * BLOCK {
            for end in start + 1..=4 * BLOCK {
                let blocks = Blocks::of(start..end, BLOCK);
                let range = start as usize..end as usize;
                let mut data = buf(blocks.all_bytes(), 0xee);
                data[DATA_AT + blocks.skip()..][..blocks.bytes()].fill(2);
                let writes = [
                    UnalignedWrite::write(blocks.clone(), BioFlags::FUA, data),
                    UnalignedWrite::zeroes(blocks.clone(), BioFlags::NOUNMAP),
                    UnalignedWrite::truncate(blocks),
                ];
                for (write, fill) in writes.into_iter().zip([2, 0, 0]) {
                    let (mut disk, mut wanted) = (vec![1; 32], vec![1; 32]);
                    wanted[range.clone()].fill(fill);
                    carry_out(write, &mut disk);
                    assert_eq!(disk, wanted, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn flags_go_with_the_data_they_are_of() {
        let blocks = Blocks::of(1..30, BLOCK);
        let mut write = UnalignedWrite::write(blocks.clone(), BioFlags::FUA, buf(32, 0));
        let back = write.next_write().expect("all blocks");
        assert!(back.flags == BioFlags::FUA && back.range == (0..32) && back.data.is_some());
        assert!(write.next_write().is_none());
        let mut zeroes = UnalignedWrite::zeroes(blocks, BioFlags::NOUNMAP);
        let back = zeroes.next_write().expect("the blocks between the edges");
        assert!(back.flags == BioFlags::NOUNMAP && back.range == (8..24) && back.data.is_none());
        assert!(zeroes.next_write().is_none());
    }

    #[test]
    fn a_failure_ends_it_and_leaves_its_buffers() {
        let mut write =
            UnalignedWrite::write(Blocks::of(1..2, BLOCK), BioFlags::empty(), buf(8, 0));
        assert_eq!(write.advance(false), Step::ReadEdges);
        write.put(0, Some(buf(8, 1)));
        assert_eq!(write.advance(true), Step::End);
        assert_eq!(write.take_bufs().count(), 2, "the data and an edge");
        assert_eq!(write.take_bufs().count(), 0);
    }
}
