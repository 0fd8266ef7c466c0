//! The parts that tests of several crates and the simulator share. No product links them.

#![forbid(unsafe_code)]

pub mod nbd;
