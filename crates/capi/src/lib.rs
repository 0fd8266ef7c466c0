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
//! - `tests/header.rs` compares the header with [`abi`] and [`calls`], and compiles this example.
//!
//! # Example
//!
//! ```c
//! #include <drystone.h>
//! #include <stdio.h>
//!
//! int main(void)
//! {
//!     static char block[4096];
//!     struct drystone_completion done;
//!     drystone_stack *stack;
//!     drystone_context *context;
//!
//!     if (drystone_stack_open_text(DRYSTONE_ABI_VERSION,
//!             "[device.memory]\ntype = \"ram\"\nsize = \"16MiB\"\n", NULL, 1, &stack) < 0 ||
//!         drystone_context_open(stack, &context) < 0) {
//!         fprintf(stderr, "%s\n", drystone_last_error());
//!         return 1;
//!     }
//!     struct drystone_io io = {
//!         .op = DRYSTONE_READ,
//!         .device = drystone_context_device(context, "memory"),
//!         .length = sizeof(block),
//!         .buffer = block,
//!     };
//!     if (drystone_submit(context, &io, 1) < 0 ||
//!         drystone_wait(context, &done, 1, 1, DRYSTONE_FOREVER) < 0)
//!         fprintf(stderr, "%s\n", drystone_last_error());
//!     drystone_context_close(context, DRYSTONE_FOREVER);
//!     return drystone_stack_close(stack) < 0;
//! }
//! ```
//!
//! `examples/c/embed.c` is a whole program.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

pub mod abi;
#[allow(unsafe_code, reason = "its callers are in C, and give pointers")]
pub mod calls;
pub mod failure;
mod fork;
pub mod queue;
pub mod stack;
