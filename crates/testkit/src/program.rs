//! Programs as their users see them: run in a folder, and looked at by exit status and output.

use std::path::Path;
use std::process::{Command, Output};

/// A program that tests run.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    path: &'static str,
}

impl Program {
    /// The program at `path`: `env!("CARGO_BIN_EXE_...")` of the test.
    pub const fn new(path: &'static str) -> Self {
        Program { path }
    }

    /// A command that works in `folder`; control sockets are in its folder `run`.
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(self.path);
        command.current_dir(folder).env("DRYSTONE_RUNTIME_DIR", folder.join("run"));
        command
    }

    /// Runs to the end.
    ///
    /// # Panics
    /// The program cannot be started.
    #[track_caller]
    pub fn run(&self, folder: &Path, arguments: &[&str]) -> Output {
        let output = self.command(folder).args(arguments).output();
        output.unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// Runs and expects an exit status, nothing on standard output, and words on standard error.
    ///
    /// # Panics
    /// One of these is otherwise.
    #[track_caller]
    pub fn refuses(&self, folder: &Path, arguments: &[&str], status: i32, words: &[&str]) {
        let output = self.run(folder, arguments);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(!message.contains("panicked") && !message.contains('\u{1b}'), "{message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: no {word:?} in {message}");
        }
    }
}

/// Standard output.
///
/// # Panics
/// It is no UTF-8.
#[track_caller]
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is text")
}

/// Standard error.
///
/// # Panics
/// It is no UTF-8.
#[track_caller]
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is text")
}

/// Standard output, then standard error.
pub fn both(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: Program = Program::new("/bin/sh");

    #[test]
    fn output_is_kept_apart() {
        let output = SHELL.run(Path::new("/"), &["-c", "echo a; echo b >&2; pwd; exit 3"]);
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("a\n/\n", "b\n"));
        assert_eq!((both(&output).as_str(), output.status.code()), ("a\n/\nb\n", Some(3)));
    }

    #[test]
    fn sockets_are_in_the_folder() {
        let output = SHELL.run(Path::new("/tmp"), &["-c", "echo $DRYSTONE_RUNTIME_DIR"]);
        assert_eq!(stdout(&output), "/tmp/run\n");
    }

    #[test]
    fn a_refusal_has_its_status_and_words() {
        SHELL.refuses(Path::new("/"), &["-c", "echo no >&2; exit 2"], 2, &["no"]);
    }

    #[test]
    #[should_panic(expected = "no \"yes\" in no")]
    fn a_refusal_without_its_words_fails() {
        SHELL.refuses(Path::new("/"), &["-c", "echo no >&2; exit 2"], 2, &["yes"]);
    }

    #[test]
    #[should_panic(expected = "left: Some(0)")]
    fn success_is_no_refusal() {
        SHELL.refuses(Path::new("/"), &["-c", "true"], 1, &[]);
    }
}
