//! A piece of an item: the part of the item that one stripe handles.

use crate::ids::Role;
use crate::layout::BLOCK_BYTES;

/// A part of an item that lies in one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) item: u32,
    pub(super) role: Role,
    /// Offset in the item's data, in bytes.
    pub(super) at: u64,
    /// Offset in the block, in bytes.
    pub(super) start: u32,
    pub(super) bytes: u32,
}

impl Piece {
    /// The piece covers the whole block.
    pub(super) fn is_whole(&self) -> bool {
        self.bytes as usize == BLOCK_BYTES
    }

    /// The bytes of the block that the piece covers.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.bytes) as usize
    }
}

/// The kind of work that a piece asks of its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Write,
    Sync,
}
