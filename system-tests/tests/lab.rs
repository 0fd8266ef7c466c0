//! `drystone lab`: a run as a user makes it, far too short to say anything of speed.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::{Value, json};
use system_tests::client::demand;
use system_tests::server::{denies_io_uring, without_io_uring};
use system_tests::{new_folder, program, requires, run};

/// Runs the program in `folder`; gives its standard output.
fn lab(folder: &Path, arguments: &[&str]) -> String {
    let prefix = if denies_io_uring() { without_io_uring() } else { Vec::new() };
    let mut words: Vec<&str> = prefix.iter().map(String::as_str).collect();
    words.extend([program().to_str().expect("a path"), "lab"]);
    words.extend(arguments);
    let outcome = run(folder, &words);
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    outcome.ok()
}

/// The number of variants of the experiment `mq-deadline`.
const VARIANTS: usize = 7;

#[test]
fn experiments_are_listed() {
    let folder = new_folder();
    let listed = lab(folder.path(), &["list"]);
    let names = [
        "mq-deadline  ",
        "dm-poll  ",
        "reorder  ",
        "blk-throttle  ",
        "blk-throttle-accuracy  ",
        "raid5-wait  ",
        "plug-time  ",
        "raid5-fsmark  ",
    ];
    for name in names {
        assert!(listed.lines().any(|line| line.starts_with(name)), "{listed}");
    }
}

