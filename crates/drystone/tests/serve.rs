//! `drystone serve` with a stack of the test's own: starting, answering, stopping.
//!
//! This program is both the tests and, when [`STACK`] is set in its environment, the server that
//! they start: `drystone::serve::serve` with [`FakeServer`] as the stack.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use drystone::ending::Ending;
use drystone::serve::{ServeOptions, serve};
use drystone::server::start_by;
use drystone::server_handle::{ServerHandle, StopMode};
use drystone_core::clock::{Clock, ManualClock, Ns, SystemClock};
use drystone_core::context::PollSwitch;
use drystone_core::sync::LockRegistry;
use drystone_stack::attributes::{Attribute, Setting};
use drystone_stack::iomax::{IoMax, MaxLine};
use drystone_stack::md::{ArrayChange, ArrayReport};
use drystone_stack::runtime::{
    Change, ChangeError, DeviceDetail, DeviceSummary, DiskStats, ExportSummary, GroupStat,
    GroupSummary, Refused, Runtime, SetError, VolumeReport,
};
use drystone_stack::{StackSpec, nbd_uri};
use drystone_testkit::program::{Program, both};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Environment of the server: the stack file (empty: the default stack), the control socket
/// (empty: the usual one), and what is wrong with it.
const STACK: &str = "FAKE_STACK";
const CONTROL: &str = "FAKE_CONTROL";
const FAULT: &str = "FAKE_FAULT";
/// Its options.
const OPTIONS: &str = "FAKE_OPTIONS";

fn main() -> ExitCode {
    if std::env::var_os(STACK).is_some() {
        return server();
    }
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, test) in TESTS {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            println!("serve {name}");
            test();
        }
    }
    ExitCode::SUCCESS
}

const TESTS: &[(&str, fn())] = &[
    ("announces_and_stops", announces_and_stops),
    ("a_script_reads_addresses_as_json", a_script_reads_addresses_as_json),
    ("a_quiet_start_has_no_hints", a_quiet_start_has_no_hints),
    ("answers_clients", answers_clients),
    ("a_change_that_waits_holds_nobody_up", a_change_that_waits_holds_nobody_up),
    ("inherited_ignore_is_undone", inherited_ignore_is_undone),
    ("a_second_signal_stops_at_once", a_second_signal_stops_at_once),
    ("a_stop_ends_although_members_hang", a_stop_ends_although_members_hang),
    ("a_live_socket_is_refused_with_its_holder", a_live_socket_is_refused_with_its_holder),
    ("a_stopped_server_is_told", a_stopped_server_is_told),
    ("stale_sockets_are_replaced", stale_sockets_are_replaced),
    ("several_servers_are_listed", several_servers_are_listed),
    ("nobody_need_read_its_output", nobody_need_read_its_output),
    ("a_full_disk_does_not_keep_it_from_serving", a_full_disk_does_not_keep_it_from_serving),
    ("the_default_stack_makes_its_folder", the_default_stack_makes_its_folder),
    ("bad_clients_do_no_harm", bad_clients_do_no_harm),
    ("failures_to_start_and_stop_are_told", failures_to_start_and_stop_are_told),
];

// The server

fn server() -> ExitCode {
    let path = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let is_asked = |option: &str| std::env::var(OPTIONS).is_ok_and(|all| all.contains(option));
    let options = ServeOptions {
        stack: path(STACK),
        control: path(CONTROL),
        json: is_asked("--json"),
        quiet: is_asked("--quiet"),
        ..ServeOptions::default()
    };
    match serve(&options, start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.status()
        }
    }
}

fn fault() -> String {
    std::env::var(FAULT).unwrap_or_default()
}

fn start(stack: &StackSpec, ending: &Ending) -> anyhow::Result<Box<dyn ServerHandle>> {
    if fault() == "hurry" {
        let clock = SystemClock::new();
        let begun = clock.now();
        return start_by(stack, ending, Arc::new(Hurry { clock, begun }));
    }
    if stack.name == "default" {
        fs::write("drystone-data/disk0.img", "")?;
    }
    anyhow::ensure!(fault() != "start", "device d: on fire");
    Ok(Box::new(FakeServer { stack: stack.clone() }))
}

