//! The standard library's atomics with a point before each operation.

use super::step;
use std::sync::atomic::{self, Ordering};

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// The atomic of that name, with a point before each operation.
        #[derive(Debug, Default)]
        pub struct $name(atomic::$name);

        #[allow(missing_docs, reason = "as in the standard library")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                $name(atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.swap(value, order)
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $value:ty, $($operation:ident),*) => {
        #[allow(missing_docs, reason = "as in the standard library")]
        impl $name {
            $(pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.$operation(value, order)
            })*
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
arithmetic!(AtomicBool, bool, fetch_and, fetch_or);
arithmetic!(AtomicU8, u8, fetch_and, fetch_or);
arithmetic!(AtomicU32, u32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
arithmetic!(AtomicU64, u64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);
arithmetic!(AtomicUsize, usize, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min);

/// The atomic of that name, with a point before each operation.
#[derive(Debug)]
pub struct AtomicPtr<T>(atomic::AtomicPtr<T>);

#[allow(missing_docs, reason = "as in the standard library")]
impl<T> AtomicPtr<T> {
    pub const fn new(value: *mut T) -> Self {
        AtomicPtr(atomic::AtomicPtr::new(value))
    }

    pub fn load(&self, order: Ordering) -> *mut T {
        step();
        self.0.load(order)
    }

    pub fn store(&self, value: *mut T, order: Ordering) {
        step();
        self.0.store(value, order);
    }

    pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        step();
        self.0.swap(value, order)
    }

    pub fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        step();
        self.0.compare_exchange(current, new, success, failure)
    }

    pub fn compare_exchange_weak(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        self.compare_exchange(current, new, success, failure)
    }

    pub fn get_mut(&mut self) -> &mut *mut T {
        self.0.get_mut()
    }
}
