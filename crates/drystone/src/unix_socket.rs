//! Unix sockets that a server listens on: replacing stale ones, refusing live ones, removing them.
//!
//! Invariants:
//! - At most one server has a path: while a server decides whether what is there is stale, and
//!   until it listens, it holds a lock on the folder.
//! - Nobody can connect before the socket has the mode that was asked for, except its owner.
//! - A path is removed only while the socket that was made there is still there.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// How often and how long to wait for another server that is starting in the same folder.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A path with the inode of the socket that was made there.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    inode: (u64, u64),
}

impl Place {
    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the path if our socket is still there.
    pub fn remove(&self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path` with file mode `mode`. A stale socket is replaced. Only before the process
/// has threads that make files: the file mode mask is changed for a moment.
///
/// # Errors
/// One sentence with the path: a live socket (with its holder, and `hint` as what to do instead),
/// anything else that is there, or the operating system's reason.
pub fn bind(path: &Path, mode: u32, hint: &str) -> anyhow::Result<(UnixListener, Place)> {
    let refused =
        |error: io::Error| anyhow::anyhow!("cannot make the socket {}: {error}", path.display());
    let path = std::path::absolute(path).map_err(refused)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let _lock = lock_folder(folder).map_err(refused)?;
    clear(&path, hint)?;
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(&path);
    rustix::process::umask(before);
    let listener = bound.map_err(refused)?;
    let meta = fs::symlink_metadata(&path).map_err(refused)?;
    let place = Place { path: path.clone(), inode: (meta.dev(), meta.ino()) };
    if let Err(error) = fs::set_permissions(&path, Permissions::from_mode(mode)) {
        place.remove();
        return Err(refused(error));
    }
    Ok((listener, place))
}

/// Connects to the listener at `path` without waiting for it to accept.
///
/// # Errors
/// The operating system's; [`ErrorKind::WouldBlock`] when a listener is there, but as many wait
/// for it as may: it is stopped, or very busy.
pub fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The process that listens at the other end of `stream`, if it can be seen from here.
pub fn holder(stream: &UnixStream) -> Option<i32> {
    rustix::net::sockopt::socket_peercred(stream).ok().map(|peer| peer.pid.as_raw_nonzero().get())
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
fn clear(path: &Path, hint: &str) -> anyhow::Result<()> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => anyhow::bail!("cannot look at {shown}: {error}"),
        Ok(meta) if !meta.file_type().is_socket() => {
            anyhow::bail!("{shown} exists and is not a socket")
        }
        Ok(_) => {}
    }
    match connect_now(path) {
        Ok(stream) => {
            let holder = holder(&stream);
            let holder = holder.map_or("another process".into(), |pid| format!("process {pid}"));
            anyhow::bail!("{shown} is in use by {holder}; stop it, or {hint}")
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => anyhow::bail!(
            "{shown} is in use by another process, which takes no connections; stop it, or {hint}"
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| anyhow::anyhow!("cannot replace the stale socket {shown}: {e}")),
        Err(error) => anyhow::bail!("cannot tell whether {shown} is in use: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener with as many connections waiting as it takes.
    fn crowded(path: &Path) -> (UnixListener, Vec<UnixStream>) {
        let listener = UnixListener::bind(path).unwrap();
        // Listening once more changes how many may wait.
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| connect_now(path).ok()).take(100).collect();
        assert!((1..100).contains(&waiting.len()), "{} wait", waiting.len());
        (listener, waiting)
    }

    #[test]
    fn a_listener_that_accepts_nothing_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.sock");
        let _crowd = crowded(&path);
        assert_eq!(connect_now(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        let error = bind(&path, 0o600, "wait").unwrap_err().to_string();
        assert!(error.contains("in use by another process") && error.ends_with("wait"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn connections_wait_for_data_and_name_the_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let stream = connect_now(&path).unwrap();
        assert_eq!(holder(&stream), Some(std::process::id() as i32));
        let flags = rustix::fs::fcntl_getfl(&stream).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        drop(listener);
        assert_eq!(connect_now(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
