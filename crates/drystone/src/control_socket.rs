//! The server's end of the control socket: binding it, and answering clients.
//!
//! Invariants:
//! - At most one server has a path, and the socket has mode 0600 from its first moment
//!   ([`unix_socket`]).
//! - Connections have a thread each, at most [`MAX_CONNECTIONS`], that answers one request after
//!   the other. A request that waits holds up nobody but its own client.
//! - These threads never end, but serve one client after the other. A change of a volume may turn a
//!   context's crank, and what a thread submitted to a ring the kernel cancels when it ends.
//! - The path is removed when [`ControlSocket`] is dropped, unless another socket is there by then.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use drystone_stack::control::{Control, Line, LineBuffer, ServerInfo, too_long, too_many_clients};
use drystone_stack::runtime::Runtime;

use crate::failure::Failure;
use crate::unix_socket::{self, Place};

/// Most clients at a time; more are told so and turned away.
const MAX_CONNECTIONS: usize = 64;
/// How long to wait for file descriptors when there are none.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time a client has to take its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time a client may be silent before it has to connect anew.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A bound control socket; dropping it removes its path.
pub struct ControlSocket {
    listener: UnixListener,
    /// The path, and the inode that was made there.
    place: Place,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.place.remove();
    }
}

impl ControlSocket {
    /// Binds `path`. A stale socket is replaced; a live one and anything else is refused.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        let hint = "name another with --control";
        let (listener, place) =
            unix_socket::bind(path, 0o600, hint).map_err(|e| Failure::Refused(e.to_string()))?;
        Ok(Self { listener, place })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// The path with its inode, for a hurried exit.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// Starts answering, on threads of its own that end with the process.
    pub fn answer(&self, runtime: Box<dyn Runtime>, server: ServerInfo) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let answer: Answer =
            Arc::new(move |line: &str| Control::new(&*runtime, &server).handle(line));
        thread::Builder::new()
            .name("control-accept".to_owned())
            .spawn(move || accept(&listener, &answer))?;
        Ok(())
    }
}

/// Turns a request line into a response line, on the thread of the client.
type Answer = Arc<dyn Fn(&str) -> String + Send + Sync>;

fn accept(listener: &UnixListener, answer: &Answer) {
    let (done, finished) = channel::<Client>();
    let (mut idle, mut threads) = (Vec::new(), 0);
    loop {
        let stream = listener.accept();
        idle.extend(finished.try_iter());
        let Ok((stream, _)) = stream else {
            // Out of file descriptors, most likely: let some close.
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if idle.is_empty() && threads < MAX_CONNECTIONS {
            let started = start(answer.clone(), done.clone());
            threads += usize::from(started.is_ok());
            idle.extend(started);
        }
        match idle.pop() {
            // Threads do not end, so it takes the client.
            Some(client) => _ = client.send(stream),
            None => refuse(stream),
        }
    }
}

/// A thread that has no client.
type Client = Sender<UnixStream>;

/// Starts a thread that serves clients, and after each gives itself to `done`.
fn start(answer: Answer, done: Sender<Client>) -> io::Result<Client> {
    let (own, clients) = channel();
    let again = own.clone();
    let work = move || {
        for stream in clients {
            let _ = talk(stream, &*answer, IDLE_TIMEOUT);
            let _ = done.send(again.clone());
        }
    };
    thread::Builder::new().name("control-client".to_owned()).spawn(work)?;
    Ok(own)
}

/// Says why a client is turned away, without waiting for it to listen.
fn refuse(mut stream: UnixStream) {
    let line = too_many_clients(MAX_CONNECTIONS) + "\n";
    let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(line.as_bytes()));
}

/// Answers a client until it goes, or is silent for longer than `idle`.
fn talk(mut stream: UnixStream, answer: &dyn Fn(&str) -> String, idle: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.set_read_timeout(Some(idle))?;
    let mut lines = LineBuffer::default();
    let mut bytes = [0; 4096];
    loop {
        let count = match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        for line in lines.push(&bytes[..count]) {
            let mut answer = match line {
                Line::TooLong => too_long(),
                Line::Whole(line) => answer(&line),
            };
            answer.push('\n');
            stream.write_all(answer.as_bytes())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_client_is_let_go() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"ping\nhalf a line").unwrap();
        let error = talk(server, &str::to_owned, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "ping\n", "what it had asked was answered");
    }
}
