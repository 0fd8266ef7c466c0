//! Writes and zeroes that do not cover whole blocks: [`Blocks`] draws them.
//!
//! ```text
//!   write    [ data of all its blocks | spare ]   read an edge into the spare block, complete the
//!                                                 data with it, the other edge likewise, write all
//!   zeroes   [ a block ]                          read an edge, zero its part, write it, the other
//!                                                 edge likewise; then what is inside as ever
//! ```
//!
//! Invariants:
//! * All blocks that the request touches are locked exclusively from before the first read until
//!   its reply. For zeroes this ends when the edges are written: the inner blocks are then locked
//!   as for a write of whole blocks.
//! * Only one such request of a connection holds this lock at a time; the connection's others wait
//!   for it.
//! * The request has one bio in flight at a time, and one buffer, which the connection's share
//!   covers.

use super::bios::write_flags;
use crate::nbd::proto::Command;
use crate::nbd::request::Request;
use crate::server::{Blocks, DATA_AT, Pool};
use drystone_core::{Bio, BioFlags, IoBuf, Op as BioOp, Sector};
use std::ops::Range;

/// The step of a request for parts of blocks that is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The edge block that begins here is read.
    Read(u64),
    /// The edge block is written.
    WriteEdge,
    /// All blocks are written.
    WriteAll,
}

/// The progress of a request for parts of blocks.
pub(super) struct Unaligned {
    blocks: Blocks,
    /// Edges that are not read yet.
    left: [Option<u64>; 2],
    step: Step,
}

/// The next step.
pub(super) enum Next {
    /// Submit this bio.
    Bio(Box<Bio>),
    /// Zero the inner blocks, with this buffer.
    Inside(IoBuf),
    /// The request is done; this is its buffer.
    Done(IoBuf),
}

/// Bytes of the buffer for a request for parts of blocks: as drawn above.
pub(super) fn buffer_bytes(blocks: &Blocks, command: Command) -> usize {
    match command {
        Command::Write => blocks.all_bytes() + blocks.block(),
        _ => blocks.block(),
    }
}

impl Unaligned {
    /// Nothing is done yet; the first bio reads the first edge into `buf`.
    pub(super) fn begin(
        blocks: Blocks,
        request: &Request,
        buf: IoBuf,
        pool: &mut Pool,
    ) -> (Self, Box<Bio>) {
        let left = blocks.edges();
        let mut unaligned = Unaligned { blocks, left, step: Step::WriteAll };
        match unaligned.read_edge(request, buf, pool) {
            Ok(bio) => (unaligned, bio),
            Err(_) => unreachable!("it covers some block in part"),
        }
    }

    /// The place in the buffer to which an edge block is read, and from which it is written unless
    /// it is a part of a write.
    fn spare(&self, command: Command) -> Range<usize> {
        let at =
            if command == Command::Write { DATA_AT + self.blocks.all_bytes() } else { DATA_AT };
        at..at + self.blocks.block()
    }

    /// Read the next edge; returns the buffer if no edge is left.
    fn read_edge(
        &mut self,
        request: &Request,
        buf: IoBuf,
        pool: &mut Pool,
    ) -> Result<Box<Bio>, IoBuf> {
        let Some(block) = self.left.iter_mut().find_map(Option::take) else { return Err(buf) };
        self.step = Step::Read(block);
        let mut bio = pool.bio();
        (bio.op, bio.flags) = (BioOp::Read, BioFlags::SYNC);
        bio.sector = Sector::from_bytes(block);
        bio.set_buf(buf, Some(self.spare(request.command)));
        Ok(bio)
    }

    /// Takes `buf` back from the bio, which succeeded. Returns the next step.
    pub(super) fn next(&mut self, request: &Request, buf: IoBuf, pool: &mut Pool) -> Next {
        match (self.step, request.command) {
            (Step::Read(block), Command::Write) => self.complete(block, request, buf, pool),
            (Step::Read(block), _) => Next::Bio(self.zero_edge(block, request, buf, pool)),
            (Step::WriteEdge, _) => match self.read_edge(request, buf, pool) {
                Ok(bio) => Next::Bio(bio),
                Err(buf) if self.blocks.inside().is_empty() => Next::Done(buf),
                Err(buf) => Next::Inside(buf),
            },
            (Step::WriteAll, _) => Next::Done(buf),
        }
    }

    /// Complete the data with the rest of an edge block; then read the other edge, or write all.
    fn complete(&mut self, block: u64, request: &Request, mut buf: IoBuf, pool: &mut Pool) -> Next {
        let (all, spare) = (self.blocks.all_bytes(), self.spare(Command::Write));
        let (data, read) = buf[DATA_AT..spare.end].split_at_mut(all);
        self.blocks.complete(data, block, read);
        match self.read_edge(request, buf, pool) {
            Ok(bio) => Next::Bio(bio),
            Err(buf) => {
                self.step = Step::WriteAll;
                let start = self.blocks.all().start;
                Next::Bio(write(request, start, buf, DATA_AT..DATA_AT + all, pool))
            }
        }
    }

    fn zero_edge(
        &mut self,
        block: u64,
        request: &Request,
        mut buf: IoBuf,
        pool: &mut Pool,
    ) -> Box<Bio> {
        let spare = self.spare(request.command);
        buf[spare.clone()][self.blocks.covered(block)].fill(0);
        self.step = Step::WriteEdge;
        write(request, block, buf, spare, pool)
    }
}

fn write(
    request: &Request,
    start: u64,
    buf: IoBuf,
    range: Range<usize>,
    pool: &mut Pool,
) -> Box<Bio> {
    let mut bio = pool.bio();
    bio.op = BioOp::Write;
    // No other code has the buffer, so its contents are stable.
    bio.flags = write_flags(request) & BioFlags::FUA | BioFlags::STABLE;
    bio.sector = Sector::from_bytes(start);
    bio.set_buf(buf, Some(range));
    bio
}
