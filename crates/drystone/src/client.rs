//! The client's end of the control socket: finding the server and asking it.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drystone_stack::control::{MAX_LINE_BYTES, request, response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::Failure;
use crate::folder;
use crate::output;
use crate::unix_socket;

/// The server to ask, where no option says which.
pub const CONTROL_VARIABLE: &str = "DRYSTONE_CONTROL";
/// Longest answer that is read: far more than all devices of a stack take.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Time that a server has to take a request, and to send the next part of its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a running server.
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

impl Client {
    /// Connects to the server at `control`, or to the only one that is running.
    pub fn connect(control: Option<&Path>) -> Result<Self, Failure> {
        let variable = std::env::var_os(CONTROL_VARIABLE).filter(|value| !value.is_empty());
        match (control, variable) {
            (Some(named), _) => Self::named(named),
            (None, Some(named)) => {
                let client = Self::named(Path::new(&named)).map_err(of_variable)?;
                client.tell_which();
                Ok(client)
            }
            (None, None) => Self::only_one(),
        }
    }

    /// Connects once more: a server lets go of clients that are silent for long.
    pub fn reconnect(&mut self) -> Result<(), Failure> {
        *self = Self::open(&self.path).map_err(|error| unreachable(&self.path, &error))?;
        Ok(())
    }

    /// The server at a path, or of that name in the folder of control sockets.
    fn named(named: &Path) -> Result<Self, Failure> {
        let by_name = folder::socket_of(named).filter(|path| !named.exists() && path.exists());
        if by_name.is_some() {
            folder::check(&folder::control_folder())?;
        }
        let path = by_name.as_deref().unwrap_or(named);
        Self::open(path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => unreachable(path, &error),
            ErrorKind::NotFound if is_name(named) => {
                let name = named.display();
                let message =
                    format!("no server is named `{name}` (and there is no socket {name})");
                Failure::Refused(message + &Self::running())
            }
            _ => match unreachable(path, &error) {
                Failure::Refused(message) => Failure::Refused(message + &Self::running()),
                other => other,
            },
        })
    }

    /// A clause with the servers in the usual folder that answer; empty if there are none.
    fn running() -> String {
        let folder = folder::control_folder();
        let all = folder::check(&folder).and_then(|()| sockets(&folder)).unwrap_or_default();
        let live = all.iter().filter(|path| Self::open(path).is_ok());
        let names = live.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect();
        if names.is_empty() { String::new() } else { format!("; running: {}", names.join(", ")) }
    }

    /// Says which server it is, where there are others: the environment is easily forgotten.
    fn tell_which(&self) {
        let own = self.path.canonicalize().ok();
        let is_other = |path: &PathBuf| path.canonicalize().ok() != own && Self::open(path).is_ok();
        if sockets(&folder::control_folder()).is_ok_and(|all| all.iter().any(is_other)) {
            let path = self.path.display();
            output::note(&format!("asking the server at {path} (${CONTROL_VARIABLE})"));
        }
    }

    fn open(path: &Path) -> io::Result<Self> {
        let stream = unix_socket::connect_now(path)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, path: path.to_owned() })
    }

    fn only_one() -> Result<Self, Failure> {
        let folder = folder::control_folder();
        folder::check(&folder)?;
        let tried = sockets(&folder)?.into_iter().map(|path| (Self::open(&path), path));
        // A server that takes no connections is running all the same.
        let running = |(opened, _): &(io::Result<Self>, PathBuf)| {
            opened.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::WouldBlock)
        };
        let mut live: Vec<_> = tried.filter(running).collect();
        match (live.pop(), live.len()) {
            (None, _) => Err(Failure::Refused(format!(
                "no server is running (none listens in {}); start one with `drystone serve`, or \
                 name its socket with --control",
                folder.display()
            ))),
            (Some((opened, path)), 0) => opened.map_err(|error| unreachable(&path, &error)),
            (Some(last), _) => {
                live.push(last);
                let names = live.iter().filter_map(|(_, path)| path.file_stem());
                let names = names.map(|name| format!("--control {}", name.to_string_lossy()));
                let names: Vec<String> = names.collect();
                let message = format!(
                    "several servers are running; say {}, or set {CONTROL_VARIABLE}",
                    names.join(" or ")
                );
                Err(Failure::Usage(message))
            }
        }
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, command: &str, arguments: &[(&str, &str)]) -> Result<Value, Failure> {
        self.ask_for(command, arguments, Duration::ZERO)
    }

    /// Asks something that the server may work at for `time`, and waits for the answer.
    pub fn ask_for(
        &mut self,
        command: &str,
        arguments: &[(&str, &str)],
        time: Duration,
    ) -> Result<Value, Failure> {
        let timeout = Some(ANSWER_TIMEOUT + time);
        self.stream.set_read_timeout(timeout).map_err(|error| self.lost(&error))?;
        let line = request(command, arguments) + "\n";
        if line.len() > MAX_LINE_BYTES {
            return Err(Failure::Refused(format!(
                "the request of `{command}` has {} bytes, and a server reads at most \
                 {MAX_LINE_BYTES}: shorten it, for example by its comments",
                line.len()
            )));
        }
        let answer = self.exchange(&line).map_err(|error| self.lost(&error))?;
        let answer = response(&answer).map_err(|error| Failure::Refused(error.message))?;
        answer["warning"].as_str().into_iter().for_each(output::warning);
        Ok(answer)
    }

    fn lost(&self, error: &io::Error) -> Failure {
        let holder = unix_socket::holder(&self.stream);
        let holder = holder.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        let what = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let time = self.stream.read_timeout().ok().flatten().unwrap_or(ANSWER_TIMEOUT);
                let seconds = time.as_secs();
                format!("does not answer within {seconds} s; it is stopped or overloaded")
            }
            _ => format!("gave no usable answer: {error}"),
        };
        Failure::Refused(format!("the server at {}{holder} {what}", self.path.display()))
    }

    fn exchange(&mut self, line: &str) -> io::Result<String> {
        match self.stream.write_all(line.as_bytes()) {
            // A server that turned us away has gone, but said why before.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        let mut answer = Vec::new();
        let mut bytes = [0; 16 << 10];
        loop {
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::other("it closed the connection")),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            };
            answer.extend_from_slice(&bytes[..count]);
            if answer.last() == Some(&b'\n') {
                return Ok(String::from_utf8_lossy(&answer).into_owned());
            }
            if answer.len() as u64 > MAX_ANSWER_BYTES {
                return Err(io::Error::other("the answer is too long"));
            }
        }
    }
}

/// An answer as the type that this version knows.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| {
        Failure::Refused(format!(
            "the server has another version, and its answer cannot be read: {error}"
        ))
    })
}

/// True if it can only be meant as a name: a path has a slash, or is that of a socket.
fn is_name(named: &Path) -> bool {
    folder::socket_of(named).is_some() && named.extension().is_none_or(|end| end != "sock")
}

/// Says that the environment named the server.
fn of_variable(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(message) => Failure::Refused(format!("{CONTROL_VARIABLE}: {message}")),
        other => other,
    }
}

/// Why a path could not be connected to.
fn unreachable(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::Refused(match error.kind() {
        ErrorKind::WouldBlock => format!(
            "the server at {path} does not answer, and takes no connections: it is stopped or \
             overloaded"
        ),
        _ => format!("no server answers at {path}: {error}"),
    })
}

/// The `*.sock` files of the folder, by name.
fn sockets(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::Refused(format!("{}: {error}", folder.display()))),
    };
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect();
    paths.sort();
    Ok(paths)
}
