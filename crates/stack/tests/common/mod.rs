//! Parts that storms share: random numbers, and the data to write.
#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::time::SystemTime;

/// Random numbers that a seed repeats.
pub struct Random(fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(0..n)
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A sector that tells its place and its last writer; of zeroes if nobody wrote it.
pub fn one(sector: u64, serial: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    if serial > 0 {
        bytes.chunks_exact_mut(16).for_each(|part| {
            part[..8].copy_from_slice(&sector.to_le_bytes());
            part[8..].copy_from_slice(&serial.to_le_bytes());
        });
    }
    bytes
}

pub fn seed() -> u64 {
    let given = std::env::var("DRYSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 | 1)
    })
}
