//! What was measured, for people and programs.

use serde_json::json;

use super::case::{Below, Case, FILE_BYTES};
use super::load::Sample;
use crate::outcome::{Row, Table, spread};
use crate::raid5_wait::mails_form;

/// A case with what each variant measured, run by run.
pub(super) struct Measured {
    pub(super) case: Case,
    pub(super) samples: Vec<Vec<Sample>>,
}

/// A row for each variant.
pub(super) fn rows(measured: &Measured) -> Vec<Row> {
    let rows = measured.case.variants().iter().zip(&measured.samples);
    rows.map(|(variant, samples)| row(&measured.case, variant, samples)).collect()
}

fn row(case: &Case, variant: &'static str, samples: &[Sample]) -> Row {
    let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    let members = case.members().map_or("no array".to_owned(), |n| format!("{n} members"));
    Row {
        device: case.device(),
        variant,
        note: Some(format!("{members}, {}, {}", case.file_system, case.sync_name())),
        threads: case.threads,
        labels: vec![
            ("members", json!(case.members())),
            ("file_system", json!(case.file_system)),
            ("sync", json!(case.sync_name())),
            ("case", json!(case.name())),
        ],
        measured: vec![
            ("files_per_second", all(|s| s.files_per_second)),
            ("files_per_second_by_clock", all(|s| s.files / s.seconds)),
            ("user_seconds", all(|s| s.user_seconds)),
            ("system_seconds", all(|s| s.system_seconds)),
            ("server_system_seconds", all(|s| s.server_system_seconds)),
            ("cpu_seconds_per_file", all(Sample::cpu_seconds_per_file)),
            ("seconds", all(|s| s.seconds)),
            ("files", all(|s| s.files)),
            ("wakeups_per_stripe", all(|s| s.wakeups_per_stripe)),
            ("rescued", all(|s| s.rescued)),
            ("stuck", all(|s| f64::from(u8::from(s.is_stuck)))),
        ],
        locks: Vec::new(),
    }
}

fn case_of(row: &Row) -> String {
    row.labels[3].1.as_str().unwrap_or_default().to_owned()
}

/// The mail's two tables, and the first one without fs_mark's rounding.
pub(super) fn mails_tables(rows: &[Row]) -> Vec<(String, Table)> {
    let arrays: Vec<Row> = rows.iter().filter(|row| row.variant != "ceiling").cloned().collect();
    let by_clock = mails_form::table(&arrays, case_of, "files_per_second_by_clock", 1.0);
    let mut tables = mails_form::tables(&arrays, case_of);
    tables.insert(1, ("Files a second by the clock".to_owned(), by_clock));
    tables
}

const COLUMNS: [&str; 11] = [
    "Case",
    "Variant",
    "files/s",
    "least to most",
    "diff",
    "by clock",
    "user s",
    "system s",
    "CPU ms a file",
    "wake-ups a stripe",
    "rescued",
];

/// A line for each row.
pub(super) fn table(rows: &[Row]) -> Table {
    let first = |row: &Row| rows.iter().find(|other| case_of(other) == case_of(row));
    let lines = rows.iter().map(|row| line(row, first(row)));
    Table { head: COLUMNS.map(str::to_owned).to_vec(), lines: lines.collect() }
}

/// The first variant of a case is what the others are compared with.
fn line(row: &Row, first: Option<&Row>) -> Vec<String> {
    let scaled = |key: &str, decimals: usize, by: f64| {
        row.median(key).map_or("-".to_owned(), |value| format!("{:.decimals$}", value * by))
    };
    let files = |row: &Row| row.median("files_per_second");
    let diff = first.and_then(|first| Some(files(row)? / files(first)? - 1.0));
    let range = row.values("files_per_second").and_then(spread);
    let stuck = row.values("stuck").is_some_and(|stuck| stuck.iter().any(|stuck| *stuck > 0.0));
    let none = if stuck { "stuck" } else { "-" };
    vec![
        case_of(row),
        row.variant.to_owned(),
        scaled("files_per_second", 1, 1.0),
        range.map_or(none.to_owned(), |(least, _, most)| format!("{least:.1} to {most:.1}")),
        diff.map_or("-".to_owned(), |diff| format!("{:+.0}%", diff * 100.0)),
        scaled("files_per_second_by_clock", 1, 1.0),
        scaled("user_seconds", 2, 1.0),
        scaled("system_seconds", 2, 1.0),
        scaled("cpu_seconds_per_file", 2, 1000.0),
        scaled("wakeups_per_stripe", 3, 1.0),
        scaled("rescued", 0, 1.0),
    ]
}

/// Sentences below the table.
pub(super) fn remarks(all: &[Measured]) -> Vec<String> {
    let mut remarks = vec![
        format!(
            "files/s: what fs_mark says, files of {} MiB. Behind the array: a file by FUSE, a loop device with direct I/O, the file system. \
             `before` and `mailed`: 64 threads each serve one request and sleep where the array lets writers sleep; `ours`: the product. Medians of the runs, \
             which took turns, each on a new array.",
            FILE_BYTES >> 20
        ),
        "by clock: files by the time of the whole run. fs_mark adds up what its threads say of themselves, each rounded to a tenth of a file a second: of 64 threads that is \
         6.4, so slow runs come in such steps, the mail's too."
            .to_owned(),
        "user s: user time of the array's server. system s: system time and interrupts of the whole machine (/proc/stat), so that of the server, loop device, \
         FUSE, file system and fs_mark, and of whatever else ran. CPU ms a file: the sum of both for each file; with an array in the \
         kernel, as in the mail, all of it is system time. Both from the start of fs_mark to its end: without sync what is written later is not in it."
            .to_owned(),
        "rescued: threads that slept although they could have gone on, while the loop device stood still for a minute; the watcher woke them. stuck: it stood \
         still for another minute, and was taken away."
            .to_owned(),
    ];
    if all.iter().any(|measured| matches!(measured.case.below, Below::Disks(_))) {
        remarks.push(
            "Simulated disks take a time for each request and for the way of a head, whatever its length, and keep their data in memory."
                .to_owned(),
        );
    }
    if all.iter().any(|measured| measured.case.below == Below::Ceiling) {
        remarks.push(
            "ceiling: the same on a loop device of one file on tmpfs: neither array nor FUSE."
                .to_owned(),
        );
    }
    remarks
}
