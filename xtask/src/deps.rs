//! Which crate may import which.
//!
//! The crates stand in one order and import only what stands before them, so that the way of an
//! I/O can be read from top to bottom and no cycle of concepts arises. Dependencies of tests
//! count too: a test that needs a later crate belongs to the later crate.

use crate::report::Report;
use crate::tree::{Package, Tree};

/// Our crates, lowest first. A crate may import those before it.
const ORDER: [&str; 16] = [
    "drystone-core",
    "drystone-queue",
    "drystone-throttle",
    "drystone-targets",
    "drystone-parity",
    "drystone-raid",
    "drystone-drivers",
    "drystone-exports",
    "drystone-testkit",
    "drystone-stack",
    "drystone-bench",
    "drystone-capi",
    "drystone-fio",
    "drystone",
    "drystone-lab",
    "drystone-sim",
];

/// Crates that stand side by side: a crate of one family imports none of another family.
/// A target knows its children only as devices, a driver knows no export, and the other way round.
const FAMILIES: [&[&str]; 3] = [
    &["drystone-targets", "drystone-parity", "drystone-raid"],
    &["drystone-drivers"],
    &["drystone-exports"],
];

/// Packages for developers: they may import everything and nothing imports them.
const TOOLS: [&str; 5] =
    ["xtask", "system-tests", "guest-tests", "drystone-fuzz", "drystone-bench-raid"];

/// The crates whose tests may import [`TESTKIT`], which comes later and is built on some of them.
const TESTED_BY_TESTKIT: [&str; 6] = [
    "drystone-core",
    "drystone-queue",
    "drystone-throttle",
    "drystone-targets",
    "drystone-drivers",
    "drystone-exports",
];

/// The parts that tests share.
const TESTKIT: &str = "drystone-testkit";

/// Crates of others that ours must not import, and what to do instead. Clippy refuses names of the
/// standard library (`crates/clippy.toml`).
const REFUSED: [(&str, &str); 1] =
    [("parking_lot", "take a lock with a named class from drystone_core::sync")];

/// Runs the check.
pub fn check(tree: &Tree, report: &mut Report) {
    for package in &tree.packages {
        check_package(package, report);
    }
}

fn check_package(package: &Package, report: &mut Report) {
    let name = package.name.as_str();
    if TOOLS.contains(&name) {
        return;
    }
    let Some(rank) = rank(name) else {
        report.fail(format!("{name}: has no place in the order of crates (xtask/src/deps.rs)"));
        return;
    };
    for dependency in &package.dependencies {
        if let Some(reason) = refusal(name, rank, dependency) {
            report.fail(format!("{name}: must not import {dependency}: {reason}"));
        }
    }
}

/// Why a crate of ours must not import `dependency`; nothing if it may.
fn refusal(name: &str, own_rank: usize, dependency: &str) -> Option<&'static str> {
    if TOOLS.contains(&dependency) {
        return Some("it is a tool for developers");
    }
    if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| *refused == dependency) {
        return Some(instead);
    }
    if dependency == TESTKIT && TESTED_BY_TESTKIT.contains(&name) {
        return None;
    }
    match rank(dependency) {
        None if dependency.starts_with("drystone") => Some("it has no place in the order"),
        None => None,
        Some(rank) if rank >= own_rank => Some("it comes later in the order of crates"),
        Some(_) => match (family(name), family(dependency)) {
            (Some(own), Some(other)) if own != other => Some("the two stand side by side"),
            _ => None,
        },
    }
}

fn rank(name: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == name)
}

fn family(name: &str) -> Option<usize> {
    FAMILIES.iter().position(|family| family.contains(&name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tree::parse_packages;

    fn failures_of(name: &str, dependencies: &[&str]) -> Vec<String> {
        let package = Package {
            name: name.to_owned(),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
        };
        let tree = Tree { packages: vec![package], ..Tree::default() };
        let mut report = Report::default();
        check(&tree, &mut report);
        report.failures
    }

    #[test]
    fn lower_crates_and_foreign_crates_may_be_imported() {
        assert!(failures_of("drystone-exports", &["drystone-core", "libc"]).is_empty());
        assert!(failures_of("drystone-stack", &["drystone-exports", "drystone-raid"]).is_empty());
        assert!(failures_of("drystone-raid", &["drystone-targets"]).is_empty());
        assert!(failures_of("xtask", &["drystone"]).is_empty());
        assert!(failures_of("drystone-exports", &["drystone-testkit"]).is_empty());
        assert!(!failures_of("drystone-raid", &["drystone-testkit"]).is_empty());
    }

    #[test]
    fn later_crates_are_refused_and_all_of_them_are_named() {
        let failures = failures_of("drystone-core", &["drystone-queue", "drystone"]);
        assert_eq!(failures.len(), 2);
        assert!(failures[0].contains("comes later"));
    }

    #[test]
    fn siblings_tools_and_strangers_are_refused() {
        assert!(failures_of("drystone-drivers", &["drystone-targets"])[0].contains("side by side"));
        assert!(failures_of("drystone-exports", &["drystone-drivers"])[0].contains("side by side"));
        assert!(failures_of("drystone-exports", &["drystone-raid"])[0].contains("side by side"));
        assert!(failures_of("drystone", &["xtask"])[0].contains("tool"));
        assert!(failures_of("drystone", &["parking_lot"])[0].contains("drystone_core::sync"));
        assert!(failures_of("drystone", &["drystone-odd"])[0].contains("no place"));
        assert!(failures_of("drystone-odd", &[])[0].contains("no place"));
    }

    #[test]
    fn metadata_yields_dependencies_of_every_kind() {
        let metadata = json!({ "packages": [{
            "name": "drystone-core",
            "dependencies": [{ "name": "libc", "kind": null }, { "name": "xtask", "kind": "dev" }],
        }]});
        let packages = parse_packages(&metadata);
        assert_eq!(packages[0].dependencies, ["libc", "xtask"]);
    }
}
