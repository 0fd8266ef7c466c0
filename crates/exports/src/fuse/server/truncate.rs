//! Zeroes the whole blocks behind the new end of a truncated file, piece by piece.
//!
//! Invariants:
//! * The pieces cover the range once, in order.
//! * A device without a write-zeroes operation gets plain writes of one buffer of zeroes, which is
//!   reused, so that the memory of a session suffices.

use crate::server::ZeroWrites;
use drystone_core::{Bio, BioFlags, IoBuf};
use std::ops::Range;

/// The progress of a truncation.
pub(super) struct Truncate {
    size: u64,
    /// Whole blocks that no bio has been made for.
    rest: ZeroWrites,
    by_writes: bool,
}

impl Truncate {
    /// A truncation to `size` that zeroes `range`, whole blocks: by the device itself, or by writes
    /// of at most `longest` bytes.
    pub(super) fn new(size: u64, range: Range<u64>, longest: Option<u32>) -> Self {
        // A device that zeroes by itself gets the whole range at once.
        let piece = longest.map_or(u64::MAX, u64::from);
        Truncate { size, rest: ZeroWrites::new(range, piece), by_writes: longest.is_some() }
    }

    /// The size that was asked for.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The range that no bio has been made for.
    pub(super) fn rest(&self) -> Range<u64> {
        self.rest.range()
    }

    /// True when all of the range has its bio.
    pub(super) fn is_complete(&self) -> bool {
        self.rest.is_over()
    }

    /// Bytes of zeroes that the buffer of the next write needs; `None` if the device zeroes itself.
    pub(super) fn buffer_bytes(&self) -> Option<usize> {
        self.by_writes.then(|| self.rest.room())
    }

    /// Takes all of the rest, for one bio of a device that zeroes itself.
    pub(super) fn take_rest(&mut self) -> Range<u64> {
        self.rest.take()
    }

    /// Makes `bio` the write of the next piece out of `buf`, which has
    /// [`Truncate::buffer_bytes`] zeroes.
    pub(super) fn fill_next(&mut self, bio: &mut Bio, buf: IoBuf) {
        self.rest.fill(bio, buf, BioFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::DATA_AT;

    #[test]
    fn a_device_that_zeroes_itself_gets_one_bio() {
        let mut truncate = Truncate::new(100, 512..1 << 40, None);
        assert_eq!((truncate.size(), truncate.buffer_bytes()), (100, None));
        assert_eq!(truncate.take_rest(), 512..1 << 40);
        assert!(truncate.is_complete() && truncate.rest().is_empty());
        assert!(Truncate::new(512, 512..512, None).is_complete());
    }

    #[test]
    fn writes_cover_the_range_in_pieces() {
        let mut truncate = Truncate::new(0, 0..10_240, Some(4096));
        let mut pieces = Vec::new();
        while !truncate.is_complete() {
            let bytes = truncate.buffer_bytes().expect("it writes");
            let mut bio = Bio::flush();
            truncate.fill_next(&mut bio, IoBuf::zeroed(DATA_AT + bytes));
            pieces.push((bio.sector.bytes(), bio.bytes));
        }
        assert_eq!(pieces, [(0, 4096), (4096, 4096), (8192, 2048)]);
    }
}
