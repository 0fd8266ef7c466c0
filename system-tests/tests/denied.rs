//! A server that may not use io_uring, as in a container with the usual seccomp profile.
//!
//! All other tests run so too when `DRYSTONE_DENY_IO_URING=1` is set.

#![forbid(unsafe_code)]

use std::fs;

use system_tests::server::{denies_io_uring, without_io_uring};
use system_tests::{Server, new_folder, requires, run, shell, stack};

/// Rings that the server has open, as the kernel names their descriptors.
fn rings(server: &Server) -> usize {
    let folder = format!("/proc/{}/fd", server.pid());
    let links = fs::read_dir(folder).expect("it runs").flatten();
    let names = links.filter_map(|link| fs::read_link(link.path()).ok());
    names.filter(|name| name.to_string_lossy().contains("io_uring")).count()
}

fn denied(text: &str) -> Server {
    let prefix = without_io_uring();
    let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
    Server::start_in(&new_folder(), text, &prefix)
}

#[test]
fn the_server_says_so_once_and_serves() {
    if !requires("nbdcopy") || !requires("/usr/bin/python3") {
        return;
    }
    let mut server = denied(&stack::file("16MiB"));
    let uri = server.uri("vol");
    shell(server.dir(), "head -c 16M /dev/urandom > in.img", &[]).ok();
    run(server.dir(), &["nbdcopy", "--flush", "in.img", &uri]).ok();
    run(server.dir(), &["nbdcopy", &uri, "out.img"]).ok();
    run(server.dir(), &["cmp", "in.img", "out.img"]).ok();
    assert_eq!(rings(&server), 0);
    assert!(server.sigterm().success());
    let messages = server.messages();
    let notices = messages.lines().filter(|line| line.contains("io_uring is not available"));
    let notices: Vec<&str> = notices.collect();
    assert_eq!(notices.len(), 1, "{messages}");
    assert!(notices[0].contains("Operation not permitted"), "{messages}");
}

/// The filter makes the difference: without it this machine has io_uring.
#[test]
fn a_server_that_may_use_io_uring_says_nothing() {
    let mut server = Server::start(&stack::ram("4MiB"));
    server.uri("vol");
    let messages = server.messages();
    if denies_io_uring() || messages.contains("io_uring is not available") {
        eprintln!("SKIPPED a_server_that_may_use_io_uring_says_nothing: there is none here");
        return;
    }
    assert!(rings(&server) > 0);
    assert!(!messages.contains("io_uring"), "{messages}");
}

#[test]
fn an_engine_that_was_asked_for_by_name_is_not_exchanged() {
    if !requires("/usr/bin/python3") {
        return;
    }
    let text =
        stack::file("4MiB").replace("type = \"file\"", "type = \"file\"\nengine = \"io_uring\"");
    let prefix = without_io_uring();
    let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
    let mut server = Server::spawn_in(&new_folder(), &text, &prefix);
    let message = server.refusal();
    assert!(message.contains("io_uring") && message.contains("not permitted"), "{message}");
}
