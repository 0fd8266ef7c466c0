//! `drystone serve`: runs a stack in the foreground until a signal.

use std::path::{Path, PathBuf};

use drystone_stack::control::ServerInfo;
use drystone_stack::runtime::ExportSummary;
use drystone_stack::{
    DEFAULT_STACK_FOLDER, LoadError, LoadOptions, StackSpec, load_default, load_with, one_line,
};
use serde_json::json;

use crate::calendar;
use crate::control_socket::ControlSocket;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::folder;
use crate::front_ends::fuse::FileOptions;
use crate::md::assemble::{checked, name_of, stack_text, unix_address};
use crate::md::images::{Images, Wanted};
use crate::output;
use crate::server_handle::{ServerHandle, StopMode};
use crate::signals::StopSignal;
use crate::stop_limit::{FLUSH_LIMIT, STOP_LIMIT};

/// The options of `drystone serve`.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The stack file; `None` serves the embedded default stack.
    pub stack: Option<PathBuf>,
    /// Write to no device of the stack file.
    pub read_only: bool,
    /// The control socket, if not the stack's or the usual one: a path, or a name for the usual
    /// folder.
    pub control: Option<PathBuf>,
    /// Data threads, if not the stack's; 0 is as many as cores.
    pub threads: Option<u32>,
    /// Measure hold times of locks from the start.
    pub lockstat: bool,
    /// Tell addresses as JSON.
    pub json: bool,
    /// No notes, and no commands to try.
    pub quiet: bool,
    /// Files beside those of the stack.
    pub files: FileOptions,
    /// An array on images, to be served for reading only, instead of a stack file.
    pub rescue: Option<Rescue>,
}

impl ServeOptions {
    fn uses_default(&self) -> bool {
        self.stack.is_none() && self.rescue.is_none()
    }
}

/// An array on images.
#[derive(Debug, Clone, Default)]
pub struct Rescue {
    /// The images, and which array of theirs.
    pub wanted: Wanted,
    /// The NBD address, if not a Unix socket beside the control socket.
    pub nbd: Option<String>,
}

/// The way the default stack is changed, where it cannot be served.
const CHANGE_DEFAULT: &str = "help: to change the default stack, write it to a file in this folder \
    and serve that: `drystone serve --print-default > stack.toml`";

/// The way a stack is started: [`crate::server::start`], or a test's own.
pub type Start = fn(&StackSpec, &Ending) -> anyhow::Result<Box<dyn ServerHandle>>;

/// Serves until SIGINT or SIGTERM, then drains, flushes and removes the control socket. A signal
/// that comes before it serves stops it as soon as what has begun can be taken back in order.
///
/// # Errors
/// Everything that keeps the stack from starting, or data that could not be flushed at the end.
pub fn serve(options: &ServeOptions, start: Start) -> Result<(), Failure> {
    if options.quiet {
        output::be_quiet();
    }
    let signal = StopSignal::install()
        .map_err(|error| Failure::Refused(format!("cannot catch signals: {error}")))?;
    let mut folder = if options.uses_default() { Some(DataFolder::make()?) } else { None };
    let stack = planned(options)?;
    let ending = signal.ending();
    let control = bind_control(&control_path(&stack)?, ending)?;
    let handle = start(&stack, ending).map_err(|error| match Failure::from(error) {
        failure if options.uses_default() => of_default(failure),
        failure => failure,
    })?;
    folder.iter_mut().for_each(DataFolder::keep);
    let (runtime, server) = (handle.runtime(), server_info(&stack));
    let told = match options.json {
        true => ready_json(&server, control.path(), &handle.announce(), &runtime.exports()),
        false => announcement(&stack, &handle.announce(), control.path(), options.quiet),
    };
    if let Err(error) = control.answer(runtime, server) {
        let _ = handle.stop(StopMode::Now);
        return Err(Failure::Refused(format!("cannot answer on the control socket: {error}")));
    }
    // The stack is served all the same: `drystone list` tells the addresses.
    if !ending.is_asked()
        && let Err(error) = output::print(&told)
    {
        output::fail(&error);
    }
    signal.wait();
    output::note(&format!(
        "stopping: flushing devices. The server waits for files that are in use. It gives up I/O \
         that does not end within {} s ({} s with a flush). Press Ctrl-C again to quit at once; \
         unflushed data may then be lost.",
        STOP_LIMIT.as_secs(),
        FLUSH_LIMIT.as_secs()
    ));
    handle.stop(StopMode::Drain)?;
    Ok(())
}

