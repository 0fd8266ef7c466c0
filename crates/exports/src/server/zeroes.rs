//! Zeroing on a device without a write-zeroes operation: one buffer of zeroes is written
//! repeatedly, so that the longest range needs no more memory than one piece.

use super::DATA_AT;
use drystone_core::{Bio, BioFlags, IoBuf, Op, Sector};
use std::ops::Range;

/// A range that becomes zeroes by plain writes.
#[derive(Clone)]
pub(crate) struct ZeroWrites {
    /// The range that no bio has been made for.
    rest: Range<u64>,
    longest: u64,
}

impl ZeroWrites {
    /// `range`, whole blocks of the device, in pieces of at most `longest` bytes.
    pub(crate) fn new(range: Range<u64>, longest: u64) -> Self {
        ZeroWrites { rest: range, longest }
    }

    /// Bytes of zeroes that the buffer needs for the rest of the range.
    pub(crate) fn room(&self) -> usize {
        (self.rest.end - self.rest.start).min(self.longest) as usize
    }

    /// True if nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The range that no bio has been made for.
    pub(crate) fn range(&self) -> Range<u64> {
        self.rest.clone()
    }

    /// Takes the rest of the range, for a device that zeroes by itself.
    pub(crate) fn take(&mut self) -> Range<u64> {
        let end = self.rest.end;
        std::mem::replace(&mut self.rest, end..end)
    }

    /// Make `bio` the write of the next piece out of `buf`, which has [`ZeroWrites::room`] zeroes
    /// from [`DATA_AT`] on. Pieces end at multiples of the longest, where arrays have whole
    /// stripes.
    pub(crate) fn fill(&mut self, bio: &mut Bio, buf: IoBuf, flags: BioFlags) {
        let Range { start, end } = self.rest;
        let bytes = (end - start).min(self.longest - start % self.longest);
        self.rest.start = start + bytes;
        bio.op = Op::Write;
        bio.flags = flags | BioFlags::STABLE;
        bio.sector = Sector::from_bytes(start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_end_at_multiples() {
        let mut zeroes = ZeroWrites::new(512..10_240, 4096);
        let (mut found, mut buf) = (Vec::new(), Some(IoBuf::zeroed(DATA_AT + 4096)));
        while !zeroes.is_over() {
            let mut bio = Bio::flush();
            zeroes.fill(&mut bio, buf.take().unwrap(), BioFlags::FUA);
            assert!(bio.flags == BioFlags::FUA | BioFlags::STABLE && bio.op == Op::Write);
            found.push((bio.sector.bytes(), bio.bytes));
            buf = bio.take_buf();
        }
        assert_eq!(found, [(512, 3584), (4096, 4096), (8192, 2048)]);
        assert_eq!(ZeroWrites::new(512..1024, 4096).room(), 512);
    }
}
