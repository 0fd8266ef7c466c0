//! No key of a stack file is ever ignored: each key, with each type of device and each way in of an
//! export, changes the stack, or is refused by its name. The keys come from the schema, so that a
//! new one without a sample here fails.

use std::fs;

use drystone_core::clock::SystemClock;
use drystone_stack::attributes::ATTRIBUTES;
use drystone_stack::live::{OpenEnv, open_device};
use drystone_stack::schema::{
    DEVICE_COMMON, DEVICE_KINDS, DEVICE_WHAT, EXPORT, GROUP, IO, IO_PRIO, Param, QUEUE, SERVER, TLS,
};
use drystone_stack::{Source, StackSpec, check};
use tempfile::TempDir;

/// The least text of each type of device, in each form in which its keys may mean something else.
const FORMS: &[(&str, &[&str])] = &[
    ("file", &["path = 'f.img'"]),
    ("ram", &["size = '1MiB'"]),
    (
        "null",
        &[
            "",
            "irqmode = 'timer'",
            "irqmode = 'timer'\nseek_max_nsec = '9us'",
            "memory_backed = true",
            "memory_backed = true\ncache_size = '1MiB'",
        ],
    ),
    ("linear", &["members = ['m0']"]),
    ("striped", &["members = ['m0', 'm1']"]),
    ("raid4", &["members = ['m0', 'm1', 'm2']"]),
    ("raid5", &["members = ['m0', 'm1', 'm2']"]),
    ("raid6", &["members = ['m0', 'm1', 'm2', 'm3']"]),
    ("zero", &["size = '1MiB'"]),
    ("error", &["size = '1MiB'"]),
    ("table", &["table = '0 8 zero'"]),
];

/// A value of each key that is not its default.
const SAMPLES: &[(&str, &str)] = &[
    ("path", "'g.img'"),
    ("size", "'512KiB'"),
    ("create", "'never'"),
    ("mode", "'0640'"),
    ("direct", "false"),
    ("engine", "'plain'"),
    ("detect_holes", "false"),
    ("discard", "@not"),
    ("detect_holes", "@not"),
    ("blocksize", "4096"),
    ("irqmode", "'thread'"),
    ("completion_nsec", "'3us'"),
    ("latency", "{ p50 = '10us', max = '1ms' }"),
    ("seek_min_nsec", "'1us'"),
    ("seek_max_nsec", "'8us'"),
    ("submit_queues", "3"),
    ("poll_queues", "2"),
    ("skip_busy", "@not"),
    ("hw_queue_depth", "33"),
    ("memory_backed", "@not"),
    ("mbps", "5"),
    ("badblocks", "'1-2'"),
    ("cache_size", "'2MiB'"),
    ("fua", "@not"),
    ("members", "['m3', 'm2', 'm1']"),
    ("raid_devices", "3"),
    ("chunk", "'128KiB'"),
    ("layout", "'right-symmetric'"),
    ("consistency_policy", "'bitmap'"),
    ("uuid", "'0a0b0c0d:11223344:55667788:99aabbcc'"),
    ("stripe_cache_size", "512"),
    ("run", "@not"),
    ("force", "@not"),
    ("read_only", "@not"),
    ("logical_block_size", "4096"),
    ("physical_block_size", "8192"),
    ("scheduler", "@scheduler"),
    ("read_expire", "77"),
    ("write_expire", "78"),
    ("prio_aging_expire", "79"),
    ("writes_starved", "7"),
    ("fifo_batch", "8"),
    ("front_merges", "false"),
    ("straight", "@not"),
    ("async_depth", "9"),
    ("nr_requests", "10"),
    ("nomerges", "2"),
    ("io_poll", "@not"),
    ("max_sectors_kb", "64"),
    ("io_timeout", "'7s'"),
    ("iostats", "@not"),
    ("write_cache", "@cache"),
    ("hw_queues", "2"),
    ("device", "'other'"),
    ("nbd", "'unix:n.sock'"),
    ("fuse", "'v.img'"),
    ("fuse_loop", "@not"),
    ("fuse_allow_other", "@not"),
    ("allow", "{ 'uid:7' = 'read-only' }"), // as for clients
    ("fuse_mode", "'0640'"),
    ("fuse_uid", "7"),
    ("fuse_gid", "7"),
    ("fuse_writeback_cache", "@not"),
    ("fuse_ignore_truncate", "@not"),
    ("description", "'text'"),
    ("default", "@not"),
    ("multi_conn", "@not"),
    ("zero_copy", "@not"),
    ("io", "{ prio = { class = 'idle' } }"),
    ("prio_level", "3"),
    ("group", "'g'"),
    ("clients", "{ 'uid:7' = 'g' }"), // the line that a refusal shows has the key
    ("tls", "{ mode = 'required', cert = 'c.pem', key = 'k.pem' }"),
    ("max_connections", "7"),
    ("max_connections_per_client", "7"),
    ("max_in_flight", "7"),
    ("max_request", "'1MiB'"),
    ("handshake_timeout", "'7s'"),
    ("idle_timeout", "'7s'"),
    ("peer_timeout", "'7s'"),
    ("threads", "3"),
    ("poll_mode", "'poll'"),
    ("memory", "'64MiB'"),
    ("control", "'c.sock'"),
];

