//! The header and the library say the same. Structures and constants: a C program prints what the
//! header has, and this test compares it with the Rust side; it is compiled as C and as C++.
//! Functions: the Rust compiler tells their types, and the C compiler compares them with the
//! header's.

#![allow(unsafe_code, reason = "they call what C programs call")]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_void};
use std::fmt::Write;
use std::mem::{MaybeUninit, offset_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use drystone_capi::abi::*;
use drystone_capi::calls::*;
use drystone_capi::stack::Stack;

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

/// The lines that the C program must print.
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

/// The C program on the front page of the library's documentation.
fn example() -> String {
    let page = include_str!("../src/lib.rs");
    let lines = page.lines().skip_while(|line| *line != "//! ```c").skip(1);
    let lines = lines.take_while(|line| *line != "//! ```");
    let lines = lines.map(|line| line.trim_start_matches("//!"));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

/// True if the C compiler takes a program, without a warning.
fn compiles(source: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("example.c");
    std::fs::write(&path, source).unwrap();
    let compiled = Command::new("timeout")
        .args(["60", "gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .arg(&path)
        .arg("-I")
        .arg(include())
        .output()
        .unwrap();
    eprintln!("is gcc installed?\n{}", String::from_utf8_lossy(&compiled.stderr));
    compiled.status.success()
}

#[test]
fn the_example_of_the_front_page_compiles() {
    let example = example();
    assert!(example.contains("int main(void)") && compiles(&example), "{example}");
    assert!(!compiles(&example.replace("drystone_submit(context,", "drystone_submit(stack,")));
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
    let declared: BTreeSet<String> =
        declarations().into_iter().map(|declared| declared.name.to_owned()).collect();
    assert_eq!(declared, exported, "the types of all of them are compared");
}

/// A type that functions take or give, by its name in C.
trait CType {
    const NAME: &'static str;
}

macro_rules! c_types {
    ($($rust:ty => $c:literal),* $(,)?) => {
        $(impl CType for $rust {
            const NAME: &'static str = $c;
        })*
    };
}

// A handle of C is not `const` there, whatever the library does with it.
c_types! {
    i32 => "int",
    u32 => "uint32_t",
    i64 => "int64_t",
    u64 => "uint64_t",
    usize => "size_t",
    *const c_char => "const char *",
    *mut c_char => "char *",
    *mut *mut c_void => "void **",
    *const Stack => "drystone_stack *",
    *mut *const Stack => "drystone_stack **",
    *mut Cell => "drystone_context *",
    *mut *mut Cell => "drystone_context **",
    *const Io => "const struct drystone_io *",
    *mut MaybeUninit<Completion> => "struct drystone_completion *",
    *mut Info => "struct drystone_device_info *",
}

/// A function whose types the compiler knows: first that of its result.
trait Signature {
    fn types(&self) -> Vec<&'static str>;
}

macro_rules! signature {
    ($($argument:ident)*) => {
        impl<R: CType, $($argument: CType),*> Signature
            for unsafe extern "C" fn($($argument),*) -> R
        {
            fn types(&self) -> Vec<&'static str> {
                vec![R::NAME, $($argument::NAME),*]
            }
        }
    };
}

signature!();
signature!(A);
signature!(A B);
signature!(A B C);
signature!(A B C D);
signature!(A B C D E);

/// A function as C declares it.
#[derive(Clone, Debug)]
struct Declared {
    name: &'static str,
    result: String,
    arguments: Vec<String>,
}

impl Declared {
    fn new(name: &'static str, function: impl Signature) -> Self {
        let mut types = function.types().into_iter().map(str::to_owned);
        let result = types.next().expect("the result's");
        Declared { name, result, arguments: types.collect() }
    }

    /// A line of C that compiles if the header declares the function with these types.
    fn assertion(&self) -> String {
        let Declared { name, result, arguments } = self;
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        format!(
            "_Static_assert(__builtin_types_compatible_p(__typeof__({name}), \
             {result}({arguments})), \"{name}\");"
        )
    }

    /// The same function with one thing changed.
    fn mutants(&self) -> Vec<Declared> {
        let mut mutants: Vec<Declared> = other_types(&self.result)
            .into_iter()
            .map(|result| Declared { result, ..self.clone() })
            .collect();
        for (at, argument) in self.arguments.iter().enumerate() {
            let with = |changed: Option<String>| {
                let mut mutant = self.clone();
                mutant.arguments.splice(at..=at, changed);
                mutant
            };
            mutants.push(with(None));
            mutants.extend(other_types(argument).into_iter().map(|other| with(Some(other))));
        }
        let mut longer = self.clone();
        longer.arguments.push("int".to_owned());
        mutants.push(longer);
        mutants
    }
}

/// Types that differ from `name` by width, sign, `const` or an asterisk.
fn other_types(name: &str) -> Vec<String> {
    let others: &[&str] = match name {
        "int" => &["unsigned int", "short", "int64_t"],
        "uint32_t" => &["int32_t", "uint16_t", "uint64_t"],
        "int64_t" => &["uint64_t", "int"],
        // On machines of 64 bits these two are one type, which nothing can tell apart there.
        "uint64_t" | "size_t" => &["int64_t", "uint32_t"],
        pointer => {
            let qualified = match pointer.strip_prefix("const ") {
                Some(rest) => rest.to_owned(),
                None => format!("const {pointer}"),
            };
            return vec![qualified, format!("{pointer}*"), "void *".to_owned()];
        }
    };
    others.iter().map(|other| (*other).to_owned()).collect()
}

macro_rules! declarations {
    ($($name:ident($($any:tt),*)),* $(,)?) => {
        vec![$(Declared::new(
            stringify!($name),
            $name as unsafe extern "C" fn($($any),*) -> _,
        )),*]
    };
}

fn declarations() -> Vec<Declared> {
    declarations![
        drystone_abi_version(),
        drystone_version(),
        drystone_last_error(),
        drystone_stack_open_file(_, _, _, _),
        drystone_stack_open_text(_, _, _, _, _),
        drystone_stack_close(_),
        drystone_stack_control(_, _, _, _),
        drystone_device_info(_, _, _),
        drystone_attribute_get(_, _, _, _, _),
        drystone_attribute_set(_, _, _, _),
        drystone_context_open(_, _),
        drystone_context_close(_, _),
        drystone_context_device(_, _),
        drystone_context_group(_, _),
        drystone_context_memory(_, _, _),
        drystone_submit(_, _, _),
        drystone_reap(_, _, _),
        drystone_poll(_, _, _),
        drystone_wait(_, _, _, _, _),
        drystone_context_wake(_),
        drystone_outstanding(_),
        drystone_context_event(_),
        drystone_context_clear(_),
        drystone_context_timeout(_),
    ]
}

/// The numbers of those `declared`, from 0, that the C compiler says are not as in `header`.
fn mismatches(header: &str, declared: &[Declared]) -> BTreeSet<usize> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("drystone.h"), header).unwrap();
    let lines: Vec<String> = declared.iter().map(Declared::assertion).collect();
    let source = format!("#include \"drystone.h\"\n{}\n", lines.join("\n"));
    std::fs::write(folder.path().join("types.c"), source).unwrap();
    let Output { status, stderr, .. } = Command::new("timeout")
        .args(["60", "gcc", "-std=gnu11", "-fsyntax-only", "types.c"])
        .env("LC_ALL", "C")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&stderr);
    let errors = messages.lines().filter(|line| line.contains(": error: "));
    // The first line is the include.
    let wrong: BTreeSet<usize> = errors
        .map(|error| {
            let place = error.strip_prefix("types.c:").and_then(|rest| rest.split(':').next());
            place.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{messages}"))
        })
        .map(|line: usize| line - 2)
        .collect();
    assert_eq!(status.success(), wrong.is_empty(), "is gcc installed?\n{messages}");
    wrong
}

