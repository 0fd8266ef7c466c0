//! Drystone: exports, the front ends that bring requests in.
//!
//! Only protocols live here so far, each as a state machine that takes bytes and gives bytes. Sockets,
//! rings, threads and clocks belong to the driver that feeds them.
#![forbid(unsafe_code)]

pub mod nbd;
