//! Rows: the figures of one variant in one case, and their forms in tables.
//!
//! Invariant: a measured key has one value for each run, in the order of the runs.

use drystone_core::sync::ClassStats;
use serde_json::{Map, Value, json};

use crate::table::Unit;

/// One variant on one device with so many threads.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The device.
    pub device: &'static str,
    /// `before`, `mailed`, `ours` or `none`.
    pub variant: &'static str,
    /// The difference from the variant's usual row, if there is one.
    pub note: Option<String>,
    /// Threads that submitted.
    pub threads: u32,
    /// Further values that identify the row, by key.
    pub labels: Vec<(&'static str, Value)>,
    /// Measured values by key: one for each run.
    pub measured: Vec<(&'static str, Vec<f64>)>,
    /// Classes of locks with their figures, summed over the runs.
    pub locks: Vec<(String, ClassStats)>,
}

/// A figure: its key in the JSON, and its value in the sample of a run.
pub(crate) type Figure<'a, S> = (&'static str, &'a dyn Fn(&S) -> f64);

/// The `figures` of all runs.
pub(crate) fn measured<S>(
    samples: &[S],
    figures: &[Figure<'_, S>],
) -> Vec<(&'static str, Vec<f64>)> {
    figures.iter().map(|(key, of)| (*key, samples.iter().map(of).collect())).collect()
}

/// The words around the least and the greatest run of a range.
pub(crate) type Range = [&'static str; 3];
/// `[1 .. 2]`
pub(crate) const BRACKETS: Range = ["[", " .. ", "]"];
/// `1 to 2`
pub(crate) const WORDS: Range = ["", " to ", ""];

impl Row {
    /// The values of `key`, if it was measured.
    pub fn values(&self, key: &str) -> Option<&[f64]> {
        let found = self.measured.iter().find(|(name, _)| *name == key);
        found.map(|(_, values)| &values[..])
    }

    /// The median of `key`; `None` if it was not measured in every run.
    pub fn median(&self, key: &str) -> Option<f64> {
        spread(self.values(key)?).map(|(_, median, _)| median)
    }

    /// The median of `key` in a `unit`.
    pub(crate) fn text(&self, key: &str, unit: Unit) -> Option<String> {
        self.median(key).map(|median| unit.text(median))
    }

    /// The least and the greatest run of `key` in a `unit`.
    pub(crate) fn range(&self, key: &str, unit: Unit, around: Range) -> Option<String> {
        let (least, _, most) = spread(self.values(key)?)?;
        let [open, between, close] = around;
        Some(format!("{open}{}{between}{}{close}", unit.text(least), unit.text(most)))
    }

    /// The rate, for pictures: I/Os or files a second, with the word for it.
    pub(crate) fn rate(&self) -> Option<(&'static str, &[f64])> {
        let rates = [("IOPS", "iops"), ("files a second", "files_per_second")];
        rates.into_iter().find_map(|(word, key)| Some((word, self.values(key)?)))
    }

    /// The name in tables.
    pub fn name(&self) -> String {
        match &self.note {
            Some(note) => format!("{}, {note}", self.variant),
            None => self.variant.to_owned(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let mut row = Map::new();
        row.insert("device".to_owned(), json!(self.device));
        row.insert("variant".to_owned(), json!(self.variant));
        row.insert("threads".to_owned(), json!(self.threads));
        if let Some(note) = &self.note {
            row.insert("note".to_owned(), json!(note));
        }
        row.extend(self.labels.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        row.extend(self.measured.iter().map(|(key, values)| ((*key).to_owned(), json!(values))));
        Value::Object(row)
    }
}

/// A row, and the one that it is compared with.
pub(crate) struct Compared<'a> {
    pub(crate) row: &'a Row,
    pub(crate) base: Option<&'a Row>,
}

impl<'a> Compared<'a> {
    /// Each of `rows`, beside the first for which `is_base` of the row and that one holds.
    pub(crate) fn all(
        rows: &'a [Row],
        is_base: impl Fn(&Row, &Row) -> bool,
    ) -> impl Iterator<Item = Self> {
        rows.iter().map(move |row| {
            let base = rows.iter().find(|base| is_base(row, base));
            Compared { row, base }
        })
    }

    /// The relative difference of the median of `key` from that of the base; `None` for the base
    /// itself.
    pub(crate) fn change(&self, key: &str, unit: Unit) -> Option<String> {
        gain(self.row, self.other(), key).map(|part| unit.change(part))
    }

    /// The base, unless the row is the base itself.
    pub(crate) fn other(&self) -> Option<&'a Row> {
        self.base.filter(|base| !std::ptr::eq(*base, self.row))
    }
}

/// The relative difference of the median of `key` in `row` from that in `base`.
pub(crate) fn gain(row: &Row, base: Option<&Row>, key: &str) -> Option<f64> {
    Some(row.median(key)? / base?.median(key)? - 1.0)
}

/// The least, the median and the greatest value; `None` without values, or if a value is missing.
pub(crate) fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    };
    Some((sorted[0], median, sorted[sorted.len() - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::THOUSANDS;

    #[test]
    fn medians_stand_between_the_extremes() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[1.0, f64::NAN]), None, "what was not measured has no median");
    }

    fn row(variant: &'static str, iops: &[f64]) -> Row {
        Row { variant, measured: vec![("iops", iops.to_vec())], ..Row::default() }
    }

    #[test]
    fn figures_are_taken_from_every_run() {
        let twice: Figure<'_, f64> = ("twice", &|sample| 2.0 * sample);
        assert_eq!(measured(&[1.0, 2.0], &[twice]), [("twice", vec![2.0, 4.0])]);
    }

    #[test]
    fn ranges_and_gains_are_those_of_known_figures() {
        let rows = [row("before", &[1e6, 3e6]), row("ours", &[f64::NAN]), row("none", &[3e6])];
        assert_eq!(rows[0].range("iops", THOUSANDS, BRACKETS).as_deref(), Some("[1000K .. 3000K]"));
        assert_eq!(rows[0].range("iops", THOUSANDS, WORDS).as_deref(), Some("1000K to 3000K"));
        assert_eq!(rows[1].range("iops", THOUSANDS, WORDS), None);
        let compared: Vec<_> = Compared::all(&rows, |_, base| base.variant == "before").collect();
        let gains: Vec<_> = compared.iter().map(|it| gain(it.row, it.other(), "iops")).collect();
        assert_eq!(gains, [None, None, Some(0.5)]);
        assert_eq!(gain(&rows[0], compared[0].base, "iops"), Some(0.0));
    }

    #[test]
    fn json_has_null_where_nothing_is_known() {
        let row = Row { note: Some("a".to_owned()), threads: 2, ..row("ours", &[f64::NAN, 1.0]) };
        let expected = json!({
            "device": "", "variant": "ours", "threads": 2, "note": "a", "iops": [null, 1.0]
        });
        assert_eq!(row.json(), expected);
    }
}
