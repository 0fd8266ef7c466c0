//! The kind of file that standard error is connected to.

use std::io::{self, IsTerminal};

/// True if messages on standard error may have colours.
pub fn colour() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !unwanted
}