/// Keys of an export that say something of connections, which a file has none of.
const OF_NBD: &[&str] = &[
    "multi_conn",
    "zero_copy",
    "tls",
    "description",
    "max_connections",
    "max_connections_per_client",
    "max_in_flight",
    "max_request",
    "handshake_timeout",
    "idle_timeout",
    "peer_timeout",
];

struct Stand {
    folder: TempDir,
}

impl Stand {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for name in ["f.img", "g.img"] {
            fs::File::create(folder.path().join(name)).unwrap().set_len(1 << 20).unwrap();
        }
        for name in ["c.pem", "k.pem"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        Stand { folder }
    }

    /// The stack, or the diagnostics.
    fn check(&self, text: &str) -> Result<StackSpec, String> {
        let source = Source { name: "keys.toml".to_owned(), text: text.to_owned() };
        check("keys", source, self.folder.path()).map_err(|report| report.render(false))
    }

    /// The fault of a line that is added to a good stack.
    fn ignored(&self, key: &str, [base, with]: [&str; 2], see: See<'_>) -> Option<String> {
        let base = self.check(base).unwrap_or_else(|report| panic!("{report}"));
        match self.check(with) {
            Err(report) if report.contains(key) => None,
            Err(report) => Some(format!("refused, but `{key}` is not named: {report}")),
            Ok(stack) if see(&stack) == see(&base) => Some(format!("`{key}` is ignored:\n{with}")),
            Ok(_) => None,
        }
    }
}

type See<'a> = &'a dyn Fn(&StackSpec) -> String;

/// The sample of a key; `@` stands for what depends on where it is.
fn sample(param: &Param, kind: &str) -> String {
    let found = SAMPLES.iter().find(|(key, _)| *key == param.key);
    let (_, text) = found.unwrap_or_else(|| panic!("`{}` has no value in SAMPLES", param.key));
    let is_on = match param.default {
        drystone_stack::schema::IfAbsent::Value(text) => text == "true",
        _ => param.key == "straight",
    };
    match *text {
        "@not" => (!is_on).to_string(),
        "@scheduler" => "'mq-deadline'".to_owned(),
        "@cache" if kind == "file" => "'write through'".to_owned(),
        "@cache" => "'write back'".to_owned(),
        text => text.to_owned(),
    }
}

