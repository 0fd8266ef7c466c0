//! No option is ever ignored: each option of each command, in each form that the command has,
//! changes what is done or printed, or is refused by its name. The commands come from clap, so that
//! a new option without a case here fails. `serve` is walked in `src/cli.rs`, where what it would
//! serve can be seen.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use std::cell::LazyCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use clap::CommandFactory;
use drystone::cli::Cli;
use drystone_stack::md::ArrayReport;
use drystone_testkit::program::{Program, both};
use serde_json::{Value, json};
use tempfile::TempDir;

const DRYSTONE: Program = Program::new(env!("CARGO_BIN_EXE_drystone"));

/// The lines that a command can be written as, without any option that they can do without. An
/// underscore stands for a space inside a word.
const FORMS: &[&str] = &[
    "check s.toml",
    "list",
    "show d",
    "set d queue/nomerges=2",
    "iostat",
    "iostat 1ms 2",
    "lockstat",
    "poll-mode",
    "poll-mode poll",
    "group create a",
    "group remove a",
    "group set a d rbps=1",
    "group list",
    "group stat",
    "group stat a",
    "reopen d",
    "reopen d --replaced",
    "create v --table 0_8_linear_d_0",
    "create v --table-file table",
    "create v --notable",
    "table",
    "table v",
    "status",
    "status v",
    "info",
    "info v",
    "reload v --table 0_8_linear_d_0",
    "reload v --table-file table",
    "reload v --table 0_8_linear_d_0 --now",
    "clear v",
    "suspend v",
    "suspend v --noflush",
    "resume v",
    "message v 0 x",
    "remove v",
    "log-writes log list",
    "log-writes log replay --to target",
    "md create -l5 -n3 n0 n1 n2",
    "md create -l4 -n3 n0 n1 n2",
    "md create -l6 -n4 n0 n1 n2 n3",
    "md create -l5 -n3 --bitmap internal n0 n1 n2",
    "md examine m0",
    "md assemble md0 d",
    "md assemble --print m0 m1 m2",
    "md detail md0",
    "md status",
    "md status md0",
    "md wait md0",
    "md add md0 d",
    "md fail md0 d",
    "md remove md0 d",
    "md replace md0 d",
    "md check md0",
    "md repair md0",
    "md stop md0",
    "bench --device ram,size=1MiB --runtime 10ms --warmup 1us --json out",
    "bench --stack s.toml --name d --runtime 10ms --warmup 1us --json out",
    "help",
    "help md",
];

/// A good value of each option that takes one; of some they differ by command.
const VALUES: &[(&str, &str)] = &[
    ("control", "other.sock"),
    ("hold", "on"),
    ("table", "0_16_zero"),
    ("table-file", "table"),
    ("fuse", "f"),
    ("md", "m0"),
    ("nbd", "tcp:localhost:1"),
    ("timeout", "7s"),
    ("to", "other"),
    ("start-entry", "1"),
    ("start-mark", "mark"),
    ("end-mark", "mark"),
    ("limit", "1"),
    ("start-sector", "8"),
    ("end-sector", "3"),
    ("fsck", "echo_checked --check 1"),
    ("check", "1 --fsck echo_checked"),
    ("level", "5"),
    ("raid-devices", "2"),
    ("spare-devices", "1"),
    ("chunk", "64K"),
    ("layout", "right-symmetric"),
    ("bitmap", "internal"),
    ("bitmap-chunk", "8M"),
    ("consistency-policy", "bitmap"),
    ("metadata", "1.0"),
    ("size", "2M"),
    ("data-offset", "1M"),
    ("name", "other"),
    ("homehost", "box"),
    ("uuid", SAMPLE_UUID),
    ("watch", "1ms"),
    ("device", "null"),
    ("stack", "t.toml"),
    ("threads", "2"),
    ("depth", "4"),
    ("batch", "2"),
    ("batch-complete", "2"),
    ("bs", "4k"),
    ("rw", "read"),
    ("runtime", "20ms"),
    ("warmup", "2us"),
    ("poll-mode", "interrupt"),
    ("rate", "1000000"),
    ("prio", "idle"),
    ("cpus", "0"),
    ("json", "a.json"),
];

const SAMPLE_UUID: &str = "0a0b0c0d:11223344:55667788:99aabbcc";

