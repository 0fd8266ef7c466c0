//! What a device promised to its driver, as far as requests are held to it.

use super::super::blk_config::BlkConfig;
use super::super::proto::Features;
use super::super::ring::DESCRIPTORS_MAX;
use drystone_core::units::SECTOR_SIZE;

/// What a device promised to its driver, as far as requests are held to it.
#[derive(Clone, Copy, Debug)]
pub struct BlkLimits {
    features: Features,
    config: BlkConfig,
    read_only: bool,
}

impl BlkLimits {
    /// The limits of a device that has this configuration space, with the features that the driver
    /// chose. A device that is read-only stays so if the driver did not choose [`Features::RO`].
    ///
    /// # Panics
    /// If `seg_max` asks for more descriptors than a ring takes: a mistake of the caller.
    pub fn new(config: &BlkConfig, features: Features, read_only: bool) -> Self {
        let most = config.seg_max.saturating_add(2); // the header, and the status
        assert!(most <= DESCRIPTORS_MAX, "a ring takes no chain of {most} descriptors");
        Self { features, config: *config, read_only }
    }

    /// True if nothing may be written.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The size of the device changed.
    pub fn set_capacity(&mut self, sectors: u64) {
        self.config.capacity_sectors = sectors;
    }

    /// True if the driver chose all these features.
    pub(super) fn has(&self, features: Features) -> bool {
        self.features.contains(features)
    }

    /// The most ranges of a discard, and the most sectors of each.
    pub(super) fn discard(&self) -> (u32, u32) {
        (self.config.max_discard_segments, self.config.max_discard_sectors)
    }

    /// The most ranges that zeroes are written to, and the most sectors of each.
    pub(super) fn write_zeroes(&self) -> (u32, u32) {
        (self.config.max_write_zeroes_segments, self.config.max_write_zeroes_sectors)
    }

    /// True if the device has all these bytes, and they are whole blocks of its own, also if the
    /// driver did not choose to know how long those are.
    #[inline]
    pub(super) fn has_blocks(&self, sector: u64, bytes: u64) -> bool {
        let block = u64::from(self.config.block_bytes).max(SECTOR_SIZE);
        let end = sector.checked_add(bytes.div_ceil(SECTOR_SIZE));
        let is_inside = end.is_some_and(|end| end <= self.config.capacity_sectors);
        // A sector below the capacity has a place in bytes.
        is_inside && bytes.is_multiple_of(block) && (sector << 9).is_multiple_of(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_and_inside() {
        let config = BlkConfig { capacity_sectors: 64, block_bytes: 4096, ..BlkConfig::default() };
        let mut limits = BlkLimits::new(&config, Features::empty(), false);
        assert!(limits.has_blocks(0, 64 << 9) && limits.has_blocks(56, 4096));
        assert!(!limits.has_blocks(56, 8192) && !limits.has_blocks(u64::MAX, 4096));
        assert!(!limits.has_blocks(4, 4096) && !limits.has_blocks(8, 512));
        limits.set_capacity(80);
        assert!(limits.has_blocks(56, 8192));
        let config = BlkConfig { capacity_sectors: 64, block_bytes: 512, ..config };
        let sectors = BlkLimits::new(&config, Features::BLK_SIZE, true);
        assert!(sectors.has_blocks(63, 512) && !sectors.has_blocks(63, 513));
        assert!(!sectors.has_blocks(63, 511) && !sectors.has_blocks(1 << 55, 512));
    }
}
