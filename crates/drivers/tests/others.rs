//! Files beside other processes. Not among the unit tests: a child has the descriptors of all tests
//! that run beside the one that makes it, with their locks, until it executes its program.

#![allow(unsafe_code, reason = "fork")]

use drystone_core::error::ErrorKind;
use drystone_drivers::file::{File, FileOptions, OfflineFile};
use drystone_queue::Driver;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn options(dir: &Path) -> FileOptions {
    FileOptions { path: dir.join("disk.img"), size_bytes: Some(MIB), ..FileOptions::default() }
}

/// A child of fork with all that this process has open, which lives until this is dropped.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Self {
        // SAFETY: the child calls nothing but what is safe after fork; it ends by a signal.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            loop {
                // SAFETY: neither takes pointers.
                unsafe {
                    libc::alarm(60);
                    libc::pause();
                }
            }
        }
        Child(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the child is ours, and no other thread waits for it.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            assert_eq!(libc::waitpid(self.0, &raw mut status, 0), self.0);
        }
    }
}

#[test]
fn what_is_closed_is_free_although_a_child_has_inherited_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let served = File::open(&options).unwrap();
    let child = Child::fork();
    drop(served);
    let offline = OfflineFile::open(&options.path, false).expect("free again");
    let other = Child::fork();
    drop(offline);
    File::open(&options).expect("free again");
    drop((child, other));
}

/// A loop device that has a file attached, until this is dropped; `None` where there are none to be
/// had.
struct LoopDevice {
    name: String,
    file: PathBuf,
}

impl LoopDevice {
    fn attach(path: &Path, options: &[&str]) -> Option<Self> {
        let attach = ["30", "losetup", "--find", "--show"];
        let output = Command::new("timeout").args(attach).args(options).arg(path).output();
        let output = output.ok().filter(|output| output.status.success())?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        Some(LoopDevice { name, file: path.canonicalize().ok()? })
    }

    /// True if the kernel has the file attached to it still.
    fn is_attached(&self) -> bool {
        let node = self.name.trim_start_matches("/dev/");
        let attached = std::fs::read_to_string(format!("/sys/block/{node}/loop/backing_file"));
        attached.is_ok_and(|file| Path::new(file.trim_end()) == self.file)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detach = ["30", "losetup", "--detach", &self.name];
        let _ = Command::new("timeout").args(detach).status();
        // A process that just looks at it keeps it for a moment.
        let end = Instant::now() + Duration::from_secs(10);
        while self.is_attached() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_file_is_not_written_beside_a_loop_device() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    drop(File::open(&options).unwrap());
    let Some(device) = LoopDevice::attach(&options.path, &[]) else {
        println!("SKIPPED a_file_is_not_written_beside_a_loop_device: no loop device is to be had");
        return;
    };
    let reader = FileOptions { read_only: true, ..options.clone() };
    let says = format!("is attached to {}, which may write to it", device.name);
    let error = File::open(&options).err().expect("refused");
    assert!(error.kind == ErrorKind::Busy && error.message.contains(&says), "{error}");
    let error = OfflineFile::open(&options.path, false).expect_err("refused");
    assert!(error.kind == ErrorKind::Busy && error.message.contains(&says), "{error}");
    // By whatever link it is opened.
    std::os::unix::fs::symlink(&options.path, dir.path().join("other.img")).unwrap();
    let other = FileOptions { path: dir.path().join("other.img"), ..options.clone() };
    assert!(File::open(&other).err().expect("refused").message.contains(&says));
    OfflineFile::open(&options.path, true).expect("it may be looked at");
    let notice = File::open(&reader).unwrap().attribute("notice").expect("a notice");
    assert!(notice.contains(&says), "{notice}");
    drop(device);
    let device = LoopDevice::attach(&options.path, &["--read-only"]).expect("another one");
    let notice = File::open(&options).unwrap().attribute("notice").expect("a notice");
    assert!(notice.contains(&format!("is attached to {} as well", device.name)), "{notice}");
    let notice = File::open(&reader).unwrap().attribute("notice").unwrap_or_default();
    assert!(!notice.contains("attached"), "two readers: {notice}");
    drop(device);
    let notice = File::open(&options).unwrap().attribute("notice").unwrap_or_default();
    assert!(!notice.contains("attached"), "{notice}");
}

/// The file at the path now is looked at as at the first opening.
#[test]
fn a_file_is_reopened_beside_loop_devices_as_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let (path, second) = (&options.path, dir.path().join("second.img"));
    let served = File::open(&options).unwrap();
    std::fs::write(&second, vec![0; MIB as usize]).unwrap();
    let Some(reader) = LoopDevice::attach(path, &["--read-only"]) else {
        println!(
            "SKIPPED a_file_is_reopened_beside_loop_devices_as_at_first: no loop device is to \
             be had"
        );
        return;
    };
    drop(served);
    let served = File::open(&options).unwrap();
    let notice = |has: &str| {
        let notice = served.attribute("notice").unwrap_or_default();
        assert!(notice.contains(has), "{notice}");
    };
    notice(&format!("is attached to {} as well", reader.name));
    served.reopen(false).unwrap();
    notice(&format!("is attached to {} as well", reader.name));
    // Another file that somebody may write, and that somebody reads.
    std::fs::rename(&second, path).unwrap();
    let writer = LoopDevice::attach(path, &[]).expect("another one");
    let error = served.reopen(true).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.message.contains(&writer.name), "{error}");
    drop(writer);
    let reader = LoopDevice::attach(path, &["--read-only"]).expect("another one");
    served.reopen(true).unwrap();
    notice(&format!("is attached to {} as well", reader.name));
}

