//! The shape of what an experiment gives, on runs far too short to say anything of speed.

use drystone_lab::{Options, run};
use serde_json::Value;

/// Every key of a row that is measured.
const MEASURED: [&str; 10] = [
    "iops",
    "sys_of_cpu",
    "sys_of_threads",
    "contention",
    "contention_cpu",
    "grant_wait",
    "cores_used",
    "cpu_ns_per_io",
    "lock_acquisitions_per_io",
    "lock_contentions_per_io",
];

fn options() -> Options {
    Options { runs: 2, runtime_ns: 20_000_000, threads: 4, ..Options::default() }
}

/// The columns of each experiment's table, and of its further tables, of which `docs/lab` speaks.
const COLUMNS: [(&str, &str, &[&str]); 6] = [
    (
        "mq-deadline",
        "Device, Variant, Threads, IOPS, sys, contention, diff, IOPS, least to most, \
         contention, CPU, grant wait, cores, CPU ns/IO",
        &[],
    ),
    (
        "reorder",
        "Load, Variant, Threads, IOPS, IOPS, least to most, diff, reads/s, read mean, read \
         p99, read max, writes/s, write p99",
        &[],
    ),
    (
        "blk-throttle",
        "Load, Variant, Threads, IOPS, IOPS, least to most, to none, CPU ns/IO, CPU, least to \
         most, to none, locks/IO, contention",
        &[
            "Load, class name, Threads, acquisitions, holdtime-total, I/Os, a bio",
            "Load, Rules, Threads, locks a bio: before, mailed, ours, none, ns a bio to none: \
             before, mailed, ours",
        ],
    ),
    (
        "plug-time",
        "Device, Variant, Threads, IOPS, IOPS, least to most, diff, CPU ns/IO, clock reads/IO, \
         clock's share",
        &["Variant, t/io_uring's line"],
    ),
    (
        "raid5-wait",
        "Members, Variant, Threads, files/s, least to most, diff, user s, system s, system ms \
         a file, wake-ups a stripe, rescued",
        &["Case, before, ±stddev, mailed, ±stddev, change, ours, ±stddev, change"],
    ),
    (
        "dm-poll",
        "Volume, Latency, Depth, Threads, IRQ IOPS, poll IOPS, diff, mail, adaptive IOPS, \
         diff, CPU ns/IO: IRQ, poll, adaptive, wakes/IO: IRQ, poll, adaptive",
        &[],
    ),
];

/// An experiment that must end early has what it measured until then, whatever its tables lack.
#[test]
fn an_experiment_can_end_early() {
    for (name, columns, more) in COLUMNS {
        let options = Options { runtime_ns: 1_000_000, runs: 1, threads: 2, ..options() };
        let (stop, mut points) = (options.stop.clone(), 0);
        let say = &mut |line: &str| {
            points += u32::from(line.contains(" of "));
            if points == 2 {
                stop.ask();
            }
        };
        let outcome = run(name, &options, say).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(!outcome.rows.is_empty() && points <= 2, "{name}: {points} points");
        assert_eq!(outcome.table.head.join(", "), columns, "{name}");
        let mut heads: Vec<String> =
            outcome.more.iter().map(|(_, it)| it.head.join(", ")).collect();
        heads.dedup();
        assert_eq!(heads, more, "{name}");
        assert!(outcome.text().contains("Stopped before its end"), "{name}");
        assert!(outcome.html().contains("Stopped before its end"), "{name}");
        assert_eq!(outcome.json()["parameters"]["stopped_early"], true, "{name}");
    }
}

#[test]
fn an_unknown_experiment_is_refused() {
    let error = run("mq-deadlin", &options(), &mut |_| ()).expect_err("there is none");
    assert_eq!(
        error.to_string(),
        "no experiment `mq-deadlin`: there is mq-deadline, dm-poll, reorder, blk-throttle, \
         blk-throttle-accuracy, raid5-wait, plug-time, raid5-fsmark"
    );
}

