//! The findings of a check.

use std::path::Path;

/// The findings of one check. Failures fail the run, warnings are only shown.
#[derive(Debug, Default)]
pub struct Report {
    /// Rules that are broken, one line each.
    pub failures: Vec<String>,
    /// Things to look at, one line each.
    pub warnings: Vec<String>,
}

impl Report {
    /// Records a broken rule at a line (1-based) of a file.
    pub fn fail_at(&mut self, file: &Path, line: usize, message: &str) {
        self.failures.push(format!("{}:{line}: {message}", file.display()));
    }

    /// Records a broken rule that has no line.
    pub fn fail(&mut self, message: String) {
        self.failures.push(message);
    }

    /// Records something worth a look.
    pub fn warn(&mut self, message: String) {
        self.warnings.push(message);
    }

    /// Prints warnings and failures to standard output.
    pub fn print(&self) {
        for warning in &self.warnings {
            println!("warning: {warning}");
        }
        for failure in &self.failures {
            println!("error: {failure}");
        }
    }

    /// One phrase for the closing line of a check.
    pub fn verdict(&self) -> String {
        match (self.failures.len(), self.warnings.len()) {
            (0, 0) => "ok".to_owned(),
            (0, warnings) => format!("ok, warnings: {warnings}"),
            (failures, _) => format!("FAILED, failures: {failures}"),
        }
    }
}
