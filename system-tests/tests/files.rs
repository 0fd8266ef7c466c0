//! Devices as files, by FUSE: with real clients, loop devices and the file systems of Linux.
//!
//! A client of a file cannot stop waiting for its server, so every test has a watchdog that kills
//! the server: then the kernel answers instead.

#![forbid(unsafe_code)]

#[path = "files/ends.rs"]
mod ends;
#[path = "files/interrupts.rs"]
mod interrupts;
#[path = "files/mounts.rs"]
mod mounts;
#[path = "files/starts.rs"]
mod starts;
#[path = "files/truncate.rs"]
mod truncate;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use system_tests::client::{Mount, demand};
use system_tests::files::{EXERCISE, Files, has_fuse, has_loop, is_mounted};
use system_tests::server::{LOOKS, PATIENCE};
use system_tests::{Server, new_folder, python, requires, shell, stack};
use tempfile::TempDir;

fn ram(keys: &str) -> String {
    stack::ram("64MiB") + "fuse = \"DIR/vol.img\"\n" + keys
}

/// An array of four files behind the file, on a loop device.
fn array(keys: &str) -> String {
    stack::array("raid5", 4, "160MiB", keys) + "fuse = \"DIR/vol.img\"\nfuse_loop = true\n"
}

#[test]
fn a_file_is_as_large_as_its_device_and_holds_what_is_written() {
    if !has_fuse() || !requires("fio") {
        return;
    }
    let mut files = Files::start(&ram(""));
    let file = files.announced(false);
    assert_eq!(files.run("stat -c '%s %a' \"$1\"", &file).ok(), format!("{} 600\n", 64 << 20));
    let fio = "for direct in 0 1; do for engine in psync libaio io_uring; do fio --name=t \
               --filename=\"$1\" --ioengine=$engine --direct=$direct --rw=randrw --size=64M \
               --io_size=48M --bsrange=4k-256k --iodepth=16 --numjobs=1 --verify=crc32c \
               --output=fio.log; done; done";
    files.run(fio, &file).ok();
    // The data of two writers of parts of blocks.
    let script = r#"
import os, sys, threading
path = sys.argv[1]
def write(at, byte):
    f = os.open(path, os.O_RDWR)
    for n in range(300):
        os.pwrite(f, byte * 700, at + n * 1400)
    os.fsync(f)
threads = [threading.Thread(target=write, args=a) for a in [(0, b'a'), (700, b'b')]]
[t.start() for t in threads]; [t.join() for t in threads]
f = os.open(path, os.O_RDWR)
assert os.pread(f, 420000, 0) == (b'a' * 700 + b'b' * 700) * 300
size = os.fstat(f).st_size
assert os.pread(f, 100, size) == b''
assert os.pwrite(f, b'e' * 10, size - 4) == 4
try:
    os.pwrite(f, b'x', size); raise SystemExit('written past the end')
except OSError as e:
    assert e.errno == 28, e
os.ftruncate(f, 0)
assert os.fstat(f).st_size == size, 'a device keeps its size'
"#;
    fs::write(files.server.path("parts.py"), script).expect("a script");
    files.run("/usr/bin/python3 parts.py \"$1\"", &file).ok();
    let holes = "fallocate -p -o 1M -l 1M \"$1\"; fallocate -z -o 4M -l 64K \"$1\"; \
                 cmp -n 1M -i 1M:0 \"$1\" /dev/zero; cmp -n 64K -i 4M:0 \"$1\" /dev/zero; \
                 dd if=/dev/urandom of=\"$1\" bs=4k count=1 conv=notrunc,fsync 2>dd.log; \
                 dd if=\"$1\" of=/dev/null bs=1M iflag=direct 2>>dd.log";
    files.run(holes, &file).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
    assert!(!Path::new(&file).exists(), "what was made is removed");
}

