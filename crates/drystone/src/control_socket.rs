//! The server's end of the control socket: binding it, and answering clients.
//!
//! Invariants:
//! - At most one server has a path: while a server decides whether what is there is stale, and
//!   until it listens, it holds a lock on the folder.
//! - The socket has mode 0600 from its first moment.
//! - One thread owns the [`Runtime`] and answers one request at a time; connections have a thread
//!   each, at most [`MAX_CONNECTIONS`], that only move lines.
//! - The path is removed when [`ControlSocket`] is dropped, unless another socket is there by then.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use drystone_stack::control::{Control, Line, LineBuffer, ServerInfo, too_long};
use drystone_stack::runtime::Runtime;

use crate::failure::Failure;

/// Most clients at a time; more are turned away.
const MAX_CONNECTIONS: usize = 64;
/// How often and how long to wait for another server that is starting in the same folder.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Time a client has to take its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A bound control socket; dropping it removes its path.
pub struct ControlSocket {
    listener: UnixListener,
    /// The path, and the inode that was made there.
    place: Place,
}

/// A path with the inode that was made there.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    inode: (u64, u64),
}

impl Place {
    /// Removes the path if our socket is still there.
    pub fn remove(&self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.place.remove();
    }
}

impl ControlSocket {
    /// Binds `path`. A stale socket is replaced; a live one and anything else is refused.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| {
            Failure::Refused(format!("cannot make the control socket {}: {error}", path.display()))
        };
        let path = std::path::absolute(path).map_err(refused)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let _lock = lock_folder(folder).map_err(refused)?;
        clear(&path)?;
        // No other thread makes files yet: the serving threads start after this.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&path);
        rustix::process::umask(before);
        let listener = bound.map_err(refused)?;
        let meta = fs::symlink_metadata(&path).map_err(refused)?;
        let place = Place { path, inode: (meta.dev(), meta.ino()) };
        Ok(Self { listener, place })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// The path with its inode, for a hurried exit.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// Starts answering, on threads of its own that end with the process.
    pub fn answer(&self, runtime: Box<dyn Runtime>, server: ServerInfo) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let (requests, inbox) = channel();
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || own(runtime, &server, &inbox))?;
        thread::Builder::new()
            .name("control-accept".to_owned())
            .spawn(move || accept(&listener, &requests))?;
        Ok(())
    }
}

/// Locks the folder until the file is dropped.
fn lock_folder(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(ErrorKind::ResourceBusy, "another program holds a lock on its folder"))
}

/// Makes room at `path`: removes a stale socket, refuses anything else.
fn clear(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let refuse = |why: String| Err(Failure::Refused(why));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return refuse(format!("cannot look at {shown}: {error}")),
        Ok(meta) if !meta.file_type().is_socket() => {
            return refuse(format!("{shown} exists and is not a socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let pid = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.pid);
            let holder = pid.map_or("another process".to_owned(), |pid| {
                format!("process {}", pid.as_raw_nonzero())
            });
            refuse(format!(
                "{shown} is in use by {holder}; stop it, or name another with --control"
            ))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .or_else(|error| refuse(format!("cannot replace the stale socket {shown}: {error}"))),
        Err(error) => refuse(format!("cannot tell whether {shown} is in use: {error}")),
    }
}

/// A request line and where its answer goes.
type Request = (String, SyncSender<String>);

/// Owns the runtime and answers requests in the order they come.
fn own(mut runtime: Box<dyn Runtime>, server: &ServerInfo, inbox: &Receiver<Request>) {
    while let Ok((line, reply)) = inbox.recv() {
        let answer = Control::new(&mut *runtime, server).handle(&line);
        // A client that has gone does not want its answer.
        let _ = reply.send(answer);
    }
}

fn accept(listener: &UnixListener, requests: &Sender<Request>) {
    let (done, finished) = channel::<()>();
    let mut connections = 0;
    loop {
        let stream = listener.accept();
        connections -= finished.try_iter().count();
        let Ok((stream, _)) = stream else {
            // Out of file descriptors, most likely: let some close.
            thread::sleep(LOCK_PAUSE);
            continue;
        };
        if connections >= MAX_CONNECTIONS {
            continue;
        }
        let (requests, done) = (requests.clone(), done.clone());
        let work = move || {
            let _ = talk(stream, &requests);
            let _ = done.send(());
        };
        if thread::Builder::new().name("control-client".to_owned()).spawn(work).is_ok() {
            connections += 1;
        }
    }
}

/// Moves lines between a client and the owner of the runtime until the client goes.
fn talk(mut stream: UnixStream, requests: &Sender<Request>) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let gone = || io::Error::from(ErrorKind::BrokenPipe);
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
                Line::Whole(line) => {
                    let (reply, answer) = sync_channel(1);
                    requests.send((line, reply)).map_err(|_| gone())?;
                    answer.recv().map_err(|_| gone())?
                }
            };
            answer.push('\n');
            stream.write_all(answer.as_bytes())?;
        }
    }
}