#[test]
fn reorder_has_both_variants_under_each_load() {
    let options = Options { threads: 6, ..options() };
    let outcome = run("reorder", &options, &mut |_| ()).expect("an outcome");
    let json = outcome.json();
    assert_eq!(json["experiment"], "reorder");
    let rows = json["rows"].as_array().expect("rows");
    let loads = [
        ("64 random reads", 4),
        ("4 readers, 1 writer of depth 256", 5),
        ("4 readers, 2 writers of depth 128", 6),
    ];
    let expected = loads.map(|load| ["ours", "none"].map(|variant| (variant, load))).concat();
    assert_eq!(rows.len(), expected.len());
    for (row, (variant, (load, threads))) in rows.iter().zip(expected) {
        assert_eq!((&row["variant"], &row["note"]), (&Value::from(variant), &Value::from(load)));
        assert_eq!((&row["device"], &row["threads"]), (&"disk".into(), &threads.into()));
        for key in ["iops", "read_iops", "read_mean_ns", "read_p99_ns", "read_max_ns"]
            .into_iter()
            .chain(["write_iops", "write_mean_ns", "write_p99_ns", "write_max_ns"])
            .chain(["cpu_ns_per_io", "contention", "lock_acquisitions_per_io"])
        {
            let values = row[key].as_array().unwrap_or_else(|| panic!("{key} in {row}"));
            assert_eq!(values.len(), 2, "{key} in {row}");
            // In so short a run there may be no reads, or no writes, whose time could be told.
            let number = |value: &Value| value.is_number() || key.ends_with("_ns");
            assert!(values.iter().all(number), "{key} in {row}");
        }
        assert!(row["iops"].as_array().unwrap().iter().all(|iops| iops.as_f64() > Some(0.0)));
    }
    let text = outcome.text();
    assert!(text.contains("The disk is a model") && text.contains("diff"), "{text}");
    assert!(!text.contains("Lock statistics"), "none were taken: {text}");
    let page = outcome.html();
    assert!(page.contains("<svg") && page.ends_with("</body></html>\n"));
}

#[test]
fn every_row_has_one_value_for_each_run() {
    let outcome = run("mq-deadline", &options(), &mut |_| ()).expect("an outcome");
    let json = outcome.json();
    assert_eq!(json["experiment"], "mq-deadline");
    assert_eq!(json["date"].as_str().map(str::len), Some(20));
    assert!(json["machine"]["cores"].as_u64() > Some(0), "{json}");
    assert!(json["machine"]["cpu"].is_string() && json["machine"]["kernel"].is_string());
    assert_eq!(json["parameters"]["runs"], 2);
    let rows = json["rows"].as_array().expect("rows");
    // Two devices, 2, 1 and 4 threads, seven variants.
    assert_eq!(rows.len(), 2 * 3 * 7);
    for row in rows {
        assert!(["null", "file on tmpfs"].iter().any(|name| row["device"] == *name), "{row}");
        let variants = ["before", "mailed", "ours", "none"];
        assert!(variants.iter().any(|name| row["variant"] == *name), "{row}");
        for key in MEASURED {
            let values = row[key].as_array().unwrap_or_else(|| panic!("{key} in {row}"));
            assert_eq!(values.len(), 2, "{key} in {row}");
            // System time is counted in steps of 10 ms: there may be none to tell.
            let missing = |value: &Value| !value.is_number() && !key.starts_with("sys_");
            assert!(!values.iter().any(missing), "{key} in {row}");
        }
        assert!(row["iops"].as_array().unwrap().iter().all(|iops| iops.as_f64() > Some(0.0)));
    }
    // A variant that takes a lock for each request says so; ours takes none while there are tags.
    // (Of the pure spin lock there may be so few I/Os that those on the way distort the mean.)
    for row in rows.iter().filter(|row| row["device"] == "null") {
        let locks = row["lock_acquisitions_per_io"][0].as_f64().expect("a number");
        let notes = row["note"].as_str();
        match (row["variant"].as_str(), notes) {
            (Some("before"), None) => assert!((1.0..2.0).contains(&locks), "{row}"),
            (Some("none" | "ours"), None) => assert!(locks < 0.1, "{row}"),
            _ => {}
        }
        let with_note =
            matches!(notes, Some("always in turn" | "straight through" | "pure spin lock, unfair"));
        assert!(notes.is_none() || with_note, "{row}");
    }

    let own = format!("drystone-lab-{}-", std::process::id());
    let left = std::fs::read_dir("/dev/shm").expect("a folder").flatten();
    let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(!left.any(|name| name.starts_with(&own)), "the file is removed");

    let text = outcome.text();
    let head = text.lines().find(|line| line.starts_with("Device")).expect("a table");
    for column in ["IOPS", "sys", "contention", "diff", "grant wait", "cores", "CPU ns/IO"] {
        assert!(head.contains(column), "{head}");
    }
    assert!(text.contains("acquisitions") && text.contains("before: scheduler"), "{text}");
    let page = outcome.html();
    assert!(page.contains("<svg") && page.ends_with("</body></html>\n"));
    assert!(!page.contains("http"), "a page needs nothing else");
}