#[test]
fn a_block_device_in_the_place_of_a_file_is_taken_if_it_is_free_and_fits() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let below = dir.path().join("below.img");
    std::fs::write(&below, vec![0; MIB as usize]).unwrap();
    let served = File::open(&options).unwrap();
    let block = served.limits().logical_block_size;
    let Some(device) = LoopDevice::attach(&below, &["--sector-size", "4096"]) else {
        println!(
            "SKIPPED a_block_device_in_the_place_of_a_file_is_taken_if_it_is_free_and_fits: no \
             loop device is to be had"
        );
        return;
    };
    std::fs::remove_file(&options.path).unwrap();
    std::os::unix::fs::symlink(&device.name, &options.path).unwrap();
    let error = served.reopen(true).unwrap_err();
    let says = format!("logical blocks of 4096 bytes, and the device has smaller ones, of {block}");
    assert!(error.message.contains(&says), "{error}");
    drop(device);
    let device = LoopDevice::attach(&below, &[]).expect("another one");
    std::fs::remove_file(&options.path).unwrap();
    std::os::unix::fs::symlink(&device.name, &options.path).unwrap();
    let other = OfflineFile::open(Path::new(&device.name), false).unwrap();
    let error = served.reopen(true).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.message.contains("is in use"), "{error}");
    drop(other);
    // A process that another test starts may have its descriptors for a moment.
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(error) = served.reopen(true) {
        assert!(error.kind == ErrorKind::Busy && Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // It has the loop device.
    drop(served);
}

#[test]
fn another_process_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    drop(File::open(&options).unwrap());
    // flock(1) takes locks of another kind; python takes ours.
    let script = "import fcntl,sys,struct\n\
                  f=open(sys.argv[1],'r+b')\n\
                  fcntl.fcntl(f,37,struct.pack('hhllhh',fcntl.F_WRLCK,0,0,0,0,0)+b'\\0'*4)\n\
                  print('held',flush=True)\n\
                  sys.stdin.read()";
    let child = Command::new("python3")
        .args(["-c", script])
        .arg(&options.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("SKIPPED another_process_is_named: there is no python3");
        return;
    };
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!(line, "held\n");
    let error = File::open(&options).err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains(&format!("process {}", child.id())), "{error}");
    drop(child.stdin.take());
    child.wait().unwrap();
    File::open(&options).expect("free again");
}
