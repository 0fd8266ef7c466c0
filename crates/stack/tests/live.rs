//! Opening checked stacks, and the view of them that the control socket has.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use drystone_core::clock::{Clock, ManualClock};
use drystone_core::ring::Engine;
use drystone_core::sync::LockClass;
use drystone_core::{Bio, BioList, ContextSet, IoBuf, Sector};
use drystone_exports::nbd::TlsPolicy;
use drystone_stack::attributes::{ATTRIBUTES, Mode, attribute};
use drystone_stack::live::{LiveRuntime, LiveStack, OpenEnv, SleepFn};
use drystone_stack::runtime::{Runtime, SetError};
use drystone_stack::{Report, Source, StackSpec, check};
use tempfile::TempDir;

fn checked(folder: &Path, text: &str) -> Result<StackSpec, Report> {
    let source = Source { name: "s.toml".to_owned(), text: text.to_owned() };
    check("s", source, folder)
}

fn spec(folder: &Path, text: &str) -> StackSpec {
    checked(folder, text).unwrap_or_else(|report| panic!("{report}"))
}

fn open_env() -> (Arc<ManualClock>, OpenEnv) {
    let clock = ManualClock::new(1_000);
    (clock.clone(), OpenEnv::new(3, clock))
}

fn open(folder: &Path, text: &str) -> Result<LiveStack, Report> {
    LiveStack::open(&checked(folder, text)?, &open_env().1)
}

fn opened(folder: &Path, text: &str) -> LiveStack {
    open(folder, text).unwrap_or_else(|report| panic!("{report}"))
}

/// Opens a stack that must be refused with one error at `word`, whose message has all `parts`.
fn refused(folder: &Path, text: &str, word: &str, parts: &[&str]) {
    refused_spec(&spec(folder, text), word, parts);
}

fn refused_spec(spec: &StackSpec, word: &str, parts: &[&str]) {
    let opened = LiveStack::open(spec, &open_env().1);
    let Err(report) = opened else { panic!("was opened:\n{}", spec.source.text) };
    let [found] = &report.diagnostics[..] else { panic!("{report}") };
    assert_eq!(found.word, word, "{report}");
    for part in parts {
        assert!(found.message.contains(part), "no {part:?} in {report}");
    }
}

fn runtime(stack: &LiveStack) -> LiveRuntime {
    stack.runtime(Box::new(|_| panic!("nothing waits")))
}

fn value(stack: &LiveStack, device: &str, name: &str) -> String {
    runtime(stack).device(device).unwrap().attributes[name].clone()
}

fn set(stack: &LiveStack, device: &str, name: &str, text: &str) -> Result<(), SetError> {
    let attribute = attribute(name).unwrap();
    runtime(stack).set(device, attribute, &attribute.parse(text).unwrap())
}