/// A stack with the device `d`.
fn stack(kind: &str, form: &str, line: &str) -> String {
    let ty = if kind == "table" { String::new() } else { format!("type = '{kind}'\n") };
    let given = line.split(" = ").next().unwrap_or("");
    let own = form.lines().filter(|own| !own.starts_with(&format!("{given} = ")));
    let own: String = own.map(|own| format!("{own}\n")).collect();
    let members = (0..4).map(|n| format!("[device.m{n}]\ntype = 'ram'\nsize = '32MiB'\n"));
    let members: String = members.collect();
    format!(
        "[device.d]\n{ty}{own}{line}\n{members}[export.e]\ndevice = 'd'\nread_only = true\nnbd = \
         'unix:e.sock'\n"
    )
}

/// The device as it was read; of one that stands on nothing also as it is, opened.
fn device(stack: &StackSpec) -> String {
    let spec = stack.device("d").unwrap();
    format!("{spec:?} {:?}", stack.sizes.get("d"))
}

/// The attributes of the opened device.
fn attributes(stack: &StackSpec) -> String {
    let at = OpenEnv::new(1, SystemClock::new());
    let device = match open_device(stack.device("d").unwrap(), &at) {
        Ok(device) => device,
        Err(refused) => return format!("{refused:?}"),
    };
    let value = |name| format!("{name}={:?}", device.attribute(name));
    let names = ATTRIBUTES.iter().map(|attribute| attribute.name);
    names.map(value).collect::<Vec<_>>().join(" ")
}

