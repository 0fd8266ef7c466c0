//! `mq-deadline` on a served stack, driven from the command line.

#![forbid(unsafe_code)]

use std::thread;

use serde_json::Value;
use system_tests::{Server, python, requires, run, stack};

/// A file with one hardware queue, so that it gets `mq-deadline` by itself.
fn scheduled() -> String {
    stack::file("64MiB").replace("size =", "queue = { hw_queues = 1 }\nsize =")
}

fn shown(server: &Server, attribute: &str) -> String {
    let text = server.ask(&["show", "d", "--json"]).ok();
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let value = &report["attributes"][attribute];
    value.as_str().unwrap_or_else(|| panic!("{attribute}: {report}")).to_owned()
}

fn set(server: &Server, attribute: &str, value: &str) {
    server.ask(&["set", "d", &format!("{attribute}={value}")]).ok();
}

/// 16 jobs write and verify while the scheduler is switched twenty times.
#[test]
fn data_is_right_while_the_scheduler_is_switched() {
    if !requires("fio") {
        return;
    }
    let mut server = Server::start_with(&scheduled(), &["--threads", "4"]);
    assert_eq!(shown(&server, "queue/scheduler"), "none [mq-deadline]");
    let uri = format!("--uri={}", server.uri("vol"));
    let words = [
        "fio",
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--numjobs=16",
        "--size=4M",
        "--offset_increment=4M",
        "--iodepth=8",
        "--rw=randwrite",
        "--bsrange=512-16k",
        "--bs_unaligned=0",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--randseed=1",
        "--loops=2",
        "--group_reporting",
        "--output-format=json",
    ];
    let text = thread::scope(|scope| {
        let folder = server.dir().to_owned();
        let client = scope.spawn(move || run(&folder, &words).ok());
        for turn in 0..20 {
            set(&server, "queue/scheduler", ["none", "mq-deadline"][turn % 2]);
            if turn % 2 == 1 {
                set(&server, "queue/iosched/straight", ["0", "1"][turn / 2 % 2]);
            }
        }
        client.join().expect("fio ends")
    });
    let start = text.find('{').expect("JSON");
    let result: Value = serde_json::from_str(&text[start..]).expect("JSON");
    assert_eq!(result["jobs"][0]["error"], 0, "{result:#}");
    assert!(result["jobs"][0]["read"]["io_bytes"].as_u64() >= Some(64 << 20), "it did verify");
    assert_eq!(shown(&server, "queue/scheduler"), "none [mq-deadline]");
}

#[test]
fn tunables_are_set_and_bad_values_change_nothing() {
    let server = Server::start(&scheduled());
    let defaults = [
        ("read_expire", "500", "-1"),
        ("write_expire", "5000", "soon"),
        ("prio_aging_expire", "10000", "2147483648"),
        ("writes_starved", "2", "-3"),
        ("fifo_batch", "16", "1.5"),
        ("front_merges", "1", "2"),
        ("straight", "1", "yes"),
    ];
    for (name, default, bad) in defaults {
        let name = format!("queue/iosched/{name}");
        assert_eq!(shown(&server, &name), default, "{name}");
        let said = server.ask(&["set", "d", &format!("{name}={bad}")]).refused();
        assert!(said.contains(&name) && said.contains("permitted"), "{said}");
        assert_eq!(shown(&server, &name), default, "{name}");
    }
    set(&server, "queue/iosched/read_expire", "250");
    assert_eq!(shown(&server, "queue/iosched/read_expire"), "250");
    set(&server, "queue/scheduler", "none");
    let said = server.ask(&["set", "d", "queue/iosched/read_expire=1"]).refused();
    assert!(said.contains("queue/scheduler"), "{said}");
    let said = server.ask(&["set", "d", "queue/scheduler=cfq"]).refused();
    assert!(said.contains("mq-deadline"), "{said}");
}

/// Classes reach the scheduler from the exports: three on one device, all of them served.
#[test]
fn exports_have_priorities() {
    if !requires("nbdsh") {
        return;
    }
    let text = scheduled()
        + &stack::export("idle", "d", "io.prio.class = \"idle\"\n")
        + &stack::export("rt", "d", "io.prio.class = \"promote-to-rt\"\nprio_level = 2\n");
    let mut server = Server::start(&text);
    set(&server, "queue/iosched/straight", "0");
    for name in ["vol", "idle", "rt"] {
        let uri = server.uri(name);
        let script = "
            h.pwrite(b'p' * 65536, 4096)
            assert h.pread(65536, 4096) == b'p' * 65536
            h.flush()";
        python(server.dir(), &uri, script).ok();
    }
}
