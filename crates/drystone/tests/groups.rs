//! Throttle groups as users of the program have them: each command with good and bad input, against
//! a server that runs.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Server, bad, good, program};
use drystone_testkit::nbd::{Connection, Negotiation};
use serde_json::json;
use tempfile::TempDir;

const STACK: &str = r#"
[device.disk]
type = "ram"
size = "1MiB"
[device.log]
type = "ram"
size = "1MiB"
[group.tenants]
io.max = ["disk rbps=200MiB wiops=3k", "log wbps=5G"]
[group."tenants/a"]
[group."tenants/b"]
[export.disk]
device = "disk"
nbd = "unix:disk.sock"
group = "tenants/a"
[export.log]
device = "log"
nbd = "unix:log.sock"
clients = { "uid:UID" = "tenants/b" }
"#;

/// The state that no refused command changes.
const STATE: &[&[&str]] = &[&["group", "list"]];

/// The time that a server may take for what has happened to it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The stack, with this process's user among the clients.
fn stack() -> String {
    let uid = fs::metadata("/proc/self").unwrap().uid();
    STACK.replace("UID", &uid.to_string())
}

fn server() -> Server {
    Server::start(&stack(), STATE)
}

fn connect(server: &Server, socket: &str, export: &str) -> Connection<UnixStream> {
    let stream = UnixStream::connect(server.folder.path().join(socket)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Negotiation::new(stream).unwrap().go(export, &[]).unwrap()
}

/// Waits until `condition` holds.
fn await_that(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in time");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn groups_are_made_limited_shown_and_removed() {
    let server = server();
    let list = "\
GROUP      MEMBERS  IO.MAX
/          0
tenants    0        disk rbps=209715200 wbps=max riops=max wiops=3000
                    log rbps=max wbps=5368709120 riops=max wiops=max
tenants/a  0
tenants/b  0
";
    assert_eq!(server.ok(&["group", "list"]), list);
    assert_eq!(server.ok(&["group", "create", "guests"]), "");
    assert_eq!(server.ok(&["group", "create", "guests/x"]), "");
    let set = ["group", "set", "guests/x", "disk rbps=2097152 wiops=120"];
    assert_eq!(server.ok(&set), "disk rbps=2097152 wbps=max riops=max wiops=120\n");
    let words = ["group", "set", "guests/x", "disk", "rbps=max", "riops=1"];
    assert_eq!(server.ok(&words), "disk rbps=max wbps=max riops=1 wiops=120\n");
    let max = json!({ "device": "disk", "rbps": null, "wbps": null, "riops": 1, "wiops": 120 });
    let groups = server.json(&["group", "list"])["groups"].take();
    assert_eq!(groups[2], json!({ "path": "guests/x", "members": 0, "io_max": [max] }));
    assert_eq!(groups[0]["path"], "/");
    let answer = server.json(&["group", "set", "guests/x", "disk riops=max wiops=max"]);
    let max = json!({ "device": "disk", "rbps": null, "wbps": null, "riops": null, "wiops": null });
    assert_eq!(answer, json!({ "path": "guests/x", "io_max": max }));
    assert!(server.ok(&["group", "list"]).contains("\nguests/x   0\n"), "no limit, no line");
    server.refuses(&["group", "remove", "guests"], 1, "`guests` has `guests/x` below it");
    assert_eq!(server.ok(&["group", "remove", "guests/x"]), "");
    assert_eq!(server.json(&["group", "remove", "guests"]), json!({ "path": "guests" }));
    assert_eq!(server.ok(&["group", "list"]), list);
}

#[test]
fn what_is_wrong_is_told_and_changes_nothing() {
    let server = server();
    let cases: [(&[&str], &str); 23] = [
        (&["create", "tenants"], "tenants"),
        (&["create", "x/y"], "`x`"),
        (&["create", "/"], "the root is always there"),
        (&["create", ""], "the root is always there"),
        (&["create", "/x"], "`/x` is not a path of groups"),
        (&["create", "a b"], "`a b` is not a path of groups: use names with `/` between them"),
        (&["create", "tenants/"], "`tenants/` is not a path"),
        (&["remove", "tenant/b"], "did you mean `tenants/b`?"),
        (&["remove", "/"], "the root is always there"),
        (&["remove", "tenants"], "`tenants` has `tenants/a` below it"),
        (&["remove", "tenants/a"], "`tenants/a` is the group of export `disk`"),
        (&["set", "/", "disk rbps=1"], "the root is always there and takes no limits"),
        (&["set", "tenant", "disk rbps=1"], "did you mean `tenants`?"),
        (&["set", "tenants", "dsik rbps=1"], "no device `dsik`: did you mean `disk`?"),
        (&["set", "tenants", "disk"], "`disk` is given no limit: add rbps="),
        (&["set", "tenants", "disk rbps=1 wbps=0"], "`wbps`: `0` would let nothing pass"),
        (&["set", "tenants", "disk rbps=1 rbsp=1"], "unknown key `rbsp`: did you mean `rbps`?"),
        (&["set", "tenants", "disk", "rbps"], "`rbps` has no `=`"),
        (&["set", "tenants", "disk rbps=1 rbps=2"], "`rbps` is given twice: give it once"),
        (&["set", "tenants", "disk wiops=18446744073709551616"], "is too large"),
        (&["stat", "tenants/c"], "did you mean `tenants/a`?"),
        (&["stat", "tenants/c", "--reset"], "did you mean `tenants/a`?"),
        (&["stat", "/", "--reset"], "the root counts what its devices do, which is never reset"),
    ];
    for (words, sentence) in cases {
        server.refuses(&[&["group"], words].concat(), 1, sentence);
    }
    server.refuses(&["group", "set", "tenants"], 2, "<LINE>");
    server.refuses(&["group", "mkdir", "x"], 2, "mkdir");
}

/// A wrong line is told of with the same words in a stack file and over the control socket.
#[test]
fn the_file_and_the_command_say_the_same() {
    let server = server();
    let lines = ["disk", "rbps=1", "disk rbps", "disk rbsp=1", "disk rbps=0", "disk wiops=-1"];
    for line in lines {
        let text = stack().replace("disk rbps=200MiB wiops=3k", line);
        fs::write(server.folder.path().join("bad.toml"), text).unwrap();
        let output = program(server.folder.path()).args(["check", "bad.toml", "--json"]).output();
        let found: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let found = &found["diagnostics"][0];
        let words = [&found["message"], &found["hint"]].map(|text| text.as_str().unwrap());
        server.refuses(&["group", "set", "tenants", line], 1, &words.join(": "));
    }
}

#[test]
fn a_stack_is_explained_with_its_groups() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), stack()).unwrap();
    let check = |words: &[&str]| good(words, program(folder.path()).args(words).output().unwrap());
    let tree = check(&["check", "s.toml"]);
    assert!(tree.contains("disk.sock, group tenants/a\n└── disk"), "{tree}");
    assert!(tree.contains("groups\n└── tenants  disk rbps=209715200 wbps=max"), "{tree}");
    assert!(tree.ends_with("    ├── a\n    └── b\n"), "{tree}");
    let found: serde_json::Value =
        serde_json::from_str(&check(&["check", "s.toml", "--json"])).unwrap();
    assert_eq!(found["groups"][1], json!({ "path": "tenants/a", "io_max": [] }));
    assert_eq!(found["groups"][0]["io_max"][1]["wbps"], 5_u64 << 30);
    assert_eq!(found["exports"][0]["group"], "tenants/a");
    assert_eq!(found["exports"][1]["clients"].as_object().unwrap().len(), 1);
    fs::write(folder.path().join("s.toml"), stack().replace("[group.tenants]", "")).unwrap();
    let words = ["check", "s.toml"];
    let output = program(folder.path()).args(words).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("group `tenants/a` has no parent `tenants`"), "{message}");
}

