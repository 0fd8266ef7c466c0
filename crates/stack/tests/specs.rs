//! Good stacks become the specification they describe, and no text makes the checks panic.

use drystone_core::context::PollMode;
use std::path::Path;

use drystone_core::ring::Engine;
use drystone_core::{Priority, PriorityClass};
use drystone_drivers::file::FileOptions;
use drystone_drivers::null::{Completion, Latency, NullOptions, Percentile, Seek};
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use drystone_stack::spec::*;
use drystone_stack::{Source, StackSpec, fuzz_stack_file, parse};
use drystone_throttle::Change;
use proptest::prelude::*;

fn stack(text: &str) -> StackSpec {
    let source = Source { name: "t".to_owned(), text: text.to_owned() };
    parse("t", source, Path::new("/srv")).unwrap_or_else(|report| panic!("{report}"))
}

fn device(text: &str) -> DeviceSpec {
    DeviceSpec::parse(text, Path::new("/srv")).unwrap_or_else(|report| panic!("{report}"))
}

const QUEUE: QueueOptions = QueueOptions {
    scheduler: None,
    iosched: Vec::new(),
    nr_requests: None,
    nomerges: Some(0),
    io_poll: Some(false),
    max_sectors_kb: None,
    io_timeout_ms: Some(30_000),
    iostats: Some(true),
    read_only: false,
    write_cache: None,
};

#[test]
fn defaults_are_those_of_the_schema() {
    let options = NullOptions {
        size_bytes: 250 << 30,
        blocksize: 512,
        irqmode: Completion::Inline,
        latency: None,
        seek: None,
        submit_queues: NullOptions::default().submit_queues,
        poll_queues: 1,
        skip_busy: true,
        hw_queue_depth: 64,
        memory_backed: false,
        discard: false,
        mbps: 0,
        badblocks: Vec::new(),
        write_cache: false,
        fua: true,
        max_bytes: 0,
    };
    let null = NullSpec { options, submit_queues: None, cache_size: 0 };
    let expected = DeviceSpec {
        name: "null".to_owned(),
        kind: DeviceKind::Null(null),
        queue: QUEUE,
        hw_queues: None,
        logical_block_size: None,
        physical_block_size: None,
        read_only: false,
    };
    assert_eq!(device("null"), expected);
    let DeviceKind::File(file) = device("file,path=a").kind else { panic!("a file") };
    let options =
        FileOptions { path: "/srv/a".into(), mode: Some(0o600), ..FileOptions::default() };
    let expected = FileSpec { options, create: Create::Missing, engine: Engine::Auto };
    assert_eq!(file, expected);
    let ram = DeviceKind::Ram(RamSpec { size: 1 << 20, discard: true });
    assert_eq!(device("ram,size=1M").kind, ram);
    let zero = DeviceKind::Volume(VolumeSpec::Zero(2048));
    assert_eq!(device("zero,size=1M").kind, zero);
}

#[test]
fn volumes_get_their_tables_once_sizes_are_known() {
    let stack = stack(
        "[device.all]\ntype = \"linear\"\nmembers = [\"s\", \"z\", \"c\"]\n\
         [device.s]\ntype = \"striped\"\nmembers = [\"a\", \"b\"]\nchunk = \"4KiB\"\n\
         [device.a]\ntype = \"ram\"\nsize = \"1MiB\"\n\
         [device.b]\ntype = \"ram\"\nsize = 103424\n\
         [device.c]\ntype = \"file\"\npath = \"c\"\n\
         [device.z]\ntype = \"zero\"\nsize = 512\n\
         [device.t]\ntable = [\"0 8 linear e 0\", \"8 8 linear e 8\"]\n\
         [device.e]\ntype = \"error\"\nsize = \"8KiB\"\n\
         [device.d]\ntype = \"striped\"\nmembers = \"x\"\n[device.x]\ntype = \"null\"\n",
    );
    let size = |name: &str| stack.sizes.get(name).copied();
    // 25 chunks of the smaller.
    assert_eq!(size("s"), Some(2 * 25 * 4096));
    assert_eq!((size("all"), size("c")), (None, None), "the file is looked at later");
    assert_eq!((size("t"), size("d")), (Some(8192), Some(250 << 30)));
    let kind = |name: &str| stack.device(name).unwrap().kind.name();
    assert_eq!(
        ["all", "s", "z", "t", "e"].map(kind),
        ["linear", "striped", "zero", "table", "error"]
    );
    let DeviceKind::Volume(all) = &stack.device("all").unwrap().kind else { panic!("a volume") };
    let table = all.table(&|name| Some(size(name).unwrap_or(1 << 20))).unwrap().unwrap();
    let starts: Vec<u64> = table.iter().map(|segment| segment.start_sector).collect();
    assert_eq!((starts, table[2].end_sector()), (vec![0, 400, 401], 401 + 2048));
    assert_eq!(stack.device("d").unwrap().members()[0].area_sectors, None);
}

