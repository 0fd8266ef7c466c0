//! Names that are refused: ambient time, threads and randomness above the drivers, and locks
//! everywhere outside the one module that names and counts them.
//!
//! Everything with a clock, a thread or a random number in it must be repeatable in a simulator,
//! so such things come in as parameters. A name that slips in would make a seed lie.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::allow::{Allow, warn_of_stale};
use crate::report::Report;
use crate::rust_source::{self, PathUse};
use crate::tree::{SourceFile, Tree};

/// Where a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// In every crate of ours.
    Everywhere,
    /// In the crates above the drivers ([`ABOVE_DRIVERS`]).
    AboveDrivers,
}

/// A refused name.
struct Ban {
    /// Its name in excuses and messages.
    name: &'static str,
    /// Segments that follow one another in a path; a trailing `$` must end the path.
    segments: &'static [&'static str],
    scope: Scope,
    /// What to do instead.
    instead: &'static str,
}

const ONE_LOCK_MODULE: &str = "take a lock with a named class from drystone_core::sync";
const GUARDED: &str = "start it by drystone_core::threads: a panic of it ends the process, and nobody waits for what it left";
const CLOCK: &str = "take the time from the clock that was passed in";
const NO_THREADS: &str = "the context of the caller does the work; nothing here knows threads";
const ORDERED: &str = "use BTreeMap, BTreeSet or Vec: hash order differs from run to run";
const BY_NAME: &str = "import what is needed from std::sync by its own name";

const fn everywhere(
    name: &'static str,
    segments: &'static [&'static str],
    instead: &'static str,
) -> Ban {
    Ban { name, segments, scope: Scope::Everywhere, instead }
}

const fn above_drivers(
    name: &'static str,
    segments: &'static [&'static str],
    instead: &'static str,
) -> Ban {
    Ban { name, segments, scope: Scope::AboveDrivers, instead }
}

const BANS: [Ban; 24] = [
    everywhere("Mutex", &["std", "sync", "Mutex"], ONE_LOCK_MODULE),
    everywhere("RwLock", &["std", "sync", "RwLock"], ONE_LOCK_MODULE),
    everywhere("Condvar", &["std", "sync", "Condvar"], ONE_LOCK_MODULE),
    everywhere("Barrier", &["std", "sync", "Barrier"], ONE_LOCK_MODULE),
    everywhere("std::sync", &["std", "sync", "$"], BY_NAME),
    everywhere("std::sync", &["std", "sync", "self"], BY_NAME),
    everywhere("std::sync", &["std", "sync", "*"], BY_NAME),
    everywhere("parking_lot", &["parking_lot"], ONE_LOCK_MODULE),
    everywhere("thread::Builder", &["thread", "Builder"], GUARDED),
    everywhere("thread::spawn", &["thread", "spawn"], GUARDED),
    above_drivers("spin_loop", &["spin_loop"], "publish the work and go on; nothing here spins"),
    above_drivers("thread_local!", &["thread_local"], "keep the state in the context"),
    above_drivers("Instant::now", &["Instant", "now"], CLOCK),
    above_drivers("SystemTime", &["SystemTime"], CLOCK),
    above_drivers("UNIX_EPOCH", &["UNIX_EPOCH"], CLOCK),
    above_drivers("RandomState", &["RandomState"], ORDERED),
    above_drivers("HashMap", &["HashMap"], ORDERED),
    above_drivers("HashMap", &["hash_map"], ORDERED),
    above_drivers("HashSet", &["HashSet"], ORDERED),
    above_drivers("HashSet", &["hash_set"], ORDERED),
    above_drivers("std::thread", &["std", "thread"], NO_THREADS),
    above_drivers("std::thread", &["thread", "spawn"], NO_THREADS),
    above_drivers("std::thread", &["thread", "sleep"], NO_THREADS),
    above_drivers("std::thread", &["thread", "current"], NO_THREADS),
];

/// Paths that hold a refused name and are fine: they depend on nothing that a seed leaves open.
const HARMLESS: [&[&str]; 1] = [&["thread", "panicking"]];

/// Folders whose code runs in the simulator, and takes everything ambient as a parameter.
const ABOVE_DRIVERS: [&str; 6] = [
    "crates/core/src/",
    "crates/queue/src/",
    "crates/throttle/src/",
    "crates/targets/src/",
    "crates/raid/src/",
    "crates/exports/src/",
];

