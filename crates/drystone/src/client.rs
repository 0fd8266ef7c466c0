//! The client's end of the control socket: finding the server and asking it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drystone_stack::control::{request, response};
use serde_json::Value;

use crate::failure::Failure;
use crate::folder;

/// Longest answer that is read: far more than all devices of a stack take.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Time that a server has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a running server.
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

impl Client {
    /// Connects to the server at `control`, or to the only one that is running.
    pub fn connect(control: Option<&Path>) -> Result<Self, Failure> {
        match control {
            Some(path) => Self::open(path).map_err(|error| {
                Failure::Refused(format!("no server answers at {}: {error}", path.display()))
            }),
            None => Self::only_one(),
        }
    }

    fn open(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, path: path.to_owned() })
    }

    fn only_one() -> Result<Self, Failure> {
        let folder = folder::control_folder();
        folder::check(&folder)?;
        let mut live: Vec<Client> =
            sockets(&folder)?.iter().filter_map(|path| Self::open(path).ok()).collect();
        match (live.pop(), live.len()) {
            (None, _) => Err(Failure::Refused(format!(
                "no server is running (none listens in {}); start one with `drystone serve`, or \
                 name its socket with --control",
                folder.display()
            ))),
            (Some(client), 0) => Ok(client),
            (Some(last), _) => {
                live.push(last);
                let paths: Vec<String> = live
                    .iter()
                    .map(|client| format!("  --control {}", client.path.display()))
                    .collect();
                let message =
                    format!("several servers are running; say which:\n{}", paths.join("\n"));
                Err(Failure::Usage(message))
            }
        }
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, command: &str, arguments: &[(&str, &str)]) -> Result<Value, Failure> {
        let line = request(command, arguments) + "\n";
        let answer = self.exchange(&line).map_err(|error| {
            Failure::Refused(format!("the server at {}: {error}", self.path.display()))
        })?;
        response(&answer).map_err(|error| Failure::Refused(error.message))
    }

    fn exchange(&mut self, line: &str) -> std::io::Result<String> {
        self.stream.write_all(line.as_bytes())?;
        let mut answer = Vec::new();
        let mut bytes = [0; 16 << 10];
        loop {
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(std::io::Error::other("it closed the connection")),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            };
            answer.extend_from_slice(&bytes[..count]);
            if answer.last() == Some(&b'\n') {
                return Ok(String::from_utf8_lossy(&answer).into_owned());
            }
            if answer.len() as u64 > MAX_ANSWER_BYTES {
                return Err(std::io::Error::other("its answer is too long"));
            }
        }
    }
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
