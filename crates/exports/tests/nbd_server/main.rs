//! The NBD server through its interface: data threads, socket pairs, clients in the test.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod bounds;
#[allow(dead_code)]
#[path = "../fuse/disk.rs"]
mod disk;
mod handshake;
mod memory;
mod served;
mod unaligned;
mod zeroes;
