//! Every package takes part in the workspace's lints, which refuse `unsafe` where no module allows
//! it with a reason. A package that Cargo does not count to the workspace names that lint itself.

use crate::report::Report;
use crate::tree::{SourceFile, Tree};

/// Runs the check.
pub fn check(tree: &Tree, report: &mut Report) {
    for file in tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        if !is_linted(file) {
            report.fail_at(&file.path, 1, "lacks the lints: [lints] workspace = true");
        }
    }
}

fn is_linted(manifest: &SourceFile) -> bool {
    let lines: Vec<&str> = manifest.text.lines().map(str::trim).collect();
    lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"])
        || lines.contains(&"unsafe_code = \"deny\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(text: &str) -> usize {
        let file = SourceFile { path: "crates/a/Cargo.toml".into(), text: text.to_owned() };
        let mut report = Report::default();
        check(&Tree { files: vec![file], ..Tree::default() }, &mut report);
        report.failures.len()
    }

    #[test]
    fn a_package_without_the_lints_fails() {
        assert_eq!(failures("[package]\nname = \"a\"\n"), 1);
        assert_eq!(failures("[package]\n# unsafe_code = \"deny\"\n"), 1);
        assert_eq!(failures("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"), 0);
        assert_eq!(failures("[workspace]\n\n[lints.rust]\nunsafe_code = \"deny\"\n"), 0);
    }
}
