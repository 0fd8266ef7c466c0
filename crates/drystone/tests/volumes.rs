//! Volumes as users of the program have them: each command with good and bad input, against a
//! server that runs.

mod common;

use std::fs;

use common::{Server, bad, good, program};
use tempfile::TempDir;

const STACK: &str = "
[device.a]
type = \"ram\"
size = \"1MiB\"
[device.b]
type = \"ram\"
size = \"1MiB\"
[device.f]
type = \"file\"
path = \"f.img\"
size = \"1MiB\"
[device.v]
table = \"0 1024 linear a 0\"
[export.v]
device = \"v\"
nbd = \"unix:v.sock\"
";

/// The state that no refused command changes.
const STATE: &[&[&str]] = &[&["info"], &["table"], &["table", "--inactive"]];

#[test]
fn volumes_are_made_shown_and_removed() {
    let server = Server::start(STACK, STATE);
    assert_eq!(server.ok(&["table"]), "v: 0 1024 linear a 0\n");
    assert_eq!(server.ok(&["table", "v"]), "0 1024 linear a 0\n");
    let words = ["create", "w", "--table", "0 8 zero", "--table", "8 8 striped 2 4 b 0 f 0"];
    assert_eq!(server.ok(&words), "");
    assert_eq!(server.ok(&["table", "w"]), "0 8 zero\n8 8 striped 2 4 b 0 f 0\n");
    assert_eq!(
        server.ok(&["status"]),
        "v: 0 1024 linear\nw: 0 8 zero\nw: 8 8 striped 2 b f 1 AA\n"
    );
    assert_eq!(server.ok(&["status", "v"]), "0 1024 linear\n");
    let of_w = "Name:              w\nState:             ACTIVE\nTables present:    LIVE\n\
                Open count:        0\nNumber of targets: 2\n";
    assert_eq!(server.ok(&["info", "w"]), of_w);
    let of_v = of_w.replace(" w\n", " v\n").replace(" 0\n", " 1\n").replace(" 2\n", " 1\n");
    assert_eq!(server.ok(&["info"]), format!("{of_v}\n{of_w}"));
    let list = server.ok(&["list"]);
    assert!(
        list.contains("w       table   8KiB") && list.contains("v       linear  512KiB"),
        "{list}"
    );
    let show = server.ok(&["show", "v"]);
    assert!(
        show.starts_with("v  linear  512KiB  0 1024 linear a 0\nmembers: a\nexports: v\n"),
        "{show}"
    );
    assert!(show.contains("dm/suspended") && !show.contains("nr_requests"), "{show}");
    assert!(server.ok(&["iostat"]).lines().any(|line| line.starts_with("w ")));
    assert_eq!(server.ok(&["remove", "w"]), "");
    assert!(!server.ok(&["list"]).contains("\nw "));
    assert!(!server.ok(&["iostat"]).lines().any(|line| line.starts_with("w ")));
    server.refuses(&["remove", "w"], 1, "error: there is no device `w`");
    server.refuses(&["remove", "v"], 1, "`v` is in use by export `v`");
    server.refuses(&["remove", "a"], 1, "`a` is a ram device: only volumes have tables");
    server.refuses(&["remove"], 2, "<NAME>");
}

#[test]
fn tables_come_from_files_and_the_standard_input() {
    let server = Server::start(STACK, STATE);
    let at = server.folder.path();
    fs::write(at.join("t"), "# two lines\n0 8 linear b 0\n8 8 error\n").unwrap();
    assert_eq!(server.ok(&["create", "w", "--table-file", "t", "--read-only"]), "");
    assert_eq!(server.ok(&["table", "w"]), "0 8 linear b 0\n8 8 error\n");
    assert!(server.ok(&["info", "w"]).contains("ACTIVE (READ-ONLY)\n"));
    let words = ["create", "x", "--table-file", "-"];
    assert_eq!(good(&words, server.feed(&words, "0 16 zero\n")), "");
    // The output of `table` is a table again.
    let words = ["reload", "x", "--table-file", "-", "--force"];
    assert_eq!(good(&words, server.feed(&words, &server.ok(&["table", "w"]))), "");
    assert_eq!(server.ok(&["table", "x", "--inactive"]), server.ok(&["table", "w"]));
    let many: String =
        (0..4096).map(|n| format!("{} 8 linear b {}\n", n * 8, n % 250 * 8)).collect();
    let words = ["create", "y", "--table-file", "-", "--force"];
    assert_eq!(good(&words, server.feed(&words, &many)), "");
    assert_eq!(server.ok(&["table", "y"]), many);
    bad(&words, server.feed(&words, &"#".repeat(2 << 20)), 1, "a server reads at most 524288");
    server.refuses(&["create", "z", "--table-file", "none"], 1, "cannot read the table from none");
    fs::write(at.join("long"), "# a comment\n".repeat(50_000)).unwrap();
    server.refuses(&["create", "z", "--table-file", "long"], 1, "a server reads at most 524288");
    server.refuses(&["create", "z", "--table-file", "."], 1, "directory");
    server.refuses(&["create", "z"], 2, "no table is given: add --table LINE");
    server.refuses(&["create", "z", "--table", "0 8 zero", "--notable"], 2, "cannot be used with");
    server.refuses(
        &["create", "z", "--table", "0 8 zero", "--table-file", "t"],
        2,
        "cannot be used",
    );
    server.refuses(&["reload", "x"], 2, "no table is given");
}

