//! `fio`'s own NBD client, with verification of its writes.

#![forbid(unsafe_code)]

use serde_json::Value;
use system_tests::{Server, requires, run, stack};

/// Runs four jobs, each a connection with a region of its own, and checks that none met an error.
fn verified(stack_text: &str, options: &[&str]) {
    if !requires("fio") {
        return;
    }
    let mut server = Server::start(stack_text);
    let uri = format!("--uri={}", server.uri("vol"));
    let common = [
        "fio",
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--numjobs=4",
        "--size=8M",
        "--offset_increment=8M",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--randseed=1",
        "--group_reporting",
        "--output-format=json",
    ];
    let text = run(server.dir(), &[&common, options].concat()).ok();
    let start = text.find('{').expect("JSON");
    let result: Value = serde_json::from_str(&text[start..]).expect("JSON");
    let job = &result["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    assert!(job["write"]["io_bytes"].as_u64() >= Some(32 << 20), "{job:#}");
    assert!(job["read"]["io_bytes"].as_u64() >= Some(32 << 20), "it did verify: {job:#}");
}

#[test]
fn random_writes_to_ram() {
    verified(&stack::ram("32MiB"), &["--rw=randwrite", "--bs=4k"]);
}

#[test]
fn random_writes_to_a_file() {
    verified(&stack::file("32MiB"), &["--rw=randwrite", "--bs=4k", "--fsync=64"]);
}

#[test]
fn mixed_sizes() {
    verified(&stack::file("32MiB"), &["--rw=randwrite", "--bsrange=512-128k", "--bs_unaligned=0"]);
}

#[test]
fn sequential_large() {
    verified(&stack::ram("32MiB"), &["--rw=write", "--bs=1m"]);
}
