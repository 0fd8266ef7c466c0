//! System calls of data threads, as strace sees them. None may wait for a disk or a file system.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use system_tests::client::Mount;
use system_tests::server::{PATIENCE, denies_io_uring};
use system_tests::{Server, new_folder, python, requires, shell, stack};

/// The server remains the child process, and strace attaches from outside.
const TRACED: [&str; 7] = ["strace", "-D", "-q", "-f", "-y", "-o", "DIR/trace"];

/// The calls that a data thread may make, each with its reason. A descriptor must not be a file of
/// a file system ([`is_waiting`]).
const ALLOWED: &[(&[&str], &str)] = &[
    (&["io_uring_enter", "epoll_wait", "epoll_pwait", "epoll_pwait2"], "the wait for its ring"),
    (&["io_uring_register", "io_uring_setup"], "files and memory become known to a ring"),
    (&["epoll_ctl", "epoll_create1", "timerfd_settime"], "the plain ring"),
    (&["accept4", "recvfrom", "recvmsg", "sendto", "sendmsg"], "sockets that do not block"),
    (&["pipe2", "splice", "vmsplice"], "pages of long reads to a socket that does not block"),
    (&["poll", "ppoll"], "asks whether a socket has a reader, with no time to wait"),
    (
        &["getsockopt", "setsockopt", "getpeername", "shutdown", "fcntl"],
        "sockets, which do not wait",
    ),
    (&["read", "readv", "write", "writev"], "event descriptors, timers, /dev/fuse: none blocks"),
    (&["close"], "sockets and event descriptors; files go to a helper"),
    (&["futex"], "locks, which are held for moments; parking where a context has no ring"),
    (&["membarrier", "sched_yield"], "passing a gate"),
    (&["mmap", "munmap", "mprotect", "madvise", "mremap", "brk"], "memory"),
    (&["clone", "clone3", "rt_sigprocmask", "rt_sigreturn", "sigaltstack"], "a helper starts"),
    (
        &["prctl", "gettid", "getpid", "sched_getaffinity", "rseq", "set_robust_list"],
        "a thread starts",
    ),
    (&["sched_setaffinity"], "it stays on the core of its helper"),
    (&["clock_gettime", "getrandom", "exit", "restart_syscall"], "no file in it"),
    (
        &["openat", "statx", "fstat", "newfstatat"],
        "/sys alone: what FUSE of the kernel can do, once a mount; statx where it asks nobody",
    ),
];

/// Calls that name a path or a file, which must be of a file system in memory.
const ON_PATHS: [&str; 4] = ["openat", "statx", "fstat", "newfstatat"];

/// Tells whether a call with these arguments may wait for a file system. Such a call names a path
/// or descriptor other than /sys, /dev/fuse and objects without a path (sockets, event descriptors,
/// rings).
fn is_waiting(call: &str, arguments: &str) -> bool {
    // The length of a file as the kernel knows it, after writes.
    if call == "statx" && arguments.contains("AT_STATX_DONT_SYNC") {
        return false;
    }
    let on_path = arguments.split('"').nth(1).filter(|path| !path.is_empty());
    if ON_PATHS.contains(&call)
        && let Some(path) = on_path
    {
        return !path.starts_with("/sys/");
    }
    let number = arguments.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    let descriptor = arguments[number..].strip_prefix('<').filter(|_| number > 0);
    let path = descriptor.and_then(|rest| rest.split('>').next());
    path.is_some_and(|path| {
        path.starts_with('/') && !path.starts_with("/dev/fuse") && !path.starts_with("/sys/")
    })
}

/// The fault of a data thread's call, if it has one.
fn fault(call: &str, arguments: &str) -> Option<String> {
    // The ring's own calls name the ring first, and then the files that it registers.
    if call.starts_with("io_uring") {
        return None;
    }
    if !ALLOWED.iter().any(|(calls, _)| calls.contains(&call)) {
        return Some(format!("{call} is not in the list of allowed calls"));
    }
    is_waiting(call, arguments).then(|| format!("{call} on a file of a file system"))
}

/// The calls of data threads in a trace: name, arguments as far as they stand in the line.
fn calls(trace: &str) -> Vec<(&str, &str)> {
    let mut data = BTreeSet::new();
    let mut found = Vec::new();
    for line in trace.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        if rest.contains("PR_SET_NAME, \"data") {
            data.insert(thread);
        }
        if let (true, Some((call, arguments))) =
            (data.contains(thread), rest.trim().split_once('('))
            && call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            found.push((call, arguments));
        }
    }
    found
}

#[test]
fn the_reader_of_traces_sees_faults() {
    let trace = "1 lseek(3</a>, 0, SEEK_DATA) = 0\n\
                 2 prctl(PR_SET_NAME, \"data0\") = 0\n\
                 2 read(5<anon_inode:[eventfd]>, \"\", 8) = 8\n\
                 2 write(9</dev/fuse>, \"\", 8 <unfinished ...>\n\
                 2 <... write resumed>) = 8\n\
                 2 openat(AT_FDCWD</>, \"/sys/module/fuse\", 0) = 4</sys/module/fuse>\n\
                 2 lseek(3</a>, 0, SEEK_DATA) = 0\n\
                 2 openat(AT_FDCWD</>, \"/a\", 0) = 4\n\
                 2 statx(4</a>, \"\", AT_STATX_DONT_SYNC|AT_EMPTY_PATH, STATX_SIZE, {}) = 0\n\
                 2 statx(4</a>, \"\", AT_STATX_SYNC_AS_STAT, STATX_SIZE, {}) = 0\n\
                 2 close(4</a>) = 0\n";
    let faults: Vec<_> = calls(trace).iter().filter_map(|(c, a)| fault(c, a)).collect();
    assert_eq!(
        faults,
        [
            "lseek is not in the list of allowed calls",
            "openat on a file of a file system",
            "statx on a file of a file system",
            "close on a file of a file system"
        ]
    );
}

