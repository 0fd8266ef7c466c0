//! A server of devices as files, by FUSE, and what its clients do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::client::{Mount, Outcome, demand, shell};
use crate::server::{LOOKS, Server, new_folder};

/// A server is killed after this time, whatever waits for it.
const WATCHDOG: Duration = Duration::from_secs(300);

/// A server whose stack has the file `DIR/vol.img`.
pub struct Files {
    /// The server.
    pub server: Server,
    _watchdog: Sender<()>,
}

impl Files {
    /// Starts a server on a stack in a folder of its own.
    pub fn start(stack: &str) -> Files {
        Files::start_in(&new_folder(), stack)
    }

    /// The same in this folder.
    pub fn start_in(folder: &Arc<TempDir>, stack: &str) -> Files {
        Files::watched(Server::start_in(folder, stack, &[]))
    }

    /// A server that is killed after some minutes.
    pub fn watched(server: Server) -> Files {
        let (pid, (watchdog, end)) = (server.pid().to_string(), channel::<()>());
        thread::spawn(move || {
            use std::sync::mpsc::RecvTimeoutError::Timeout;
            if end.recv_timeout(WATCHDOG) == Err(Timeout) {
                let _ = Command::new("kill").args(["-KILL", &pid]).status();
            }
        });
        Files { server, _watchdog: watchdog }
    }

    /// Waits until the server has printed the file, and its loop device.
    pub fn announced(&mut self, loops: bool) -> String {
        let _ = self.server.uri("vol");
        let wanted = if loops { "/dev/loop" } else { self.server.path("vol.img").leak() };
        let found = |server: &Server| server.said().iter().find(|l| l.starts_with(wanted)).cloned();
        for _ in 0..LOOKS {
            if let Some(line) = found(&self.server) {
                return line;
            }
            self.server.listen(Duration::from_millis(100));
        }
        panic!("the server printed no {wanted}\n{}", self.server.messages());
    }

    /// Runs a script in the server's folder; `$1` is the file or device.
    pub fn run(&self, line: &str, argument: &str) -> Outcome {
        shell(self.server.dir(), line, &[argument])
    }
}

impl Drop for Files {
    /// A server that still runs is about to be killed, and would leave its mount.
    fn drop(&mut self) {
        let file = self.server.dir().join("vol.img");
        if self.server.is_running() && is_mounted(&file) {
            self.server.signal("KILL");
            drop(Mount(file));
        }
    }
}

/// False, after a SKIPPED line, where there is no FUSE.
pub fn has_fuse() -> bool {
    demand(Path::new("/dev/fuse").exists(), "there is no /dev/fuse")
}

/// The same of FUSE and loop devices.
pub fn has_loop() -> bool {
    has_fuse() && demand(Path::new("/dev/loop-control").exists(), "there are no loop devices")
}

/// Whether something is mounted at this path.
pub fn is_mounted(path: &Path) -> bool {
    let list = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    list.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Memory-mapped and plain reads, writes and truncates of one file are compared with a copy in
/// memory.
pub const EXERCISE: &str = r#"
import mmap, os, random, sys
random.seed(int(sys.argv[2])); path = sys.argv[1]
f = os.open(path, os.O_RDWR | os.O_CREAT, 0o600); model = bytearray(); most = 1 << 20
for step in range(1500):
    op, at, n = random.randrange(6), random.randrange(most), random.randrange(1, 60000)
    n = min(n, most - at); data = random.randbytes(n)
    if op in (0, 1):
        os.pwrite(f, data, at)
        model.extend(bytes(max(0, at + n - len(model)))); model[at:at + n] = data
    elif op == 2:
        assert os.pread(f, n, at) == model[at:at + n], (step, 'read', at, n)
    elif op == 3:
        os.ftruncate(f, at); model = (model + bytes(max(0, at - len(model))))[:at]
    elif model:
        with mmap.mmap(f, len(model)) as m:
            at = random.randrange(len(model)); n = min(n, len(model) - at)
            if op == 4:
                assert m[at:at + n] == model[at:at + n], (step, 'mapped read', at, n)
            else:
                m[at:at + n] = data[:n]; model[at:at + n] = data[:n]
    if step % 100 == 0: os.fsync(f)
os.fsync(f); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(f, most, 0) == model
"#;
