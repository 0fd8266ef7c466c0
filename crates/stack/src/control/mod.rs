//! The control protocol: one request line in JSON, one response line. No I/O here: the program
//! moves the lines over a Unix socket of mode 0600.

mod command;
mod commands;
mod context;
mod devices;
mod error;
mod fake;
mod fuzz;
mod groups;
mod help;
mod line;
mod md;
mod object;
mod request;
mod statistics;
mod volumes;
mod wire;

pub use command::{Argument, Command, Shape};
pub use commands::COMMANDS;
pub use context::{Control, ServerInfo};
pub use error::{CODES, ControlError};
pub use fuzz::fuzz_control;
pub use help::{help_text, markdown};
pub use line::{Line, LineBuffer};
pub use md::MANAGER_PATIENCE_NS;
pub use volumes::DEFAULT_TIMEOUT_NS;
pub use wire::{
    MAX_LINE_BYTES, PROTOCOL, gave_way, no_thread, request, response, too_long, too_many_clients,
};

#[cfg(test)]
mod tests;
