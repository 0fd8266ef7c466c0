//! GF(2^8) as in RAID-6: polynomial x^8+x^4+x^3+x^2+1 (0x11d), generator 2 (Linux `lib/raid6`).
//!
//! Addition is xor. The coefficients of Q are powers of the generator: [`power`].

/// The low eight bits of the polynomial, to which x^8 is reduced.
pub(super) const REDUCTION: u8 = 0x1d;

/// The number of nonzero elements, which is also the order of the generator.
const ORDER: usize = 255;

/// `EXP[n]` is the generator to the power n. The table has two periods, so that the sum of two
/// logarithms is a valid index.
const EXP: [u8; 2 * ORDER] = exponents();

/// `LOG[g^n]` is n; `LOG[0]` is not used.
const LOG: [u8; 256] = logarithms();

/// Twice `value`.
pub(super) const fn double(value: u8) -> u8 {
    (value << 1) ^ (if value & 0x80 != 0 { REDUCTION } else { 0 })
}

const fn exponents() -> [u8; 2 * ORDER] {
    let mut table = [1; 2 * ORDER];
    let mut n = 1;
    while n < table.len() {
        table[n] = double(table[n - 1]);
        n += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < ORDER {
        table[EXP[n] as usize] = n as u8;
        n += 1;
    }
    table
}

/// The product of two elements.
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// The generator to the power `exponent`, which counts modulo 255.
pub const fn power(exponent: u8) -> u8 {
    EXP[exponent as usize]
}

/// The inverse of `value`.
///
/// # Panics
///
/// Zero has no inverse.
pub const fn inverse(value: u8) -> u8 {
    assert!(value != 0, "zero has no inverse");
    EXP[ORDER - LOG[value as usize] as usize]
}

/// The generator to the power `a - b`.
pub(super) const fn power_of_difference(a: u8, b: u8) -> u8 {
    mul(power(a), inverse(power(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;

    #[test]
    fn products_are_those_of_long_multiplication() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), oracle::mul(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn powers_are_those_of_the_field() {
        let first = [
            0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1d, 0x3a, 0x74, 0xe8, 0xcd, 0x87,
            0x13, 0x26,
        ];
        assert_eq!(first, std::array::from_fn(|n| power(n as u8)));
        assert_eq!((power(254), power(255)), (0x8e, 1));
        assert_eq!(power_of_difference(3, 5), power(253));
    }

    #[test]
    fn a_value_times_its_inverse_is_one() {
        for value in 1..=255 {
            assert_eq!(mul(value, inverse(value)), 1, "{value}");
        }
    }
}