#[test]
fn a_short_run_gives_a_table_json_and_a_page() {
    let folder = new_folder();
    let text = lab(
        folder.path(),
        &[
            &["run", "mq-deadline", "--runs", "1", "--runtime", "0.1", "--threads", "2"][..],
            &["--json", "out.json", "--html", "out.html"],
        ]
        .concat(),
    );
    let head: Vec<&str> =
        text.lines().find(|l| l.starts_with("Device")).expect("a table").split("  ").collect();
    for column in ["Device", "IOPS", "sys", "contention", "diff"] {
        assert!(head.iter().any(|cell| cell.trim() == column), "{column} in {text}");
    }
    let json = fs::read_to_string(folder.path().join("out.json")).expect("the JSON");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 2 * VARIANTS);
    assert!(rows.iter().all(|row| row["iops"].as_array().is_some_and(|runs| runs.len() == 1)));
    let page = fs::read_to_string(folder.path().join("out.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("http"), "a page needs nothing else");
}

/// The five mails' experiments on one page, with the mails' own figures.
#[test]
fn all_tables_come_on_one_page() {
    let folder = new_folder();
    let run = ["run", "all", "--runs", "1", "--runtime", "2ms", "--threads", "2"];
    lab(folder.path(), &[&run[..], &["--folder", "page"]].concat());
    let read = |name: &str| fs::read_to_string(folder.path().join("page").join(name)).expect(name);
    let (html, markdown) = (read("index.html"), read("index.md"));
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    assert!(!html.contains("http"), "a page needs nothing else");
    let mails = [
        ("mq-deadline", "2867K"),
        ("dm-poll", "284k"),
        ("raid5-wait", "92.700"),
        ("blk-throttle", "2360944"),
        ("plug-time", "118.8M"),
    ];
    for (name, figure) in mails {
        for page in [&html, &markdown] {
            assert!(page.contains(&format!("{name}: here")) && page.contains(figure), "{name}");
        }
        let json: Value = serde_json::from_str(&read(&format!("{name}.json"))).expect("JSON");
        let variants: BTreeSet<&str> = rows(&json).filter_map(|r| r["variant"].as_str()).collect();
        assert!(["before", "mailed", "ours"].iter().all(|v| variants.contains(v)), "{variants:?}");
    }
}

fn rows(json: &Value) -> impl Iterator<Item = &Value> {
    json["rows"].as_array().into_iter().flatten()
}

/// The whole path of fs_mark: each variant's server, loop device and file system, and no remains of
/// them.
#[test]
fn the_mails_benchmark_runs_on_a_file_system_of_each_variant() {
    let devices =
        ["/dev/fuse", "/dev/loop-control"].iter().all(|device| Path::new(device).exists());
    let root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let can = demand(devices, "there is no /dev/fuse or no loop device")
        && demand(root, "this test is not root")
        && requires("fs_mark")
        && requires("mkfs.ext4");
    if denies_io_uring() {
        return println!(
            "SKIPPED: raid5-fsmark starts its servers itself, without what denies io_uring"
        );
    }
    if !can {
        return;
    }
    let folder = new_folder();
    let arguments = ["run", "raid5-fsmark", "--runs", "1", "--bytes", "48MiB", "--threads", "3"];
    let only = ["--only", "ext4", "--only", "3t-", "--json", "out.json"];
    let program = program().to_str().expect("a path");
    // All its mounts are in the folder.
    let place = format!("TMPDIR={}", folder.path().display());
    run(folder.path(), &[&["env", &place, program, "lab"], &arguments[..], &only[..]].concat())
        .ok();
    let json = fs::read_to_string(folder.path().join("out.json")).expect("the JSON");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let rows = json["rows"].as_array().expect("rows");
    let names: Vec<String> =
        rows.iter().map(|r| format!("{} {}", r["variant"], r["members"])).collect();
    let array = |members| ["before", "mailed", "ours"].map(|name| format!("\"{name}\" {members}"));
    let ceiling = ["\"ceiling\" null".to_owned()];
    assert_eq!(names, [&array(4)[..], &array(9)[..], &ceiling[..]].concat());
    for row in rows {
        assert_eq!(
            (&row["file_system"], &row["files"][0]),
            (&json!("ext4"), &json!(12.0)),
            "{row}"
        );
        assert_eq!(row["stuck"][0], json!(0.0), "{row}");
        for key in ["files_per_second", "cpu_seconds_per_file"] {
            assert!(row[key][0].as_f64().is_some_and(|value| value > 0.0), "{key} in {row}");
        }
    }
    let here = folder.path().to_str().expect("a path");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    assert!(!mounts.contains(here), "{mounts}");
    for device in fs::read_dir("/sys/block").expect("block devices").flatten() {
        let file = fs::read_to_string(device.path().join("loop/backing_file"));
        assert!(!file.is_ok_and(|file| file.contains(here)), "{device:?}");
    }
    let left = fs::read_dir(folder.path()).expect("the folder").flatten();
    let left: Vec<String> = left.map(|entry| entry.file_name().to_string_lossy().into()).collect();
    assert_eq!(left, ["out.json"]);
}

#[test]
fn polling_is_compared_with_interrupts_in_a_short_run() {
    let folder = new_folder();
    let arguments = ["run", "dm-poll", "--runs", "1", "--runtime", "5ms", "--threads", "2"];
    let text = lab(folder.path(), &[&arguments[..], &["--json", "out.json"]].concat());
    for volume in ["linear, one poller", "stripe, pinned pollers", "linear on files"] {
        assert!(text.lines().any(|line| line.starts_with(volume)), "{volume} in {text}");
    }
    let json = fs::read_to_string(folder.path().join("out.json")).expect("the JSON");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let rows = json["rows"].as_array().expect("rows");
    // Four tables at four latencies, for busy queues and for files; two depths; three ways to wait.
    assert_eq!(rows.len(), (4 * 4 + 2) * 2 * 3);
    let mut paths = BTreeSet::new();
    for row in rows {
        let number = |key: &str| row[key][0].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
        let polls = number("polls_made");
        assert!(number("iops") > 0.0 && number("cpu_ns_per_io") > 0.0, "{row}");
        assert!(number("polls_fruitful") <= polls, "{row}");
        match row["variant"].as_str() {
            Some("before") => assert_eq!((polls, &row["mode"]), (0.0, &json!("interrupt"))),
            Some("mailed") => {
                assert_eq!((number("wakes_per_io"), &row["mode"]), (0.0, &json!("poll")))
            }
            _ => assert_eq!(row["mode"], "adaptive"),
        }
        let null = row["device_latency_us"].is_number();
        if null && row["variant"] == "mailed" {
            assert!(polls > 0.0, "{row}");
            paths.insert((
                row["device"].as_str() == Some("stripe, pinned pollers"),
                row["path"].to_string(),
            ));
            assert_eq!(row["hw_queues"].as_array().map(Vec::len), Some(3 * queues(row)), "{row}");
        }
    }
    let expected = [(false, "\"queue\"".to_owned()), (true, "\"context\"".to_owned())];
    assert_eq!(
        paths,
        BTreeSet::from(expected),
        "unsplit bios by their queue, split ones by their context"
    );
    assert!(json["parameters"]["wake_latency_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{json}");
}

#[test]
fn throttles_are_compared_in_a_short_run() {
    let folder = new_folder();
    let arguments = ["run", "blk-throttle", "--runs", "1", "--runtime", "5ms", "--threads", "2"];
    let files = ["--json", "out.json", "--html", "out.html", "--markdown", "out.md"];
    let text = lab(folder.path(), &[&arguments[..], &files].concat());
    for load in
        ["dd, file", "dd, null", "null, a group without rules", "null, such a group a thread"]
    {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{load}  ")));
        assert!(lines.count() >= 4, "a line for each variant of {load}: {text}");
    }
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a file");
    let json: Value = serde_json::from_str(&read("out.json")).expect("JSON");
    let rows = json["rows"].as_array().expect("rows");
    let dd = |variant: &str, rules: &str| {
        let is_it = |row: &&Value| {
            row["device"].as_str().is_some_and(|device| device.starts_with("dd, null"))
                && (&row["variant"], &row["rules"]) == (&json!(variant), &json!(rules))
        };
        let row = rows.iter().find(is_it).expect("a row");
        let number = |key: &str| row[key][0].as_f64().expect("a number");
        number("lock_acquisitions") / number("lock_ios")
    };
    let each = |rules: &str| ["before", "mailed", "ours", "none"].map(|variant| dd(variant, rules));
    // In *before*, one lock for the device and one for the group's statistics.
    assert_eq!(each("none"), [2.0, 0.0, 0.0, 0.0]);
    assert_eq!(each("none in its group"), [2.0, 0.0, 0.0, 0.0]);
    assert_eq!(each("too high to bind"), [2.0, 1.0, 0.0, 0.0]);
    assert!(read("out.html").contains("queue_lock"));
    assert!(read("out.md").starts_with("## A run\n"), "the section of a page");
}

#[test]
fn limits_are_shown_beside_the_rates_they_give() {
    let folder = new_folder();
    let arguments = ["run", "blk-throttle-accuracy", "--runs", "1", "--runtime", "20ms"];
    let text = lab(folder.path(), &[&arguments[..], &["--html", "out.html"]].concat());
    for limit in
        ["1 IOPS", "5 GiB/s", "two children of 1000 IOPS, equal loads", "1000 IOPS, then 3000"]
    {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("{limit}  "))),
            "{limit} in {text}"
        );
    }
    let page = fs::read_to_string(folder.path().join("out.html")).expect("the page");
    assert!(
        page.matches("<svg").count() == 18 && page.contains("class=\"asked\""),
        "a picture of each"
    );
    assert!(!page.contains("http"), "a page needs nothing else");
}

