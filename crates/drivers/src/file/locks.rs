//! Locks of files and block devices: open-file-description locks, which QEMU reads too.
//!
//! Invariants:
//! * A writer holds the whole file exclusively: no other process, QEMU included, has any lock of
//!   it.
//! * A reader holds shared locks of those bytes only that QEMU gives a meaning
//!   (`block/file-posix.c`): a lock of byte 100 + n says "I use permission n", one of byte 200 + n
//!   says "I do not share permission n". Our reader uses reading, and shares neither writing nor
//!   resizing. So it keeps out all writers, QEMU's and ours, and admits readers.
//! * A reader takes its locks before it looks for writers, as QEMU does. If two begin at once, at
//!   least one sees the other.
//! * The creator of a file waits for the lock while the file is empty. Another process may have
//!   found the new file before it had its length. That process holds the lock for a moment, and is
//!   then refused because of the length. So if several create a file at once, one always gets it.
//! * A creator that is refused removes its file before it releases the lock. So the holder of the
//!   lock checks that the path still leads to the file, and opens the path once more if it does
//!   not.

use super::options::FileOptions;
use super::system::{find_process, held, is_open, size_of};
use drystone_core::{Error, Result};
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// QEMU's permissions (`include/block/block-common.h`).
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;
/// The byte that says that a permission is in use.
const USED: i64 = 100;
/// The byte that says that a permission is not shared.
const UNSHARED: i64 = 200;

/// The bytes that a reader locks.
const READER: [i64; 3] = [USED + CONSISTENT_READ, UNSHARED + WRITE, UNSHARED + RESIZE];
/// The bytes that no other process may have locked beside a reader.
const AGAINST_READERS: [i64; 3] = [USED + WRITE, USED + RESIZE, UNSHARED + CONSISTENT_READ];

/// The longest wait for a lock that no living process seems to hold: a killed process keeps its
/// locks for some milliseconds, until the kernel has destroyed its rings.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two tries during that wait.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Lock the file, against everybody for a writer, against writers for a reader. `makes`: the file
/// did not exist when this open began. May wait: not for a data thread.
pub(super) fn lock(fd: &OwnedFd, options: &FileOptions, makes: bool) -> Result<()> {
    let mut waited = Duration::ZERO;
    while !try_lock(fd, options)? {
        // Release partial locks before the wait, so that we block nobody and are not found as the
        // holder.
        unlock(fd);
        let holder = find_holder(&options.path, options.read_only);
        let is_made = !makes || size_of(fd, false).is_ok_and(|size| size > 0);
        if holder.is_some() && is_made || waited >= LOCK_PATIENCE {
            return Err(held(&options.path, holder, "another process"));
        }
        std::thread::sleep(LOCK_PAUSE);
        waited += LOCK_PAUSE;
    }
    Ok(())
}

/// Release the lock at once: a ring that still knows the file would keep the lock a little longer.
pub(super) fn unlock(fd: &impl AsRawFd) {
    let _ = call(fd, libc::F_OFD_SETLK, libc::F_UNLCK, None);
}

/// True if the file is now locked, false if another process holds a lock.
fn try_lock(fd: &OwnedFd, options: &FileOptions) -> Result<bool> {
    let tried = match options.read_only {
        false => set(fd, libc::F_WRLCK, None),
        true => try_lock_reader(fd),
    };
    tried.map_err(|e| Error::os(format!("{} cannot be locked", options.path.display()), e))
}

fn try_lock_reader(fd: &OwnedFd) -> io::Result<bool> {
    for byte in READER {
        if !set(fd, libc::F_RDLCK, Some(byte))? {
            return Ok(false);
        }
    }
    for byte in AGAINST_READERS {
        if is_locked(fd, byte)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Set a lock. False if another process holds it. True on a file system without locks, where no
/// lock can conflict.
fn set(fd: &OwnedFd, kind: i32, byte: Option<i64>) -> io::Result<bool> {
    match call(fd, libc::F_OFD_SETLK, kind, byte) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ if is_without_locks(&error) => Ok(true),
            _ => Err(error),
        },
    }
}

