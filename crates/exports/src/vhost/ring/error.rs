//! The reasons why a ring is broken.

use super::super::memory::{AreaError, Outside};
use super::setup::DESCRIPTORS_MAX;

/// The reason why a ring is broken: the driver did what none may do. The text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A part of the ring cannot be used where it is.
    #[error("a part of the ring cannot be used: {0}")]
    Area(#[from] AreaError),
    /// The available index is further ahead than there are entries.
    #[error("the available index is {ahead} ahead, in a ring of {size} entries")]
    IndexAhead {
        /// How far ahead it is of what was taken.
        ahead: u16,
        /// Entries of the ring.
        size: u16,
    },
    /// A chain begins at a descriptor that does not exist.
    #[error("a chain begins at descriptor {head}: there are {size}")]
    HeadOutside {
        /// Its number.
        head: u16,
        /// Entries of the ring.
        size: u16,
    },
    /// A chain was made available a second time before it was used.
    #[error("the chain at descriptor {0} is available again before it was used")]
    HeadTwice(u16),
    /// A descriptor names a next one that does not exist.
    #[error("a descriptor is followed by number {next}: its table has {entries}")]
    NextOutside {
        /// The number.
        next: u16,
        /// Entries of the table, that of the ring or an indirect one.
        entries: u16,
    },
    /// A chain is longer than its table, so it has a loop.
    #[error("a chain is longer than its table of {0} entries")]
    Loop(u16),
    /// A descriptor names a table, but the driver did not negotiate that.
    #[error("a descriptor names a table, but RING_INDIRECT_DESC was not negotiated")]
    IndirectNotNegotiated,
    /// A table names a table.
    #[error("an indirect table names another table")]
    IndirectInIndirect,
    /// A descriptor names a table and a next descriptor.
    #[error("a descriptor names a table and a next descriptor")]
    IndirectNext,
    /// A table has no length that a table can have.
    #[error("an indirect table has {0} bytes: 1 to {DESCRIPTORS_MAX} entries of 16 are possible")]
    TableLength(u32),
    /// A chain has too many descriptors, those of its table counted.
    #[error("a chain has more than {DESCRIPTORS_MAX} descriptors")]
    TooManyDescriptors,
    /// A descriptor or table is not all in memory.
    #[error("a descriptor names memory that is not there: {0}")]
    Outside(#[from] Outside),
    /// A descriptor that the device reads comes after one that it writes.
    #[error("a descriptor that is read comes after one that is written")]
    ReadAfterWrite,
    /// A chain has more bytes than its length can say.
    #[error("a chain has more than 2^32 - 1 bytes")]
    TooManyBytes,
    /// A chain crosses from region to region too often.
    #[error("a chain has more than {0} pieces of memory")]
    TooManyPieces(usize),
    /// A request has no byte for its status, so it cannot be answered.
    #[error("a request has no byte that its status can be written to")]
    NoStatus,
}
