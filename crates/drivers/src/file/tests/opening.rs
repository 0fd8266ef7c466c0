//! Tests of opening: which files may be opened, and which other openings they allow.

use super::*;
use drystone_core::error::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

fn refused(options: &FileOptions) -> Error {
    let error = File::open(options).err().expect("refused");
    assert!(error.message.contains("disk.img") || options.path.is_dir(), "{error}");
    error
}

#[test]
fn a_second_writer_is_refused_with_path_and_process() {
    for dir in places() {
        let first = file(dir.path(), MIB);
        let again = options(dir.path(), None);
        let error = refused(&again);
        assert_eq!(error.kind, ErrorKind::Busy);
        let process = format!("in use by process {}", std::process::id());
        assert!(error.message.contains(&process), "{error}");
        let reader = FileOptions { read_only: true, ..again.clone() };
        assert_eq!(refused(&reader).kind, ErrorKind::Busy, "nor a reader beside a writer");
        drop(first);
        File::open(&again).expect("free again");
    }
}

#[test]
fn who_has_a_device_open_is_found() {
    // Any device node will do; no other process has that of a new terminal.
    let terminal = std::fs::File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    let (mut number, unlocked): (libc::c_uint, libc::c_int) = (0, 0);
    // SAFETY: the first ioctl reads one int, the second writes one unsigned int.
    unsafe {
        assert_eq!(libc::ioctl(terminal.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked), 0);
        assert_eq!(libc::ioctl(terminal.as_raw_fd(), libc::TIOCGPTN, &raw mut number), 0);
    }
    let path = PathBuf::from(format!("/dev/pts/{number}"));
    assert_eq!(system::find_opener(&path), None);
    let opened = std::fs::File::options().read(true).custom_flags(libc::O_NOCTTY).open(&path);
    assert_eq!(system::find_opener(&path), Some(std::process::id()));
    drop(opened.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let _file = file(dir.path(), MIB);
    assert_eq!(system::find_opener(&dir.path().join("disk.img")), None, "it is no device");
}

#[test]
fn readers_share() {
    for dir in places() {
        drop(file(dir.path(), MIB));
        let reader = FileOptions { read_only: true, ..options(dir.path(), None) };
        let (a, b) = (File::open(&reader).unwrap(), File::open(&reader).unwrap());
        assert_eq!(refused(&options(dir.path(), None)).kind, ErrorKind::Busy);
        let mut rig = Rig::new(a, Engine::Auto);
        assert_eq!(rig.read(0, 512).unwrap(), [0; 512]);
        assert_eq!(rig.write(0, &[1; 512], NONE), Status::Permission);
        assert_eq!(rig.range(Op::Discard, 0, 4096, NONE), Status::Permission);
        assert_eq!(rig.flush(), Status::Ok);
        assert_eq!(rig.device.attribute("ro").unwrap(), "1");
        drop(b);
    }
}

#[test]
fn of_many_that_create_at_once_one_wins_and_the_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..100 {
        let path = dir.path().join(format!("disk.img{round}"));
        let options = FileOptions { path, size_bytes: Some(MIB), ..FileOptions::default() };
        let start = std::sync::Barrier::new(4);
        let opened: Vec<_> = std::thread::scope(|s| {
            let open = || {
                start.wait();
                File::open(&options)
            };
            let threads: Vec<_> = (0..4).map(|_| s.spawn(open)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(opened.iter().filter(|o| o.is_ok()).count(), 1, "round {round}");
        assert_eq!(std::fs::metadata(&options.path).unwrap().len(), MIB, "round {round}");
    }
}

/// Two openers find no file and open the same new one. The one with the lock is refused, and
/// removes the file while the other waits for the lock.
#[test]
fn a_file_that_another_maker_took_away_again_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), Some(MIB));
    let opened = std::iter::repeat_with(|| open_while_it_is_taken_away(&options)).take(20);
    // The second waits for two seconds at most, which this thread may have slept through.
    let is_refused = |error: &Error| error.kind == ErrorKind::Busy;
    let mut opened = opened.skip_while(|opened| opened.as_ref().is_err_and(is_refused));
    let _second = opened.next().unwrap().expect("it makes the file once more");
    assert_eq!(std::fs::metadata(&options.path).unwrap().len(), MIB);
    assert_eq!(
        refused(&options).kind,
        ErrorKind::Busy,
        "what the path names is what it has locked"
    );
}

fn open_while_it_is_taken_away(options: &FileOptions) -> Result<FileShared> {
    let _ = std::fs::remove_file(&options.path);
    let mut how = std::fs::File::options();
    let first = how.read(true).write(true).create_new(true).open(&options.path).unwrap().into();
    locks::lock(&first, options, false).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| open::open_found(options, false));
        while times_open(&first) < 2 && !second.is_finished() {
            std::thread::yield_now();
        }
        std::fs::remove_file(&options.path).unwrap();
        locks::unlock(&first);
        second.join().unwrap()
    })
}

/// The number of times that this process has the file open.
fn times_open(file: &std::os::fd::OwnedFd) -> usize {
    let wanted = system::stat(file.as_raw_fd()).unwrap();
    let same = |m: &std::fs::Metadata| (m.dev(), m.ino()) == (wanted.st_dev, wanted.st_ino);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|fd| std::fs::metadata(fd.path()).is_ok_and(|meta| same(&meta))).count()
}

