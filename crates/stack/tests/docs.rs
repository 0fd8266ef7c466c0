//! The committed documentation is what the schema generates, and its examples are good stacks.
//!
//! `UPDATE_DOCS=1 cargo test -p drystone-stack --test docs` writes the pages again.

use std::fs;
use std::path::{Path, PathBuf};

use drystone_stack::{DEFAULT_STACK, Source, control, parse, schema};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn compare(name: &str, generated: &str) {
    let path = root().join("docs").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == generated, "docs/{name} is not what the schema says: run UPDATE_DOCS=1");
}

#[test]
fn the_pages_are_up_to_date() {
    compare("stack-file.md", &schema::markdown());
    compare("control.md", &control::markdown());
}

/// Fenced `toml` blocks with the line they start at.
fn examples(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.trim()) {
            (None, "```toml") => open = Some((number + 2, String::new())),
            (Some(_), "```") => found.extend(open.take()),
            (Some((_, block)), _) => block.extend([line, "\n"]),
            (None, _) => {}
        }
    }
    found
}

#[test]
fn every_example_of_the_docs_is_a_good_stack() {
    let mut pages = vec![root().join("README.md")];
    let docs = fs::read_dir(root().join("docs")).unwrap();
    pages.extend(
        docs.map(|entry| entry.unwrap().path()).filter(|p| p.extension() == Some("md".as_ref())),
    );
    let mut checked = 0;
    for page in pages.iter().filter(|page| page.exists()) {
        for (line, text) in examples(&fs::read_to_string(page).unwrap()) {
            let name = format!("{}:{line}", page.display());
            let stack = parse("example", Source { name, text }, Path::new("/srv"));
            let stack = stack.unwrap_or_else(|report| panic!("{report}"));
            assert!(stack.warnings.is_empty(), "{}: {:?}", page.display(), stack.warnings);
            checked += 1;
        }
    }
    assert!(checked >= 3, "only {checked} examples were found");
}

#[test]
fn the_default_stack_is_good() {
    let source = Source { name: "default".to_owned(), text: DEFAULT_STACK.to_owned() };
    let stack = parse("default", source, Path::new("/srv")).unwrap();
    assert!(stack.warnings.is_empty());
    assert_eq!(stack.sizes["disk3"], 4 << 30);
    assert!(stack.exports[0].default);
}

#[test]
fn help_names_every_key() {
    let help = schema::help_text();
    let kinds = schema::DEVICE_KINDS.iter().flat_map(|kind| kind.params);
    let sections = [
        schema::DEVICE_COMMON,
        schema::QUEUE,
        schema::EXPORT,
        schema::IO_PRIO,
        schema::TLS,
        schema::GROUP,
        schema::GROUP_IO,
        schema::SERVER,
    ];
    for param in kinds.chain(sections.into_iter().flatten()) {
        assert!(help.contains(&format!("\n  {}\n", param.key)), "{}", param.key);
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = words(&control::help_text());
    for command in control::COMMANDS {
        assert!(help.contains(&words(command.doc)), "{}", command.name);
    }
}
