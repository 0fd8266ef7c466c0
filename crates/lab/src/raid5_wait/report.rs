//! What was measured, for people and programs.

use drystone_core::sync::{LockClass, LockStats};
use serde_json::json;

use super::load::Sample;
use super::scene::{Members, Scene};
use super::variants::{Measured, VARIANTS};
use crate::outcome::{Row, Table, spread};

/// A row for each variant.
pub fn rows(measured: &Measured) -> Vec<Row> {
    let rows = VARIANTS.iter().zip(&measured.samples);
    rows.map(|((variant, _), samples)| row(&measured.scene, variant, samples)).collect()
}

fn row(scene: &Scene, variant: &'static str, samples: &[Sample]) -> Row {
    let all = |of: fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    Row {
        device: scene.device(),
        variant,
        note: Some(format!("{} members", scene.disks)),
        threads: scene.threads,
        labels: vec![("members", json!(scene.disks))],
        measured: vec![
            ("files_per_second", all(|s| s.files_per_second)),
            ("user_seconds", all(|s| s.user_seconds)),
            ("system_seconds", all(|s| s.system_seconds)),
            ("system_seconds_per_file", all(|s| s.system_seconds_per_file)),
            (
                "cpu_seconds_per_file",
                all(|s| (s.user_seconds + s.system_seconds) / (s.files_per_second * s.seconds)),
            ),
            ("seconds", all(|s| s.seconds)),
            ("wakeups_per_stripe", all(|s| s.wakeups_per_stripe)),
            ("rescued", all(|s| s.rescued)),
        ],
        locks: classes(samples),
    }
}

/// The classes of the array, summed over the runs.
fn classes(samples: &[Sample]) -> Vec<(String, drystone_core::sync::ClassStats)> {
    let mut locks = LockStats::default();
    samples.iter().for_each(|sample| locks += sample.locks.clone());
    let ours = [
        LockClass::StripeHash,
        LockClass::RaidDevice,
        LockClass::Stripe,
        LockClass::StripeWaiters,
        LockClass::StripeIdle,
    ];
    let used = locks.used().filter(|(class, _)| ours.contains(class));
    used.map(|(class, stats)| (class.name().to_owned(), *stats)).collect()
}

const COLUMNS: [&str; 11] = [
    "Members",
    "Variant",
    "Threads",
    "files/s",
    "least to most",
    "diff",
    "user s",
    "system s",
    "system ms a file",
    "wake-ups a stripe",
    "rescued",
];

/// A line for each row.
pub fn table(rows: &[Row]) -> Table {
    let lines = rows.iter().map(|row| {
        let before = rows.iter().find(|other| {
            (other.device, &other.note, other.threads) == (row.device, &row.note, row.threads)
        });
        line(row, before)
    });
    Table { head: COLUMNS.map(str::to_owned).to_vec(), lines: lines.collect() }
}

/// The first variant of a scene is what the others are compared with.
fn line(row: &Row, before: Option<&Row>) -> Vec<String> {
    let scaled = |key: &str, decimals: usize, by: f64| {
        row.median(key).map_or("-".to_owned(), |value| format!("{:.decimals$}", value * by))
    };
    let cell = |key, decimals| scaled(key, decimals, 1.0);
    let files = |row: &Row| row.median("files_per_second");
    let diff = before.and_then(|before| Some(files(row)? / files(before)? - 1.0));
    let range = row.values("files_per_second").and_then(spread);
    vec![
        format!("{} {}", row.labels[0].1, row.device),
        row.variant.to_owned(),
        row.threads.to_string(),
        cell("files_per_second", 1),
        range.map_or("-".to_owned(), |(least, _, most)| format!("{least:.1} to {most:.1}")),
        diff.map_or("-".to_owned(), |diff| format!("{:+.0}%", diff * 100.0)),
        cell("user_seconds", 2),
        cell("system_seconds", 2),
        scaled("system_seconds_per_file", 2, 1000.0),
        cell("wakeups_per_stripe", 3),
        cell("rescued", 0),
    ]
}

/// Sentences below the table.
pub fn remarks(all: &[Measured]) -> Vec<String> {
    let mut remarks = vec![
        "Files of 4 MiB in bios of 1 MiB, each file synced before the next, without a file system; files/s: data written, in files; as many stripes and hash locks as \
         Linux has. Processor time is that of the whole process, arrays' thread included; in a kernel all of it is system time. \
         Medians of the runs, which took turns."
            .to_owned(),
        "Locks here spin for a moment and then sleep, where a kernel's burn the processor until they are free. The mail's machine \
         had more cores, and its system time is that of a fixed number of files: compare that of a file."
            .to_owned(),
        "rescued: threads that slept although they could have gone on, while nothing moved for 0.1 s; the watcher woke them. In a \
         kernel nobody does."
            .to_owned(),
    ];
    if all.iter().any(|measured| measured.scene.members == Members::Disks) {
        remarks.push(
            "Simulated disks take a time for each request and for the way of a head, whatever the request's length, and keep no data."
                .to_owned(),
        );
    }
    remarks
}
