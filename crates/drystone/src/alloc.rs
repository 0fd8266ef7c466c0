//! The program's allocator: the system's, with a count of allocations for each thread.
//!
//! A count belongs to its thread alone, so that threads that print do not disturb the counts of
//! those that are measured, and counting shares no memory.
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, counted.
struct Counting;

/// Allocations (and reallocations) that the calling thread has made so far.
pub fn count() -> u64 {
    COUNT.get()
}

fn bump() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: every call goes to the system's allocator unchanged; the counter is a plain thread
// local cell without a destructor, which neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        bump();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        bump();
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        bump();
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted_for_their_thread() {
        let before = count();
        let boxed = std::hint::black_box(Box::new(7));
        assert_eq!(count() - before, 1);
        drop(boxed);
        assert_eq!(count() - before, 1);
        let elsewhere = std::thread::spawn(|| drop(std::hint::black_box(vec![0u8; 100])));
        let here = count();
        elsewhere.join().unwrap();
        assert_eq!(count(), here);
    }
}
