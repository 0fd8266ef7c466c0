//! Product code: what lies below `crates/` and is neither a test nor a bench.

use std::path::{Path, PathBuf};

use crate::rust_source;
use crate::tree::{SourceFile, Tree};

/// True if a file is product code. `tests` are the files of [`test_files`].
pub fn is_product_code(file: &SourceFile, tests: &[PathBuf]) -> bool {
    let in_test_folder =
        ["tests", "benches"].iter().any(|folder| file.path.iter().nth(2) == Some(folder.as_ref()));
    file.name().starts_with("crates/")
        && !in_test_folder
        && !tests.iter().any(|test| file.path.starts_with(test) || file.path == *test)
}

/// Files and folders of modules that are declared under `#[cfg(test)]` in another file.
pub fn test_files(tree: &Tree) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in tree.rust_files().filter(|file| declares_modules(file)) {
        let folder = module_folder(&file.path);
        for module in rust_source::test_modules(&rust_source::tokens(&file.text)) {
            found.push(folder.join(format!("{module}.rs")));
            found.push(folder.join(module));
        }
    }
    found
}

/// True if a line may declare a module that lives in a file of its own. Most files have none, and
/// cutting a file into tokens takes time.
fn declares_modules(file: &SourceFile) -> bool {
    file.text.contains("cfg(")
        && file.text.lines().any(|line| line.contains("mod ") && line.contains(';'))
}

/// The folder in which the modules that a file declares live.
fn module_folder(file: &Path) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default();
    let parent = file.parent().unwrap_or(Path::new(""));
    if ["lib", "main", "mod"].iter().any(|root| stem == *root) {
        parent.to_owned()
    } else {
        parent.join(stem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_declared_for_tests_only_is_no_product_code() {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.to_owned() };
        let files = vec![
            file("crates/queue/src/lib.rs", "#[cfg(test)] mod model; mod real;"),
            file("crates/queue/src/model.rs", ""),
            file("crates/queue/src/model/deep.rs", ""),
            file("crates/queue/src/real.rs", ""),
            file("crates/queue/tests/wake.rs", ""),
            file("system-tests/src/lib.rs", ""),
        ];
        let tree = Tree { files, ..Tree::default() };
        let tests = test_files(&tree);
        let product = tree.rust_files().filter(|file| is_product_code(file, &tests));
        let names: Vec<&str> = product.map(SourceFile::name).collect();
        assert_eq!(names, ["crates/queue/src/lib.rs", "crates/queue/src/real.rs"]);
    }
}
