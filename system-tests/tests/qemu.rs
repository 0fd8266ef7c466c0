//! QEMU's tools: images converted in and out, compared, mapped, and patterns by `qemu-io`.

#![forbid(unsafe_code)]

use std::path::Path;

use serde_json::Value;
use system_tests::{Server, new_folder, requires, run, shell, stack};

fn make_image(folder: &Path, mib: u32) {
    let script = "truncate -s ${1}M in.img
        for at in 0 3 $(($1 - 1)); do
            dd if=/dev/urandom of=in.img bs=1M count=1 seek=$at conv=notrunc status=none
        done";
    shell(folder, script, &[&mib.to_string()]).ok();
}

#[test]
fn convert_in_compare_convert_out() {
    if !requires("qemu-img") {
        return;
    }
    let array = stack::array("raid5", 3, "16MiB", "");
    for text in [stack::ram("16MiB"), stack::file("16MiB"), array] {
        let mut server = Server::start(&text);
        let uri = server.uri("vol");
        let qemu_img = |words: &[&str]| run(server.dir(), &[&["qemu-img"], words].concat());
        make_image(server.dir(), 16);
        qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", "in.img", &uri]).ok();
        let said = qemu_img(&["compare", "-f", "raw", "-F", "raw", "in.img", &uri]).ok();
        assert!(said.contains("Images are identical"), "{said}");
        qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &uri, "out.qcow2"]).ok();
        qemu_img(&["check", "out.qcow2"]).ok();
        qemu_img(&["compare", "in.img", "out.qcow2", "-f", "raw", "-F", "qcow2"]).ok();
    }
}

#[test]
fn compare_notices_a_difference() {
    if !requires("qemu-img") || !requires("qemu-io") {
        return;
    }
    let mut server = Server::start(&stack::ram("16MiB"));
    let uri = server.uri("vol");
    make_image(server.dir(), 16);
    run(server.dir(), &["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", "in.img", &uri])
        .ok();
    run(server.dir(), &["qemu-io", "-f", "raw", "-c", "write -P 0x5a 9M 512", &uri]).ok();
    let compare = ["qemu-img", "compare", "-f", "raw", "-F", "raw", "in.img", &uri];
    let outcome = run(server.dir(), &compare);
    assert!(!outcome.succeeded);
    assert!(outcome.stdout.contains("mismatch at offset 9437184"), "{outcome:#?}");
}

#[test]
fn a_qcow2_image_lives_on_the_export() {
    if !requires("qemu-img") || !requires("qemu-io") {
        return;
    }
    let mut server = Server::start(&stack::file("32MiB"));
    let uri = server.uri("vol");
    make_image(server.dir(), 16);
    run(server.dir(), &["qemu-img", "create", "-q", "-f", "qcow2", &uri, "16M"]).ok();
    let convert = ["qemu-img", "convert", "-n", "-f", "raw", "-O", "qcow2", "in.img", &uri];
    run(server.dir(), &convert).ok();
    run(server.dir(), &["qemu-img", "check", "-f", "qcow2", &uri]).ok();
    let compare = ["qemu-img", "compare", "-f", "raw", "-F", "qcow2", "in.img", &uri];
    run(server.dir(), &compare).ok();
}

#[test]
fn the_map_shows_data_and_holes() {
    if !requires("qemu-img") || !requires("qemu-io") {
        return;
    }
    let mut server = Server::start(&stack::file("8MiB"));
    let uri = server.uri("vol");
    run(server.dir(), &["qemu-io", "-f", "raw", "-c", "write -P 1 1M 1M", &uri]).ok();
    let text = run(server.dir(), &["qemu-img", "map", "--output=json", "-f", "raw", &uri]).ok();
    let map: Value = serde_json::from_str(&text).expect("JSON");
    let data_bytes = |wanted: bool| -> u64 {
        let extents = map.as_array().expect("a list").iter();
        extents
            .filter(|extent| extent["data"] == wanted)
            .map(|extent| extent["length"].as_u64().expect("a number"))
            .sum()
    };
    assert_eq!((data_bytes(true), data_bytes(false)), (1 << 20, 7 << 20), "{text}");
}

