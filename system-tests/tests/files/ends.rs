//! Places of files, events that end them, and their remains.

use super::*;

/// A file device behind `DIR/PATH` and a loop device of it.
pub fn looped(path: &str) -> String {
    stack::file("16MiB") + &format!("fuse = \"DIR/{path}\"\nfuse_loop = true\n")
}

/// An attachment of a loop device to its file: after a detach other tests get its name.
struct Attached(String, Option<String>);

impl Attached {
    fn now(device: &str) -> Attached {
        let folder = Path::new("/sys/block").join(device.rsplit('/').next().expect("a name"));
        let attached = folder.join("loop/backing_file").exists();
        let number = fs::read_to_string(folder.join("diskseq")).ok();
        Attached(device.to_owned(), number.filter(|_| attached))
    }

    fn is_still(&self) -> bool {
        self.1.is_some() && Attached::now(&self.0).1 == self.1
    }
}

/// Loop devices whose file is below `dir`, or in no folder at all: their names, each with a number
/// that no other attachment has.
pub fn attachments(dir: &str) -> Vec<String> {
    let entries = fs::read_dir("/sys/block").expect("sysfs").flatten();
    let found = entries.filter_map(|entry| {
        let name = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let name = name.trim_end();
        let is_found = name == "/" || !dir.is_empty() && name.starts_with(dir);
        let number = fs::read_to_string(entry.path().join("diskseq")).ok()?;
        is_found.then(|| format!("{} ({})", entry.path().display(), number.trim()))
    });
    found.collect()
}