/// Says something to the test, if it still listens.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A clock that is a hundred times as fast as the machine's, for a stack that is none of the test's
/// own.
struct Hurry {
    clock: Arc<SystemClock>,
    begun: Ns,
}

impl Clock for Hurry {
    fn now(&self) -> Ns {
        1 + (self.clock.now() - self.begun) * 100
    }

    fn cycles(&self) -> Option<u64> {
        None
    }

    fn cycles_in(&self, _: Ns) -> u64 {
        0
    }
}

struct FakeServer {
    stack: StackSpec,
}

impl ServerHandle for FakeServer {
    fn announce(&self) -> Vec<String> {
        self.stack.exports.iter().map(|export| nbd_uri(export, &export.nbd[0])).collect()
    }

    fn runtime(&self) -> Box<dyn Runtime> {
        let locks = LockRegistry::new(ManualClock::new(1));
        let (nr_requests, resumed) = (AtomicU64::new(64), AtomicBool::new(false));
        Box::new(FakeRuntime { nr_requests, resumed, locks, poll: PollSwitch::default() })
    }

    fn stop(self: Box<Self>, mode: StopMode) -> anyhow::Result<()> {
        match fault().as_str() {
            "hang" => loop {
                say("hanging");
                sleep(Duration::from_secs(60));
            },
            "stop" => anyhow::bail!("device d: flush failed"),
            _ => {}
        }
        say(&format!("stopped {mode:?}"));
        Ok(())
    }
}

struct FakeRuntime {
    nr_requests: AtomicU64,
    resumed: AtomicBool,
    locks: Arc<LockRegistry>,
    poll: PollSwitch,
}

fn no_groups(path: &str) -> ChangeError {
    ChangeError { refused: Refused::NotFound, message: format!("there is no group `{path}`") }
}

impl Runtime for FakeRuntime {
    fn devices(&self) -> Vec<DeviceSummary> {
        let (name, kind) = ("d".to_owned(), "ram".to_owned());
        vec![DeviceSummary { name, kind, size: 1 << 30, read_only: false, in_flight: 3 }]
    }

    fn device(&self, name: &str) -> Option<DeviceDetail> {
        (name == "d").then(|| DeviceDetail {
            name: "d".to_owned(),
            kind: "ram".to_owned(),
            size: 1 << 30,
            description: String::new(),
            members: Vec::new(),
            exports: vec!["e".to_owned()],
            attributes: [(
                "queue/nr_requests".to_owned(),
                self.nr_requests.load(Relaxed).to_string(),
            )]
            .into(),
        })
    }

    fn configured_size(&self, _: &str) -> Option<u64> {
        None
    }

    fn set(&self, _: &str, attribute: &'static Attribute, value: &Setting) -> Result<(), SetError> {
        match (attribute.name, value) {
            ("queue/nr_requests", Setting::Number(number)) if *number <= 64 => {
                self.nr_requests.store(*number, Relaxed);
                Ok(())
            }
            _ => Err(SetError::OutOfRange { permitted: "4 to 64".to_owned() }),
        }
    }

    fn reopen(&self, _: &str, replaced: bool) -> Result<bool, ChangeError> {
        Ok(!replaced)
    }

    fn volume(&self, name: &str) -> Option<VolumeReport> {
        (name == "d").then(VolumeReport::default)
    }

    fn volumes(&self) -> Vec<VolumeReport> {
        Vec::new()
    }

    /// A suspension takes until somebody resumes.
    fn change(&self, _: &str, change: &Change<'_>) -> Result<(), ChangeError> {
        match change {
            Change::Suspend { .. } => {
                while !self.resumed.load(Relaxed) {
                    say("suspending");
                    sleep(Duration::from_millis(5));
                }
            }
            Change::Resume { .. } => self.resumed.store(true, Relaxed),
            _ => {}
        }
        Ok(())
    }

    fn arrays(&self, _: Option<&str>) -> Result<Vec<ArrayReport>, ChangeError> {
        Ok(Vec::new())
    }

    fn manage(&self, name: &str, _: &ArrayChange<'_>) -> Result<Vec<String>, ChangeError> {
        let message = format!("there is no device `{name}`");
        Err(ChangeError { refused: Refused::NotFound, message })
    }

    fn groups(&self) -> Vec<GroupSummary> {
        Vec::new()
    }