#[test]
fn tables_are_swapped() {
    let server = Server::start(STACK, STATE);
    server.ok(&["reload", "v", "--table", "0 2048 linear b 0"]);
    assert!(server.ok(&["info", "v"]).contains("Tables present:    LIVE & INACTIVE\n"));
    assert_eq!(server.ok(&["table", "v"]), "0 1024 linear a 0\n");
    server.ok(&["clear", "v"]);
    assert_eq!(server.ok(&["table", "v", "--inactive"]), "\n");
    server.ok(&["load", "v", "--table", "0 2048 linear b 0"]);
    assert_eq!(server.ok(&["resume", "v"]), "");
    assert_eq!(server.ok(&["table"]), "v: 0 2048 linear b 0\n");
    let now = ["reload", "v", "--now", "--timeout", "10s", "--table", "0 1024 linear a 0"];
    let changed = server.json(&now);
    assert_eq!((&changed["state"], &changed["targets"]), (&"ACTIVE".into(), &1.into()));
    server.ok(&["suspend", "v"]);
    assert!(server.ok(&["info", "v"]).contains("State:             SUSPENDED\n"));
    assert!(server.ok(&["show", "v"]).contains("dm/suspended                  ro  1\n"));
    server.ok(&["suspend", "v", "--noflush"]);
    server.ok(&["resume", "v"]);
    assert_eq!(server.json(&["info", "v"])["volumes"][0]["state"], "ACTIVE");
    server.ok(&["create", "w", "--notable"]);
    assert_eq!(server.ok(&["table"]), "v: 0 1024 linear a 0\nw: \n");
    assert!(server.ok(&["info", "w"]).contains("Tables present:    None\n"));
    server.refuses(&["resume", "w"], 1, "w: there is no table to resume with");
    for command in ["clear", "suspend", "resume"] {
        server.refuses(&[command, "x"], 1, "there is no device `x`");
        server.refuses(&[command, "b"], 1, "`b` is a ram device: only volumes have tables");
    }
    for command in ["table", "status", "info"] {
        server.refuses(&[command, "x"], 1, "there is no device `x`");
        server.refuses(&[command, "b"], 1, "`b` is a ram device: only volumes have tables");
    }
    server.refuses(&["suspend", "v", "--timeout", "soon"], 2, "is not a time");
    server.refuses(&["suspend", "v", "--timeout", "2h"], 1, "`timeout`");
    server.refuses(&["message", "v", "0", "@cancel", "x"], 1, "target `linear` at sector 0 of `v`");
    server.refuses(&["message", "v", "1024", "x"], 1, "`v` has no sector 1024");
    server.refuses(&["message", "v", "-1", "x"], 2, "-1");
    server.refuses(&["message", "v", "0"], 2, "<TEXT>");
}

#[test]
fn bad_tables_change_nothing() {
    let server = Server::start(STACK, STATE);
    server.ok(&["create", "w", "--table", "0 64 linear v 0", "--force"]);
    server.ok(&["reload", "w", "--table", "0 64 linear b 0"]);
    for (table, sentence) in [
        ("0 8 zero\n9 8 zero", "line 2 of the table: gap in the table"),
        ("0 8 zero\n7 8 zero", "line 2 of the table: overlap in the table"),
        ("0 2049 linear b 0", "`b` is too small: 2049 sectors from 0 are used, it has 2048"),
        ("0 10 striped 2 8 b 0 f 0", "do not divide into whole chunks"),
        ("0 8 snapshot b 0", "`snapshot` is not a target: use linear, striped, zero, error"),
        ("0 8 linear bb 0", "there is no device `bb`: did you mean `b`?"),
        ("0 8 linear v 0", "`v` stands on itself"),
        ("0 8 linear w 0", "a cycle: v -> w -> v"),
        ("0 8 zero", "`w` uses sectors up to 63 of `v`, and the table has 8"),
        ("0 64 linear b 60", "sectors 60 to 63 of `b` are used by `w`"),
        ("0 0 zero", "`0` is not a length in sectors: a whole number from 1"),
        ("0 18446744073709551616 zero", "is not a length in sectors"),
        ("0 8 linear b 18446744073709551616", "is not an offset in sectors"),
        ("0 8 linear b 0x8", "`0x8` is not an offset in sectors"),
        ("0 8 linear b 0 0", "`0` is too much: write linear DEVICE OFFSET"),
        ("0 16 striped 2 0 b 0 f 0", "`0` is not a chunk in sectors"),
        ("0 16 striped 2 8 b 0", "`2` means 4 words, but 2 follow"),
        ("0 8", "`8` ends the line too early"),
        ("", "the table is empty"),
    ] {
        server.refuses(&["reload", "v", "--table", table], 1, sentence);
        server.refuses(&["reload", "v", "--now", "--table", table], 1, sentence);
        if !sentence.contains("`w`") && !sentence.contains("`v`") && !sentence.contains("-> w") {
            server.refuses(&["create", "x", "--table", table], 1, sentence);
        }
    }
    server.refuses(&["create", "v", "--notable"], 1, "there is a device `v` already");
    server.refuses(&["create", "a", "--notable"], 1, "there is a device `a` already");
    server.refuses(&["create", "a b", "--notable"], 1, "`a b` is not a name");
    let words = ["create", "x", "--table", "0 8 linear v 0"];
    server.refuses(&words, 1, "clients of export `v` write to `v`");
}

