//! The limits of one request of a device, and how limits of stacked devices combine.
//!
//! Names and defaults follow Linux's queue limits (`Documentation/ABI/stable/sysfs-block`,
//! `block/blk-settings.c`); all sizes are bytes.

use crate::units::SECTOR_SIZE;

/// Limits of a device. `u32::MAX`/`u64::MAX` mean no limit, 0 means "cannot" for the three
/// operations without data and "none" for `chunk_bytes` and `io_opt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest addressable unit; a power of two from 512 to 4096.
    pub logical_block_size: u32,
    /// Unit written without read-modify-write below; a power of two, at least logical.
    pub physical_block_size: u32,
    /// Preferred smallest I/O.
    pub io_min: u32,
    /// Preferred I/O, 0 if the device has none.
    pub io_opt: u32,
    /// Most bytes of a read or write request; a multiple of the logical block size.
    pub max_bytes: u32,
    /// Most segments of a request.
    pub max_segments: u16,
    /// No request crosses a multiple of this; 0 for none. Need not be a power of two.
    pub chunk_bytes: u64,
    /// Most bytes of a discard; 0 when discard is not supported.
    pub max_discard_bytes: u64,
    /// Discards are most useful in multiples of this.
    pub discard_granularity: u32,
    /// Most bytes of a write zeroes; 0 when not supported.
    pub max_write_zeroes_bytes: u64,
    /// Write zeroes is quick: no data is sent.
    pub fast_zero: bool,
    /// Required alignment of memory; 1 for any.
    pub memory_alignment: u32,
    /// The device has a volatile write cache: flushes mean something.
    pub write_cache: bool,
    /// The device can write through its cache on request.
    pub fua: bool,
    /// The device spins.
    pub rotational: bool,
    /// The device refuses writes.
    pub read_only: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            logical_block_size: SECTOR_SIZE as u32,
            physical_block_size: SECTOR_SIZE as u32,
            io_min: SECTOR_SIZE as u32,
            io_opt: 0,
            max_bytes: Self::DEFAULT_MAX_BYTES,
            max_segments: 128,
            chunk_bytes: 0,
            max_discard_bytes: 0,
            discard_granularity: 0,
            max_write_zeroes_bytes: 0,
            fast_zero: false,
            memory_alignment: 1,
            write_cache: false,
            fua: false,
            rotational: false,
            read_only: false,
        }
    }
}

impl Limits {
    /// The limits of a device without members: where stacking begins (Linux
    /// `blk_set_stacking_limits`).
    pub const STACKING: Limits = Limits {
        logical_block_size: SECTOR_SIZE as u32,
        physical_block_size: SECTOR_SIZE as u32,
        io_min: SECTOR_SIZE as u32,
        io_opt: 0,
        max_bytes: u32::MAX,
        max_segments: u16::MAX,
        chunk_bytes: 0,
        max_discard_bytes: u64::MAX >> 1,
        discard_granularity: SECTOR_SIZE as u32,
        max_write_zeroes_bytes: u64::MAX >> 1,
        fast_zero: true,
        memory_alignment: 1,
        write_cache: false,
        fua: false,
        rotational: false,
        read_only: false,
    };

    /// Linux's default `max_sectors_kb`: 1280 KiB.
    pub const DEFAULT_MAX_BYTES: u32 = 1280 << 10;

    /// Bring dependent limits into order: physical at least logical, io_min at least physical,
    /// io_opt a multiple of physical, max_bytes at least one block and whole blocks.
    pub fn normalized(mut self) -> Self {
        debug_assert!(self.logical_block_size.is_power_of_two());
        self.physical_block_size = self.physical_block_size.max(self.logical_block_size);
        self.io_min = self.io_min.max(self.physical_block_size);
        self.io_opt -= self.io_opt % self.physical_block_size;
        self.max_bytes -= self.max_bytes % self.logical_block_size;
        self.max_bytes = self.max_bytes.max(self.logical_block_size);
        if self.max_discard_bytes > 0 {
            self.discard_granularity = self.discard_granularity.max(self.logical_block_size);
        }
        self.fua &= self.write_cache;
        self
    }

    /// The limits of a device on top of two members with limits `self` and `other`.
    pub fn stack(self, other: Limits) -> Limits {
        Limits {
            logical_block_size: self.logical_block_size.max(other.logical_block_size),
            physical_block_size: self.physical_block_size.max(other.physical_block_size),
            io_min: self.io_min.max(other.io_min),
            io_opt: lcm(self.io_opt, other.io_opt),
            max_bytes: self.max_bytes.min(other.max_bytes),
            max_segments: self.max_segments.min(other.max_segments),
            chunk_bytes: gcd(self.chunk_bytes, other.chunk_bytes),
            max_discard_bytes: self.max_discard_bytes.min(other.max_discard_bytes),
            discard_granularity: self.discard_granularity.max(other.discard_granularity),
            max_write_zeroes_bytes: self.max_write_zeroes_bytes.min(other.max_write_zeroes_bytes),
            fast_zero: self.fast_zero && other.fast_zero,
            memory_alignment: self.memory_alignment.max(other.memory_alignment),
            write_cache: self.write_cache || other.write_cache,
            // Every write goes through where nothing is cached.
            fua: (self.fua || !self.write_cache) && (other.fua || !other.write_cache),
            rotational: self.rotational || other.rotational,
            read_only: self.read_only || other.read_only,
        }
        .normalized()
    }

    /// Bytes from `offset` to the next chunk boundary, or no limit.
    #[inline]
    pub fn to_chunk_end(&self, offset: u64) -> u64 {
        match self.chunk_bytes {
            0 => u64::MAX,
            chunk => chunk - offset % chunk,
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Least common multiple; 0 means "not given", and one too large to be useful is dropped.
fn lcm(a: u32, b: u32) -> u32 {
    if a == 0 || b == 0 {
        return a.max(b);
    }
    let lcm = u64::from(a) / gcd(a.into(), b.into()) * u64::from(b);
    u32::try_from(lcm).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacking_takes_the_stricter_limit() {
        let a = Limits {
            logical_block_size: 512,
            io_opt: 65536,
            chunk_bytes: 65536,
            ..Limits::default()
        };
        let b = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            io_opt: 49152,
            max_bytes: 131072,
            chunk_bytes: 49152,
            write_cache: true,
            ..Limits::default()
        };
        let s = a.stack(b);
        assert_eq!(s, b.stack(a));
        assert_eq!(s.logical_block_size, 4096);
        assert_eq!(s.io_min, 4096);
        assert_eq!(s.io_opt, 196608);
        assert_eq!(s.chunk_bytes, 16384);
        assert_eq!(s.max_bytes, 131072);
        assert!(s.write_cache && !s.fua);
    }

    #[test]
    fn normalizing_orders_dependent_limits() {
        let l = Limits {
            logical_block_size: 4096,
            io_opt: 5000,
            max_bytes: 5000,
            fua: true,
            ..Limits::default()
        };
        let n = l.normalized();
        assert_eq!(
            (n.physical_block_size, n.io_min, n.io_opt, n.max_bytes),
            (4096, 4096, 4096, 4096)
        );
        assert!(!n.fua, "FUA means nothing without a write cache");
        assert_eq!(n.to_chunk_end(12345), u64::MAX);
        assert_eq!(Limits { chunk_bytes: 1000, ..n }.to_chunk_end(12345), 655);
    }
}
