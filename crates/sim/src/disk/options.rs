//! The properties of a disk: its size, its cache and how long it takes.

use drystone_core::clock::Ns;
use fastrand::Rng;

/// The properties of a disk from the start. [`DiskOptions::new`] gives an honest one with a cache.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Bytes; a multiple of `physical_block`.
    pub size: u64,
    /// The unit in bytes that is never torn: 512 or 4096.
    pub physical_block: u32,
    /// True if it has a volatile write cache. Without one every write is durable when it is done.
    pub cache: bool,
    /// Most bytes of unflushed writes: beyond these the disk writes the oldest back, as a real
    /// cache does.
    pub cache_bytes_max: u64,
    /// True if flush and FUA succeed and do nothing.
    pub lying: bool,
    /// True if a flush succeeds and forgets the newest of the writes that it should keep.
    pub forgetful: bool,
    /// The time that operations take.
    pub latency: Latency,
    /// How often, per million, an operation takes effect when it begins and not when it finishes.
    pub early_ppm: u32,
}

impl DiskOptions {
    /// An honest disk of `size` bytes, with a cache, that never tears 512 bytes.
    pub fn new(size: u64) -> Self {
        DiskOptions {
            size,
            physical_block: 512,
            cache: true,
            cache_bytes_max: 16 << 20,
            lying: false,
            forgetful: false,
            latency: Latency::ssd(),
            early_ppm: 100_000,
        }
    }
}

/// The time that operations take: a base plus an evenly drawn part; rarely much longer.
#[derive(Clone, Debug)]
pub struct Latency {
    /// A read takes at least this long.
    pub read: Ns,
    /// A write, a discard or a write of zeroes takes at least this long.
    pub write: Ns,
    /// A flush takes at least this long.
    pub flush: Ns,
    /// The most that is added, drawn evenly.
    pub spread: Ns,
    /// Time added for each KiB that an operation moves.
    pub per_kib: Ns,
    /// Slow operations, per million.
    pub slow_ppm: u32,
    /// The most that a slow operation takes longer.
    pub slow: Ns,
}

impl Latency {
    /// Roughly an SSD: tens of microseconds, one in a thousand up to 5 ms. Only the order of
    /// magnitude matters to a simulation.
    pub fn ssd() -> Self {
        Latency {
            read: 60_000,
            write: 20_000,
            flush: 300_000,
            spread: 60_000,
            per_kib: 500,
            slow_ppm: 1000,
            slow: 5_000_000,
        }
    }

    /// Roughly a disk that rotates: milliseconds, one in a hundred up to 100 ms.
    pub fn hdd() -> Self {
        Latency {
            read: 3_000_000,
            write: 3_000_000,
            flush: 15_000_000,
            spread: 8_000_000,
            per_kib: 7_000,
            slow_ppm: 10_000,
            slow: 100_000_000,
        }
    }

    /// Always the same short time: the order of finishing is that of beginning.
    pub fn constant(ns: Ns) -> Self {
        Latency { read: ns, write: ns, flush: ns, spread: 0, per_kib: 0, slow_ppm: 0, slow: 0 }
    }

    /// The time that one operation of `length` bytes takes, and whether it is a slow one.
    pub(super) fn draw(&self, base: Ns, length: u64, rng: &mut Rng) -> (Ns, bool) {
        let ns = base + rng.u64(0..=self.spread) + length / 1024 * self.per_kib;
        let slow = self.slow_ppm > 0 && rng.u32(0..1_000_000) < self.slow_ppm;
        if slow { (ns + rng.u64(0..=self.slow), true) } else { (ns, false) }
    }
}
