//! Throttle groups in stack files: what is wrong is told with its place, and a large tree is read
//! without effort.

use std::path::Path;

use drystone_stack::diagnostic::{Diagnostic, Severity};
use drystone_stack::group::{MAX_GROUP_LEVELS, MAX_GROUPS};
use drystone_stack::{Report, Source, StackSpec, explain, parse};

const DISK: &str = "[device.disk]\ntype = \"ram\"\nsize = \"1GiB\"\n";
const EXPORT: &str = "[export.e]\ndevice = \"disk\"\nnbd = \"unix:e.sock\"\n";

fn check(text: &str) -> Result<StackSpec, Report> {
    let source = Source { name: "groups.toml".to_owned(), text: text.to_owned() };
    parse("groups", source, Path::new("/srv/stack"))
}

/// A stack whose line 7 begins with `rest`.
fn stack(rest: &str) -> String {
    format!("{DISK}{EXPORT}{rest}\n")
}

/// Text; line, column, word; part of the message; part of the hint.
type Case = (String, usize, usize, &'static str, &'static str, &'static str);

/// Expects that each text has this one error and no other.
fn verify(cases: Vec<Case>) {
    for (text, line, column, word, message, hint) in cases {
        let report = check(&text).expect_err(&text);
        let is_error = |found: &&Diagnostic| found.severity == Severity::Error;
        let found: Vec<_> = report.diagnostics.iter().filter(is_error).collect();
        let [found] = found.as_slice() else { panic!("{text}\n{report}") };
        let place = (found.line, found.column, found.word.as_str());
        assert_eq!(place, (line, column, word), "{report}");
        assert!(found.message.contains(message), "no {message:?} in {report}");
        assert!(found.hint.contains(hint), "no {hint:?} in {report}");
    }
}

#[test]
fn paths_of_groups() {
    let deep = |levels: usize| {
        let path = |level| vec!["g"; level].join("/");
        let header = |level| format!("[group.\"{}\"]\n", path(level));
        (1..=levels).map(header).collect::<String>()
    };
    let depths = stack(&deep(MAX_GROUP_LEVELS + 1));
    let line = depths.lines().count() - 1;
    verify(vec![
        (
            stack("[group.\"a/b\"]"),
            7,
            8,
            "\"a/b\"",
            "group `a/b` has no parent `a`",
            "add [group.a]",
        ),
        (
            stack("[group.a]\n[group.\"a/b.1/c\"]"),
            8,
            8,
            "\"a/b.1/c\"",
            "no parent `a/b.1`",
            "add [group.\"a/b.1\"]",
        ),
        (stack("[group.\"\"]"), 7, 8, "\"\"", "the root", "a group below it"),
        (stack("[group.\"/\"]"), 7, 8, "\"/\"", "the root", "a group below it"),
        (stack("[group.\"/a\"]"), 7, 8, "\"/a\"", "not a path of groups", "1 to 64 letters"),
        (stack("[group.\"a b\"]"), 7, 8, "\"a b\"", "not a path of groups", "1 to 64 letters"),
        (stack("[group]\na = 3"), 8, 1, "a", "`group.a` is not a table", "[group.NAME]"),
    ]);
    let report = check(&depths).unwrap_err();
    assert_eq!(report.diagnostics[0].line, line, "{report}");
    assert!(report.diagnostics[0].message.contains("is on level 17"), "{report}");
    check(&stack(&deep(MAX_GROUP_LEVELS))).unwrap();
    check(&stack("[group.\"a/b\"]\n[group.a]")).expect("a child may stand before its parent");
}

#[test]
fn lines_of_io_max() {
    let max = |value: &str| stack(&format!("[group.a]\nio.max = {value}"));
    verify(vec![
        (max("\"disk rbps=0\""), 8, 21, "0", "`rbps`: `0` would let nothing pass", "max, or bytes"),
        (max("\"disk wiops=-1\""), 8, 22, "-1", "`wiops`: `-1` is below 1", "max, or I/Os"),
        (
            max("\"disk rbps=1 wbps=18446744073709551616\""),
            8,
            28,
            "18446744073709551616",
            "is too large",
            "max, or bytes",
        ),
        (max("\"disk rbsp=1\""), 8, 16, "rbsp", "unknown key `rbsp`", "did you mean `rbps`?"),
        (max("\"disk rbps\""), 8, 16, "rbps", "`rbps` has no `=`", "KEY=VALUE"),
        (max("\"disk rbps=1 rbps=1\""), 8, 23, "rbps=1", "given twice", "give it once"),
        (max("\"disk wbps=x\""), 8, 21, "x", "`x` is not a size", "max, or bytes"),
        (max("\"disk riops=4KiB\""), 8, 22, "4KiB", "no number of I/Os", "as in 3000"),
        (max("\"disk\""), 8, 11, "disk", "`disk` is given no limit", "add rbps="),
        (max("\"rbps=1\""), 8, 11, "rbps=1", "begins with `rbps=1`", "DEVICE"),
        (max("\"\""), 8, 10, "\"\"", "names no device", "DEVICE"),
        (max("\"dsik rbps=1\""), 8, 11, "dsik", "no device `dsik`", "did you mean `disk`?"),
        (max("\"tape rbps=1\""), 8, 11, "tape", "no device `tape`", "[device.tape]"),
        (
            max("[\"disk rbps=1\", \"disk wbps=1\"]"),
            8,
            27,
            "disk",
            "`disk` has two lines",
            "into one line",
        ),
        (max("[\"disk rbps=1\", 7]"), 8, 26, "7", "not a text", "DEVICE"),
        (max("[]"), 8, 10, "[]", "has 0 entries", ""),
        (max("7"), 8, 10, "7", "not a text", "DEVICE"),
        (stack("[group.a]\nio.mxa = \"\""), 8, 4, "mxa", "unknown key", "did you mean `max`?"),
        (stack("[group.a]\nio = 3"), 8, 6, "3", "not a table", ""),
        (
            stack("[group.a]\n[group.\"a/b\"]\nweight = 3"),
            9,
            1,
            "weight",
            "unknown key `weight` in [group.\"a/b\"]",
            "known here: io",
        ),
        (
            stack("[group.a]\n[group.\"a/b\"]\nio.latency = 3"),
            9,
            4,
            "latency",
            "in [group.\"a/b\".io]",
            "known here: max",
        ),
    ]);
}

#[test]
fn a_broken_group_does_not_make_what_refers_to_it_wrong() {
    let text = stack("group = \"a\"\n[group.a]\nio.max = \"disk\"\n[group.\"a/b\"]");
    let report = check(&text).unwrap_err();
    assert_eq!(report.diagnostics.len(), 1, "{report}");
}

#[test]
fn groups_of_exports_and_clients() {
    let groups = "[group.tenants]\n[group.\"tenants/a\"]\n";
    let clients = |line: &str| stack(&format!("[export.e.clients]\n{line}\n{groups}"));
    let tls = "tls = { mode = \"required\", cert = \"c\", key = \"k\", client_ca = \"a\" }";
    let group = |line: &str| stack(&format!("{line}\n{groups}"));
    let near = "did you mean `tenants/a`?";
    verify(vec![
        (group("group = \"tenant/a\""), 7, 9, "\"tenant/a\"", "no group `tenant/a`", near),
        (group("group = \"x/y\""), 7, 9, "\"x/y\"", "no group `x/y`", "add [group.\"x/y\"]"),
        (group("group = \"a b\""), 7, 9, "\"a b\"", "no group `a b`", "name a group"),
        (group("group = \"\""), 7, 9, "\"\"", "empty", "the path of a group"),
        (group("group = 3"), 7, 9, "3", "not a text", "the path of a group"),
        (clients("\"uid:1\" = \"tenants/aa\""), 8, 11, "\"tenants/aa\"", "no group", near),
        (clients("\"uid:1\" = 3"), 8, 11, "3", "3 is not the path", "tenants/a"),
        (clients("\"uid:1\" = \"\""), 8, 11, "\"\"", "\"\" is not the path", "tenants/a"),
        (clients("\"uid:x\" = \"/\""), 8, 1, "\"uid:x\"", "`uid:x` is not a client", "uid:NUMBER"),
        (clients("\"uid:\" = \"/\""), 8, 1, "\"uid:\"", "is not a client", "uid:NUMBER"),
        (clients("\"uid:-1\" = \"/\""), 8, 1, "\"uid:-1\"", "is not a client", "uid:NUMBER"),
        (
            clients("\"uid:4294967295\" = \"/\""),
            8,
            1,
            "\"uid:4294967295\"",
            "is not a client",
            "uid:NUMBER",
        ),
        (clients("\"gid:1\" = \"/\""), 8, 1, "\"gid:1\"", "is not a client", "tls:NAME"),
        (clients("alice = \"/\""), 8, 1, "alice", "is not a client", "tls:NAME"),
        (
            clients("\"uid:1\" = \"/\"\n\"uid:01\" = \"tenants\""),
            9,
            1,
            "\"uid:01\"",
            "`uid:1` and `uid:01` are the same",
            "once",
        ),
        (clients("\"tls:a\" = \"/\""), 8, 11, "\"/\"", "no client shows a cert", "client_ca"),
        (
            format!(
                "{DISK}[export.e]\ndevice = \"disk\"\nnbd = \"tcp:h:1\"\nclients = \
                 {{ \"uid:1\" = \"/\" }}"
            ),
            7,
            23,
            "\"/\"",
            "`uid:1` has no effect",
            "Unix socket",
        ),
        (stack("clients = 7"), 7, 11, "7", "`clients` is a whole number", "\"uid:1000\""),
    ]);
    check(&clients("\"uid:1\" = \"tenants\"\n\"uid:0\" = \"/\"")).unwrap();
    check(&stack(&format!("{tls}\nclients.\"tls:CN = a, b\" = \"tenants\"\n{groups}"))).unwrap();
}

#[test]
fn the_tree_of_groups_is_drawn() {
    let text = stack(
        "group = \"tenants/b\"\n[export.e.clients]\n\"uid:0\" = \"/\"\n\"uid:7\" = \"tenants/a\"\n\
         [group.\"tenants/b\"]\n[group.tenants]\n\
         io.max = [\"disk rbps=200MiB wiops=3000\", \"null wbps=1\"]\n\
         [group.\"tenants/a\"]\nio.max = \"disk wiops=1k\"\n[group.last]\n\
         [device.null]\ntype = \"null\"\n",
    );
    let drawn = explain(&check(&text).unwrap());
    let expected = [
        "stack groups",
        "export e  nbd unix:/srv/stack/e.sock, group tenants/b",
        "├── client uid:0  group /",
        "├── client uid:7  group tenants/a",
        "└── disk  ram  1GiB",
        "not exported",
        "└── null  null  250GiB  irqmode none",
        "groups",
        "├── tenants  disk rbps=209715200 wbps=max riops=max wiops=3000,  null rbps=max wbps=1 \
         riops=max wiops=max",
        "│   ├── b",
        "│   └── a  disk rbps=max wbps=max riops=max wiops=1000",
        "└── last",
    ];
    assert_eq!(drawn.lines().collect::<Vec<_>>(), expected);
}

/// As many groups as may be, each with a limit and a client. A loop over all of them for each would
/// take minutes.
#[test]
fn as_many_groups_as_may_be() {
    let group = |n: usize| format!("[group.\"t/{n}\"]\nio.max = \"disk rbps={}MiB\"\n", n + 1);
    let groups = |count: usize| (0..count - 1).map(group).collect::<String>();
    let client = |n: usize| format!("\"uid:{n}\" = \"t/{n}\"\n");
    let clients: String = (0..MAX_GROUPS - 1).map(client).collect();
    let rest = |count| format!("[export.e.clients]\n{clients}[group.t]\n{}", groups(count));
    let spec = check(&stack(&rest(MAX_GROUPS))).unwrap();
    assert_eq!((spec.groups.len(), spec.exports[0].clients.len()), (MAX_GROUPS, MAX_GROUPS - 1));
    assert_eq!(explain(&spec).lines().count(), 2 * MAX_GROUPS + 3);
    let report = check(&stack(&rest(MAX_GROUPS + 1))).unwrap_err();
    assert!(
        report.diagnostics[0].message.contains("65537 groups"),
        "{}",
        report.diagnostics[0].message
    );
}
