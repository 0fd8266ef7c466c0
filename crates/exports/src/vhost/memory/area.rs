//! A range of memory that a ring uses for long: it keeps the memory mapped.

use super::host::HostMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A range of one region. Offsets count from its start; one outside is a mistake of ours, and
/// panics. Any thread may use it.
#[derive(Clone, Debug)]
pub struct Area {
    memory: Arc<HostMemory>,
    start: usize,
    bytes: usize,
}

impl Area {
    /// The range of `bytes` bytes from `start` on.
    ///
    /// # Panics
    /// If it lies outside of the memory: a mistake of the caller.
    pub(super) fn new(memory: Arc<HostMemory>, start: usize, bytes: usize) -> Self {
        assert!(start <= memory.bytes() && bytes <= memory.bytes() - start);
        Self { memory, start, bytes }
    }

    /// Copies bytes from `at` on out of the memory, each once.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        self.memory.read(self.place(at, to.len()), to);
    }

    /// Loads a number.
    #[inline]
    pub fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        self.memory.load_u16(self.place(at, 2), order)
    }

    /// Stores a number.
    #[inline]
    pub fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        self.memory.store_u16(self.place(at, 2), value, order);
    }

    /// Stores a number, with no order among other operations.
    #[inline]
    pub fn store_u32(&self, at: usize, value: u32) {
        self.memory.store_u32(self.place(at, 4), value);
    }

    #[inline]
    fn place(&self, at: usize, bytes: usize) -> usize {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "outside of a part of a ring");
        self.start + at
    }
}