/// Waits until the server has printed this.
pub fn wait_for(files: &Files, what: &str) {
    for _ in 0..LOOKS {
        if files.server.messages().contains(what) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("it never said {what:?}\n{}", files.server.messages());
}

/// A file system on a loop device, on `mnt` in the folder until this is dropped.
fn file_system(files: &Files, device: &str) -> Mount {
    let mnt = files.server.dir().join("mnt");
    let _ = fs::create_dir(&mnt);
    let mount = Mount(mnt);
    files.run("mkfs.ext4 -q \"$1\" && mount \"$1\" mnt", device).ok();
    mount
}

/// Each spelling of a path works: on growth, at a stop, and in the next server.
#[test]
fn a_path_may_have_detours_and_links() {
    if !has_loop() {
        return;
    }
    let paths = ["dir/../rel.img", "folder/../rel.img", "link", "vol (deleted)"];
    for path in paths {
        let folder = new_folder();
        shell(folder.path(), "mkdir -p dir && ln -s dir folder && ln -s dir/real.img link", &[])
            .ok();
        let _mount = Mount(folder.path().join(path));
        let mut files = Files::start_in(&folder, &looped(path));
        let first = files.announced(true);
        let attached = Attached::now(&first);
        files.server.ask(&["set", "d", "size=24MiB"]).ok();
        let grown = "for n in $(seq 100); do [ $(blockdev --getsize64 \"$1\") = 25165824 ] && \
            exit; sleep 0.1; done; exit 1";
        files.run(grown, &first).ok();
        files.server.signal("KILL");
        files.server.wait();
        let mut files = Files::start_in(&folder, &looped(path));
        let second = Attached::now(&files.announced(true));
        wait_for(&files, "was left by a server that is gone: detached");
        assert!(second.is_still() && !attached.is_still(), "{path}");
        assert!(files.server.sigterm().success(), "{path}: {}", files.server.messages());
        assert!(!second.is_still(), "{path}");
        let list = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
        assert!(!list.contains(folder.path().to_str().expect("UTF-8")), "{path}: {list}");
    }
}

/// A loop device is detached with its server, although its file was unmounted by hand.
#[test]
fn a_file_that_was_unmounted_by_somebody_else_leaves_nothing() {
    if !has_loop() {
        return;
    }
    let mut files = Files::start(&looped("vol.img"));
    let attached = Attached::now(&files.announced(true));
    files.run("umount -l vol.img", "").ok();
    assert!(attached.is_still());
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
    assert!(!attached.is_still());

    let mut files = Files::start(&ram(""));
    let open = fs::File::open(files.announced(false)).expect("the file opens");
    files.run("umount -l vol.img", "").ok();
    files.server.signal("TERM");
    wait_for(&files, "and is still open: waiting");
    drop(open);
    assert!(files.server.wait().success(), "{}", files.server.messages());
}

/// A second signal detaches all loop devices, not only the one that the stop waits for.
#[test]
fn a_second_signal_leaves_no_loop_device() {
    if !has_loop() || !requires("mkfs.ext4") {
        return;
    }
    let folder = new_folder();
    fs::create_dir(folder.path().join("vols")).expect("a folder");
    let keys = "fuse = \"DIR/vols\"\nfuse_loop = true\n";
    let text = stack::ram("16MiB")
        + keys
        + "[device.e]\ntype = \"ram\"\nsize = \"16MiB\"\n"
        + &stack::export("other", "e", keys);
    let mut files = Files::start_in(&folder, &text);
    let _vols = Mount(folder.path().join("vols"));
    let loops = |files: &Files| -> Vec<String> {
        let lines = files.server.said().iter().filter(|line| line.starts_with("/dev/loop"));
        lines.cloned().collect()
    };
    while loops(&files).len() < 2 {
        files.server.listen(PATIENCE);
    }
    let devices = loops(&files);
    let attached: Vec<Attached> = devices.iter().map(|device| Attached::now(device)).collect();
    let mount = file_system(&files, &devices[0]);
    files.server.signal("TERM");
    wait_for(&files, "is in use: waiting");
    assert!(attached[0].is_still() && !attached[1].is_still(), "it does not wait for the other");
    files.server.signal("TERM");
    assert_eq!(files.server.wait().code(), Some(143));
    drop(mount);
    let mut looks = 0..100;
    while attached.iter().any(Attached::is_still) {
        assert!(looks.next().is_some(), "a loop device is left");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A stop waits for a file system on the loop device, and its last writes are kept.
#[test]
fn a_stop_waits_for_a_mounted_file_system() {
    if !has_loop() || !requires("mkfs.ext4") {
        return;
    }
    let folder = new_folder();
    let mut files = Files::start_in(&folder, &looped("vol.img"));
    let device = files.announced(true);
    let dio = format!("/sys/block/{}/loop/dio", &device["/dev/".len()..]);
    assert_eq!(fs::read_to_string(dio).expect("a loop device").trim(), "1", "direct I/O");
    let attached = Attached::now(&device);
    let mount = file_system(&files, &device);
    files.server.signal("TERM");
    wait_for(&files, &format!("{device} is in use: waiting"));
    files.run("head -c 3M /dev/urandom >mnt/late && md5sum mnt/late >sums && umount mnt", "").ok();
    drop(mount);
    assert!(files.server.wait().success(), "{}", files.server.messages());
    assert!(!attached.is_still() && !folder.path().join("vol.img").exists());
    let mut files = Files::start_in(&folder, &looped("vol.img"));
    let device = files.announced(true);
    let kept = "e2fsck -fn \"$1\" >check.log 2>&1 && mount \"$1\" mnt && md5sum -c --quiet sums; \
        umount mnt";
    files.run(kept, &device).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// A refusal names the server in the way, although that does not answer.
#[test]
fn a_path_that_another_server_has_is_refused() {
    if !has_fuse() {
        return;
    }
    let mut files = Files::start(&ram(""));
    files.announced(false);
    let second = || {
        let text = ram("").replace("nbd.sock", "n2.sock");
        Server::spawn_in(&files.server.folder(), &text, &[]).refusal()
    };
    let told = second();
    assert!(told.contains("by a server that has export `vol` there"), "{told}");
    files.server.signal("STOP");
    let told = second();
    files.server.signal("CONT");
    assert!(told.contains("vol.img does not answer: continue its server"), "{told}");
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}

/// A mount would hide the contents of a folder, the server's own sockets among them.
#[test]
fn a_folder_with_something_in_it_is_not_mounted_over() {
    if !has_fuse() {
        return;
    }
    let mut server = Server::spawn_in(&new_folder(), &ram("").replace("DIR/vol.img", "DIR"), &[]);
    let told = server.refusal();
    assert!(told.contains("is a folder with something in it, which would be hidden"), "{told}");
    assert!(!is_mounted(server.dir()));
}

/// A server without the right to mount prints one sentence, and leaves nothing.
#[test]
fn a_mount_that_is_not_permitted_leaves_nothing() {
    if !has_fuse() || !requires("setpriv") || !demand(exists_as_root(), "this test is not root") {
        return;
    }
    let prefix = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
    let mut server = Server::spawn_in(&new_folder(), &ram(""), &prefix);
    let told = server.refusal();
    assert!(told.contains("mount on \"") && told.contains("vol.img"), "{told}");
    for left in ["vol.img", "nbd.sock"] {
        assert!(!Path::new(&server.path(left)).exists(), "{left}");
    }
}
