//! The check of a bio against its device: the checks of Linux's `submit_bio_noacct`, in its order.

use crate::bio::Bio;
use crate::limits::Limits;
use crate::op::{BioFlags, Op};
use crate::status::Status;

/// Sectors below this have an offset in bytes that cannot overflow.
const SECTOR_LIMIT: u64 = 1 << 54;

/// True for a read or write inside a device of `size_bytes` that needs no further check: none of
/// the flags `special`, whole blocks, permitted. False says nothing; see [`check`].
#[inline(always)]
pub fn is_plain(bio: &Bio, limits: &Limits, size_bytes: u64, special: BioFlags) -> bool {
    let start = bio.sector.bytes();
    let mask = u64::from(limits.logical_block_size) - 1;
    bio.op.has_data()
        // From 1 to a number that cannot overflow below.
        && bio.bytes.wrapping_sub(1) < u64::from(u32::MAX)
        && bio.sector.0 < SECTOR_LIMIT
        && start + bio.bytes <= size_bytes
        && (start | bio.bytes) & mask == 0
        && !bio.flags.intersects(special)
        && !(limits.read_only && bio.op.is_write())
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