#[test]
fn unsuitable_files_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let error = refused(&options(dir.path(), None));
    assert!(error.message.contains("does not exist") && error.kind == ErrorKind::NotFound);
    for size in [0, 513] {
        let error = refused(&options(dir.path(), Some(size)));
        assert!(error.message.contains("positive multiple of 512"), "{error}");
        assert!(!path.exists(), "what was made for nothing is removed");
    }
    std::fs::write(&path, [7; 1000]).unwrap();
    assert!(refused(&options(dir.path(), None)).message.contains("1000 bytes are not"));
    let error = refused(&options(dir.path(), Some(4096)));
    assert!(error.message.contains("1000 bytes, fewer than the size of 4096"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), [7; 1000]);
    let folder = FileOptions { path: dir.path().to_owned(), ..FileOptions::default() };
    assert!(refused(&folder).message.contains("neither a file nor a block device"));
    let nowhere =
        FileOptions { path: dir.path().join("no/disk.img"), ..options(dir.path(), Some(512)) };
    assert!(refused(&nowhere).message.contains("cannot be opened"));
}

#[test]
fn direct_io_can_be_demanded_or_declined() {
    let dir = tempfile::tempdir().unwrap();
    let with = |direct| FileOptions { direct, ..options(dir.path(), Some(MIB)) };
    assert!(!File::open(&with(Direct::No)).unwrap().is_direct());
    match File::open(&with(Direct::Yes)) {
        Ok(file) => assert!(file.is_direct()),
        Err(error) => assert!(error.message.contains("direct I/O"), "{error}"),
    }
}

#[test]
fn a_path_that_names_another_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), Some(MIB));
    let (path, other) = (&options.path, dir.path().join("other.img"));
    let file = File::open(&options).unwrap();
    let is_replaced = || file.attribute("path_replaced").unwrap();
    assert_eq!(is_replaced(), "0");
    std::fs::rename(path, &other).unwrap();
    assert_eq!(is_replaced(), "1", "it names nothing");
    std::fs::write(path, [0; 4096]).unwrap();
    assert_eq!(is_replaced(), "1", "it names another file");
    std::fs::rename(&other, path).unwrap();
    assert_eq!(is_replaced(), "0");
}

/// A lock of one byte, as QEMU takes and tests it; `F_OFD_GETLK` leaves the conflicting holder in
/// the result.
pub(super) fn byte_lock(
    file: &std::fs::File,
    command: i32,
    kind: i32,
    byte: i64,
) -> (i32, libc::flock) {
    // SAFETY: a flock of zeroes; fcntl reads and writes one.
    unsafe {
        let mut range: libc::flock = std::mem::zeroed();
        (range.l_type, range.l_start, range.l_len) = (kind as i16, byte, 1);
        (libc::fcntl(file.as_raw_fd(), command, &raw mut range), range)
    }
}

#[test]
fn a_reader_is_refused_beside_a_writer_that_locks_as_qemu_does() {
    let dir = tempfile::tempdir().unwrap();
    drop(file(dir.path(), MIB));
    let reader = FileOptions { read_only: true, ..options(dir.path(), None) };
    for (byte, is_refused) in
        [(100, false), (101, true), (102, false), (103, true), (200, true), (201, false)]
    {
        let other = std::fs::File::open(&reader.path).unwrap();
        assert_eq!(byte_lock(&other, libc::F_OFD_SETLK, libc::F_RDLCK, byte).0, 0);
        if is_refused {
            let error = refused(&reader);
            assert_eq!(error.kind, ErrorKind::Busy, "byte {byte}");
            let process = format!("in use by process {}", std::process::id());
            assert!(error.message.contains(&process), "{error}");
        } else {
            File::open(&reader).unwrap_or_else(|error| panic!("byte {byte}: {error}"));
        }
        assert_eq!(refused(&options(dir.path(), None)).kind, ErrorKind::Busy, "a writer never");
    }
}

#[test]
fn a_reader_tells_qemu_that_it_reads_and_lets_nobody_write() {
    let dir = tempfile::tempdir().unwrap();
    drop(file(dir.path(), MIB));
    let _reader =
        File::open(&FileOptions { read_only: true, ..options(dir.path(), None) }).unwrap();
    let other = std::fs::File::open(dir.path().join("disk.img")).unwrap();
    let is_locked = |byte| {
        let (done, found) = byte_lock(&other, libc::F_OFD_GETLK, libc::F_WRLCK, byte);
        assert_eq!(done, 0);
        found.l_type != libc::F_UNLCK as i16
    };
    let locked: Vec<i64> = (0..300).filter(|byte| is_locked(*byte)).collect();
    assert_eq!(locked, [100, 201, 203], "reads; shares neither writing nor resizing");
}

#[test]
fn only_who_makes_a_file_sets_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let with = |mode| FileOptions { mode: Some(mode), ..options(dir.path(), Some(MIB)) };
    let mode =
        || std::fs::metadata(dir.path().join("disk.img")).unwrap().permissions().mode() & 0o777;
    drop(File::open(&with(0o666)).unwrap());
    assert_eq!(mode(), 0o666, "whatever the umask");
    drop(File::open(&with(0o600)).unwrap());
    assert_eq!(mode(), 0o666, "it was there");
}
