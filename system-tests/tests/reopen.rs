//! A file is reopened while clients use it: `drystone reopen`.

#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use system_tests::client::{Mount, Outcome, demand};
use system_tests::server::PATIENCE;
use system_tests::{Server, new_folder, python, requires, run, stack};

const MIB: u64 = 1 << 20;

/// Writes blocks that contain their round until there is a file `stop`, reads them back, and
/// flushes. Meanwhile it tries to lock the image as another writer and as QEMU's readers do.
const LOAD: &str = "
import fcntl, threading
stop = lambda: os.path.exists('stop')
def locks():
    image = open('disk.img', 'r+b')
    while not stop():
        for kind, first in ((fcntl.F_WRLCK, 0), (fcntl.F_RDLCK, 100), (fcntl.F_WRLCK, 201)):
            lock = struct.pack('hhqqi4x', kind, 0, first, 1, 0)
            try:
                fcntl.fcntl(image, 37, lock)  # F_OFD_SETLK
            except OSError:
                continue
            assert False, 'the image was not locked'
failed = []
def watched(what):
    try:
        what()
    except BaseException as error:
        failed.append(error)
        raise
def load(number):
    mine, at, rounds = connect(), number * 1048576, 0
    while not stop() or rounds < 20:
        rounds += 1
        data = bytes([rounds % 251 + 1]) * 65536
        mine.pwrite(data, at)
        if rounds % 3 == 0:
            mine.flush()
        assert mine.pread(65536, at) == data, f'client {number} in round {rounds}'
work = [threading.Thread(target=watched, args=(locks,))]
work += [threading.Thread(target=watched, args=(lambda n=n: load(n),)) for n in range(3)]
[thread.start() for thread in work]
open('began', 'w').close()
[thread.join() for thread in work]
assert not failed, failed";

/// Ends the load when it is dropped, also if the test has failed.
struct Stop(PathBuf);

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "");
    }
}

fn read_by_qemu(folder: &Path, image: &str) -> Outcome {
    run(folder, &["qemu-io", "-r", "-f", "raw", "-c", "read 0 512", image])
}

