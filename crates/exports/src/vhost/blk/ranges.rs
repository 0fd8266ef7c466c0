//! The ranges of a discard, and of zeroes to write (`struct virtio_blk_discard_write_zeroes`).
//!
//! Invariants:
//! * Each range is copied once, checked, and then used.
//! * `copies` has room for the most ranges of any request, and `found` never grows beyond that.

use super::super::memory::within;
use super::super::ring::Chain;
use super::header::HEADER_BYTES;
use super::limits::BlkLimits;
use super::reply::BlkStatus;
use super::request::BlkRange;
use drystone_core::Sector;
use drystone_core::units::SECTOR_SHIFT;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, Unaligned};

/// The flag by which zeroes may deallocate; others are reserved.
const UNMAP: u32 = 1;

/// A range as it lies in memory.
#[repr(C)]
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
struct Fields {
    sector: U64,
    sectors: U32,
    flags: U32,
}

/// Bytes of a range.
const RANGE_BYTES: u32 = size_of::<Fields>() as u32;

/// What ranges of a kind may be.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// The most ranges of a request.
    ranges_max: u32,
    /// The most sectors of a range.
    sectors_max: u32,
    /// The flags that a range may have.
    flags: u32,
}

impl Rules {
    /// The rules of a discard.
    pub(super) fn of_discard(limits: &BlkLimits) -> Self {
        let (ranges_max, sectors_max) = limits.discard();
        Self { ranges_max, sectors_max, flags: 0 }
    }

    /// The rules of zeroes to write.
    pub(super) fn of_write_zeroes(limits: &BlkLimits) -> Self {
        let (ranges_max, sectors_max) = limits.write_zeroes();
        Self { ranges_max, sectors_max, flags: UNMAP }
    }
}

/// The ranges of the last request that had some.
#[derive(Debug)]
pub(super) struct Ranges {
    copies: Box<[Fields]>,
    found: Vec<BlkRange>,
}

impl Ranges {
    /// Room for the requests of a device with these limits.
    pub(super) fn new(limits: &BlkLimits) -> Self {
        let most = limits.discard().0.max(limits.write_zeroes().0) as usize;
        let copies = vec![Fields::new_zeroed(); most].into();
        Self { copies, found: Vec::with_capacity(most) }
    }

    /// The ranges of a request, without empty ones.
    ///
    /// # Errors
    /// The status of a request that is refused.
    pub(super) fn parse(
        &mut self,
        chain: &Chain<'_>,
        limits: &BlkLimits,
        rules: Rules,
    ) -> Result<&[BlkRange], BlkStatus> {
        self.found.clear();
        for fields in copy(chain, rules, &mut self.copies)? {
            let range = fields.check(limits, rules)?;
            if range.bytes > 0 {
                self.found.push(range);
            }
        }
        Ok(&self.found)
    }
}

/// Copies the ranges of a request.
fn copy<'c>(
    chain: &Chain<'_>,
    rules: Rules,
    copies: &'c mut [Fields],
) -> Result<&'c [Fields], BlkStatus> {
    let bytes = chain.readable_bytes() - HEADER_BYTES;
    let count = bytes / RANGE_BYTES;
    if !bytes.is_multiple_of(RANGE_BYTES) || !(1..=rules.ranges_max).contains(&count) {
        return Err(BlkStatus::IoError);
    }
    let copies = &mut copies[..count as usize];
    let pieces = within(chain.readable(), HEADER_BYTES.into()..chain.readable_bytes().into());
    chain.memory().gather(pieces, copies.as_mut_bytes());
    Ok(copies)
}

impl Fields {
    fn check(&self, limits: &BlkLimits, rules: Rules) -> Result<BlkRange, BlkStatus> {
        let (sector, sectors, flags) = (self.sector.get(), self.sectors.get(), self.flags.get());
        if flags & !rules.flags != 0 {
            return Err(BlkStatus::Unsupported);
        }
        let bytes = u64::from(sectors) << SECTOR_SHIFT;
        if sectors > rules.sectors_max || !limits.has_blocks(sector, bytes) {
            return Err(BlkStatus::IoError);
        }
        Ok(BlkRange { sector: Sector(sector), bytes, unmap: flags & UNMAP != 0 })
    }
}
