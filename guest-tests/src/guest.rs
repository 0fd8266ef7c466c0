//! A running guest, and the commands that a test runs in it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use tempfile::TempDir;

use crate::cpio::Archive;
use crate::error::{GuestError, GuestErrorKind};
use crate::image::image;
use crate::program;
use crate::qemu::{Answer, Disk, INITRAMFS, Machine, Qemu};

/// The time that a test waits for a boot or a command. It bounds a hang and judges no speed: an
/// emulated processor is slow, and this machine may have other work.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Words of every guest's kernel command line. The console shows all, and a panic or a mere oops
/// ends QEMU by a reboot, so that no test continues with a broken kernel.
///
/// `no_timer_check`: the kernel counts interrupts of the timer for some milliseconds to find out
/// how it is wired, and panics if there are none, as on a busy machine that emulates it slowly.
const ARGUMENTS: &str = "console=ttyS0 panic=-1 oops=panic no_timer_check";

/// A guest to be started. Made by [`Guest::builder`].
#[derive(Debug)]
pub struct GuestBuilder {
    memory_mib: u32,
    cpus: u32,
    counts_instructions: bool,
    arguments: String,
    disks: Vec<(String, Disk)>,
    programs: Vec<PathBuf>,
    files: Vec<(PathBuf, String)>,
}

/// A running guest: one boot, in which any number of commands run one after another. Dropping it
/// kills QEMU. The disks' files then hold the data that commands have written to disks by then.
#[derive(Debug)]
pub struct Guest {
    qemu: Qemu,
    /// Holds the logs and the first files while QEMU runs.
    _folder: TempDir,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; 128 and the signal's number if a signal ended it.
    pub status: i32,
    /// Its standard output, byte by byte.
    pub stdout: Vec<u8>,
    /// Its standard error, byte by byte.
    pub stderr: Vec<u8>,
}

impl GuestBuilder {
    /// Memory in MiB; 512 if this is not called. Programs from the host take their size twice.
    pub fn memory_mib(self, memory_mib: u32) -> GuestBuilder {
        GuestBuilder { memory_mib, ..self }
    }

    /// Number of processors; 2 if this is not called.
    pub fn cpus(self, cpus: u32) -> GuestBuilder {
        GuestBuilder { cpus, ..self }
    }

    /// One processor, and clocks that count its instructions: a nanosecond for each, so that times
    /// of the guest are numbers of instructions.
    pub fn counting_instructions(self) -> GuestBuilder {
        GuestBuilder { cpus: 1, counts_instructions: true, ..self }
    }

    /// Further words of the kernel's command line, such as `nvme.poll_queues=2`.
    pub fn kernel_args(mut self, words: &str) -> GuestBuilder {
        self.arguments = format!("{} {words}", self.arguments);
        self
    }

    /// A disk that the guest finds as `/dev/disk/NAME`. A name has up to 20 letters and digits.
    pub fn disk(mut self, name: &str, disk: Disk) -> GuestBuilder {
        let fits = name.len() <= 20 && name.starts_with(|first: char| first.is_ascii_alphabetic());
        assert!(fits && name.chars().all(|one| one.is_ascii_alphanumeric()), "disk name {name:?}");
        assert!(self.disks.iter().all(|(known, _)| known != name), "two disks {name:?}");
        self.disks.push((name.to_owned(), disk));
        self
    }

    /// A program of the host, by its path or by its name, with the shared libraries that it is
    /// linked with. The guest finds it as `/bin/NAME`.
    pub fn program(mut self, program: impl Into<PathBuf>) -> GuestBuilder {
        self.programs.push(program.into());
        self
    }

    /// A file of the host, with its permissions, at an absolute path of the guest.
    pub fn file(mut self, source: impl Into<PathBuf>, target: &str) -> GuestBuilder {
        self.files.push((source.into(), target.to_owned()));
        self
    }

