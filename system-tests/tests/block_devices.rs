//! Block devices of the host: loop devices.

#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use system_tests::client::demand;
use system_tests::server::denies_io_uring;
use system_tests::{Server, new_folder, python, requires, shell, stack};
use tempfile::TempDir;

/// A loop device, detached when this is dropped.
struct Loop(String);

impl Loop {
    /// On a new file `loop.img` of `folder`.
    fn attach(folder: &Path) -> Option<Loop> {
        if !demand(Path::new("/dev/loop-control").exists(), "there are no loop devices") {
            return None;
        }
        let line = "truncate -s 16M loop.img && losetup --find --show loop.img";
        Some(Loop(shell(folder, line, &[]).ok().trim().to_owned()))
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

/// A file system in memory, which cannot free parts of a file, so that a loop device on it has no discards.
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