/// Poll queues of each disk: one, or one for each poller that has its own.
fn queues(row: &Value) -> usize {
    let pinned = row["device"].as_str().is_some_and(|device| device.ends_with("pinned pollers"));
    if pinned { row["threads"].as_u64().expect("a number") as usize } else { 1 }
}

#[test]
fn a_short_model_marks_what_it_models() {
    // With one core it is refused, and this test fails with that sentence.
    let folder = new_folder();
    let text = lab(
        folder.path(),
        &[
            &["model", "mq-deadline", "--runs", "1", "--runtime", "20ms", "--threads", "4"][..],
            &["--cores", "1,2,16", "--json", "out.json", "--html", "out.html"],
        ]
        .concat(),
    );
    for title in ["Inputs: the machine", "Check: threads", "The mail's pair", "IOPS modelled"] {
        assert!(text.lines().any(|line| line.starts_with(title)), "{title} in {text}");
    }
    let table = text.split("Variant, modelled").nth(1).expect("the table of cores");
    let lines: Vec<&str> = table.lines().skip(1).take_while(|line| line.contains('~')).collect();
    assert_eq!(lines.len(), VARIANTS, "a line for each variant: {table}");
    for line in lines {
        assert_eq!((line.matches('~').count(), line.matches('±').count()), (3, 3), "{line}");
    }
    let json = fs::read_to_string(folder.path().join("out.json")).expect("the JSON");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let rows = json["rows"].as_array().expect("rows");
    // 1, 2 and 4 threads measured and modelled, and three numbers of cores.
    assert_eq!(rows.len(), VARIANTS * (3 * 2 + 3));
    let modelled = rows.iter().filter(|row| row["modelled"] == true);
    assert_eq!(modelled.clone().count(), VARIANTS * 6);
    for row in modelled {
        assert!(row["iops"][0].as_f64().is_some_and(|iops| iops > 0.0), "{row}");
        assert!(row["error"].is_number() || row["error_carried"].is_number(), "{row}");
    }
    assert!(rows.iter().all(|row| row["cores"].is_number() && row["modelled"].is_boolean()));
    assert_eq!(json["mail"]["fitted_to"], "before");
    let page = fs::read_to_string(folder.path().join("out.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.matches('~').count() > 30 && !page.contains("http"), "a page needs nothing else");
}

#[test]
fn a_short_model_of_pollers_marks_what_it_models() {
    // With one core it is refused, and this test fails with that sentence.
    let folder = new_folder();
    let text = lab(
        folder.path(),
        &[
            &["model", "dm-poll", "--runs", "1", "--runtime", "20ms", "--cores", "1,8"][..],
            &["--json", "out.json", "--html", "out.html"],
        ]
        .concat(),
    );
    for title in ["Inputs: the machine", "Inputs: an I/O", "Check: threads", "IOPS modelled"] {
        assert!(text.lines().any(|line| line.starts_with(title)), "{title} in {text}");
    }
    let json = fs::read_to_string(folder.path().join("out.json")).expect("the JSON");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["experiment"], "model dm-poll");
    assert_eq!(json["inputs"]["modelled"], false);
    assert!(json["lacks"].as_array().is_some_and(|lacks| !lacks.is_empty()));
    let rows = json["rows"].as_array().expect("rows");
    let (models, measured): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| row["modelled"] == true);
    let checks: Vec<&&Value> = models.iter().filter(|row| row["error"].is_number()).collect();
    assert_eq!(checks.len(), measured.len(), "what was measured is modelled, too");
    let beyond: Vec<&&Value> =
        models.iter().filter(|row| row["error_carried"].is_number()).collect();
    // 1 and 8 cores and the mail's 3; two depths; three, two and two ways of three tables.
    assert_eq!(beyond.len(), 3 * 2 * 7);
    for cores in [1, 3, 8] {
        let of =
            |row: &&&&Value| row["cores"] == cores && row["device"] == "linear, several pollers";
        let ways: BTreeSet<String> = beyond.iter().filter(of).map(way).collect();
        assert_eq!(ways.len(), 2 * 3, "{ways:?}");
    }
    for row in rows {
        assert!(row["iops"][0].as_f64().is_some_and(|iops| iops > 0.0), "{row}");
    }
    let page = fs::read_to_string(folder.path().join("out.html")).expect("the page");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.matches('~').count() > 30 && !page.contains("http"), "a page needs nothing else");
}

/// The way in which a row's threads learn of completions.
fn way(row: &&&Value) -> String {
    format!("{}, skip_busy {}, depth {}", row["mode"], row["skip_busy"], row["depth"])
}