/// True if another process has any lock of the byte.
fn is_locked(fd: &OwnedFd, byte: i64) -> io::Result<bool> {
    match call(fd, libc::F_OFD_GETLK, libc::F_WRLCK, Some(byte)) {
        Ok(found) => Ok(found.l_type != libc::F_UNLCK as i16),
        Err(error) if is_without_locks(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_without_locks(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS))
}

/// Call `fcntl` for one byte, or for the whole file.
fn call(fd: &impl AsRawFd, command: i32, kind: i32, byte: Option<i64>) -> io::Result<libc::flock> {
    // SAFETY: a flock of zeroes covers the whole file.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    if let Some(byte) = byte {
        (range.l_start, range.l_len) = (byte, 1);
    }
    // SAFETY: fcntl reads and writes one flock.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut range) } {
        0 => Ok(range),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process whose lock conflicts with ours, if /proc shows it.
fn find_holder(path: &Path, read_only: bool) -> Option<u32> {
    let wanted = std::fs::metadata(path).ok()?;
    let same = |m: &Metadata| (m.dev(), m.ino()) == (wanted.dev(), wanted.ino());
    find_process(|pid, fd| {
        let info = || std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"));
        is_open(pid, fd, same)
            && info().is_ok_and(|text| text.lines().any(|line| keeps_out(line, read_only)))
    })
}

/// True if a line of /proc/PID/fdinfo is a lock that conflicts with a reader, or with a writer:
/// `lock: 1: OFDLCK ADVISORY READ -1 fe:00:42 100 101`, with `EOF` for no end.
fn keeps_out(line: &str, read_only: bool) -> bool {
    let Some(lock) = line.strip_prefix("lock:") else { return false };
    let words: Vec<&str> = lock.split_whitespace().collect();
    let [.., kind, _pid, _inode, first, last] = words[..] else { return true };
    let (first, last) = (first.parse().unwrap_or(0), last.parse().unwrap_or(i64::MAX));
    let covers = |byte: &i64| (first..=last).contains(byte);
    // Locks of flock(2) do not conflict with ours; only byte locks do.
    let is_flock = words.contains(&"FLOCK");
    let reader = kind == "WRITE" && READER.iter().any(covers);
    !is_flock && (!read_only || reader || AGAINST_READERS.iter().any(covers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process found the new file, and holds the lock until it sees that the file is empty.
    #[test]
    fn who_makes_a_file_waits_for_one_who_found_it_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let options = FileOptions { path: path.clone(), ..FileOptions::default() };
        let open = || -> OwnedFd {
            let mut how = std::fs::File::options();
            how.read(true).write(true).create(true).truncate(false).open(&path).unwrap().into()
        };
        let (maker, other) = (open(), open());
        lock(&other, &options, false).unwrap();
        assert!(
            lock(&maker, &options, false).is_err(),
            "the one that found it there does not wait"
        );
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock(&maker, &options, true));
            // The creator has tried by now, and has found the lock taken.
            std::thread::sleep(5 * LOCK_PAUSE);
            unlock(&other);
            waits.join().unwrap().expect("the file is its maker's");
        });
        super::super::system::extend(&maker, 4096).unwrap();
        assert!(lock(&other, &options, true).is_err(), "the file is made");
    }

    #[test]
    fn who_keeps_a_reader_out_is_told_from_other_readers() {
        let line = |kind, range| format!("lock:\t1: OFDLCK ADVISORY {kind} -1 fe:00:42 {range}");
        for (kind, range, reader) in [
            ("READ", "100 100", false),
            ("READ", "201 201", false),
            ("READ", "100 101", true),
            ("READ", "103 103", true),
            ("READ", "200 200", true),
            ("WRITE", "0 EOF", true),
            ("WRITE", "100 100", true),
            ("WRITE", "0 10", false),
        ] {
            assert_eq!(keeps_out(&line(kind, range), true), reader, "{kind} {range}");
            assert!(keeps_out(&line(kind, range), false), "any lock keeps a writer out");
        }
        assert!(!keeps_out("lock:\t1: FLOCK  ADVISORY  WRITE 7 fe:00:42 0 EOF", false));
        assert!(!keeps_out("flags:\t0100002", false));
    }
}
