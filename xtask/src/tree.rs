//! The repository as the checks see it: its text files, and Cargo's description of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use serde_json::Value;

/// Folders that hold no source of ours, by path from the root.
const IGNORED_FOLDERS: [&str; 6] =
    [".git", "target", "drystone-data", "fuzz/target", "fuzz/artifacts", "fuzz/corpus"];

/// The files and packages of the repository.
#[derive(Debug, Default)]
pub struct Tree {
    /// Every text file, in order of path.
    pub files: Vec<SourceFile>,
    /// Every path below the root, folders included, ignored folders left out.
    pub paths: Vec<PathBuf>,
    /// Every package of the workspace.
    pub packages: Vec<Package>,
}

/// A text file.
#[derive(Debug)]
pub struct SourceFile {
    /// Its path from the root, with forward slashes.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// A package of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Its name in its manifest.
    pub name: String,
    /// Names of the packages it depends on, those of tests and build scripts included.
    pub dependencies: Vec<String>,
}

impl SourceFile {
    /// The path as text.
    pub fn name(&self) -> &str {
        self.path.to_str().expect("paths of the repository are UTF-8")
    }

    /// True if this is Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }
}

impl Tree {
    /// Reads the repository at `root`. The error is one sentence.
    pub fn load(root: &Path) -> Result<Tree, String> {
        let mut tree = Tree { packages: packages(root)?, ..Tree::default() };
        tree.read_folder(root, Path::new("")).map_err(|error| format!("cannot read: {error}"))?;
        tree.paths.sort();
        tree.files.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(tree)
    }

    /// The Rust files of the repository.
    pub fn rust_files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }

    fn read_folder(&mut self, root: &Path, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if IGNORED_FOLDERS.iter().any(|ignored| path == Path::new(ignored)) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.read_folder(root, &path)?;
            } else if let Ok(text) = String::from_utf8(fs::read(entry.path())?) {
                self.files.push(SourceFile { path: path.clone(), text });
            }
            self.paths.push(path);
        }
        Ok(())
    }
}

/// Asks Cargo for the packages of the workspace.
fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {}", text.trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    Ok(parse_packages(&metadata))
}

/// Takes the packages out of `cargo metadata`'s answer.
pub fn parse_packages(metadata: &Value) -> Vec<Package> {
    array(metadata, "packages").iter().map(parse_package).collect()
}

fn parse_package(package: &Value) -> Package {
    Package {
        name: string(package, "name").to_owned(),
        dependencies: array(package, "dependencies")
            .iter()
            .map(|dependency| string(dependency, "name").to_owned())
            .collect(),
    }
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}
