//! The C face of Drystone: `libdrystone.so`, whose interface is `include/drystone.h`.
//!
//! Threads: functions on a stack may be called from any thread; functions on a context by one at a
//! time. Units: bytes and nanoseconds. Errors: negative errno, and a sentence for the thread.
//! Lifetimes: buffers are the library's from submit until their completion was reaped.
//!
//! Invariants:
//! - No panic crosses the boundary ([`failure::guarded`]).
//! - A context that a call left by a panic takes no further call.
//! - A child of fork(2) gets no further than a check of what it was given (`fork`).
//! - `tests/header.rs` compares the header with [`abi`] and [`calls`].

#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod abi;
#[allow(unsafe_code, reason = "its callers are in C, and give pointers")]
pub mod calls;
pub mod failure;
mod fork;
pub mod queue;
pub mod stack;
