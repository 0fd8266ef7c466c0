//! The heads of chains that were taken and not yet used.

/// A bit for each descriptor of a ring.
#[derive(Debug)]
pub(super) struct Heads {
    words: Box<[u64]>,
    count: u16,
}

impl Heads {
    /// No head of a ring of `size` entries.
    pub(super) fn none_of(size: u16) -> Self {
        Self { words: vec![0; usize::from(size).div_ceil(64)].into(), count: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u16 {
        self.count
    }

    /// True if a head, which the ring has, is there.
    #[inline]
    pub(super) fn contains(&self, head: u16) -> bool {
        self.words[usize::from(head / 64)] & (1 << (head % 64)) != 0
    }

    /// Adds a head, which the ring has; false if it is there.
    #[inline]
    pub(super) fn insert(&mut self, head: u16) -> bool {
        let (word, bit) = self.word(head);
        let is_new = *word & bit == 0;
        *word |= bit;
        self.count += u16::from(is_new);
        is_new
    }

    /// Removes a head, which the ring has; false if it is not there.
    #[inline]
    pub(super) fn remove(&mut self, head: u16) -> bool {
        let (word, bit) = self.word(head);
        let is_there = *word & bit != 0;
        *word &= !bit;
        self.count -= u16::from(is_there);
        is_there
    }

    fn word(&mut self, head: u16) -> (&mut u64, u64) {
        (&mut self.words[usize::from(head / 64)], 1 << (head % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_there_once() {
        let mut heads = Heads::none_of(128);
        assert!(heads.insert(0) && heads.insert(127) && heads.insert(64) && !heads.insert(127));
        assert_eq!(heads.len(), 3);
        assert!(heads.contains(64) && heads.contains(127) && !heads.contains(63));
        assert!(heads.remove(127) && !heads.remove(127) && !heads.remove(1));
        assert_eq!(heads.len(), 2);
        assert!(Heads::none_of(1).insert(0));
    }
}
