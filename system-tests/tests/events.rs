//! Messages of a server on standard error while it serves.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use system_tests::server::PATIENCE;
use system_tests::{Server, python, requires, stack};

/// Waits until the server has written a line with all of these words, and gives it.
fn told(server: &Server, words: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let messages = server.messages();
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        if let Some(line) = messages.lines().find(has_all) {
            return line.to_owned();
        }
        assert!(Instant::now() < deadline, "nothing of {words:?} in\n{messages}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A line begins with its time: `2026-11-25T01:44:30Z drystone: `.
fn has_time(line: &str) -> bool {
    let shape: String =
        line.chars().take(20).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00Z" && line[20..].starts_with(" drystone: ")
}

/// A member is failed, the server killed, and started again without the member's file.
#[test]
fn what_becomes_of_an_array_is_told() {
    if !requires("nbdsh") {
        return;
    }
    let text = stack::array("raid6", 5, "16MiB", "chunk = \"64KiB\"\nrun = true\nforce = true");
    let mut server = Server::start(&text);
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'x' * 65536, 0)\nh.flush()").ok();
    server.ask(&["md", "fail", "array", "m1"]).ok();
    let line = told(
        &server,
        &["array `array`", "`m1`", "marked as failed by a command", "4 of 5 members are in sync"],
    );
    assert!(has_time(&line), "{line}");
    server.ask(&["set", "array", "md/sync_action=check"]).ok();
    told(&server, &["the check begins"]);
    assert!(has_time(&told(&server, &["the check has ended; it found no mismatch"])));
    server.signal("KILL");
    server.wait();
    let folder = server.folder();
    drop(server);
    let mut server = Server::start_in(&folder, &text.replace("\"m2\", ", ""), &[]);
    told(&server, &["it starts degraded: 3 of 5 members are in sync, and no more may fail"]);
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// Any number of failures gives one line at once, and the later lines count each.
#[test]
fn failures_that_clients_are_told_of_are_told_and_counted() {
    if !requires("nbdsh") {
        return;
    }
    let text = format!("[device.v]\ntable = \"0 8192 error\"\n{}", stack::export("vol", "v", ""));
    let mut server = Server::start(&text);
    let uri = server.uri("vol");
    let script = "
for n in range(1000):
    try:
        h.pread(4096, 4096 * n)
        assert False, 'it is read'
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error";
    python(server.dir(), &uri, script).ok();
    let line =
        told(&server, &["export `vol`: clients were told that a read of 4096 bytes at byte"]);
    assert!(has_time(&line), "{line}");
    assert!(server.sigterm().success(), "{}", server.messages());
    let messages = server.messages();
    let lines: Vec<&str> =
        messages.lines().filter(|line| line.contains("clients were told")).collect();
    assert!(lines.len() <= 10, "one line a failure\n{messages}");
    let more = |line: &&str| {
        let more = line.rsplit_once("(and ")?.1.strip_suffix(" more)")?;
        more.parse().ok()
    };
    let sum: u64 = lines.iter().map(|line| 1 + more(line).unwrap_or(0)).sum();
    assert_eq!(sum, 1000, "{messages}");
}

/// A member's file is cut to half its length during use. The member fails, and the others supply
/// its data.
#[test]
fn a_member_whose_file_is_cut_short_fails_and_nothing_is_lost() {
    if !requires("nbdsh") {
        return;
    }
    for (level, keys) in [
        ("raid5", ""),
        ("raid5", "consistency_policy = \"ppl\""),
        ("raid6", "consistency_policy = \"bitmap\""),
    ] {
        for reads_first in [true, false] {
            let text = stack::array(level, 4, "8MiB", &format!("chunk = \"64KiB\"\n{keys}"));
            let mut server = Server::start(&text);
            let uri = server.uri("vol");
            let script = format!(
                "
import random
size = h.get_size() // 4096 * 4096
data = bytearray(random.Random(7).randbytes(size))
for at in range(0, size, 1 << 20):
    h.pwrite(bytes(data[at:at + (1 << 20)]), at)
h.flush()
with open('{member}', 'r+b') as member:
    member.truncate(4 << 20)
def read_all():
    for at in range(0, size, 1 << 18):
        assert h.pread(min(1 << 18, size - at), at) == data[at:at + (1 << 18)], at
if {reads}:
    read_all()
at = size - (300 << 10)
data[at:at + (200 << 10)] = b'n' * (200 << 10)
h.pwrite(b'n' * (200 << 10), at)
h.flush()
read_all()",
                member = server.path("m1.img"),
                reads = if reads_first { "True" } else { "False" },
            );
            python(server.dir(), &uri, &script).ok();
            let line = told(&server, &["array `array`", "`m1` has failed", "3 of 4 members"]);
            assert!(has_time(&line), "{line}");
            let line = told(&server, &["device `m1`", "became shorter than the device"]);
            assert!(has_time(&line), "{line}");
            let shown = server.ask(&["show", "m1"]).ok();
            assert!(shown.contains("fault: its file became shorter"), "{shown}");
            assert!(server.ask(&["md", "status"]).ok().contains("[U_UU]"));
            let messages = server.messages();
            assert!(!messages.contains("clients were told"), "{messages}");
            server.sigterm();
        }
    }
}
