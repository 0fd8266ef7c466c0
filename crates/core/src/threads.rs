//! Threads of ours: a panic in one of them ends the process.
//!
//! A wait for a context whose thread has gone, for a gate that a visitor claimed and never left, or
//! for a manager without a successor would never end, in a server that looks alive. A process that
//! has ended is restarted, and serves.

#![expect(clippy::disallowed_types, reason = "the one place that starts threads of the product")]

use std::io::{self, Write};
use std::thread::{Builder, JoinHandle};

/// Start a thread called `name`.
///
/// # Errors
/// When the system has no thread left.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start_by(Builder::new(), name, work)
}

/// The same, with a stack of so many bytes.
///
/// # Errors
/// As for [`start`].
pub fn start_with_stack<T: Send + 'static>(
    name: &str,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start_by(Builder::new().stack_size(bytes), name, work)
}

fn start_by<T: Send + 'static>(
    builder: Builder,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let own = name.to_owned();
    builder.name(name.to_owned()).spawn(move || {
        let _guard = EndsTheProcess(own);
        work()
    })
}

/// Ends the process if a panic unwinds through it.
struct EndsTheProcess(String);

impl Drop for EndsTheProcess {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let _ = writeln!(io::stderr(), "drystone: the thread {:?} failed; ending", self.0);
        std::process::abort();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Set in the process that must end.
    const VICTIM: &str = "DRYSTONE_TEST_THREAD_PANICS";

    #[test]
    fn a_panic_of_a_thread_ends_the_process() {
        if std::env::var_os(VICTIM).is_some() {
            let _ = start("one", || panic!("a mistake")).unwrap().join();
            std::process::exit(0);
        }
        let own = "threads::tests::a_panic_of_a_thread_ends_the_process";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ended =
            command.args(["--exact", own, "--nocapture"]).env(VICTIM, "1").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{text}");
        assert!(text.contains("drystone: the thread \"one\" failed; ending"), "{text}");
        assert_eq!(start("two", || 7).unwrap().join().unwrap(), 7);
    }
}
