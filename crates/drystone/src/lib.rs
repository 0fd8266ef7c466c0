//! The program `drystone`: serves a stack, controls a running one, explains and checks stack
//! files, measures devices. A library, so that tests can run its parts with a stack of their own.

#![deny(unsafe_code)]

mod alloc;
pub mod bench;
pub mod cli;
mod client;
mod commands;
mod control_socket;
mod failure;
mod files;
mod folder;
mod groups;
mod growth;
mod io_flusher;
mod lab;
mod log_writes;
mod loop_device;
mod md;
mod output;
mod paths;
mod place;
pub mod runtime;
pub mod serve;
mod server;
mod signals;
mod sim;
pub mod unix_socket;
mod volumes;
