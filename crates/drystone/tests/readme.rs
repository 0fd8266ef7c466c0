//! The commands of README.md work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use drystone_testkit::program::{Program, both};
use tempfile::TempDir;

fn repository() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

fn readme() -> String {
    fs::read_to_string(repository().join("README.md")).unwrap()
}

/// In a folder that holds nothing, one after the other, but with less to write and for less time.
#[test]
fn its_benchmarks_run() {
    let (readme, folder) = (readme(), TempDir::new().unwrap());
    let lines: Vec<&str> =
        readme.lines().filter(|line| line.starts_with("drystone bench")).collect();
    for kind in ["null", "ram,", "file,"] {
        let device = format!("--device {kind}");
        assert!(lines.iter().any(|line| line.contains(&device)), "{device}: {lines:?}");
    }
    for line in lines {
        let line = line.split('#').next().unwrap().replace("size=1GiB", "size=8MiB");
        let words = line.split_whitespace().skip(1).chain("--runtime 50ms --warmup 1ms".split(' '));
        let program = Program::new(env!("CARGO_BIN_EXE_drystone"));
        let output = program.command(folder.path()).args(words).output().unwrap();
        let said = both(&output);
        assert!(output.status.success() && said.contains("average: IOPS="), "{line}\n{said}");
        assert!(!said.contains("sparse"), "{line}\n{said}");
    }
}

/// It says where the program is, and how it gets onto the path.
#[test]
fn the_program_is_installed_as_it_says() {
    let readme = readme();
    for words in ["The program is `target/release/drystone`", "`make build install` puts it into"] {
        assert!(readme.contains(words), "{words}");
    }
    let folder = TempDir::new().unwrap();
    let built = folder.path().join("target/release");
    fs::create_dir_all(&built).unwrap();
    fs::write(built.join("drystone"), "the program").unwrap();
    fs::write(built.join("drystone-lab"), "the laboratory").unwrap();
    let mut make = Command::new("make");
    make.arg("-f").arg(repository().join("Makefile")).arg("install").current_dir(folder.path());
    // A PREFIX that was given to an outer make would go before ours.
    for variable in ["CARGO_TARGET_DIR", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"] {
        make.env_remove(variable);
    }
    let output = make.env("PREFIX", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    let installed = |name: &str| fs::read_to_string(folder.path().join("bin").join(name)).ok();
    assert_eq!(installed("drystone").as_deref(), Some("the program"));
    assert_eq!(installed("drystone-lab").as_deref(), Some("the laboratory"));
    assert_eq!(installed("drystone-sim"), None, "it was not built");
}
