//! Shared code of the tests with real clients: a running server, and the clients run against it.
//!
//! A test starts a [`Server`] on a stack file of its own in a folder of its own, runs clients of
//! others against it, and drops it. The drop kills the server and fails the test if the server's
//! messages contain a panic, so no test overlooks one. Tests share nothing and run in parallel.
//! With `DRYSTONE_DENY_IO_URING=1` every server runs behind a seccomp filter that denies it
//! io_uring.

#![forbid(unsafe_code)]

pub mod client;
pub mod files;
pub mod server;
pub mod stack;

pub use client::{Outcome, python, requires, run, shell};
pub use server::{Server, new_folder, program};