#[test]
fn patterns() {
    if !requires("qemu-io") {
        return;
    }
    let array = stack::array("raid5", 3, "16MiB", "");
    for text in [stack::ram("16MiB"), stack::file("16MiB"), array] {
        let mut server = Server::start(&text);
        let uri = server.uri("vol");
        let mut words = vec!["qemu-io", "-f", "raw", "-d", "unmap", &uri];
        for command in [
            "write -P 0xa1 0 1M",
            "write -f -P 0xa2 1M 64k",
            "aio_write -P 0xa3 2M 64k",
            "aio_write -P 0xa4 3M 64k",
            "aio_flush",
            "write -z 64k 64k",
            "write -z -u 128k 64k",
            "discard 256k 64k",
            "writev -P 0xa5 4M 4k 8k 512",
            "flush",
            "read -P 0xa1 0 64k",
            "read -P 0 64k 128k",
            "read -P 0xa1 192k 64k",
            "read -P 0xa1 320k 704k",
            "read -P 0xa2 1M 64k",
            "read -P 0 1088k 64k",
            "read -P 0xa3 2M 64k",
            "read -P 0xa4 3M 64k",
            "read -P 0xa5 4M 12800",
            "read -P 0 15M 1M",
        ] {
            words.extend(["-c", command]);
        }
        let said = run(server.dir(), &words).ok();
        assert!(!said.contains("verification failed"), "{said}");
    }
}

#[test]
fn writing_to_a_read_only_export_is_refused() {
    if !requires("qemu-io") {
        return;
    }
    let device = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    let mut server =
        Server::start(&format!("{device}{}", stack::export("vol", "d", stack::READ_ONLY)));
    let uri = server.uri("vol");
    let message = run(server.dir(), &["qemu-io", "-f", "raw", "-c", "write 0 512", &uri]).refused();
    assert!(
        ["read-only", "Permission denied"].iter().any(|word| message.contains(word)),
        "{message}"
    );
    run(server.dir(), &["qemu-io", "-r", "-f", "raw", "-c", "read -P 0 0 1M", &uri]).ok();
}

/// The stack of an image that is only read.
fn reader() -> String {
    let device = "[device.d]\ntype = \"file\"\npath = \"DIR/in.img\"\nread_only = true\n";
    device.to_owned() + &stack::export("vol", "d", "")
}

/// Ended with the test, also when it fails.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn an_image_that_is_only_read_has_other_readers_and_no_writer() {
    if !requires("qemu-img") || !requires("qemu-io") {
        return;
    }
    let folder = new_folder();
    make_image(folder.path(), 16);
    let mut server = Server::start_in(&folder, &reader(), &[]);
    let uri = server.uri("vol");
    run(server.dir(), &["qemu-img", "convert", "-f", "raw", "-O", "raw", "in.img", "out.img"]).ok();
    run(server.dir(), &["qemu-img", "compare", "-f", "raw", "-F", "raw", "out.img", &uri]).ok();
    let write = run(server.dir(), &["qemu-io", "-f", "raw", "-c", "write 0 512", "in.img"]);
    assert!(!write.succeeded && write.stderr.contains("\"write\" lock"), "{write:#?}");
}

#[test]
fn an_image_that_qemu_writes_to_is_refused_to_a_reader() {
    if !requires("qemu-storage-daemon") {
        return;
    }
    let folder = new_folder();
    make_image(folder.path(), 16);
    let daemon = |read_only: &str| {
        let node = format!("driver=file,node-name=n,filename=in.img,read-only={read_only}");
        let export = "type=nbd,id=e,node-name=n,name=q,writable=".to_owned()
            + if read_only == "on" { "off" } else { "on" };
        let daemon = std::process::Command::new("qemu-storage-daemon")
            .args(["--nbd-server", "addr.type=unix,addr.path=q.sock"])
            .args(["--blockdev", &node, "--export", &export, "--pidfile", "q.pid"])
            .current_dir(folder.path())
            .spawn();
        let mut daemon = Daemon(daemon.expect("it starts"));
        while !folder.path().join("q.pid").exists() {
            assert!(daemon.0.try_wait().expect("it is ours").is_none(), "it ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        daemon
    };
    let end = |daemon: Daemon| {
        drop(daemon);
        shell(folder.path(), "rm -f q.pid q.sock", &[]).ok();
    };
    let writer = daemon("off");
    let said = Server::spawn_in(&folder, &reader(), &[]).refusal();
    assert!(said.contains(&format!("in.img is in use by process {}", writer.0.id())), "{said}");
    end(writer);
    let other = daemon("on");
    Server::start_in(&folder, &reader(), &[]).uri("vol");
    end(other);
}
