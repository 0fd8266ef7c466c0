//! Processes that are killed while they zero a file whose limit makes that take long.

use super::*;

/// Python: runs a command, kills it once it sleeps in its call, and waits for its end.
const KILLED: &str = r#"
import os, signal, subprocess, sys, time
path, command = sys.argv[1], sys.argv[2:]
child = subprocess.Popen(command)
def state():
    return open(f'/proc/{child.pid}/stat').read().rsplit(') ', 1)[1][0]
# It sleeps in nothing else for long.
asleep = 0
while asleep < 25:
    asleep = asleep + 1 if state() in 'SD' else 0
    assert child.poll() is None, 'the limit holds it'
    time.sleep(0.02)
child.send_signal(signal.SIGKILL)
assert child.wait(60) == -signal.SIGKILL
"#;

/// A file in a group that lets through 64 KiB a second, so that zeroing it takes a quarter of an hour.
fn limited(device: &str) -> String {
    let group = "[group.slow]\nio.max = \"d wbps=64KiB\"\n";
    device.to_owned() + "fuse = \"DIR/vol.img\"\ngroup = \"slow\"\n" + group
}

/// Kills `command` on the file of each kind of device, while the limit holds and goes on to.
fn is_killed(command: &str) {
    if !has_fuse() || !requires("fallocate") || !requires("/usr/bin/python3") {
        return;
    }
    let array = stack::array("raid5", 3, "32MiB", "").replace("[device.array]", "[device.d]");
    for device in [
        stack::ram("64MiB"),
        stack::file("64MiB"),
        array.replace("device = \"array\"", "device = \"d\""),
    ] {
        if device.contains("raid5") && command.contains("fallocate") {
            // It refuses them.
            continue;
        }
        let mut files = Files::start(&limited(&device));
        let file = files.announced(false);
        fs::write(files.server.path("killed.py"), KILLED).expect("a script");
        files.run(&format!("/usr/bin/python3 killed.py \"$1\" {command} \"$1\""), &file).ok();
        let groups = files.server.ask(&["group", "list"]).ok();
        assert!(groups.contains("wbps=65536"), "the limit is still there: {groups}");
        // Nothing of it goes on: what comes next is served at once.
        files.run("dd if=/dev/zero of=\"$1\" bs=4k count=1 conv=notrunc 2>dd.log", &file).ok();
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
    }
}

#[test]
fn a_process_that_truncates_a_limited_file_can_be_killed() {
    is_killed("truncate -s 0");
}

#[test]
fn so_can_one_that_truncates_within_a_block() {
    is_killed("truncate -s 100");
}

#[test]
fn and_one_that_punches_a_hole_or_zeroes_a_range() {
    is_killed("fallocate -p -o 0 -l 64MiB");
    is_killed("fallocate -z -o 100 -l 63MiB");
}
