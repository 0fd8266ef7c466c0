//! The program `drystone`; everything is in its library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    drystone::cli::main()
}
