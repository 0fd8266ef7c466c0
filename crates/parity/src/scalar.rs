//! The kernels in plain Rust, for every CPU. The compiler can vectorise the loops over eight words
//! where the target has vectors (SSE2, NEON).

use super::blocks::{BLOCK_BYTES, Source, block_at, blocks};

const WORDS: usize = BLOCK_BYTES / 8;

/// 64 bytes of a buffer.
type Words = [u64; WORDS];

fn load(bytes: &[u8; BLOCK_BYTES]) -> Words {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|n| u64::from_ne_bytes(words[n]))
}

fn store(bytes: &mut [u8; BLOCK_BYTES], words: Words) {
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
}

fn add(sum: &mut Words, words: &Words) {
    for (sum, word) in sum.iter_mut().zip(words) {
        *sum ^= word;
    }
}

/// Twice each byte.
fn double(words: &mut Words) {
    for word in words {
        let high = *word & 0x8080_8080_8080_8080;
        // 0xff in each byte whose top bit was set.
        let overflow = (high << 1).wrapping_sub(high >> 7);
        *word = ((*word << 1) & 0xfefe_fefe_fefe_fefe) ^ (overflow & 0x1d1d_1d1d_1d1d_1d1d);
    }
}

/// Multiplies each byte by the coefficient, one bit of the coefficient at a time.
fn times(mut words: Words, coefficient: u8) -> Words {
    let (mut product, mut rest) = ([0; WORDS], coefficient);
    while rest != 0 {
        if rest & 1 != 0 {
            add(&mut product, &words);
        }
        rest >>= 1;
        double(&mut words);
    }
    product
}

pub(super) fn xor(dst: &mut [u8], keep: bool, sources: &[&[u8]]) {
    for (n, dst) in blocks(dst).iter_mut().enumerate() {
        let mut sum = if keep { load(dst) } else { [0; WORDS] };
        for source in sources {
            add(&mut sum, &load(&block_at::<1>(source, n)[0]));
        }
        store(dst, sum);
    }
}

/// Horner's rule: one doubling for each step down from one power to the next.
pub(super) fn pq(p: &mut [u8], q: &mut [u8], sources: &[Source<'_>]) {
    for (n, (p, q)) in blocks(p).iter_mut().zip(blocks(q)).enumerate() {
        let (mut p_sum, mut q_sum) = ([0; WORDS], [0; WORDS]);
        let mut at = 0;
        for &(power, source) in sources {
            for _ in power..at {
                double(&mut q_sum);
            }
            at = power;
            let data = load(&block_at::<1>(source, n)[0]);
            add(&mut p_sum, &data);
            add(&mut q_sum, &data);
        }
        for _ in 0..at {
            double(&mut q_sum);
        }
        store(p, p_sum);
        store(q, q_sum);
    }
}

pub(super) fn mul(dst: &mut [u8], coefficient: u8, source: &[u8]) {
    for (n, dst) in blocks(dst).iter_mut().enumerate() {
        let mut sum = load(dst);
        add(&mut sum, &times(load(&block_at::<1>(source, n)[0]), coefficient));
        store(dst, sum);
    }
}

pub(super) fn scale(dst: &mut [u8], coefficient: u8) {
    for dst in blocks(dst) {
        store(dst, times(load(dst), coefficient));
    }
}

pub(super) fn two_data((of_p, of_q): (u8, u8), p: &mut [u8], q: &mut [u8]) {
    for (p, q) in blocks(p).iter_mut().zip(blocks(q)) {
        let mut second = load(p);
        let mut first = times(second, of_p);
        add(&mut first, &times(load(q), of_q));
        add(&mut second, &first);
        store(p, first);
        store(q, second);
    }
}
