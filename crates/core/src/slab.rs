//! A slab: values that are known by a number, which is given again when its value is gone.
//!
//! Invariants:
//! * A number is below `entries.len()`. `free` holds each number without a value once.
//! * The number that became free last is given first, because its entry is most likely in the
//!   cache.
//! * A number says nothing of which value had it before: the user makes sure that nothing names a
//!   number whose value is gone.

use std::ops::{Index, IndexMut};

/// Values by number. Not shared between threads.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Without values.
    pub const fn new() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Without values, and with room for `count` without an allocation.
    pub fn with_capacity(count: usize) -> Self {
        Slab { entries: Vec::with_capacity(count), free: Vec::with_capacity(count) }
    }

    /// The number that the next [`Slab::insert`] gives.
    #[inline]
    pub fn next_number(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.entries.len() as u32)
    }

    /// Give `value` a number.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = Some(value);
                number
            }
            None => {
                self.entries.push(Some(value));
                self.entries.len() as u32 - 1
            }
        }
    }

    /// Take the value of `number`, which is free then. `None` if it has none.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    /// The value of `number`, if it has one.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    /// The value of `number`, if it has one.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    /// Numbers and values, in the order of the numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }

    /// How many values there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True without values.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All numbers that were ever given are below this one.
    #[inline]
    pub fn numbers_end(&self) -> u32 {
        self.entries.len() as u32
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

/// # Panics
/// If the number has no value, which is a mistake of ours.
impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("the number is in use")
    }
}

/// # Panics
/// As for [`Index`].
impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("the number is in use")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_number_that_became_free_last_is_given_first() {
        let mut slab = Slab::new();
        assert_eq!(["a", "b", "c"].map(|value| slab.insert(value)), [0, 1, 2]);
        assert_eq!((slab.remove(0), slab.remove(2)), (Some("a"), Some("c")));
        assert_eq!((slab.remove(2), slab.remove(9)), (None, None), "a number is freed once");
        for (value, number) in [("d", 2), ("e", 0), ("f", 3)] {
            assert_eq!((slab.next_number(), slab.insert(value)), (number, number));
        }
        assert_eq!((slab[1], slab.len(), slab.numbers_end()), ("b", 4, 4));
    }

    #[test]
    #[should_panic(expected = "the number is in use")]
    fn a_number_without_a_value_is_a_mistake() {
        let mut slab = Slab::new();
        let number = slab.insert(1);
        slab.remove(number);
        let _ = slab[number];
    }

    proptest! {
        /// Beside a map, and a set of the numbers that are free.
        #[test]
        fn a_slab_is_a_map_with_numbers_of_its_own(
            steps in prop::collection::vec(any::<(bool, u8)>(), 0..200),
        ) {
            let (mut slab, mut map) = (Slab::new(), BTreeMap::new());
            for (insert, n) in steps {
                if insert {
                    let number = slab.insert(n);
                    prop_assert!(map.insert(number, n).is_none(), "{} is in use", number);
                } else {
                    let number = u32::from(n) % 32;
                    prop_assert_eq!(slab.remove(number), map.remove(&number));
                }
                prop_assert_eq!(slab.len(), map.len());
                prop_assert_eq!(slab.is_empty(), map.is_empty());
                prop_assert!(slab.iter().eq(map.iter().map(|(number, n)| (*number, n))));
                prop_assert!((0..40).all(|number| slab.get(number) == map.get(&number)));
            }
        }
    }
}