/// Every request that a client can make, and every change by commands meanwhile.
const CLIENT: &str = "
h = connect(meta=True)
h.pwrite(b'x' * 65536, 0)
h.pwrite(b'x' * 512, 1 << 20, nbd.CMD_FLAG_FUA)
assert len(h.pread(1 << 20, 0)) == 1 << 20
h.cache(65536, 0)
h.block_status(16 << 20, 0, lambda *answer: 0)
h.trim(65536, 65536)
h.zero(65536, 131072)
h.zero(65536, 196608, nbd.CMD_FLAG_NO_HOLE)
for block in range(20):
    h.pwrite(b'x' * 4096, block * 4096)
h.flush()
";

/// The same of a file of FUSE.
const FILE: &str = "/usr/bin/python3 - \"$1\" <<'END'
import os, sys
f = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(f, b'x' * 100, 5)
assert os.pread(f, 100, 5) == b'x' * 100
os.fsync(f)
assert os.lseek(f, 0, os.SEEK_DATA) == 0
os.lseek(f, 0, os.SEEK_HOLE)
os.close(f)
END";

fn served_and_traced(engine: &str) -> String {
    let folder = new_folder();
    let fuse = Path::new("/dev/fuse").exists();
    if !fuse {
        eprintln!("SKIPPED: there is no /dev/fuse, so no file of it is traced");
    }
    let mount = Mount(folder.path().join("vol.img"));
    let file = |name: &str, direct: &str| {
        format!(
            "[device.{name}]\ntype = \"file\"\npath = \"DIR/{name}.img\"\nsize = \"16MiB\"\n\
             engine = \"{engine}\"\ndirect = {direct}\n"
        )
    };
    let keys = if fuse { "fuse = \"DIR/vol.img\"\n" } else { "" };
    let text = file("a", "\"auto\"")
        + &file("b", "false")
        + "[device.v]\ntype = \"linear\"\nmembers = [\"a\"]\n"
        + &stack::export("vol", "v", keys);
    let mut server = Server::start_in(&folder, &text, &TRACED);
    let uri = server.uri("vol");
    python(server.dir(), &uri, CLIENT).ok();
    server.ask(&["set", "a", "size=17MiB"]).ok();
    server.ask(&["reload", "v", "--now", "--table", "0 32768 linear b 0"]).ok();
    python(server.dir(), &uri, CLIENT).ok();
    if fuse {
        shell(server.dir(), FILE, &[&server.path("vol.img")]).ok();
    }
    server.ask(&["list"]).ok();
    assert!(server.sigterm().success(), "{}", server.messages());
    drop(mount);
    ended(&server.path("trace"), server.pid())
}

/// The trace, once strace has seen the end of the process.
fn ended(path: &str, process: u32) -> String {
    let process = process.to_string();
    let begun = Instant::now();
    loop {
        let trace = fs::read_to_string(path).unwrap();
        // Numbers stand in a column.
        let is_end = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some(process.as_str()) && words.next() == Some("+++")
        };
        if trace.lines().any(is_end) {
            return trace;
        }
        assert!(begun.elapsed() < PATIENCE, "strace does not end");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn no_call_of_a_data_thread_waits_for_a_file_system() {
    if !requires("strace") || !requires("/usr/bin/python3") {
        return;
    }
    for engine in ["plain", "io_uring"] {
        if engine == "io_uring" && denies_io_uring() {
            continue;
        }
        let trace = served_and_traced(engine);
        let calls = calls(&trace);
        assert!(calls.len() > 20, "{engine}: hardly a call was traced");
        let mut faults = BTreeMap::new();
        for (call, arguments) in calls {
            if let Some(fault) = fault(call, arguments) {
                faults.entry(fault).or_insert(format!("{call}({arguments}"));
            }
        }
        assert!(faults.is_empty(), "{engine}: {faults:#?}");
        let kind = shell(new_folder().path(), "stat -f -c %T .", &[]).ok();
        let waits = kind.contains("ext2/ext3");
        let has_helper = trace.contains("PR_SET_NAME, \"drystone-write\"");
        assert_eq!(has_helper, waits && engine == "io_uring", "{engine}");
    }
}

/// io_uring dismantles a ring after its process has ended: the ring's files must not stay open
/// until then.
#[test]
fn files_are_free_when_the_server_has_ended() {
    if !requires("/usr/bin/python3") {
        return;
    }
    let folder = new_folder();
    for round in 0..5 {
        let mut server = Server::start_in(&folder, &stack::file("16MiB"), &[]);
        let uri = server.uri("vol");
        python(server.dir(), &uri, "h.pwrite(b'x' * 4096, 0)").ok();
        let inode = fs::metadata(server.path("disk.img")).unwrap().ino();
        let is_locked = || {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains(&format!(":{inode} ")))
        };
        assert!(is_locked(), "round {round}: while it is served");
        assert!(server.sigterm().success());
        assert!(!is_locked(), "round {round}");
    }
}