#[test]
fn no_key_of_a_device_is_ignored() {
    let stand = Stand::new();
    let mut wrong = Vec::new();
    let kinds = DEVICE_KINDS.iter().map(|kind| (kind.name, kind.params));
    for (kind, own) in kinds.chain([("table", &[][..])]) {
        let (_, forms) = FORMS.iter().find(|(name, _)| *name == kind).expect("its forms");
        for form in *forms {
            let base = stack(kind, form, "");
            for param in own.iter().chain(DEVICE_COMMON).filter(|param| param.key != "queue") {
                let line = format!("{} = {}", param.key, sample(param, kind));
                let with = stack(kind, form, &line);
                if form.lines().any(|own| own == line) {
                    continue;
                }
                wrong.extend(stand.ignored(param.key, [&base, &with], &device));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(DEVICE_WHAT.len(), 2, "`type` and `table` are what the forms are of");
}

#[test]
fn no_key_of_a_queue_is_ignored() {
    let stand = Stand::new();
    let mut wrong = Vec::new();
    for (kind, forms) in FORMS {
        let opens = ["file", "ram", "null"].contains(kind);
        let see: See<'_> = if opens { &attributes } else { &device };
        for scheduler in ["", "scheduler = 'none'", "scheduler = 'mq-deadline'"] {
            if !opens && !scheduler.is_empty() {
                continue;
            }
            let base = stack(kind, forms[0], &format!("queue = {{ {scheduler} }}"));
            for param in QUEUE {
                let value = sample(param, kind);
                let mut keys = vec![format!("{} = {value}", param.key)];
                // On a table of one key each.
                if !scheduler.is_empty() && param.key != "scheduler" {
                    keys.push(scheduler.to_owned());
                }
                if param.key == "scheduler" && !scheduler.is_empty() {
                    continue;
                }
                let with = stack(kind, forms[0], &format!("queue = {{ {} }}", keys.join(", ")));
                wrong.extend(stand.ignored(param.key, [&base, &with], see));
                if kind.starts_with("raid") && stand.check(&with).is_ok() {
                    wrong.push(format!("`{}` is taken of an array, which has no queue", param.key));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// 500 000 lines, of which each is wrong: counted, not parsed.
#[test]
fn a_table_is_counted_before_it_is_parsed() {
    let stand = Stand::new();
    let lines = "0 8 nothing there\n".repeat(500_000);
    let text = format!("[device.d]\ntable = \"\"\"\n{lines}\"\"\"\n");
    let report = stand.check(&text).expect_err("too many");
    assert!(report.contains("more than 4096 lines"), "{report}");
    assert_eq!(report.matches("error:").count(), 1, "no line is looked at: {report}");
}

#[test]
fn a_broken_export_makes_no_second_finding() {
    let stand = Stand::new();
    for (nbd, hint) in [
        ("unix://x.sock", "write \"unix:x.sock\""),
        ("unix:///run/x.sock", "write \"unix:/run/x.sock\""),
        ("tcp://localhost:1", "tcp:HOST:PORT"),
    ] {
        let text = with_export(&["device = 'd'", &format!("nbd = '{nbd}'")]);
        let report = stand.check(&text).expect_err("no address");
        assert!(report.contains(hint) && !report.contains("is not used"), "{report}");
    }
}

#[test]
fn what_others_call_a_kind_leads_to_ours() {
    let stand = Stand::new();
    for (word, kind) in
        [("raid", "raid5"), ("raid0", "striped"), ("jbod", "linear"), ("raw", "file")]
    {
        let report = stand.check(&stack(word, "", "")).expect_err("no kind");
        assert!(report.contains(&format!("did you mean `{kind}`?")), "{report}");
    }
    for word in ["disk.img", "/dev/sda"] {
        let report = stand.check(&stack(word, "", "")).expect_err("no kind");
        assert!(
            report.contains("a file or block device is of type `file`, with `path`"),
            "{report}"
        );
    }
    for word in ["mirror", "raid10", "raid1"] {
        let report = stand.check(&stack(word, "", "")).expect_err("no kind");
        assert!(report.contains("there are no mirrors; `raid5` survives"), "{report}");
        assert!(!report.contains("did you mean"), "{report}");
    }
}

fn with_export(lines: &[&str]) -> String {
    let ram = |name: &str| format!("[device.{name}]\ntype = 'ram'\nsize = '1MiB'\n");
    let export = format!("[export.e]\n{}\n", lines.join("\n"));
    format!("[group.g]\n{}{}{export}", ram("d"), ram("other"))
}

#[test]
fn no_key_of_an_export_is_ignored() {
    let stand = Stand::new();
    let mut wrong = Vec::new();
    let ways: [&[&str]; 3] =
        [&["nbd = 'unix:e.sock'"], &["nbd = 'tcp:localhost:1'"], &["fuse = 'e.img'"]];
    for way in ways {
        let base = [way, &["device = 'd'"]].concat();
        for param in EXPORT {
            let line = format!("{} = {}", param.key, sample(param, ""));
            let is_other = |own: &&&str| !own.starts_with(&format!("{} = ", param.key));
            let kept: Vec<&str> = base.iter().filter(is_other).copied().collect();
            let with = with_export(&[&kept[..], &[line.as_str()]].concat());
            let see = |stack: &StackSpec| match OF_NBD.contains(&param.key) {
                // A user of a file does not ask for its value.
                true if stack.exports[0].nbd.is_empty() => String::new(),
                _ => format!("{:?}", stack.exports),
            };
            wrong.extend(stand.ignored(param.key, [&with_export(&base), &with], &see));
        }
        for param in TLS {
            let value = if param.key == "mode" { "'required'" } else { "'c.pem'" };
            let line = format!("tls = {{ {} = {value} }}", param.key);
            let with = with_export(&[&base[..], &[line.as_str()]].concat());
            let report = stand.check(&with).expect_err("a part of it");
            let names = [format!("`tls.{}`", param.key), "`tls`".to_owned()];
            if !names.iter().any(|name| report.contains(name)) {
                wrong.push(format!("{with}\n{report}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!([IO.len(), IO_PRIO.len(), GROUP.len()], [1, 1, 1], "a new key needs a case");
}

#[test]
fn no_key_of_the_server_is_ignored() {
    let stand = Stand::new();
    let base = with_export(&["device = 'd'", "nbd = 'unix:e.sock'"]);
    for param in SERVER {
        let with = format!("[server]\n{} = {}\n{base}", param.key, sample(param, ""));
        let see = |stack: &StackSpec| format!("{:?}", stack.server);
        assert_eq!(stand.ignored(param.key, [&base, &with], &see), None);
    }
}