#[test]
fn clients_are_counted_and_keep_their_group() {
    let server = server();
    let members = |path: &str| {
        let groups = server.json(&["group", "list"])["groups"].take();
        let found = groups.as_array().unwrap().iter().find(|group| group["path"] == path);
        found.unwrap_or_else(|| panic!("no {path} in {groups}"))["members"].as_u64().unwrap()
    };
    let first = connect(&server, "disk.sock", "disk");
    let by_uid = connect(&server, "log.sock", "log");
    await_that("they are counted", || members("tenants/a") == 1 && members("tenants/b") == 1);
    assert_eq!((members("tenants"), members("/")), (0, 0), "a member of one group only");
    let refused = ["group", "remove", "tenants/b"];
    server.refuses(&refused, 1, "group `tenants/b` has a client of export `log`");
    drop((first, by_uid));
    await_that("they are gone", || members("tenants/a") == 0 && members("tenants/b") == 0);
    assert_eq!(server.ok(&refused), "");
    let again = connect(&server, "log.sock", "log");
    await_that("without its group it is in the export's", || members("/") == 1);
    bad(&refused, server.run(&refused), 1, "tenants/b");
    drop(again);
}

#[test]
fn ten_thousand_groups_are_served() {
    let group = |n: usize| format!("[group.\"tenants/g{n}\"]\nio.max = \"disk rbps={}k\"\n", n + 1);
    let text = stack() + &(0..10_000).map(group).collect::<String>();
    let server = Server::start(&text, STATE);
    let list = server.ok(&["group", "list"]);
    assert_eq!(list.lines().count(), 10_000 + 6);
    assert!(
        list.contains("tenants/g9999  0        disk rbps=10240000 wbps=max"),
        "{}",
        &list[..500]
    );
    assert_eq!(server.ok(&["group", "stat"]), "", "nothing was read or written");
    assert_eq!(server.ok(&["group", "remove", "tenants/g0"]), "");
    assert_eq!(server.ok(&["group", "create", "tenants/g0"]), "");
    assert_eq!(server.json(&["group", "list"])["groups"].as_array().unwrap().len(), 10_004);
}

/// A volume that comes later can be limited, and its limits go with it.
#[test]
fn limits_of_a_volume_come_and_go_with_it() {
    let server = server();
    server.refuses(&["group", "set", "tenants", "v rbps=1"], 1, "there is no device `v`");
    server.ok(&["create", "v", "--table", "0 8 zero"]);
    let line = "v rbps=1 wbps=max riops=max wiops=max\n";
    assert_eq!(server.ok(&["group", "set", "tenants/b", "v rbps=1"]), line);
    assert!(server.ok(&["group", "list"]).contains(line.trim()));
    server.ok(&["remove", "v"]);
    assert!(!server.ok(&["group", "list"]).contains(line.trim()));
    server.ok(&["create", "v", "--table", "0 8 zero"]);
    assert!(!server.ok(&["group", "list"]).contains(line.trim()), "it is another device");
}
