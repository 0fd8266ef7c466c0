//! The header and the library say the same: a C program prints what the header has, and this test
//! compares it with the Rust side. It is compiled as C and as C++.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use drystone_capi::abi::*;

const HEADER: &str = include_str!("../include/drystone.h");
const CALLS: &str = include_str!("../src/calls.rs");

/// A structure's name and size, and its fields' names, offsets and sizes.
type Layout = (&'static str, usize, Vec<(&'static str, usize, usize)>);

/// Names of the header's structures with their fields as C has them.
fn layouts() -> Vec<Layout> {
    macro_rules! layout {
        ($name:literal, $type:ty, $($field:ident: $size:ty),*) => {
            ($name, size_of::<$type>(), vec![
                $((stringify!($field), offset_of!($type, $field), size_of::<$size>())),*
            ])
        };
    }
    vec![
        layout!("drystone_io", Io, tag: u64, offset: u64, length: u64, buffer: usize, device: u32,
            vectors: u32, op: u16, flags: u16, priority_class: u8, priority_level: u8,
            reserved: u16),
        layout!("drystone_completion", Completion, tag: u64, result: i32, reserved: u32),
        layout!("drystone_device_info", Info, size: u64, max_discard: u64, max_write_zeroes: u64,
            logical_block: u32, physical_block: u32, io_min: u32, io_opt: u32,
            memory_alignment: u32, features: u32),
    ]
}

/// Names of the header's constants with their values.
fn constants() -> Vec<(String, u64)> {
    let ops = OPS.iter().map(|(name, op)| ((*name).to_owned(), *op as u64));
    let flags = FLAGS.iter().map(|(name, flag)| ((*name).to_owned(), flag.bits().into()));
    let classes = PRIORITY_CLASSES.iter().enumerate().map(|(n, c)| ((*c).to_owned(), n as u64));
    let features = FEATURES.iter().enumerate().map(|(n, name)| ((*name).to_owned(), 1u64 << n));
    let own = [("DRYSTONE_ABI_VERSION", ABI_VERSION.into()), ("DRYSTONE_FOREVER", FOREVER)];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    ops.chain(flags).chain(classes).chain(features).chain(own).collect()
}

/// What the C program is to print, line by line.
fn expected() -> Vec<String> {
    let mut lines = Vec::new();
    for (name, size, fields) in layouts() {
        lines.push(format!("{name} {size}"));
        for (field, offset, size) in fields {
            lines.push(format!("{name}.{field} {offset} {size}"));
        }
    }
    lines.extend(constants().iter().map(|(name, value)| format!("{name} {value}")));
    lines
}

fn program() -> String {
    let mut text = String::from("#include <stdio.h>\n#include \"drystone.h\"\nint main(void)\n{\n");
    for (name, _, fields) in layouts() {
        let _ = writeln!(text, "printf(\"{name} %zu\\n\", sizeof(struct {name}));");
        for (field, ..) in fields {
            let _ = writeln!(
                text,
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof(struct {name}, {field}), \
                 sizeof(((struct {name} *)0)->{field}));"
            );
        }
    }
    for (name, _) in constants() {
        let _ = writeln!(text, "printf(\"{name} %llu\\n\", (unsigned long long){name});");
    }
    text + "return 0;\n}\n"
}

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn printed(compiler: &str, language: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("header.c"), folder.path().join("header"));
    std::fs::write(&source, program()).unwrap();
    let compiled = Command::new("timeout")
        .args(["60", compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language])
        .arg(&source)
        .arg("-I")
        .arg(include())
        .arg("-o")
        .arg(&binary)
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.success(), "{compiler}: is it installed?\n{messages}");
    let run = Command::new("timeout").arg("60").arg(&binary).output().unwrap();
    assert!(run.status.success());
    String::from_utf8(run.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn types_and_constants_are_those_of_the_header() {
    assert_eq!(printed("gcc", "c"), expected());
    assert_eq!(printed("g++", "c++"), expected());
}

/// Words that begin with `drystone_` and are followed by `(`, in lines that are no comments.
fn functions(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let mut found = BTreeSet::new();
    for line in code {
        for (at, _) in line.match_indices("drystone_") {
            let word: String =
                line[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if line[at + word.len()..].starts_with('(') {
                found.insert(word);
            }
        }
    }
    found
}

#[test]
fn functions_are_those_of_the_header() {
    let exported = CALLS.split("#[unsafe(no_mangle)]").skip(1);
    let exported: BTreeSet<String> = exported
        .map(|item| {
            let name = item.split_once("extern \"C\" fn ").expect("a function").1;
            name.split('(').next().unwrap().to_owned()
        })
        .collect();
    assert!(exported.len() > 15, "{exported:?}");
    assert_eq!(functions(HEADER), exported);
}

/// Every enumerator of the header is compared above.
#[test]
fn no_constant_of_the_header_is_left_out() {
    let known: BTreeSet<String> = constants().into_iter().map(|(name, _)| name).collect();
    let named = HEADER.lines().filter_map(|line| {
        let define = line.strip_prefix("#define ").unwrap_or(line.trim());
        let word = define.split([' ', ',', '\t']).next().unwrap_or_default();
        let is_constant = word.starts_with("DRYSTONE_") && word != "DRYSTONE_H";
        (is_constant && !line.starts_with(" *")).then(|| word.to_owned())
    });
    assert_eq!(named.collect::<BTreeSet<_>>(), known);
}
