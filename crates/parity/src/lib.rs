//! The arithmetic of parity. P is the xor of a row's data; Q is the sum of the data multiplied by
//! powers of the generator of GF(2^8), byte by byte (Linux `lib/raid6`, `crypto/xor.c`; H. P.
//! Anvin, "The mathematics of RAID-6").
//!
//! ```text
//! P = D0 + D1 + D2 + ..        + is xor, g is 2, a byte's place is the same in every block
//! Q = g^0 D0 + g^1 D1 + ..     the powers are those that the layout gives the members
//! ```
//!
//! [`Parity`] is chosen once, for the widest vectors of the CPU, and copied to its users. It owns
//! no memory; any thread may call its methods.
//!
//! All buffers of a call have the same length, a multiple of 64 bytes (normally 4096). They need no
//! alignment, but aligned buffers are faster. A call that breaks this rule is our own mistake and
//! panics.
//!
//! # Recovery
//!
//! S is the xor, and T the Q, of the remaining data (a lost member counts as zero);
//! [`Parity::pq_of`] computes both together:
//!
//! | lost | how |
//! |---|---|
//! | one data block | P + S |
//! | a data block and P | [`Parity::one_data_from_q`] of Q + T; then P from the data |
//! | a data block and Q | P + S; then Q from the data |
//! | two data blocks | [`Parity::two_data`] of P + S and Q + T |
//! | P, Q or both | from the data |
//!
//! ```
//! use drystone_parity::Parity;
//!
//! let parity = Parity::detect();
//! let (first, second) = ([1_u8; 4096], [2_u8; 4096]);
//! let mut p = [0; 4096];
//! parity.xor_of(&mut p, &[&first, &second]);
//! // The first block is lost: P and the other give it again.
//! parity.xor_into(&mut p, &[&second]);
//! assert_eq!(p, first);
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
pub mod gf;
mod kernels;
#[cfg(test)]
mod oracle;
#[cfg(target_arch = "x86_64")]
mod passes;
mod scalar;
#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

pub use blocks::{BLOCK_BYTES, Isa, Source};
use kernels::Kernels;

/// The CPU, or this build, lacks the instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this CPU has no {0} instructions for parity; Parity::detect takes the best that it has")]
pub struct Unsupported(pub Isa);

/// Computes parity with one set of instructions.
#[derive(Clone, Copy)]
pub struct Parity {
    kernels: &'static Kernels,
}

impl Parity {
    /// Uses the widest vectors that this CPU has.
    pub fn detect() -> Self {
        let best = Isa::ALL.into_iter().rev().find_map(Kernels::of);
        Parity { kernels: best.unwrap_or(&kernels::SCALAR) }
    }

    /// Uses these instructions, whatever else the CPU has.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] where the CPU lacks them.
    pub fn with(isa: Isa) -> Result<Self, Unsupported> {
        Kernels::of(isa).map(|kernels| Parity { kernels }).ok_or(Unsupported(isa))
    }

    /// The instructions in use.
    pub fn isa(self) -> Isa {
        self.kernels.isa
    }

    /// Adds all sources to `dst`: `dst` becomes the xor of itself and the sources.
    pub fn xor_into(self, dst: &mut [u8], sources: &[&[u8]]) {
        check_lengths(dst, sources.iter().copied());
        self.kernels.xor(dst, true, sources);
    }

    /// Makes `dst` the xor of the sources, and zero if there are none. Its former contents do
    /// not matter.
    pub fn xor_of(self, dst: &mut [u8], sources: &[&[u8]]) {
        check_lengths(dst, sources.iter().copied());
        self.kernels.xor(dst, false, sources);
    }

    /// Makes `p` the xor of the sources, and `q` the sum of each source multiplied by the generator
    /// to its power. The former contents do not matter; without sources both become zero.
    ///
    /// This is fast if the powers fall from source to source, as md's do if the member with the
    /// highest power comes first; gaps do not matter.
    pub fn pq_of(self, p: &mut [u8], q: &mut [u8], sources: &[Source<'_>]) {
        check_lengths(p, sources.iter().map(|source| source.1));
        check_length(p.len(), q);
        if sources.is_sorted_by(|a, b| a.0 > b.0) {
            return self.kernels.pq(p, q, sources);
        }
        p.fill(0);
        q.fill(0);
        for (power, source) in sources {
            self.kernels.xor(p, true, &[source]);
            self.kernels.mul(q, gf::power(*power), source);
        }
    }

    /// Adds `delta`, multiplied by the generator to the power `power`, to `q`. If `delta` is the
    /// xor of a member's old and new data, this updates Q.
    pub fn q_add(self, q: &mut [u8], power: u8, delta: &[u8]) {
        self.mul_into(q, gf::power(power), delta);
    }

    /// Adds `source`, multiplied by `coefficient`, to `dst`.
    pub fn mul_into(self, dst: &mut [u8], coefficient: u8, source: &[u8]) {
        check_lengths(dst, [source]);
        self.kernels.mul(dst, coefficient, source);
    }

    /// Computes the lost data of the member with this power: `q_xor`, which is Q + T, divided by
    /// the generator to the power `power`.
    pub fn one_data_from_q(self, dst: &mut [u8], power: u8, q_xor: &[u8]) {
        check_lengths(dst, [q_xor]);
        dst.copy_from_slice(q_xor);
        self.one_data_in_place(power, dst);
    }

    /// As [`Parity::one_data_from_q`]: `data` holds Q + T, and becomes the lost data.
    pub fn one_data_in_place(self, power: u8, data: &mut [u8]) {
        check_lengths(data, []);
        self.kernels.scale(data, gf::inverse(gf::power(power)));
    }

    /// Computes the lost data of two members; `powers` are in the order of the buffers. `first`
    /// holds P + S and becomes the data of the first member; `second` holds Q + T and becomes that
    /// of the second.
    ///
    /// # Panics
    ///
    /// The powers are the same.
    pub fn two_data(self, powers: (u8, u8), first: &mut [u8], second: &mut [u8]) {
        assert!(powers.0 != powers.1, "two members with the power {}", powers.0);
        check_lengths(first, [&*second]);
        self.kernels.two_data(two_data_coefficients(powers), first, second);
    }
}

impl fmt::Debug for Parity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parity").field(&self.isa()).finish()
    }
}

/// The factors by which P + S and Q + T are multiplied; the sum is the data of the first of two
/// members. They are g^(y-x) k and g^(-x) k, where k is the inverse of g^(y-x) + 1.
fn two_data_coefficients((x, y): (u8, u8)) -> (u8, u8) {
    let apart = gf::power_of_difference(y, x);
    let k = gf::inverse(apart ^ 1);
    (gf::mul(apart, k), gf::mul(gf::power_of_difference(0, x), k))
}

fn check_lengths<'a>(dst: &[u8], sources: impl IntoIterator<Item = &'a [u8]>) {
    let whole = dst.len().is_multiple_of(BLOCK_BYTES);
    assert!(whole, "a buffer of {} bytes, no multiple of {BLOCK_BYTES}", dst.len());
    sources.into_iter().for_each(|source| check_length(dst.len(), source));
}

fn check_length(length: usize, buffer: &[u8]) {
    assert!(buffer.len() == length, "buffers of {length} and {} bytes", buffer.len());
}