#[test]
fn a_tree_shows_what_a_volume_is_made_of() {
    let text = "[device.r0]\ntype = \"ram\"\nsize = \"64MiB\"\n\
                [device.r1]\ntype = \"ram\"\nsize = \"64MiB\"\n\
                [device.v]\ntable = \"0 196608 striped 2 128 r0 0 r1 0\"\n\
                [device.w]\ntable = [\"0 8192 linear r0 98304\", \"8192 8 zero\", \
                \"8200 8192 linear r0 106496\"]\n\
                [device.all]\ntype = \"linear\"\nmembers = [\"v\", \"w\"]\n\
                [device.part]\ntable = [\"0 8 zero\", \"8 8 error\", \"16 8 zero\", \
                \"24 8 error\", \"32 8 zero\"]\n\
                [export.e]\ndevice = \"all\"\nnbd = \"unix:e\"\n\
                [export.f]\ndevice = \"w\"\nnbd = \"unix:f\"\nread_only = true\n";
    let drawn = drystone_stack::explain(&stack(text));
    let expected = [
        "stack t",
        "export e  nbd unix:/srv/e",
        "└── all  linear  106500KiB  linear 96MiB + linear 8196KiB",
        "    ├── v  table  96MiB  striped 2 by 64KiB 96MiB",
        "    │   ├── r0  ram  64MiB",
        "    │   └── r1  ram  64MiB",
        "    └── w  table  8196KiB  linear 4MiB + zero 4KiB + linear 4MiB",
        "        └── r0  ram  64MiB",
        "export f  nbd unix:/srv/f, read-only",
        "└── w  table  8196KiB  linear 4MiB + zero 4KiB + linear 4MiB  (as above)",
        "not exported",
        "└── part  table  20KiB  5 segments",
    ];
    assert_eq!(drawn.lines().collect::<Vec<_>>(), expected);
}

/// A tree that is drawn whole would have as many lines as there are ways through it.
#[test]
fn a_tree_with_many_ways_stays_small() {
    let level = |n: usize| {
        let of = |name, at| {
            format!(
                "[device.{name}{n}]\ntable = \"0 8 linear a{m} {at}\\n8 8 linear b{m} {at}\"\n",
                m = n - 1
            )
        };
        of("a", 0) + &of("b", 8)
    };
    let leaf = |name| format!("[device.{name}0]\ntype = \"ram\"\nsize = 8192\n");
    let text: String = (1..=40).map(level).chain([leaf("a"), leaf("b")]).collect();
    assert!(drystone_stack::explain(&stack(&text)).lines().count() < 400);
}