/// Options whose effect takes too long, or a machine of another kind, to be seen here: the
/// beginning of the form, the option, and the file that has it, a test's if one can hold it, with
/// words that stand there.
const HELD_ELSEWHERE: &[(&str, &str, &str, &str)] = &[
    ("md assemble --print", "force", "system-tests/tests/rescue.rs", "\"--force\""),
    ("bench", "force", "crates/drystone/tests/cli.rs", "\"--fill\", \"--force\""),
    ("md create -l6", "force", "crates/drystone/tests/md.rs", "create --force -l 5"),
    ("md create", "consistency-policy", "crates/drystone/tests/md.rs", "--consistency-policy"),
    ("md status", "watch", "system-tests/tests/md.rs", "--watch 10ms"),
    ("bench", "json", "crates/drystone/tests/cli.rs", "\"--json\", \"b.json\""),
];

/// Commands that are walked elsewhere: `serve`, and the commands that hand over to programs of
/// their own.
const NOT_HERE: &[&str] = &["serve", "lab", "sim"];

/// Threads that walk over forms, each with a folder and servers of its own: what they start waits
/// more than it works.
const WALKERS: usize = 4;

#[test]
fn no_option_is_ignored() {
    let mut wrong = Vec::new();
    let mut walks = Vec::new();
    for (path, command) in leaves(&Cli::command(), "") {
        let forms: Vec<_> = FORMS.iter().filter(|form| is_of(form, &path)).collect();
        if NOT_HERE.contains(&path.as_str()) {
            continue;
        }
        if forms.is_empty() {
            wrong.push(format!("`{path}` has no form in FORMS"));
        }
        walks.extend(forms.into_iter().map(|form| (*form, options(&command))));
    }
    let seen: usize = walks.iter().map(|(_, options)| options.len()).sum();
    let next = AtomicUsize::new(0);
    let walk = || {
        let (rig, mut wrong) = (Rig::new(), Vec::new());
        while let Some((form, options)) = walks.get(next.fetch_add(1, Relaxed)) {
            let base = LazyCell::new(|| rig.run(form));
            wrong.extend(options.iter().filter_map(|option| rig.ignored(form, option, &base)));
        }
        wrong
    };
    std::thread::scope(|scope| {
        let walkers: Vec<_> = (0..WALKERS).map(|_| scope.spawn(walk)).collect();
        walkers.into_iter().for_each(|walker| wrong.extend(walker.join().unwrap()));
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 150, "only {seen} options were looked at");
}

/// clap forgets what an option requires where that conflicts with something that was given.
#[test]
fn what_an_option_requires_is_required_whatever_else_is_given() {
    let root = Cli::command();
    let mut wrong = Vec::new();
    for (path, command) in leaves(&root, "") {
        let options: Vec<Opt> = options(&command);
        let always = required_by(&command, "");
        for option in &options {
            let needed = required_by(&command, &option.line());
            for other in options.iter().filter(|other| other.name != option.name) {
                let line = format!("{} {}", option.line(), other.line());
                let is_missing = |name: &String| !always.contains(name) && !line.contains(name);
                if needed.iter().any(is_missing) && is_taken(&command, &line) {
                    wrong.push(format!("{path} {line}: {needed:?} is not asked for"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An option as it is written on a line.
struct Opt {
    name: String,
    takes_value: bool,
}

impl Opt {
    fn line(&self) -> String {
        if !self.takes_value {
            return format!("--{}", self.name);
        }
        let value = VALUES.iter().find(|(name, _)| *name == self.name);
        let (_, value) = value.unwrap_or_else(|| panic!("--{} has no value in VALUES", self.name));
        format!("--{} {value}", self.name)
    }
}

fn options(command: &clap::Command) -> Vec<Opt> {
    let named = command.get_arguments().filter(|arg| !arg.is_positional());
    let of = |arg: &clap::Arg| {
        let name = arg.get_long().expect("each option has a long name").to_owned();
        let is_help = ["help", "version"].contains(&name.as_str());
        (!is_help).then(|| Opt { name, takes_value: arg.get_action().takes_values() })
    };
    named.filter_map(of).collect()
}

/// The commands without subcommands, each with its words.
fn leaves(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
    let mut found = Vec::new();
    for sub in command.get_subcommands() {
        let path = format!("{path} {}", sub.get_name()).trim().to_owned();
        match sub.has_subcommands() {
            true => found.extend(leaves(sub, &path)),
            false => found.push((path, sub.clone())),
        }
    }
    found
}

/// True if the words of the command stand in the form, with others between at most.
fn is_of(form: &str, path: &str) -> bool {
    let mut words = form.split(' ');
    let mut path = path.split(' ');
    let first = path.next();
    words.next() == first && path.all(|part| words.by_ref().take(2).any(|word| word == part))
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').filter(|word| !word.is_empty()).map(|word| word.replace('_', " ")).collect()
}

fn parse(command: &clap::Command, line: &str) -> Result<clap::ArgMatches, clap::Error> {
    // Arguments that the command always requires are not the question here.
    let command = command.clone().no_binary_name(true);
    let mut command = command.mut_args(|arg| arg.required(false));
    command.try_get_matches_from_mut(words(line))
}

fn is_taken(command: &clap::Command, line: &str) -> bool {
    parse(command, line).is_ok()
}

/// The options that clap asks for, as `--name`.
fn required_by(command: &clap::Command, line: &str) -> Vec<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Err(error) = parse(command, line) else { return Vec::new() };
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return Vec::new();
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(named)) => {
            let first = |name: &String| name.split(' ').next().map(str::to_owned);
            named.iter().filter_map(first).filter(|name| name.starts_with("--")).collect()
        }
        other => panic!("{line}: {other:?}"),
    }
}

/// The files that the commands work on, and two servers that answer everything and remember what
/// they were asked.
struct Rig {
    folder: TempDir,
    asked: Receiver<String>,
}

/// The effects of a command, as far as they can be seen.
#[derive(PartialEq)]
struct Done {
    status: Option<i32>,
    text: String,
    asked: Vec<String>,
    files: Vec<String>,
}

impl Rig {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let at = folder.path();
        fs::create_dir_all(at.join("run")).unwrap();
        let (tell, asked) = channel();
        for name in ["run/s.sock", "other.sock"] {
            let listener = UnixListener::bind(at.join(name)).unwrap();
            let tell = tell.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let stream = stream.unwrap();
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    for line in lines.map_while(Result::ok) {
                        let answer = answer(&serde_json::from_str(&line).unwrap());
                        let _ = tell.send(format!("{name}: {line}"));
                        let _ = writeln!(&stream, "{}", json!({ "result": answer }));
                    }
                }
            });
        }
        let rig = Rig { folder, asked };
        rig.lay_out();
        rig
    }

    /// Everything as it is before a command.
    fn lay_out(&self) {
        let at = self.folder.path();
        let stack = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n\
                     [export.e]\ndevice = \"d\"\nnbd = \"unix:e.sock\"\n";
        fs::write(at.join("s.toml"), stack).unwrap();
        fs::write(at.join("t.toml"), stack.replace("1MiB", "2MiB")).unwrap();
        fs::write(at.join("table"), "0 8 zero\n").unwrap();
        for name in ["target", "other"] {
            fs::write(at.join(name), vec![0xA5; 64 << 10]).unwrap();
        }
        fs::write(at.join("log"), log()).unwrap();
        let members = (0..3).map(|n| format!("m{n}"));
        for name in (0..4).map(|n| format!("n{n}")).chain(members.clone()) {
            let file = fs::File::create(at.join(&name)).unwrap();
            file.set_len(8 << 20).unwrap();
        }
        for name in ["out", "a.json"] {
            let _ = fs::remove_file(at.join(name));
        }
    }

    fn run(&self, line: &str) -> Done {
        self.lay_out();
        if line.contains(" m0") {
            self.execute("md create -l5 -n3 --bitmap internal m0 m1 m2");
        }
        let (status, text) = self.execute(line);
        let asked = self.asked.try_iter().collect();
        let mut files = Vec::new();
        for name in ["out", "a.json", "target", "other"] {
            files.extend(fs::read(self.folder.path().join(name)).ok().map(|bytes| seen(&bytes)));
        }
        if line.starts_with("md create") {
            files.push(stable(&self.execute("md examine n0").1));
            files.push(stable(&self.execute("md examine --bitmap n0").1));
        }
        Done { status, text: stable(&text), asked, files }
    }

    /// Runs it; a benchmark in whose time nothing was measured, on a busy machine, once more.
    fn execute(&self, line: &str) -> (Option<i32>, String) {
        let is_measured = |done: &(_, String)| !done.1.contains("no I/O completed in the measured");
        let mut tries = (0..100).map(|_| self.execute_once(line));
        tries.find(is_measured).unwrap_or_else(|| panic!("`{line}` measured nothing in 100 tries"))
    }

    fn execute_once(&self, line: &str) -> (Option<i32>, String) {
        let output = DRYSTONE.command(self.folder.path()).args(words(line)).output().unwrap();
        (output.status.code(), both(&output))
    }

    /// The fault of an option in a form.
    fn ignored(
        &self,
        form: &str,
        option: &Opt,
        base: &LazyCell<Done, impl FnOnce() -> Done>,
    ) -> Option<String> {
        let is_same = form.contains(&option.line());
        if is_same || is_held_elsewhere(form, option) && !self.is_refused(form, option) {
            return None;
        }
        let line = format!("{} {}", without(form, option), option.line());
        let with = self.run(&line);
        let named = with.text.contains(&format!("--{}", option.name))
            || with.text.contains("cannot be used with one or more of the other");
        match with.status {
            Some(2) if named => None,
            Some(2) => Some(format!("`{line}`: the refusal does not name it: {}", with.text)),
            _ if with == **base => Some(format!("`{line}`: ignored: {}", with.text)),
            _ => None,
        }
    }

    /// True if the command line alone is refused; nothing that would run does.
    fn is_refused(&self, form: &str, option: &Opt) -> bool {
        let line = format!("{} {}", without(form, option), option.line());
        Cli::command().no_binary_name(true).try_get_matches_from(words(&line)).is_err()
    }
}

/// The form without the option and its value.
fn without(form: &str, option: &Opt) -> String {
    let long = format!("--{}", option.name);
    let mut words = form.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word != long {
            kept.push(word);
        } else if option.takes_value {
            words.next();
        }
    }
    kept.join(" ")
}

