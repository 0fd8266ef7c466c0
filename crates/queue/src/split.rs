//! Splits bios to a device's limits (Linux `block/blk-merge.c`).

use drystone_core::{Bio, Limits, Op};

/// The length in bytes of the first part of `bio` that one request can carry. It is the bio's
/// length if no split is needed, and 0 if not even one block fits the segment limit.
///
/// Reads and writes are split at a chunk boundary, otherwise at a physical block boundary if
/// possible, and never within a logical block. Discards are split at a multiple of the granularity.
/// Write zeroes are split by size only.
pub fn first_part(bio: &Bio, limits: &Limits) -> u64 {
    match bio.op {
        Op::Flush => bio.bytes,
        Op::Discard => discard_part(bio, limits),
        Op::WriteZeroes => size_part(bio, limits.max_write_zeroes_bytes, limits),
        Op::Read | Op::Write => data_part(bio, limits),
    }
}

fn size_part(bio: &Bio, max: u64, limits: &Limits) -> u64 {
    let max = max - max % u64::from(limits.logical_block_size);
    bio.bytes.min(max.max(u64::from(limits.logical_block_size)))
}

fn discard_part(bio: &Bio, limits: &Limits) -> u64 {
    let granularity = u64::from(limits.discard_granularity.max(limits.logical_block_size));
    let max = limits.max_discard_bytes - limits.max_discard_bytes % granularity;
    if bio.bytes <= max || max == 0 {
        return bio.bytes.min(limits.max_discard_bytes);
    }
    let tail = (bio.sector.bytes() + max) % granularity;
    if tail < max { max - tail } else { max }
}

fn data_part(bio: &Bio, limits: &Limits) -> u64 {
    let start = bio.sector.bytes();
    let max = u64::from(limits.max_bytes).min(limits.to_chunk_end(start));
    let most = if bio.bytes <= max { bio.bytes } else { aligned_end(start, max, limits) };
    within_segments(bio, most, limits)
}

/// The largest length up to `max` that ends at a physical block boundary, or otherwise at a logical
/// one.
fn aligned_end(start: u64, max: u64, limits: &Limits) -> u64 {
    let physical = u64::from(limits.physical_block_size);
    let in_block = start % physical;
    let end = (in_block + max) / physical * physical;
    if end > in_block {
        return end - in_block;
    }
    max - max % u64::from(limits.logical_block_size)
}

fn within_segments(bio: &Bio, most: u64, limits: &Limits) -> u64 {
    let max = usize::from(limits.max_segments);
    if bio.segment_count() <= max {
        return most;
    }
    let (mut bytes, mut n) = (0u64, 0);
    bio.each_segment(|s| {
        if n < max {
            bytes += s.len as u64;
        }
        n += 1;
    });
    if bytes >= most {
        return most;
    }
    bytes - bytes % u64::from(limits.logical_block_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::{IoBuf, Sector};
    use proptest::prelude::*;

    fn limits() -> Limits {
        Limits { max_bytes: 8192, physical_block_size: 4096, ..Limits::default() }
    }

    #[test]
    fn parts_end_on_physical_blocks() {
        let bio = Bio::read(Sector(1), IoBuf::zeroed(32768));
        assert_eq!(first_part(&bio, &limits()), 8192 - 512);
        let aligned = Bio::read(Sector(8), IoBuf::zeroed(32768));
        assert_eq!(first_part(&aligned, &limits()), 8192);
        let whole = Bio::read(Sector(3), IoBuf::zeroed(8192));
        assert_eq!(first_part(&whole, &limits()), 8192);
    }

    #[test]
    fn discards_end_on_granules() {
        let l =
            Limits { max_discard_bytes: 1 << 20, discard_granularity: 65536, ..Limits::default() };
        let bio = Bio::without_data(Op::Discard, Sector(8), 4 << 20);
        let first = first_part(&bio, &l);
        assert_eq!((8 * 512 + first) % 65536, 0);
        assert!(first <= 1 << 20 && first > 0);
    }

    proptest! {
        /// Repeated splits cover the bio exactly, and each part is within every limit.
        #[test]
        fn parts_cover_and_fit(
            sector in 0u64..100, blocks in 1u64..200, lbs_shift in 9u32..13, phys_shift in 9u32..14,
            max in 1u32..40, chunk in 0u64..30, pieces in 1usize..5, max_segments in 1u16..4,
        ) {
            let lbs = 1u64 << lbs_shift;
            let limits = Limits {
                logical_block_size: lbs as u32,
                physical_block_size: 1 << phys_shift.max(lbs_shift),
                max_bytes: max * lbs as u32,
                chunk_bytes: chunk * lbs,
                max_segments,
                ..Limits::default()
            };
            let total = blocks * lbs;
            let mut start = sector * lbs;
            let mut left = total;
            let each = (total / pieces as u64) as usize / 512 * 512 + 512;
            let lengths = vec![each; pieces];
            while left > 0 {
                let mut bio = test_bio(&lengths, (total - left) as usize);
                (bio.sector, bio.bytes) = (Sector::from_bytes(start), left);
                let n = first_part(&bio, &limits);
                prop_assert!(n <= left);
                if n == 0 {
                    // This happens only if the first max_segments pieces hold less than a block.
                    prop_assert!(lbs > 512);
                    return Ok(());
                }
                prop_assert!(n <= u64::from(limits.max_bytes));
                prop_assert_eq!(n % lbs, 0);
                let chunk = |at: u64| at.checked_div(limits.chunk_bytes);
                prop_assert_eq!(chunk(start), chunk(start + n - 1));
                bio.bytes = n;
                prop_assert!(bio.segment_count() <= usize::from(max_segments));
                (start, left) = (start + n, left - n);
            }
        }
    }

    /// A bio over buffers with the lengths that remain of `lengths` after `skip` bytes.
    fn test_bio(lengths: &[usize], mut skip: usize) -> Box<Bio> {
        let rest = lengths.iter().filter_map(|len| {
            let cut = skip.min(*len);
            skip -= cut;
            (len - cut > 0).then(|| (IoBuf::zeroed(len - cut), 0..len - cut))
        });
        Bio::vectored(Op::Read, Sector(0), rest)
    }
}