/// The stack that must be served, with all that the options say of it.
///
/// # Errors A fault of the stack, or an option that does not go with it.
pub fn planned(options: &ServeOptions) -> Result<StackSpec, Failure> {
    planned_in(&current_folder, options)
}

/// The same, with the default stack in `folder`.
pub(crate) fn planned_in(
    folder: &dyn Fn() -> Result<PathBuf, Failure>,
    options: &ServeOptions,
) -> Result<StackSpec, Failure> {
    let mut stack = match &options.rescue {
        Some(rescue) => rescue_stack(rescue, options)?,
        None => stack(folder, options)?,
    };
    calendar::judge_certificates(&mut stack);
    output::warn(&stack);
    options.files.add_to(&mut stack)?;
    stack.server.threads = options.threads.unwrap_or(stack.server.threads);
    stack.server.lockstat = options.lockstat;
    stack.server.control = options.control.clone().or(stack.server.control);
    Ok(stack)
}

fn bind_control(path: &Path, ending: &Ending) -> Result<ControlSocket, Failure> {
    ending.making(|| {
        let control = ControlSocket::bind(path)?;
        let place = control.place();
        ending.add(Box::new(move || place.remove()));
        Ok(control)
    })
}

fn stack(
    folder: &dyn Fn() -> Result<PathBuf, Failure>,
    options: &ServeOptions,
) -> Result<StackSpec, Failure> {
    let how = LoadOptions { file: options.files.fuse.clone(), read_only: options.read_only };
    match &options.stack {
        Some(path) => load_with(path, &how).map_err(output::load_failure),
        None => default_stack(&folder()?),
    }
}

/// The folder of the default stack's files.
struct DataFolder {
    path: PathBuf,
    /// It was made by this start, which has not succeeded yet.
    is_new: bool,
    /// So is the array in it.
    is_new_array: bool,
}

impl DataFolder {
    /// Makes it in the current folder if need be.
    fn make() -> Result<Self, Failure> {
        let path = current_folder()?.join(DEFAULT_STACK_FOLDER);
        let is_new = match std::fs::create_dir(&path) {
            Ok(()) => true,
            Err(_) if path.is_dir() => false,
            Err(error) => {
                let shown = path.display();
                return Err(Failure::Refused(format!("cannot make {shown}: {error}")));
            }
        };
        let is_new_array = !disks(&path).any(|disk| disk.exists());
        Ok(DataFolder { path, is_new, is_new_array })
    }

    /// The start has succeeded: what it made stays, and is told of.
    fn keep(&mut self) {
        if self.is_new_array {
            output::note(&format!("new array of 12 GiB in {}", self.path.display()));
        }
        self.is_new = false;
    }
}