    fn create_group(&self, path: &str) -> Result<(), ChangeError> {
        Err(no_groups(path))
    }

    fn remove_group(&self, path: &str) -> Result<(), ChangeError> {
        Err(no_groups(path))
    }

    fn set_group(&self, path: &str, _: &IoMax) -> Result<MaxLine, ChangeError> {
        Err(no_groups(path))
    }

    fn group_stats(&self, path: Option<&str>, _: bool) -> Result<Vec<GroupStat>, ChangeError> {
        path.map_or_else(|| Ok(Vec::new()), |path| Err(no_groups(path)))
    }

    fn diskstats(&self) -> Vec<DiskStats> {
        vec![DiskStats { device: "d".to_owned(), reads: 20, ..DiskStats::default() }]
    }

    fn exports(&self) -> Vec<ExportSummary> {
        vec![ExportSummary {
            name: "e".to_owned(),
            device: "d".to_owned(),
            uris: vec!["nbd://localhost:1/e".to_owned()],
            read_only: true,
            connections: 2,
        }]
    }

    fn uptime_ns(&self) -> u64 {
        10_000_000_000
    }

    fn locks(&self) -> &LockRegistry {
        &self.locks
    }

    fn poll_switch(&self) -> &PollSwitch {
        &self.poll
    }
}

// The tests

/// A server that is killed when its test fails.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    lines: Vec<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const GOOD: &str = "[device.d]\ntype = \"ram\"\nsize = \"1GiB\"\n\
                    [export.e]\ndevice = \"d\"\nnbd = \"unix:e.sock\"\n";

fn command(folder: &Path, stack: &str, control: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    environment(&mut command, folder, stack, control);
    command
}

fn environment(command: &mut Command, folder: &Path, stack: &str, control: &str) {
    command
        .current_dir(folder)
        .env(STACK, stack)
        .env(CONTROL, control)
        .env("DRYSTONE_RUNTIME_DIR", folder.join("run"))
        .stdout(Stdio::piped());
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), GOOD).unwrap();
    folder
}

impl Server {
    /// Starts a server and waits until it has announced everything.
    fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server { child, out, lines: Vec::new() };
        server.read_until("Stop with");
        server
    }

    fn read_until(&mut self, word: &str) {
        let mut line = String::new();
        while self.out.read_line(&mut line).unwrap() > 0 {
            self.lines.push(std::mem::take(&mut line).trim_end().to_owned());
            if self.lines.last().unwrap().starts_with(word) {
                return;
            }
        }
        panic!("the server ended after {:?}", self.lines);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn status(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Stops by a signal and expects that it drained.
    fn stop(mut self, signal: Signal) {
        self.signal(signal);
        self.read_until("stopped Drain");
        assert_eq!(self.status(), Some(0));
    }
}

const DRYSTONE: Program = Program::new(env!("CARGO_BIN_EXE_drystone"));

fn start_client(folder: &Path, arguments: &[&str]) -> Child {
    DRYSTONE
        .command(folder)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn client(folder: &Path, arguments: &[&str]) -> Output {
    start_client(folder, arguments).wait_with_output().unwrap()
}

fn announces_and_stops() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = folder();
        let server = Server::spawn(&mut command(folder.path(), "s.toml", "c.sock"));
        let base = fs::canonicalize(folder.path()).unwrap();
        let uri = format!("nbd+unix:///e?socket={}/e.sock", base.display());
        assert!(server.lines.contains(&uri), "{uri} in {:?}", server.lines);
        for tool in ["nbdinfo", "qemu-img", "fio"] {
            let with_uri = |line: &&String| line.trim().starts_with(tool) && line.contains(&uri);
            assert_eq!(server.lines.iter().filter(with_uri).count(), 1, "{tool}");
        }
        let control = folder.path().join("c.sock");
        let mode = fs::symlink_metadata(&control).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        server.stop(signal);
        assert!(!control.exists());
    }
}

