//! The place of a request's data in its buffer.
//!
//! ```text
//!   | DATA_AT | edge before | data | edge after | a spare block, for writes of parts of blocks |
//!             '---- whole blocks of the device -'
//! ```
//!
//! Invariant: the layout depends only on the request and the device's block size. So the memory of
//! a request is known before any part of it starts.

use super::unaligned;
use super::window::BARE_BYTES;
use crate::nbd::proto::Command;
use crate::nbd::request::Request;
use crate::server::{Blocks, DATA_AT};

/// The bytes of one write of zeroes, if the device does not zero by itself.
pub(super) const ZERO_BYTES: u64 = BARE_BYTES;

/// The most bytes that a cache request reads; the server ignores the rest, which is only advice.
const CACHE_BYTES: u64 = BARE_BYTES;

/// The layout of requests for a device with blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataLayout {
    block_bytes: u32,
}

impl DataLayout {
    /// The layout for blocks of so many bytes, a power of two.
    pub(super) fn new(block_bytes: u32) -> Self {
        DataLayout { block_bytes }
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(self) -> u32 {
        self.block_bytes
    }

    /// The blocks of a request.
    #[inline]
    pub(super) fn blocks(self, request: &Request) -> Blocks {
        Blocks::of(request.offset..request.offset + request.length, self.block_bytes.into())
    }

    /// Bytes of the buffer that `request` takes for its data.
    #[inline]
    pub(super) fn buffer_bytes(self, request: &Request) -> usize {
        let blocks = self.blocks(request);
        match request.command {
            Command::Read => blocks.all_bytes(),
            Command::Write if blocks.is_whole() => blocks.all_bytes(),
            Command::Write => unaligned::buffer_bytes(&blocks, request.command),
            Command::Cache => blocks.all_bytes().min(CACHE_BYTES as usize),
            Command::WriteZeroes => {
                let inside = blocks.inside();
                let piece = (inside.end - inside.start).min(ZERO_BYTES) as usize;
                piece.max(unaligned::buffer_bytes(&blocks, request.command))
            }
            Command::Flush | Command::Trim | Command::BlockStatus | Command::Disc => 0,
        }
    }

    /// The place at which the data of a write begins in its buffer: its first block begins at
    /// [`DATA_AT`].
    #[inline]
    pub(super) fn payload_at(self, request: &Request) -> usize {
        DATA_AT + self.blocks(request).skip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::proto::CommandFlags;
    use crate::nbd::request::ContextSet;

    fn layout_of(command: Command, offset: u64, length: u64) -> (usize, usize) {
        let (flags, contexts) = (CommandFlags::empty(), ContextSet::default());
        let request = Request { command, flags, contexts, cookie: 1, offset, length };
        let layout = DataLayout::new(512);
        (layout.buffer_bytes(&request), layout.payload_at(&request) - DATA_AT)
    }

    #[test]
    fn data_lies_in_whole_blocks() {
        assert_eq!(layout_of(Command::Write, 512, 1024), (1024, 0));
        assert_eq!(layout_of(Command::Write, 700, 400), (1024 + 512, 188), "with a spare block");
        assert_eq!(layout_of(Command::Read, 700, 400), (1024, 188));
    }

    #[test]
    fn requests_without_data_take_what_their_bios_need() {
        assert_eq!(layout_of(Command::Cache, 0, 8 << 20).0, 1 << 20);
        assert_eq!(layout_of(Command::WriteZeroes, 0, 8 << 20).0, 1 << 20);
        assert_eq!(layout_of(Command::WriteZeroes, 1, 2).0, 512, "for the edge");
        assert_eq!(layout_of(Command::Trim, 0, 8 << 20).0, 0);
    }
}
