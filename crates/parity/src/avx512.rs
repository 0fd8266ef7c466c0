//! The kernels for AVX-512 with GFNI. `vgf2p8affineqb` multiplies each byte by a bit matrix; every
//! coefficient has such a matrix. (`vgf2p8mulb` uses another polynomial.)

#![allow(unsafe_code, reason = "vectors are loaded and stored by address")]

use std::arch::x86_64::*;

use super::blocks::{BLOCK_BYTES, Source, block_at, blocks};
use super::gf;
use super::passes::define_passes;

/// The matrix of each coefficient.
static MATRICES: [u64; 256] = matrices();

const fn matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        table[coefficient] = matrix(coefficient as u8);
        coefficient += 1;
    }
    table
}

/// The bit matrix of a coefficient. Its column `j` is the coefficient times x^j. Its row `i` gives
/// bit `i` of the product and lies in byte `7 - i` (Intel's manual, GF2P8AFFINEQB).
const fn matrix(coefficient: u8) -> u64 {
    let (mut matrix, mut column) = (0, 0);
    while column < 8 {
        let product = gf::mul(coefficient, 1 << column);
        let mut row = 0;
        while row < 8 {
            let bit = (product >> row & 1) as u64;
            matrix |= bit << ((7 - row) * 8 + column);
            row += 1;
        }
        column += 1;
    }
    matrix
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(block: &[u8; BLOCK_BYTES]) -> __m512i {
    // SAFETY: the block is 64 bytes that may be read; the load needs no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(block: &mut [u8; BLOCK_BYTES], vector: __m512i) {
    // SAFETY: the block is 64 bytes that may be written; the store needs no alignment.
    unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), vector) };
}

#[target_feature(enable = "avx512f")]
#[inline]
fn zero() -> __m512i {
    _mm512_setzero_si512()
}

#[target_feature(enable = "avx512f")]
#[inline]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_xor_si512(a, b)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn matrix_of(coefficient: u8) -> __m512i {
    _mm512_set1_epi64(MATRICES[usize::from(coefficient)] as i64)
}

#[target_feature(enable = "avx512f,gfni")]
#[inline]
fn times(vector: __m512i, matrix: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix)
}

define_passes!("avx512f,gfni", xor 4, pq 4);

/// Multiplies each source by its own matrix. Unlike in Horner's rule, no step waits for the source
/// before it, and gaps between powers cost nothing.
#[target_feature(enable = "avx512f,gfni")]
#[inline]
fn pq_pass<const N: usize>(
    p: &mut [[u8; BLOCK_BYTES]; N],
    q: &mut [[u8; BLOCK_BYTES]; N],
    at: usize,
    sources: &[Source<'_>],
) {
    let (mut p_sums, mut q_sums) = ([zero(); N], [zero(); N]);
    for &(power, source) in sources {
        let matrix = matrix_of(gf::power(power));
        let data: &[_; N] = block_at(source, at);
        for ((p, q), data) in p_sums.iter_mut().zip(&mut q_sums).zip(data) {
            let data = load(data);
            *p = add(*p, data);
            *q = add(*q, times(data, matrix));
        }
    }
    for ((p, q), (p_sum, q_sum)) in p.iter_mut().zip(q).zip(p_sums.into_iter().zip(q_sums)) {
        store(p, p_sum);
        store(q, q_sum);
    }
}

#[target_feature(enable = "avx512f,gfni")]
pub(super) fn mul(dst: &mut [u8], coefficient: u8, source: &[u8]) {
    let matrix = matrix_of(coefficient);
    for (dst, source) in blocks(dst).iter_mut().zip(source.as_chunks().0) {
        store(dst, add(load(dst), times(load(source), matrix)));
    }
}

#[target_feature(enable = "avx512f,gfni")]
pub(super) fn scale(dst: &mut [u8], coefficient: u8) {
    let matrix = matrix_of(coefficient);
    for dst in blocks(dst) {
        store(dst, times(load(dst), matrix));
    }
}

#[target_feature(enable = "avx512f,gfni")]
pub(super) fn two_data((of_p, of_q): (u8, u8), p: &mut [u8], q: &mut [u8]) {
    let (of_p, of_q) = (matrix_of(of_p), matrix_of(of_q));
    for (p, q) in blocks(p).iter_mut().zip(blocks(q)) {
        let sum = load(p);
        let first = add(times(sum, of_p), times(load(q), of_q));
        store(p, first);
        store(q, add(sum, first));
    }
}
