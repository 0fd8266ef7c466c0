//! The writes: parts of one blob of random bytes, which both sides have.

use crate::arrays::{Array, DATA_BYTES};

/// One write, in sectors.
#[derive(Clone, Copy)]
pub struct Write {
    /// Position in the blob.
    pub from: usize,
    /// Position in the array.
    pub to: usize,
    pub sectors: usize,
}

/// Pseudo-random numbers, the same each time.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Bytes to write parts of.
pub fn blob() -> Vec<u8> {
    let mut chance = Chance(2015);
    (0..DATA_BYTES).map(|_| chance.below(256) as u8).collect()
}

/// All of the array.
pub fn everything() -> Vec<Write> {
    vec![Write { from: 0, to: 0, sectors: DATA_BYTES / 512 }]
}

/// Small and large ones, all over.
pub fn some(chance: &mut Chance) -> Vec<Write> {
    let all = DATA_BYTES / 512;
    let write = |n: usize, chance: &mut Chance| {
        let longest = [8, 8, 32, 300][n % 4];
        let sectors = 1 + chance.below(longest);
        Write { from: chance.below(all - sectors), to: chance.below(all - sectors), sectors }
    };
    (0..8).map(|n| write(n, chance)).collect()
}

impl Array {
    /// Records the writes in the expected contents.
    pub fn note(&mut self, writes: &[Write], blob: &[u8]) {
        for write in writes {
            let bytes = &blob[write.from * 512..][..write.sectors * 512];
            self.data[write.to * 512..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}
