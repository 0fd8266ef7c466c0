//! Bad stack files, each with the place, the word and the hint that the report must name.

use std::path::Path;

use drystone_stack::diagnostic::{Diagnostic, MAX_FINDINGS, Severity};
use drystone_stack::spec::DeviceSpec;
use drystone_stack::{Report, Source, StackSpec, parse};

fn check(text: &str) -> Result<StackSpec, Report> {
    let source = Source { name: "bad.toml".to_owned(), text: text.to_owned() };
    parse("bad", source, Path::new("/srv/stack"))
}

fn errors(text: &str) -> Vec<Diagnostic> {
    let report = check(text).expect_err(text);
    assert!(report.render(false).contains("bad.toml:"), "{report}");
    report.diagnostics.into_iter().filter(|found| found.severity == Severity::Error).collect()
}

/// A stack of one ram device `d` with `keys` after its type and size.
fn ram(keys: &str) -> String {
    format!("[device.d]\ntype = \"ram\"\nsize = \"1GiB\"\n{keys}\n")
}

fn null(keys: &str) -> String {
    format!("[device.d]\ntype = \"null\"\n{keys}\n")
}

fn export(keys: &str) -> String {
    format!("[device.d]\ntype = \"ram\"\nsize = \"1GiB\"\n[export.e]\ndevice = \"d\"\n{keys}\n")
}

fn table(lines: &str) -> String {
    let ram = |name| format!("[device.{name}]\ntype = \"ram\"\nsize = \"1MiB\"\n");
    format!("[device.t]\ntable = \"\"\"\n{lines}\n\"\"\"\n{}{}", ram("r0"), ram("r1"))
}