#[test]
fn every_value_arrives() {
    let stack = stack(
        "[server]\nthreads = 3\nmemory = \"1GiB\"\ncontrol = \"c.sock\"\n\
         [device.n]\ntype = \"null\"\nsize = \"1GiB\"\nirqmode = 2\n\
         latency = { min = 1, p50 = \"10us\", \"p99.9\" = \"80us\", max = \"1ms\" }\n\
         seek_min_nsec = 1000\nseek_max_nsec = \"1ms\"\n\
         submit_queues = 2\npoll_queues = 3\nhw_queue_depth = 7\nmemory_backed = true\n\
         discard = true\nmbps = 5\nbadblocks = [3, \"8-9\"]\ncache_size = \"1MiB\"\nfua = false\n\
         logical_block_size = 4096\nphysical_block_size = 8192\nread_only = true\n\
         [device.n.queue]\nscheduler = \"mq-deadline\"\nread_expire = 9\nstraight = false\n\
         nr_requests = 7\nnomerges = 2\nio_poll = true\nmax_sectors_kb = 64\n\
         io_timeout = 500\niostats = false\nwrite_cache = \"write through\"\nhw_queues = 2\n\
         [export.e]\ndevice = \"n\"\nnbd = [\"unix:/a,mode=0660\", \"tcp:[::1]:10809\"]\n\
         read_only = true\ndescription = \"d\"\ndefault = true\nmulti_conn = false\n\
         zero_copy = false\nmax_connections = 9\nmax_connections_per_client = 4\n\
         max_in_flight = 10\nmax_request = \"1MiB\"\nio.prio.class = \"idle\"\nprio_level = 3\n\
         handshake_timeout = 5\nidle_timeout = \"1m\"\npeer_timeout = 9\n\
         tls = { mode = \"optional\", cert = \"c\", key = \"/k\", client_ca = \"ca\" }\n\
         group = \"t\"\nclients = { \"uid:0\" = \"/\", \"tls:a/b:c\" = \"t/u\" }\n\
         [group.\"t/u\"]\n[group.t]\nio.max = \"n rbps=2M wiops=max\"\n",
    );
    let control = Some("/srv/c.sock".into());
    let (poll_mode, memory) = (PollMode::Adaptive, Some(1 << 30));
    assert_eq!(
        stack.server,
        ServerSpec { threads: 3, poll_mode, memory, control, lockstat: false }
    );
    let points = [(0.0, 1), (50.0, 10_000), (99.9, 80_000), (100.0, 1_000_000)];
    let points = points.map(|(percent, ns)| Percentile { percent, ns });
    let options = NullOptions {
        size_bytes: 1 << 30,
        blocksize: 512,
        irqmode: Completion::Timer,
        latency: Some(Latency::percentiles(points.to_vec()).unwrap()),
        seek: Some(Seek { min_ns: 1_000, max_ns: 1_000_000 }),
        submit_queues: NullOptions::default().submit_queues,
        poll_queues: 3,
        skip_busy: true,
        hw_queue_depth: 7,
        memory_backed: true,
        discard: true,
        mbps: 5,
        badblocks: vec![(3, 3), (8, 9)],
        write_cache: true,
        fua: false,
        max_bytes: 0,
    };
    let null = NullSpec { options, submit_queues: Some(2), cache_size: 1 << 20 };
    let queue = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("read_expire", "9".to_owned()), ("straight", "0".to_owned())],
        nr_requests: Some(7),
        nomerges: Some(2),
        io_poll: Some(true),
        max_sectors_kb: Some(64),
        io_timeout_ms: Some(500),
        iostats: Some(false),
        read_only: true,
        write_cache: Some(false),
    };
    let expected = DeviceSpec {
        name: "n".to_owned(),
        kind: DeviceKind::Null(null),
        queue,
        hw_queues: Some(2),
        logical_block_size: Some(4096),
        physical_block_size: Some(8192),
        read_only: true,
    };
    assert_eq!(stack.devices, [expected]);
    let expected = ExportSpec {
        name: "e".to_owned(),
        device: "n".to_owned(),
        nbd: vec![
            Listener::Unix { path: "/a".into(), mode: 0o660 },
            Listener::Tcp { host: "::1".to_owned(), port: 10_809 },
        ],
        fuse: None,
        allow: None,
        read_only: true,
        description: "d".to_owned(),
        default: true,
        multi_conn: false,
        zero_copy: false,
        priority: Priority { class: PriorityClass::Idle, level: 3 },
        group: "t".to_owned(),
        clients: stack.exports[0].clients.clone(),
        tls: TlsSpec {
            mode: TlsMode::Optional,
            cert: Some("/srv/c".into()),
            key: Some("/k".into()),
            client_ca: Some("/srv/ca".into()),
        },
        max_connections: 9,
        max_connections_per_client: 4,
        max_in_flight: 10,
        max_request: 1 << 20,
        handshake_timeout: 5_000_000_000,
        idle_timeout: 60_000_000_000,
        peer_timeout: 9_000_000_000,
    };
    assert_eq!(stack.exports, [expected]);
    let clients = stack.exports[0].clients.iter();
    let clients: Vec<_> = clients.map(|c| (c.client.to_string(), c.group.as_str())).collect();
    assert_eq!(clients, [("uid:0".to_owned(), ""), ("tls:a/b:c".to_owned(), "t/u")]);
    let paths: Vec<&str> = stack.groups.iter().map(|group| group.path.as_str()).collect();
    assert_eq!((paths, &stack.groups[0].io_max), (vec!["t/u", "t"], &vec![]));
    let line = &stack.groups[1].io_max[0];
    let change = Change { rbps: Some(Some(2 << 20)), wiops: Some(None), ..Change::default() };
    assert_eq!((line.device.as_str(), line.change), ("n", change));
    assert_eq!(stack.source.word(&line.span), "n");
}

