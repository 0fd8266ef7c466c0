//! A request that was parsed.

use super::super::memory::within;
use super::super::ring::Chain;
use super::reply::{BlkReply, BlkStatus};
use drystone_core::Sector;
use drystone_core::buf::Segment;

/// Bytes of a device's name ([`BlkCommand::GetId`]).
pub const ID_BYTES: usize = 20;

/// A request. What it borrows is overwritten by the next one of its queue.
#[derive(Clone, Debug)]
pub struct BlkRequest<'p> {
    /// Where its answer goes.
    pub reply: BlkReply,
    /// What is to be done.
    pub command: BlkCommand<'p>,
}

/// What a request asks for. Everything lies within the device, and each write is allowed.
#[derive(Clone, Copy, Debug)]
pub enum BlkCommand<'p> {
    /// Read from `sector` on into the segments.
    Read {
        /// The first sector.
        sector: Sector,
        /// Guest memory, not empty: whole blocks in all, but each piece may be of any length. It is
        /// valid as long as the reply lives.
        segments: &'p [Segment],
    },
    /// Write the segments from `sector` on. The guest may change them meanwhile.
    Write {
        /// The first sector.
        sector: Sector,
        /// As those of a read.
        segments: &'p [Segment],
    },
    /// Make all writes that were answered before durable.
    Flush,
    /// Write the name of the device: [`BlkRequest::write_id`].
    GetId,
    /// The contents of the ranges are no longer needed.
    Discard {
        /// Ranges, none of them empty; there is at least one.
        ranges: &'p [BlkRange],
    },
    /// Make the ranges zero.
    WriteZeroes {
        /// As those of a discard.
        ranges: &'p [BlkRange],
    },
    /// Nothing: answer with this status at once.
    End(BlkStatus),
}

/// A range of a discard, or one that zeroes are written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkRange {
    /// The first sector.
    pub sector: Sector,
    /// The length, bytes.
    pub bytes: u64,
    /// True if zeroes may deallocate the range.
    pub unmap: bool,
}

impl BlkRequest<'_> {
    /// Writes the name of the device to the chain of a [`BlkCommand::GetId`]: padded with zeroes,
    /// and cut if the chain has less room.
    pub fn write_id(&self, chain: &Chain<'_>, id: &[u8; ID_BYTES]) {
        let before_status = u64::from(chain.writable_bytes()).saturating_sub(1);
        let room = before_status.min(ID_BYTES as u64);
        chain.memory().scatter(within(chain.writable(), 0..room), id);
    }
}