    /// Boots the guest and waits until it takes commands. A guest that does not come up panics
    /// with its console.
    pub fn start(self) -> Guest {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same with the error as a value.
    pub fn try_start(self) -> Result<Guest, GuestError> {
        let (qemu, folder) = self.prepared().map_err(GuestError::not_started)?;
        let mut guest = Guest { qemu, _folder: folder };
        guest.answer("the guest's first sign of life", PATIENCE)?;
        Ok(guest)
    }

    fn prepared(self) -> Result<(Qemu, TempDir), String> {
        let image = image().as_ref()?;
        let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
        let own = self.own_files()?;
        concatenate(&image.initramfs, &own, &folder.path().join(INITRAMFS))?;
        let machine = Machine {
            vmlinux: image.vmlinux.clone(),
            arguments: self.arguments,
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            counts_instructions: self.counts_instructions,
            disks: self.disks,
        };
        Ok((Qemu::start(&machine, folder.path())?, folder))
    }

    /// The archive of files that only this guest has.
    fn own_files(&self) -> Result<Vec<u8>, String> {
        let mut archive = Archive::default();
        let names: String = self.disks.iter().map(|(name, _)| format!("{name}\n")).collect();
        archive.file("/etc/disks", 0o644, names.as_bytes());
        for program in &self.programs {
            program::add(&mut archive, program)?;
        }
        for (source, target) in &self.files {
            add_file(&mut archive, source, target)
                .map_err(|error| format!("{}: {error}", source.display()))?;
        }
        Ok(archive.finish())
    }
}

impl Guest {
    /// A guest with 512 MiB, two processors and nothing else.
    pub fn builder() -> GuestBuilder {
        GuestBuilder {
            memory_mib: 512,
            cpus: 2,
            counts_instructions: false,
            arguments: ARGUMENTS.to_owned(),
            disks: Vec::new(),
            programs: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Runs a shell script in the folder `/` with empty standard input, and waits for its end; its
    /// background processes continue. Panics with the guest's console if there is no answer.
    pub fn run(&mut self, script: &str) -> Output {
        self.run_with_input(script, &[])
    }

    /// The same with bytes for its standard input.
    pub fn run_with_input(&mut self, script: &str, input: &[u8]) -> Output {
        self.try_run(script, input, PATIENCE).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same with a time limit and the error as a value. After an error the guest is gone.
    pub fn try_run(
        &mut self,
        script: &str,
        input: &[u8],
        patience: Duration,
    ) -> Result<Output, GuestError> {
        let head = format!("{} {}\n", script.len(), input.len());
        self.qemu.send([head.as_bytes(), script.as_bytes(), input].concat());
        let Answer { status, stdout, stderr } = self.answer(&format!("{script:?}"), patience)?;
        Ok(Output { status, stdout, stderr })
    }

    /// Lets the guest write back what it has in memory and power itself off, and waits for that.
    pub fn power_off(mut self) -> Result<(), GuestError> {
        self.qemu.hang_up();
        match self.qemu.answer(PATIENCE) {
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(self.late("to power off", PATIENCE)),
            Ok(answer) => panic!("an answer that nobody asked for: {answer:?}"),
        }
    }

    /// All that the guest has printed on its console, kernel's messages included.
    pub fn console(&self) -> String {
        self.qemu.console()
    }

    /// The process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    fn answer(&mut self, what: &str, patience: Duration) -> Result<Answer, GuestError> {
        match self.qemu.answer(patience) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => Err(self.late(what, patience)),
            Err(RecvTimeoutError::Disconnected) => {
                self.qemu.kill();
                let message = format!("the guest has ended during {what}");
                Err(self.error(GuestErrorKind::Ended, message))
            }
        }
    }

    fn late(&mut self, what: &str, patience: Duration) -> GuestError {
        self.qemu.kill();
        let message = format!("the guest took more than {patience:?} for {what}");
        self.error(GuestErrorKind::TimedOut, message)
    }

    fn error(&self, kind: GuestErrorKind, message: String) -> GuestError {
        GuestError { kind, message, console: self.qemu.last_words() }
    }
}

impl Output {
    /// Its standard output as text, after checking that the command succeeded.
    pub fn ok(self) -> String {
        assert_eq!(
            self.status,
            0,
            "the command failed in the guest\n{}{}",
            self.text(),
            self.errors()
        );
        self.text()
    }

    /// Its standard error as text, after checking that the command failed.
    pub fn refused(self) -> String {
        assert_ne!(self.status, 0, "the command should have failed in the guest\n{}", self.text());
        self.errors()
    }

    /// Its standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Its standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

fn add_file(archive: &mut Archive, source: &Path, target: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::metadata(source)?.permissions().mode() & 0o7777;
    archive.file(target, permissions, &fs::read(source)?);
    Ok(())
}

/// Writes a file of two archives, the later of which adds to the files of the first.
fn concatenate(first: &Path, second: &[u8], target: &Path) -> Result<(), String> {
    let copied = || {
        fs::copy(first, target)?;
        let mut file = File::options().append(true).open(target)?;
        file.write_all(second)
    };
    copied().map_err(|error| format!("{}: {error}", target.display()))
}