#[test]
fn blk_throttle_counts_locks_by_class_and_marks_the_mails() {
    let options = Options { runs: 1, threads: 2, ..options() };
    let outcome = run("blk-throttle", &options, &mut |_| ()).expect("an outcome");
    let json = outcome.json();
    assert_eq!(
        (&json["experiment"], &json["parameters"]["runs"]),
        (&"blk-throttle".into(), &1.into())
    );
    let rows = json["rows"].as_array().expect("rows");
    // Four of dd, and six loads with 1 and 2 threads; four variants.
    assert_eq!(rows.len(), (4 + 6 * 2) * 4);
    for row in rows {
        for key in ["iops", "cpu_ns_per_io", "cores_used", "contention", "lock_acquisitions_per_io"]
            .into_iter()
            .chain(["lock_contentions_per_io", "lock_acquisitions", "lock_hold_us", "lock_ios"])
        {
            let values = row[key].as_array().unwrap_or_else(|| panic!("{key} in {row}"));
            assert!(values.len() == 1 && values[0].is_number(), "{key} in {row}");
        }
        assert!(row["rules"].is_string() && row["locks"].is_array(), "{row}");
        let number = |key: &str| row[key][0].as_f64().expect("a number");
        let (taken, held) = (number("lock_acquisitions"), number("lock_hold_us"));
        let each = number("lock_acquisitions_per_io");
        let ruled = row["rules"].as_str().is_some_and(|rules| rules.starts_with("too high"));
        let expected = match (row["variant"].as_str(), ruled) {
            (Some("before"), _) => 1.5..2.5,
            (Some("mailed"), true) => 0.8..1.3,
            _ => 0.0..0.1,
        };
        // Of very few I/Os those on the way distort the mean.
        let many = row["load"] == "dd" || number("iops") > 1e6;
        assert!(!many || expected.contains(&each), "{each} locks an I/O: {row}");
        assert_eq!(
            (taken > 0.0, held > 0.0),
            (expected.start > 0.0, expected.start > 0.0),
            "{row}"
        );
        if row["load"] == "dd" && row["driver"] == "null" {
            let ios = number("lock_ios");
            assert_eq!(taken, expected.start.ceil() * ios, "exactly so many: {row}");
        }
    }
    let text = outcome.text();
    for words in ["queue_lock", "group_stats", "holdtime-total", "2360944", "not measured here"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let markdown = outcome.markdown();
    assert!(markdown.starts_with("## A run\n"), "{markdown}");
    assert!(!markdown.contains("| What a bio takes"), "{markdown}");
    assert!(markdown.contains("### What a bio takes\n\n| Load | Rules |"), "{markdown}");
    let page = outcome.html();
    assert!(page.contains("<svg") && page.contains("<h2>What a bio takes</h2>"));
}

#[test]
fn accuracy_shows_what_was_asked_beside_what_was_given() {
    let options = Options { runs: 1, ..options() };
    let outcome = run("blk-throttle-accuracy", &options, &mut |_| ()).expect("an outcome");
    let json = outcome.json();
    let rows = json["rows"].as_array().expect("rows");
    // Eleven limits of one flow, one of two, two of four threads and four pairs of children with
    // their sum.
    assert_eq!(rows.len(), 11 + 2 + 2 * 5 + 4 * 3);
    for row in rows {
        let asked = row["asked"].as_array().expect("what is asked");
        assert!(asked.iter().all(|rate| rate.as_f64() > Some(0.0)), "{row}");
        // In so short a time there may be no I/O that could be charged with processor time.
        for key in ["iops", "rate", "rate_second_half", "deviation"] {
            assert!(row[key][0].is_number(), "{key} in {row}");
        }
        let series = row["series"].as_array();
        assert!(
            series.is_some_and(|points| points.len() > 20) || row["note"] == "together",
            "{row}"
        );
    }
    let page = outcome.html();
    assert_eq!(page.matches("<svg").count(), 18);
    assert!(page.contains("class=\"asked\"") && !page.contains("NaN"));
    let columns = "Limit, Flow, asked, given, , greatest deviation in 0.1 s, one I/O is, CPU ns/IO";
    assert_eq!(outcome.table.head.join(", "), columns);
}
