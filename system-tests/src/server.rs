//! A running `drystone serve`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::{Outcome, run};

/// The time that a test waits for something that must come. It bounds a hang and judges no speed: a
/// program under AddressSanitizer on a busy machine comes within it.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// The looks that a test takes within [`PATIENCE`], a tenth of a second apart.
pub const LOOKS: u64 = PATIENCE.as_secs() * 10;

/// The program under test: `DRYSTONE_BIN`, or else the debug build, made when needed.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("DRYSTONE_BIN") {
        Some(path) => fs::canonicalize(&path)
            .unwrap_or_else(|error| panic!("DRYSTONE_BIN={}: {error}", path.display())),
        None => built_program(),
    })
}

/// Says whether this run of the tests denies io_uring to every server: `DRYSTONE_DENY_IO_URING=1`.
pub fn denies_io_uring() -> bool {
    std::env::var_os("DRYSTONE_DENY_IO_URING").is_some_and(|value| value == "1")
}

/// A command prefix that denies io_uring to the rest, as containers do.
pub fn without_io_uring() -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/deny_io_uring.py");
    ["/usr/bin/python3", "-IS", script].map(str::to_owned).to_vec()
}

fn built_program() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["build", "-p", "drystone", "-p", "drystone-lab", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo build -p drystone -p drystone-lab failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let after = text.rsplit_once(r#""executable":""#).expect("cargo names the program").1;
    Path::new(after.split('"').next().expect("a path")).with_file_name("drystone")
}

/// A running server with a folder of its own, in which its stack file, images and sockets lie.
/// Dropping it kills the server and panics if the server panicked.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: Arc<TempDir>,
    lines: Receiver<String>,
    seen: Vec<String>,
    name: String,
}

impl Server {
    /// Starts a server on the text of a stack file, in which `DIR` stands for the server's folder,
    /// and waits until it has printed the address of an export.
    pub fn start(stack: &str) -> Server {
        Server::start_in(&new_folder(), stack, &[])
    }

    /// Starts a server in a folder that holds files already, behind a command such as `env` with
    /// its arguments (none: the program itself).
    pub fn start_in(folder: &Arc<TempDir>, stack: &str, prefix: &[&str]) -> Server {
        Server::spawn_in(folder, stack, prefix).announced()
    }

    /// A server with further options of `drystone serve`.
    pub fn start_with(stack: &str, options: &[&str]) -> Server {
        Server::spawn_with(&new_folder(), stack, &[], options).announced()
    }

    /// Waits until the server has printed the address of an export.
    pub fn announced(mut self) -> Server {
        let deadline = Instant::now() + PATIENCE;
        while !self.seen.iter().any(|line| is_uri(line)) {
            if !self.read_line(deadline) {
                panic!("the server printed no address\n{}", self.messages());
            }
        }
        self
    }

    /// Starts a server that must refuse, without waiting for its address.
    pub fn spawn_in(folder: &Arc<TempDir>, stack: &str, prefix: &[&str]) -> Server {
        Server::spawn_with(folder, stack, prefix, &[])
    }

    /// Starts a server that has no stack file but only options of `drystone serve`, in a folder
    /// that holds files already, without waiting for its address.
    pub fn spawn_without_stack(folder: &Arc<TempDir>, prefix: &[&str], options: &[&str]) -> Server {
        Server::spawn(folder, &new_name(), prefix, options)
    }

    fn spawn_with(folder: &Arc<TempDir>, stack: &str, prefix: &[&str], options: &[&str]) -> Server {
        let (dir, name) = (folder.path().to_str().expect("a UTF-8 path"), new_name());
        let file = format!("{dir}/{name}.toml");
        fs::write(&file, stack.replace("DIR", dir)).expect("a stack file is written");
        Server::spawn(folder, &name, prefix, &[&[&file[..]], options].concat())
    }

    fn spawn(folder: &Arc<TempDir>, name: &str, prefix: &[&str], options: &[&str]) -> Server {
        let (dir, name) =
            (folder.path().to_str().expect("a UTF-8 path").to_owned(), name.to_owned());
        let filter = if denies_io_uring() { without_io_uring() } else { Vec::new() };
        let words = prefix.iter().map(|word| word.replace("DIR", &dir));
        let words: Vec<String> = filter.into_iter().chain(words).collect();
        let mut command = serve_command(&words, &dir, &name);
        let mut child = command.args(options).spawn().expect("the server starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Server { child, folder: folder.clone(), lines, seen: Vec::new(), name }
    }

    /// The server's folder, to keep it or to start another server in it.
    pub fn folder(&self) -> Arc<TempDir> {
        self.folder.clone()
    }

    /// The path of the server's folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in the server's folder, as text for command lines.
    pub fn path(&self, name: &str) -> String {
        self.dir().join(name).to_str().expect("a UTF-8 path").to_owned()
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address of an export as the server printed it; waits for it if need be.
    pub fn uri(&mut self, export: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(uri) = self.seen.iter().find(|line| names_export(line, export)) {
                return uri.clone();
            }
            if !self.read_line(deadline) {
                panic!("no address of {export:?} in {:#?}\n{}", self.seen, self.messages());
            }
        }
    }

    /// Reads the server's output within that time, up to a line.
    pub fn listen(&mut self, time: Duration) {
        self.read_line(Instant::now() + time);
    }

    /// Waits for a line of the server's standard output, which is the whole one.
    ///
    /// # Panics
    /// If it does not come within [`PATIENCE`].
    pub fn await_line(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.seen.iter().any(|line| line == wanted) {
                return;
            }
            self.listen(Duration::from_millis(100));
        }
        panic!("the server did not print {wanted:?}\n{}", self.messages());
    }

