//! The measured figures, for people and programs.

use drystone_core::sync::{LockClass, LockStats};
use serde_json::json;

use super::load::Sample;
use super::scene::{Members, Scene};
use super::variants::{Measured, VARIANTS};
use crate::row::{Compared, Row, WORDS, gain, measured};
use crate::table::{BARE_MILLISECONDS, Columns, Table, Unit, WHOLE_PERCENT};

/// A row for each variant.
pub fn rows(measured: &Measured) -> Vec<Row> {
    let rows = VARIANTS.iter().zip(&measured.samples);
    rows.map(|((variant, _), samples)| row(&measured.scene, variant, samples)).collect()
}

fn row(scene: &Scene, variant: &'static str, samples: &[Sample]) -> Row {
    Row {
        device: scene.device(),
        variant,
        note: Some(format!("{} members", scene.disks)),
        threads: scene.threads,
        labels: vec![("members", json!(scene.disks))],
        measured: measured(
            samples,
            &[
                ("files_per_second", &|s| s.files_per_second),
                ("user_seconds", &|s| s.user_seconds),
                ("system_seconds", &|s| s.system_seconds),
                ("system_seconds_per_file", &|s| s.system_seconds_per_file),
                ("cpu_seconds_per_file", &|s| {
                    (s.user_seconds + s.system_seconds) / (s.files_per_second * s.seconds)
                }),
                ("seconds", &|s| s.seconds),
                ("wakeups_per_stripe", &|s| s.wakeups_per_stripe),
                ("rescued", &|s| s.rescued),
            ],
        ),
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

/// A line for each row, compared with the first variant of its scene.
pub fn table(rows: &[Row]) -> Table {
    let is_base = |row: &Row, base: &Row| {
        (base.device, &base.note, base.threads) == (row.device, &row.note, row.threads)
    };
    Columns::of(Compared::all(rows, is_base))
        .text("Members", |it| format!("{} {}", it.row.labels[0].1, it.row.device))
        .text("Variant", |it| it.row.variant.to_owned())
        .text("Threads", |it| it.row.threads.to_string())
        .figure("files/s", |it| it.row.text("files_per_second", Unit::number(1)))
        .figure("least to most", |it| it.row.range("files_per_second", Unit::number(1), WORDS))
        .figure("diff", |it| {
            gain(it.row, it.base, "files_per_second").map(|part| WHOLE_PERCENT.change(part))
        })
        .figure("user s", |it| it.row.text("user_seconds", Unit::number(2)))
        .figure("system s", |it| it.row.text("system_seconds", Unit::number(2)))
        .figure("system ms a file", |it| it.row.text("system_seconds_per_file", BARE_MILLISECONDS))
        .figure("wake-ups a stripe", |it| it.row.text("wakeups_per_stripe", Unit::number(3)))
        .figure("rescued", |it| it.row.text("rescued", Unit::number(0)))
        .table()
}

/// Sentences below the table.
pub fn remarks(all: &[Measured]) -> Vec<String> {
    let mut remarks = vec![
        "Files of 4 MiB in bios of 1 MiB, each file synced before the next, without a file \
         system; files/s: data written, in files; as many stripes and hash locks as Linux has. \
         Processor time is that of the whole process, arrays' thread included; in a kernel all \
         of it is system time. Medians of the runs, which took turns."
            .to_owned(),
        "Locks here spin for a moment and then sleep, where a kernel's burn the processor until \
         they are free. The mail's machine had more cores, and its system time is that of a \
         fixed number of files: compare that of a file."
            .to_owned(),
        "rescued: threads that slept although they could have gone on, while nothing moved for \
         0.1 s; the watcher woke them. In a kernel nobody does."
            .to_owned(),
    ];
    if all.iter().any(|measured| measured.scene.members == Members::Disks) {
        remarks.push(
            "Simulated disks take a time for each request and for the way of a head, whatever \
             the request's length, and keep no data."
                .to_owned(),
        );
    }
    remarks
}
