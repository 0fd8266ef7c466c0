//! Block devices of the host: loop devices.

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use system_tests::client::demand;
use system_tests::server::denies_io_uring;
use system_tests::{Server, new_folder, program, python, requires, run, shell, stack};
use tempfile::TempDir;

/// A loop device, detached when this is dropped.
struct Loop(String);

impl Loop {
    /// On a new file `loop.img` of `folder`.
    fn attach(folder: &Path) -> Option<Loop> {
        Loop::attach_file(&folder.join("loop.img"), 16 << 20, 512)
    }

    /// On a new file of so many bytes, with logical blocks of `block` bytes.
    fn attach_file(path: &Path, bytes: u64, block: u32) -> Option<Loop> {
        if !demand(Path::new("/dev/loop-control").exists(), "there are no loop devices") {
            return None;
        }
        fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("a file");
        let folder = path.parent().expect("a folder");
        let line = format!("losetup --sector-size {block} --find --show \"$1\"");
        let path = path.to_str().expect("a UTF-8 path");
        Some(Loop(shell(folder, &line, &[path]).ok().trim().to_owned()))
    }

    /// A file of its queue, or its statistics, in sysfs.
    fn sysfs(&self, name: &str) -> String {
        format!("/sys/block/{}/{name}", self.0.trim_start_matches("/dev/"))
    }

