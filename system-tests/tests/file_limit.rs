//! A limit of file size (`ulimit -f`, RLIMIT_FSIZE): it ends an I/O, never the program.

#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use system_tests::server::{denies_io_uring, program};
use system_tests::{Server, new_folder, python, requires, shell, stack};

/// No file may be longer than 2 MiB.
const LIMITED: [&str; 4] = ["/bin/bash", "-c", "ulimit -f 2048; exec \"$@\"", "limited"];

const TWO: &str = "[device.a]\ntype = \"file\"\npath = \"DIR/disk.img\"\n\
                   [device.b]\ntype = \"ram\"\nsize = \"1MiB\"\n";

#[test]
fn a_write_past_it_finds_no_space_and_nobody_else_is_harmed() {
    if !requires("/usr/bin/python3") {
        return;
    }
    for engine in ["plain", "io_uring"] {
        if engine == "io_uring" && denies_io_uring() {
            continue;
        }
        let folder = new_folder();
        let image = fs::File::create(folder.path().join("disk.img")).unwrap();
        image.set_len(64 << 20).unwrap();
        let text = TWO.replace("path", &format!("engine = \"{engine}\"\npath"))
            + &stack::export("vol", "a", "")
            + &stack::export("other", "b", "");
        let mut server = Server::start_in(&folder, &text, &LIMITED);
        let uri = server.uri("vol");
        let script = "
import errno
def refused(what):
    try:
        what()
    except nbd.Error as error:
        assert error.errnum == errno.ENOSPC, error
        return
    assert False, 'it was taken'
refused(lambda: h.pwrite(b'x' * 4096, 8 << 20))
refused(lambda: h.pwrite(b'x' * 8192, (2 << 20) - 4096))
h.pwrite(b'x' * 4096, (2 << 20) - 4096)
assert h.pread(4096, (2 << 20) - 4096) == b'x' * 4096";
        python(server.dir(), &uri, script).ok();
        let said = server.ask(&["set", "a", "size=65MiB"]).refused();
        assert!(said.contains("ulimit -f"), "{said}");
        let uri = server.uri("other");
        python(server.dir(), &uri, "h.pwrite(b'x' * 4096, 0)").ok();
        assert!(server.sigterm().success());
        let said = server.messages();
        assert!(said.contains("disk.img is longer than the limit of file size"), "{said}");
    }
}

#[test]
fn a_file_that_cannot_be_made_so_long_is_refused_and_not_left() {
    let folder = new_folder();
    let mut server = Server::spawn_in(&folder, &stack::file("64MiB"), &LIMITED);
    let message = server.refusal();
    assert!(message.contains("ulimit -f"), "{message}");
    assert!(!folder.path().join("disk.img").exists());
}

/// Commands that write files themselves print the system's message.
#[test]
fn commands_are_refused_in_a_sentence() {
    let folder = new_folder();
    let line = "for i in 0 1 2; do truncate -s 64M $i.img; done; ulimit -f 2048; \
                exec \"$1\" md create --level=5 --raid-devices=3 --metadata=1.0 0.img 1.img 2.img";
    let program = program().to_string_lossy();
    let said = shell(folder.path(), line, &[&program]).refused();
    assert!(said.contains("0.img has 67108864 bytes") && said.contains("ulimit -f"), "{said}");
    let limited = |line: &str| {
        shell(folder.path(), &format!("ulimit -f 2048; exec \"$1\" {line}"), &[&program]).refused()
    };
    make_long(folder.path(), "long.img");
    for engine in ["plain", "auto"] {
        let said = limited(&format!(
            "bench --device file,path=long.img,engine={engine} --rw write --warmup 1ms --runtime \
             60s"
        ));
        assert!(said.contains("sector 4096 failed: No space left on device"), "{engine}: {said}");
    }
    make_long(folder.path(), "target.img");
    fs::write(folder.path().join("log"), log_of_writes(&[0, 8192])).unwrap();
    let said = limited("log-writes log replay --to target.img");
    assert!(said.contains("target.img has 67108864 bytes") && said.contains("ulimit -f"), "{said}");
    let image = fs::read(folder.path().join("target.img")).unwrap();
    assert!(image.len() == 64 << 20 && image[..512] == [0; 512], "nothing was written");
}

