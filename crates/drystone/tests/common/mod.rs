//! A server of the real program, and the commands of a user against it.

#![allow(dead_code, reason = "each file of tests uses some of it")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use drystone_testkit::program::Program;
use tempfile::TempDir;

/// A server with a folder of its own, killed when its test ends.
pub struct Server {
    child: Child,
    /// Commands that show the server's state: no output changes when a command is refused.
    state: &'static [&'static [&'static str]],
    pub folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DRYSTONE: Program = Program::new(env!("CARGO_BIN_EXE_drystone"));

pub fn program(folder: &Path) -> Command {
    DRYSTONE.command(folder)
}

impl Server {
    pub fn start(stack: &str, state: &'static [&'static [&'static str]]) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("s.toml"), stack).unwrap();
        let mut serve = program(folder.path());
        let mut child = serve.args(["serve", "s.toml"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.expect("the server prints"));
        assert!(lines.any(|line| line.starts_with("Stop with")), "it has ended");
        Server { child, state, folder }
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        program(self.folder.path()).args(arguments).output().unwrap()
    }

    /// Runs with a text on standard input.
    pub fn feed(&self, arguments: &[&str], text: &str) -> Output {
        let mut command = program(self.folder.path());
        command.args(arguments).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It may have read enough before the end.
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        child.wait_with_output().unwrap()
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        good(arguments, self.run(arguments))
    }

    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Expects an exit status and a sentence, and that nothing has changed.
    pub fn refuses(&self, arguments: &[&str], status: i32, sentence: &str) {
        let before = self.state();
        bad(arguments, self.run(arguments), status, sentence);
        assert_eq!(self.state(), before, "{arguments:?}");
    }

    fn state(&self) -> String {
        self.state.iter().map(|words| self.ok(words)).collect()
    }
}

pub fn good(arguments: &[&str], output: Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), message.as_str()), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn bad(arguments: &[&str], output: Output, status: i32, sentence: &str) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(message.contains(sentence), "{arguments:?}: no {sentence:?} in {message}");
    assert!(status == 2 || message.lines().count() == 1, "{message}");
}