    /// Discards that it has done.
    fn discards(&self) -> u64 {
        let stat = fs::read_to_string(self.sysfs("stat")).unwrap();
        stat.split_whitespace().nth(11).unwrap().parse().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn serve(device: &Loop, engine: &str, test: &str) {
    let text = format!(
        "[device.d]\ntype = \"file\"\npath = {:?}\nengine = \"{engine}\"\n{}",
        device.0,
        stack::export("vol", "d", "")
    );
    let mut server = Server::start(&text);
    let uri = server.uri("vol");
    python(server.dir(), &uri, test).ok();
    assert!(server.sigterm().success());
}

#[test]
fn a_trim_is_a_discard_of_the_device_and_offered_where_it_has_it() {
    if !requires("/usr/bin/python3") || !requires("losetup") {
        return;
    }
    let folder = new_folder();
    let Some(device) = Loop::attach(folder.path()) else { return };
    for engine in ["plain", "io_uring"] {
        if engine == "io_uring" && denies_io_uring() {
            continue;
        }
        let before = device.discards();
        serve(
            &device,
            engine,
            "
assert h.can_trim()
h.pwrite(b'x' * (1 << 20), 0)
h.trim(512 << 10, 256 << 10)
h.trim(512, (2 << 20) + 512)
assert h.pread(256 << 10, 0) == b'x' * (256 << 10)
assert h.pread(512 << 10, 256 << 10) == bytes(512 << 10)
assert h.pread(256 << 10, 768 << 10) == b'x' * (256 << 10)",
        );
        assert!(device.discards() > before, "{engine}");
    }
}

/// As a file system that is mounted, or an array of the kernel, uses it.
#[test]
fn a_device_that_others_use_is_refused() {
    if !requires("losetup") {
        return;
    }
    const O_EXCL: i32 = 0o200;
    let folder = new_folder();
    let Some(device) = Loop::attach(folder.path()) else { return };
    let text = format!("[device.d]\ntype = \"file\"\npath = {:?}\n", device.0)
        + &stack::export("vol", "d", "");
    let holder = fs::OpenOptions::new().read(true).custom_flags(O_EXCL).open(&device.0);
    let holder = holder.expect("it is free");
    let said = Server::spawn_in(&folder, &text, &[]).refusal();
    assert!(said.contains(&format!("{} is in use by", device.0)), "{said}");
    drop(holder);
    assert!(Server::start_in(&folder, &text, &[]).sigterm().success());
}

/// A file system in memory that cannot free parts of a file, so a loop device on it has no
/// discards.
struct Ramfs(Arc<TempDir>);

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_device_without_discards_offers_no_trim() {
    if !requires("/usr/bin/python3") || !requires("losetup") || !requires("mount") {
        return;
    }
    let folder = Ramfs(new_folder());
    let mounted =
        Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(folder.0.path()).status();
    if !demand(mounted.is_ok_and(|status| status.success()), "ramfs cannot be mounted") {
        return;
    }
    let Some(device) = Loop::attach(folder.0.path()) else { return };
    serve(&device, "auto", "assert not h.can_trim()\nh.zero(4096, 0)");
}

/// The value of an attribute of a device.
fn shown(server: &Server, device: &str, name: &str) -> String {
    let listed = server.ask(&["show", device]).ok();
    let line = listed.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.expect("the attribute").split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
}

/// A stack of a file device `d` with further keys.
fn file_with(path: &str, keys: &str) -> String {
    format!(
        "[device.d]\ntype = \"file\"\npath = {path:?}\n{keys}\n{}",
        stack::export("vol", "d", "")
    )
}

/// Requests of one block, then of less.
const LEAST: &str = "
least, size = 4096, h.get_size()
assert h.get_block_size(nbd.SIZE_MINIMUM) == 1
assert size == 16 << 20, size
h.pwrite(b'x' * 65536, 0)
h.zero(least, least)
h.trim(least, 3 * least)
h.pwrite(b'y' * least, 5 * least)
h.pwrite(b'z' * least, size - least)
h.flush()
assert h.pread(least, 0) == b'x' * least
assert h.pread(least, least) == h.pread(least, 3 * least) == bytes(least)
assert h.pread(least, 2 * least) == b'x' * least
assert h.pread(2 * least, 5 * least) == b'y' * least + b'x' * least
assert h.pread(least, size - least) == b'z' * least
h.pwrite(b'a' * 512, least + 512)
h.zero(512, 5 * least)
h.trim(512, 2 * least)
assert h.pread(least, least) == bytes(512) + b'a' * 512 + bytes(least - 1024)
assert h.pread(least, 5 * least) == bytes(512) + b'y' * (least - 512)
";

#[test]
fn a_device_of_large_blocks_is_served_with_them() {
    if !requires("/usr/bin/python3") || !requires("losetup") {
        return;
    }
    let folder = new_folder();
    // Its last 512 bytes are no block.
    let path = folder.path().join("loop.img");
    let Some(device) = Loop::attach_file(&path, (16 << 20) + 512, 4096) else { return };
    for (keys, is_direct) in [
        ("", "1"),
        ("direct = true\nlogical_block_size = 4096", "1"),
        ("direct = true\nengine = \"plain\"", "1"),
        ("direct = false", "0"),
    ] {
        let mut server = Server::start(&file_with(&device.0, keys));
        assert_eq!(shown(&server, "d", "direct"), is_direct, "{keys}");
        assert_eq!(shown(&server, "d", "queue/logical_block_size"), "4096");
        let uri = server.uri("vol");
        python(server.dir(), &uri, LEAST).ok();
        assert!(server.sigterm().success());
        let told = "is used without its last 512 bytes, which are no whole block of 4096 bytes";
        assert_eq!(server.messages().matches(told).count(), 1, "{}", server.messages());
    }
    for (keys, sentence) in [
        ("logical_block_size = 512", "it has logical blocks of 4096 bytes"),
        ("size = 1536", "1536 bytes are not a positive multiple of 4096"),
    ] {
        let mut server = Server::spawn_in(&new_folder(), &file_with(&device.0, keys), &[]);
        let messages = server.refusal();
        assert!(messages.contains(sentence), "{messages}");
    }
}

/// An ext4 file system on a disk of large blocks.
struct Mounted(
    Arc<TempDir>,
    #[expect(dead_code, reason = "it is detached after the unmount")] Loop,
);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

impl Mounted {
    fn new(folder: &Path) -> Option<Mounted> {
        let device = Loop::attach_file(&folder.join("disk.img"), 64 << 20, 4096)?;
        let place = new_folder();
        shell(folder, "mkfs.ext4 -q \"$1\"", &[&device.0]).ok();
        let mounted = Command::new("mount").arg(&device.0).arg(place.path()).status();
        let is_mounted = mounted.is_ok_and(|status| status.success());
        demand(is_mounted, "ext4 cannot be mounted").then(|| Mounted(place, device))
    }
}

#[test]
fn a_file_on_a_disk_of_large_blocks_is_direct_where_somebody_asks_for_such_blocks() {
    let tools = ["/usr/bin/python3", "losetup", "mkfs.ext4", "mount"];
    if !tools.iter().all(|tool| requires(tool)) {
        return;
    }
    let folder = new_folder();
    let Some(mounted) = Mounted::new(folder.path()) else { return };
    let path = mounted.0.path().join("file.img");
    let path = path.to_str().expect("a UTF-8 path");
    fs::File::create(path).and_then(|file| file.set_len(16 << 20)).expect("a file");
    for (keys, is_direct, block, told) in [
        (
            "",
            "0",
            "512",
            "d`: PATH goes through the page cache: direct I/O needs blocks of 4096 bytes",
        ),
        ("direct = true", "1", "4096", "d`: PATH has logical blocks of 4096 bytes"),
        ("logical_block_size = 4096", "1", "4096", ""),
        ("direct = false", "0", "512", ""),
    ] {
        let mut server = Server::start(&file_with(path, keys));
        assert_eq!(shown(&server, "d", "direct"), is_direct, "{keys}");
        assert_eq!(shown(&server, "d", "queue/logical_block_size"), block, "{keys}");
        let uri = server.uri("vol");
        python(server.dir(), &uri, LEAST).ok();
        assert!(server.sigterm().success());
        let messages = server.messages();
        let count = messages.matches("device `d`: ").count();
        assert_eq!(count, usize::from(!told.is_empty()), "{messages}");
        assert!(messages.contains(&told.replace("PATH", path)), "{messages}");
    }
    let wrong = "direct = true\nlogical_block_size = 512";
    let messages = Server::spawn_in(&new_folder(), &file_with(path, wrong), &[]).refusal();
    assert!(messages.contains("direct I/O needs blocks of 4096 bytes"), "{messages}");
}

/// Arrays on devices of large blocks are made, written, rebuilt, stopped and assembled again.
#[test]
fn an_array_on_devices_of_large_blocks_is_as_any() {
    if !requires("/usr/bin/python3") || !requires("losetup") {
        return;
    }
    let program = program().to_str().expect("a UTF-8 path");
    for (metadata, policy) in [("1.2", "bitmap"), ("1.1", "resync"), ("1.0", "ppl")] {
        // The devices are in memory: a flush of such a device takes long if a disk is below.
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let path = |n| folder.path().join(format!("m{n}.img"));
        let loops = (0..4).map(|n| Loop::attach_file(&path(n), 8 << 20, 4096));
        let Some(loops) = loops.collect::<Option<Vec<_>>>() else { return };
        let devices: Vec<&str> = loops.iter().map(|device| &device.0[..]).collect();
        let shape = ["-l", "5", "-n", "3", "-c", "64", "-e", metadata];
        let policy = ["--consistency-policy", policy];
        let create = |more: &[&str]| {
            let words = [&[program, "md", "create"], &shape[..], &policy, more, &devices[..3]];
            run(folder.path(), &words.concat())
        };
        if metadata != "1.0" {
            let refused = create(&["--data-offset", "2049"]).refused();
            assert!(refused.contains("begins inside a block of"), "{refused}");
        }
        create(&[]).ok();
        let member = |n: usize| {
            let path = devices[n];
            format!("[device.m{n}]\ntype = \"file\"\npath = {path:?}\ndirect = true\n")
        };
        let members: String = (0..3).map(member).collect();
        let array = "[device.array]\ntype = \"raid5\"\nmembers = [\"m0\", \"m1\", \"m2\"]\n";
        let text = format!("{members}{array}{}", stack::export("vol", "array", ""));
        let mut server = Server::start(&text);
        let md = |server: &Server, words: &[&str]| server.ask(&[&["md"], words].concat()).ok();
        md(&server, &["wait", "array"]);
        assert_eq!(shown(&server, "m0", "direct"), "1");
        assert_eq!(shown(&server, "array", "queue/logical_block_size"), "4096");
        let uri = server.uri("vol");
        let write = |seed: u32| {
            format!(
                "
import random
r, size = random.Random({seed}), h.get_size()
for n in range(20):
    length = 4096 * r.randint(1, 40)
    at = 4096 * r.randint(0, (size - length) // 4096)
    h.pwrite(r.randbytes(length), at)
import hashlib
print(hashlib.sha256(b''.join(h.pread(1 << 20, at) for at in range(0, size >> 20 << 20, 1 << \
20))).hexdigest())"
            )
        };
        python(server.dir(), &uri, &write(1)).ok();
        md(&server, &["fail", "array", "m1"]);
        md(&server, &["remove", "array", "m1"]);
        let held = python(server.dir(), &uri, &write(2)).ok();
        md(&server, &["add", "array", devices[3]]);
        md(&server, &["wait", "array"]);
        assert!(server.sigterm().success(), "{}", server.messages());
        let examined = run(folder.path(), &[program, "md", "examine", devices[3]]).ok();
        assert!(examined.contains("State : clean"), "{examined}");
        let text = text.replace(&format!("{:?}", devices[1]), &format!("{:?}", devices[3]));
        let mut server = Server::start(&text);
        md(&server, &["check", "array"]);
        md(&server, &["wait", "array"]);
        assert_eq!(shown(&server, "array", "md/mismatch_cnt"), "0");
        assert_eq!(shown(&server, "array", "md/degraded"), "0");
        let uri = server.uri("vol");
        let read = write(0).replace("range(20)", "range(0)");
        assert_eq!(python(server.dir(), &uri, &read).ok(), held, "metadata {metadata}");
        assert!(server.sigterm().success(), "{}", server.messages());
    }
}