/// Holes are found if the device knows them; both front ends show the same; the file grows with its
/// device.
#[test]
fn a_file_shows_holes_and_growth() {
    if !has_fuse() || !requires("nbdsh") {
        return;
    }
    let text = stack::file("16MiB") + "fuse = \"DIR/vol.img\"\n";
    let mut files = Files::start(&text);
    let file = files.announced(false);
    let script = r#"
import os, sys
f = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(f, b'd' * 65536, 1 << 20); os.fsync(f)
assert os.lseek(f, 0, os.SEEK_DATA) == 1 << 20
assert os.lseek(f, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 65536
"#;
    fs::write(files.server.path("holes.py"), script).expect("a script");
    files.run("/usr/bin/python3 holes.py \"$1\"", &file).ok();
    let uri = files.server.uri("vol");
    python(files.server.dir(), &uri, "assert h.pread(65536, 1 << 20) == b'd' * 65536").ok();
    files.server.ask(&["set", "d", "size=32MiB"]).ok();
    let grown = "for n in $(seq 100); do [ $(stat -c %s \"$1\") = 33554432 ] && exit; sleep 0.1; \
        done; exit 1";
    files.run(grown, &file).ok();
    files
        .run("dd if=/dev/zero of=\"$1\" bs=1M seek=31 count=1 conv=notrunc,fsync 2>&1", &file)
        .ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// A file and an NBD client of the same device write different bytes of one block, and lose none.
#[test]
fn a_file_and_an_nbd_client_share_a_block() {
    if !has_fuse() || !requires("nbdsh") {
        return;
    }
    let text = stack::file("16MiB") + "fuse = \"DIR/vol.img\"\n";
    let mut files = Files::start(&text);
    let file = files.announced(false);
    let script = r#"
import nbd, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
child = os.fork()
h = nbd.NBD()
h.connect_uri(sys.argv[2])
for n in range(300):
    byte = bytes([n % 250 + 1])
    if child:
        h.pwrite(byte, 7)
        assert h.pread(1, 7) == byte, n
    else:
        assert os.pwrite(f, byte, 9) == 1
        assert h.pread(1, 9) == byte, n
if child:
    assert os.waitpid(child, 0)[1] == 0, "the file's writer"
    last = bytes([299 % 250 + 1])
    assert h.pread(4, 7) == last + bytes(1) + last + bytes(1)
"#;
    fs::write(files.server.path("share.py"), script).expect("a script");
    let uri = files.server.uri("vol");
    let line = format!("/usr/bin/python3 share.py \"$1\" '{uri}'");
    files.run(&line, &file).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// A loop device follows the size of its file, under a mounted file system.
#[test]
fn a_loop_device_grows_with_its_device() {
    if !has_loop() || !requires("mkfs.ext4") {
        return;
    }
    let folder = new_folder();
    let mnt = folder.path().join("mnt");
    fs::create_dir(&mnt).expect("a folder");
    let _mount = Mount(mnt);
    let text = stack::file("16MiB") + "fuse = \"DIR/vol.img\"\nfuse_loop = true\n";
    let mut files = Files::start_in(&folder, &text);
    let device = files.announced(true);
    files.run("mkfs.ext4 -q \"$1\" && mount \"$1\" mnt && echo kept >mnt/file", &device).ok();
    let size = |files: &Files| files.run("blockdev --getsize64 \"$1\"", &device).ok();
    assert_eq!(size(&files), format!("{}\n", 16 << 20));
    files.server.ask(&["set", "d", "size=48MiB"]).ok();
    let grown = "for n in $(seq 100); do [ $(blockdev --getsize64 \"$1\") = 50331648 ] && exit; \
        sleep 0.1; done; exit 1";
    files.run(grown, &device).ok();
    // An online resize would need CAP_SYS_RESOURCE.
    let fill = "umount mnt && e2fsck -fp \"$1\" >check.log && resize2fs \"$1\" 2>&1 && mount \
        \"$1\" mnt && head -c 24M /dev/urandom >mnt/more && sync -f mnt && [ $(cat mnt/file) = \
        kept ] && umount mnt && e2fsck -fn \"$1\" >check.log 2>&1";
    files.run(fill, &device).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

#[test]
fn a_folder_has_a_file_for_each_export_and_others_stay_out() {
    if !has_fuse() {
        return;
    }
    let folder = new_folder();
    let path = folder.path().join("vols");
    fs::create_dir(&path).expect("a folder");
    let text = stack::ram("8MiB")
        .replace("[export.\"vol\"]", "[export.\"vol\"]\nfuse = \"DIR/vols\"")
        + "[device.e]\ntype = \"ram\"\nsize = \"4MiB\"\n"
        + &stack::export("other", "e", "fuse = \"DIR/vols\"\nread_only = true");
    let mut files = Files::start_in(&folder, &text);
    let _ = files.server.uri("other");
    let listed = files.run("cd \"$1\" && stat -c '%n %s %a' *", path.to_str().expect("UTF-8")).ok();
    assert_eq!(listed, format!("other {} 400\nvol {} 600\n", 4 << 20, 8 << 20));
    let refused = files.run("printf x 1<>\"$1/other\"", path.to_str().expect("UTF-8")).refused();
    assert!(refused.contains("Read-only"), "{refused}");
    if exists_as_root() {
        let line = "chmod 755 . && ! setpriv --reuid=65534 --clear-groups ls \"$1\" 2>&1";
        let told = files.run(line, path.to_str().expect("UTF-8")).ok();
        assert!(told.contains("ermission denied"), "{told}");
    }
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
    assert!(path.exists() && !is_mounted(&path));
}

fn exists_as_root() -> bool {
    // /proc/self belongs to the user of the tests.
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// The kernel judges other users by mode, owner and group of the file.
#[test]
fn mode_and_group_say_who_may_open_the_file() {
    if !has_fuse() || !exists_as_root() {
        return;
    }
    let keys =
        "fuse_allow_other = true\nfuse_mode = \"0640\"\nfuse_uid = 65533\nfuse_gid = 65534\n";
    let mut files = Files::start(&ram(keys));
    let file = files.announced(false);
    let listed = files.run("chmod 755 . && stat -c '%a %u %g' \"$1\"", &file).ok();
    assert_eq!(listed, "640 65533 65534\n");
    let read = "head -c 1 \"$1\" >/dev/null";
    let write = "printf x 1<>\"$1\"";
    for (user, group, line, may) in [
        (65533, 65532, read, true),
        (65533, 65532, write, true),
        (65532, 65534, read, true),
        (65532, 65534, write, false),
        (65532, 65532, read, false),
    ] {
        let line = format!(
            "setpriv --reuid={user} --regid={group} --clear-groups sh -c '{line}' sh \"$1\""
        );
        let ran = files.run(&line, &file);
        match may {
            true => drop(ran.ok()),
            false => assert!(ran.refused().contains("ermission denied"), "{user}:{group} {line}"),
        }
    }
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// A stop waits for processes with the file open; a second signal does not.
#[test]
fn a_stop_waits_for_who_has_the_file_open() {
    if !has_fuse() {
        return;
    }
    for hurry in [false, true] {
        let mut files = Files::start(&ram(""));
        let file = PathBuf::from(files.announced(false));
        let open = fs::File::open(&file).expect("the file opens");
        files.server.signal("TERM");
        for _ in 0..LOOKS {
            if files.server.messages().contains("is open: waiting") {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        assert!(files.server.is_running() && is_mounted(&file), "{}", files.server.messages());
        if hurry {
            files.server.signal("TERM");
            assert_eq!(files.server.wait().code(), Some(143));
        } else {
            drop(open);
            assert!(files.server.wait().success(), "{}", files.server.messages());
        }
        assert!(!is_mounted(&file));
    }
}

/// A process with the file open may wait for a limit that lasts for hours, or for a suspended
/// volume. A stop ends that wait before it waits for the process.
#[test]
fn a_stop_lets_go_what_the_files_users_wait_for() {
    if !has_fuse() {
        return;
    }
    let stack = "[device.r]\ntype = \"ram\"\nsize = \"100GiB\"\n\
        [device.d]\ntable = \"0 209715200 linear r 0\"\n\
        [group.g]\nio.max = [\"d wbps=10MiB\"]\n\
        [export.vol]\ndevice = \"d\"\ngroup = \"g\"\nnbd = \"unix:vol.sock\"\nfuse = \"vol.img\"\n";
    for suspended in [false, true] {
        let mut files = Files::start(stack);
        let file = PathBuf::from(files.announced(false));
        let mut script = "echo begun; : >\"$1\"";
        if suspended {
            files.server.ask(&["suspend", "d"]).ok();
            script = "echo begun; dd if=\"$1\" bs=4k count=1 iflag=direct";
        }
        let mut user = Command::new("sh");
        user.args(["-c", script, "sh"]).arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut user = user.spawn().expect("a shell");
        let begun = user.stdout.as_mut().expect("piped").read(&mut [0; 6]).expect("a line");
        thread::sleep(Duration::from_millis(300));
        assert!(begun > 0 && user.try_wait().expect("a child").is_none(), "it waits");
        let status = files.server.sigterm();
        assert!(status.success(), "{}", files.server.messages());
        assert_eq!(user.wait().expect("a child").success(), !suspended);
        assert!(!is_mounted(&file));
    }
}

#[test]
fn what_cannot_be_mounted_is_refused_in_a_sentence() {
    if !has_fuse() {
        return;
    }
    let full = |path: &str| stack::ram("8MiB") + &format!("fuse = {path:?}\n");
    for (path, sentence) in [
        ("/nonexistent/vol.img", "/nonexistent/vol.img cannot be made: its folder does not exist"),
        ("/dev/null", "/dev/null is not an empty file"),
        ("/proc/self/nothing", "nothing: No such file"),
    ] {
        let mut server = Server::spawn_in(&new_folder(), &full(path), &[]);
        let told = server.refusal();
        assert!(told.contains(sentence), "{path}: {told}");
        assert!(!Path::new(&server.path("nbd.sock")).exists(), "no socket is left");
    }
}

/// The server is killed while a file system on its array is written. The next one finds the dead
/// mount and the loop device, and the file system holds the synced data.
#[test]
fn a_file_system_survives_a_killed_server() {
    let tools = ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "xfs_repair"];
    if !has_loop() || !tools.iter().all(|tool| requires(tool)) {
        return;
    }
    survives_a_killed_server("mkfs.ext4 -q -E nodiscard", "e2fsck -fp \"$1\" || [ $? -le 1 ]");
    // A mount replays the log; without that there is nothing to repair.
    survives_a_killed_server(
        "mkfs.xfs -q -K",
        "mount \"$1\" mnt && umount mnt && xfs_repair -n \"$1\"",
    );
    survives_a_killed_server("mkfs.btrfs -q -K", "btrfs check \"$1\"");
}

/// Writes one file after the other, and keeps the checksum of each that was synced; another process
/// writes all the time.
const SYNCED: &str = r#"
dd if=/dev/zero of=mnt/load bs=64k count=4000 conv=fdatasync 2>dd.log &
n=0
while n=$((n + 1)) && head -c 100K /dev/urandom >"mnt/$1-$n" && sync "mnt/$1-$n"; do
    (cd mnt && md5sum "$1-$n") >>sums
done 2>synced.log
wait
"#;

/// Data that was synced under load is there after kill -9, a restart and a check of the file
/// system.
fn survives_a_killed_server(make: &str, check: &str) {
    let folder = new_folder();
    let mnt = folder.path().join("mnt");
    fs::create_dir(&mnt).expect("a folder");
    let _mount = Mount(mnt);
    let mut files = Files::start_in(&folder, &array("consistency_policy = \"bitmap\""));
    let mut device = files.announced(true);
    files.run(&format!("{make} \"$1\""), &device).ok();
    let sums = folder.path().join("sums");
    for round in ["first", "second"] {
        files.run("mount \"$1\" mnt", &device).ok();
        let path = folder.path().to_owned();
        let load = thread::spawn(move || shell(&path, SYNCED, &[round]));
        while !fs::read_to_string(&sums).unwrap_or_default().contains(&format!("{round}-10\n")) {
            assert!(!load.is_finished(), "{make}: the load has ended");
            thread::sleep(Duration::from_millis(20));
        }
        files.server.signal("KILL");
        files.server.wait();
        let _ = load.join();
        shell(folder.path(), "umount mnt || umount -l mnt", &[]).ok();
        files = Files::start_in(&folder, &array("consistency_policy = \"bitmap\""));
        device = files.announced(true);
        files.run(&format!("{{ {check}; }} >check.log 2>&1"), &device).ok();
        let compared = "mount \"$1\" mnt && cd mnt && md5sum -c --quiet ../sums && rm -f load && \
            cd .. && umount mnt";
        files.run(compared, &device).ok();
    }
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// ext4, xfs and btrfs on an array, through the file and a loop device, while a member fails, is
/// removed and added again.
#[test]
fn file_systems_work_on_an_array() {
    let tools = ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "fs_mark", "xfs_repair"];
    if !has_loop() || !tools.iter().all(|tool| requires(tool)) {
        return;
    }
    for (make, check) in [
        ("mkfs.ext4 -q", "e2fsck -fn"),
        ("mkfs.xfs -q", "xfs_repair -n"),
        ("mkfs.btrfs -q", "btrfs check"),
    ] {
        let folder = new_folder();
        let mnt = folder.path().join("mnt");
        fs::create_dir(&mnt).expect("a folder");
        let _mount = Mount(mnt);
        let mut files = Files::start_in(&folder, &array("consistency_policy = \"bitmap\""));
        let device = files.announced(true);
        files.run(&format!("{make} \"$1\" && mount \"$1\" mnt"), &device).ok();
        fs::write(files.server.path("exercise.py"), EXERCISE).expect("a script");
        let md = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            files.server.ask(&[&["md"], &words[..]].concat()).ok();
        };
        thread::scope(|scope| {
            // Until the member is back; the rest while it is being rebuilt.
            let mark = fs_mark(8, "-s 65536 -n 40");
            let work = format!(
                "{mark} && until [ -e added ]; do {mark} || exit 1; done && /usr/bin/python3 \
                 exercise.py mnt/x 1 && cp -r /usr/share/perl5 mnt/tree && sync -f mnt && diff -r \
                 /usr/share/perl5 mnt/tree"
            );
            let path = folder.path();
            let load = scope.spawn(move || shell(path, &work, &[]).ok());
            thread::sleep(Duration::from_millis(400));
            md("fail array m1");
            md("remove array m1");
            thread::sleep(Duration::from_millis(400));
            md("add array m1");
            assert!(!load.is_finished(), "{make}: the member went and came back under load");
            fs::write(folder.path().join("added"), "").expect("a file");
            load.join().unwrap_or_else(|_| panic!("{make}: the load"));
        });
        md("wait array");
        let again =
            "umount mnt && mount \"$1\" mnt && diff -r /usr/share/perl5 mnt/tree && umount mnt";
        files.run(&format!("{again} && {check} \"$1\" >check.log 2>&1"), &device).ok();
        md("check array");
        md("wait array");
        let told = files.server.ask(&["md", "detail", "array", "--json"]).ok();
        assert!(
            told.contains("\"mismatch_cnt\":0") || told.contains("\"mismatch_cnt\": 0"),
            "{told}"
        );
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
    }
}

/// A command line of fs_mark on `mnt`: each file is synced before it is closed, and each thread has
/// a folder of its own. In one folder two threads might choose the same names: each makes them from
/// the microsecond of its start.
fn fs_mark(threads: usize, options: &str) -> String {
    let folders: String = (1..=threads).map(|n| format!(" -d mnt/m/{n}")).collect();
    let make = format!("mkdir -p mnt/m && seq -f mnt/m/%g {threads} | xargs mkdir -p");
    format!("{make} && fs_mark{folders} -t {threads} -S 1 {options} >fs_mark.log")
}

/// A cgroup with little memory, which goes when it is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// A cgroup of version 1 or 2, as the machine has them; `None`, after a SKIPPED line, where
    /// neither can be made.
    fn with_memory(bytes: u64) -> Option<Cgroup> {
        let name = format!("drystone-test-{}", std::process::id());
        let roots =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let made = roots.into_iter().find_map(|(root, limit)| {
            let group = Cgroup(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        });
        let _ = demand(made.is_some(), "no cgroup with a limit of memory can be made");
        made
    }

    fn procs(&self) -> String {
        self.0.join("cgroup.procs").display().to_string()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// `PF_MEMALLOC_NOIO` and `PF_LOCAL_THROTTLE` of the kernel, which `PR_SET_IO_FLUSHER` sets.
const IO_FLUSHER: u64 = 0x0018_0000;

/// A server that backs a loop device gets its memory without a write-back to that device, where the
/// kernel permits that.
#[test]
fn who_backs_a_loop_device_does_not_wait_for_it() {
    if !has_loop() {
        return;
    }
    let mut files = Files::start(&ram("fuse_loop = true\n"));
    files.announced(true);
    let (is_flusher, said) =
        (files.server.task_flags() & IO_FLUSHER == IO_FLUSHER, files.server.messages());
    assert_eq!(
        said.contains("PR_SET_IO_FLUSHER was refused (needs CAP_SYS_RESOURCE)"),
        !is_flusher,
        "{said}"
    );
    let status =
        fs::read_to_string(format!("/proc/{}/status", files.server.pid())).expect("it runs");
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line");
    assert!(!locked.trim().starts_with("0 "), "its memory stays: {locked}");
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// The I/O of a loop device so far.
fn done_by(device: &str) -> String {
    let name = device.rsplit('/').next().expect("a name");
    fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap_or_default()
}

/// Server and file system share 512 MiB, which a few thousand dirty pages soon exhaust: nothing
/// stalls for more than 5 s.
#[test]
fn nothing_stands_still_when_memory_is_short() {
    if !has_loop() || !requires("fs_mark") || !requires("mkfs.ext4") {
        return;
    }
    let folder = new_folder();
    let mnt = folder.path().join("mnt");
    fs::create_dir(&mnt).expect("a folder");
    let Some(group) = Cgroup::with_memory(512 << 20) else { return };
    let _mount = Mount(mnt);
    let procs = group.procs();
    let enter = ["sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &procs];
    let text = array("").replace("160MiB", "500MiB");
    let server = Server::start_in(&folder, &text, &enter);
    let mut files = Files::watched(server);
    let device = files.announced(true);
    files.run("mkfs.ext4 -q -E nodiscard \"$1\" && mount \"$1\" mnt", &device).ok();
    // The load is long enough to sync more than twice the memory.
    let load = format!("echo $$ >\"$1\" && {}", fs_mark(64, "-s 4194304 -n 5"));
    let (path, procs) = (folder.path().to_owned(), group.procs());
    let load = thread::spawn(move || shell(&path, &load, &[&procs]).ok());
    let (mut last, mut still, mut longest) = (String::new(), 0, 0);
    while !load.is_finished() {
        thread::sleep(Duration::from_millis(100));
        let now = done_by(&device);
        still = if now == last { still + 1 } else { 0 };
        (last, longest) = (now, longest.max(still));
        assert!(still < 50, "nothing has moved for 5 s");
    }
    load.join().expect("fs_mark ends");
    println!("longest pause: {longest} tenths of a second");
    files.run("umount mnt && e2fsck -fn \"$1\" >check.log 2>&1", &device).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// The command lines of the mails, except the path.
#[test]
fn the_mails_lines_run_on_a_file_and_its_loop_device() {
    if !has_loop() || !requires("fio") || !requires("dd") {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/fio/on-a-file.sh");
    let mut files = Files::start(&ram("fuse_loop = true\n"));
    for loops in [false, true] {
        let path = files.announced(loops);
        let line = format!("RUNTIME=1 {} \"$1\" 2>&1", script.display());
        let text = files.run(&line, &path).ok();
        assert!(text.contains("67108864 bytes"), "dd read all of {path}: {text}");
        let runs = text.matches("err= 0").count();
        assert!(runs == 3 && text.contains("IOPS="), "{runs} fio runs on {path}: {text}");
    }
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}
