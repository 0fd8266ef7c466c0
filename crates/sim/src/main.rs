//! The program `drystone-sim`; everything is in its library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    drystone_sim::cli::main()
}