/// Text; line, column, word; part of the message; part of the hint.
type Case = (String, usize, usize, &'static str, &'static str, &'static str);

fn verify(cases: Vec<Case>) {
    for (text, line, column, word, message, hint) in cases {
        let found = errors(&text);
        let matching = found.iter().find(|found| {
            (found.line, found.column, found.word.as_str()) == (line, column, word)
                && found.message.contains(message)
                && found.hint.contains(hint)
        });
        assert!(matching.is_some(), "{line}:{column} {word:?} {message:?} {hint:?}\nin {found:#?}");
    }
}

fn raid(keys: &str) -> String {
    let ram = |name| format!("[device.{name}]\ntype = \"ram\"\nsize = \"1MiB\"\n");
    format!(
        "[device.d]\ntype = \"raid5\"\nmembers = [\"a\", \"b\"]\n{keys}\n{}{}",
        ram("a"),
        ram("b")
    )
}

#[test]
fn arrays() {
    let wrong = |key: &'static str, word: &'static str, message, hint| {
        let text = raid(&format!("{key} = {word}"));
        (text, 4, key.len() + 4, word, message, hint)
    };
    verify(vec![
        wrong("chunk", "\"12KiB\"", "a power of two", "md(4)"),
        wrong("chunk", "\"2KiB\"", "2KiB", "4KiB"),
        wrong("chunk", "\"2TiB\"", "2TiB", "1TiB"),
        wrong("raid_devices", "200", "200", "from 2 to 128"),
        wrong("layout", "\"ddf-N-restart\"", "raid5 has no layout", "md(4)"),
        wrong("layout", "\"left-symetric\"", "left-symetric", "left-symmetric"),
        wrong("uuid", "\"1234\"", "not the UUID of an array", "four groups"),
        wrong("stripe_cache_size", "16", "16", "from 17 to 32768"),
        wrong("logical_block_size", "4096", "of its members", "below it"),
        ("[device.d]\ntype = \"raid5\"".into(), 1, 9, "d", "has no `members`", ""),
    ]);
}

#[test]
fn syntax() {
    verify(vec![
        ("x".into(), 1, 1, "x", "not TOML", "KEY = VALUE"),
        ("[device.d]\nsize = 10GiB".into(), 2, 8, "10GiB", "not TOML", "\"10GiB\""),
        ("[device.d]\nsize = \"1GiB".into(), 2, 8, "\"1GiB", "not TOML", "KEY = VALUE"),
        ("[device.d]\n[device.d]".into(), 2, 9, "d", "duplicate key", ""),
        (String::new(), 1, 1, "", "no device", "[device.disk]"),
    ]);
}

#[test]
fn sections_and_names() {
    verify(vec![
        ("[devise.d]\n".into(), 1, 2, "devise", "unknown key `devise`", "did you mean `device`?"),
        ("device = 3".into(), 1, 1, "device", "a whole number, not a table", "[device.NAME]"),
        ("server = 3".into(), 1, 1, "server", "a whole number, not a table", "[server]"),
        ("[device]\nd = 3".into(), 2, 1, "d", "`device.d` is not a table", "[device.NAME]"),
        ("[device.\"a/b\"]\n".into(), 1, 9, "\"a/b\"", "not a name", "letters, digits"),
        ("[device.\"\"]\n".into(), 1, 9, "\"\"", "not a name", "1 to 64"),
        ("[server]\nthreads = 1025".into(), 2, 11, "1025", "out of range", "from 0 to 1024"),
        ("[server]\nthread = 1".into(), 2, 1, "thread", "unknown key", "did you mean `threads`?"),
    ]);
}

#[test]
fn device_kinds() {
    verify(vec![
        ("[device.d]\nsize = 1".into(), 1, 9, "d", "no `type`", "\"file\", \"ram\", \"null\""),
        ("[device.d]\ntype = 7".into(), 2, 8, "7", "not a text", "\"file\""),
        ("[device.d]\ntype = \"fil\"".into(), 2, 8, "\"fil\"", "not a device type", "`file`?"),
        ("[device.d]\ntype = \"raid1\"".into(), 2, 8, "\"raid1\"", "not available", "\"file\""),
        (
            "[device.d]\ntype = \"rbd\"\npool = 1".into(),
            2,
            8,
            "\"rbd\"",
            "not available",
            "\"ram\"",
        ),
        (ram("table = \"0 1 zero\""), 4, 1, "table", "both `type` and `table`", "one of the two"),
        ("[device.d]\ntype = \"file\"".into(), 1, 9, "d", "no `path`", "path = ..."),
        ("[device.d]\ntype = \"ram\"".into(), 1, 9, "d", "no `size`", "a size from 512B"),
    ]);
}

#[test]
fn keys_and_values() {
    verify(vec![
        (ram("discrad = true"), 4, 1, "discrad", "unknown key", "did you mean `discard`?"),
        (ram("colour = 1"), 4, 1, "colour", "unknown key", "known here: discard, "),
        (
            ram("queue = { shceduler = \"none\" }"),
            4,
            11,
            "shceduler",
            "in [device.d.queue]",
            "did you mean `scheduler`?",
        ),
        (ram("queue.scheduler = \"deadline\""), 4, 19, "\"deadline\"", "choices", "mq-deadline"),
        (ram("queue.nr_requests = 0"), 4, 21, "0", "out of range", "from 1 to 10240"),
        (ram("queue.nr_requests = -3"), 4, 21, "-3", "out of range", "from 1 to 10240"),
        (ram("queue.nr_requests = \"64\""), 4, 21, "\"64\"", "stands in quotes", "whole number"),
        (ram("queue.nr_requests = 6.4"), 4, 21, "6.4", "not a whole number", ""),
        (ram("queue.io_poll = true"), 4, 17, "true", "no queues to poll", "remove io_poll"),
        (ram("queue.io_poll = 1"), 4, 17, "1", "neither true nor false", "true or false"),
        (ram("queue.io_poll = \"true\""), 4, 17, "\"true\"", "stands in quotes", "true or false"),
        (ram("queue.io_timeout = \"1us\""), 4, 20, "\"1us\"", "out of range", "from 1ms to 24h"),
        (ram("queue.io_timeout = \"5 days\""), 4, 20, "\"5 days\"", "unknown unit", "plain number"),
        (ram("queue = 3"), 4, 9, "3", "is not a table", "scheduler"),
        (ram("logical_block_size = 1000"), 4, 22, "1000", "not a power of two", "512B to 4KiB"),
        (
            ram("logical_block_size = 4096\nphysical_block_size = 512"),
            5,
            23,
            "512",
            "below the logical",
            "at least 4096",
        ),
        (null("size = \"10X\""), 3, 8, "\"10X\"", "unknown unit", "a size from"),
        (null("size = \"-5\""), 3, 8, "\"-5\"", "not a size", "a size from"),
        (null("size = 1000"), 3, 8, "1000", "not a multiple of 512B", "a size from"),
        (null("size = 0"), 3, 8, "0", "too small", "a size from 512B"),
        (null("size = \"9999P\""), 3, 8, "\"9999P\"", "too large", "a size from"),
        (null("size = 99999999999999999999"), 3, 8, "99999999999999999999", "out of range", ""),
        (null("size = [1, 2]"), 3, 8, "[1, 2]", "a list is not a size", "a size from"),
        (null("size = 1979-05-27"), 3, 8, "1979-05-27", "is not a size", "a size from"),
        (null("size = \"5KiB\"\nblocksize = 4096"), 3, 8, "\"5KiB\"", "whole number of", "4KiB"),
    ]);
}

#[test]
fn null_parameters() {
    verify(vec![
        (null("irqmode = 3"), 3, 11, "3", "out of range", "its number from 0 to 2"),
        (null("irqmode = \"timed\""), 3, 11, "\"timed\"", "choices", "did you mean `timer`?"),
        (null("completion_nsec = 5"), 3, 19, "5", "no effect without the timer", "\"timer\""),
        (null("discard = true"), 3, 11, "true", "needs memory", "memory_backed = true"),
        (null("badblocks = [\"9-1\"]"), 3, 14, "\"9-1\"", "range of sectors", "FIRST-LAST"),
        (null("size = 512\nbadblocks = [\"0-1\"]"), 4, 13, "[\"0-1\"]", "beyond", "sector is 0"),
        (null("badblocks = []"), 3, 13, "[]", "0 entries", "1 to"),
        (null("latency = {}"), 3, 11, "{}", "is empty", "p50"),
        (null("latency = { p101 = 1 }"), 3, 13, "p101", "not a percentile", "p99.9"),
        (null("latency = { p99.9 = 1 }"), 3, 13, "p99", "not a time", "in quotes"),
        (
            null("irqmode = 2\nlatency = { p50 = \"2us\", p99 = \"1us\" }"),
            4,
            32,
            "\"1us\"",
            "shorter than `p50` (2us)",
            "rise",
        ),
        (
            null("irqmode = 2\nlatency = { p50 = 1 }\ncompletion_nsec = 5"),
            5,
            19,
            "5",
            "both say how long",
            "one of the two",
        ),
        (null("seek_max_nsec = 5"), 3, 17, "5", "no effect without the timer", "\"timer\""),
        (null("seek_min_nsec = 0"), 3, 17, "0", "no effect without the timer", "\"timer\""),
        (null("irqmode = 2\nseek_max_nsec = \"2h\""), 4, 17, "\"2h\"", "out of range", "to 1h"),
        (
            null("irqmode = 2\nseek_min_nsec = 1001\nseek_max_nsec = \"1us\""),
            4,
            17,
            "1001",
            "`seek_min_nsec` (1.001us) is more than `seek_max_nsec` (1us)",
            "at least as long",
        ),
        (
            null("irqmode = 2\nseek_min_nsec = 1"),
            4,
            17,
            "1",
            "is more than `seek_max_nsec` (0s)",
            "at least as long",
        ),
        (
            null("blocksize = 512\nlogical_block_size = 4096"),
            4,
            22,
            "4096",
            "`blocksize` is 512",
            "one of the two",
        ),
        (
            null("submit_queues = 2\nqueue.hw_queues = 3"),
            4,
            19,
            "3",
            "`submit_queues` is 2",
            "one of the two",
        ),
        (null("queue.nr_requests = 65"), 3, 21, "65", "has 64 tags", "`hw_queue_depth`"),
        (
            null("poll_queues = 0\nqueue.io_poll = true"),
            4,
            17,
            "true",
            "needs a queue to poll",
            "`poll_queues`",
        ),
    ]);
}

#[test]
fn exports() {
    let unix = "nbd = \"unix:a.sock\"";
    verify(vec![
        (export(""), 4, 9, "e", "has no way in", "unix:NAME.sock"),
        (export("nbd = \"unix:a\"\nfuse_loop = true"), 7, 13, "true", "no effect", "fuse ="),
        (export("fuse = 3"), 6, 8, "3", "not a text", "path"),
        (
            export("fuse = \"a\"\n[export.f]\ndevice = \"d\"\nfuse = \"a\"\nfuse_loop = true"),
            9,
            8,
            "\"a\"",
            "shared with export `e`, but `fuse_loop` differs",
            "another path",
        ),
        (export("nbd = 3"), 6, 7, "3", "not a text", "tcp:HOST:PORT"),
        (export("nbd = \"udp:h:1\""), 6, 8, "udp", "not an address", "unix:PATH"),
        (export("nbd = \"tcp:localhost\""), 6, 12, "localhost", "no port", "tcp:127.0.0.1:10809"),
        (export("nbd = [\"tcp:h:0\"]"), 6, 15, "0", "not a port", "HOST:PORT"),
        (export("nbd = \"tcp:[x]:1\""), 6, 12, "[x]", "not a host", "[::1]"),
        (export("nbd = \"unix:a,mode=999\""), 6, 15, "mode=999", "not a mode", "mode=0660"),
        (export("nbd = \"unix:\""), 6, 8, "unix:", "no path", "unix:PATH"),
        (export("nbd = [\"unix:a\", \"unix:a\"]"), 6, 18, "\"unix:a\"", "given twice", "once"),
        (export(&format!("{unix}\nublk = \"x\"")), 7, 1, "ublk", "not available", "remove"),
        (export(&format!("{unix}\nmax_request = \"1G\"")), 7, 15, "\"1G\"", "too large", "64MiB"),
        (export(&format!("{unix}\ndescription = \"a\\nb\"")), 7, 15, "\"a\\nb\"", "control", ""),
        (export(&format!("{unix}\ntls = {{ cert = \"c\" }}")), 7, 16, "\"c\"", "mode is off", ""),
        (
            export(&format!("{unix}\ntls.mode = \"required\"\ntls.cert = \"c\"")),
            7,
            1,
            "tls",
            "`tls` has no `key`",
            "key = ",
        ),
        (
            "[device.disk]\ntype = \"null\"\n[export.e]\ndevice = \"disc\"\nnbd = \"tcp:h:1\""
                .into(),
            4,
            10,
            "\"disc\"",
            "no device `disc`",
            "did you mean `disk`?",
        ),
    ]);
}

#[test]
fn long_socket_paths_are_refused_where_they_stand() {
    let path = "p".repeat(120);
    let found = errors(&export(&format!("nbd = \"unix:{path}\"")));
    assert_eq!((found[0].line, found[0].column), (6, 13));
    assert!(found[0].hint.contains("at most 107 bytes"), "{found:?}");
}

#[test]
fn exports_that_share_an_address_must_agree() {
    let two = |first: &str, second: &str| {
        let export = |name, keys| {
            format!("[export.{name}]\ndevice = \"d\"\nnbd = \"unix:a.sock\"\n{keys}\n")
        };
        format!("[device.d]\ntype = \"null\"\n{}{}", export("a", first), export("b", second))
    };
    assert_eq!(check(&two("", "")).unwrap().listeners().len(), 1);
    verify(vec![
        (
            two("default = true", "default = true"),
            10,
            11,
            "true",
            "both the default",
            "one default",
        ),
        (
            two("tls.mode = \"off\"", "").replacen("a.sock", "a.sock,mode=0660", 1),
            9,
            7,
            "\"unix:a.sock\"",
            "`mode` differs",
            "",
        ),
        (two("max_connections = 1", ""), 9, 7, "\"unix:a.sock\"", "`max_connections` differs", ""),
    ]);
}

#[test]
fn tables() {
    let range = "0 2048 linear r0 0";
    verify(vec![
        (table(""), 2, 9, "\"\"\"", "the table is empty", "START LENGTH TARGET"),
        (table("0 8"), 3, 3, "8", "too early", "START LENGTH TARGET"),
        (table("x 8 zero"), 3, 1, "x", "not a start in sectors", "whole number"),
        (table("0 0 zero"), 3, 3, "0", "not a length", "from 1 to"),
        (table("0 8 linaer r0 0"), 3, 5, "linaer", "not a target", "did you mean `linear`?"),
        (table("0 8 linear r0"), 3, 5, "linear", "too few", "linear DEVICE OFFSET"),
        (table("0 8 linear r0 0 9"), 3, 17, "9", "too much", "linear DEVICE OFFSET"),
        (table("0 8 zero 1"), 3, 10, "1", "too much", "no arguments"),
        (table("0 8 striped 2 8 r0 0"), 3, 13, "2", "4 words, but 2", "striped COUNT"),
        (table("0 9 striped 1 8 r0 0"), 3, 3, "9", "whole chunks", "multiple"),
        (table("0 8 linear r9 0"), 3, 12, "r9", "no device `r9`", ""),
        (table("0 8 linear t 0"), 3, 12, "t", "stands on itself", ""),
        (table("0 8 zero\n9 8 zero"), 4, 1, "9", "gap", "sector 8"),
        (table("0 8 zero\n7 8 zero"), 4, 1, "7", "overlap", "sector 8"),
        (table("0 4096 linear r0 0"), 3, 15, "r0", "too small", "2048 sectors (1MiB)"),
        (table("0 8 linear r0 0\n8 8 linear r0 7"), 4, 12, "r0", "7 to 14", "other sectors"),
        (table(&zeroes(4097)), 4099, 1, "32768", "more than 4096 lines", "volumes of its parts"),
    ]);
    assert!(check(&table(range)).is_ok());
    assert!(check(&table(&zeroes(4096))).is_ok());
}

/// So many lines of 8 sectors each.
fn zeroes(lines: u64) -> String {
    (0..lines).map(|line| format!("{} 8 zero\n", line * 8)).collect()
}

#[test]
fn volumes_by_type() {
    let of = |keys: &str| {
        format!("{}[device.r1]\ntype = \"null\"\n", ram(keys).replacen("ram", "linear", 1))
    };
    let volume = |kind: &str, keys: &str| {
        let ram = |name, size| format!("[device.{name}]\ntype = \"ram\"\nsize = {size}\n");
        let two = ram("a", 512) + &ram("b", 1 << 20);
        format!("[device.v]\ntype = \"{kind}\"\n{keys}\n{two}")
    };
    verify(vec![
        (of(""), 1, 9, "d", "no `members`", "add `members = ...`"),
        (of("members = [\"r1\"]"), 3, 1, "size", "unknown key `size`", "known here"),
        (volume("linear", "members = 3"), 3, 11, "3", "not a text", "the name of a device"),
        (volume("linear", "members = []"), 3, 11, "[]", "0 entries", "1 to"),
        (volume("linear", "members = [\"c\"]"), 3, 12, "\"c\"", "no device `c`", ""),
        (volume("linear", "members = [\"v\"]"), 3, 12, "\"v\"", "stands on itself", "below it"),
        (
            volume("linear", "members = [\"b\", \"b\"]"),
            3,
            17,
            "\"b\"",
            "`b` is used twice: by `v` and by `v`",
            "another device",
        ),
        (
            volume("striped", "members = [\"b\", \"a\"]"),
            3,
            17,
            "\"a\"",
            "`a` is smaller than one chunk of 64KiB",
            "enlarge it",
        ),
        (
            volume("striped", "members = [\"b\"]\nchunk = 1000"),
            4,
            9,
            "1000",
            "not a multiple of 512B",
            "",
        ),
        (volume("striped", "chunk = 512"), 1, 9, "v", "no `members`", ""),
        (volume("zero", ""), 1, 9, "v", "no `size`", "a size from 512B"),
        (volume("error", "members = [\"a\"]"), 3, 1, "members", "unknown key `members`", ""),
        (volume("error", "size = \"1MiB\"\nchunk = 512"), 4, 1, "chunk", "unknown key", "size"),
    ]);
}

#[test]
fn a_volume_has_no_request_queue() {
    let volume = |keys: &str| {
        format!("[device.v]\ntable = \"0 8 linear a 0\"\n{keys}\n[device.a]\ntype = \"null\"\n")
    };
    let good = check(&volume("read_only = true\nqueue = { iostats = false }")).unwrap();
    let device = &good.devices[0];
    assert!(device.read_only && device.queue.iostats == Some(false));
    verify(vec![
        (
            volume("queue = { iostats = true, nr_requests = 64 }"),
            3,
            41,
            "64",
            "`v` is a volume: it has no request queue, so no `nr_requests`",
            "of the devices below it; a volume has only `iostats`",
        ),
        (volume("queue.io_poll = true"), 3, 17, "true", "so no `io_poll`", "below it"),
        (volume("queue.scheduler = \"x\""), 3, 19, "\"x\"", "not among the choices", ""),
        (
            volume("logical_block_size = 4096"),
            3,
            22,
            "4096",
            "it has the `logical_block_size` of its members",
            "of the devices below it",
        ),
    ]);
}

#[test]
fn volumes_stand_on_one_another_in_bounds() {
    let level = |n| format!("[device.v{n}]\ntype = \"linear\"\nmembers = [\"v{}\"]\n", n - 1);
    let levels = |count| (1..=count).map(level).collect::<String>();
    let chain = |count| levels(count) + "[device.v0]\ntype = \"null\"\nsize = \"1GiB\"\n";
    let stack = check(&chain(64)).unwrap();
    assert_eq!(stack.sizes["v64"], 1 << 30);
    verify(vec![(chain(65), 193, 9, "v65", "`v65` is the 65th level", "at most 64")]);
    // Longer than any stack of calls.
    assert_eq!(errors(&chain(4_000)).len(), 1);
}

#[test]
fn cycles_name_the_way_round() {
    let device = |name, member| format!("[device.{name}]\ntable = \"0 8 linear {member} 0\"\n");
    let text = [device("a", "b"), device("b", "c"), device("c", "a")].concat();
    verify(vec![(text, 6, 21, "a", "a cycle: a -> b -> c -> a", "below it")]);
}

#[test]
fn whole_members_are_used_once() {
    let raid = |name| format!("[device.{name}]\ntype = \"raid5\"\nmembers = [\"m\"]\n");
    let text = [raid("a"), raid("b"), "[device.m]\ntype = \"null\"\n".into()].concat();
    verify(vec![(text, 6, 12, "\"m\"", "`m` is used twice: by `a` and by `b`", "another device")]);
}

#[test]
fn a_member_is_not_exported_for_writing() {
    let tail = "[export.e]\ndevice = \"r0\"\nnbd = \"tcp:h:1\"\n";
    let text = table("0 8 linear r0 0") + tail;
    verify(vec![(text.clone(), 12, 10, "\"r0\"", "part of `t`", "read_only = true")]);
    assert!(check(&(text + "read_only = true\n")).is_ok());
}

#[test]
fn unused_devices_are_a_warning() {
    let stack = check("[device.a]\ntype = \"null\"\n").unwrap();
    assert_eq!(stack.warnings.len(), 1);
    assert_eq!(stack.warnings[0].message, "device `a` is not used");
    assert_eq!((stack.warnings[0].line, stack.warnings[0].column), (1, 9));
}

#[test]
fn members_that_fail_at_each_hiccup_are_a_warning() {
    let leaf = |name: &str, timeout: &str| {
        format!(
            "[device.{name}]\ntype = \"ram\"\nsize = \"64MiB\"\nqueue = \
             {{ io_timeout = \"{timeout}\" }}\n"
        )
    };
    let members = leaf("a", "1s") + &leaf("b", "999ms") + &leaf("c", "30s") + &leaf("alone", "1ms");
    let array = "[device.md]\ntype = \"raid5\"\nmembers = [\"a\", \"b\", \"c\"]\n";
    let exports =
        ["md", "alone"].map(|d| format!("[export.{d}]\ndevice = \"{d}\"\nnbd = \"unix:{d}\"\n"));
    let stack = check(&(members + array + &exports.concat())).unwrap();
    let warnings: Vec<_> = stack.warnings.iter().map(|w| (w.line, w.message.as_str())).collect();
    assert_eq!(warnings, [(8, "the array `md` may fail its member `b` after one slow request")]);
    // Below volumes, one on another; and a mirror's member that is a volume.
    let volume = |name: &str, below: &str| {
        format!("[device.{name}]\ntype = \"linear\"\nmembers = [\"{below}\"]\n")
    };
    let text = leaf("a", "1ms")
        + &volume("low", "a")
        + &volume("high", "low")
        + &leaf("b", "1s")
        + &leaf("c", "1s")
        + "[device.md]\ntype = \"raid5\"\nmembers = [\"high\", \"b\", \"c\"]\n"
        + &exports[0];
    let stack = check(&text).unwrap();
    let warnings: Vec<_> = stack.warnings.iter().map(|w| (w.line, w.message.as_str())).collect();
    let below = "the array `md` may fail its member `high` after one slow request of `a` below it";
    assert_eq!(warnings, [(4, below)]);
}

#[test]
fn delays() {
    const HINT: &str = "delay DEVICE OFFSET MILLISECONDS";
    verify(vec![
        (table("0 8 delay"), 3, 5, "delay", "too few", HINT),
        (table("0 8 delay r0 0"), 3, 5, "delay", "too few", HINT),
        (table("0 8 delay r0 0 5 r1"), 3, 18, "r1", "1 of its 3 words", HINT),
        (table("0 8 delay r0 0 5 r1 0"), 3, 18, "r1", "2 of its 3 words", HINT),
        (table("0 8 delay r0 0 5 r1 0 5 r0 9"), 3, 25, "r0", "2 of its 3 words", HINT),
        (table("0 8 delay r0 0 5 r1 0 5 r0 9 5 7"), 3, 32, "7", "too much", HINT),
        (table("0 8 delay r0 0 5 r1 0 5 r0 9 5 r1 9 5"), 3, 32, "r1", "too much", HINT),
        (table("0 8 delay r0 x 5"), 3, 14, "x", "not an offset", "whole number"),
        (table("0 8 delay r0 0 5ms"), 3, 16, "5ms", "not a delay in milliseconds", "to 4294967295"),
        (table("0 8 delay r0 0 4294967296"), 3, 16, "4294967296", "not a delay", "to 4294967295"),
        (table("0 8 delay r9 0 5"), 3, 11, "r9", "no device `r9`", ""),
        (table("0 8 delay r0 0 5 r0 0 5 r0 2041 5"), 3, 25, "r0", "too small", "2048 sectors"),
        (table("0 8 delay r0 0 5\n8 8 linear r0 7"), 4, 12, "r0", "7 to 14", "other sectors"),
        (table("0 8 delai r0 0 5"), 3, 5, "delai", "not a target", "did you mean `delay`?"),
    ]);
    // An area that is read where it is written is used once.
    for arguments in ["r0 0 5", "r0 0 5 r0 0 5", "r0 0 5 r1 0 5 r0 0 5", "r0 0 5 r0 8 5 r0 0 5"] {
        let found = check(&table(&format!("0 8 delay {arguments}")));
        assert!(found.is_ok(), "{arguments}: {}", found.unwrap_err());
    }
}

#[test]
fn flakeys() {
    const HINT: &str = "flakey DEVICE OFFSET UP DOWN";
    let features = |words: &str| table(&format!("0 8 flakey r0 0 2 3 {words}"));
    verify(vec![
        (table("0 8 flakey r0 0 2"), 3, 5, "flakey", "too few", HINT),
        (table("0 8 flakey r0 0 -2 3"), 3, 17, "-2", "not a time in seconds", "whole number"),
        (table("0 8 flakey r0 0 2 x"), 3, 19, "x", "not a time in seconds", "to 4294967295"),
        (table("0 8 flakey r0 0 0 0"), 3, 19, "0", "no time at all", "at least 1"),
        (table("0 8 flakey r0 0 9 4294967287"), 3, 19, "4294967287", "too long", "4294967286"),
        (table("0 4096 flakey r0 0 2 3"), 3, 15, "r0", "too small", ""),
        (features("x"), 3, 21, "x", "not a number of feature words", "whole number"),
        (features("1"), 3, 21, "1", "means 1 words, but 0 follow", "all words"),
        (features("1 error_reads 5"), 3, 21, "1", "means 1 words, but 2 follow", "all words"),
        (features("1 drop_write"), 3, 23, "drop_write", "not a feature", "mean `drop_writes`?"),
        (features("2 drop_writes drop_writes"), 3, 35, "drop_writes", "given twice", "once"),
        (features("2 drop_writes error_writes"), 3, 35, "error_writes", "contradicts", "dropped"),
        (features("2 error_writes drop_writes"), 3, 36, "drop_writes", "contradicts", "dropped"),
        (features("1 corrupt_bio_byte"), 3, 23, "corrupt_bio_byte", "too few", "BYTE r|w VALUE 0"),
        (features("4 corrupt_bio_byte 1 r 1"), 3, 23, "corrupt_bio_byte", "too few", ""),
        (features("5 corrupt_bio_byte 0 r 1 0"), 3, 40, "0", "not the number of a byte", "from 1"),
        (features("5 corrupt_bio_byte 1 x 1 0"), 3, 42, "x", "not a direction", "r for reads"),
        (features("5 corrupt_bio_byte 1 r 256 0"), 3, 44, "256", "not the value", "0 to 255"),
        (features("5 corrupt_bio_byte 1 r 1 32"), 3, 46, "32", "Linux's own flags", "write 0"),
        (features("5 corrupt_bio_byte 1 r 1 x"), 3, 46, "x", "not a mask", "whole number"),
        (
            features("6 drop_writes corrupt_bio_byte 1 w 1 0"),
            3,
            35,
            "corrupt_bio_byte",
            "contradicts",
            "drop_writes leaves nothing to corrupt",
        ),
        (
            features("6 corrupt_bio_byte 1 w 1 0 error_writes"),
            3,
            48,
            "error_writes",
            "contradicts",
            "error_writes leaves nothing to corrupt",
        ),
        (features("1 random_read_corrupt"), 3, 23, "random_read_corrupt", "too few", "PROBABILITY"),
        (
            features("2 random_read_corrupt 1000000001"),
            3,
            43,
            "1000000001",
            "not a probability",
            "to 1000000000",
        ),
        (
            features("4 random_read_corrupt 1 random_read_corrupt 2"),
            3,
            45,
            "random_read_corrupt",
            "given twice",
            "once",
        ),
    ]);
}

#[test]
fn logs_of_writes() {
    const HINT: &str = "log-writes DEVICE LOGDEVICE";
    let kind = |kind: &str| format!("[device.a]\ntype = \"{kind}\"\n");
    verify(vec![
        (table("0 8 log-writes"), 3, 5, "log-writes", "too few", HINT),
        (table("0 8 log-writes r0"), 3, 5, "log-writes", "too few", HINT),
        (table("0 8 log-writes r0 0 r1"), 3, 21, "r1", "too much", "no offsets"),
        (table("0 8 log-writes r0 r0"), 3, 19, "r0", "log of itself", "another device"),
        (table("0 8 log-writes r0 r9"), 3, 19, "r9", "no device `r9`", ""),
        (table("0 8 log-writes r9 r1"), 3, 16, "r9", "no device `r9`", ""),
        (table("0 4096 log-writes r0 r1"), 3, 19, "r0", "too small", "2048 sectors"),
        (
            table("0 8 log-writes r0 r1\n8 8 linear r1 9"),
            4,
            12,
            "r1",
            "used twice",
            "another device",
        ),
        (table("0 8 log-writes r0 r1\n8 8 linear r0 7"), 4, 12, "r0", "7 to 14", "other sectors"),
        (table("0 8 log-write r0 r1"), 3, 5, "log-write", "not a target", "mean `log-writes`?"),
        (kind("log-writes"), 2, 8, "\"log-writes\"", "target of tables", "log-writes DEVICE LOG\""),
        (kind("delay"), 2, 8, "\"delay\"", "target of tables", "delay DEVICE OFFSET ..."),
        (kind("flakey"), 2, 8, "\"flakey\"", "target of tables", "flakey DEVICE OFFSET ..."),
    ]);
    // The log is one's own, but the sectors further on are not.
    for lines in ["0 8 log-writes r0 r1", "0 8 zero\n8 8 log-writes r0 r1\n16 8 linear r0 0"] {
        let found = check(&table(lines));
        assert!(found.is_ok(), "{lines}: {}", found.unwrap_err());
    }
}

#[test]
fn all_errors_are_reported_up_to_the_bound() {
    let two = errors("[device.a]\ntype = \"nul\"\n[device.b]\ntype = \"null\"\nsice = 1\n");
    assert_eq!(two.len(), 2);
    let many: String = (0..30).map(|n| format!("[device.d{n}]\ntype = \"x\"\n")).collect();
    let report = check(&many).unwrap_err();
    assert_eq!(report.diagnostics.len(), MAX_FINDINGS);
    assert_eq!(report.omitted, 10);
}

#[test]
fn a_broken_device_does_not_make_its_users_wrong() {
    let text =
        "[device.a]\ntype = \"null\"\nsice = 1\n[export.e]\ndevice = \"a\"\nnbd = \"tcp:h:1\"";
    assert_eq!(errors(text).len(), 1);
}

#[test]
fn device_words_name_their_column() {
    let cases = [
        ("nul", 1, "nul", "did you mean `null`?"),
        ("null,size", 6, "size", "KIND,KEY=VALUE"),
        ("null,size=5X", 11, "5X", "a size from"),
        ("null,sise=5", 6, "sise", "did you mean `size`?"),
        ("file,path=a,direct=yes", 20, "yes", "\"auto\", true or false"),
        ("null,queue.nr_requests=0", 24, "0", "from 1 to 10240"),
        ("null,size=1G,size=2G", 14, "size", "a size from"),
        ("ram,size=1G,,5", 10, "1G,,5", "a size from"),
        ("", 1, "", "\"file\", \"ram\", \"null\""),
        ("raid1", 1, "raid1", "use \"file\""),
        ("linear,members=a", 16, "a", "--stack FILE --name NAME"),
        ("zero,size=1M,queue.nomerges=1", 29, "1", "below it"),
    ];
    for (text, column, word, hint) in cases {
        let report = DeviceSpec::parse(text, Path::new("/")).expect_err(text);
        let found = &report.diagnostics[0];
        assert_eq!((found.line, found.column, found.word.as_str()), (1, column, word), "{report}");
        assert!(found.hint.contains(hint), "{text}: {report}");
    }
}

#[test]
fn who_may_open_files() {
    let fuse = |keys: &str| {
        format!(
            "[device.d]\ntype = \"null\"\n[export.e]\ndevice = \"d\"\n{keys}\nfuse = \"e.img\"\n"
        )
    };
    let shared = |keys: &str| {
        let other = "[export.f]\ndevice = \"d\"\nfuse_allow_other = true\nfuse = \"e.img\"\n";
        fuse(&format!("fuse_allow_other = true\n{keys}")) + other
    };
    let no_effect = "only the user who runs the server can open the file";
    verify(vec![
        (fuse("fuse_mode = \"0640\""), 5, 13, "\"0640\"", no_effect, "fuse_allow_other = true"),
        (fuse("fuse_uid = 7"), 5, 12, "7", no_effect, "fuse_allow_other = true"),
        (fuse("fuse_gid = 7"), 5, 12, "7", no_effect, "fuse_allow_other = true"),
        (fuse("fuse_mode = 640\nfuse_allow_other = true"), 5, 13, "640", "`fuse_mode`", "0660"),
        (
            fuse("fuse_uid = 4294967295\nfuse_allow_other = true"),
            5,
            12,
            "4294967295",
            "out of range",
            "4294967294",
        ),
        (shared("fuse_mode = \"0640\""), 11, 8, "\"e.img\"", "`fuse_mode` differs", "the same"),
        (shared("fuse_gid = 7"), 11, 8, "\"e.img\"", "`fuse_gid` differs", "the same"),
    ]);
}

#[test]
fn who_may_use_an_export() {
    let export = |allow: &str, keys: &str| {
        format!(
            "[device.d]\ntype = \"null\"\n[export.e]\ndevice = \"d\"\nallow = {allow}\n{keys}\n"
        )
    };
    let unix = "nbd = \"unix:s.sock\"";
    let tcp = "nbd = \"tcp:127.0.0.1:1\"";
    let one = |rule: &str| format!("{{ {rule} }}");
    verify(vec![
        (export("3", unix), 5, 9, "3", "`allow` is a whole number, not a table", "tls:alice"),
        (export("{}", unix), 5, 9, "{}", "no client could use", "name a client"),
        (
            export(&one("alice = \"read-only\""), unix),
            5,
            11,
            "alice",
            "not a client",
            "net:ADDRESS/BITS",
        ),
        (
            export(&one("\"net:192.0.2.1/24\" = \"read-only\""), tcp),
            5,
            11,
            "\"net:192.0.2.1/24\"",
            "not a client",
            "zeroes behind the bits",
        ),
        (
            export(&one("\"uid:1\" = \"write\""), unix),
            5,
            21,
            "\"write\"",
            "not what a client may do",
            "read-write",
        ),
        (
            export(&one("\"uid:1\" = \"read-only\", \"uid:01\" = \"read-only\""), unix),
            5,
            34,
            "\"uid:01\"",
            "are the same",
            "once",
        ),
        (
            export(&one("\"uid:1\" = \"read-only\""), tcp),
            5,
            21,
            "\"read-only\"",
            "no client has a user id",
            "",
        ),
        (
            export(&one("\"tls:a\" = \"read-only\""), tcp),
            5,
            21,
            "\"read-only\"",
            "no client shows a certificate",
            "",
        ),
        (
            export(&one("\"net:::1\" = \"read-only\""), unix),
            5,
            23,
            "\"read-only\"",
            "no client has an address",
            "",
        ),
        (
            export(&one("\"uid:1\" = \"read-only\""), &format!("{unix}\nfuse = \"e.img\"")),
            5,
            9,
            "{ \"uid:1\" = \"read-only\" }",
            "`allow` is for NBD",
            "fuse_mode",
        ),
    ]);
}
