//! The command lines of the mails, run by the scripts for users. They work, and they are the mails'
//! own, word for word, except for the changes that the scripts name (`mails.txt`).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use system_tests::{new_folder, run};

use super::{engine, repository, run_embedded};

/// The mails' text.
const MAILS: &str = include_str!("mails.txt");

/// Runs a script for a moment; returns fio's report on `jobs` groups of jobs.
fn lines(script: &str, jobs: usize) {
    let Some(engine) = engine() else { return };
    let folder = new_folder();
    let script = repository(&format!("examples/fio/{script}.sh")).display().to_string();
    let engine = format!("DRYSTONE_FIO={engine}");
    let said = run_embedded(folder.path(), &["env", "RUNTIME=300ms", &engine, &script]).ok();
    assert_eq!(said.matches("err= 0").count(), jobs, "{said}");
    assert_eq!(said.matches("read: IOPS=").count(), jobs, "{said}");
}

#[test]
fn mq_deadline_of_2024() {
    lines("mq-deadline", 1);
}

#[test]
fn dm_poll_of_2021() {
    lines("dm-poll", 6);
}

#[test]
fn plug_time_of_2024() {
    lines("plug-time", 1);
}

#[test]
fn without_the_engine_they_say_what_to_do() {
    let folder = new_folder();
    let script = repository("examples/fio/plug-time.sh").display().to_string();
    let said = run_embedded(folder.path(), &["env", "DRYSTONE_FIO=/none.so", &script]).refused();
    assert_eq!(said, "/none.so does not exist: run `make capi`\n");
}

/// The lines of the mail whose subject ends with this text. A line that ends with a backslash
/// continues in the next.
fn mailed(subject: &str) -> Vec<String> {
    let mail = MAILS.split("\n\n").find(|mail| {
        let first = mail.lines().next().unwrap_or_default();
        first.starts_with("Subject: ") && first.ends_with(subject)
    });
    let text = mail.unwrap_or_else(|| panic!("{subject} is not in mails.txt"));
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('\t')).collect();
    let whole = lines.join("\n").replace("\\\n", " ");
    whole.lines().map(str::to_owned).collect()
}

/// Words that begin with none of `changed`.
fn kept(line: &[String], changed: &[&str]) -> Vec<String> {
    let is_kept = |word: &&String| !changed.iter().any(|name| word.starts_with(name));
    line.iter().filter(is_kept).cloned().collect()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The options in the brackets of the mail on polling, as fio takes them.
fn bracketed(line: &str) -> Vec<String> {
    let inner = line.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).expect("brackets");
    // "12k(4k for every NVMe device)" explains itself.
    let options = inner.split('(').next().unwrap_or_default();
    let options = options.split([',', ' ']).filter(|option| !option.is_empty());
    options.map(|option| format!("--{option}")).collect()
}

/// The command lines that a script runs, each with the program's name first. A substitute for the
/// programs records its arguments.
fn run_by(script: &str, arguments: &[&str]) -> Vec<Vec<String>> {
    let folder = new_folder();
    let teller = "#!/bin/sh\n{ printf '%s\\n' \"${0##*/}\" \"$@\"; echo; } >> \"$TOLD\"\n";
    for program in ["fio", "dd"] {
        let path = folder.path().join(program);
        fs::write(&path, teller).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    }
    let told = folder.path().join("told");
    let path =
        format!("PATH={}:{}", folder.path().display(), std::env::var("PATH").expect("a path"));
    let told_by = format!("TOLD={}", told.display());
    let script = repository(&format!("examples/fio/{script}.sh")).display().to_string();
    // The engine can be any file: it is not loaded.
    let command = ["env", "-u", "RUNTIME", &path, &told_by, "DRYSTONE_FIO=/dev/null", &script];
    run(folder.path(), &[&command[..], arguments].concat()).ok();
    let text = fs::read_to_string(told).expect("something ran");
    text.split_terminator("\n\n").map(|line| line.lines().map(str::to_owned).collect()).collect()
}

/// The options that scripts for our engine change, and no others.
const ENGINE: [&str; 3] = ["--ioengine=", "--stack=", "--filename="];

#[test]
fn mq_deadline_is_word_for_word_the_mails() {
    let [line] = &mailed("block/mq-deadline: use separate insertion lists")[..] else {
        panic!("one line")
    };
    let line = words(line);
    assert_eq!(line.len(), 19, "{line:?}");
    let ran = run_by("mq-deadline", &[]);
    let [ours] = &ran[..] else { panic!("{ran:?}") };
    assert_eq!(kept(ours, &ENGINE), kept(&line, &ENGINE));
    for name in ENGINE {
        assert_eq!(ours.iter().filter(|word| word.starts_with(name)).count(), 1, "{name}");
    }
}

/// The mail gives the options of its jobs; the rest of the line is ours.
#[test]
fn dm_poll_has_the_mails_options() {
    let mailed: Vec<_> = mailed("dm: support IO polling").iter().map(|l| bracketed(l)).collect();
    let added = ["fio", "--name=", "--thread", "--group_reporting", "--time_based", "--runtime=60"];
    let ran = run_by("dm-poll", &[]);
    assert_eq!(ran.len(), 6, "{ran:?}");
    for (polled, ran) in [(false, &ran[..3]), (true, &ran[3..])] {
        for (ours, mailed) in ran.iter().zip(&mailed) {
            assert_eq!(ours.contains(&"--hipri".to_owned()), polled, "{ours:?}");
            let changed = [&added[..5], &["--runtime=10", "--hipri"], &ENGINE].concat();
            assert_eq!(kept(ours, &changed), kept(mailed, &ENGINE));
        }
    }
    let on_a_file: Vec<_> = run_by("on-a-file", &["/some/file"]).split_off(2);
    assert_eq!(on_a_file.len(), 2, "{on_a_file:?}");
    for (ours, mailed) in on_a_file.iter().zip(&mailed) {
        assert_eq!(kept(ours, &[&added[..], &["--filename=/some/file"]].concat()), *mailed);
    }
}

/// On a file or loop device nothing is changed but the path.
#[test]
fn on_a_file_the_lines_are_the_mails_own() {
    let ran = run_by("on-a-file", &["/some/file"]);
    let dd = mailed("blk-throttle: lockless bio processing for no throttle rule group");
    let fio = mailed("block/mq-deadline: use separate insertion lists");
    let with_path = |line: &str, from: &str| words(&line.replace(from, "/some/file"));
    assert_eq!(ran[0], with_path(&dd[0], "/mnt/zerofile-1G"));
    assert_eq!(ran[1], with_path(&fio[0], "/dev/$DEV"));
}

/// This mail has no command line; the script names the output that it reproduces.
#[test]
fn plug_time_names_what_the_mail_shows() {
    let output = mailed("block: cache current nsec time in struct blk_plug");
    let script = fs::read_to_string(repository("examples/fio/plug-time.sh")).expect("it is there");
    assert!(script.contains(&output[0]), "{}", output[0]);
    let ran = run_by("plug-time", &[]);
    let [ours] = &ran[..] else { panic!("{ran:?}") };
    for word in ["--bs=512", "--rw=randread", "--iodepth_batch_submit=32"] {
        assert!(ours.contains(&word.to_owned()), "{word}: {ours:?}");
    }
}
