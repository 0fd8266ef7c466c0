//! Whole images in and out through `nbdcopy`, compared byte by byte.

#![forbid(unsafe_code)]

use std::path::Path;

use system_tests::{Server, requires, run, shell, stack};

/// Writes an image of 24 MiB: random data, holes between them.
fn make_image(folder: &Path) {
    let script = "truncate -s 24M in.img
        for mib in 0 5 6 13 23; do
            dd if=/dev/urandom of=in.img bs=1M count=1 seek=$mib conv=notrunc status=none
        done";
    shell(folder, script, &[]).ok();
}

fn there_and_back(stack_text: &str, options: &[&str]) {
    if !requires("nbdcopy") {
        return;
    }
    let mut server = Server::start(stack_text);
    let uri = server.uri("vol");
    make_image(server.dir());
    let copy = |from: &str, to: &str| {
        run(server.dir(), &[&["nbdcopy"], options, &["--", from, to]].concat()).ok();
    };
    copy("in.img", &uri);
    copy(&uri, "out.img");
    run(server.dir(), &["cmp", "-n", "25165824", "in.img", "out.img"]).ok();
}

#[test]
fn ram_device() {
    there_and_back(&stack::ram("24MiB"), &["--flush"]);
}

#[test]
fn file_device() {
    there_and_back(&stack::file("24MiB"), &["--flush"]);
}

/// A file may end within a block.
#[test]
fn any_number_of_bytes() {
    if !requires("nbdcopy") {
        return;
    }
    let file = stack::file("2MiB");
    let long_blocks = file.replacen("path", "logical_block_size = 4096\npath", 1);
    for text in [file, long_blocks] {
        let mut server = Server::start(&text);
        let uri = server.uri("vol");
        shell(server.dir(), "head -c 1000001 /dev/urandom > in.img", &[]).ok();
        run(server.dir(), &["nbdcopy", "--flush", "in.img", &uri]).ok();
        run(server.dir(), &["nbdcopy", &uri, "out.img"]).ok();
        run(server.dir(), &["cmp", "-n", "1000001", "in.img", "out.img"]).ok();
        shell(server.dir(), "tail -c +1000002 out.img | tr -d '\\0' | cmp - /dev/null", &[]).ok();
    }
}

#[test]
fn four_connections() {
    there_and_back(&stack::file("24MiB"), &["--flush", "--connections=4", "--threads=4"]);
}

#[test]
fn small_requests_deep_queue() {
    there_and_back(&stack::ram("24MiB"), &["--requests=64", "--request-size=8192"]);
}

#[test]
fn synchronous_without_extents() {
    there_and_back(&stack::file("24MiB"), &["--synchronous", "--no-extents"]);
}

#[test]
fn holes_stay_holes_in_the_file() {
    if !requires("nbdcopy") {
        return;
    }
    let mut server = Server::start(&stack::file("24MiB"));
    let uri = server.uri("vol");
    make_image(server.dir());
    // The target is known to be zero, so that only data is sent.
    run(server.dir(), &["nbdcopy", "--destination-is-zero", "--flush", "in.img", &uri]).ok();
    run(server.dir(), &["cmp", "in.img", "disk.img"]).ok();
    let kib = shell(server.dir(), "du -k disk.img | cut -f1", &[]).ok();
    let kib: u64 = kib.trim().parse().expect("a number");
    assert!(kib < 8 << 10, "5 MiB of data take {kib} KiB");
}

/// An array cannot zero by itself: the server writes zeroes for the client.
#[test]
fn an_image_with_holes_onto_an_array() {
    there_and_back(&stack::array("raid5", 4, "16MiB", ""), &["--flush"]);
}
