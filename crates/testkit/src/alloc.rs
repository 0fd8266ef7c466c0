//! An allocator that counts, for tests of code that must not allocate.
//!
//! The count is the process's, so a test program that compares counts has one test.

#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator, which also counts its allocations:
///
/// ```
/// use drystone_testkit::alloc::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let before = ALLOCATOR.allocations();
/// drop(Box::new(1));
/// assert!(ALLOCATOR.allocations() > before);
/// ```
#[derive(Debug)]
pub struct CountingAllocator {
    allocations: AtomicU64,
}

impl CountingAllocator {
    /// Nothing is allocated yet.
    #[allow(clippy::new_without_default, reason = "a static needs a const")]
    pub const fn new() -> Self {
        CountingAllocator { allocations: AtomicU64::new(0) }
    }

    /// Allocations so far, of all threads.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Relaxed)
    }
}

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocations.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}
