//! Processes are killed, or get other signals, while they zero a file whose limit makes that slow.

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

/// Python: zeroes a file in one of two ways while a timer sends signals with a handler.
const ALARMED: &str = r#"
import ctypes, os, signal, sys
how, path = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
alarms = 0
def alarmed(*_):
    global alarms
    alarms += 1
signal.signal(signal.SIGALRM, alarmed)
file = os.open(path, os.O_RDWR)
size = ctypes.c_int64(os.fstat(file).st_size)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
before = alarms
# By libc: Python's own calls begin again after EINTR.
if how == 'truncate':
    result = libc.ftruncate64(file, ctypes.c_int64(0))
else:
    result = libc.fallocate64(file, 3, ctypes.c_int64(0), size)
error = ctypes.get_errno()
signal.setitimer(signal.ITIMER_REAL, 0)
assert result == 0, os.strerror(error)
assert alarms > before, 'a signal came meanwhile'
assert not any(os.pread(file, size.value, 0))
"#;

/// A file in a group with a limit of 64 KiB a second: zeroing it takes a quarter of an hour.
fn limited(device: &str) -> String {
    let group = "[group.slow]\nio.max = \"d wbps=64KiB\"\n";
    device.to_owned() + "fuse = \"DIR/vol.img\"\ngroup = \"slow\"\n" + group
}

/// Kills `command` on the file of each kind of device, while the limit still holds.
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
        fs::write(files.server.path("alarmed.py"), ALARMED).expect("a script");
        files.run(&format!("/usr/bin/python3 killed.py \"$1\" {command} \"$1\""), &file).ok();
        let groups = files.server.ask(&["group", "list"]).ok();
        assert!(groups.contains("wbps=65536"), "the limit is still there: {groups}");
        // The request has ended: the next one is served at once.
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

/// Linux reports only the first signal to the server.
#[test]
fn even_one_that_a_handled_signal_came_to_before() {
    is_killed("/usr/bin/python3 alarmed.py truncate");
    is_killed("/usr/bin/python3 alarmed.py fallocate");
}

#[test]
fn signals_that_are_handled_end_nothing() {
    if !has_fuse() || !requires("/usr/bin/python3") {
        return;
    }
    let group = "[group.slow]\nio.max = \"d wbps=16MiB\"\n";
    let stack = stack::ram("16MiB") + "fuse = \"DIR/vol.img\"\ngroup = \"slow\"\n" + group;
    let mut files = Files::start(&stack);
    let file = files.announced(false);
    fs::write(files.server.path("alarmed.py"), ALARMED).expect("a script");
    for how in ["truncate", "fallocate"] {
        files.run("dd if=/dev/urandom of=\"$1\" bs=4k count=1 conv=notrunc 2>dd.log", &file).ok();
        files.run(&format!("/usr/bin/python3 alarmed.py {how} \"$1\""), &file).ok();
    }
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// Two files of one device: the first is truncated slowly, and the second waits for that.
#[test]
fn a_process_that_waits_for_another_file_can_be_killed() {
    if !has_fuse() || !requires("/usr/bin/python3") {
        return;
    }
    let device = stack::ram("64MiB") + "fuse = \"DIR/vol.img\"\ngroup = \"slow\"\n";
    let other = "[export.other]\ndevice = \"d\"\nfuse = \"DIR/other.img\"\ngroup = \"fast\"\n";
    let groups = "[group.slow]\nio.max = \"d wbps=64KiB\"\n[group.fast]\n";
    let folder = new_folder();
    // Unmounts the second file if the server ends before it has done so.
    let _other = Mount(folder.path().join("other.img"));
    let mut files = Files::start_in(&folder, &(device + other + groups));
    let file = files.announced(false);
    fs::write(files.server.path("killed.py"), KILLED).expect("a script");
    let script = "while ! [ -s other.img ]; do sleep 0.05; done; truncate -s 0 \"$1\" & first=$!\n\
                  asleep() { case $(cut -d' ' -f3 /proc/$first/stat) in [SD]) return 0; esac; \
                             return 1; }\n\
                  times=0; while [ $times -lt 25 ]; do sleep 0.02; \
                  if asleep; then times=$((times + 1)); fi; done\n\
                  /usr/bin/python3 killed.py other.img truncate -s 100 other.img || exit 1\n\
                  kill -0 $first || exit 2\n\
                  kill -KILL $first; wait $first || test $? = 137";
    files.run(script, &file).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}
