//! Memory of the heap that goes back to the system.

#![allow(unsafe_code, reason = "gives free memory back to the system")]

use crate::blocking::Aside;

/// Give memory of the heap that is free back to the system, as dropped buffers that were mapped are
/// by themselves: an allocator keeps it otherwise, where anything behind it is in use. Takes
/// milliseconds where there is much, so a data thread leaves it to a helper thread. Any thread may
/// call this.
pub fn trim_heap() {
    drop(Aside::new(Trim));
}

/// Trims when it is dropped.
struct Trim;

impl Drop for Trim {
    fn drop(&mut self) {
        // SAFETY: it touches only memory that is free.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
