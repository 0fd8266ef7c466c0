//! The NBD server through its interface: data threads, socket pairs, clients in the test.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

mod bounds;
#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../fuse/disk.rs"]
mod disk;
mod handshake;
mod memory;
mod served;
mod unaligned;
mod zeroes;
