//! `striped`: chunks round-robin over several devices (`dm-stripe`).

use crate::divide::Divisor;

/// The position of a sector in its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripePosition {
    /// The number of the stripe, from 0.
    pub(crate) stripe: usize,
    /// Sector of the stripe's device.
    pub(crate) sector: u64,
    /// The sectors from there to the end of the chunk.
    pub(crate) left: u64,
    /// The number of the chunk's row.
    row: u64,
}

/// The address arithmetic of a striped segment; sectors count from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Striped {
    chunk: Divisor,
    count: Divisor,
    /// For each stripe, the member (an index of the table's) and its first sector there.
    stripes: Vec<(u32, u64)>,
}

impl Striped {
    /// # Panics
    /// If there are no stripes or the chunk is 0.
    pub(crate) fn new(chunk_sectors: u32, stripes: Vec<(u32, u64)>) -> Self {
        let count = Divisor::new(stripes.len() as u32);
        Striped { chunk: Divisor::new(chunk_sectors), count, stripes }
    }

    /// The member of a stripe (an index of the table's).
    #[inline]
    pub(crate) fn member(&self, stripe: usize) -> u32 {
        self.stripes[stripe].0
    }

    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// The position of a sector.
    #[inline]
    pub(crate) fn position(&self, sector: u64) -> StripePosition {
        let (chunk, rest) = self.chunk.divide(sector);
        let (row, stripe) = self.count.divide(chunk);
        let stripe = stripe as usize;
        let sector = row * self.chunk.value() + rest + self.stripes[stripe].1;
        StripePosition { stripe, sector, left: self.chunk.value() - rest, row }
    }

    /// The position of the first sector of the chunk after that of `at`.
    #[inline]
    pub(crate) fn next(&self, at: StripePosition) -> StripePosition {
        let (stripe, row) = match at.stripe + 1 {
            next if next == self.stripes.len() => (0, at.row + 1),
            next => (next, at.row),
        };
        let left = self.chunk.value();
        StripePosition { stripe, sector: row * left + self.stripes[stripe].1, left, row }
    }

    /// The sectors of `stripe` in `from..to`, which are contiguous on its device: first and count.
    pub(crate) fn range(&self, stripe: usize, from: u64, to: u64) -> (u64, u64) {
        let (first, end) = (self.lower_bound(stripe, from), self.lower_bound(stripe, to));
        (first, end - first)
    }

    /// The first sector of `stripe` that holds sector `at` of the segment, or a later one.
    fn lower_bound(&self, stripe: usize, at: u64) -> u64 {
        let (chunk, rest) = self.chunk.divide(at);
        let (row, holder) = self.count.divide(chunk);
        let in_row = match stripe.cmp(&(holder as usize)) {
            std::cmp::Ordering::Less => self.chunk.value(),
            std::cmp::Ordering::Equal => rest,
            std::cmp::Ordering::Greater => 0,
        };
        row * self.chunk.value() + in_row + self.stripes[stripe].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example in the kernel's documentation of `dm-stripe`, in sectors: four devices, chunks
    /// of 4096.
    #[test]
    fn documented_example() {
        let s = Striped::new(4096, (0..4).map(|member| (member, 0)).collect());
        assert_eq!(
            s.position(5000),
            StripePosition { stripe: 1, sector: 904, left: 4096 - 904, row: 0 }
        );
        assert_eq!(
            s.position(4096 * 4),
            StripePosition { stripe: 0, sector: 4096, left: 4096, row: 1 }
        );
    }

    proptest! {
        /// Every sector has a position of its own, whole rows fill the devices, and ranges contain
        /// exactly the sectors placed there.
        #[test]
        fn positions_and_ranges_agree(
            chunk in 1u32..20, count in 1usize..6, rows in 1u64..5, offset in 0u64..100,
            cut in any::<(u64, u64)>(),
        ) {
            let stripes: Vec<_> = (0..count).map(|n| (n as u32, offset * n as u64)).collect();
            let s = Striped::new(chunk, stripes.clone());
            let total = rows * u64::from(chunk) * count as u64;
            let (a, b) = (cut.0 % (total + 1), cut.1 % (total + 1));
            let (from, to) = (a.min(b), a.max(b));
            let mut inside = vec![Vec::new(); count];
            for sector in 0..total {
                let at = s.position(sector);
                let (chunk_no, rest) = (sector / u64::from(chunk), sector % u64::from(chunk));
                prop_assert_eq!(at.stripe as u64, chunk_no % count as u64);
                let row = chunk_no / count as u64;
                let first = stripes[at.stripe].1;
                prop_assert_eq!(at.sector, first + row * u64::from(chunk) + rest);
                prop_assert_eq!(at.left, u64::from(chunk) - rest);
                prop_assert_eq!(s.next(at), s.position((chunk_no + 1) * u64::from(chunk)));
                if (from..to).contains(&sector) {
                    inside[at.stripe].push(at.sector);
                }
            }
            for (stripe, sectors) in inside.iter_mut().enumerate() {
                sectors.sort_unstable();
                let (first, length) = s.range(stripe, from, to);
                prop_assert_eq!(length, sectors.len() as u64);
                prop_assert_eq!(&(first..first + length).collect::<Vec<_>>(), sectors);
            }
        }
    }
}
