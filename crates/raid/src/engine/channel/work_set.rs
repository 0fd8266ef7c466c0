//! The bios that a channel must bring to shards or partial parity logs, by the number of the shard
//! or log, and the set of numbers that the channel must enter.
//!
//! Invariants:
//! * If the list of a number holds bios, the number is touched.
//! * `changed` is a subset of `touched`: the numbers that may not know the current configuration.
//!   They are entered even if the channel brings nothing.

use drystone_core::{Bio, BioList};

/// See the module's text. `L` holds a list for each number.
pub(super) struct WorkSet<L> {
    lists: L,
    touched: u64,
    changed: u64,
}

/// A number whose turn is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: usize,
    /// The shard or log may not know the current configuration.
    pub(super) is_changed: bool,
}

impl<L: AsRef<[BioList]> + AsMut<[BioList]>> WorkSet<L> {
    /// A set with nothing to do.
    pub(super) fn new(lists: L) -> Self {
        debug_assert!(lists.as_ref().len() <= u64::BITS as usize);
        WorkSet { lists, touched: 0, changed: 0 }
    }

    /// Add a bio for a number, which touches the number.
    #[inline]
    pub(super) fn add(&mut self, number: usize, bio: Box<Bio>) {
        self.lists.as_mut()[number].push(bio);
        self.touch(number);
    }

    /// Touch a number: it must be entered.
    #[inline]
    pub(super) fn touch(&mut self, number: usize) {
        self.touched |= 1 << number;
    }

    /// Touch all numbers, because the configuration has changed.
    pub(super) fn touch_all(&mut self) {
        self.touched = u64::MAX.checked_shr(u64::BITS - self.len() as u32).unwrap_or(0);
        self.changed = self.touched;
    }

    fn len(&self) -> usize {
        self.lists.as_ref().len()
    }

    /// Take the lowest touched number.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Entry> {
        let number = (self.touched != 0).then(|| self.touched.trailing_zeros() as usize)?;
        let bit = 1 << number;
        let is_changed = self.changed & bit != 0;
        self.touched &= !bit;
        self.changed &= !bit;
        Some(Entry { number, is_changed })
    }

    /// The bios for a number.
    #[inline]
    pub(super) fn list(&mut self, number: usize) -> &mut BioList {
        &mut self.lists.as_mut()[number]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(number: usize, is_changed: bool) -> Option<Entry> {
        Some(Entry { number, is_changed })
    }

    #[test]
    fn what_is_touched_is_entered_once_lowest_first() {
        let mut set = WorkSet::new([const { BioList::new() }; 4]);
        assert_eq!(set.next(), None);
        set.add(3, Bio::flush());
        set.touch(1);
        set.add(3, Bio::flush());
        assert_eq!((set.next(), set.next(), set.next()), (entry(1, false), entry(3, false), None));
        assert_eq!((set.list(3).take().len(), set.list(1).len()), (2, 0));
    }

    #[test]
    fn a_new_configuration_has_all_entered() {
        for numbers in [0, 1, 63, 64] {
            let mut set = WorkSet::new((0..numbers).map(|_| BioList::new()).collect::<Vec<_>>());
            set.touch_all();
            let all: Vec<_> = std::iter::from_fn(|| set.next()).collect();
            assert_eq!(all.len(), numbers);
            assert!(all.iter().all(|entry| entry.is_changed));
        }
        let mut set = WorkSet::new([const { BioList::new() }; 2]);
        set.touch_all();
        assert_eq!(set.next(), entry(0, true));
        set.touch(0);
        assert_eq!(set.next(), entry(0, false), "it has been told of the change");
    }
}
