//! The program `drystone-lab` as its users see it: output, messages, exit status.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drystone-lab"));
    command.args(arguments).current_dir(folder).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs and expects a status, nothing on standard output, and words on standard error.
fn refused(folder: &Path, arguments: &[&str], status: i32, words: &[&str]) {
    let output = lab(folder, arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert!(!message.contains("panicked") && !message.contains('\u{1b}'), "{message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: no {word:?} in {message}");
    }
}

#[test]
fn wrong_usage_is_told_apart_from_refusal() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    refused(at, &[], 2, &["list", "run"]);
    refused(at, &["run"], 2, &["<NAME>"]);
    refused(at, &["run", "raid"], 2, &["no experiment `raid`", "mq-deadline"]);
    refused(at, &["run", "mq-deadline", "--runs", "0"], 2, &["1..=1000"]);
    refused(at, &["run", "mq-deadline", "--runtime", "0"], 2, &["at least 1ms"]);
    refused(at, &["run", "mq-deadline", "--threads", "0"], 2, &["1..=256"]);
    refused(at, &["run", "mq-deadline", "--json", "no/a.json"], 1, &["write no/a.json"]);
    refused(at, &["run", "mq-deadline", "--folder", "f"], 2, &["--folder is for `all`"]);
    refused(at, &["run", "all", "--json", "a.json"], 2, &["--json is for one experiment"]);
}

#[test]
fn json_has_the_standard_output_to_itself() {
    let folder = TempDir::new().unwrap();
    let run = "run plug-time --threads 1 --runs 1 --runtime 5ms --json -";
    let output = lab(folder.path(), &run.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: Result<serde_json::Value, _> = serde_json::from_str(&stdout(&output));
    assert!(json.is_ok(), "{}", stdout(&output));
    assert!(!stderr(&output).is_empty(), "the lines are there too");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_an_interrupted_lab_has_measured_is_kept() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::write(at.join("old.html"), "the page of yesterday").unwrap();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_drystone-lab"));
    let run = "run plug-time --threads 1 --runs 1000 --runtime 20ms --json a.json --html old.html";
    let lab = lab.args(run.split(' ')).current_dir(at).stderr(Stdio::piped());
    let mut lab = lab.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    let mut said = BufReader::new(lab.stderr.take().unwrap());
    said.read_line(&mut first).unwrap();
    assert!(first.contains("1 of "), "{first}");
    assert_eq!(fs::read_to_string(at.join("old.html")).unwrap(), "the page of yesterday");
    let pid = rustix::process::Pid::from_child(&lab);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let text = std::io::read_to_string(&mut said).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(0), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(at.join("a.json")).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(!rows.is_empty() && json["parameters"]["stopped_early"] == true, "{json}");
    assert!(fs::read_to_string(at.join("old.html")).unwrap().contains("Stopped before its end"));
    assert_eq!(fs::read_dir(at).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn lists_are_told_as_json() {
    let folder = TempDir::new().unwrap();
    let list = stdout(&lab(folder.path(), &["list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["experiments"][0]["name"], "mq-deadline");
}

#[test]
fn a_model_is_refused_in_words() {
    let folder = TempDir::new().unwrap();
    let model = |words: &[&'static str]| [&["model"][..], words].concat();
    refused(folder.path(), &model(&["raid"]), 2, &["no model `raid`", "mq-deadline"]);
    for bad in ["0", "x", "1..", "1..1000", "2,,4", ""] {
        let arguments = model(&["mq-deadline", "--cores", bad]);
        refused(
            folder.path(),
            &arguments,
            2,
            &["--cores", "no number of cores from 1 to 256", "write 1..128"],
        );
    }
    refused(
        folder.path(),
        &model(&["mq-deadline", "--cores", "8..2"]),
        2,
        &["goes down: write 2..8"],
    );
    refused(folder.path(), &model(&["mq-deadline", "--runs", "0"]), 2, &["--runs"]);
    refused(folder.path(), &model(&["mq-deadline", "--runtime", "1us"]), 2, &["at least 1ms"]);
    let json = model(&["mq-deadline", "--json", "none/out.json"]);
    refused(folder.path(), &json, 1, &["cannot write none/out.json"]);
}