#[test]
fn places_point_into_the_text() {
    let stack = stack("[device.d]\ntype = \"ram\"\nsize = \"1GiB\"\n");
    let word = |path: &str| stack.source.word(&stack.places.get(path));
    assert_eq!(word("device/d/size"), "\"1GiB\"");
    assert_eq!(word("device/d/queue/nr_requests"), "d");
}

/// Pieces that good stacks are made of, to be put together wrongly.
const PIECES: [&str; 43] = [
    "[device.a]\n",
    "[device.b]\n",
    "[export.e]\n",
    "[server]\n",
    "[device.a.queue]\n",
    "[group.g]\n",
    "[group.\"g/h\"]\n",
    "[export.e.clients]\n",
    "io.max = [\"a rbps=1\", \"b wiops=max riops=0\"]\n",
    "io.max = \"a\\trbps=1\"\n",
    "group = \"g/h\"\n",
    "\"uid:1\" = \"g\"\n",
    "type = \"file\"\n",
    "type = \"ram\"\n",
    "type = \"null\"\n",
    "type = \"raid5\"\n",
    "size = \"1GiB\"\n",
    "size = 512\n",
    "size = \"x\"\n",
    "path = \"p\"\n",
    "path = \"\"\n",
    "table = \"0 8 linear a 0\\n8 8 linear b 7\"\n",
    "table = \"\"\"\n0 8 striped 2 4 a 0 b 0\n\"\"\"\n",
    "table = '0 8 zero'\n",
    "table = \"0 8 delay a 0 5 b 8 0\\n8 8 delay b 7\"\n",
    "table = '0 8 flakey a 0 1 0 6 drop_writes corrupt_bio_byte 1 r 2 0'\n",
    "table = '0 8 log-writes a b\n8 8 log-writes b'\n",
    "members = [\"a\", \"b\", 3]\n",
    "members = [\"a\", \"b\"]\n",
    "type = \"linear\"\n",
    "type = \"striped\"\n",
    "type = \"zero\"\n",
    "chunk = \"4KiB\"\n",
    "device = \"a\"\n",
    "nbd = \"unix:s\"\n",
    "nbd = [\"tcp:h:1\", \"µ\", 5]\n",
    "nr_requests = 3\n",
    "queue = 7\n",
    "latency = { p50 = 1, p99.9 = 2 }\n",
    "badblocks = [\"1-2\", \"9-1\"]\n",
    "irqmode = -1\n",
    "tls = { mode = \"required\" }\n",
    "default = true\n",
];

proptest! {
    #[test]
    fn no_text_makes_the_checks_panic(text: String) {
        fuzz_stack_file(text.as_bytes());
    }

    #[test]
    fn no_bytes_make_the_checks_panic(bytes: Vec<u8>) {
        fuzz_stack_file(&bytes);
    }

    #[test]
    fn no_mixture_of_good_pieces_makes_the_checks_panic(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
    ) {
        fuzz_stack_file(pieces.concat().as_bytes());
    }

    #[test]
    fn no_device_words_make_the_checks_panic(
        text in "(null|ram|file|x)?([,=.a-z0-9µ\"]{0,12},?(size|queue|latency|path)?=?){0,4}",
    ) {
        if let Err(report) = DeviceSpec::parse(&text, Path::new("/")) {
            prop_assert!(!report.render(true).is_empty());
        }
    }
}

#[test]
fn the_fuzz_entry_tells_good_from_bad() {
    assert!(fuzz_stack_file(b"[device.d]\ntype = \"null\"\n"));
    assert!(!fuzz_stack_file(b"[device.d]\ntype = \"nul\"\n"));
    assert!(!fuzz_stack_file(format!("a = {}", "[".repeat(100_000)).as_bytes()));
    assert!(!fuzz_stack_file("[device.d]\nsice = 1\n".repeat(9_000).as_bytes()));
    let names: String = (0..4_000)
        .map(|n| format!("[export.e{n}]\ndevice = \"d{n}\"\nnbd = \"unix:a\"\n"))
        .collect();
    assert!(!fuzz_stack_file(names.as_bytes()));
}

