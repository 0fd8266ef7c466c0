//! The kernels of an instruction set, and the only code that calls them.
//!
//! Invariant: a `&'static Kernels` leaves this module only through [`Kernels::of`], which checks
//! that the CPU has the instructions, or as [`SCALAR`], which needs none. Every `unsafe` block here
//! rests on this.

#![allow(unsafe_code, reason = "calls functions that need instructions of the CPU")]

use super::blocks::{Isa, Source};
use super::scalar;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// The kernels of one instruction set. Their callers have checked all lengths.
pub(super) struct Kernels {
    pub(super) isa: Isa,
    /// Adds the sources to `dst`; with `keep` false the former contents of `dst` do not count.
    pub(super) xor: unsafe fn(dst: &mut [u8], keep: bool, sources: &[&[u8]]),
    /// Computes P and Q of sources with falling powers.
    pub(super) pq: unsafe fn(p: &mut [u8], q: &mut [u8], sources: &[Source<'_>]),
    /// Adds the source, multiplied by the coefficient, to `dst`.
    pub(super) mul: unsafe fn(dst: &mut [u8], coefficient: u8, source: &[u8]),
    /// Multiplies `dst` by the coefficient.
    pub(super) scale: unsafe fn(dst: &mut [u8], coefficient: u8),
    /// Replaces `p` by the sum of `p` and `q` times their coefficients, and `q` by that sum plus
    /// the former `p`.
    pub(super) two_data: unsafe fn(coefficients: (u8, u8), p: &mut [u8], q: &mut [u8]),
}

/// Defines the functions of a module as kernels.
macro_rules! kernels_of {
    ($isa:expr, $module:ident) => {
        Kernels {
            isa: $isa,
            xor: $module::xor,
            pq: $module::pq,
            mul: $module::mul,
            scale: $module::scale,
            two_data: $module::two_data,
        }
    };
}

/// The kernels that every CPU can run.
pub(super) static SCALAR: Kernels = kernels_of!(Isa::Scalar, scalar);
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels = kernels_of!(Isa::Avx2, avx2);
#[cfg(target_arch = "x86_64")]
static AVX512: Kernels = kernels_of!(Isa::Avx512, avx512);

impl Kernels {
    /// The kernels of an instruction set, if this CPU has it.
    pub(super) fn of(isa: Isa) -> Option<&'static Self> {
        match isa {
            Isa::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => std::arch::is_x86_feature_detected!("avx2").then_some(&AVX2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => has_avx512().then_some(&AVX512),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => None,
        }
    }

    pub(super) fn xor(&self, dst: &mut [u8], keep: bool, sources: &[&[u8]]) {
        // SAFETY: the CPU has the instructions (the module's invariant).
        unsafe { (self.xor)(dst, keep, sources) }
    }

    pub(super) fn pq(&self, p: &mut [u8], q: &mut [u8], sources: &[Source<'_>]) {
        // SAFETY: the CPU has the instructions (the module's invariant).
        unsafe { (self.pq)(p, q, sources) }
    }

    pub(super) fn mul(&self, dst: &mut [u8], coefficient: u8, source: &[u8]) {
        // SAFETY: the CPU has the instructions (the module's invariant).
        unsafe { (self.mul)(dst, coefficient, source) }
    }

    pub(super) fn scale(&self, dst: &mut [u8], coefficient: u8) {
        // SAFETY: the CPU has the instructions (the module's invariant).
        unsafe { (self.scale)(dst, coefficient) }
    }

    pub(super) fn two_data(&self, coefficients: (u8, u8), p: &mut [u8], q: &mut [u8]) {
        // SAFETY: the CPU has the instructions (the module's invariant).
        unsafe { (self.two_data)(coefficients, p, q) }
    }
}

/// True if the CPU has every feature that the kernels of `avx512` enable.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("gfni")
}
