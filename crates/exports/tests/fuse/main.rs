//! The FUSE server through its interface: by a kernel that the tests play, and by the real one.

mod disk;
mod kernel;
mod real;
mod requests;
