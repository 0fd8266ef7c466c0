//! The program `drystone-lab`; everything is in its library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    drystone_lab::cli::main()
}
