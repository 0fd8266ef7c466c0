//! The kernels for AVX2. They find the bytes whose doubling overflows by a signed comparison, and
//! multiply with two tables of 16 bytes that `vpshufb` looks up (Plank, Greenan and Miller,
//! "Screaming fast Galois field arithmetic using Intel SIMD instructions").

#![allow(unsafe_code, reason = "vectors are loaded and stored by address")]

use std::arch::x86_64::*;

use super::blocks::{BLOCK_BYTES, Source, block_at, blocks};
use super::gf;
use super::passes::define_passes;

/// A block in registers.
type Vector = [__m256i; 2];

#[target_feature(enable = "avx2")]
#[inline]
fn load(block: &[u8; BLOCK_BYTES]) -> Vector {
    let (halves, _) = block.as_chunks::<32>();
    // SAFETY: each half is 32 bytes that may be read; the load needs no alignment.
    let half = |n: usize| unsafe { _mm256_loadu_si256(halves[n].as_ptr().cast()) };
    [half(0), half(1)]
}

#[target_feature(enable = "avx2")]
#[inline]
fn store(block: &mut [u8; BLOCK_BYTES], vector: Vector) {
    let (halves, _) = block.as_chunks_mut::<32>();
    for (half, vector) in halves.iter_mut().zip(vector) {
        // SAFETY: the half is 32 bytes that may be written; the store needs no alignment.
        unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), vector) };
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn zero() -> Vector {
    [_mm256_setzero_si256(); 2]
}

#[target_feature(enable = "avx2")]
#[inline]
fn add(a: Vector, b: Vector) -> Vector {
    [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])]
}

/// Twice each byte.
#[target_feature(enable = "avx2")]
#[inline]
fn double(vector: Vector) -> Vector {
    let reduction = _mm256_set1_epi8(gf::REDUCTION as i8);
    let double = |half| {
        // All ones in each byte whose top bit is set.
        let overflow = _mm256_cmpgt_epi8(_mm256_setzero_si256(), half);
        let twice = _mm256_add_epi8(half, half);
        _mm256_xor_si256(twice, _mm256_and_si256(overflow, reduction))
    };
    [double(vector[0]), double(vector[1])]
}

/// The products of a coefficient with each value of a byte's low, and of its high, four bits.
#[derive(Clone, Copy)]
struct Products {
    low: __m256i,
    high: __m256i,
}

impl Products {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn of(coefficient: u8) -> Self {
        let low: [u8; 16] = std::array::from_fn(|n| gf::mul(coefficient, n as u8));
        let high: [u8; 16] = std::array::from_fn(|n| gf::mul(coefficient, (n as u8) << 4));
        let both = |table: [u8; 16]| {
            let [low, high] = table.as_chunks::<8>().0 else { unreachable!("16 is twice 8") };
            let (low, high) = (i64::from_le_bytes(*low), i64::from_le_bytes(*high));
            _mm256_set_epi64x(high, low, high, low)
        };
        Products { low: both(low), high: both(high) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn times(self, vector: Vector) -> Vector {
        let four_bits = _mm256_set1_epi8(0x0f);
        let times = |half| {
            let low = _mm256_and_si256(half, four_bits);
            let high = _mm256_and_si256(_mm256_srli_epi64::<4>(half), four_bits);
            let low = _mm256_shuffle_epi8(self.low, low);
            _mm256_xor_si256(low, _mm256_shuffle_epi8(self.high, high))
        };
        [times(vector[0]), times(vector[1])]
    }
}

define_passes!("avx2", xor 4, pq 2);

/// Horner's rule: one doubling for each step down from one power to the next.
#[target_feature(enable = "avx2")]
#[inline]
fn pq_pass<const N: usize>(
    p: &mut [[u8; BLOCK_BYTES]; N],
    q: &mut [[u8; BLOCK_BYTES]; N],
    at: usize,
    sources: &[Source<'_>],
) {
    let (mut p_sums, mut q_sums) = ([zero(); N], [zero(); N]);
    let mut last = 0;
    for &(power, source) in sources {
        for _ in power..last {
            q_sums.iter_mut().for_each(|q| *q = double(*q));
        }
        last = power;
        let data: &[_; N] = block_at(source, at);
        for ((p, q), data) in p_sums.iter_mut().zip(&mut q_sums).zip(data) {
            let data = load(data);
            *p = add(*p, data);
            *q = add(*q, data);
        }
    }
    for _ in 0..last {
        q_sums.iter_mut().for_each(|q| *q = double(*q));
    }
    for ((p, q), (p_sum, q_sum)) in p.iter_mut().zip(q).zip(p_sums.into_iter().zip(q_sums)) {
        store(p, p_sum);
        store(q, q_sum);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn mul(dst: &mut [u8], coefficient: u8, source: &[u8]) {
    let products = Products::of(coefficient);
    for (dst, source) in blocks(dst).iter_mut().zip(source.as_chunks().0) {
        store(dst, add(load(dst), products.times(load(source))));
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn scale(dst: &mut [u8], coefficient: u8) {
    let products = Products::of(coefficient);
    for dst in blocks(dst) {
        store(dst, products.times(load(dst)));
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn two_data((of_p, of_q): (u8, u8), p: &mut [u8], q: &mut [u8]) {
    let (of_p, of_q) = (Products::of(of_p), Products::of(of_q));
    for (p, q) in blocks(p).iter_mut().zip(blocks(q)) {
        let sum = load(p);
        let first = add(of_p.times(sum), of_q.times(load(q)));
        store(p, first);
        store(q, add(sum, first));
    }
}
