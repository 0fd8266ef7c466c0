//! Files beside other processes. Not among the unit tests: a child has the descriptors of all tests that run beside
//! the one that makes it, with their locks, until it executes its program.

use drystone_core::error::ErrorKind;
use drystone_drivers::file::{File, FileOptions, OfflineFile};
use std::path::Path;

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
        // SAFETY: the child is ours, and nobody else waits for it.
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
    let child = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(&options.path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
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
