//! The process of QEMU, and the stream of answers that comes out of it.
//!
//! Invariants:
//! - QEMU's standard input and output are the port of [`crate::guest`]'s protocol; nothing else is
//!   written there. Console and QEMU's own messages go to files.
//! - QEMU never outlives the test's process, however that ends: the kernel kills it (`setpriv
//!   --pdeathsig`) when the thread that started it ends. That is the thread that reads its output,
//!   which lives as long as either QEMU or the process.
//! - Nothing that a test calls waits for QEMU without a bound: a thread writes, a thread reads.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// An answer larger than this is taken for garbage, in bytes. It does not fit a guest's memory.
const ANSWER_MAX: usize = 1 << 30;

/// Bytes of console and of QEMU's messages that an error shows.
const TAIL: usize = 4096;

/// A disk of the guest, whose contents are a file of the host (raw, a multiple of 512 bytes long).
/// The guest's writes go to the file.
#[derive(Debug, Clone)]
pub struct Disk {
    path: PathBuf,
    model: &'static str,
    block_size: u32,
}

impl Disk {
    /// A disk of virtio-blk.
    pub fn virtio(path: impl Into<PathBuf>) -> Disk {
        Disk { path: path.into(), model: "virtio-blk-pci", block_size: 512 }
    }

    /// An NVMe controller with one namespace.
    pub fn nvme(path: impl Into<PathBuf>) -> Disk {
        Disk { path: path.into(), model: "nvme", block_size: 512 }
    }

    /// The same disk with logical and physical blocks of so many bytes instead of 512.
    pub fn block_size(self, block_size: u32) -> Disk {
        Disk { block_size, ..self }
    }

    /// QEMU's options for this disk.
    fn options(&self, name: &str) -> [String; 4] {
        let Disk { model, block_size: size, .. } = self;
        // QEMU takes a doubled comma for a comma in a value.
        let path = self.path.display().to_string().replace(',', ",,");
        [
            "-drive".into(),
            format!("if=none,format=raw,id={name},file={path}"),
            "-device".into(),
            format!(
                "{model},drive={name},serial={name},\
                 logical_block_size={size},physical_block_size={size}"
            ),
        ]
    }
}

/// The parts of a machine.
#[derive(Debug)]
pub struct Machine {
    /// The kernel, as ELF.
    pub vmlinux: PathBuf,
    /// The kernel's command line.
    pub arguments: String,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Number of processors.
    pub cpus: u32,
    /// Its clocks count instructions.
    pub counts_instructions: bool,
    /// Disks by their names.
    pub disks: Vec<(String, Disk)>,
}

/// One answer of the guest.
#[derive(Debug)]
pub struct Answer {
    /// Exit status of the command.
    pub status: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// A running QEMU. Dropping it kills it, and shows its console if the test fails.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
    folder: PathBuf,
    requests: Option<Sender<Vec<u8>>>,
    answers: Receiver<Answer>,
}

impl Qemu {
    /// Starts a machine whose first files are `initramfs` in `folder`; logs go there too. The
    /// error is one sentence.
    pub fn start(machine: &Machine, folder: &Path) -> Result<Qemu, String> {
        let mut command = command(machine, folder)?;
        let (started, child) = channel();
        let (answered, answers) = channel();
        thread::spawn(move || read_answers(&mut command, &started, &answered));
        let mut child = child
            .recv()
            .expect("the thread says so or why not")
            .map_err(|error| format!("cannot run setpriv and QEMU: {error}"))?;
        let stdin = child.stdin.take().expect("a pipe");
        let (requests, wanted) = channel();
        thread::spawn(move || write_requests(stdin, &wanted));
        Ok(Qemu { child, folder: folder.to_owned(), requests: Some(requests), answers })
    }

    /// Sends bytes to the guest. That QEMU has ended is seen by [`Qemu::answer`].
    pub fn send(&self, request: Vec<u8>) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
    }

    /// Hangs up: the guest then powers itself off.
    pub fn hang_up(&mut self) {
        self.requests = None;
    }

    /// Waits for the next answer.
    pub fn answer(&self, patience: Duration) -> Result<Answer, RecvTimeoutError> {
        self.answers.recv_timeout(patience)
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills QEMU and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// All that the guest has written to its console.
    pub fn console(&self) -> String {
        read_text(&self.folder.join(CONSOLE))
    }

    /// The ends of the console and of QEMU's own messages.
    pub fn last_words(&self) -> String {
        tail(&self.console()) + &tail(&read_text(&self.folder.join(MESSAGES)))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("the end of the guest's console:\n{}", self.last_words());
        }
    }
}

