//! Circles of imports between the files of one crate.
//!
//! Files that import one another in a circle can only be understood together. Each crate has a
//! limit: the files that are in circles today. A change may lower a limit and never passes one. The
//! circles are the strongly connected components (Tarjan 1972) of the graph whose arrows are paths
//! from one file to an item of another; a re-export is followed to the file that it names, and code
//! of tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::product::{is_product_code, test_files};
use crate::report::Report;
use crate::rust_source::{self, PathUse, Token};
use crate::tree::Tree;

/// Most files in circles, for each crate. A crate that is not listed has none.
const LIMITS: [(&str, usize); 2] = [("core", 6), ("sim", 3)];

/// A module: its path from the crate's root.
type Module = Vec<String>;

/// The files of one crate and what they import.
#[derive(Debug, Default)]
struct Crate {
    files: BTreeMap<Module, PathBuf>,
    paths: BTreeMap<Module, Vec<Vec<String>>>,
    /// Names that a module passes on: the name, and the path that it stands for.
    exports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

/// Fails where a crate has more files in circles than its limit. Their number is no measure: a
/// circle that opens in the middle leaves two smaller ones.
pub fn check(tree: &Tree, report: &mut Report) {
    for (name, source) in crates(tree) {
        let circles = source.circles();
        let files: usize = circles.iter().map(Vec::len).sum();
        let limit = LIMITS.iter().find(|(known, _)| *known == name);
        let most = limit.map_or(0, |(_, files)| *files);
        if files > most {
            report.fail(format!(
                "crates/{name}: {files} files import one another in circles, at most {most} may: \
                 {}",
                source.described(&circles),
            ));
        } else if files < most {
            report.warn(format!(
                "crates/{name}: {files} files in circles; lower its limit in xtask/src/circles.rs"
            ));
        }
    }
}

/// Prints every circle with its files.
pub fn print(tree: &Tree) {
    let (mut all, mut files) = (0, 0);
    for (name, source) in crates(tree) {
        for circle in source.circles() {
            println!(
                "{name}: {} files: {}",
                circle.len(),
                source.described(std::slice::from_ref(&circle))
            );
            all += 1;
            files += circle.len();
        }
    }
    println!("{all} circles through {files} files");
}

/// The crates of the product, by the names of their folders.
fn crates(tree: &Tree) -> BTreeMap<String, Crate> {
    let tests = test_files(tree);
    let mut found: BTreeMap<String, Crate> = BTreeMap::new();
    for file in tree.rust_files().filter(|file| is_product_code(file, &tests)) {
        let Some((name, module)) = module_of(&file.path) else { continue };
        let tokens = rust_source::without_tests(&rust_source::tokens(&file.text));
        let source = found.entry(name).or_default();
        source.files.insert(module.clone(), file.path.clone());
        let (exports, rest) = divided(tokens);
        source.exports.insert(module.clone(), exported(&exports, &module));
        source.paths.insert(module, imported(&rest));
    }
    found
}

fn owned(path: &PathUse<'_>) -> Vec<String> {
    path.segments.iter().map(|segment| (*segment).to_owned()).collect()
}

/// Crate and module of a file such as `crates/core/src/ring/mod.rs`.
fn module_of(path: &Path) -> Option<(String, Module)> {
    let mut parts: Vec<String> =
        path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.len() < 4 || parts[0] != "crates" || parts[2] != "src" {
        return None;
    }
    let name = parts[1].clone();
    let file = parts.pop()?;
    let mut module: Module = parts.split_off(3);
    let stem = file.strip_suffix(".rs")?;
    let is_root = module.is_empty() && ["lib", "main"].contains(&stem);
    if !is_root && stem != "mod" {
        module.push(stem.to_owned());
    }
    Some((name, module))
}

/// The tokens of `pub use` and `pub(...) use`, and all others. A module that only passes a name on
/// does not depend on it.
fn divided(tokens: Vec<Token<'_>>) -> (Vec<Token<'_>>, Vec<Token<'_>>) {
    let (mut exports, mut rest) = (Vec::new(), Vec::new());
    let (mut is_export, mut was) = (false, ["", ""]);
    for token in tokens {
        if token.text == "use" {
            is_export = was[1] == "pub" || was[1] == ")" && was[0] != "(";
        }
        was = [was[1], token.text];
        let ends = token.text == ";";
        if is_export {
            exports.push(token)
        } else {
            rest.push(token)
        }
        is_export &= !ends;
    }
    (exports, rest)
}

/// A name that a module re-exports, and the path that it stands for.
fn exported(tokens: &[Token<'_>], module: &[String]) -> BTreeMap<String, Vec<String>> {
    let paths = rust_source::paths(tokens);
    let paths = paths.iter().map(owned).filter(|path| path.len() > 1);
    paths.map(|path| (path[path.len() - 1].clone(), absolute(&path, module))).collect()
}

/// The paths of a file that can lead to another: a single word names something that is here.
fn imported(tokens: &[Token<'_>]) -> Vec<Vec<String>> {
    rust_source::paths(tokens).iter().map(owned).filter(|path| path.len() > 1).collect()
}

/// A path from the crate's root, as far as `crate`, `self` and `super` tell; others are taken as
/// paths of a child.
fn absolute(path: &[String], module: &[String]) -> Vec<String> {
    let mut base: Vec<String> = module.to_vec();
    let mut rest = path;
    loop {
        match rest.first().map(String::as_str) {
            Some("crate") => base.clear(),
            Some("self") => {}
            Some("super") => {
                base.pop();
            }
            _ => break,
        }
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    base
}

impl Crate {
    /// The circles, the largest first, each in order of its modules.
    fn circles(&self) -> Vec<Vec<Module>> {
        let graph: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|module| (module, self.imports(module))).collect();
        let mut circles = strongly_connected(&graph);
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// The other files that a file's paths lead to.
    fn imports(&self, module: &Module) -> BTreeSet<&Module> {
        let paths = self.paths.get(module).into_iter().flatten();
        let targets = paths.filter_map(|path| self.resolve(&absolute(path, module), 0));
        targets.filter(|target| *target != module).collect()
    }

    /// The file in which the item at a path from the root stands.
    fn resolve(&self, path: &[String], depth: usize) -> Option<&Module> {
        let length =
            (0..path.len()).rev().find(|length| self.files.contains_key(&path[..*length]))?;
        let whole = self.files.contains_key(path).then_some(path.len());
        let length = whole.unwrap_or(length);
        let (module, _) = self.files.get_key_value(&path[..length])?;
        let name = path.get(length);
        let passed_on = name.and_then(|name| self.exports.get(module)?.get(name));
        match passed_on {
            Some(target) if depth < 8 && target[..] != path[..=length] => {
                let target: Vec<String> =
                    target.iter().chain(&path[length + 1..]).cloned().collect();
                self.resolve(&target, depth + 1).or(Some(module))
            }
            _ => Some(module),
        }
    }

    fn described(&self, circles: &[Vec<Module>]) -> String {
        let names = |circle: &Vec<Module>| {
            let names: Vec<String> =
                circle.iter().map(|module| self.files[module].display().to_string()).collect();
            names.join(", ")
        };
        circles.iter().map(names).collect::<Vec<_>>().join("; ")
    }
}

/// Tarjan's algorithm, without recursion; components of one file are left out.
fn strongly_connected(graph: &BTreeMap<&Module, BTreeSet<&Module>>) -> Vec<Vec<Module>> {
    let reachable: BTreeMap<&Module, BTreeSet<&Module>> =
        graph.keys().map(|from| (*from, reached(graph, from))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in graph.keys() {
        if seen.contains(from) || !reachable[from].contains(from) {
            continue;
        }
        let circle: Vec<Module> = reachable[from]
            .iter()
            .filter(|to| reachable[**to].contains(from))
            .map(|to| (*to).clone())
            .collect();
        seen.extend(graph.keys().copied().filter(|module| circle.contains(module)));
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// All modules that imports lead to from `from`; itself only if a way leads back.
fn reached<'a>(
    graph: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    from: &'a Module,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Module> = graph[from].iter().copied().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(graph[module].iter().copied());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::SourceFile;

    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<Module>> {
        let files = files
            .iter()
            .map(|(path, text)| SourceFile { path: path.into(), text: (*text).to_owned() })
            .collect();
        crates(&Tree { files, ..Tree::default() }).remove("core").expect("the crate").circles()
    }

    const A: &str = "crates/core/src/a.rs";
    const B: &str = "crates/core/src/b/mod.rs";
    const C: &str = "crates/core/src/b/c.rs";

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        let found = circles_of(&[(A, "use crate::b::B;"), (B, "use crate::a::{A, D};")]);
        assert_eq!(found, [[["a"], ["b"]]]);
    }

    #[test]
    fn one_way_is_no_circle() {
        assert!(circles_of(&[(A, "use crate::b::B;"), (B, "pub struct B;")]).is_empty());
        let root = ("crates/core/src/lib.rs", "pub mod a; pub mod b;");
        assert!(circles_of(&[root, (A, "use crate::b::B;"), (B, "")]).is_empty());
    }

    #[test]
    fn a_parent_and_its_child_can_be_a_circle() {
        let found = circles_of(&[(B, "mod c; use c::C; struct B;"), (C, "use super::B;")]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_it_names() {
        let parent = "mod c; mod d; pub use c::C; pub use d::D;";
        let d = ("crates/core/src/b/d.rs", "use super::C;");
        assert!(circles_of(&[(B, parent), (C, "pub struct C;"), d]).is_empty());
        assert_eq!(circles_of(&[(B, parent), (C, "use super::D;"), d]).len(), 1);
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let test = "#[cfg(test)] mod tests { use crate::a::A; }";
        assert!(circles_of(&[(A, "use crate::b::B;"), (B, test)]).is_empty());
    }

    #[test]
    fn a_new_circle_fails() {
        let files =
            [("crates/x/src/a.rs", "use crate::b::B;"), ("crates/x/src/b.rs", "use crate::a::A;")]
                .iter()
                .map(|(path, text)| SourceFile { path: path.into(), text: (*text).to_owned() })
                .collect();
        let mut report = Report::default();
        check(&Tree { files, ..Tree::default() }, &mut report);
        assert!(report.failures[0].contains("crates/x: 2 files import one another"));
    }
}
