//! Remains of a start that fails: on a machine without FUSE, and after a stop during the start.

use super::ends::{attachments, looped, wait_for};
use super::*;

/// A command prefix for a machine whose `/dev` holds only what `more` makes in `/mnt`.
fn with_dev(more: &str) -> [String; 7] {
    let hide = format!(
        "mount -t tmpfs -o nodev t /mnt && touch /mnt/null /mnt/zero /mnt/urandom && \
         for name in null zero urandom; do mount --bind /dev/$name /mnt/$name || exit 1; done && \
         mkdir /mnt/shm && {more} && mount --rbind /mnt /dev && exec \"$0\" \"$@\""
    );
    ["unshare", "-m", "--propagation", "private", "sh", "-c", &hide].map(str::to_owned)
}

/// Kinds of machines without FUSE, each with the expected message.
const WITHOUT_FUSE: [(&str, &str); 2] = [
    ("true", "there is no /dev/fuse on this machine"),
    // On a file system for no devices.
    ("mknod -m 666 /mnt/fuse c 10 229", "/dev/fuse may not be opened by this user"),
];

/// A machine without FUSE serves the other exports.
#[test]
fn without_fuse_other_exports_go_on() {
    if !has_fuse() || !requires("nbdinfo") || !demand(exists_as_root(), "this test is not root") {
        return;
    }
    for (more, why) in WITHOUT_FUSE {
        let prefix = with_dev(more);
        let mut server =
            Server::start_in(&new_folder(), &ram(""), &prefix.each_ref().map(String::as_str));
        let uri = server.uri("vol");
        shell(server.dir(), "nbdinfo --size \"$1\"", &[&uri]).ok();
        let told = server.messages();
        assert!(told.contains(why) && told.contains("NBD exports are served"), "{told}");
        assert!(!Path::new(&server.path("vol.img")).exists(), "{why}");
        assert!(server.sigterm().success(), "{}", server.messages());
    }
}

/// A start with no other export is refused.
#[test]
fn without_fuse_a_file_alone_is_refused() {
    if !has_fuse() || !demand(exists_as_root(), "this test is not root") {
        return;
    }
    let text = ram("").replace("nbd = [\"unix:DIR/nbd.sock\"]\n", "");
    for (more, why) in WITHOUT_FUSE {
        let prefix = with_dev(more);
        let prefix = prefix.each_ref().map(String::as_str);
        let mut server = Server::spawn_in(&new_folder(), &text, &prefix);
        let told = server.refusal();
        assert!(told.contains(why) && !told.contains("go on"), "{told}");
        assert!(!Path::new(&server.path("vol.img")).exists(), "{why}");
    }
}

/// Checks that no socket, mount or loop device of a server is left.
fn nothing_is_left(server: &Server, before: &[String]) {
    let dir = server.dir().to_str().expect("UTF-8");
    let list = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    assert!(!list.contains(dir), "{list}\n{}", server.messages());
    for name in ["vol.img", "nbd.sock", &server.control()] {
        assert!(!server.dir().join(name).exists(), "{name}\n{}", server.messages());
    }
    // Loop devices of other tests may be there for a while, and one in use is detached a little
    // later.
    let mut looks = 0..LOOKS;
    let left = || attachments(dir).into_iter().find(|found| !before.contains(found));
    while let Some(found) = left() {
        assert!(looks.next().is_some(), "{found} is left\n{}", server.messages());
        thread::sleep(Duration::from_millis(100));
    }
}

/// A signal comes at any moment of a start: before it is caught, between a socket, a mount and a
/// loop device.
#[test]
fn a_signal_during_a_start_leaves_nothing() {
    if !has_loop() {
        return;
    }
    use std::os::unix::process::ExitStatusExt;
    let before = attachments("");
    for round in 0..20 {
        let mut server = Server::spawn_in(&new_folder(), &looped("vol.img"), &[]);
        // A start takes about 100 ms.
        thread::sleep(Duration::from_millis(8 * round));
        server.signal("TERM");
        let status = server.wait();
        let is_ended = status.success() || status.signal() == Some(15);
        assert!(is_ended, "{status}\n{}", server.messages());
        nothing_is_left(&server, &before);
    }
}