#[test]
fn a_file_that_has_grown_can_be_used() {
    let server = Server::start(STACK, STATE);
    let longer = ["reload", "v", "--now", "--table", "0 4096 linear f 0"];
    server.refuses(&longer, 1, "`f` is too small: 4096 sectors from 0 are used, it has 2048");
    let set = server.run(&["set", "f", "size=2MiB"]);
    assert!(set.status.success() && set.stdout == b"f size=2MiB\n", "{set:?}");
    let in_bytes = server.run(&["set", "f", "size=2097152"]);
    assert!(in_bytes.status.success() && in_bytes.stdout == b"f size=2MiB\n", "{in_bytes:?}");
    let note = "warning: `f` has this size until the server stops; to keep it, write size = \
        \"2MiB\" into the stack file\n";
    assert_eq!(String::from_utf8(set.stderr).unwrap(), note);
    server.ok(&longer);
    assert_eq!(server.json(&["show", "v"])["size"], 2 << 20);
    let size = ["set", "v", "size=4MiB"];
    bad(&size, server.run(&size), 1, "a volume has the size of its table: reload it");
}

#[test]
fn a_device_below_a_volume_gets_more_queues_and_fewer() {
    let server = Server::start(STACK, STATE);
    for queues in ["3", "1"] {
        let change = format!("queue/hw_queues={queues}");
        assert_eq!(server.ok(&["set", "f", &change]), format!("f {change}\n"));
        assert_eq!(server.json(&["show", "f"])["attributes"]["queue/hw_queues"], queues);
    }
    for (device, change, sentence) in [
        ("f", "queue/hw_queues=0", "a whole number from 1 to 1024"),
        ("f", "submit_queues=2", "submit_queues"),
        ("v", "queue/hw_queues=2", "queue/hw_queues"),
    ] {
        server.refuses(&["set", device, change], 1, sentence);
    }
    assert_eq!(server.json(&["show", "f"])["attributes"]["queue/hw_queues"], "1");
}

#[test]
fn a_stack_file_names_volumes() {
    let folder = TempDir::new().unwrap();
    let ram = |name| format!("[device.{name}]\ntype = \"ram\"\nsize = \"64MiB\"\n");
    let text = ["r0", "r1", "r2"].map(ram).concat()
        + "[device.v]\ntable = \"0 393216 striped 3 128 r0 0 r1 0 r2 0\"\n\
           [export.v]\ndevice = \"v\"\nnbd = \"unix:v.sock\"\n";
    fs::write(folder.path().join("s.toml"), &text).unwrap();
    let check = |arguments: &[&str]| program(folder.path()).args(arguments).output().unwrap();
    let drawn = good(&["check"], check(&["check", "s.toml"]));
    let base = fs::canonicalize(folder.path()).unwrap();
    let tree = format!(
        "stack s\nexport v  nbd unix:{}/v.sock\n└── v  table  192MiB  striped 3 by 64KiB \
         192MiB\n    \
         ├── r0  ram  64MiB\n    ├── r1  ram  64MiB\n    └── r2  ram  64MiB\n",
        base.display()
    );
    assert_eq!(drawn, tree);
    fs::write(folder.path().join("s.toml"), text.replace("393216", "393217")).unwrap();
    let report = check(&["check", "s.toml"]);
    let message = String::from_utf8_lossy(&report.stderr).into_owned();
    assert_eq!(report.status.code(), Some(1));
    assert!(message.contains("s.toml:11:12") && message.contains("whole chunks"), "{message}");
}

/// A volume that needs no stack can be measured by itself.
#[test]
fn a_zero_volume_is_measured() {
    let folder = TempDir::new().unwrap();
    let words = ["bench", "--device", "zero,size=1MiB", "--runtime", "1s", "--json", "-"];
    let output = program(folder.path()).args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
