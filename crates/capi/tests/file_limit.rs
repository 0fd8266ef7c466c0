//! A limit of file size (RLIMIT_FSIZE) of the program that uses the library.
//!
//! Every unsafe block here is a call into the system that takes numbers, or a struct that outlives
//! it.
#![allow(clippy::undocumented_unsafe_blocks, reason = "argued above, once for all")]
#![allow(unsafe_code, reason = "they call what C programs call")]

mod common;

use std::fs::File;
use std::process::Command;

use common::*;
use drystone_capi::abi::Io;

/// Set in the process that has the limit.
const LIMITED: &str = "DRYSTONE_TEST_FILE_LIMIT";
const LIMIT: u64 = 2 << 20;

/// The signal ignored, as the header asks for: an I/O past the limit finds no space, and all else
/// is as ever.
fn writes_as_far_as_it_may(engine: &str) {
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
    let folder = tempfile::tempdir().unwrap();
    let grows = "[device.f]\ntype = \"file\"\npath = \"f.img\"\nsize = \"64MiB\"\n";
    try_open(grows, folder.path()).expect_err("it cannot be made so long");
    assert!(last_error().contains("ulimit -f"), "{}", last_error());
    let path = std::env::var(LIMITED).unwrap();
    let text = format!("[device.long]\ntype = \"file\"\npath = {path:?}\nengine = {engine:?}\n");
    let stack = Stack::open_in(&text, folder.path());
    let mut context = stack.context();
    context.device("long");
    let mut memory = vec![7u8; 8192];
    let mut write = |at| context.run(&[Io { op: WRITE, ..io(1, at, &mut memory) }]);
    assert_eq!(write(8 << 20), [(1, -libc::ENOSPC)]);
    assert_eq!(write(LIMIT - 4096), [(1, -libc::ENOSPC)], "half of it");
    assert_eq!(write(LIMIT - 8192), [(1, 0)]);
}

#[test]
fn a_write_past_it_finds_no_space() {
    if let Ok(engine) = std::env::var("DRYSTONE_TEST_ENGINE") {
        return writes_as_far_as_it_may(&engine);
    }
    let folder = tempfile::tempdir().unwrap();
    for engine in ["plain", "auto"] {
        let long = folder.path().join(engine);
        File::create(&long).unwrap().set_len(64 << 20).unwrap();
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "a_write_past_it_finds_no_space", "--nocapture"]);
        let ended = again.env(LIMITED, &long).env("DRYSTONE_TEST_ENGINE", engine).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{engine}: {}: {said}", ended.status);
    }
}
