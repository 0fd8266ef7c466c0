//! `cargo xtask`: the checks that keep the repository true to its own rules.
//!
//! Every check reports all that it finds, not the first finding; `check` runs all checks and
//! `prepush` runs what continuous integration runs, as far as it needs no installed clients.
//! The tables that a developer edits (which crate may import which, how long a file may be) stand
//! at the top of the module that enforces them. Clippy refuses names (`crates/clippy.toml`), and
//! rustc `unsafe` in a module that does not allow it.

#![forbid(unsafe_code)]

mod circles;
mod deps;
mod docs;
mod lints;
mod product;
mod questions;
mod report;
mod rust_source;
mod size;
mod tree;

use std::path::Path;
use std::process::{Command, ExitCode};

use report::Report;
use tree::Tree;

/// One check: its name on the command line and the function that fills the report.
type Check = (&'static str, fn(&Tree, &mut Report));

const CHECKS: [Check; 6] = [
    ("check-deps", deps::check),
    ("check-lints", lints::check),
    ("check-docs", docs::check),
    ("check-size", size::check),
    ("check-circles", circles::check),
    ("check-questions", questions::check),
];

const USAGE: &str = "usage: cargo xtask check | check-deps | check-lints | \
                     check-docs | check-size | check-circles | check-questions | circles | prepush";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root");
    let succeeded = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => run_checks(root, &CHECKS),
        ["prepush"] => prepush(root),
        ["circles"] => print_circles(root),
        [name] => match CHECKS.iter().find(|(known, _)| *known == name) {
            Some(check) => run_checks(root, &[*check]),
            None => return usage(),
        },
        _ => return usage(),
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Prints the circles of imports; true unless the repository cannot be read.
fn print_circles(root: &Path) -> bool {
    match Tree::load(root) {
        Ok(tree) => circles::print(&tree),
        Err(message) => eprintln!("xtask: {message}"),
    }
    true
}

/// Runs `checks` over the repository at `root`; true when none found a failure.
fn run_checks(root: &Path, checks: &[Check]) -> bool {
    let tree = match Tree::load(root) {
        Ok(tree) => tree,
        Err(message) => {
            eprintln!("xtask: {message}");
            return false;
        }
    };
    let mut all_good = true;
    for (name, check) in checks {
        let mut report = Report::default();
        check(&tree, &mut report);
        report.print();
        println!("{name}: {}", report.verdict());
        all_good &= report.failures.is_empty();
    }
    all_good
}

/// Formatting, lints, checks and tests: all of them run, all failures are named at the end.
fn prepush(root: &Path) -> bool {
    let mut failed = Vec::new();
    for (name, arguments) in [
        ("fmt", &["fmt", "--all", "--check"][..]),
        ("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"][..]),
        ("test", &["test", "--workspace", "--exclude", "guest-tests", "--no-fail-fast"][..]),
    ] {
        let status = Command::new(env!("CARGO")).args(arguments).current_dir(root).status();
        if !status.is_ok_and(|status| status.success()) {
            failed.push(name);
        }
    }
    if !run_checks(root, &CHECKS) {
        failed.push("check");
    }
    if failed.is_empty() {
        println!("prepush: ok");
    } else {
        println!("prepush: FAILED: {}", failed.join(", "));
    }
    failed.is_empty()
}