/// The result of `ask` once `is_over`; repeats it for [`PATIENCE`] at most.
fn until(is_over: impl Fn(&Outcome) -> bool, ask: impl Fn() -> Outcome) -> Outcome {
    let end = Instant::now() + PATIENCE;
    loop {
        let done = ask();
        if is_over(&done) || Instant::now() > end {
            return done;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits for a condition, for [`PATIENCE`] at most.
fn until_true(is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it does not come to pass");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_notice_nothing_and_the_lock_is_held_all_the_while() {
    if !requires("nbdsh") || !requires("qemu-io") {
        return;
    }
    let mut server = Server::start(&stack::file("8MiB"));
    let uri = server.uri("vol");
    let folder = server.folder();
    std::thread::scope(|scope| {
        let stop = Stop(folder.path().join("stop"));
        let load = scope.spawn(|| python(folder.path(), &uri, LOAD));
        while !server.dir().join("began").exists() && !load.is_finished() {
            std::thread::yield_now();
        }
        for _ in 0..20 {
            // On a slow machine I/O on the file before last may not have ended.
            let is_over = |said: &Outcome| said.succeeded || !said.stderr.contains("has not ended");
            until(is_over, || server.ask(&["reopen", "d"])).ok();
            let image = server.path("disk.img");
            read_by_qemu(server.dir(), &image).refused();
        }
        drop(stop);
        load.join().unwrap().ok();
    });
    let shown = server.ask(&["show", "d"]).ok();
    assert!(!shown.contains("fault:") && !shown.contains("note:"), "{shown}");
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn a_file_that_was_replaced_is_taken_on_demand_only() {
    if !requires("nbdsh") || !requires("qemu-io") {
        return;
    }
    let mut server = Server::start(&stack::file("8MiB"));
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'a' * 4096, 0); h.flush()").ok();
    let (image, aside) = (server.dir().join("disk.img"), server.dir().join("aside.img"));
    let note = |server: &Server| {
        let shown = server.ask(&["show", "d"]).ok();
        shown.lines().find(|line| line.starts_with("note:")).map(str::to_owned)
    };
    assert_eq!(note(&server), None);
    fs::rename(&image, &aside).unwrap();
    let said = note(&server).expect("a note");
    assert!(said.contains("names another file now, or none"), "{said}");
    let said = server.ask(&["reopen", "d"]).refused();
    assert!(said.contains("disk.img") && said.contains("No such file"), "{said}");
    fs::write(&image, vec![b'b'; 4 << 20]).unwrap();
    assert!(note(&server).is_some());
    let said = server.ask(&["reopen", "d"]).refused();
    assert!(said.contains("was replaced") && said.contains("--replaced"), "{said}");
    let said = server.ask(&["reopen", "d", "--replaced"]).refused();
    assert!(said.contains("fewer than the 8388608 of the device"), "{said}");
    python(server.dir(), &uri, "assert h.pread(4096, 0) == b'a' * 4096").ok();
    OpenOptions::new().write(true).open(&image).unwrap().set_len(8 * MIB).unwrap();
    server.ask(&["reopen", "d", "--replaced"]).ok();
    assert_eq!(note(&server), None);
    python(server.dir(), &uri, "assert h.pread(4096, 0) == b'b' * 4096; h.pwrite(b'c' * 4096, 0)")
        .ok();
    assert_eq!(fs::read(&aside).unwrap()[..4096], [b'a'; 4096]);
    // The previous file is free once a helper thread has closed it; the new one is locked.
    until(|read| read.succeeded, || read_by_qemu(server.dir(), aside.to_str().unwrap())).ok();
    read_by_qemu(server.dir(), image.to_str().unwrap()).refused();
    assert!(server.sigterm().success(), "{}", server.messages());
    assert_eq!(fs::read(&image).unwrap()[..4096], [b'c'; 4096]);
}

/// The file belongs to another server's FUSE mount, where a flush can be made to fail.
#[test]
fn a_failed_flush_is_shown_until_the_file_is_reopened() {
    let has_fuse = demand(Path::new("/dev/fuse").exists(), "there is no /dev/fuse");
    if !has_fuse || !requires("nbdsh") {
        return;
    }
    let folder = new_folder();
    let _mount = Mount(folder.path().join("vol.img"));
    let below = "[device.r]\ntype = \"ram\"\nsize = \"8MiB\"\n\
                 [device.v]\ntable = \"0 16384 linear r 0\"\n"
        .to_owned()
        + &stack::export("below", "v", "fuse = \"DIR/vol.img\"");
    let mut host = Server::start_in(&folder, &below, &[]);
    let file = folder.path().join("vol.img");
    until_true(|| fs::metadata(&file).is_ok_and(|found| found.len() == 8 * MIB));
    let keys = format!("[device.d]\ntype = \"file\"\npath = {file:?}\ndirect = false\n");
    let mut server = Server::start(&(keys + &stack::export("vol", "d", "")));
    let uri = server.uri("vol");
    let shown = |server: &Server| server.ask(&["show", "d"]).ok();
    python(server.dir(), &uri, "h.pwrite(b'a' * 4096, 0); h.flush(); h.pwrite(b'b' * 4096, 4096)")
        .ok();
    assert!(!shown(&server).contains("fault:"), "{}", shown(&server));
    let table = |table: &str| _ = host.ask(&["reload", "v", "--now", "--table", table]).ok();
    table("0 16384 flakey r 0 0 1 1 error_writes");
    python(server.dir(), &uri, "refused(errno.EIO, h.flush)").ok();
    table("0 16384 linear r 0");
    // The next flush would succeed below, and must fail nevertheless.
    python(server.dir(), &uri, "refused(errno.EIO, h.flush)").ok();
    let said = shown(&server);
    let fault = said.lines().find(|line| line.starts_with("fault:")).expect("a fault");
    assert!(fault.starts_with("fault: a flush failed") && fault.contains("reopen"), "{fault}");
    server.ask(&["reopen", "d"]).ok();
    assert!(!shown(&server).contains("fault:"), "{}", shown(&server));
    python(server.dir(), &uri, "h.pwrite(b'c' * 4096, 4096); h.flush()").ok();
    assert!(server.sigterm().success(), "{}", server.messages());
    assert!(host.sigterm().success(), "{}", host.messages());
}

/// Below a volume, and as a member of an array that has failed it: `md add` takes the member back.
#[test]
fn a_file_below_others_is_reopened_after_it_was_cut() {
    if !requires("nbdsh") {
        return;
    }
    let text = "[device.below]\ntype = \"file\"\npath = \"DIR/below.img\"\nsize = \"8MiB\"\n\
                [device.v]\ntype = \"linear\"\nmembers = [\"below\"]\n"
        .to_owned()
        + &stack::export("volume", "v", "")
        + &stack::array("raid5", 3, "16MiB", "consistency_policy = \"bitmap\"\n");
    let mut server = Server::start(&text);
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'a' * 1048576, 0); h.flush()").ok();
    for name in ["below.img", "m1.img"] {
        let file = OpenOptions::new().write(true).open(server.path(name)).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length / 2).unwrap();
    }
    let failing = "
        refused(errno.EIO, h.pread, 4096, 6 * 1048576)";
    let volume = server.uri("volume");
    python(server.dir(), &volume, failing).ok();
    python(server.dir(), &uri, "h.pwrite(b'b' * 16777216, 0); h.flush()").ok();
    for (device, what) in [("v", "below"), ("array", "m1")] {
        let said = server.ask(&["reopen", device]).refused();
        assert!(said.contains("only files are opened again") && said.contains(what), "{said}");
    }
    for (device, name) in [("below", "below.img"), ("m1", "m1.img")] {
        assert!(server.ask(&["show", device]).ok().contains("`drystone reopen`"));
        let said = server.ask(&["reopen", device]).refused();
        assert!(said.contains("fewer than"), "{said}");
        let file = OpenOptions::new().write(true).open(server.path(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() * 2).unwrap();
        server.ask(&["reopen", device]).ok();
        assert!(!server.ask(&["show", device]).ok().contains("fault:"));
    }
    python(
        server.dir(),
        &volume,
        "h.pwrite(b'c' * 4096, 6 << 20); assert h.pread(4096, 6 << 20) == b'c' * 4096",
    )
    .ok();
    server.ask(&["md", "remove", "array", "m1"]).ok();
    server.ask(&["md", "add", "array", "m1"]).ok();
    server.ask(&["md", "wait", "array"]).ok();
    let shown = server.ask(&["show", "array"]).ok();
    assert!(
        shown.lines().any(|line| line.starts_with("md/degraded") && line.ends_with(" 0")),
        "{shown}"
    );
    python(server.dir(), &uri, "assert h.pread(16777216, 0) == b'b' * 16777216").ok();
    assert!(server.sigterm().success(), "{}", server.messages());
}
