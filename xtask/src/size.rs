//! Sizes: how long a file, and a line, may be.
//!
//! Lines have at most 100 columns in code and scripts and 120 in documents, where quoted output of
//! a program keeps its own width. Files of 150 to 500 lines are the aim. Those that exceed it today
//! have a limit that a change may lower and never raises.

use crate::docs::unfenced;
use crate::report::Report;
use crate::tree::{SourceFile, Tree};

/// Lines of a Rust file above which it counts as long.
const FILE_LINES: usize = 500;

/// Most Rust files that may be long, and most lines of any.
const LONG_FILES_MAX: usize = 34;
const FILE_LINES_MAX: usize = 820;

/// Most columns of a line by the file's kind.
const WIDTHS: [(&str, usize); 4] = [("rs", 100), ("md", 120), ("py", 100), ("sh", 100)];

/// Documents that a program writes, whose tables are as wide as they are.
const GENERATED: [&str; 2] = ["docs/control.md", "docs/stack-file.md"];

/// Runs the check.
pub fn check(tree: &Tree, report: &mut Report) {
    check_files(tree, report);
    for (extension, columns) in WIDTHS {
        check_lines(tree, extension, columns, report);
    }
}

fn check_files(tree: &Tree, report: &mut Report) {
    let mut long = 0;
    for file in tree.rust_files() {
        let lines = file.text.lines().count();
        long += usize::from(lines > FILE_LINES);
        if lines > FILE_LINES_MAX {
            report.fail(format!("{}: {lines} lines, at most {FILE_LINES_MAX}", file.name()));
        }
    }
    if long > LONG_FILES_MAX {
        report.fail(format!(
            "{long} Rust files have more than {FILE_LINES} lines, at most {LONG_FILES_MAX} may"
        ));
    }
}

fn check_lines(tree: &Tree, extension: &str, columns: usize, report: &mut Report) {
    let message = format!("more than {columns} columns");
    for file in tree.files.iter().filter(|file| is_checked(file, extension)) {
        for line in wide_lines(file, columns) {
            report.fail_at(&file.path, line, &message);
        }
    }
}

fn is_checked(file: &SourceFile, extension: &str) -> bool {
    file.path.extension().is_some_and(|found| found == extension)
        && !GENERATED.contains(&file.name())
}

/// Numbers, from 1, of the lines that have more columns; in documents of those outside blocks of
/// code.
fn wide_lines(file: &SourceFile, columns: usize) -> impl Iterator<Item = usize> {
    let lines: Vec<(usize, &str)> = match file.path.extension().is_some_and(|end| end == "md") {
        true => unfenced(&file.text),
        false => file.text.lines().enumerate().map(|(index, line)| (index + 1, line)).collect(),
    };
    let wide = move |(_, line): &(usize, &str)| line.chars().count() > columns;
    lines.into_iter().filter(wide).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(files: Vec<SourceFile>) -> Vec<String> {
        let mut report = Report::default();
        check(&Tree { files, ..Tree::default() }, &mut report);
        report.failures
    }

    fn file(path: &str, text: String) -> SourceFile {
        SourceFile { path: path.into(), text }
    }

    #[test]
    fn one_line_more_than_the_limit_fails() {
        let lines = |lines: usize| vec![file("a.rs", "\n".repeat(lines))];
        assert!(failures(lines(FILE_LINES_MAX)).is_empty());
        assert_eq!(failures(lines(FILE_LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn one_long_file_more_than_the_limit_fails() {
        let files =
            |count: usize| (0..count).map(|_| file("a.rs", "\n".repeat(FILE_LINES + 1))).collect();
        assert!(failures(files(LONG_FILES_MAX)).is_empty());
        assert_eq!(failures(files(LONG_FILES_MAX + 1)).len(), 1);
    }

    #[test]
    fn columns_are_characters() {
        let wide = |text: &str| wide_lines(&file("a.md", text.to_owned()), 4).collect::<Vec<_>>();
        assert_eq!(wide("äöüß\nabcde\nabcd\n"), [2]);
    }

    #[test]
    fn quoted_output_keeps_its_width_in_documents_only() {
        let text = "abcde\n```\nabcde\n```\nabcde\n";
        let wide = |path| wide_lines(&file(path, text.to_owned()), 4).collect::<Vec<_>>();
        assert_eq!((wide("a.md"), wide("a.sh")), (vec![1, 5], vec![1, 3, 5]));
    }

    #[test]
    fn a_line_too_wide_fails_and_one_of_the_limit_passes() {
        for (extension, columns) in WIDTHS {
            let name = format!("a.{extension}");
            let line = |columns: usize| format!("{}\n", "x".repeat(columns));
            let found = failures(vec![file(&name, line(columns) + &line(columns + 1))]);
            assert_eq!(found, [format!("{name}:2: more than {columns} columns")]);
        }
    }
}