/// Modules excused from a name, each with the reason.
const ALLOWED: [Allow; 10] = [
    Allow {
        path: "crates/core/src/sync/*",
        names: &["Mutex", "RwLock", "Condvar", "spin_loop", "std::thread", "std::sync"],
        reason: "this is the one module of locks and counted spins",
    },
    Allow {
        path: "crates/core/src/primitive.rs",
        names: &["Mutex", "Condvar", "spin_loop", "std::thread", "std::sync"],
        reason: "here the names of std and of the model checker are swapped",
    },
    Allow {
        path: "crates/core/src/sim/points.rs",
        names: &["thread_local!", "std::thread"],
        reason: "the simulator takes hold of its own thread here; a product build has none of it",
    },
    Allow {
        path: "crates/core/src/blocking.rs",
        names: &["thread_local!", "std::thread"],
        reason: "what a thread may do is a property of the thread",
    },
    Allow {
        path: "crates/sim/src/world/mod.rs",
        names: &["Mutex"],
        reason: "a world is one thread's, and must only be able to move; its lock is never waited for",
    },
    Allow {
        path: "crates/core/src/clock.rs",
        names: &["Instant::now", "SystemTime", "UNIX_EPOCH"],
        reason: "this is the real clock, which is passed in to everything else",
    },
    Allow {
        path: "crates/core/src/ring/helpers.rs",
        names: &["std::thread"],
        reason: "without io_uring, helper threads make the blocking calls",
    },
    Allow {
        path: "crates/core/src/threads.rs",
        names: &["std::thread", "thread::Builder", "thread::spawn"],
        reason: "this is the one place that starts threads of the product",
    },
    Allow {
        path: "crates/lab/src/*",
        names: &["thread::Builder", "thread::spawn"],
        reason: "a laboratory joins its threads, and serves nobody",
    },
    Allow {
        path: "crates/exports/src/nbd/tls.rs",
        names: &["SystemTime", "UNIX_EPOCH"],
        reason: "certificates are judged by the calendar",
    },
];

/// Runs the check.
pub fn check(tree: &Tree, report: &mut Report) {
    let tests = test_files(tree);
    for file in tree.rust_files().filter(|file| is_product_code(file, &tests)) {
        check_file(file, &ALLOWED, report);
    }
    warn_of_stale(&ALLOWED, "check-names", tree, report);
}

fn check_file(file: &SourceFile, allowed: &[Allow], report: &mut Report) {
    let source = rust_source::without_tests(&rust_source::strip(&file.text));
    let tokens = rust_source::tokens(&source);
    let above_drivers = ABOVE_DRIVERS.iter().any(|folder| file.name().starts_with(folder));
    let mut seen = BTreeSet::new();
    for path in rust_source::paths(&tokens) {
        for ban in &BANS {
            let applies = ban.scope == Scope::Everywhere || above_drivers;
            let excused = || allowed.iter().any(|allow| allow.permits(file.name(), ban.name));
            if applies && matches(ban, &path) && !excused() && seen.insert((path.line, ban.name)) {
                let message = format!("{} is refused here: {}", ban.name, ban.instead);
                report.fail_at(&file.path, path.line, &message);
            }
        }
    }
}

fn matches(ban: &Ban, path: &PathUse<'_>) -> bool {
    if HARMLESS.iter().any(|harmless| path.segments.ends_with(harmless)) {
        return false;
    }
    match ban.segments.strip_suffix(&["$"]) {
        Some(whole) => path.segments == whole,
        None => path.segments.windows(ban.segments.len()).any(|part| part == ban.segments),
    }
}