const ALL: &str = "
[device.f]
type = \"file\"
path = \"f.img\"
size = \"1MiB\"
mode = \"0640\"
logical_block_size = 4096
queue = { nr_requests = 8, nomerges = 1, max_sectors_kb = 64, io_timeout = \"2s\" }
[device.r]
type = \"ram\"
size = \"2MiB\"
discard = false
read_only = true
queue = { iostats = false, write_cache = \"write back\", hw_queues = 2 }
[device.n]
type = \"null\"
irqmode = \"timer\"
latency = { p50 = \"10us\", max = \"1ms\" }
queue = { io_poll = true }
[export.a]
device = \"f\"
nbd = [\"unix:x.sock\", \"tcp:127.0.0.1:10809\"]
max_in_flight = 7
[export.b]
device = \"r\"
nbd = \"unix:x.sock\"
max_in_flight = 7
default = true
[export.c]
device = \"n\"
nbd = \"unix:c.sock\"
";

#[test]
fn what_the_file_says_is_what_the_devices_have() {
    let folder = TempDir::new().unwrap();
    let stack = opened(folder.path(), ALL);
    for (device, name, expected) in [
        ("f", "size", "2048"),
        ("f", "queue/nr_requests", "8"),
        ("f", "queue/nomerges", "1"),
        ("f", "queue/max_sectors_kb", "64"),
        ("f", "queue/io_timeout", "2000"),
        ("f", "queue/logical_block_size", "4096"),
        ("f", "queue/iostats", "1"),
        ("r", "ro", "1"),
        ("r", "queue/iostats", "0"),
        ("r", "queue/discard_max_bytes", "0"),
        ("r", "queue/write_cache", "write back"),
        ("n", "queue/io_poll", "1"),
        ("n", "queue/nr_requests", "64"),
    ] {
        assert_eq!(value(&stack, device, name), expected, "{device} {name}");
    }
    let null = &stack.devices()[2].device;
    assert_eq!(null.attribute("submit_queues").unwrap(), "3", "one for each data thread");
    assert_eq!(null.attribute("completion_nsec").unwrap(), "p50=10000 p100=1000000");
    for (name, expected) in [("seek_min_nsec", "0"), ("seek_max_nsec", "0")] {
        assert_eq!(null.attribute(name).unwrap(), expected, "no head");
    }
    assert_eq!(value(&stack, "n", "queue/rotational"), "0");
    let meta = fs::metadata(folder.path().join("f.img")).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (1 << 20, 0o640));
    assert_eq!(stack.engine(), Engine::Auto);
}

#[test]
fn a_null_device_with_a_head_is_a_spinning_disk() {
    let folder = TempDir::new().unwrap();
    let text = ALL.replace(
        "latency = { p50 = \"10us\", max = \"1ms\" }",
        "seek_min_nsec = \"1us\"\nseek_max_nsec = \"1ms\"",
    );
    let stack = opened(folder.path(), &text);
    for (name, expected) in [
        ("queue/rotational", "1"),
        ("queue/scheduler", "none [mq-deadline]"),
        ("queue/iosched/straight", "0"),
        ("submit_queues", "1"),
        ("seek_min_nsec", "1000"),
        ("seek_max_nsec", "1000000"),
    ] {
        let found = stack.devices()[2].device.attribute(name);
        assert_eq!(found.as_deref(), Some(expected), "{name}");
    }
}

#[test]
fn exports_are_grouped_by_address() {
    let folder = TempDir::new().unwrap();
    let stack = opened(folder.path(), ALL);
    let addresses: Vec<String> = stack.listeners().iter().map(|l| l.address.to_string()).collect();
    let socket = |name: &str| format!("unix:{}", folder.path().join(name).display());
    assert_eq!(addresses, [socket("x.sock"), "tcp:127.0.0.1:10809".to_owned(), socket("c.sock")]);
    let table = |at: usize| &stack.tables()[stack.listeners()[at].table];
    let names = |at: usize| -> Vec<String> {
        table(at).exports().iter().map(|export| export.volume.name.clone()).collect()
    };
    assert_eq!(
        (names(0), names(1), names(2)),
        (vec!["a".into(), "b".into()], vec!["a".into()], vec!["c".into()])
    );
    assert_eq!(table(0).index_of(""), Some(1), "b is the default");
    assert_eq!(table(2).index_of(""), Some(0), "the only one is the default");
    let elsewhere = TempDir::new().unwrap();
    let stack = opened(elsewhere.path(), &ALL.replace("default = true", "default = false"));
    let several = &stack.tables()[stack.listeners()[0].table];
    assert_eq!(several.index_of(""), None, "of several without a default none is");
    assert_eq!(table(0).settings().max_in_flight, 7);
    assert_eq!(stack.listeners()[0].tls.policy, TlsPolicy::Off);
}

#[test]
fn refusals_point_into_the_file() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let ram = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    refused(
        at,
        &format!("{ram}queue = {{ nr_requests = 300 }}"),
        "300",
        &["`d`", "at most 256 can be had"],
    );
    let large = "[device.d]\ntype = \"ram\"\nsize = \"4194304TiB\"\n";
    refused(at, large, "\"4194304TiB\"", &["cannot be mapped"]);
    let file = "[device.d]\ntype = \"file\"\npath = \"d.img\"\nsize = \"1MiB\"\n";
    let many = format!("{file}queue = {{ nr_requests = 3000 }}");
    refused(at, &many, "3000", &["at most 256"]);
    refused(at, &format!("{file}queue = {{ io_poll = true }}"), "true", &["no queues to poll"]);
    assert!(!at.join("d.img").exists(), "a refused device leaves no file");
    fs::write(at.join("odd.img"), [0; 5 * 512]).unwrap();
    let odd = "[device.d]\ntype = \"file\"\npath = \"odd.img\"\nlogical_block_size = 4096\n";
    refused(at, odd, "\"odd.img\"", &["2560 bytes", "multiple of 4096"]);
}

#[test]
fn a_refused_stack_leaves_only_files_that_were_there() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let file = |name: &str| {
        format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\nsize = \"1MiB\"\n")
    };
    let exists = |name: &str| at.join(name).exists();
    fs::write(at.join("old.img"), vec![7; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("target.img", at.join("link.img")).unwrap();
    let files = ["old", "new", "link"].map(file).concat();
    let bad = "[device.bad]\ntype = \"ram\"\nsize = \"4194304TiB\"\n";
    for text in [format!("{files}{bad}"), format!("{bad}{files}")] {
        refused(at, &text, "\"4194304TiB\"", &["cannot be mapped"]);
        assert_eq!(fs::read(at.join("old.img")).unwrap(), vec![7; 1 << 20]);
        assert!(!exists("new.img") && !exists("target.img"));
        assert!(at.join("link.img").is_symlink(), "the link was there before");
    }
    let stack = opened(at, &files);
    assert!(exists("new.img") && exists("target.img"));
    stack.remove_made_files();
    assert!(exists("old.img") && !exists("new.img") && !exists("target.img"));
    drop(stack);
    drop(opened(at, &files));
    opened(at, &files).remove_made_files();
    assert!(exists("new.img") && exists("target.img"), "the second start found them");
}

#[test]
fn a_file_in_use_is_refused_with_its_path() {
    let folder = TempDir::new().unwrap();
    let file = "[device.d]\ntype = \"file\"\npath = \"d.img\"\nsize = \"1MiB\"\n";
    let first = opened(folder.path(), file);
    let path = folder.path().join("d.img").display().to_string();
    refused(folder.path(), file, "\"d.img\"", &["device `d`", &path, "in use by process"]);
    drop(first);
    opened(folder.path(), file);
}

#[test]
fn devices_of_a_stack_share_an_engine() {
    let folder = TempDir::new().unwrap();
    let device = |name: &str, engine: &str| {
        format!(
            "[device.{name}]\ntype = \"file\"\npath = \"{name}\"\nsize = \"1MiB\"\nengine = \
             \"{engine}\"\n"
        )
    };
    let plain = device("a", "plain") + &device("b", "auto");
    assert_eq!(opened(folder.path(), &plain).engine(), Engine::Plain);
    let clock: Arc<dyn Clock> = ManualClock::new(0);
    if drystone_core::ring::open(Engine::Uring, clock).is_ok() {
        let both = device("a", "plain") + &device("c", "io_uring");
        refused(folder.path(), &both, "\"io_uring\"", &["`c`", "`a`", "different engines"]);
    } else {
        refused(folder.path(), &device("c", "io_uring"), "\"io_uring\"", &["`c`"]);
    }
}

#[test]
fn certificates_are_read_and_refused_where_they_stand() {
    let folder = TempDir::new().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("cert.pem", &made.cert.pem());
    for (key, text) in
        [("key.pem", made.signing_key.serialize_pem().as_str()), ("bad.pem", "nothing")]
    {
        write(key, text);
        // So that nothing else is said of it.
        fs::set_permissions(folder.path().join(key), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let text = |cert: &str, key: &str, more: &str| {
        format!(
            "[device.d]\ntype = \"null\"\n[export.e]\ndevice = \"d\"\nnbd = \"unix:e.sock\"\n\
             tls = {{ mode = \"required\", cert = \"{cert}\", key = \"{key}\"{more} }}\n"
        )
    };
    let stack = opened(folder.path(), &text("cert.pem", "key.pem", ""));
    let tls = &stack.listeners()[0].tls;
    assert!(tls.policy == TlsPolicy::Required && tls.config.is_some());
    assert!(stack.tables()[0].exports()[0].tls_required);
    let at = folder.path();
    // They are good when the stack is checked, and no longer when it is opened; bad ones are
    // refused by both.
    let bad_later = |text: String, part: &str| {
        write("bad.pem", &(made.cert.pem() + &made.signing_key.serialize_pem()));
        let good = spec(at, &text);
        write("bad.pem", "nothing");
        refused_spec(&good, "\"bad.pem\"", &[part]);
        let source = Source { name: "s.toml".to_owned(), text };
        let report = check("s", source, at).expect_err("it is bad").to_string();
        assert!(report.starts_with("error: ") && report.contains(part), "{report}");
    };
    bad_later(text("bad.pem", "key.pem", ""), "certificate");
    bad_later(text("cert.pem", "bad.pem", ""), "key");
    bad_later(text("cert.pem", "key.pem", ", client_ca = \"bad.pem\""), "client");
}

#[test]
fn attributes_are_set_in_their_units_or_refused() {
    let folder = TempDir::new().unwrap();
    let stack = opened(folder.path(), ALL);
    set(&stack, "f", "queue/io_timeout", "5s").unwrap();
    assert_eq!(value(&stack, "f", "queue/io_timeout"), "5000");
    set(&stack, "f", "queue/max_sectors_kb", "8").unwrap();
    assert_eq!(value(&stack, "f", "queue/max_sectors_kb"), "8");
    set(&stack, "f", "queue/max_sectors_kb", "0").unwrap();
    assert_eq!(value(&stack, "f", "queue/max_sectors_kb"), "1280");
    let range = set(&stack, "f", "queue/max_sectors_kb", "2000").unwrap_err();
    assert_eq!(range, SetError::OutOfRange { permitted: "4 to 1280, or 0".to_owned() });
    set(&stack, "n", "queue/io_poll", "0").unwrap();
    assert_eq!(value(&stack, "n", "queue/io_poll"), "0");
    let poll = set(&stack, "r", "queue/io_poll", "1").unwrap_err();
    assert!(matches!(&poll, SetError::Unsupported { reason } if reason.contains("poll")));
    for (attribute, value_set) in [
        ("queue/nr_requests", "32"),
        ("queue/nr_requests", "64"),
        ("queue/write_cache", "write back"),
        ("queue/write_cache", "write through"),
    ] {
        set(&stack, "n", attribute, value_set).unwrap();
        assert_eq!(value(&stack, "n", attribute), value_set);
    }
    let most: u64 = value(&stack, "f", "queue/discard_max_bytes").parse().unwrap();
    assert!(most > 1 << 20);
    set(&stack, "f", "queue/discard_max_bytes", "1MiB").unwrap();
    assert_eq!(value(&stack, "f", "queue/discard_max_bytes"), "1048576");
    set(&stack, "f", "queue/discard_max_bytes", "0").unwrap();
    assert_eq!(value(&stack, "f", "queue/discard_max_bytes"), "0");
    let depth = set(&stack, "n", "queue/nr_requests", "65").unwrap_err().to_string();
    assert!(depth.contains("from 1 to 64"), "{depth}");
    let discard = set(&stack, "f", "queue/discard_max_bytes", "512").unwrap_err().to_string();
    assert!(discard.contains("a multiple of 4096"), "{discard}");
    assert_eq!(set(&stack, "x", "queue/iostats", "1"), Err(SetError::NoSuchDevice));
}

/// One device of each kind, with all that can be left to the driver left to it.
const KINDS: &str = "
[device.f]
type = \"file\"
path = \"f.img\"
size = \"1MiB\"
[device.r]
type = \"ram\"
size = \"2MiB\"
[device.n]
type = \"null\"
hw_queue_depth = 1
[device.m]
type = \"null\"
size = \"1MiB\"
memory_backed = true
discard = true
poll_queues = 1
";

#[test]
fn every_settable_attribute_takes_the_value_that_it_has() {
    let folder = TempDir::new().unwrap();
    let stack = opened(folder.path(), KINDS);
    let settable = || ATTRIBUTES.iter().filter(|attribute| attribute.mode == Mode::ReadWrite);
    for live in stack.devices() {
        // With a scheduler, so that its tunables are there.
        set(&stack, &live.name, "queue/scheduler", "mq-deadline").unwrap();
        let kind = live.device.info().kind;
        let of_null = ["submit_queues", "poll_queues"];
        let has =
            |name: &&str| (kind == "null" || !of_null.contains(name)) && !name.starts_with("md/");
        for attribute in settable().map(|attribute| attribute.name).filter(has) {
            let now = value(&stack, &live.name, attribute);
            let text = match attribute {
                "size" => (now.parse::<u64>().unwrap() * 512).to_string(),
                "queue/scheduler" => {
                    let start = now.find('[').unwrap() + 1;
                    now[start..now.find(']').unwrap()].to_owned()
                }
                _ => now.clone(),
            };
            match (attribute, set(&stack, &live.name, attribute, &text)) {
                (_, Ok(())) => {}
                ("size", Err(SetError::Unsupported { .. })) if kind != "file" => {}
                (_, Err(error)) => panic!("{} {attribute}={text}: {error}", live.name),
            }
            assert_eq!(value(&stack, &live.name, attribute), now, "{} {attribute}", live.name);
        }
    }
}

#[test]
fn attributes_that_are_only_shown_cannot_be_set() {
    let folder = TempDir::new().unwrap();
    let volume = "[device.v]\ntable = \"0 8 linear r 0\"\n";
    let stack = opened(folder.path(), &(KINDS.to_owned() + volume + ARRAY));
    for attribute in ATTRIBUTES.iter().filter(|attribute| attribute.mode == Mode::ReadOnly) {
        let mut holders = 0;
        for live in stack.devices() {
            let Some(now) = live.device.attribute(attribute.name) else { continue };
            live.device.set_attribute(attribute.name, &now).expect_err(attribute.name);
            holders += 1;
        }
        assert!(holders > 0, "no device has {}", attribute.name);
    }
}

const ARRAY: &str = "
[device.a0]
type = \"ram\"
size = \"2MiB\"
[device.a1]
type = \"ram\"
size = \"2MiB\"
[device.a2]
type = \"ram\"
size = \"2MiB\"
[device.array]
type = \"raid5\"
members = [\"a0\", \"a1\", \"a2\"]
chunk = \"64KiB\"
";

#[test]
fn a_member_that_is_made_impatient_is_a_warning() {
    use drystone_stack::control::{Control, ServerInfo, request};
    let folder = TempDir::new().unwrap();
    let lone = "[device.alone]\ntype = \"ram\"\nsize = \"2MiB\"\n";
    let deep = "[device.deep]\ntype = \"ram\"\nsize = \"4MiB\"\n\
                [device.low]\ntype = \"linear\"\nmembers = [\"deep\"]\n\
                [device.high]\ntype = \"linear\"\nmembers = [\"low\"]\n\
                [device.o1]\ntype = \"ram\"\nsize = \"4MiB\"\n\
                [device.o2]\ntype = \"ram\"\nsize = \"4MiB\"\n\
                [device.other]\ntype = \"raid5\"\nmembers = [\"high\", \"o1\", \"o2\"]\n";
    let stack = opened(folder.path(), &format!("{ARRAY}{lone}{deep}"));
    let server = ServerInfo { version: String::new(), pid: 1, stack: String::new() };
    let runtime = stack.runtime(Box::new(|_| std::thread::yield_now()));
    let set = |device, attribute, value| -> serde_json::Value {
        let arguments = [("device", device), ("attribute", attribute), ("value", value)];
        let line = Control::new(&runtime, &server).handle(&request("set", &arguments));
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["result"].take()
    };
    let told = set("a1", "queue/io_timeout", "1");
    let text = "the array `array` may fail its member `a1` after one slow request: \
        set io_timeout to 1s or more; the default is 30s";
    assert_eq!((&told["value"], &told["warning"]), (&"1".into(), &text.into()));
    for (device, attribute, value) in [
        ("a1", "queue/io_timeout", "1000"),
        ("alone", "queue/io_timeout", "1"),
        ("a1", "queue/nomerges", "1"),
    ] {
        let told = set(device, attribute, value);
        assert_eq!(
            (&told["value"], &told["warning"]),
            (&value.into(), &serde_json::Value::Null),
            "{told}"
        );
    }
    // One below a member, by two volumes.
    let told = set("deep", "queue/io_timeout", "20");
    let text = "the array `other` may fail its member `high` after one slow request of `deep` \
        below it: set io_timeout to 1s or more; the default is 30s";
    assert_eq!((&told["value"], &told["warning"]), (&"20".into(), &text.into()));
    // One that was impatient before it became a member.
    let made = Control::new(&runtime, &server)
        .handle(&request("md-add", &[("device", "array"), ("member", "alone")]));
    assert!(made.contains("the array `array` may fail its member `alone`"), "{made}");
}

#[test]
fn a_size_that_the_stack_file_does_not_say_is_a_warning() {
    use drystone_stack::control::{Control, ServerInfo, request};
    let folder = TempDir::new().unwrap();
    for name in ["grows.img", "fixed.img"] {
        fs::File::create(folder.path().join(name)).unwrap().set_len(1 << 20).unwrap();
    }
    let files = "[device.sized]\ntype = \"file\"\npath = \"f.img\"\nsize = \"1MiB\"\n\
                 [device.grows]\ntype = \"file\"\npath = \"grows.img\"\n\
                 [device.fixed]\ntype = \"file\"\npath = \"fixed.img\"\nread_only = true\n";
    let stack = opened(folder.path(), files);
    let server = ServerInfo { version: String::new(), pid: 1, stack: String::new() };
    let runtime = stack.runtime(Box::new(|_| std::thread::yield_now()));
    let set = |device, value| -> serde_json::Value {
        let arguments = [("device", device), ("attribute", "size"), ("value", value)];
        let line = Control::new(&runtime, &server).handle(&request("set", &arguments));
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    let none = &serde_json::Value::Null;
    assert_eq!(&set("sized", "1MiB")["result"]["warning"], none);
    let told = set("sized", "2MiB");
    let text = "`sized` has this size until the server stops; to keep it, write size = \"2MiB\" \
        into the stack file";
    assert_eq!(told["result"]["warning"], text);
    // The file has grown, and its device has its size after the next start too.
    let told = set("grows", "2MiB");
    assert_eq!((&told["result"]["value"], &told["result"]["warning"]), (&"2097152".into(), none));
    // A refused attribute is shown as such.
    assert!(set("fixed", "2MiB")["error"]["message"].as_str().unwrap().contains("read-only"));
    let modes =
        ["sized", "grows", "fixed"].map(|name| runtime.device(name).unwrap().modes()["size"]);
    assert_eq!(modes, ["rw", "rw", "ro"]);
}

#[test]
fn an_array_has_attributes_of_its_own() {
    let folder = TempDir::new().unwrap();
    let stack = opened(folder.path(), ARRAY);
    for (name, expected) in [
        ("size", "4096"),
        ("md/level", "raid5"),
        ("md/layout", "2"),
        ("md/raid_disks", "3"),
        ("md/chunk_size", "65536"),
        ("md/degraded", "0"),
        ("md/array_state", "clean"),
        ("md/sync_action", "idle"),
        ("md/sync_completed", "none"),
        ("md/stripe_cache_size", "1024"),
        ("queue/minimum_io_size", "65536"),
        ("queue/optimal_io_size", "131072"),
    ] {
        assert_eq!(value(&stack, "array", name), expected, "{name}");
    }
    for (name, text) in [("md/stripe_cache_size", "17"), ("md/rmw_level", "2")] {
        set(&stack, "array", name, text).unwrap();
        assert_eq!(value(&stack, "array", name), text);
    }
    let error = set(&stack, "array", "size", "4MiB").unwrap_err().to_string();
    assert!(error.contains("an array keeps its size"), "{error}");
}

/// A check gives an array the size that the start gives it.
#[test]
fn the_size_of_an_array_is_known_before_it_is_opened() {
    let folder = TempDir::new().unwrap();
    let members = |keys: &str| -> String {
        let member = |n: u32| format!("[device.d{n}]\n{}\n", keys.replace('#', &n.to_string()));
        (0..3).map(member).collect()
    };
    let array = "[device.array]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\"]\n\
                 chunk = \"64KiB\"\n\
                 [device.all]\ntype = \"linear\"\nmembers = [\"array\"]\n";
    // Of files one start makes the array, and the next one finds it.
    let file = "type = \"file\"\npath = \"d#.img\"\nsize = \"32MiB\"";
    let ram = "type = \"ram\"\nsize = \"32MiB\"";
    let null = "type = \"null\"\nsize = \"32MiB\"\nmemory_backed = true";
    for keys in [ram, null, file, file] {
        let text = format!("{}{array}", members(keys));
        let told = spec(folder.path(), &text).sizes;
        let stack = opened(folder.path(), &text);
        for device in ["array", "all"] {
            let sectors = told.get(device).map(|bytes| (bytes / 512).to_string());
            assert_eq!(sectors, Some(value(&stack, device, "size")), "{device} of {keys}");
        }
        stack.stop_arrays(&(Box::new(|_| std::thread::yield_now()) as SleepFn)).unwrap();
    }
}

/// A file array is made by the start that makes its files, and found by the next; what held
/// something before is never made into one.
#[test]
fn arrays_are_found_again_and_never_made_of_what_was_there() {
    let folder = TempDir::new().unwrap();
    let file =
        |n: u32| format!("[device.d{n}]\ntype = \"file\"\npath = \"d{n}.img\"\nsize = \"4MiB\"\n");
    let files: String = (0..3).map(file).collect();
    let array = |keys: &str| {
        format!(
            "{files}[device.array]\ntype = \"raid5\"\nmembers = [\"d2\", \"d0\", \"d1\"]\n{keys}\n"
        )
    };
    let made = opened(folder.path(), &array("chunk = \"4KiB\""));
    let stop = |stack: LiveStack| {
        stack.stop_arrays(&(Box::new(|_| std::thread::yield_now()) as SleepFn)).unwrap();
    };
    stop(made);
    let found = opened(folder.path(), &array(""));
    assert_eq!(value(&found, "array", "md/chunk_size"), "4096");
    stop(found);
    refused(folder.path(), &array("chunk = \"8KiB\""), "\"8KiB\"", &["4 KiB"]);
    // One member blank, then all of them.
    let blank = |n: u32| {
        let path = folder.path().join(format!("d{n}.img"));
        std::fs::write(path, vec![0; 4 << 20]).unwrap();
    };
    blank(1);
    let members = "[\"d2\", \"d0\", \"d1\"]";
    refused(folder.path(), &array(""), members, &["`d1`", "belongs to no array"]);
    [0, 2].into_iter().for_each(blank);
    refused(folder.path(), &array(""), members, &["hold no array"]);
    // Foreign contents are named.
    let mut other = vec![0; 4 << 20];
    other[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    std::fs::write(folder.path().join("d0.img"), other).unwrap();
    let words = ["`d0` appears to contain an ext2 file system", "no md 1.x array"];
    refused(folder.path(), &array(""), members, &words);
    // A partition table, at the start or only its copy at the end, beside blank members.
    let tables = [
        (512, &b"EFI PART"[..], "a GPT partition table"),
        ((4 << 20) - 512, &b"EFI PART"[..], "a GPT partition table"),
        (510, &[0x55, 0xAA][..], "an MBR partition table"),
    ];
    [0, 1, 2].into_iter().for_each(blank);
    for (n, (at, bytes, what)) in (0..).zip(tables) {
        let path = folder.path().join(format!("d{n}.img"));
        let mut table = vec![0; 4 << 20];
        table[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&path, &table).unwrap();
        let named = format!("`d{n}` appears to contain {what}");
        refused(folder.path(), &array(""), members, &[&named, "no md 1.x array"]);
        let Err(report) = open(folder.path(), &array("")) else { panic!("was opened") };
        // Nobody is led to overwrite a disk whose partitions may be the members.
        let line = format!("table = \"0 SECTORS linear d{n} START\"");
        assert!(report.to_string().contains(&line), "{report}");
        assert!(!report.to_string().contains("md create"), "{report}");
        assert!(std::fs::read(&path).unwrap() == table, "it is not written");
        blank(n);
    }
}

/// A member divides a read and fails a part of it: the read comes back to the array as a whole.
#[test]
fn a_read_that_a_member_fails_in_part_is_computed() {
    let folder = TempDir::new().unwrap();
    let disk = |n: u32, keys: &str| {
        format!("[device.d{n}]\ntype = \"null\"\nsize = \"8MiB\"\nmemory_backed = true\n{keys}")
    };
    let bad = disk(1, "badblocks = [\"9001-9002\"]\nqueue = { max_sectors_kb = 4 }\n");
    let array =
        "[device.array]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\"]\nchunk = \"64KiB\"\n";
    let text = [disk(0, ""), bad, disk(2, ""), array.to_owned()].concat();
    let at = open_env().1;
    let stack = LiveStack::open(&spec(folder.path(), &text), &at).unwrap();
    let device = stack.devices().iter().find(|live| live.name == "array").unwrap().device.clone();
    let mut cx = at.contexts.open(Engine::Plain).unwrap();
    let index = cx.open(&device).unwrap();
    let (mut bios, mut done) = (BioList::new(), BioList::new());
    let reads = (0..device.info().size_bytes).step_by(64 << 10).count() as u64;
    for n in 0..reads {
        bios.push(Bio::read(Sector(n * 128), IoBuf::from_slice(&[0xEE; 64 << 10])));
    }
    cx.submit(index, &mut bios);
    while done.len() < reads as usize {
        if cx.reap(&mut done) == 0 {
            cx.wait(None);
        }
    }
    for (n, bio) in (0..).zip(done.iter()) {
        assert!(bio.status.is_ok() && bio.sector.0 % 128 == 0, "read {n}: {bio:?}");
        assert!(bio.buf().unwrap().iter().all(|byte| *byte == 0), "of nothing that was written");
    }
    let stats = device.stats();
    assert_eq!((stats.fields()[0], stats.in_flight()), (reads, (0, 0)));
}

/// Attributes of a volume that can be set, and its answer to the rest.
#[test]
fn a_volume_has_few_attributes_to_set() {
    let folder = TempDir::new().unwrap();
    let volume = "[device.v]\ntype = \"striped\"\nmembers = [\"f\", \"r\"]\n\
                  read_only = true\nqueue = { iostats = false }\n";
    let stack = opened(folder.path(), &(KINDS.to_owned() + volume));
    for (name, expected) in [
        ("size", "4096"),
        ("ro", "1"),
        ("queue/iostats", "0"),
        ("queue/minimum_io_size", "65536"),
        ("queue/optimal_io_size", "131072"),
        ("dm/name", "v"),
        ("dm/suspended", "0"),
    ] {
        assert_eq!(value(&stack, "v", name), expected, "{name}");
    }
    set(&stack, "v", "queue/iostats", "1").unwrap();
    assert_eq!(value(&stack, "v", "queue/iostats"), "1");
    for (name, text, sentence) in [
        ("size", "4MiB", "a volume has the size of its table: reload it"),
        ("queue/nr_requests", "8", "queue/nr_requests is not an attribute of v"),
        ("queue/write_cache", "write back", "queue/write_cache of v cannot be changed"),
    ] {
        let error = set(&stack, "v", name, text).unwrap_err();
        assert_eq!(error, SetError::Unsupported { reason: sentence.to_owned() });
    }
    let detail = runtime(&stack).device("v").unwrap();
    assert_eq!(detail.members, ["f", "r"]);
    assert_eq!(detail.description, "0 4096 striped 2 128 f 0 r 0");
    assert_eq!(detail.kind, "striped");
}

#[test]
fn volumes_of_files_are_completed_when_they_are_opened() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("f.img"), vec![7; 5 << 10]).unwrap();
    fs::write(folder.path().join("g.img"), vec![9; 3 << 10]).unwrap();
    let file = |name| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n");
    let text = "[device.all]\ntype = \"linear\"\nmembers = [\"f\", \"g\"]\n\
                [device.top]\ntable = \"0 8 linear all 8\"\n"
        .to_owned()
        + &file("f")
        + &file("g");
    assert_eq!(spec(folder.path(), &text).sizes["all"], 8 << 10);
    let stack = opened(folder.path(), &text);
    let table = runtime(&stack).volume("all").unwrap().live.unwrap().text;
    assert_eq!(table, "0 10 linear f 0\n10 6 linear g 0\n");
    drop(stack);
    let large = text.replace("0 8 linear all 8", "0 9 linear all 8");
    let source = Source { name: "s".to_owned(), text: large };
    let report = check("s", source, folder.path()).unwrap_err();
    assert!(report.diagnostics[0].message.contains("`all` is too small"), "{report}");
}

#[test]
fn a_volume_that_does_not_fit_its_members_is_refused_where_it_stands() {
    let folder = TempDir::new().unwrap();
    let blocks = "[device.b]\ntype = \"ram\"\nsize = \"1MiB\"\nlogical_block_size = 4096\n";
    let of = |keys: &str| format!("[device.v]\n{keys}\n{blocks}");
    let odd = "line 1 of the table: its 4 sectors from 0 are not whole blocks of 4096 bytes";
    refused(folder.path(), &of("table = \"0 4 linear b 0\""), "\"0 4 linear b 0\"", &[odd]);
    let chunk = "a chunk of 2 sectors is not whole blocks of 4096 bytes";
    let striped = "type = \"striped\"\nmembers = [\"b\"]\nchunk = 1024";
    refused(folder.path(), &of(striped), "[\"b\"]", &["device `v`", chunk]);
}

#[test]
fn a_file_grows_and_nothing_else_does() {
    let folder = TempDir::new().unwrap();
    let stack = opened(folder.path(), ALL);
    set(&stack, "f", "size", "3MiB").unwrap();
    assert_eq!(value(&stack, "f", "size"), "6144");
    assert_eq!(runtime(&stack).devices()[0].size, 3 << 20);
    assert_eq!(fs::metadata(folder.path().join("f.img")).unwrap().len(), 3 << 20);
    for wrong in ["2MiB", "3146240"] {
        let error = set(&stack, "f", "size", wrong).unwrap_err();
        let SetError::OutOfRange { permitted } = &error else { panic!("{wrong}: {error}") };
        assert!(permitted.contains("3MiB or more, in blocks of 4096"), "{permitted}");
    }
    let error = set(&stack, "r", "size", "3MiB").unwrap_err();
    assert!(error.to_string().contains("a ram device keeps its size"), "{error}");
    assert_eq!(value(&stack, "f", "size"), "6144");
}

#[test]
fn listings_show_the_live_stack() {
    let folder = TempDir::new().unwrap();
    let (clock, at) = open_env();
    let stack = LiveStack::open(&spec(folder.path(), ALL), &at).unwrap();
    let runtime = runtime(&stack);
    clock.advance(500);
    assert_eq!(runtime.uptime_ns(), 500);
    let devices = runtime.devices();
    let kinds: Vec<(&str, &str, bool)> =
        devices.iter().map(|d| (&*d.name, &*d.kind, d.read_only)).collect();
    assert_eq!(kinds, [("f", "file", false), ("r", "ram", true), ("n", "null", false)]);
    let detail = runtime.device("f").unwrap();
    assert!(detail.description.ends_with("f.img") && detail.exports == ["a"], "{detail:?}");
    assert_eq!(runtime.device("x"), None);
    let clients = &stack.live_exports()[2].volume.clients;
    let client = clients.enter();
    let exports = runtime.exports();
    drop(client);
    assert_eq!(exports[0].uris.len(), 2);
    assert!(!exports[0].read_only && exports[1].read_only, "as their devices");
    assert_eq!(exports.iter().map(|e| e.connections).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(runtime.exports()[2].connections, 0);
}

#[test]
fn counters_are_those_of_the_devices() {
    let folder = TempDir::new().unwrap();
    let text = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    let (_, at) = open_env();
    let stack = LiveStack::open(&spec(folder.path(), text), &at).unwrap();
    let mut cx = ContextSet::new(at.clock).open(Engine::Plain).unwrap();
    let device = cx.open(&stack.devices()[0].device).unwrap();
    let (mut bios, mut done) = (BioList::new(), BioList::new());
    bios.push(Bio::write(Sector(8), IoBuf::zeroed(4096)));
    bios.push(Bio::read(Sector(0), IoBuf::zeroed(1024)));
    cx.submit(device, &mut bios);
    cx.reap(&mut done);
    assert_eq!(done.len(), 2);
    let stats = &runtime(&stack).diskstats()[0];
    let counted = (stats.reads, stats.sectors_read, stats.writes, stats.sectors_written);
    assert_eq!((counted, stats.in_flight), ((1, 2, 1, 8), 0));
}

/// Writes a block through a context that is then dropped.
fn write_once(set: &Arc<ContextSet>, stack: &LiveStack) {
    let mut cx = set.open(Engine::Plain).unwrap();
    let device = cx.open(&stack.devices()[0].device).unwrap();
    let (mut bios, mut done) = (BioList::new(), BioList::new());
    bios.push(Bio::write(Sector(0), IoBuf::zeroed(4096)));
    cx.submit(device, &mut bios);
    while cx.reap(&mut done) == 0 {
        cx.wait(None);
    }
}

#[test]
fn locks_are_counted_for_contexts_that_are_gone_too() {
    const CONTEXTS: u64 = 20;
    let folder = TempDir::new().unwrap();
    let text = "[device.d]\ntype = \"file\"\npath = \"d.img\"\nsize = \"1MiB\"\n";
    let stack = opened(folder.path(), text);
    let set = ContextSet::counted_by(stack.locks().clone());
    let runtime = runtime(&stack);
    let taken = |class| runtime.locks().stats().get(class).acquisitions;
    let control = taken(LockClass::Control);
    (0..CONTEXTS).for_each(|_| write_once(&set, &stack));
    assert!(taken(LockClass::PlainRing) >= CONTEXTS, "by the contexts");
    assert!(taken(LockClass::ContextSet) >= CONTEXTS, "by their set");
    assert!(taken(LockClass::Control) - control > CONTEXTS, "by the device's queue");
    runtime.locks().reset();
    assert!(taken(LockClass::PlainRing) < CONTEXTS && taken(LockClass::ContextSet) == 0);
    write_once(&set, &stack);
    assert!(taken(LockClass::ContextSet) > 0);
}
