//! The types that all kernels share: instruction sets, sources, and buffers in blocks.

use std::fmt;

/// The length of a buffer is a multiple of this.
pub const BLOCK_BYTES: usize = 64;

/// The data of a member, after the power of the generator by which it counts in Q: 0 to 254.
pub type Source<'a> = (u8, &'a [u8]);

/// An instruction set for which there are kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, on every CPU.
    Scalar,
    /// AVX2: 32 bytes at a time.
    Avx2,
    /// AVX-512 (F and BW) with GFNI: 64 bytes at a time, and a multiplication in one instruction.
    Avx512,
}

impl Isa {
    /// All instruction sets, the narrowest vectors first.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512+gfni",
        })
    }
}

/// A buffer in blocks.
pub(super) fn blocks(buffer: &mut [u8]) -> &mut [[u8; BLOCK_BYTES]] {
    buffer.as_chunks_mut().0
}

/// The `N` blocks of a source from the `at`th on.
pub(super) fn block_at<const N: usize>(source: &[u8], at: usize) -> &[[u8; BLOCK_BYTES]; N] {
    source.as_chunks().0[at..].first_chunk().expect("lengths have been checked")
}