/// Product code is what lies below `crates/` and is neither a test nor a bench.
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
    for file in tree.rust_files() {
        let folder = module_folder(&file.path);
        for module in rust_source::test_modules(&rust_source::strip(&file.text)) {
            found.push(folder.join(format!("{module}.rs")));
            found.push(folder.join(module));
        }
    }
    found
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

    fn failures(files: &[(&str, &str)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|(path, text)| SourceFile { path: path.into(), text: (*text).to_owned() })
            .collect();
        let mut report = Report::default();
        check(&Tree { files, ..Tree::default() }, &mut report);
        report.failures
    }

    const QUEUE: &str = "crates/queue/src/lib.rs";
    const DRIVER: &str = "crates/drivers/src/file.rs";

    #[test]
    fn each_refused_name_is_found_above_the_drivers() {
        for source in [
            "thread_local! { static X: u8 = 0; }",
            "let t = Instant::now();",
            "let t = std::time::Instant::now();",
            "use std::time::SystemTime;",
            "use std::collections::{BTreeMap, HashMap};",
            "let s: HashSet<u8>;",
            "use std::hash::RandomState;",
            "std::thread::yield_now();",
            "use std::{thread, fmt};",
            "thread::spawn(f);",
            "core::hint::spin_loop();",
            "use parking_lot::RwLock;",
            "use std::sync::Mutex;",
            "use std::sync::{Arc, RwLock};",
            "let c = std::sync::Condvar::new();",
            "use std::sync; fn f() { sync::Mutex::new(0); }",
            "use std::sync::*;",
        ] {
            assert!(!failures(&[(QUEUE, source)]).is_empty(), "{source}");
        }
    }

    #[test]
    fn every_finding_is_reported_with_its_line() {
        let found = failures(&[(QUEUE, "use std::sync::Mutex;\n\nfn f() { Instant::now(); }")]);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("crates/queue/src/lib.rs:1: Mutex"));
        assert!(found[1].starts_with("crates/queue/src/lib.rs:3: Instant::now"));
    }

    #[test]
    fn below_and_beside_only_locks_are_refused() {
        assert!(failures(&[(DRIVER, "fn f() { Instant::now(); thread::sleep(t); }")]).is_empty());
        assert_eq!(failures(&[(DRIVER, "use std::sync::{Arc, Mutex};")]).len(), 1);
        assert_eq!(
            failures(&[("crates/drystone/src/main.rs", "std::sync::RwLock::new(0)")]).len(),
            1
        );
    }

    #[test]
    fn threads_are_started_by_the_module_that_guards_them() {
        for source in [
            "fn f() { std::thread::spawn(g); }",
            "use std::thread; fn f() { thread::Builder::new().spawn(g); }",
            "use std::thread::{Builder, JoinHandle};",
            "use std::thread::spawn;",
        ] {
            for path in [DRIVER, "crates/stack/src/lib.rs", "crates/drystone/src/main.rs"] {
                let found = failures(&[(path, source)]);
                assert!(
                    found.len() == 1 && found[0].contains("core::threads"),
                    "{source}: {found:?}"
                );
            }
            assert!(failures(&[("crates/core/src/threads.rs", source)]).is_empty(), "{source}");
        }
        let scoped = "fn f() { std::thread::scope(|s| s.spawn(g).join()); }";
        assert!(failures(&[(DRIVER, scoped)]).is_empty(), "who starts these waits for them");
    }

    #[test]
    fn comments_literals_and_similar_names_do_not_count() {
        let source = "// std::sync::Mutex\nconst A: &str = \"Instant::now\"; use std::sync::Arc; \
                      use std::sync::atomic::AtomicU64; struct HashMapper; use crate::sync::{Lock, Mutex}; \
                      fn f() { assert!(!std::thread::panicking()); }";
        assert_eq!(failures(&[(QUEUE, source)]), Vec::<String>::new());
    }

    #[test]
    fn test_code_is_exempt() {
        let test = "use std::sync::Mutex; fn f() { std::thread::spawn(g); }";
        let inside = format!("#[cfg(test)] mod tests {{ {test} }}");
        assert!(failures(&[(QUEUE, &inside)]).is_empty());
        assert!(failures(&[("crates/queue/tests/wake.rs", test)]).is_empty());
        let outside = [(QUEUE, "#[cfg(test)] mod model;"), ("crates/queue/src/model.rs", test)];
        assert!(failures(&outside).is_empty());
        assert!(!failures(&outside[1..]).is_empty(), "without its declaration it is product code");
    }

    #[test]
    fn an_excuse_allows_its_names_in_its_files_and_nothing_else() {
        let allowed =
            [Allow { path: "crates/core/src/clock.rs", names: &["Instant::now"], reason: "" }];
        let count = |path: &str, text: &str| {
            let mut report = Report::default();
            let file = SourceFile { path: path.into(), text: text.to_owned() };
            check_file(&file, &allowed, &mut report);
            report.failures.len()
        };
        assert_eq!(count("crates/core/src/clock.rs", "Instant::now()"), 0);
        assert_eq!(count("crates/core/src/clock.rs", "use std::thread;"), 1);
        assert_eq!(count("crates/core/src/other.rs", "Instant::now()"), 1);
    }
}
