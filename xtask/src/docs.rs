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
            check_tables(file, report);
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
    for (line, target) in links(&file.text) {
        let Some((path, part)) = target.split_once('#').filter(|(path, _)| !is_elsewhere(path))
        else {
            continue;
        };
        let folder = file.path.parent().unwrap_or(Path::new(""));
        let page = match path {
            "" => Some(file),
            path => resolve(&folder.join(path))
                .and_then(|path| tree.files.iter().find(|file| file.path == path)),
        };
        let is_page = |page: &&SourceFile| page.path.extension().is_some_and(|end| end == "md");
        let page = page.filter(is_page);
        if page.is_some_and(|page| !headings(&page.text).iter().any(|heading| heading == part)) {
            report.fail_at(&file.path, line, &format!("the link {target:?} points at no heading"));
        }
    }
}

/// The names by which links reach the headings of a page, as GitHub makes them.
fn headings(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (_, line) in unfenced(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        // Of a link in it only the text counts.
        let title: String = title.split("](").enumerate().fold(String::new(), |all, (n, part)| {
            all + if n == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) }
        });
        let letters = title.trim().to_lowercase();
        let letters = letters.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = letters.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = |known: &&String| {
            let number = known.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('-'));
            **known == name || number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        names.push(match names.iter().filter(same).count() {
            0 => name,
            before => format!("{name}-{before}"),
        });
    }
    names
}

/// Every row of a table has as many cells as its first.
fn check_tables(file: &SourceFile, report: &mut Report) {
    let mut first: Option<usize> = None;
    for (line, text) in unfenced(&file.text) {
        let text = text.trim();
        if !text.starts_with('|') {
            first = None;
            continue;
        }
        let cells = text.replace("\\|", "").matches('|').count() - 1;
        let expected = *first.get_or_insert(cells);
        if cells != expected {
            let why = format!("a row of {cells} cells in a table of {expected}");
            report.fail_at(&file.path, line, &why);
        }
    }
}

/// The lines outside blocks of code, with their numbers.
pub(crate) fn unfenced(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            fenced = !fenced;
        } else if !fenced {
            found.push((index + 1, line));
        }
    }
    found
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
    let of_line = |(line, text): (usize, &str)| {
        let targets = inline_targets(&without_code(text));
        targets.into_iter().map(move |target| (line, target))
    };
    unfenced(text).into_iter().flat_map(of_line).collect()
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
        let text = "[up](../README.md) [dir](../docs) [web](https://a/b#c)";
        assert_eq!(failures("docs/a.md", text), Vec::<String>::new());
    }

    #[test]
    fn links_to_parts_of_a_page_name_its_headings() {
        let page = "# A `b-c`, d\n## [E](x.md) f\n## E f\n```\n# no heading\n```\n";
        let page = page.replace("x.md", "a.md");
        for (part, holds) in [
            ("a-b-c-d", true),
            ("e-f", true),
            ("e-f-1", true),
            ("e-f-2", false),
            ("no-heading", false),
            ("A", false),
        ] {
            for path in ["", "a.md"] {
                let text = format!("{page}[x]({path}#{part})\n");
                assert_eq!(failures("docs/a.md", &text).is_empty(), holds, "{path}#{part}");
            }
        }
    }

    #[test]
    fn rows_have_as_many_cells_as_their_table() {
        let good = "| a | b |\n|---|---|\n| `x \\| y` | c |\n\n| one |\n|---|\n";
        assert_eq!(failures("docs/a.md", good), Vec::<String>::new());
        let bad = "| a | b |\n|---|---|\n| c |\n| d | e | f |\n";
        let found = failures("docs/a.md", bad);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("docs/a.md:3: a row of 1 cells in a table of 2"), "{found:?}");
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
