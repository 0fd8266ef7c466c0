//! The measured figures, for people and programs.

use serde_json::json;

use super::case::{Below, Case, FILE_BYTES};
use super::load::Sample;
use crate::raid5_wait::mails_form;
use crate::row::{Compared, Row, WORDS, gain, measured};
use crate::table::{BARE_MILLISECONDS, Columns, Table, Unit, WHOLE_PERCENT};

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
        measured: measured(
            samples,
            &[
                ("files_per_second", &|s| s.files_per_second),
                ("files_per_second_by_clock", &|s| s.files / s.seconds),
                ("user_seconds", &|s| s.user_seconds),
                ("system_seconds", &|s| s.system_seconds),
                ("server_system_seconds", &|s| s.server_system_seconds),
                ("cpu_seconds_per_file", &Sample::cpu_seconds_per_file),
                ("seconds", &|s| s.seconds),
                ("files", &|s| s.files),
                ("wakeups_per_stripe", &|s| s.wakeups_per_stripe),
                ("rescued", &|s| s.rescued),
                ("stuck", &|s| f64::from(u8::from(s.is_stuck))),
            ],
        ),
        ..Row::default()
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

/// A line for each row, compared with the first variant of its case.
pub(super) fn table(rows: &[Row]) -> Table {
    Columns::of(Compared::all(rows, |row, base| case_of(base) == case_of(row)))
        .text("Case", |it| case_of(it.row))
        .text("Variant", |it| it.row.variant.to_owned())
        .figure("files/s", |it| it.row.text("files_per_second", Unit::number(1)))
        .figure("least to most", |it| {
            let range = it.row.range("files_per_second", Unit::number(1), WORDS);
            range.or_else(|| is_stuck(it.row).then(|| "stuck".to_owned()))
        })
        .figure("diff", |it| {
            gain(it.row, it.base, "files_per_second").map(|part| WHOLE_PERCENT.change(part))
        })
        .figure("by clock", |it| it.row.text("files_per_second_by_clock", Unit::number(1)))
        .figure("user s", |it| it.row.text("user_seconds", Unit::number(2)))
        .figure("system s", |it| it.row.text("system_seconds", Unit::number(2)))
        .figure("CPU ms a file", |it| it.row.text("cpu_seconds_per_file", BARE_MILLISECONDS))
        .figure("wake-ups a stripe", |it| it.row.text("wakeups_per_stripe", Unit::number(3)))
        .figure("rescued", |it| it.row.text("rescued", Unit::number(0)))
        .table()
}

/// True if a run of the row hung.
fn is_stuck(row: &Row) -> bool {
    row.values("stuck").is_some_and(|stuck| stuck.iter().any(|stuck| *stuck > 0.0))
}

/// Sentences below the table.
pub(super) fn remarks(all: &[Measured]) -> Vec<String> {
    let mut remarks = vec![
        format!(
            "files/s: what fs_mark says, files of {} MiB. Behind the array: a file by FUSE, a \
             loop device with direct I/O, the file system. `before` and `mailed`: 64 threads \
             each serve one request and sleep where the array lets writers sleep; `ours`: the \
             product. Medians of the runs, which took turns, each on a new array.",
            FILE_BYTES >> 20
        ),
        "by clock: files by the time of the whole run. fs_mark adds up what its threads say of \
         themselves, each rounded to a tenth of a file a second: of 64 threads that is 6.4, so \
         slow runs come in such steps, the mail's too."
            .to_owned(),
        "user s: user time of the array's server. system s: system time and interrupts of the \
         whole machine (/proc/stat), so that of the server, loop device, FUSE, file system and \
         fs_mark, and of whatever else ran. CPU ms a file: the sum of both for each file; with \
         an array in the kernel, as in the mail, all of it is system time. Both from the start \
         of fs_mark to its end: without sync what is written later is not in it."
            .to_owned(),
        "rescued: threads that slept although they could have gone on, while the loop device \
         stood still for a minute; the watcher woke them. stuck: it stood still for another \
         minute, and was taken away."
            .to_owned(),
    ];
    if all.iter().any(|measured| matches!(measured.case.below, Below::Disks(_))) {
        remarks.push(
            "Simulated disks take a time for each request and for the way of a head, whatever \
             its length, and keep their data in memory."
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
