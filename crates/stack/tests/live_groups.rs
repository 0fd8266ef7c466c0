//! The throttle groups of an open stack, as the control socket sees them.

use std::path::Path;

use drystone_core::clock::ManualClock;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, IoBuf, Sector};
use drystone_stack::iomax::{MaxLine, parse_io_max};
use drystone_stack::live::{LiveRuntime, LiveStack, OpenEnv};
use drystone_stack::runtime::{ChangeError, Refused, Runtime};
use drystone_stack::{Source, parse};

const STACK: &str = r#"
[device.d]
type = "ram"
size = "1MiB"
[device.v]
type = "linear"
members = ["d"]
[export.v]
device = "v"
nbd = "unix:v"
group = "t/a"
clients = { "uid:1" = "t/b" }
[group."t/b"]
io.max = ["v rbps=1M", "d wiops=1"]
[group."t/a"]
[group.t]
io.max = "v wbps=2M"
"#;

fn opened() -> (LiveStack, LiveRuntime) {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let spec = parse("s", source, Path::new("/srv")).unwrap_or_else(|report| panic!("{report}"));
    let at = OpenEnv::new(1, ManualClock::new(1_000));
    let stack = LiveStack::open(&spec, &at).unwrap_or_else(|report| panic!("{report}"));
    let runtime = stack.runtime(Box::new(|_| panic!("nothing waits")));
    (stack, runtime)
}

/// Paths, members, limits.
fn state(runtime: &LiveRuntime) -> Vec<(String, u64, Vec<String>)> {
    let groups = runtime.groups().into_iter();
    let lines = |lines: Vec<MaxLine>| lines.iter().map(MaxLine::to_string).collect();
    groups.map(|group| (group.path, group.members, lines(group.io_max))).collect()
}

fn entry(path: &str, lines: &[&str]) -> (String, u64, Vec<String>) {
    (path.to_owned(), 0, lines.iter().map(|line| (*line).to_owned()).collect())
}

fn refused(result: Result<(), ChangeError>, kind: Refused, sentence: &str) {
    assert_eq!(result, Err(ChangeError { refused: kind, message: sentence.to_owned() }));
}

#[test]
fn a_stack_opens_with_its_groups_and_lifts_their_limits_at_the_end() {
    let (stack, runtime) = opened();
    let [d, v] =
        ["d rbps=max wbps=max riops=max wiops=1", "v rbps=1048576 wbps=max riops=max wiops=max"];
    let of_t = "v rbps=max wbps=2097152 riops=max wiops=max";
    let expected = [entry("", &[]), entry("t", &[of_t]), entry("t/a", &[]), entry("t/b", &[d, v])];
    assert_eq!(state(&runtime), expected);
    stack.stop();
    let free = ["", "t", "t/a", "t/b"].map(|path| entry(path, &[]));
    assert_eq!(state(&runtime), free);
}

/// `set` has answered: all that comes later goes by the new value, also where the throttle cuts it.
#[test]
fn a_limit_of_a_device_holds_in_a_group_once_it_is_set() {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let spec = parse("s", source, Path::new("/srv")).unwrap_or_else(|report| panic!("{report}"));
    let at = OpenEnv::new(1, ManualClock::new(1_000));
    let stack = LiveStack::open(&spec, &at).unwrap_or_else(|report| panic!("{report}"));
    let runtime = stack.runtime(Box::new(|_| panic!("nothing waits")));
    runtime.set_group("t/a", &parse_io_max("d riops=1000000").unwrap()).unwrap();
    let group = stack.groups().join("t/a").unwrap();
    let device = stack.devices()[0].device.clone();
    let mut cx = at.contexts.open(Engine::Plain).unwrap();
    let index = cx.open(&device).unwrap();
    let mut reads = 0;
    for (kb, parts) in [(64, 1), (4, 16), (16, 4), (64, 1)] {
        device.set_attribute("queue/max_sectors_kb", &kb.to_string()).unwrap();
        let mut bio = Bio::read(Sector(0), IoBuf::zeroed(64 << 10));
        bio.group = group.id().as_u32();
        let (mut bios, mut ended) = (BioList::new(), BioList::new());
        bios.push(bio);
        cx.submit(index, &mut bios);
        cx.reap(&mut ended);
        assert!(ended.pop().is_some_and(|bio| bio.status.is_ok()));
        let stat = stack.groups().io_stat("t/a").unwrap();
        let (_, stat) = stat.into_iter().find(|(name, _)| name == "d").unwrap();
        reads += parts;
        assert_eq!(stat.rios, reads, "{kb} KiB");
    }
}

