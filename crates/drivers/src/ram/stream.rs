//! The copy of a write, which passes the caches by if it is long.
//!
//! An ordinary store first reads the line that it changes, and displaces another from the caches. A
//! non-temporal store does neither (Intel, *64 and IA-32 Architectures Optimization Reference
//! Manual*, "Non-temporal Store Bus Traffic"). Nobody reads a long write again before other data
//! has displaced it.
//!
//! Invariants:
//! * Only whole lines are stored past the caches, at places that are aligned to vectors.
//! * Such stores are not ordered with others until [`WriteCopy::end`], which comes before anybody
//!   is told of the data.

#![allow(unsafe_code, reason = "non-temporal stores are intrinsics on raw memory")]

/// The bytes from which a write passes the caches by: what a core's first cache holds.
const STREAMED_MIN: u64 = 32 << 10;

/// The copy of one write, segment by segment.
pub(super) struct WriteCopy {
    is_streamed: bool,
}

impl WriteCopy {
    /// Of a write of so many bytes.
    #[inline]
    pub(super) fn of(bytes: u64) -> Self {
        WriteCopy { is_streamed: bytes >= STREAMED_MIN }
    }

    /// Copies a segment.
    ///
    /// # Safety
    /// As for [`std::ptr::copy`].
    #[inline]
    pub(super) unsafe fn put(&self, from: *const u8, to: *mut u8, len: usize) {
        let done = if self.is_streamed { streamed(from, to, len) } else { 0 };
        // SAFETY: the caller's; what is left of both ranges.
        unsafe { std::ptr::copy(from.wrapping_add(done), to.wrapping_add(done), len - done) };
    }

    /// Orders the copy before all later stores of this thread.
    #[inline]
    pub(super) fn end(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self.is_streamed {
            // SAFETY: it touches no memory, and each of these processors has it.
            unsafe {
                std::arch::x86_64::_mm_sfence();
            }
        }
    }
}

/// Copies the whole lines of a segment past the caches. Returns their bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn streamed(from: *const u8, to: *mut u8, len: usize) -> usize {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    if !(to as usize).is_multiple_of(size_of::<__m128i>()) {
        return 0;
    }
    for line in 0..len / LINE {
        let (from, to) = (from.wrapping_add(line * LINE), to.wrapping_add(line * LINE));
        let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
        // SAFETY: the line lies in both ranges, which the caller of `put` vouches for; the place is
        // aligned. All of the line is read before any of it is stored.
        unsafe {
            let vectors = [0, 1, 2, 3].map(|n| _mm_loadu_si128(from.add(n)));
            (0..4).for_each(|n| _mm_stream_si128(to.add(n), vectors[n]));
        }
    }
    len / LINE * LINE
}

/// Other processors have an ordinary copy.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn streamed(_from: *const u8, _to: *mut u8, _len: usize) -> usize {
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_wherever_they_begin_and_end() {
        let from: Vec<u8> = (0..1000_u32).map(|n| (n % 251) as u8).collect();
        let ranges = [(0, 0, 512), (3, 16, 640), (1, 5, 700), (7, 32, 63), (0, 0, 0)];
        for (bytes, (source, place, len)) in
            [0, STREAMED_MIN].into_iter().flat_map(|bytes| ranges.map(|range| (bytes, range)))
        {
            let mut to = vec![0xEE_u8; 1024 + 64];
            let base = to.as_ptr().align_offset(64);
            let copy = WriteCopy::of(bytes);
            // SAFETY: both ranges lie in their vectors.
            unsafe { copy.put(from.as_ptr().add(source), to.as_mut_ptr().add(base + place), len) };
            copy.end();
            assert_eq!(to[base + place..][..len], from[source..][..len]);
            assert!(to[..base + place].iter().all(|byte| *byte == 0xEE));
            assert!(to[base + place + len..].iter().all(|byte| *byte == 0xEE));
        }
    }
}
