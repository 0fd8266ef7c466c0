//! `unsafe` stands only in the modules listed here; crates without such a module forbid it.
//!
//! The list is short so that a reader who looks for memory errors knows where to look. Tests
//! count too: what is unsafe in a test is unsafe.

use std::path::Path;

use crate::allow::{Allow, warn_of_stale};
use crate::report::Report;
use crate::rust_source;
use crate::tree::{SourceFile, Tree};

/// Modules that may say `unsafe`, each with the reason.
const ALLOWED: [Allow; 33] = [
    all("crates/core/src/ring/*", "io_uring takes addresses that must outlive the operation"),
    all("crates/core/tests/allocations.rs", "a global allocator that counts"),
    all("crates/core/src/buf.rs", "buffers are aligned memory that a kernel writes to"),
    all("crates/core/src/bio.rs", "bios are linked into intrusive lists"),
    all("crates/core/src/list.rs", "the intrusive lists themselves"),
    all("crates/core/src/shared_list.rs", "an intrusive list that many threads add to"),
    all("crates/core/src/gate.rs", "its models look at what the gate guards"),
    all("crates/core/src/range_lock/model.rs", "its models look at what the lock guards"),
    all("crates/core/src/mailbox.rs", "a lock-free list of completions between contexts"),
    all("crates/core/src/clock.rs", "reads the system's clock and the cycle counter"),
    all("crates/core/src/primitive.rs", "membarrier is a system call without a safe wrapper"),
    all("crates/core/src/context/*", "owns what drivers hold until they give it back"),
    all("crates/core/src/sync/*", "locks hand out what they guard"),
    all("crates/core/src/signals.rs", "masks of signals have no safe wrapper"),
    all(
        "crates/raid/src/engine/shard/lent.rs",
        "memory of a write stands for a block of the cache",
    ),
    all("crates/raid/src/parity/kernels.rs", "calls functions that need instructions of the CPU"),
    all("crates/raid/src/parity/avx2.rs", "vectors are loaded and stored by address"),
    all("crates/raid/src/parity/avx512.rs", "vectors are loaded and stored by address"),
    all("crates/drivers/src/ram/store.rs", "its memory is copied to and from without a lock"),
    all("crates/drivers/tests/allocations.rs", "a global allocator that counts"),
    all("crates/drivers/tests/others.rs", "fork"),
    all("crates/drivers/examples/memcpy.rs", "reads the CPU clock of its thread"),
    all("crates/drivers/src/file/*", "system calls that the standard library lacks"),
    all("crates/exports/src/fuse/kernel/device.rs", "an ioctl of /dev/fuse"),
    all("crates/exports/src/fuse/server/ring.rs", "commands of io_uring name memory by address"),
    all("crates/exports/tests/fuse_costs/*", "a global allocator that counts"),
    all("crates/capi/src/calls.rs", "its callers are in C, and give pointers"),
    all("crates/capi/src/queue.rs", "I/O goes to and from memory that a C program owns"),
    all("crates/capi/tests/*", "they call what C programs call"),
    all("crates/drystone/src/alloc.rs", "a global allocator that counts"),
    all("benches/raid/src/main.rs", "takes in that allocator"),
    all("crates/sim/src/fiber.rs", "a fiber leaves its stack by a pointer to what called it"),
    all("crates/sim/src/world/*", "a simulated ring reads and writes the memory of its operations"),
];

const fn all(path: &'static str, reason: &'static str) -> Allow {
    Allow { path, reason }
}

/// Runs the check.
pub fn check(tree: &Tree, report: &mut Report) {
    check_with(tree, &ALLOWED, report);
    warn_of_stale(&ALLOWED, "check-unsafe", tree, report);
}

fn check_with(tree: &Tree, allowed: &[Allow], report: &mut Report) {
    for file in tree.rust_files() {
        if !allowed.iter().any(|allow| allow.covers(file.name())) {
            report_unsafe(file, report);
        }
    }
    for root in tree.packages.iter().flat_map(|package| &package.roots) {
        if is_crate_root(root) && !has_listed_module(root, allowed) {
            report_missing_forbid(tree, root, report);
        }
    }
}

fn report_unsafe(file: &SourceFile, report: &mut Report) {
    let stripped = rust_source::strip(&file.text);
    for token in rust_source::tokens(&stripped) {
        if token.text == "unsafe" {
            let message = "unsafe outside the listed modules (xtask/src/unsafety.rs)";
            report.fail_at(&file.path, token.line, message);
        }
    }
}

/// Libraries and programs; tests, benches and build scripts are covered by the word itself.
fn is_crate_root(root: &Path) -> bool {
    root.iter().any(|folder| folder == "src")
}

/// Whether a listed module belongs to the crate whose root file is `root`.
fn has_listed_module(root: &Path, allowed: &[Allow]) -> bool {
    let folder = root.parent().unwrap_or(Path::new(""));
    allowed.iter().any(|allow| Path::new(allow.path).starts_with(folder))
}

fn report_missing_forbid(tree: &Tree, root: &Path, report: &mut Report) {
    let Some(file) = tree.files.iter().find(|file| file.path == root) else { return };
    let stripped = rust_source::strip(&file.text);
    let words: Vec<&str> = rust_source::tokens(&stripped).iter().map(|token| token.text).collect();
    let forbid = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
    if !words.windows(forbid.len()).any(|window| window == forbid) {
        report.fail_at(&file.path, 1, "has no listed module, so it must #![forbid(unsafe_code)]");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Package;

    fn failures(path: &str, text: &str, allowed: &[Allow]) -> Vec<String> {
        let file = SourceFile { path: path.into(), text: text.to_owned() };
        let package =
            Package { name: "p".into(), dependencies: Vec::new(), roots: vec![path.into()] };
        let mut report = Report::default();
        let tree = Tree { files: vec![file], packages: vec![package], ..Tree::default() };
        check_with(&tree, allowed, &mut report);
        report.failures
    }

    #[test]
    fn unsafe_outside_the_list_is_found_in_code_only() {
        let source = "#![forbid(unsafe_code)]\n// unsafe\nfn f() { unsafe {} }";
        let found = failures("crates/a/src/lib.rs", source, &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/a/src/lib.rs:3:"));
    }

    #[test]
    fn a_crate_without_listed_modules_must_forbid() {
        assert_eq!(failures("crates/a/src/lib.rs", "// #![forbid(unsafe_code)]", &[]).len(), 1);
        assert!(failures("crates/a/src/lib.rs", "#![forbid(unsafe_code)]", &[]).is_empty());
        assert!(failures("crates/a/tests/t.rs", "fn f() {}", &[]).is_empty());
    }

    #[test]
    fn a_listed_module_may_hold_it_and_excuses_its_crate() {
        let allowed = [all("crates/a/src/lib.rs", "because")];
        assert!(failures("crates/a/src/lib.rs", "unsafe fn f() {}", &allowed).is_empty());
        assert_eq!(failures("crates/b/src/lib.rs", "unsafe fn f() {}", &allowed).len(), 2);
    }
}
