//! The FUSE server through its interface: by a kernel that the tests play, and by the real one.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

mod concurrent;
mod disk;
mod interrupts;
mod kernel;
mod life;
mod properties;
mod real;
mod requests;
mod truncation;