#[test]
fn whoever_uses_a_group_is_named() {
    let (stack, runtime) = opened();
    let remove = |path: &str| runtime.remove_group(path);
    refused(remove("t/a"), Refused::InUse, "group `t/a` is the group of export `v`");
    refused(remove("t"), Refused::InUse, "group `t` has `t/a` below it");
    let one = stack.groups().join("t/b").unwrap();
    refused(remove("t/b"), Refused::InUse, "group `t/b` has a client of export `v`");
    let two = one.clone();
    refused(remove("t/b"), Refused::InUse, "group `t/b` has clients of export `v`");
    drop((one, two));
    remove("t/b").unwrap();
    let missing = "there is no group `t/b`: did you mean `t/a`?";
    refused(remove("t/b"), Refused::NotFound, missing);
    refused(runtime.create_group("t/a"), Refused::Exists, "there is a group `t/a` already");
    let parent = "there is no group `tt` to make `tt/x` in: did you mean `t`? `drystone group \
        create tt` makes it";
    refused(runtime.create_group("tt/x"), Refused::NotFound, parent);
}

#[test]
fn limits_change_key_by_key() {
    let (_stack, runtime) = opened();
    let set =
        |line: &str| runtime.set_group("t/a", &parse_io_max(line).unwrap()).unwrap().to_string();
    assert_eq!(set("d rbps=5"), "d rbps=5 wbps=max riops=max wiops=max");
    assert_eq!(set("d wiops=7"), "d rbps=5 wbps=max riops=max wiops=7");
    assert_eq!(set("d rbps=max wiops=max"), "d rbps=max wbps=max riops=max wiops=max");
    let missing = runtime.set_group("t/a", &parse_io_max("x rbps=1").unwrap()).unwrap_err();
    assert_eq!(missing.refused, Refused::NotFound, "{missing}");
    assert_eq!(state(&runtime)[2], entry("t/a", &[]));
}

#[test]
fn the_root_has_the_counters_of_the_devices() {
    let (_stack, runtime) = opened();
    let paths = |path: Option<&str>, reset| {
        let stats = runtime.group_stats(path, reset)?;
        Ok::<Vec<String>, ChangeError>(stats.into_iter().map(|stat| stat.path).collect())
    };
    assert_eq!(paths(None, true).unwrap(), ["", "t", "t/a", "t/b"]);
    assert_eq!(paths(Some(""), false).unwrap(), [""]);
    assert_eq!(paths(Some("t"), true).unwrap(), ["t"]);
    assert_eq!(paths(Some(""), true).unwrap_err().refused, Refused::Unsupported);
    assert_eq!(paths(Some("x"), false).unwrap_err().refused, Refused::NotFound);
}

/// What a queue says of its cache gets through the throttle that stands before each device.
#[test]
fn a_device_tells_whether_it_has_a_volatile_cache() {
    let text = "[device.ram]\ntype = \"ram\"\nsize = \"1MiB\"\n\
                [device.null]\ntype = \"null\"\nsize = \"1MiB\"\n\
                queue = { write_cache = \"write back\" }\n";
    let source = Source { name: "s.toml".to_owned(), text: text.to_owned() };
    let spec = drystone_stack::check("s", source, Path::new("/")).unwrap();
    let stack = LiveStack::open(&spec, &OpenEnv::new(3, ManualClock::new(1_000))).unwrap();
    let has_cache = |name| {
        let devices = stack.devices();
        let live = devices.iter().find(|live| live.name == name).expect("it is open");
        live.device.has_volatile_cache()
    };
    assert_eq!((has_cache("ram"), has_cache("null")), (false, true));
}
