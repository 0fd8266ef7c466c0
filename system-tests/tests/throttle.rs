//! Throttle groups with real clients: membership, effects of limits, and no remains of clients.
//!
//! The data is written first: a read of holes only moves no bytes, so no limit binds it. Rates are
//! checked from above only, by bytes: the bytes that a limit let pass in the client's measured
//! time. That bound holds however busy the machine is.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

use system_tests::client::{make_certificates, make_client_certificate};
use system_tests::server::PATIENCE;
use system_tests::{Server, new_folder, python, requires, run};
use tempfile::TempDir;

/// Python: reads a number of bytes in pieces, and checks that the limit bound them. The limit lets
/// the budget of a slice and one piece pass at once.
const READS: &str = "
        piece = 65536
        def reads(handle, count, until=None):
            left = [handle.aio_pread(nbd.Buffer(piece), n * piece) for n in range(count)]
            while left and not (until and until()):
                handle.poll(100 if until else -1)
                left = [c for c in left if not handle.aio_command_completed(c)]
            return (count - len(left)) * piece
        def bound(limit, seconds, pieces=1):
            return limit * (seconds + 0.2) + pieces * piece";

fn stack(export_keys: &str, groups: &str) -> String {
    let device = "[device.d]\ntype = \"ram\"\nsize = \"64MiB\"\n";
    let export = system_tests::stack::export("vol", "d", export_keys);
    format!("{device}{export}{groups}\n")
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").expect("this process").uid()
}

fn script(text: &str) -> String {
    READS.to_owned() + text
}

