//! The forms of a model's findings, the same for all models: every modelled figure has a `~`; in
//! JSON its row has `"modelled": true`.

use serde_json::{Map, Value, json};

use crate::html;
use crate::outcome::{Machine, Outcome, facts};
use crate::table::{PERCENT, THOUSANDS, Table};

/// A part of the page: a title, a table, sentences.
pub type Part = (String, Table, Vec<String>);

/// The findings of a model, for people and programs.
pub struct ModelOutcome {
    /// The experiment that is modelled.
    pub(crate) name: &'static str,
    pub(crate) date: String,
    pub(crate) machine: Machine,
    pub(crate) parameters: Vec<(&'static str, Value)>,
    pub(crate) parts: Vec<Part>,
    /// Keys of the JSON that not every outcome has: `inputs`, `rows`, `lacks` and the model's own.
    pub(crate) figures: Vec<(&'static str, Value)>,
}

/// A table for people.
pub(crate) fn table(head: &[&str], lines: Vec<Vec<String>>) -> Table {
    assert!(lines.iter().all(|line| line.len() == head.len()), "a cell for each of {head:?}");
    Table { head: head.iter().map(|cell| (*cell).to_owned()).collect(), lines }
}

/// IOPS as every modelled figure is shown.
pub(crate) fn modelled(iops: f64) -> String {
    format!("~{}", THOUSANDS.text(iops))
}

pub(crate) fn percent(share: f64) -> String {
    PERCENT.text(share)
}

pub(crate) fn ns(ps: u64) -> String {
    format!("{:.1}", ps as f64 / 1000.0)
}

impl ModelOutcome {
    fn about(&self) -> String {
        format!(
            "Model of {}: what is modelled has a ~, all else was measured in this run",
            self.name
        )
    }

    fn facts(&self) -> String {
        facts(&self.machine, &self.date)
    }

    fn setting(&self) -> String {
        let shown = |(key, value): &(&str, Value)| match value {
            Value::String(text) => format!("{key} {text}"),
            other => format!("{key} {other}"),
        };
        self.parameters.iter().map(shown).collect::<Vec<String>>().join(", ")
    }

    /// The outcome for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.about(), self.facts(), self.setting());
        for (title, table, remarks) in &self.parts {
            text.push_str(&format!("\n{title}\n\n{}", table.text()));
            remarks.iter().for_each(|remark| text.push_str(&format!("{remark}\n")));
        }
        text
    }

    /// The outcome as one page without external files.
    pub fn html(&self) -> String {
        let heads = [format!("model of {}", self.name), self.about(), self.facts(), self.setting()];
        html::parts(&heads, &self.parts)
    }

    /// The outcome for programs: the shape of every experiment, with `modelled` in each row.
    pub fn json(&self) -> Value {
        let Machine { cpu, cores, kernel } = &self.machine;
        let map = |all: &[(&str, Value)]| -> Map<String, Value> {
            all.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        };
        let mut found = json!({
            "experiment": format!("model {}", self.name),
            "date": self.date,
            "version": Outcome::version(),
            "machine": { "cpu": cpu, "cores": cores, "kernel": kernel },
            "parameters": map(&self.parameters),
        });
        for (key, value) in map(&self.figures) {
            found[key] = value;
        }
        found
    }
}