#[test]
fn prototypes_are_those_of_the_functions() {
    let declared = declarations();
    let wrong = mismatches(HEADER, &declared);
    let wrong: Vec<&Declared> = wrong.into_iter().map(|at| &declared[at]).collect();
    assert!(wrong.is_empty(), "drystone.h says otherwise: {wrong:#?}");
}

/// The comparison itself: it sees each change of each function.
#[test]
fn a_function_of_other_types_would_be_seen() {
    let mutants: Vec<Declared> = declarations().iter().flat_map(Declared::mutants).collect();
    assert!(mutants.len() > 200, "{}", mutants.len());
    let seen = mismatches(HEADER, &mutants);
    let missed: Vec<&Declared> =
        (0..mutants.len()).filter(|at| !seen.contains(at)).map(|at| &mutants[at]).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The same from the other side.
#[test]
fn a_header_of_other_types_would_be_seen() {
    let declared = declarations();
    for (from, to, function) in [
        (
            "close(drystone_context *context, uint64_t timeout)",
            "close(drystone_context *context, uint32_t timeout)",
            "drystone_context_close",
        ),
        ("const struct drystone_io *ios", "struct drystone_io *ios", "drystone_submit"),
        ("		  size_t least, uint64_t timeout);", "		  size_t least);", "drystone_wait"),
        ("int64_t drystone_outstanding", "int drystone_outstanding", "drystone_outstanding"),
        ("const char *drystone_version", "char *drystone_version", "drystone_version"),
        ("int drystone_poll(", "int drystone_polls(", "drystone_poll"),
    ] {
        assert_eq!(HEADER.matches(from).count(), 1, "{from}");
        let seen = mismatches(&HEADER.replace(from, to), &declared);
        let seen: Vec<&str> = seen.into_iter().map(|at| declared[at].name).collect();
        assert_eq!(seen, [function], "{to}");
    }
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
