//! Drystone inside of other programs: fio with our engine, programs in C, the mails' command lines.
//!
//! The libraries lie beside the program under test; `DRYSTONE_PROFILE=dev scripts/capi.sh` puts
//! them there. With `DRYSTONE_DENY_IO_URING=1` the programs run without io_uring.

#![forbid(unsafe_code)]

mod c;
mod counted;
mod fio;
mod mails;

use std::path::{Path, PathBuf};

use system_tests::client::demand;
use system_tests::server::{denies_io_uring, program, without_io_uring};
use system_tests::{Outcome, requires, run};

/// The folder of the program under test and its libraries.
fn libraries() -> &'static Path {
    program().parent().expect("the program lies in a folder")
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The engine's path, if the test can go on.
fn engine() -> Option<String> {
    let engine = libraries().join("libdrystone_fio.so");
    let what = format!(
        "{} does not exist (`DRYSTONE_PROFILE=dev scripts/capi.sh` builds it)",
        engine.display()
    );
    (requires("fio") && demand(engine.exists(), &what)).then(|| engine.display().to_string())
}

/// Runs a program that has a stack of its own, with io_uring or without.
fn run_embedded(folder: &Path, words: &[&str]) -> Outcome {
    let prefix = if denies_io_uring() { without_io_uring() } else { Vec::new() };
    let words: Vec<&str> = prefix.iter().map(String::as_str).chain(words.iter().copied()).collect();
    run(folder, &words)
}
