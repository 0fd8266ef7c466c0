//! Files that have grown past the size at which their shape is a question.

use crate::report::Report;
use crate::tree::Tree;

/// Lines above which a file is worth a thought. Files of 150 to 500 lines are the aim.
const LINES_MAX: usize = 1000;

/// Warns of long Rust files; it never fails.
pub fn check(tree: &Tree, report: &mut Report) {
    for file in tree.rust_files() {
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            report.warn(format!("{}: {lines} lines; does it hold two concepts?", file.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::SourceFile;

    #[test]
    fn one_line_more_than_the_limit_warns() {
        let file = |lines: usize| SourceFile { path: "a.rs".into(), text: "\n".repeat(lines) };
        let mut report = Report::default();
        let files = vec![file(LINES_MAX), file(LINES_MAX + 1)];
        check(&Tree { files, ..Tree::default() }, &mut report);
        assert_eq!(report.warnings.len(), 1);
        assert!(report.failures.is_empty());
    }
}
