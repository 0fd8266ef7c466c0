//! The program `drystone`: serves a stack, controls a running one, explains and checks stack
//! files, measures devices. A library, so that tests can run its parts with a stack of their own.

#![deny(unsafe_code)]

mod alloc;
mod args;
pub mod bench;
mod calendar;
pub mod cli;
mod client;
mod commands;
mod control_socket;
mod descriptors;
mod draft;
pub mod ending;
mod events;
mod failure;
mod folder;
pub mod front_ends;
mod groups;
mod io_flusher;
mod lab;
mod log_writes;
mod md;
mod memory;
mod output;
mod paths;
pub mod serve;
pub mod server;
pub mod server_handle;
mod signals;
mod sim;
mod stop_limit;
mod terminal;
pub mod unix_socket;
mod volumes;
