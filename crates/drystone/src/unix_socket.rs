//! Unix sockets that a server listens on: replacing stale ones, refusing live ones, removing them.
//!
//! Invariants:
//! - At most one server has a path: while a server decides whether what is there is stale, and
//!   until it listens, it holds the lock of a file beside the path (`Lock`).
//! - That file belongs to the user of the server and has mode 0600, so that no other user can hold
//!   its lock. A file that others may open, the folder for example, is not locked, because a user
//!   who can open a file can also lock it.
//! - A socket has the mode that was asked for from the moment when it is there. No mode is changed
//!   by path, which might lead to another file by then.
//! - A path is removed only while the socket that was made there is still there.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The tries, and the pause between two of them, while another server starts at the same path.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The ending of a lock file's name, after the name of its socket.
const LOCK_ENDING: &str = ".lock";

/// A path with the inode of the socket that was made there.
#[derive(Debug, Clone)]
pub struct BoundSocket {
    path: PathBuf,
    inode: (u64, u64),
}

impl BoundSocket {
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
pub fn bind(path: &Path, mode: u32, hint: &str) -> anyhow::Result<(UnixListener, BoundSocket)> {
    let refused =
        |error: io::Error| anyhow::anyhow!("cannot make the socket {}: {error}", path.display());
    let path = std::path::absolute(path).map_err(refused)?;
    let _lock = Lock::take(&path).map_err(refused)?;
    clear(&path, hint)?;
    // The kernel makes the file with mode 0777, less this mask (unix_bind in net/unix/af_unix.c).
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(!mode & 0o777));
    let bound = UnixListener::bind(&path);
    rustix::process::umask(before);
    let listener = bound.map_err(refused)?;
    let meta = fs::symlink_metadata(&path).map_err(refused)?;
    Ok((listener, BoundSocket { path, inode: (meta.dev(), meta.ino()) }))
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

/// The lock of a socket's path: a separate file beside it, which is there as long as the lock
/// is held. One that a killed server has left is taken over.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits for the lock of the socket at `socket`.
    fn take(socket: &Path) -> io::Result<Self> {
        let mut name = OsString::from(socket);
        name.push(LOCK_ENDING);
        let path = PathBuf::from(name);
        for _ in 0..LOCK_TRIES {
            let file = open_lock(&path)?;
            match file.try_lock() {
                // Its former owner may have removed the file before it was locked here.
                Ok(()) if is_at(&file, &path)? => return Ok(Self { path, _file: file }),
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        let why = format!("another program holds the lock of {}", path.display());
        Err(io::Error::new(ErrorKind::ResourceBusy, why))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens or makes a lock file. It must be this user's alone, else another user could hold the lock
/// for ever.
fn open_lock(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits() as i32)
        .open(path);
    let shown = path.display();
    let file = opened
        .map_err(|error| io::Error::new(error.kind(), format!("its lock file {shown}: {error}")))?;
    let (meta, own) = (file.metadata()?, rustix::process::geteuid().as_raw());
    let why = match meta.is_file() {
        false => "is not a file".to_owned(),
        true if meta.uid() != own => format!("belongs to user {}, not to {own}", meta.uid()),
        true if meta.mode() & 0o077 != 0 => "can be opened by other users".to_owned(),
        true => return Ok(file),
    };
    let why = format!("its lock file {shown} {why}; remove it, or use a folder of your own");
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// Whether `file` is still what is at `path`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
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
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    /// Held while files are made: threads of the test share the file mode mask, which [`bind`]
    /// changes.
    static MASK: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        MASK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

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
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.sock");
        let _crowd = crowded(&path);
        assert_eq!(connect_now(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        let error = bind(&path, 0o600, "wait").unwrap_err().to_string();
        assert!(error.contains("in use by another process") && error.ends_with("wait"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_folder_that_others_lock_is_no_obstacle() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let locked = File::open(folder.path()).unwrap();
        locked.lock().unwrap();
        let path = folder.path().join("c.sock");
        let _listener = bind(&path, 0o600, "wait").unwrap();
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "no lock file is left: {left:?}");
    }

    #[test]
    fn lock_files_are_ones_own() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = (folder.path().join("c.sock"), folder.path().join("c.sock.lock"));
        let refused = |part: &str| {
            let error = bind(&path, 0o600, "wait").unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("c.sock.lock"), "{error}");
            assert!(!path.exists());
        };
        let other = folder.path().join("other");
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &lock).unwrap();
        refused("its lock file");
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
        fs::remove_file(&lock).unwrap();
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(&lock).unwrap();
        refused("can be opened by other users");
        fs::remove_file(&lock).unwrap();
        // Files that a killed server has left are taken over.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock).unwrap();
        let _listener = bind(&path, 0o600, "wait").unwrap();
        assert!(!lock.exists());
    }

    #[test]
    fn a_waiter_for_a_lock_locks_the_file_that_is_there() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.sock");
        let first = Lock::take(&path).unwrap();
        let waits = thread::spawn({
            let path = path.clone();
            move || Lock::take(&path).map(|lock| lock.path.exists())
        });
        thread::sleep(LOCK_PAUSE);
        drop(first);
        assert!(waits.join().unwrap().unwrap(), "its file is there while it is locked");
        assert!(!folder.path().join("c.sock.lock").exists());
    }

    /// The mode is not changed after the socket is there: a path may lead elsewhere by then.
    #[test]
    fn a_socket_has_its_mode_from_the_start() {
        use rustix::fs::inotify;
        use std::os::unix::fs::PermissionsExt;
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, folder.path(), inotify::WatchFlags::ATTRIB).unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = folder.path().join(format!("{mode}.sock"));
            let _listener = bind(&path, mode, "wait").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        }
        let mut bytes = [std::mem::MaybeUninit::uninit(); 4096];
        let mut changes = inotify::Reader::new(&watch, &mut bytes);
        let names = std::iter::from_fn(|| Some(changes.next().ok()?.file_name()?.to_owned()));
        let changed: Vec<_> = names.filter(|name| name.to_bytes().ends_with(b".sock")).collect();
        assert!(changed.is_empty(), "{changed:?}");
    }

    #[test]
    fn connections_wait_for_data_and_name_the_listener() {
        let _alone = alone();
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