/// A write log of one sector at each of these.
fn log_of_writes(sectors: &[u64]) -> Vec<u8> {
    let numbers = [drystone_targets::LOG_MAGIC, 1, sectors.len() as u64, 512];
    let block = |words: &[u64]| {
        let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        block.resize(512, 0);
        block
    };
    let entry = |sector: &u64| [block(&[*sector, 1, 0, 0]), vec![0x11; 512]].concat();
    [block(&numbers), sectors.iter().flat_map(entry).collect()].concat()
}

/// Makes a file that is longer than the limit.
fn make_long(folder: &Path, name: &str) {
    fs::File::create(folder.join(name)).unwrap().set_len(64 << 20).unwrap();
}

/// A volume can be written as far as its files reach, in its other parts too. An array is not made
/// of a file whose end is beyond the limit.
#[test]
fn a_volume_over_a_file_that_is_longer_is_written_as_far_as_that_goes() {
    if !requires("/usr/bin/python3") {
        return;
    }
    let folder = new_folder();
    make_long(folder.path(), "long.img");
    let file = "[device.long]\ntype = \"file\"\npath = \"DIR/long.img\"\n\
                [device.ram]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    let volume = "[device.v]\ntable = [\"0 8192 linear long 0\", \"8192 2048 linear ram 0\"]\n";
    let text = file.to_owned() + volume + &stack::export("vol", "v", "");
    let mut server = Server::start_in(&folder, &text, &LIMITED);
    let uri = server.uri("vol");
    let script = "
import errno
h.pwrite(b'x' * 4096, (2 << 20) - 4096)
try:
    h.pwrite(b'x' * 4096, 2 << 20)
    assert False, 'it was taken'
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
h.pwrite(b'y' * 4096, 4 << 20)
assert h.pread(4096, 4 << 20) == b'y' * 4096";
    python(server.dir(), &uri, script).ok();
    assert!(server.sigterm().success());
    let said = server.messages();
    assert!(said.contains("device `long`") && said.contains("ulimit -f"), "{said}");
    let members = "[device.m1]\ntype = \"ram\"\nsize = \"5MiB\"\n[device.m2]\ntype = \"ram\"\nsize \
        = \"5MiB\"\n";
    let array = "[device.a]\ntype = \"raid5\"\nmembers = [\"v\", \"m1\", \"m2\"]\nforce = true\n";
    let text = file.to_owned() + volume + members + array + &stack::export("vol", "a", "");
    let mut server = Server::spawn_in(&folder, &text, &LIMITED);
    let message = server.refusal();
    assert!(
        message.contains("`v` cannot be written as a whole: a file below it is longer than"),
        "{message}"
    );
}

/// An array that could not write to its members' ends would wait for room that never comes.
#[test]
fn members_that_are_longer_are_refused_before_anything_is_written() {
    let folder = new_folder();
    let names = ["m0.img", "m1.img", "m2.img"];
    names.iter().for_each(|name| make_long(folder.path(), name));
    let mut server =
        Server::spawn_in(&folder, &stack::array("raid5", 3, "64MiB", "force = true\n"), &LIMITED);
    let message = server.refusal();
    assert!(
        message.contains("`m0` has 67108864 bytes") && message.contains("ulimit -f"),
        "{message}"
    );
    for name in names {
        let image = fs::read(folder.path().join(name)).unwrap();
        assert!(image.iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn a_member_that_is_longer_is_not_added() {
    if !requires("/usr/bin/python3") {
        return;
    }
    let folder = new_folder();
    let mut server = Server::start_in(
        &folder,
        &stack::array("raid5", 3, "2MiB", "chunk = \"64KiB\"\n"),
        &LIMITED,
    );
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'x' * 65536, 0); h.flush()").ok();
    make_long(folder.path(), "spare.img");
    let spare = server.path("spare.img");
    let said = server.ask(&["md", "add", "array", &spare]).refused();
    assert!(said.contains("67108864 bytes") && said.contains("ulimit -f"), "{said}");
    assert!(server.sigterm().success(), "{}", server.messages());
}
