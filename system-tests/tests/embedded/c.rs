//! Programs in C: the example, alone and under valgrind; a program that forks; the library's
//! exports.

use std::collections::BTreeSet;
use std::path::Path;

use system_tests::client::demand;
use system_tests::{new_folder, requires, run, shell};

use super::{libraries, repository, run_embedded};

/// The library's path, if the test can go on.
fn library() -> Option<String> {
    let library = libraries().join("libdrystone.so.1");
    let what = format!(
        "{} does not exist (`DRYSTONE_PROFILE=dev scripts/capi.sh` builds it)",
        library.display()
    );
    (requires("gcc") && demand(library.exists(), &what)).then(|| library.display().to_string())
}

/// Compiles a program of the repository to `folder/embed`.
fn compile(folder: &Path, source: &str) {
    let script = "gcc -std=c11 -Wall -Wextra -Werror -g -I \"$1\" \"$2\" -L \"$3\" \
        -Wl,-rpath,\"$3\" -ldrystone -o embed";
    let paths = [repository("crates/capi/include"), repository(source), libraries().into()];
    let paths = paths.map(|path| path.display().to_string());
    shell(folder, script, &paths.each_ref().map(String::as_str)).ok();
}

#[test]
fn the_example_runs() {
    let Some(_) = library() else { return };
    let folder = new_folder();
    compile(folder.path(), "examples/c/embed.c");
    let said = run_embedded(folder.path(), &["./embed"]).ok();
    assert!(said.contains("8 blocks written and read back"), "{said}");
}

/// With io_uring, and without, where a file has helper threads.
#[test]
fn a_child_of_fork_is_refused_and_its_parent_goes_on() {
    let Some(_) = library() else { return };
    let folder = new_folder();
    compile(folder.path(), "system-tests/tests/embedded/fork.c");
    let said = run_embedded(folder.path(), &["./embed"]).ok();
    assert_eq!(said, "the child had a stack of its own\nthe parent went on\n");
}

#[test]
fn the_example_runs_under_valgrind() {
    let Some(_) = library().filter(|_| requires("valgrind")) else { return };
    let folder = new_folder();
    compile(folder.path(), "examples/c/embed.c");
    let valgrind = ["valgrind", "--error-exitcode=1", "--leak-check=full", "./embed"];
    let outcome = run_embedded(folder.path(), &valgrind);
    let messages = outcome.stderr.clone();
    assert!(outcome.ok().contains("8 blocks written and read back"));
    assert!(messages.contains("ERROR SUMMARY: 0 errors"), "{messages}");
}

/// The example stays one that is read at a glance.
#[test]
fn the_examples_are_short() {
    for example in ["examples/c/embed.c", "crates/stack/examples/embed.rs"] {
        let text = std::fs::read_to_string(repository(example)).expect("it is there");
        assert!(text.lines().count() < 100, "{example}");
    }
}

#[test]
fn the_library_has_its_name_and_exports_its_functions_only() {
    let Some(library) = library().filter(|_| requires("readelf")) else { return };
    let folder = new_folder();
    let dynamic = run(folder.path(), &["readelf", "-d", &library]).ok();
    assert!(dynamic.contains("soname: [libdrystone.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    let said = run(folder.path(), &["readelf", "--dyn-syms", "-W", &library]).ok();
    let defined = said.lines().filter(|line| line.contains(" GLOBAL ") && !line.contains(" UND "));
    let exported: BTreeSet<&str> =
        defined.filter_map(|line| line.split_whitespace().last()).collect();
    let ours = |name: &&&str| name.starts_with("drystone_");
    let others: Vec<_> = exported.iter().filter(|name| !ours(name)).collect();
    assert!(others.is_empty(), "{others:?}");
    let header = std::fs::read_to_string(repository("crates/capi/include/drystone.h"));
    let header = header.expect("it is there");
    assert!(exported.iter().all(|name| header.contains(&format!("{name}("))), "{exported:?}");
    assert!(exported.contains("drystone_submit"));
}
