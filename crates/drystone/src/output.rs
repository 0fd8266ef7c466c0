//! Writing to standard output and standard error without dying when nobody reads.
//!
//! Standard error has one form: `error:`, `warning:` or `note:` and a sentence, by [`error`],
//! [`warning`] and [`note`]; findings in a text are drawn with the lines they point at.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use drystone_stack::diagnostic::{Diagnostic, Report, Severity};
use drystone_stack::{LoadError, one_line};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::terminal::colour;

/// Writes text to standard output at once. `Ok(false)` when nobody reads it any more: the reader
/// of a pipe has gone, which is no failure.
///
/// # Errors
/// One sentence: the disk behind it is full, for example.
pub fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The outcome of writing to standard output, as [`print()`] tells it.
pub fn written(result: io::Result<()>) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Failure::Refused(format!("cannot write to the standard output: {error}")))
        }
    }
}

/// Whether notes are left out: `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves notes out from now on.
pub fn be_quiet() {
    QUIET.store(true, Relaxed);
}

/// Says why a command failed. The caller ends with a status that is not 0.
pub fn error(text: &str) {
    tell(&format!("error: {text}"));
}

/// Says that something is or may become wrong, while the command goes on.
pub fn warning(text: &str) {
    tell(&format!("warning: {text}"));
}

/// Says what is good to know; `--quiet` leaves it out.
pub fn note(text: &str) {
    if !QUIET.load(Relaxed) {
        tell(&format!("note: {text}"));
    }
}

/// Writes a failure to standard error, if it has words.
pub fn fail(failure: &Failure) {
    let text = failure.to_string();
    if !text.is_empty() {
        draw(&text);
    }
}

/// Writes a line to standard error, if anybody reads it. Control characters that are in names
/// stay in the line.
pub fn tell(text: &str) {
    draw(&one_line(text.trim_end()));
}

/// Writes what was drawn before, which may be several lines, to standard error as it is.
pub fn draw(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
}

/// Writes JSON and a line end to standard output, as [`print()`] does.
pub fn print_json(value: &Value) -> Result<bool, Failure> {
    print(&format!("{value}\n"))
}

/// A stack file that was refused, drawn for standard error.
pub fn load_failure(error: LoadError) -> Failure {
    match error {
        LoadError::Invalid(report) => Failure::Report(report.render(colour())),
        other => Failure::Refused(other.to_string()),
    }
}

/// A stack's warnings, drawn for standard error.
pub fn warn(stack: &drystone_stack::StackSpec) {
    if !stack.warnings.is_empty() {
        let report = Report {
            source: stack.source.clone(),
            diagnostics: stack.warnings.clone(),
            omitted: 0,
        };
        draw(&report.render(colour()));
    }
}

/// A finding as JSON.
pub fn diagnostic_json(found: &Diagnostic) -> Value {
    let severity = match found.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    json!({
        "severity": severity,
        "line": found.line,
        "column": found.column,
        "word": found.word,
        "message": found.message,
        "hint": found.hint,
    })
}

/// Lines of cells, each column as wide as its widest cell; the last is not padded. Whatever control
/// characters are in cells stay in the line.
pub fn columns(rows: &[Vec<String>]) -> String {
    let rows = rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect());
    let rows: Vec<Vec<_>> = rows.collect();
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; most];
    for (column, cell) in rows.iter().flat_map(|row| row.iter().enumerate()) {
        widths[column] = cell.chars().count().max(widths[column]);
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "bb", "c"], ["aaa", "b", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "a    bb  c\naaa  b\n");
        let rows = [vec!["a\nb".to_owned(), "c".to_owned()], vec!["d".to_owned(), "e".to_owned()]];
        assert_eq!(columns(&rows), "a\\nb  c\nd     e\n");
    }
}
