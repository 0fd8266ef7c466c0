//! Regions of the members, and the shards of the stripe cache that they are spread over.

/// Shards of the stripe cache.
pub(crate) const SHARDS: usize = 16;

/// The number of adjacent member sectors that lie in the same shard: 64 KiB.
pub(crate) const REGION_SECTORS: u64 = 128;

/// The shard of a member sector. Adjacent regions are spread over all shards.
#[inline]
pub(crate) fn shard_of(sector: u64) -> usize {
    let region = sector / REGION_SECTORS;
    // Fibonacci hashing: the upper bits of a product with 2^64 divided by the golden ratio.
    (region.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SHARDS.trailing_zeros())) as usize
}