/// Says so if a test elsewhere has this option, once it was made sure that it has.
fn is_held_elsewhere(form: &str, option: &Opt) -> bool {
    let is_it = |case: &&(&str, &str, &str, &str)| {
        form.starts_with(case.0) && [option.name.as_str(), ""].contains(&case.1)
    };
    let Some((_, _, file, words)) = HELD_ELSEWHERE.iter().find(is_it) else { return false };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    assert!(text.contains(words), "{file} has no {words}");
    true
}

/// Without what differs from run to run: times, random numbers.
fn stable(text: &str) -> String {
    let random = ["Creation Time", "Update Time", "Device UUID", "Checksum"];
    let lines = text.lines().filter(|line| !random.iter().any(|word| line.contains(word)));
    let is_uuid = |word: &&str| word.len() == 35 && word.matches(':').count() == 3;
    let of = |line: &str| {
        let words = line.split([' ', '"']);
        let words = words.map(|word| if is_uuid(&word) && word != SAMPLE_UUID { "" } else { word });
        // Measurements of a benchmark are never twice the same.
        let measured = ["IOPS", "per I/O", "latency"].iter().any(|word| line.contains(word));
        if measured { String::new() } else { words.collect::<Vec<_>>().join(" ") }
    };
    lines.map(of).collect::<Vec<_>>().join("\n")
}