    /// The lines of the server's output up to the awaited one.
    pub fn said(&self) -> &[String] {
        &self.seen
    }

    /// The path of the control socket.
    pub fn control(&self) -> String {
        self.path(&format!("{}.control", self.name))
    }

    /// Runs a command of the program, such as `list`, against this server.
    pub fn ask(&self, words: &[&str]) -> Outcome {
        let program = program().to_str().expect("a UTF-8 path");
        let control = self.control();
        run(self.dir(), &[&[program], words, &["--control", &control]].concat())
    }

    /// Everything that the server wrote to standard error so far.
    pub fn messages(&self) -> String {
        fs::read_to_string(self.path(&format!("{}.err", self.name))).unwrap_or_default()
    }

    /// Sends a signal by its name without SIG.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success(), "cannot send {name}");
    }

    /// Asks the server to stop, and waits until it has.
    pub fn sigterm(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    /// Waits until the server has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end\n{}", self.messages());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// True if the server still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    /// Returns the reason of a server that must refuse to start. Waits for its end, and checks that
    /// its exit status is 1 and its message is short.
    pub fn refusal(&mut self) -> String {
        let status = self.wait();
        let messages = self.messages();
        assert_eq!(status.code(), Some(1), "{messages}");
        assert!(!messages.is_empty() && messages.lines().count() < 24, "{messages}");
        messages
    }

    /// Processor time that the server has used, all threads together, in clock ticks (1/100 s).
    pub fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        // Fields after the command's closing bracket: utime and stime are the 12th and 13th.
        let fields: Vec<&str> =
            stat.rsplit_once(')').expect("a bracket").1.split_whitespace().collect();
        let ticks = |index: usize| fields[index].parse::<u64>().expect("a number");
        ticks(11) + ticks(12)
    }

    /// Memory that the server holds, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// Addresses that the server has mapped, in KiB.
    pub fn address_space_kib(&self) -> u64 {
        self.status_kib("VmSize:")
    }

    /// A line of proc(5)'s `status`.
    fn status_kib(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with(key)).expect("such a line");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    }

    /// The kernel's flags of its main thread (proc(5), `stat`), which the threads of that thread
    /// inherit.
    pub fn task_flags(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        let fields = stat.rsplit_once(')').expect("a bracket").1;
        fields.split_whitespace().nth(6).expect("flags").parse().expect("a number")
    }

    /// Number of descriptors that the server has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }

    /// Reads one line of output; false when none came until the deadline or the output ended.
    fn read_line(&mut self, deadline: Instant) -> bool {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.seen.push(line.trim().to_owned());
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let messages = self.messages();
        if thread::panicking() {
            eprintln!("messages of the server:\n{messages}");
        } else {
            assert!(!messages.contains("panicked"), "the server panicked:\n{messages}");
        }
    }
}

/// A new folder for one or more servers; it goes when the last of them has gone.
pub fn new_folder() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().expect("a temporary folder"))
}

fn new_name() -> String {
    static SERVERS: AtomicU64 = AtomicU64::new(0);
    format!("stack{}", SERVERS.fetch_add(1, Ordering::Relaxed))
}

fn serve_command(prefix: &[String], dir: &str, name: &str) -> Command {
    let mut words = prefix.iter().map(Into::into).chain([program().as_os_str().to_owned()]);
    let mut command = Command::new(words.next().expect("at least the program"));
    let errors = File::create(format!("{dir}/{name}.err")).expect("a file for messages");
    command
        .args(words)
        .args(["serve", "--control"])
        .arg(format!("{dir}/{name}.control"))
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors);
    command
}

fn is_uri(line: &str) -> bool {
    ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"].iter().any(|head| line.starts_with(head))
}

/// True if a line is the address of an export: the name is the path of the address.
fn names_export(line: &str, export: &str) -> bool {
    let path = line.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    is_uri(line) && path.is_some_and(|(_, rest)| rest.split('?').next() == Some(export))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_their_export() {
        assert!(names_export("nbd+unix:///vol?socket=/a/b", "vol"));
        assert!(names_export("nbds://localhost:10809/vol", "vol"));
        assert!(names_export("nbd+unix:///?socket=/a/vol", ""));
        assert!(!names_export("nbd+unix:///volume?socket=/a", "vol"));
        assert!(!names_export("try: nbdinfo nbd+unix:///vol?socket=/a", "vol"));
    }
}