/// After a start that was refused nothing is left of a folder that it made: nobody has written to
/// its disks.
impl Drop for DataFolder {
    fn drop(&mut self) {
        if self.is_new {
            disks(&self.path).for_each(|disk| _ = std::fs::remove_file(disk));
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// The files of the default stack.
fn disks(folder: &Path) -> impl Iterator<Item = PathBuf> {
    (0..4).map(|n| folder.join(format!("disk{n}.img")))
}

fn current_folder() -> Result<PathBuf, Failure> {
    let refused = |error| Failure::Refused(format!("the current folder cannot be found: {error}"));
    std::env::current_dir().map_err(refused)
}

/// The embedded default stack in this folder, where its [`DataFolder`] is.
fn default_stack(base: &Path) -> Result<StackSpec, Failure> {
    load_default(base)
        .map_err(|report| of_default(output::load_failure(LoadError::Invalid(report))))
}

/// Says where to find the lines that a report on the default stack points at.
fn of_default(failure: Failure) -> Failure {
    match failure {
        Failure::Report(text) => Failure::Report(format!("{text}\n{CHANGE_DEFAULT}")),
        failure => failure,
    }
}

/// The stack of an array on images, nothing of which is written. Says what was found on them.
fn rescue_stack(rescue: &Rescue, options: &ServeOptions) -> Result<StackSpec, Failure> {
    let images = Images::open(&rescue.wanted)?;
    let name = name_of(&images);
    let nbd = match &rescue.nbd {
        Some(address) => address.clone(),
        None => {
            let control = named_control_path(options.control.as_deref(), &name)?;
            unix_address(&control.with_extension("nbd"))?
        }
    };
    let stack = checked(&name, stack_text(&images, &name, &nbd, true)?)?;
    let report = images.report();
    if options.json {
        report.iter().for_each(|line| output::note(line));
    } else {
        let lines = report.iter().map(|line| format!("{}\n", one_line(line)));
        output::print(&lines.collect::<String>())?;
    }
    Ok(stack)
}

fn control_path(stack: &StackSpec) -> Result<PathBuf, Failure> {
    named_control_path(stack.server.control.as_deref(), &stack.name)
}

/// The control socket that was asked for, or else that of a stack of this name.
fn named_control_path(wanted: Option<&Path>, name: &str) -> Result<PathBuf, Failure> {
    match wanted {
        // A name, by which clients find it wherever they are; a path has a slash or a dot.
        Some(named) if !named.to_string_lossy().contains(['/', '.']) => {
            folder::make_control_folder()?;
            Ok(folder::socket_of(named).unwrap_or_else(|| named.to_owned()))
        }
        Some(path) => Ok(path.to_owned()),
        None => Ok(folder::make_control_folder()?.join(format!("{name}.sock"))),
    }
}

fn server_info(stack: &StackSpec) -> ServerInfo {
    ServerInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        stack: stack.name.clone(),
    }
}

/// The output of `serve --json`, in one line: all that a script needs to reach the server.
fn ready_json(
    server: &ServerInfo,
    control: &Path,
    addresses: &[String],
    exports: &[ExportSummary],
) -> String {
    let told = json!({
        "version": server.version,
        "pid": server.pid,
        "stack": server.stack,
        "control": control.display().to_string(),
        "addresses": addresses,
        "exports": exports,
    });
    format!("{told}\n")
}

/// The output of `serve`: each URI on a line of its own, and commands to try.
fn announcement(stack: &StackSpec, uris: &[String], control: &Path, is_quiet: bool) -> String {
    let mut out = format!("serving stack {}\n", one_line(&stack.name));
    out.push_str(&format!("control socket {}\n", one_line(&control.display().to_string())));
    for uri in uris {
        out.push_str(&one_line(uri));
        out.push('\n');
    }
    if is_quiet {
        return out;
    }
    let hints: String = hints(uris).iter().map(|hint| format!("  {hint}\n")).collect();
    if !hints.is_empty() {
        out.push_str("Try:\n");
        out.push_str(&hints);
    }
    out.push_str("Stop with Ctrl-C.\n");
    out
}

/// Commands to try.
fn hints(uris: &[String]) -> Vec<String> {
    let mut hints = Vec::new();
    if let Some(uri) = uris.first().filter(|uri| uri.starts_with("nbds")) {
        // The client's certificates, and the name in the server's, are not known here.
        let uri = one_line(uri);
        let sign = if uri.contains('?') { '&' } else { '?' };
        hints.push(format!("nbdinfo '{uri}{sign}tls-certificates=FOLDER'"));
        hints.push(
            "# FOLDER has ca-cert.pem and the client's certificate; instead of an address write \
             the name in the server's certificate: docs/tls.md"
                .to_owned(),
        );
    } else if let Some(uri) = uris.first().filter(|uri| uri.starts_with("nbd")) {
        let uri = one_line(uri);
        hints.push(format!("nbdinfo '{uri}'"));
        hints.push(format!("qemu-img convert -p -O qcow2 '{uri}' copy.qcow2"));
        hints.push(format!(
            "fio --name=try --ioengine=nbd --uri='{uri}' --rw=randread --bs=4k --iodepth=16 \
             --time_based --runtime=5"
        ));
    }
    let device = uris.iter().find(|uri| uri.starts_with("/dev/loop"));
    hints.extend(device.and_then(|device| crate::front_ends::fuse::hint(Path::new(device))));
    hints
}
