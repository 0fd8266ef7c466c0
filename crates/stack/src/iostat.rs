//! The columns of `iostat -x` from two snapshots of the counters.
//!
//! Source: iostat(1) of sysstat for names, order and formulas; kB there are KiB.

use serde_json::{Map, Value, json};

use crate::runtime::{DiskStats, Snapshot};

/// Columns after the device's name, in the order of `iostat -x`.
pub const COLUMNS: [&str; 22] = [
    "r/s", "rkB/s", "rrqm/s", "%rrqm", "r_await", "rareq-sz", "w/s", "wkB/s", "wrqm/s", "%wrqm",
    "w_await", "wareq-sz", "d/s", "dkB/s", "drqm/s", "%drqm", "d_await", "dareq-sz", "f/s",
    "f_await", "aqu-sz", "%util",
];

/// One device's line.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The device.
    pub device: String,
    /// Values in the order of [`COLUMNS`].
    pub values: [f64; 22],
}

/// The rows for the time from `before` to `now`; without `before`, since the stack started. Devices
/// that did not exist before count from zero.
pub fn rows(before: Option<&Snapshot>, now: &Snapshot) -> Vec<Row> {
    let start_ns = before.map_or(0, |before| before.uptime_ns);
    let seconds = now.uptime_ns.saturating_sub(start_ns) as f64 / 1e9;
    let none = DiskStats::default();
    let earlier = |name: &str| {
        let devices = before.map_or(&[][..], |before| &before.devices);
        devices.iter().find(|stats| stats.device == name).unwrap_or(&none)
    };
    now.devices.iter().map(|stats| row(earlier(&stats.device), stats, seconds)).collect()
}

fn row(before: &DiskStats, now: &DiskStats, seconds: f64) -> Row {
    let (old, new) = (before.numbers(), now.numbers());
    let delta = |index: usize| new[index].saturating_sub(old[index]) as f64;
    let per_second = |value: f64| ratio(value, seconds);
    // The three groups of four numbers: completed, merged, sectors, time.
    let group = |first: usize| {
        let (done, merged, kib, ms) =
            (delta(first), delta(first + 1), delta(first + 2) / 2.0, delta(first + 3));
        [
            per_second(done),
            per_second(kib),
            per_second(merged),
            100.0 * ratio(merged, merged + done),
            ratio(ms, done),
            ratio(kib, done),
        ]
    };
    let mut values = [0.0; 22];
    for (at, first) in [(0, 0), (6, 4), (12, 11)] {
        values[at..at + 6].copy_from_slice(&group(first));
    }
    values[18] = per_second(delta(15));
    values[19] = ratio(delta(16), delta(15));
    values[20] = ratio(delta(10), seconds * 1000.0);
    values[21] = (100.0 * ratio(delta(9), seconds * 1000.0)).min(100.0);
    Row { device: now.device.clone(), values }
}

/// `a / b`, or 0 if `b` is 0.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// The lines as a table with a header.
pub fn table(rows: &[Row]) -> String {
    let name_width = rows.iter().map(|row| row.device.len()).max().unwrap_or(0).max(14);
    let cells: Vec<[String; 22]> =
        rows.iter().map(|row| row.values.map(|value| format!("{value:.2}"))).collect();
    let width = |column: usize| {
        let widest = cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
        widest.max(COLUMNS[column].len())
    };
    let line = |name: &str, cells: &[String; 22]| {
        let cells: Vec<String> = cells
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:>width$}", width = width(column)))
            .collect();
        format!("{name:<name_width$} {}\n", cells.join(" "))
    };
    let mut out = line("Device", &COLUMNS.map(str::to_owned));
    for (row, cells) in rows.iter().zip(&cells) {
        out.push_str(&line(&row.device, cells));
    }
    out
}

/// The lines as JSON: one object for each device, keys named as the columns.
pub fn json(rows: &[Row]) -> Value {
    let object = |row: &Row| {
        let mut object = Map::from_iter([("device".to_owned(), json!(row.device))]);
        object.extend(COLUMNS.iter().zip(row.values).map(|(key, value)| {
            let rounded = (value * 100.0).round() / 100.0;
            ((*key).to_owned(), json!(rounded))
        }));
        Value::Object(object)
    };
    Value::Array(rows.iter().map(object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(seconds: u64, factor: u64) -> Snapshot {
        let stats = DiskStats {
            device: "d0".to_owned(),
            reads: 100 * factor,
            reads_merged: 300 * factor,
            sectors_read: 800 * factor,
            read_ms: 50 * factor,
            writes: 10 * factor,
            sectors_written: 20 * factor,
            write_ms: 30 * factor,
            in_flight: 7,
            busy_ms: 500 * factor,
            weighted_ms: 1500 * factor,
            flushes: 4 * factor,
            flush_ms: 2 * factor,
            ..DiskStats::default()
        };
        Snapshot { uptime_ns: seconds * 1_000_000_000, devices: vec![stats] }
    }

    fn value(rows: &[Row], column: &str) -> f64 {
        rows[0].values[COLUMNS.iter().position(|name| *name == column).unwrap()]
    }

    #[test]
    fn columns_are_differences_over_the_interval() {
        let rows = rows(Some(&snapshot(10, 1)), &snapshot(12, 3));
        let expected = [
            ("r/s", 100.0),
            ("rkB/s", 400.0),
            ("rrqm/s", 300.0),
            ("%rrqm", 75.0),
            ("r_await", 0.5),
            ("rareq-sz", 4.0),
            ("w/s", 10.0),
            ("w_await", 3.0),
            ("wareq-sz", 1.0),
            ("d/s", 0.0),
            ("%drqm", 0.0),
            ("f/s", 4.0),
            ("f_await", 0.5),
            ("aqu-sz", 1.5),
            ("%util", 50.0),
        ];
        for (column, wanted) in expected {
            assert_eq!(value(&rows, column), wanted, "{column}");
        }
    }

    #[test]
    fn the_first_report_is_since_the_start_and_no_time_is_no_rate() {
        assert_eq!(value(&rows(None, &snapshot(10, 1)), "r/s"), 10.0);
        assert_eq!(value(&rows(None, &snapshot(0, 1)), "r/s"), 0.0);
    }

    #[test]
    fn counters_that_started_again_are_not_negative() {
        assert_eq!(value(&rows(Some(&snapshot(10, 9)), &snapshot(12, 1)), "r/s"), 0.0);
    }

    #[test]
    fn the_table_has_sysstats_header_and_json_its_keys() {
        let rows = rows(None, &snapshot(10, 1));
        let text = table(&rows);
        let header: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(header[0], "Device");
        assert_eq!(header[1..], COLUMNS);
        assert_eq!(text.lines().nth(1).unwrap().split_whitespace().count(), 23);
        assert_eq!(json(&rows)[0]["%util"], 5.0);
        assert_eq!(json(&rows)[0]["device"], "d0");
    }
}
