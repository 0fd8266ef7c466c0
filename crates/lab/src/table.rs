//! Tables for people: units, columns, and the lines that fill them.
//!
//! [`Columns`] takes a column's title together with the function of its cells, so that the two
//! always match. Text, Markdown and HTML are forms of the same [`Table`].
//!
//! Invariants:
//! * A line has as many cells as the head.
//! * An unknown figure is a dash.

use std::fmt::Write;

/// The cell of an unknown figure.
const UNKNOWN: &str = "-";

/// The way to write a figure: its factor, its decimals, and its unit's sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    factor: f64,
    decimals: usize,
    sign: &'static str,
}

/// A share, in percent.
pub(crate) const PERCENT: Unit = Unit { factor: 100.0, decimals: 1, sign: "%" };
/// A difference as a share, in whole percent.
pub(crate) const WHOLE_PERCENT: Unit = Unit { decimals: 0, ..PERCENT };
/// A small share, in thousandths of a percent.
pub(crate) const FINE_PERCENT: Unit = Unit { decimals: 3, ..PERCENT };
/// I/Os a second as the mails write them: 879K.
pub(crate) const THOUSANDS: Unit = Unit { factor: 1e-3, decimals: 0, sign: "K" };
/// I/Os a second of fast devices: 108.40M.
pub(crate) const MILLIONS: Unit = Unit { factor: 1e-6, decimals: 2, sign: "M" };
/// Nanoseconds, written as milliseconds.
pub(crate) const MILLISECONDS: Unit = Unit { factor: 1e-6, decimals: 1, sign: " ms" };
/// Nanoseconds.
pub(crate) const NANOSECONDS: Unit = Unit { factor: 1.0, decimals: 1, sign: " ns" };
/// Seconds, written as milliseconds without the unit's sign, which the title has.
pub(crate) const BARE_MILLISECONDS: Unit = Unit { factor: 1e3, decimals: 2, sign: "" };

impl Unit {
    /// A number without a sign.
    pub(crate) const fn number(decimals: usize) -> Self {
        Unit { factor: 1.0, decimals, sign: "" }
    }

    /// A figure.
    pub(crate) fn text(self, value: f64) -> String {
        format!("{:.*}{}", self.decimals, value * self.factor, self.sign)
    }

    /// A difference, with `+` or `-`.
    pub(crate) fn change(self, value: f64) -> String {
        format!("{:+.*}{}", self.decimals, value * self.factor, self.sign)
    }
}

/// A table for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Titles of the columns.
    pub head: Vec<String>,
    /// Lines of cells.
    pub lines: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| format!(" {} |", cell.replace('|', "\\|")));
            format!("|{}\n", cells.collect::<String>())
        };
        // Names to the left, figures to the right.
        let sides = (0..self.head.len()).map(|column| if column < 2 { "---" } else { "---:" });
        let sides: Vec<String> = sides.map(str::to_owned).collect();
        [&self.head, &sides].into_iter().chain(&self.lines).map(|cells| line(cells)).collect()
    }

    pub(crate) fn text(&self) -> String {
        let rows = || std::iter::once(&self.head).chain(&self.lines);
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> =
            (0..self.head.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in rows() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names to the left, figures to the right.
                let pad = " ".repeat(width - cell.chars().count());
                let _ = if column < 2 {
                    write!(text, "{cell}{pad}  ")
                } else {
                    write!(text, "{pad}{cell}  ")
                };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}

/// The lines of a table, each made of an `L`, to which columns are added one after the other.
pub(crate) struct Columns<L> {
    lines: Vec<L>,
    table: Table,
}

impl<L> Columns<L> {
    /// No columns yet, of `lines`.
    pub(crate) fn of(lines: impl IntoIterator<Item = L>) -> Self {
        let lines: Vec<L> = lines.into_iter().collect();
        let table = Table { head: Vec::new(), lines: vec![Vec::new(); lines.len()] };
        Columns { lines, table }
    }

    /// Adds a column of words.
    pub(crate) fn text(self, title: impl Into<String>, cell: impl Fn(&L) -> String) -> Self {
        self.figure(title, |line| Some(cell(line)))
    }

    /// Adds a column of figures; some may be unknown.
    pub(crate) fn figure(
        mut self,
        title: impl Into<String>,
        cell: impl Fn(&L) -> Option<String>,
    ) -> Self {
        self.table.head.push(title.into());
        for (cells, line) in self.table.lines.iter_mut().zip(&self.lines) {
            cells.push(cell(line).unwrap_or_else(|| UNKNOWN.to_owned()));
        }
        self
    }

    /// The table.
    pub(crate) fn table(self) -> Table {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let table = Columns::of([("aa", Some(10.0)), ("|", None)])
            .text("a", |(a, _)| (*a).to_owned())
            .text("b", |(a, _)| a.repeat(2))
            .figure("n", |(_, n)| n.map(|n| Unit::number(0).text(n)))
            .table();
        assert_eq!(table.text(), "a   b      n\naa  aaaa  10\n|   ||     -\n");
        let markdown =
            "| a | b | n |\n| --- | --- | ---: |\n| aa | aaaa | 10 |\n| \\| | \\|\\| | - |\n";
        assert_eq!(table.markdown(), markdown);
    }

    #[test]
    fn units_write_figures_as_the_mails_do() {
        assert_eq!(THOUSANDS.text(879_400.0), "879K");
        assert_eq!(MILLIONS.text(108_400_000.0), "108.40M");
        assert_eq!(PERCENT.text(0.936), "93.6%");
        assert_eq!(WHOLE_PERCENT.change(2.26), "+226%");
        assert_eq!(MILLISECONDS.text(1_260_000.0), "1.3 ms");
        assert_eq!(NANOSECONDS.change(-3.26), "-3.3 ns");
        assert_eq!(BARE_MILLISECONDS.text(0.0125), "12.50");
        assert_eq!(Unit::number(3).text(0.5), "0.500");
    }
}
