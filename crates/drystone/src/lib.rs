//! The program `drystone`: serves a stack, controls a running one, explains and checks stack
//! files. A library, so that tests can run its parts with a stack of their own.

#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
mod client;
mod commands;
mod control_socket;
mod failure;
mod folder;
mod output;
pub mod runtime;
pub mod serve;
mod signals;
