//! Things known by number, whose numbers are used again.

/// See the module's text.
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.places[number as usize] = Some(value);
            return number;
        }
        self.places.push(Some(value));
        self.places.len() as u32 - 1
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    /// # Panics
    /// If nothing has the number, which is our own mistake.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &T {
        self.places[number as usize].as_ref().expect("the number is in use")
    }

    /// # Panics
    /// As for [`Slab::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        self.places[number as usize].as_mut().expect("the number is in use")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