fn a_script_reads_addresses_as_json() {
    let folder = folder();
    let at = folder.path();
    let mut serve = command(at, "s.toml", "c.sock");
    let mut child = serve.env(OPTIONS, "--json").stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&told["stack"], &told["pid"]), (&"s".into(), &child.id().into()), "{told}");
    let base = fs::canonicalize(at).unwrap();
    let uri = format!("nbd+unix:///e?socket={}/e.sock", base.display());
    assert_eq!(told["addresses"], serde_json::json!([uri]), "{told}");
    assert_eq!(told["exports"][0]["name"], "e", "{told}");
    // It can be asked by then.
    let listed = client(at, &["list", "--control", told["control"].as_str().unwrap()]);
    assert_eq!(listed.status.code(), Some(0), "{}", both(&listed));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    let (mut rest, mut errors) = (String::new(), String::new());
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut errors).unwrap();
    assert_eq!(rest, "stopped Drain\n", "the line is all that it prints");
    assert!(errors.starts_with("note: stopping: flushing devices. "), "{errors}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn a_quiet_start_has_no_hints() {
    let folder = folder();
    let mut serve = command(folder.path(), "s.toml", "c.sock");
    let mut child = serve.env(OPTIONS, "--quiet").stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut told = String::new();
    while !told.contains("nbd+unix://") {
        assert!(out.read_line(&mut told).unwrap() > 0, "{told}");
    }
    until_live(&folder.path().join("c.sock"));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut out, &mut told).unwrap();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut errors).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((lines[0], lines.len()), ("serving stack s", 4), "{told}");
    assert_eq!(errors, "", "a note is no warning");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn answers_clients() {
    let folder = folder();
    let at = folder.path();
    let server = Server::spawn(&mut command(at, "s.toml", ""));
    assert!(at.join("run/s.sock").exists());
    let ok = |arguments: &[&str]| {
        let output = client(at, arguments);
        assert_eq!(output.status.code(), Some(0), "{}", both(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let json =
        |arguments: &[&str]| -> serde_json::Value { serde_json::from_str(&ok(arguments)).unwrap() };
    let list = ok(&["list"]);
    assert!(list.contains("d       ram   1GiB  rw      3\n"), "{list}");
    assert!(list.contains("e       d       ro      2            nbd://localhost:1/e\n"), "{list}");
    assert_eq!(json(&["list", "--json"])["devices"][0]["name"], "d");
    let show = ok(&["show", "d"]);
    assert_eq!(show, "d  ram  1GiB\nexports: e\nqueue/nr_requests  rw  64\n");
    assert_eq!(ok(&["set", "d", "queue/nr_requests=8"]), "d queue/nr_requests=8\n");
    assert_eq!(json(&["show", "d", "--json"])["attributes"]["queue/nr_requests"], "8");
    let report = json(&["iostat", "--json"]);
    assert_eq!(report[0]["r/s"], 2.0);
    assert!(report[0]["time"].as_str().is_some_and(|time| time.contains('T')), "{report}");
    assert_eq!(ok(&["iostat", "1ms", "3"]).matches("Device").count(), 3);
    let locks = json(&["lockstat", "--hold", "on", "--reset", "--json"]);
    assert_eq!((&locks["hold"], &locks["classes"][0]["class"]), (&true.into(), &"control".into()));
    assert!(ok(&["lockstat"]).lines().next().unwrap().ends_with("holdtime-avg"));
    let refused = client(at, &["set", "d", "queue/nr_requests=100"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(both(&refused).contains("`100` is out of range; permitted: 4 to 64"));
    assert_eq!(json(&["show", "d", "--json"])["attributes"]["queue/nr_requests"], "8");
    let missing = client(at, &["show", "x", "--json"]);
    assert_eq!(missing.status.code(), Some(1), "{}", both(&missing));
    server.stop(Signal::TERM);
}

fn a_change_that_waits_holds_nobody_up() {
    let folder = folder();
    let at = folder.path();
    let mut server = Server::spawn(&mut command(at, "s.toml", ""));
    let mut suspend = start_client(at, &["suspend", "d"]);
    server.read_until("suspending");
    assert_eq!(client(at, &["list"]).status.code(), Some(0));
    assert_eq!(client(at, &["info"]).stdout, b"No volumes; `drystone list` shows all devices.\n");
    assert!(suspend.try_wait().unwrap().is_none(), "it waits still");
    let resumed = client(at, &["resume", "d", "--timeout", "5ms"]);
    assert_eq!((resumed.status.code(), both(&resumed)), (Some(0), String::new()));
    assert_eq!(suspend.wait().unwrap().code(), Some(0));
    server.stop(Signal::TERM);
}

fn inherited_ignore_is_undone() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = folder();
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' INT TERM; exec \"$0\""]).arg(std::env::current_exe().unwrap());
        environment(&mut shell, folder.path(), "s.toml", "c.sock");
        Server::spawn(&mut shell).stop(signal);
    }
}

fn a_second_signal_stops_at_once() {
    for (second, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let folder = folder();
        let mut command = command(folder.path(), "s.toml", "c.sock");
        let mut server = Server::spawn(command.env(FAULT, "hang"));
        server.signal(Signal::TERM);
        server.read_until("hanging");
        // One that comes together with the first is not a second one.
        while server.child.try_wait().unwrap().is_none() {
            server.signal(second);
            sleep(Duration::from_millis(20));
        }
        assert_eq!(server.status(), Some(status));
        assert!(!folder.path().join("c.sock").exists());
    }
}

/// An array on three volumes, of which each I/O takes a hundred hours once it is served: the stop
/// hangs in their flushes.
fn a_stop_ends_although_members_hang() {
    let folder = folder();
    let member = |n| {
        format!(
            "[device.r{n}]\ntype = \"ram\"\nsize = \"8MiB\"\n\
             [device.v{n}]\ntable = \"0 16384 linear r{n} 0\"\n"
        )
    };
    let members: String = (0..3).map(member).collect();
    let array = "[device.a]\ntype = \"raid5\"\nmembers = [\"v0\", \"v1\", \"v2\"]\n\
                 [export.a]\ndevice = \"a\"\nnbd = \"unix:a.sock\"\n";
    fs::write(folder.path().join("a.toml"), members + array).unwrap();
    let messages = fs::File::create(folder.path().join("messages")).unwrap();
    let mut command = command(folder.path(), "a.toml", "c.sock");
    let mut server = Server::spawn(command.env(FAULT, "hurry").stderr(messages));
    let ask = |words: &[&str]| {
        let output = client(folder.path(), &[words, &["--control", "c.sock"]].concat());
        assert!(output.status.success(), "{}", both(&output));
    };
    for n in 0..3 {
        let table = format!("0 16384 delay r{n} 0 360000000");
        ask(&["reload", &format!("v{n}"), "--now", "--force", "--table", &table]);
    }
    server.signal(Signal::TERM);
    let end = Instant::now() + Duration::from_secs(60);
    while server.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it does not end");
        sleep(Duration::from_millis(20));
    }
    let said = fs::read_to_string(folder.path().join("messages")).unwrap();
    assert_eq!(server.status(), Some(1), "{said}");
    // 600 s where the flush was seen to have begun, 120 s where the machine was too slow for that.
    let sentence = said.lines().find(|line| line.starts_with("error: I/O did not end in "));
    assert!(sentence.is_some_and(|line| line.contains(" s and is given up. ")), "{said}");
}

fn a_live_socket_is_refused_with_its_holder() {
    let folder = folder();
    let server = Server::spawn(&mut command(folder.path(), "s.toml", "c.sock"));
    let second = command(folder.path(), "s.toml", "c.sock").output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let message = String::from_utf8_lossy(&second.stderr).into_owned();
    let holder = format!("c.sock is in use by process {};", server.child.id());
    assert!(message.contains(&holder), "{message}");
    server.stop(Signal::TERM);
    fs::write(folder.path().join("c.sock"), "data").unwrap();
    let third = command(folder.path(), "s.toml", "c.sock").output().unwrap();
    assert_eq!(third.status.code(), Some(1));
    assert_eq!(fs::read_to_string(folder.path().join("c.sock")).unwrap(), "data");
}

fn a_stopped_server_is_told() {
    let folder = folder();
    let at = folder.path();
    let server = Server::spawn(&mut command(at, "s.toml", ""));
    server.signal(Signal::STOP);
    let path = at.join("run/s.sock");
    let named = format!("{} (process {})", path.display(), server.child.id());
    let commands =
        [&["list"][..], &["show", "d"], &["set", "d", "size=1"], &["iostat"], &["lockstat"]];
    // They wait at the same time.
    let children = commands.map(|arguments| start_client(at, arguments));
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let message = both(&output);
        assert!(message.contains(&named) && message.contains("does not answer"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let second = command(at, "s.toml", "").stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(both(&second).contains("in use by process"), "{}", both(&second));
    server.signal(Signal::CONT);
    server.stop(Signal::TERM);
}

fn stale_sockets_are_replaced() {
    let folder = folder();
    drop(UnixListener::bind(folder.path().join("c.sock")).unwrap());
    let mut killed = Server::spawn(&mut command(folder.path(), "s.toml", "c.sock"));
    killed.signal(Signal::KILL);
    assert_eq!(killed.status(), None);
    assert!(folder.path().join("c.sock").exists());
    Server::spawn(&mut command(folder.path(), "s.toml", "c.sock")).stop(Signal::TERM);
}

fn several_servers_are_listed() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("t.toml"), GOOD).unwrap();
    let first = Server::spawn(&mut command(at, "s.toml", ""));
    let second = Server::spawn(&mut command(at, "t.toml", ""));
    let output = client(at, &["list"]);
    assert_eq!(output.status.code(), Some(2));
    for name in ["s", "t"] {
        let path = at.join(format!("run/{name}.sock"));
        assert!(both(&output).contains(&format!("--control {name}")), "{}", both(&output));
        for named in [path.to_str().unwrap(), name] {
            let output = client(at, &["list", "--control", named]);
            assert_eq!(output.status.code(), Some(0), "{}", both(&output));
        }
        let mut by_variable = DRYSTONE.command(at);
        let output = by_variable.arg("list").env("DRYSTONE_CONTROL", name).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", both(&output));
        let note = format!("note: asking the server at {}", path.display());
        assert!(both(&output).contains(&note), "{}", both(&output));
    }
    let unknown = client(at, &["list", "--control", "u"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", both(&unknown));
    let sentence = "error: no server is named `u` (and there is no socket u); running: s, t\n";
    assert_eq!(both(&unknown), sentence);
    let mut by_variable = DRYSTONE.command(at);
    let unknown = by_variable.arg("list").env("DRYSTONE_CONTROL", "./no.sock").output().unwrap();
    let sentence = "error: DRYSTONE_CONTROL: no server answers at ./no.sock: ";
    assert!(both(&unknown).starts_with(sentence), "{}", both(&unknown));
    assert!(both(&unknown).ends_with("; running: s, t\n"), "{}", both(&unknown));
    // A name with a dot is a name.
    fs::write(at.join("u.v.toml"), GOOD).unwrap();
    let third = Server::spawn(&mut command(at, "u.v.toml", ""));
    let output = client(at, &["list", "--control", "u.v"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    third.stop(Signal::TERM);
    first.stop(Signal::TERM);
    assert_eq!(client(at, &["list"]).status.code(), Some(0));
    // One that was started by a name is found by it.
    let named = Server::spawn(&mut command(at, "s.toml", "w"));
    assert!(at.join("run/w.sock").exists());
    let output = client(at, &["list", "--control", "w"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    named.stop(Signal::TERM);
    // Another one elsewhere, of which the environment tells: it is named beside the one in the
    // folder.
    let elsewhere = Server::spawn(&mut command(at, "s.toml", "c.sock"));
    let mut by_variable = DRYSTONE.command(at);
    let output = by_variable.arg("list").env("DRYSTONE_CONTROL", "c.sock").output().unwrap();
    assert!(both(&output).contains("note: asking the server at c.sock"), "{}", both(&output));
    elsewhere.stop(Signal::TERM);
    second.stop(Signal::TERM);
}

/// Waits until something listens at `path`.
fn until_live(path: &Path) -> UnixStream {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > deadline => panic!("{}: {error}", path.display()),
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
}

fn nobody_need_read_its_output() {
    let folder = folder();
    let mut child =
        command(folder.path(), "s.toml", "c.sock").stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    until_live(&folder.path().join("c.sock"));
    let listed = client(folder.path(), &["list", "--control", "c.sock"]);
    assert_eq!(listed.status.code(), Some(0), "{}", both(&listed));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn a_full_disk_does_not_keep_it_from_serving() {
    let folder = folder();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = command(folder.path(), "s.toml", "c.sock");
    let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut told).unwrap();
    assert!(told.contains("cannot write to the standard output"), "{told}");
    until_live(&folder.path().join("c.sock"));
    let listed = client(folder.path(), &["list", "--control", "c.sock"]);
    assert_eq!(listed.status.code(), Some(0), "{}", both(&listed));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn the_default_stack_makes_its_folder() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::spawn(command(folder.path(), "", "").stderr(Stdio::piped()));
    assert!(folder.path().join("run/default.sock").exists());
    assert!(folder.path().join("drystone-data").is_dir());
    let base = fs::canonicalize(folder.path()).unwrap();
    let uri = format!("nbd+unix:///?socket={}/drystone-data/nbd.sock", base.display());
    assert!(server.lines.contains(&uri), "{:?}", server.lines);
    // A second one is refused, and nothing of it is left; so is one that fails when its disks are
    // made.
    let other = TempDir::new().unwrap();
    let at = |run: &Path| {
        let mut second = command(other.path(), "", "");
        second.env("DRYSTONE_RUNTIME_DIR", run).stderr(Stdio::piped());
        second
    };
    let second = at(&folder.path().join("run")).output().unwrap();
    let failing = at(&other.path().join("run")).env(FAULT, "start").output().unwrap();
    for output in [second, failing] {
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        assert!(!both(&output).contains("new array"), "none was made: {}", both(&output));
        assert!(!other.path().join("drystone-data").exists(), "the folder is left");
    }
    server.signal(Signal::INT);
    assert_eq!(server.status(), Some(0));
    let mut told = String::new();
    let mut errors = server.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut errors, &mut told).unwrap();
    let note = format!("note: new array of 12 GiB in {}/drystone-data", base.display());
    assert!(told.contains(&note), "{told}");
    // A file that was there before stays, whatever becomes of a start; it is not new either.
    let failing = command(folder.path(), "", "").env(FAULT, "start").output().unwrap();
    assert_eq!(failing.status.code(), Some(1), "{}", both(&failing));
    assert!(folder.path().join("drystone-data/disk0.img").exists());
}

fn bad_clients_do_no_harm() {
    let folder = folder();
    let server = Server::spawn(&mut command(folder.path(), "s.toml", "c.sock"));
    let path = folder.path().join("c.sock");
    let mut rude = UnixStream::connect(&path).unwrap();
    rude.write_all(&vec![b'x'; 2_000_000]).unwrap();
    rude.write_all(b"\n{\n").unwrap();
    let mut answers = BufReader::new(rude.try_clone().unwrap()).lines();
    assert!(answers.next().unwrap().unwrap().contains("longer than"));
    assert!(answers.next().unwrap().unwrap().contains("not JSON"));
    drop(UnixStream::connect(&path).unwrap());
    let mut crowd: Vec<UnixStream> = Vec::new();
    for _ in 0..100 {
        crowd.push(UnixStream::connect(&path).unwrap());
    }
    // More than the server takes at a time: the client that has been idle for longest is told, and
    // makes room.
    let mut told = String::new();
    std::io::Read::read_to_string(&mut crowd.first().unwrap(), &mut told).unwrap();
    let sentence = "this connection was idle, and another client needed its place: connect again";
    assert!(told.contains(sentence) && told.ends_with("}\n"), "{told}");
    for _ in 0..20 {
        let output = client(folder.path(), &["list", "--control", "c.sock"]);
        assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    }
    drop(crowd);
    drop(rude);
    let output = client(folder.path(), &["list", "--control", "c.sock"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    server.stop(Signal::TERM);
}

fn failures_to_start_and_stop_are_told() {
    let folder = folder();
    let output = command(folder.path(), "s.toml", "c.sock").env(FAULT, "start").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(both(&output).contains("device d: on fire"));
    assert!(!folder.path().join("c.sock").exists());
    let mut command = command(folder.path(), "s.toml", "c.sock");
    let mut server = Server::spawn(command.env(FAULT, "stop").stderr(Stdio::piped()));
    server.signal(Signal::TERM);
    assert_eq!(server.status(), Some(1));
    let mut message = String::new();
    let mut stderr = server.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut message).unwrap();
    assert!(message.contains("device d: flush failed"), "{message}");
    assert!(!folder.path().join("c.sock").exists());
}
