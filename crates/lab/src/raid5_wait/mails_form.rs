//! The mail's two tables: files a second, and processor time, each with its standard deviation.

use super::variants::VARIANTS;
use crate::row::Row;
use crate::table::Table;

/// Files a second; then the processor time of a file, where the mail has the system time of a run,
/// which is the same number of files each time.
///
/// `rows` are those of all scenes, each of which has all variants; `case` names a scene.
pub(crate) fn tables(rows: &[Row], case: fn(&Row) -> String) -> Vec<(String, Table)> {
    let table = |key, scale| table(rows, case, key, scale);
    vec![
        ("Files a second, as in the mail".to_owned(), table("files_per_second", 1.0)),
        (
            "System and user time of a file, ms, as in the mail".to_owned(),
            table("cpu_seconds_per_file", 1000.0),
        ),
    ]
}

/// A case of `raid5-wait`: its threads, and the number and kind of its members.
pub(crate) fn case(row: &Row) -> String {
    format!("{}t-{} {}", row.threads, row.labels[0].1, row.device)
}

/// One such table of the measured `key`, multiplied by `scale`.
pub(crate) fn table(rows: &[Row], case: fn(&Row) -> String, key: &str, scale: f64) -> Table {
    let head =
        ["Case", "before", "±stddev", "mailed", "±stddev", "change", "ours", "±stddev", "change"];
    let scenes = rows.chunks(VARIANTS.len());
    Table {
        head: head.map(str::to_owned).to_vec(),
        lines: scenes.map(|scene| line(scene, case(&scene[0]), key, scale)).collect(),
    }
}

/// The line of one scene: its variants, compared with the first.
fn line(scene: &[Row], case: String, key: &str, scale: f64) -> Vec<String> {
    let mut cells = vec![case];
    let before = mean_and_deviation(scene[0].values(key).unwrap_or_default());
    for (place, row) in scene.iter().enumerate() {
        let found = mean_and_deviation(row.values(key).unwrap_or_default());
        let missing = || "-".to_owned();
        cells.push(found.map_or_else(missing, |(mean, _)| format!("{:.3}", mean * scale)));
        cells
            .push(found.map_or_else(missing, |(mean, off)| format!("±{:.1}%", off / mean * 100.0)));
        if place > 0 {
            let change = before.zip(found).map(|(before, now)| now.0 / before.0 - 1.0);
            cells.push(change.map_or_else(missing, |change| format!("{:+.1}%", change * 100.0)));
        }
    }
    cells
}

/// Mean and standard deviation of a sample; `None` without values, or if a value is missing.
fn mean_and_deviation(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, (squares / (count - 1.0).max(1.0)).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(variant: &'static str, values: [f64; 3]) -> Row {
        Row {
            device: "ram",
            variant,
            threads: 64,
            labels: vec![("members", json!(4))],
            measured: vec![("files_per_second", values.to_vec())],
            ..Row::default()
        }
    }

    #[test]
    fn a_line_has_means_deviations_and_changes() {
        let rows = [
            row("before", [10.0, 20.0, 30.0]),
            row("mailed", [40.0, 40.0, 40.0]),
            row("ours", [f64::NAN, 1.0, 1.0]),
        ];
        let table = table(&rows, case, "files_per_second", 1.0);
        let expected =
            ["64t-4 ram", "20.000", "±50.0%", "40.000", "±0.0%", "+100.0%", "-", "-", "-"];
        assert_eq!(table.lines, [expected.map(str::to_owned)]);
        assert_eq!(mean_and_deviation(&[]), None);
    }
}
