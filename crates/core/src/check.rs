//! The check of a bio against its device: the checks of Linux's `submit_bio_noacct`, in its order.

use crate::bio::Bio;
use crate::limits::Limits;
use crate::op::{BioFlags, Op};
use crate::status::Status;
use crate::units::SECTOR_SHIFT;

/// What decides whether a bio is plain: a copy of a few limits, which a loop can keep in registers.
#[derive(Clone, Copy)]
pub struct Plain {
    size_bytes: u64,
    block_mask: u64,
    max_bytes: u64,
    max_op: u8,
    special: BioFlags,
}

impl Plain {
    /// Plain bios of a device of `size_bytes` with `limits` have at most `max_bytes` bytes and none
    /// of the flags `special`.
    #[inline(always)]
    pub fn new(limits: &Limits, size_bytes: u64, max_bytes: u32, special: BioFlags) -> Self {
        Plain {
            size_bytes,
            block_mask: u64::from(limits.logical_block_size) - 1,
            max_bytes: size_bytes.min(max_bytes.into()),
            max_op: if limits.read_only { Op::Read as u8 } else { Op::Write as u8 },
            special,
        }
    }

    /// True for a read or write inside the device that needs no further check: whole blocks,
    /// permitted. False says nothing; see [`check`].
    #[inline(always)]
    pub fn has(&self, bio: &Bio) -> bool {
        self.allows(bio.op) && self.has_range_of(bio)
    }

    /// True for a permitted read or write.
    #[inline(always)]
    pub fn allows(&self, op: Op) -> bool {
        op as u8 <= self.max_op
    }

    /// As [`Plain::has`], for a bio whose operation is allowed.
    #[inline(always)]
    pub fn has_range_of(&self, bio: &Bio) -> bool {
        // Bits that a shift would lose come back as low ones: then it is no offset of a block.
        let start = bio.sector.0.rotate_left(SECTOR_SHIFT);
        // `max_bytes` is not more than the size, so the difference below does not overflow.
        bio.bytes.wrapping_sub(1) < self.max_bytes
            && start <= self.size_bytes - bio.bytes
            && (start | bio.bytes) & self.block_mask == 0
            && !bio.flags.intersects(self.special)
    }
}

/// As [`Plain::has`], with any length.
#[inline(always)]
pub fn is_plain(bio: &Bio, limits: &Limits, size_bytes: u64, special: BioFlags) -> bool {
    Plain::new(limits, size_bytes, u32::MAX, special).has(bio)
}

/// Checks that a device of `size_bytes` with `limits` can take `bio`.
///
/// # Errors
/// The status with which the bio must end.
pub fn check(bio: &Bio, limits: &Limits, size_bytes: u64) -> Result<(), Status> {
    if bio.op == Op::Flush {
        return Ok(());
    }
    if bio.flags.intersects(BioFlags::FUA | BioFlags::PREFLUSH) && !bio.op.is_write() {
        return Err(Status::Invalid);
    }
    if limits.read_only && bio.op.is_write() {
        return Err(Status::Permission);
    }
    check_range(bio, limits, size_bytes)?;
    let supported = match bio.op {
        Op::Discard => limits.max_discard_bytes > 0,
        Op::WriteZeroes => limits.max_write_zeroes_bytes > 0,
        _ => true,
    };
    let quick = limits.fast_zero || !bio.flags.contains(BioFlags::FAST_ZERO);
    if supported && quick { Ok(()) } else { Err(Status::NotSupported) }
}

fn check_range(bio: &Bio, limits: &Limits, size_bytes: u64) -> Result<(), Status> {
    let mask = u64::from(limits.logical_block_size) - 1;
    let start = bio.sector.0.checked_mul(512).ok_or(Status::IoError)?;
    let end = start.checked_add(bio.bytes).ok_or(Status::IoError)?;
    if end > size_bytes {
        return Err(Status::IoError);
    }
    if (start | bio.bytes) & mask != 0 || bio.op.has_data() && bio.data_len() < bio.bytes {
        return Err(Status::Invalid);
    }
    Ok(())
}
