//! Lists of modules that are excused from a rule, each with its reason.

use crate::report::Report;
use crate::tree::Tree;

/// An excuse: the files that it covers, and why.
#[derive(Debug)]
pub struct Allow {
    /// A path from the root; `/*` at its end stands for everything in and below that folder.
    pub path: &'static str,
    /// One sentence that says why.
    pub reason: &'static str,
}

impl Allow {
    /// Whether this excuse covers the file at `path`.
    pub fn covers(&self, path: &str) -> bool {
        match self.path.strip_suffix('*') {
            Some(folder) => path.starts_with(folder),
            None => path == self.path,
        }
    }
}

/// Warns of excuses that cover no file, so that a table does not outlive its modules.
pub fn warn_of_stale(table: &[Allow], what: &str, tree: &Tree, report: &mut Report) {
    for allow in table {
        if !tree.rust_files().any(|file| allow.covers(file.name())) {
            report.warn(format!("{what}: no file matches {} ({})", allow.path, allow.reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_covers_what_lies_below_and_a_file_only_itself() {
        let folder = Allow { path: "a/ring/*", reason: "r" };
        assert!(folder.covers("a/ring/deep/b.rs"));
        assert!(!folder.covers("a/ringlet.rs"));
        let file = Allow { path: "a/b.rs", reason: "r" };
        assert!(file.covers("a/b.rs"));
        assert!(!file.covers("a/b.rs.rs"));
    }
}
