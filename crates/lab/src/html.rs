//! An outcome as one HTML page without external files: it contains its style, its table, and charts
//! as SVG. Colours are variables, so that it is readable on light and dark backgrounds.

mod chart;
mod escape;

use std::fmt::Write;

use crate::outcome::{Outcome, Plot};
use crate::row::Row;
use crate::table::Table;
use escape::escape;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1b1b; --ground: #ffffff; --line: #c8c8c8; \
  --faint: #5c5c5c;
  --c0: #b3412e; --c1: #b07c00; --c2: #0b6e4f; --c3: #35a37c; --c4: #3a5fa8; --c5: #8a4f9e; --c6: \
  #2a8c9e; --c7: #77695c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --ground: #161616; --line: #4a4a4a; --faint: #a8a8a8;
    --c0: #f0836f; --c1: #e0b64a; --c2: #4cc79a; --c3: #9be3c6; --c4: #8fb0f2; --c5: #cf9be0; \
    --c6: #7dd0e0; --c7: #c2b5a8; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--ground); \
  margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; \
  white-space: nowrap; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.wide { overflow-x: auto; } .faint { color: var(--faint); } pre { font-size: 12px; } h2 \
{ margin-top: 2rem; }
svg { display: block; width: 100%; height: auto; max-width: 60rem; } svg text \
{ fill: var(--text); font-size: 12px; }
svg .axis { stroke: var(--line); stroke-width: 1; } svg .spread \
{ stroke: var(--text); stroke-width: 1.5; fill: none; }
svg .asked { fill: none; stroke-width: 1.5; stroke-dasharray: 6 4; }
";

impl Outcome {
    /// The outcome as one page without external files.
    pub fn html(&self) -> String {
        page(self)
    }
}

fn page(outcome: &Outcome) -> String {
    let mut page = head(&[outcome.experiment, outcome.about, &outcome.facts(), &outcome.setting()]);
    page.push_str(&table(&outcome.table, &outcome.remarks));
    for (title, lines) in &outcome.more {
        let _ = write!(page, "<h2>{}</h2>\n{}", escape(title), table(lines, &[]));
    }
    match &outcome.plots[..] {
        [] => page.push_str(&charts(outcome)),
        plots => plots.iter().for_each(|plot| page.push_str(&over_time(plot))),
    }
    let tables = outcome.lock_tables();
    if !tables.is_empty() {
        page.push_str("<h2>Lock statistics</h2>\n<p>All runs together; times in &micro;s.</p>\n");
    }
    for (title, table) in tables {
        let _ = write!(
            page,
            "<h3>{}</h3>\n<pre class=\"wide\">{}</pre>\n",
            escape(&title),
            escape(&table)
        );
    }
    page.push_str("</body></html>\n");
    page
}

/// A page of tables only. Its heads are name, subject, facts and setting; then comes each table
/// with its title and its sentences.
pub fn parts(heads: &[String; 4], parts: &[(String, Table, Vec<String>)]) -> String {
    let mut page = head(&heads.each_ref().map(String::as_str));
    for (title, lines, remarks) in parts {
        let _ = write!(page, "<h2>{}</h2>\n{}", escape(title), table(lines, remarks));
    }
    page.push_str("</body></html>\n");
    page
}

fn head(heads: &[&str; 4]) -> String {
    let [name, about, facts, setting] = heads.map(escape);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>drystone lab: {name}</title>\n<style>{STYLE}</style></head>\n<body>\n\
         <h1>{name}</h1>\n\
         <p>{about}</p>\n<p class=\"faint\">{facts}<br>{setting}</p>\n"
    )
}

fn table(table: &Table, remarks: &[String]) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let lines = table.lines.iter().map(|line| row(line, "td")).collect::<String>();
    let remarks = remarks.iter().map(|text| format!("<p>{}</p>\n", escape(text)));
    format!(
        "<div class=\"wide\"><table>\n{}{lines}</table></div>\n{}",
        row(&table.head, "th"),
        remarks.collect::<String>()
    )
}

fn charts(outcome: &Outcome) -> String {
    let mut text = String::new();
    for device in in_order(outcome.rows.iter().map(|row| row.device)) {
        let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.device == device).collect();
        let names = in_order(rows.iter().map(|row| row.name()));
        let what = rows.iter().find_map(|row| row.rate()).map_or("IOPS", |(what, _)| what);
        let device = escape(device);
        let _ = write!(
            text,
            "<h2>{device}: {what}</h2>\n<p>Bars are medians; the line on each goes from the least \
             to the greatest run.</p>\n{}",
            chart::bars(&rows, &names, &outcome.shown_threads)
        );
        let threads = rows.iter().map(|row| row.threads).collect::<std::collections::BTreeSet<_>>();
        if threads.len() > 1 {
            let _ = write!(
                text,
                "<h2>{device}: {what} over threads</h2>\n{}",
                chart::lines(&rows, &names, &threads.into_iter().collect::<Vec<u32>>())
            );
        }
    }
    text
}

fn over_time(plot: &Plot) -> String {
    format!("<h2>{}</h2>\n{}", escape(&plot.title), chart::over_time(plot))
}

/// Each of `all` once, in the order of first appearance.
fn in_order<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Machine;

    fn row(variant: &'static str, threads: u32, iops: &[f64]) -> Row {
        let measured = vec![("iops", iops.to_vec())];
        Row { device: "null", variant, threads, measured, ..Row::default() }
    }

    #[test]
    fn a_page_shows_every_row_and_needs_nothing_else() {
        let outcome = Outcome {
            experiment: "x",
            about: "a < b & c",
            date: "2026-01-01T00:00:00Z".to_owned(),
            machine: Machine { cpu: "cpu".to_owned(), cores: 2, kernel: "6".to_owned() },
            parameters: vec![],
            rows: vec![
                row("before", 1, &[1e6, 2e6, 3e6]),
                row("ours", 1, &[4e6]),
                row("ours", 8, &[f64::NAN]),
            ],
            table: Table {
                head: ["Device", "Variant"].map(str::to_owned).to_vec(),
                lines: vec![["null", "ours"].map(str::to_owned).to_vec()],
            },
            shown_threads: vec![1],
            more: vec![],
            plots: vec![],
            remarks: vec!["A sentence.".to_owned()],
        };
        let page = page(&outcome);
        assert!(page.contains("a &lt; b &amp; c") && page.contains("<td>ours</td>"), "{page}");
        // Two bars with their spread, and two legends.
        assert_eq!(page.matches("class=\"bar\"").count(), 2, "{page}");
        assert_eq!(page.matches("<svg").count(), 2);
        for outside in ["http", "src=", "href=", "url(", "@import", "NaN"] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }
}
