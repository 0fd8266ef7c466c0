//! The FUSE server through its interface: by a kernel that the tests play, and by the real one.

mod concurrent;
mod disk;
mod interrupts;
mod kernel;
mod life;
mod properties;
mod real;
mod requests;
mod truncation;
