//! Parity computed directly from its definition: byte by byte, bit by bit.

/// The product of two elements of the field by long multiplication: shift, add, reduce.
pub fn mul(a: u8, b: u8) -> u8 {
    let mut product = 0u16;
    for bit in 0..8 {
        if b & (1 << bit) != 0 {
            product ^= u16::from(a) << bit;
        }
    }
    for bit in (8..15).rev() {
        if product & (1 << bit) != 0 {
            product ^= 0x11d << (bit - 8);
        }
    }
    product as u8
}

/// 2 to the power `exponent`.
pub fn power(exponent: u8) -> u8 {
    (0..exponent).fold(1, |value, _| mul(value, 2))
}

/// `dst` plus `coefficient` times `source`.
pub fn mul_into(dst: &mut [u8], coefficient: u8, source: &[u8]) {
    // One row of the multiplication table, which keeps tests with many kilobytes fast.
    let row: [u8; 256] = std::array::from_fn(|value| mul(coefficient, value as u8));
    for (dst, value) in dst.iter_mut().zip(source) {
        *dst ^= row[usize::from(*value)];
    }
}

/// P and Q of sources of `length` bytes with their powers.
pub fn pq_of(length: usize, sources: &[super::Source<'_>]) -> (Vec<u8>, Vec<u8>) {
    let (mut p, mut q) = (vec![0; length], vec![0; length]);
    for (exponent, source) in sources {
        mul_into(&mut p, 1, source);
        mul_into(&mut q, power(*exponent), source);
    }
    (p, q)
}
