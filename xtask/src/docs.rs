//! Pages that point at files which exist, and words that have no place in the repository.

use std::path::{Component, Path, PathBuf};

use crate::report::Report;
use crate::tree::{SourceFile, Tree};

/// Literal strings that must not stand in any file: paths of a developer's machine mean nothing
/// to a reader. They are put together here so that this file does not hold them.
const FORBIDDEN: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("../sha", "red"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Runs the check.
pub fn check(tree: &Tree, report: &mut Report) {
    for file in &tree.files {
        check_words(file, report);
        if file.path.extension().is_some_and(|extension| extension == "md") {
            check_links(file, tree, report);
        }
    }
}

fn check_words(file: &SourceFile, report: &mut Report) {
    for (index, line) in file.text.lines().enumerate() {
        for word in FORBIDDEN.iter().filter(|word| line.contains(**word)) {
            report.fail_at(&file.path, index + 1, &format!("holds the forbidden string {word:?}"));
        }
    }
}

fn check_links(file: &SourceFile, tree: &Tree, report: &mut Report) {
    for (line, target) in links(&file.text) {
        let path = target.split('#').next().unwrap_or_default();
        if path.is_empty() || is_elsewhere(path) {
            continue;
        }
        let folder = file.path.parent().unwrap_or(Path::new(""));
        let found = resolve(&folder.join(path)).is_some_and(|path| exists(tree, &path));
        if !found {
            report.fail_at(&file.path, line, &format!("the link {target:?} points at no file"));
        }
    }
}

fn is_elsewhere(path: &str) -> bool {
    path.contains("://") || path.starts_with("mailto:")
}

fn exists(tree: &Tree, path: &Path) -> bool {
    path == Path::new("") || tree.paths.iter().any(|known| known == path)
}

/// Works `.` and `..` out; nothing if the path leaves the repository or is absolute.
fn resolve(path: &Path) -> Option<PathBuf> {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => resolved.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !resolved.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(resolved)
}

/// Targets of `[text](target)` and `[name]: target` outside code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            fenced = !fenced;
        } else if !fenced {
            let targets = inline_targets(&without_code(line));
            found.extend(targets.into_iter().map(|target| (index + 1, target)));
        }
    }
    found
}

/// Blanks what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

fn inline_targets(line: &str) -> Vec<String> {
    let first_word = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    let mut targets: Vec<String> = line
        .match_indices("](")
        .filter_map(|(at, mark)| line[at + mark.len()..].split_once(')'))
        .map(|(target, _)| first_word(target))
        .collect();
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        targets.push(first_word(target));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(path: &str, text: &str) -> Vec<String> {
        let files = vec![SourceFile { path: path.into(), text: text.to_owned() }];
        let paths = vec!["README.md".into(), "docs".into(), "docs/a.md".into()];
        let mut report = Report::default();
        check(&Tree { files, paths, ..Tree::default() }, &mut report);
        report.failures
    }

    #[test]
    fn links_to_missing_files_are_all_found() {
        let text = "[a](docs/a.md) [b](docs/b.md)\n[c]: c.md\n[d](../README.md)\n[e](/etc/passwd)";
        let found = failures("README.md", text);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("README.md:1: the link \"docs/b.md\""));
    }

    #[test]
    fn links_that_hold_are_accepted() {
        let text = "[a](a.md#part) [up](../README.md) [dir](../docs) [here](#x) [web](https://a/b)";
        assert_eq!(failures("docs/a.md", text), Vec::<String>::new());
    }

    #[test]
    fn code_holds_no_links() {
        assert!(failures("README.md", "`a[0](x)` text\n```\n[x](y.md)\n```\n").is_empty());
    }

    #[test]
    fn forbidden_strings_are_found_in_every_file() {
        for word in FORBIDDEN {
            assert_eq!(failures("src/a.rs", &format!("// see {word}x")).len(), 1);
        }
    }
}
