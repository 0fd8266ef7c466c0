//! The outcome of an experiment, and its shapes for people and programs.
//!
//! Invariant: the JSON of every experiment has one shape (`docs/lab/README.md`).

use drystone_core::sync::{ClassStats, lock_table};
use serde_json::{Map, Value, json};

use crate::Options;
use crate::row::Row;
use crate::table::Table;
use drystone_bench::machine;

/// The machine on which it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: u64,
    /// The kernel's version.
    pub kernel: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let found = machine::describe();
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        let cores = found["cores"].as_u64().unwrap_or(1);
        Machine { cpu: text("cpu"), cores, kernel: text("kernel") }
    }
}

/// A number of threads with its word.
pub(crate) fn threads_text(threads: u32) -> String {
    format!("{threads} {}", if threads == 1 { "thread" } else { "threads" })
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The designs that it compares.
    pub about: &'static str,
    /// When it began, in UTC.
    pub date: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The parameters of the run.
    pub parameters: Vec<(&'static str, Value)>,
    /// Everything that was measured.
    pub rows: Vec<Row>,
    /// The rows for people.
    pub table: Table,
    /// Numbers of threads in `table`.
    pub shown_threads: Vec<u32>,
    /// Further tables, with their titles.
    pub more: Vec<(String, Table)>,
    /// Plots instead of those of IOPS.
    pub plots: Vec<Plot>,
    /// Sentences below the table: what its columns mean and what it cannot show.
    pub remarks: Vec<String>,
}

/// A picture of rates over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its title, with the unit of its rates.
    pub title: String,
    /// Its lines.
    pub curves: Vec<Curve>,
}

/// One rate in a [`Plot`]: points of time, in seconds, and rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// The requested rate.
    pub asked: Vec<(f64, f64)>,
    /// The achieved rate.
    pub given: Vec<(f64, f64)>,
}

/// One line on a machine, a date and the version.
pub(crate) fn facts(machine: &Machine, date: &str) -> String {
    let Machine { cpu, cores, kernel } = machine;
    let debug = if cfg!(debug_assertions) { " (debug build)" } else { "" };
    let version = Outcome::version();
    format!("{cpu}, {cores} cores, Linux {kernel}; drystone {version}{debug}; {date}")
}

impl Outcome {
    /// Adds a remark if the experiment had to end early.
    pub(crate) fn ended_early(mut self, options: &Options) -> Self {
        if options.stop.is_asked() {
            let text =
                "Stopped before its end: what was measured until then, some of it in fewer runs.";
            self.remarks.insert(0, text.to_owned());
            self.parameters.push(("stopped_early", json!(true)));
        }
        self
    }

    /// The version of Drystone that ran.
    pub fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// One line on the machine, the date and the version.
    pub fn facts(&self) -> String {
        facts(&self.machine, &self.date)
    }

    /// The parameters in one line.
    pub fn setting(&self) -> String {
        let shown = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let parts: Vec<String> =
            self.parameters.iter().map(|(key, value)| format!("{key} {}", shown(value))).collect();
        parts.join(", ")
    }

    /// The outcome for a terminal.
    pub fn text(&self) -> String {
        let title = format!("{}: {}", self.experiment, self.about);
        let mut text = format!("{title}\n{}\n{}\n\n", self.facts(), self.setting());
        text.push_str(&self.table.text());
        text.push('\n');
        for (title, table) in &self.more {
            text.push_str(&format!("{title}\n{}\n", table.text()));
        }
        self.remarks.iter().for_each(|remark| text.push_str(&format!("{remark}\n")));
        let tables = self.lock_tables();
        if !tables.is_empty() {
            text.push_str("\nLock statistics, all runs together (times in us):\n");
        }
        for (title, table) in tables {
            text.push_str(&format!("\n{title}\n{table}"));
        }
        text
    }

    /// Lock statistics by device and number of threads, with a line for each variant and class.
    pub(crate) fn lock_tables(&self) -> Vec<(String, String)> {
        let mut titles: Vec<(&str, u32)> = Vec::new();
        for row in self.rows.iter().filter(|row| self.shown_threads.contains(&row.threads)) {
            if !titles.contains(&(row.device, row.threads)) && !row.locks.is_empty() {
                titles.push((row.device, row.threads));
            }
        }
        let table = |(device, threads): (&str, u32)| {
            let rows =
                self.rows.iter().filter(|row| (row.device, row.threads) == (device, threads));
            let lines: Vec<(String, &ClassStats)> = rows
                .flat_map(|row| row.locks.iter().map(move |(class, stats)| (row, class, stats)))
                .map(|(row, class, stats)| (format!("{}: {class}", row.name()), stats))
                .collect();
            let title = format!("{device}, {}", threads_text(threads));
            (title, lock_table(lines.iter().map(|(name, stats)| (name.as_str(), *stats))))
        };
        titles.into_iter().map(table).collect()
    }

    /// The outcome for programs.
    pub fn json(&self) -> Value {
        let Machine { cpu, cores, kernel } = &self.machine;
        let parameters: Map<String, Value> =
            self.parameters.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        json!({
            "experiment": self.experiment,
            "date": self.date,
            "version": Self::version(),
            "machine": { "cpu": cpu, "cores": cores, "kernel": kernel },
            "parameters": parameters,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<Value>>(),
        })
    }

    /// The outcome as the section of a page in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("## A run\n\n{}\n\n{}\n\n", self.facts(), self.setting());
        text.push_str(&self.table.markdown());
        for (title, table) in &self.more {
            text.push_str(&format!("\n### {title}\n\n{}", table.markdown()));
        }
        text.push('\n');
        self.remarks.iter().for_each(|remark| text.push_str(&format!("* {remark}\n")));
        text
    }
}
