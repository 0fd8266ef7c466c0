//! The beginning of a request.

use super::super::memory::within;
use super::super::ring::Chain;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, Unaligned};

/// The beginning of a request, as it lies in memory.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, Unaligned)]
pub(super) struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

/// Bytes of the header.
pub(super) const HEADER_BYTES: u32 = size_of::<Header>() as u32;

impl Header {
    /// Copies the header of a request, once; `None` if the chain is shorter.
    #[inline]
    pub(super) fn load(chain: &Chain<'_>) -> Option<Self> {
        if chain.readable_bytes() < HEADER_BYTES {
            return None;
        }
        let mut header = Header::new_zeroed();
        let pieces = within(chain.readable(), 0..u64::from(HEADER_BYTES));
        chain.memory().gather(pieces, header.as_mut_bytes());
        Some(header)
    }

    /// The type of the request.
    pub(super) fn kind(&self) -> u32 {
        self.kind.get()
    }

    /// The first sector, of a read or write.
    pub(super) fn sector(&self) -> u64 {
        self.sector.get()
    }
}
