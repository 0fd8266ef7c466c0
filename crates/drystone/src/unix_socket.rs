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
    match UnixStream::connect(path) {
        Ok(stream) => {
            let pid = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.pid);
            let holder = pid.map_or("another process".to_owned(), |pid| {
                format!("process {}", pid.as_raw_nonzero())
            });
            anyhow::bail!("{shown} is in use by {holder}; stop it, or {hint}")
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| anyhow::anyhow!("cannot replace the stale socket {shown}: {e}")),
        Err(error) => anyhow::bail!("cannot tell whether {shown} is in use: {error}"),
    }
}