/// A file's bytes; of figures as JSON what they were measured with.
fn seen(bytes: &[u8]) -> String {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(mut figures) if figures["configuration"].is_object() => {
            let mut configuration = figures["configuration"].take();
            configuration["date"].take();
            configuration.to_string()
        }
        _ => format!("{bytes:?}"),
    }
}

/// Whatever a log says, the target keeps its size, and nothing is written unless all of it is
/// inside.
#[test]
fn a_log_is_not_replayed_beyond_the_end_of_the_target() {
    let rig = Rig::new();
    let target = rig.folder.path().join("target");
    let before = fs::read(&target).unwrap();
    let replay = "log-writes log replay --to target";
    // The log's second entry but the mark: a discard of 2^50 sectors, and a write at sector 2^33.
    for (place, number) in [(8, 1u64 << 50), (0, 1 << 33)] {
        let mut bytes = log();
        let at = 512 + 1024 + 512 + place;
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        fs::write(rig.folder.path().join("log"), bytes).unwrap();
        let (status, text) = rig.execute(replay);
        assert_eq!(status, Some(1), "{text}");
        assert!(
            text.contains("target: entry 2 of the log") && text.contains("beyond its end"),
            "{text}"
        );
        assert!(fs::read(&target).unwrap() == before, "something was written");
    }
    fs::write(rig.folder.path().join("log"), log()).unwrap();
    fs::File::options().write(true).open(&target).unwrap().set_len(24 * 512).unwrap();
    let (status, text) = rig.execute(replay);
    assert_eq!((status, fs::metadata(&target).unwrap().len()), (Some(1), 24 * 512), "{text}");
    let (status, text) = rig.execute(&format!("{replay} --end-sector 23"));
    assert_eq!((status, fs::metadata(&target).unwrap().len()), (Some(0), 24 * 512), "{text}");
}