/// A server whose `losetup` has made a loop device, but reports it only after this many seconds.
fn with_slow_losetup(seconds: u32, prefix: &[&str]) -> Server {
    let folder = new_folder();
    let script = format!(
        "#!/bin/sh\nbin=$(dirname \"$0\")\nPATH=/usr/sbin:/sbin:/usr/bin:/bin\n\
         [ \"$1\" = --find ] || exec losetup \"$@\"\n\
         made=$(losetup \"$@\") || exit\ntouch \"$bin/begun\"\nsleep {seconds}\necho \"$made\"\n"
    );
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    fs::write(bin.join("losetup"), script).expect("a script");
    shell(&bin, "chmod +x losetup", &[]).ok();
    let path = std::env::var("PATH").expect("a path");
    let path = format!("PATH={}:{path}", bin.display());
    let server = Server::spawn_in(&folder, &looped("vol.img"), &[prefix, &["env", &path]].concat());
    for _ in 0..LOOKS {
        if bin.join("begun").exists() {
            return server;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("there never was a loop device\n{}", server.messages());
}

/// A stop in the middle of a start ends in order; nothing is announced.
#[test]
fn a_start_ends_in_order_when_it_is_told_to() {
    if !has_loop() {
        return;
    }
    let before = attachments("");
    let mut server = with_slow_losetup(1, &[]);
    assert!(server.sigterm().success(), "{}", server.messages());
    server.listen(Duration::from_secs(1));
    assert_eq!(server.said(), [""; 0], "it is not announced");
    nothing_is_left(&server, &before);
}

/// A Ctrl-C goes to all processes of a terminal, also to the server's helpers.
#[test]
fn a_signal_for_the_whole_group_leaves_nothing() {
    if !has_loop() || !requires("setsid") {
        return;
    }
    let before = attachments("");
    let mut server = with_slow_losetup(1, &["setsid"]);
    shell(server.dir(), "kill -INT -- -\"$1\"", &[&server.pid().to_string()]).ok();
    assert!(server.wait().success(), "{}", server.messages());
    // The one refusal that machines without the capability see.
    let messages = server.messages();
    let mut others = messages.lines().filter(|line| !line.contains("PR_SET_IO_FLUSHER"));
    assert!(others.all(|line| !line.contains("refused")), "{messages}");
    nothing_is_left(&server, &before);
}

/// A second signal ends it at once: it waits for what is being made, but not for long.
#[test]
fn a_second_signal_during_a_start_leaves_nothing() {
    if !has_loop() {
        return;
    }
    for (seconds, may_end_in_order) in [(1, true), (6, false)] {
        let before = attachments("");
        let mut server = with_slow_losetup(seconds, &[]);
        server.signal("TERM");
        thread::sleep(Duration::from_millis(400));
        server.signal("TERM");
        let status = server.wait();
        let is_hurried = status.code() == Some(143);
        assert!(is_hurried || may_end_in_order && status.success(), "{status}");
        nothing_is_left(&server, &before);
    }
}

/// What a device holds is read for a hint. A server that is killed meanwhile ends: the kernel waits
/// for the reads of a device that it closes, and it is the server that answers them.
#[test]
fn a_server_that_is_killed_while_its_device_is_read_ends() {
    if !has_loop() {
        return;
    }
    const SECTORS: u64 = (64 << 20) / 512;
    let stack = format!(
        "[device.d]\ntype = \"ram\"\nsize = \"64MiB\"\n[device.v]\ntable = \"0 {SECTORS} delay d \
         0 600000 d 0 0\"\n[export.vol]\ndevice = \"v\"\nfuse = \"DIR/vol.img\"\nfuse_loop = true\n"
    );
    let mut server = Server::spawn_in(&new_folder(), &stack, &[]);
    let dir = server.dir().to_str().expect("UTF-8").to_owned();
    let is_read = || {
        thread::sleep(Duration::from_millis(100));
        let told = server.ask(&["status", "v"]);
        told.succeeded && told.stdout.split(' ').nth(3) != Some("0")
    };
    assert!((0..LOOKS).any(|_| is_read()), "nobody reads the device\n{}", server.messages());
    let found = attachments(&dir);
    server.signal("KILL");
    assert!(!server.wait().success());
    let device = found.first().and_then(|found| found.split(' ').next()).expect("a loop device");
    let device = device.replace("/sys/block", "/dev");
    shell(server.dir(), "umount -l vol.img && losetup -d \"$1\"", &[&device]).ok();
}

/// A loop device whose file was unmounted lazily is not found by the next start, which says so.
#[test]
fn a_loop_device_without_a_path_is_told_of() {
    if !has_loop() {
        return;
    }
    let folder = new_folder();
    fs::create_dir(folder.path().join("vols")).expect("a folder");
    for path in ["vol.img", "vols"] {
        let mut files = Files::start_in(&folder, &looped(path));
        let device = files.announced(true);
        files.run("umount -l \"$1\"", path).ok();
        files.server.signal("KILL");
        files.server.wait();
        let mut files = Files::start_in(&folder, &looped(path));
        files.announced(true);
        wait_for(&files, &format!("remove the loop device with `losetup -d {device}`"));
        // As it says.
        files.run("losetup -d \"$1\"", &device).ok();
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
        let mut files = Files::start_in(&folder, &looped(path));
        files.announced(true);
        assert!(!files.server.messages().contains(&format!("losetup -d {device}")));
        assert!(files.server.sigterm().success(), "{}", files.server.messages());
    }
}

/// A line of the server's output stays one line, whatever characters a path has.
#[test]
fn a_path_with_a_line_end_stays_on_its_line() {
    if !has_fuse() {
        return;
    }
    let text = ram("").replace("DIR/vol.img", "DIR/vol\\n\\u001b.img");
    let mut server = Server::start_in(&new_folder(), &text, &[]);
    let path = server.path("vol\n\u{1b}.img");
    let _mount = Mount(PathBuf::from(&path));
    let shown = server.path("vol\\n\\u{1b}.img");
    for _ in 0..LOOKS {
        if server.said().contains(&shown) {
            break;
        }
        server.listen(Duration::from_millis(100));
    }
    assert!(server.said().contains(&shown), "{:?}", server.said());
    assert!(is_there(&path), "it is where it was asked for");
    let listed = server.ask(&["list"]).ok();
    assert!(listed.lines().any(|line| line.ends_with(&shown)), "{listed}");
    let mut second = Server::spawn_in(&server.folder(), &text.replace("nbd.sock", "n2.sock"), &[]);
    let told = second.refusal();
    let is_whole = |line: &str| line.contains("vol\\n") && line.contains("is served already");
    assert!(told.lines().any(is_whole), "{told}");
    assert!(server.sigterm().success(), "{}", server.messages());
}

fn is_there(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|found| found.len() == 64 << 20)
}