/// Warnings of listeners that let everybody in: the word, and a part of the message.
#[test]
fn listeners_that_let_everybody_in_are_warned_of() {
    let files = "cert = \"c.pem\", key = \"k.pem\"";
    let ca = format!("{files}, client_ca = \"ca.pem\"");
    let tls = |mode: &str, files: &str| format!("tls = {{ mode = \"{mode}\", {files} }}");
    let (plain, optional) = (String::new(), tls("optional", files));
    let (encrypted, known) = (tls("required", files), tls("required", &ca));
    let found = |listener: &str, tls: &str| {
        let text = format!(
            "[device.d]\ntype = \"null\"\n[export.a]\ndevice = \"d\"\nnbd = \
             \"{listener}\"\n{tls}\n[export.b]\ndevice = \"d\"\nnbd = \"{listener}\"\n{tls}\n"
        );
        let source = Source { name: "s.toml".to_owned(), text };
        let stack = parse("s", source, Path::new("/srv")).unwrap_or_else(|e| panic!("{e}"));
        let said = stack.warnings.iter().map(|found| format!("{} {}", found.word, found.message));
        said.collect::<Vec<String>>()
    };
    for listener in
        ["tcp:127.0.0.1:10809", "tcp:[::1]:10809", "tcp:localhost:10809", "unix:s.sock,mode=0660"]
    {
        for tls in [&plain, &optional, &encrypted, &known] {
            assert!(found(listener, tls).is_empty(), "{listener} {tls}");
        }
    }
    for listener in
        ["tcp:0.0.0.0:10809", "tcp:[::]:10809", "tcp:192.0.2.1:10809", "tcp:storage:10809"]
    {
        for (tls, part) in [
            (&plain, "does not require TLS"),
            (&optional, "does not require TLS"),
            (&encrypted, "TLS without `client_ca` does not ask who a client is"),
        ] {
            let said = found(listener, tls);
            assert_eq!(said.len(), 1, "once for both exports: {said:?}");
            assert!(said[0].starts_with(&format!("\"{listener}\"")), "{said:?}");
            assert!(said[0].contains(part), "{said:?}");
        }
        assert!(found(listener, &known).is_empty());
    }
    let said = found("unix:s.sock,mode=0666", &plain);
    assert!(said.len() == 1 && said[0].contains("every user of this machine"), "{said:?}");
    assert!(found("unix:s.sock,mode=0666", &known).is_empty());
    let said = found("unix:s.sock", &tls("optional", &ca));
    assert!(said.len() == 1 && said[0].contains("`client_ca` protects nothing"), "{said:?}");
}

#[test]
fn files_that_everybody_may_open_unasked_are_warned_of() {
    let found = |keys: &str| {
        let export =
            |name: &str| format!("[export.{name}]\ndevice = \"d\"\nfuse = \"vols\"\n{keys}\n");
        let text = format!("[device.d]\ntype = \"null\"\n{}{}", export("a"), export("b"));
        let warnings = stack(&text).warnings;
        warnings.into_iter().map(|found| (found.line, found.message)).collect::<Vec<_>>()
    };
    for keys in [
        "",
        "fuse_allow_other = true\nfuse_mode = \"0660\"",
        "fuse_allow_other = true\nfuse_mode = \"0666\"",
    ] {
        assert!(found(keys).is_empty(), "{keys}");
    }
    for (keys, may) in [("", "change"), ("\nread_only = true", "read")] {
        let said = found(&format!("fuse_allow_other = true{keys}"));
        let text = format!("can {may} /srv/vols: without `fuse_mode` its mode is 0666");
        assert!(said.len() == 1 && said[0].0 == 6, "once for both exports, at the key: {said:?}");
        assert!(said[0].1.ends_with(&text), "{said:?}");
    }
}

#[test]
fn files_have_the_mode_and_owner_that_are_asked_for() {
    let export = |keys: &str| {
        let text = format!(
            "[device.d]\ntype = \"null\"\n[export.e]\ndevice = \"d\"\nfuse = \"e.img\"\n{keys}\n"
        );
        stack(&text).exports.remove(0).fuse.unwrap()
    };
    assert_eq!(export("").permissions(), 0o600);
    let open = export("fuse_allow_other = true");
    assert_eq!((open.permissions(), open.uid, open.gid), (0o666, None, None));
    let own = export("fuse_allow_other = true\nfuse_mode = \"0640\"\nfuse_uid = 5\nfuse_gid = 0");
    assert_eq!((own.permissions(), own.uid, own.gid), (0o640, Some(5), Some(0)));
}