/// A process that writes the target has its lock: a server, another replay. A check of the target
/// may take it.
#[test]
fn a_log_is_not_replayed_onto_what_somebody_else_writes() {
    let rig = Rig::new();
    let target = rig.folder.path().join("target");
    let before = fs::read(&target).unwrap();
    let replay = "log-writes log replay --to target";
    let other = drystone_drivers::file::OfflineFile::open(&target, false).unwrap();
    let (status, text) = rig.execute(replay);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("target is in use"), "{text}");
    assert!(fs::read(&target).unwrap() == before, "something was written");
    drop(other);
    let program = env!("CARGO_BIN_EXE_drystone");
    let check = |command: &str| {
        let words = ["log-writes", "log", "replay", "--to", "target", "--check", "fua", "--fsck"];
        let mut output = Command::new(program);
        output.args(words).arg(command).current_dir(rig.folder.path());
        let output = output.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, text) = check(&format!("{program} {replay} --limit 1"));
    assert_eq!(status, Some(0), "{text}");
    let (status, text) = check("truncate -s 1G target");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("the check after entry 4 has changed its size"), "{text}");
}

/// A log of a write, a mark, a discard, and two writes with flush and FUA.
fn log() -> Vec<u8> {
    let entries: [(u64, u64, u64, &str); 6] = [
        (0, 1, 0, ""),
        (0, 0, 8, "mark"),
        (4, 2, 4, ""),
        (8, 1, 1, ""),
        (16, 1, 2, ""),
        (24, 1, 0, ""),
    ];
    let mut out = vec![0; 512];
    let numbers = [drystone_targets::LOG_MAGIC, 1, entries.len() as u64];
    for (number, at) in numbers.iter().zip([0, 8, 16]) {
        out[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    out[24..28].copy_from_slice(&512u32.to_le_bytes());
    for (sector, sectors, flags, mark) in entries {
        let mut head = vec![0; 512];
        let words = [sector, sectors, flags, mark.len() as u64];
        for (number, at) in words.iter().zip([0, 8, 16, 24]) {
            head[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        head[32..32 + mark.len()].copy_from_slice(mark.as_bytes());
        out.extend(head);
        if flags & 4 == 0 {
            out.extend(vec![0x11; sectors as usize * 512]);
        }
    }
    out
}

fn answer(request: &Value) -> Value {
    match request["command"].as_str().unwrap() {
        "list" => json!({
            "devices": [
                { "name": "d", "kind": "ram", "size": 4096, "read_only": false, "in_flight": 0 },
            ],
            "exports": [],
        }),
        "show" => json!({
            "name": "d", "kind": "ram", "size": 4096, "description": "", "members": [],
            "exports": [], "attributes": {},
        }),
        "iostat" => json!({ "uptime_ns": 1, "devices": [] }),
        "lockstat" => json!({ "hold": false, "classes": [] }),
        "group-list" | "group-stat" => json!({ "groups": [] }),
        "group-set" => json!({
            "io_max": { "device": "d", "rbps": 1, "wbps": null, "riops": null, "wiops": null },
        }),
        "md-detail" => {
            let (name, level) = ("md0".to_owned(), "raid5".to_owned());
            let (raid_devices, active_devices) = (3, 2);
            let array =
                ArrayReport { name, level, raid_devices, active_devices, ..ArrayReport::default() };
            json!({ "arrays": [array] })
        }
        "table" | "status" | "info" => json!({ "volumes": [] }),
        _ => json!({ "members": ["d"], "mode": "poll", "value": "2" }),
    }
}