/// The group's `members` in `group list`; `None` if there is no such group.
fn members(server: &Server, path: &str) -> Option<u64> {
    let list = server.ask(&["group", "list", "--json"]).ok();
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let groups = list["groups"].as_array().expect("a list");
    groups.iter().find(|group| group["path"] == path)?["members"].as_u64()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_gets_what_its_group_may_and_no_more() {
    if !requires("nbdsh") {
        return;
    }
    let groups = "[group.slow]\nio.max = \"d rbps=1MiB wiops=max\"";
    let mut server = Server::start(&stack("group = \"slow\"", groups));
    let uri = server.uri("vol");
    let text = script(
        "
        h.pwrite(b'w' * 8 * 1048576, 0)
        start = time.monotonic()
        count = reads(h, 48)
        seconds = time.monotonic() - start
        assert count == 3 * 1048576
        assert count <= bound(1048576, seconds), (count, seconds)",
    );
    python(server.dir(), &uri, &text).ok();
    let stat = server.ask(&["group", "stat", "slow"]).ok();
    let expected = "d rbytes=3145728 wbytes=8388608 rios=48 ";
    assert!(stat.starts_with(expected) && stat.ends_with(" dbytes=0 dios=0\n"), "{stat}");
    assert_eq!(server.ask(&["group", "stat", "slow", "--reset"]).ok(), stat);
    assert_eq!(server.ask(&["group", "stat", "slow"]).ok(), "");
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// Two clients in groups below a limited group share its limit; a client outside does not.
#[test]
fn groups_below_one_another_share_its_limit() {
    if !requires("nbdsh") {
        return;
    }
    let folder = new_folder();
    let groups = "[group.all]\nio.max = \"d rbps=1MiB\"\n[group.\"all/a\"]\n[group.\"all/b\"]\n\
                  io.max = \"d rbps=1GiB\"\n";
    let device = "[device.d]\ntype = \"ram\"\nsize = \"64MiB\"\n";
    let export = |name: &str, group: &str| {
        let export = system_tests::stack::export(name, "d", &format!("group = \"{group}\""));
        export.replace("nbd.sock", &format!("{name}.sock"))
    };
    let exports = [export("vol", "all/a"), export("other", "all/b"), export("free", "/")].concat();
    let mut server = Server::start_in(&folder, &format!("{device}{exports}{groups}"), &[]);
    let uri = server.uri("vol");
    let text = script(
        "
        def to(name):
            handle = nbd.NBD()
            handle.set_uri_allow_local_file(True)
            handle.connect_uri(uri.replace('vol', name))
            return handle
        other, free = to('other'), to('free')
        free.pwrite(b'd' * 32 * 1048576, 0)
        start = time.monotonic()
        left = {}
        for handle in (h, other):
            left[handle] = [handle.aio_pread(nbd.Buffer(piece), n * piece) for n in range(24)]
        assert reads(free, 512) == 32 * 1048576, 'nothing binds it'
        while any(left.values()):
            for handle in left:
                handle.poll(5)
                left[handle] = [c for c in left[handle] if not handle.aio_command_completed(c)]
        seconds = time.monotonic() - start
        assert 3 * 1048576 <= bound(1048576, seconds, 2), seconds",
    );
    python(server.dir(), &uri, &text).ok();
    let stat = |path: &str| server.ask(&["group", "stat", path]).ok();
    assert!(stat("all/a").starts_with("d rbytes=1572864 wbytes=0 rios=24 "), "{}", stat("all/a"));
    assert!(stat("all").starts_with("d rbytes=3145728 wbytes=0 rios=48 "), "{}", stat("all"));
}

#[test]
fn a_limit_that_is_raised_lets_go_what_waits() {
    if !requires("nbdsh") {
        return;
    }
    let mut server =
        Server::start(&stack("group = \"slow\"", "[group.slow]\nio.max = \"d riops=1\""));
    let uri = server.uri("vol");
    let control = server.control();
    let program = system_tests::program().display();
    let text = script(&format!(
        "
        import subprocess
        left = [h.aio_pread(nbd.Buffer(piece), n * piece) for n in range(100)]
        say = ['{program}', 'group', 'set', 'slow', 'd', 'riops=max', '--control', '{control}']
        assert subprocess.run(say).returncode == 0
        while left:
            h.poll(-1)
            left = [c for c in left if not h.aio_command_completed(c)]"
    ));
    python(server.dir(), &uri, &text).ok();
}

#[test]
fn a_client_on_a_unix_socket_is_known_by_its_user() {
    if !requires("nbdsh") {
        return;
    }
    let keys = format!(
        "group = \"rest\"\nclients = {{ \"uid:{}\" = \"mine\", \"uid:{}\" = \"other\" }}",
        own_uid(),
        own_uid() + 1
    );
    let mut server = Server::start(&stack(&keys, "[group.rest]\n[group.mine]\n[group.other]"));
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pread(4096, 0)").ok();
    let stat = server.ask(&["group", "stat"]).ok();
    let line = "d rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0";
    assert_eq!(stat, format!("/: {line}\nmine: {line}\n"));
    eventually("the client is gone", || members(&server, "mine") == Some(0));
    server.ask(&["group", "remove", "mine"]).ok();
    python(server.dir(), &uri, "h.pread(8192, 0)").ok();
    let stat = server.ask(&["group", "stat", "rest"]).ok();
    assert_eq!(stat, "d rbytes=8192 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n");
    assert!(
        server.ask(&["group", "stat", "/"]).ok().starts_with("d rbytes=12288 wbytes=0 rios=2 ")
    );
    let refusal = server.ask(&["group", "remove", "rest"]).refused();
    assert!(refusal.contains("`rest` is the group of export `vol`"), "{refusal}");
}

#[test]
fn a_client_with_a_certificate_is_known_by_its_name() {
    if !requires("certtool") || !requires("nbdsh") {
        return;
    }
    let folder: Arc<TempDir> = new_folder();
    make_certificates(folder.path());
    make_client_certificate(folder.path(), "alice", "cn = alice");
    make_client_certificate(folder.path(), "job", "cn = nobody\ndns_name = job.example");
    make_client_certificate(folder.path(), "bob", "cn = bob");
    let tls =
        system_tests::stack::TLS_REQUIRED.replace(" }", ", client_ca = \"DIR/pki/ca-cert.pem\" }");
    let keys = format!(
        "{tls}\nclients = \
         {{ \"tls:alice\" = \"a\", \"tls:job.example\" = \"j\", \"uid:{}\" = \"u\" }}",
        own_uid()
    );
    let text = stack(&keys, "[group.a]\n[group.j]\n[group.u]");
    let mut server = Server::start_in(&folder, &text, &[]);
    let uri = server.uri("vol");
    for (certificate, group) in [("alice", "a"), ("job", "j"), ("bob", "u")] {
        let uri = format!("{uri}&tls-certificates={}", server.path(certificate));
        python(server.dir(), &uri, "h.pread(4096, 0)").ok();
        let stat = server.ask(&["group", "stat", "--reset"]).ok();
        let stats: Vec<&str> = stat.lines().filter(|line| !line.starts_with('/')).collect();
        let line = format!("{group}: d rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0");
        assert_eq!(stats, [line], "{certificate}");
    }
    // A client without a certificate gets no connection: the authority is required.
    let uri = format!("{uri}&tls-certificates={}", server.path("pki"));
    python(server.dir(), &uri, "h.pread(4096, 0)").refused();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    if !requires("nbdsh") {
        return;
    }
    let keys = format!("clients = {{ \"uid:{}\" = \"mine\" }}", own_uid());
    let groups = "[group.mine]\nio.max = \"d rbps=1MiB\"";
    let mut server = Server::start(&stack(&keys, groups));
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'd' * 1048576, 0)").ok();
    server.ask(&["group", "set", "mine", "d wbps=1KiB"]).ok();
    let killed = |call: &str| {
        let text = script(&format!(
            "
        child = os.fork()
        if child == 0:
            mine = connect()
            for n in range(16):
                mine.{call}
            reads(mine, 1, lambda: True)
            os.kill(os.getpid(), 9)
        _, status = os.waitpid(child, 0)
        assert status == 9, status"
        ));
        python(server.dir(), &uri, &text).ok();
    };
    killed("aio_pread(nbd.Buffer(piece), n * piece)");
    eventually("its reads have ended", || members(&server, "mine") == Some(0));
    // Its writes would have waited for a quarter of an hour.
    killed("aio_pwrite(nbd.Buffer(piece), n * piece)");
    eventually("the group is free", || server.ask(&["group", "remove", "mine"]).succeeded);
    assert_eq!(members(&server, "mine"), None);
    assert_eq!(members(&server, "/"), Some(0));
    let in_flight = server.ask(&["list", "--json"]).ok();
    assert!(in_flight.contains("\"in_flight\":0"), "{in_flight}");
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// A server that is told to stop does not wait for I/O that a limit would delay for an hour.
#[test]
fn a_stop_lifts_all_limits() {
    if !requires("nbdsh") {
        return;
    }
    let mut server =
        Server::start(&stack("group = \"slow\"", "[group.slow]\nio.max = \"d wiops=1\""));
    let uri = server.uri("vol");
    let text = script(&format!(
        "
        left = [h.aio_pwrite(nbd.Buffer(piece), n * piece) for n in range(100)]
        reads(h, 1)
        os.kill({}, 15)
        while left:
            h.poll(-1)
            left = [c for c in left if not h.aio_command_completed(c)]",
        server.pid()
    ));
    python(server.dir(), &uri, &text).ok();
    assert_eq!(server.wait().code(), Some(0), "{}", server.messages());
}

/// A limit of the group, or of the group above it, changes every hundredth of a second: small, huge
/// or none.
#[test]
fn data_is_whole_while_limits_change_all_the_time() {
    if !requires("fio") {
        return;
    }
    let groups = "[group.all]\n[group.\"all/a\"]";
    let mut server = Server::start(&stack("group = \"all/a\"", groups));
    let (uri, over) = (format!("--uri={}", server.uri("vol")), AtomicBool::new(false));
    let control = server.control();
    let (text, changes) = std::thread::scope(|scope| {
        let changes = scope.spawn(|| change_limits(&control, &over));
        let fio = [
            "fio",
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=4k-256k",
            "--numjobs=4",
            "--size=4M",
            "--offset_increment=16M",
            "--iodepth=8",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--randseed=1",
            "--group_reporting",
            "--output-format=json",
        ];
        let outcome = run(server.dir(), &fio);
        over.store(true, SeqCst);
        (outcome.ok(), changes.join().expect("all changes were made"))
    });
    let start = text.find('{').expect("JSON");
    let result: serde_json::Value = serde_json::from_str(&text[start..]).expect("JSON");
    let job = &result["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    for (kind, operation) in ["write", "read"].into_iter().zip(["it wrote", "it did verify"]) {
        assert!(job[kind]["io_bytes"].as_u64() >= Some(16 << 20), "{operation}: {job:#}");
    }
    assert!(changes > 10, "only {changes} changes");
    eventually("the clients are gone", || members(&server, "all/a") == Some(0));
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// Changes limits through one connection until it is `over`, and then lifts them. Returns the
/// number of changes.
fn change_limits(control: &str, over: &AtomicBool) -> usize {
    let mut socket = BufReader::new(UnixStream::connect(control).expect("a server"));
    let limits = ["rbps=max wbps=max", "riops=40 wiops=max", "wbps=300K", "riops=max wbps=1G"];
    let more =
        ["wiops=60", "rbps=18446744073709551615", "wbps=max rbps=1M", "wiops=18446744073709551615"];
    let mut set = |path: &str, limits: &str| {
        let request = serde_json::json!({
            "command": "group-set", "arguments": { "path": path, "line": format!("d {limits}") }
        });
        socket.get_mut().write_all(format!("{request}\n").as_bytes()).expect("it listens");
        let mut answer = String::new();
        socket.read_line(&mut answer).expect("it answers");
        assert!(answer.contains("\"result\""), "{answer}");
    };
    let mut changes = 0;
    while !over.load(SeqCst) {
        let path = ["all", "all/a"][changes / 3 % 2];
        set(path, [limits, more][changes % 2][changes / 2 % 4]);
        changes += 1;
        sleep(Duration::from_millis(10));
    }
    ["all", "all/a"].iter().for_each(|path| set(path, "rbps=max wbps=max riops=max wiops=max"));
    changes
}

/// Writes that wait for a limit leave the connection's window of reads alone. Far fewer writes have
/// ended when the read is answered than if it waited for a place among them: 8 of 40, or 72 of 200.
#[test]
fn a_read_overtakes_writes_that_wait_for_a_limit() {
    if !requires("nbdsh") {
        return;
    }
    let read_behind = |limit: &str, count: u32, length: u32, most: u32| {
        let group = format!("[group.slow]\nio.max = \"d {limit}\"");
        let mut server = Server::start(&stack("group = \"slow\"", &group));
        let uri = server.uri("vol");
        let text = format!(
            "
        data = nbd.Buffer.from_bytearray(bytearray(b'w' * {length}))
        writes = [h.aio_pwrite(data, n * {length}) for n in range({count})]
        h.pread(4096, 60 * 1048576)
        done = sum(h.aio_command_completed(c) for c in writes)
        assert done <= {most}, done"
        );
        python(server.dir(), &uri, &text).ok();
        assert!(server.sigterm().success(), "{}", server.messages());
    };
    read_behind("wbps=256KiB", 40, 1 << 20, 7);
    read_behind("wiops=2", 200, 4096, 71);
}