const CONSOLE: &str = "console.log";
const MESSAGES: &str = "qemu.log";
/// The name of the file in a guest's folder that holds its first files.
pub const INITRAMFS: &str = "initramfs";

fn command(machine: &Machine, folder: &Path) -> Result<Command, String> {
    let path = folder.join(MESSAGES);
    let messages = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    // The fastest boot of those that never failed. With a thread for each processor this version's
    // kernel died now and then while it patched its own code (docs/guest-tests.md).
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max"]);
    command.args(["-m", &machine.memory_mib.to_string(), "-smp", &machine.cpus.to_string()]);
    command.arg("-kernel").arg(&machine.vmlinux);
    command.args(["-initrd", INITRAMFS, "-append", &machine.arguments]);
    command.args(["-serial", &format!("file:{CONSOLE}")]);
    command.args(["-chardev", "stdio,id=test,signal=off", "-device", "virtio-serial-pci"]);
    command.args(["-device", "virtserialport,chardev=test,name=drystone"]);
    if machine.counts_instructions {
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    for (name, disk) in &machine.disks {
        command.args(disk.options(name));
    }
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages);
    Ok(command)
}

/// Starts QEMU, and passes its answers on until its output ends. This thread must not end before.
fn read_answers(
    command: &mut Command,
    started: &Sender<std::io::Result<Child>>,
    answered: &Sender<Answer>,
) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return drop(started.send(Err(error))),
    };
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    if started.send(Ok(child)).is_err() {
        return;
    }
    while let Some(answer) = read_answer(&mut output) {
        let _ = answered.send(answer);
    }
}

/// Reads an answer: its head `STATUS STDOUT_BYTES STDERR_BYTES`, and so many bytes. Nothing at the
/// end, or if this is no answer.
fn read_answer(output: &mut impl BufRead) -> Option<Answer> {
    let mut head = String::new();
    output.take(64).read_line(&mut head).ok()?;
    let mut words = head.strip_suffix('\n')?.split(' ');
    let status = words.next()?.parse().ok()?;
    let [stdout, stderr] = [words.next()?, words.next()?].map(str::parse::<usize>);
    let mut bytes = |length: usize| {
        let mut bytes = vec![0; (length <= ANSWER_MAX).then_some(length)?];
        output.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    Some(Answer { status, stdout: bytes(stdout.ok()?)?, stderr: bytes(stderr.ok()?)? })
}

/// Writes requests until the test hangs up or QEMU ends.
fn write_requests(mut stdin: ChildStdin, requests: &Receiver<Vec<u8>>) {
    for request in requests {
        if stdin.write_all(&request).is_err() {
            return;
        }
    }
}

fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The last bytes of a text, from the beginning of a line on.
fn tail(text: &str) -> String {
    let Some(from) = text.len().checked_sub(TAIL) else { return text.to_owned() };
    let from = text.ceil_char_boundary(from);
    let line = text[from..].find('\n').map_or(from, |end| from + end + 1);
    text[line..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_hold_any_bytes() {
        let mut output = &b"3 4 2\n1 2\n\0\xff0 0 0\nrest"[..];
        let answer = read_answer(&mut output).expect("an answer");
        assert_eq!(
            (answer.status, answer.stdout, answer.stderr),
            (3, b"1 2\n".to_vec(), vec![0, 0xff])
        );
        assert_eq!(read_answer(&mut output).map(|answer| answer.status), Some(0));
        assert!(read_answer(&mut output).is_none());
    }

    #[test]
    fn what_is_no_answer_ends_the_stream() {
        for text in ["", "0 0\n", "x 0 0\n", "0 5 0\nabc", "0 99999999999 0\n", "0 0 0"] {
            assert!(read_answer(&mut text.as_bytes()).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_tail_begins_with_a_line() {
        assert_eq!(tail("short"), "short");
        let long = format!("{}\nlast line\n", "ä".repeat(TAIL));
        assert_eq!(tail(&long), "last line\n");
    }
}
