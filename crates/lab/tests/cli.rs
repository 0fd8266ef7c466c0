//! The program `drystone-lab` as its users see it: output, messages, exit status.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use drystone_testkit::program::{Program, stderr, stdout};
use tempfile::TempDir;

const LAB: Program = Program::new(env!("CARGO_BIN_EXE_drystone-lab"));

#[test]
fn wrong_usage_is_told_apart_from_refusal() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    LAB.refuses(at, &[], 2, &["list", "run"]);
    LAB.refuses(at, &["run"], 2, &["<NAME>"]);
    LAB.refuses(at, &["run", "raid"], 2, &["no experiment `raid`", "mq-deadline"]);
    LAB.refuses(at, &["run", "mq-deadline", "--runs", "0"], 2, &["1..=1000"]);
    LAB.refuses(at, &["run", "mq-deadline", "--runtime", "0"], 2, &["at least 1ms"]);
    LAB.refuses(at, &["run", "mq-deadline", "--threads", "0"], 2, &["1..=256"]);
    LAB.refuses(at, &["run", "mq-deadline", "--json", "no/a.json"], 1, &["write no/a.json"]);
    LAB.refuses(at, &["run", "mq-deadline", "--folder", "f"], 2, &["--folder is for `all`"]);
    LAB.refuses(at, &["run", "all", "--json", "a.json"], 2, &["--json is for one experiment"]);
}

#[test]
fn json_has_the_standard_output_to_itself() {
    let folder = TempDir::new().unwrap();
    let run = "run plug-time --threads 1 --runs 1 --runtime 5ms --json -";
    let output = LAB.run(folder.path(), &run.split(' ').collect::<Vec<_>>());
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
    let mut lab = LAB.command(at);
    let run = "run plug-time --threads 1 --runs 1000 --runtime 20ms --json a.json --html old.html";
    let lab = lab.args(run.split(' ')).stderr(Stdio::piped());
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
    let list = stdout(&LAB.run(folder.path(), &["list", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["experiments"][0]["name"], "mq-deadline");
}

#[test]
fn a_model_is_refused_in_words() {
    let folder = TempDir::new().unwrap();
    let model = |words: &[&'static str]| [&["model"][..], words].concat();
    LAB.refuses(folder.path(), &model(&["raid"]), 2, &["no model `raid`", "mq-deadline"]);
    for bad in ["0", "x", "1..", "1..1000", "2,,4", ""] {
        let arguments = model(&["mq-deadline", "--cores", bad]);
        LAB.refuses(
            folder.path(),
            &arguments,
            2,
            &["--cores", "no number of cores from 1 to 256", "write 1..128"],
        );
    }
    LAB.refuses(
        folder.path(),
        &model(&["mq-deadline", "--cores", "8..2"]),
        2,
        &["goes down: write 2..8"],
    );
    LAB.refuses(folder.path(), &model(&["mq-deadline", "--runs", "0"]), 2, &["--runs"]);
    LAB.refuses(folder.path(), &model(&["mq-deadline", "--runtime", "1us"]), 2, &["at least 1ms"]);
    let json = model(&["mq-deadline", "--json", "none/out.json"]);
    LAB.refuses(folder.path(), &json, 1, &["cannot write none/out.json"]);
}
