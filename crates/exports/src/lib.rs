//! Drystone: exports, the front ends that bring requests in.
//!
//! [`server`] is what they share: a data thread's worker, its door, the volumes. Each protocol is a
//! folder: state machines that take bytes and give bytes, and a front end of the worker that
//! carries requests out on its context's ring. Threads and clocks belong to the caller.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod fuse;
pub mod nbd;
pub mod server;
