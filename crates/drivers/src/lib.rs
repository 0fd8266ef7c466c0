//! Leaf devices: where requests end.
//!
//! | driver   | what it is                                                     |
//! |----------|----------------------------------------------------------------|
//! | [`null`] | no data, a latency model; Linux's null_blk                     |
//! | [`ram`]  | sparse memory                                                  |
//! | [`mod@file`] | a file or block device, on the context's ring                  |

#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod file;
pub mod null;
pub mod ram;
#[cfg(test)]
mod testing;
