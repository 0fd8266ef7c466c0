//! Opens a stack file: reads it, checks it, and looks at the files that it names.

use std::path::{Path, PathBuf};

use crate::arrays;
use crate::diagnostic::{Findings, Report, Source};
use crate::files;
use crate::front_ends;
use crate::graph;
use crate::lines::one_line;
use crate::parse;
use crate::spec::StackSpec;

/// Name of the embedded default stack.
pub const DEFAULT_STACK_NAME: &str = "default";
/// Folder that the embedded default stack keeps its files in.
pub const DEFAULT_STACK_FOLDER: &str = "drystone-data";
/// The embedded default stack: one sparse file on an NBD socket.
pub const DEFAULT_STACK: &str = include_str!("default.toml");

/// Why a stack file was refused.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{}: {error}", one_line(&path.display().to_string()))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        error: std::io::Error,
    },
    /// The file is no text.
    #[error(
        "{} is not a stack file: its byte {offset} is 0 or not UTF-8; to serve an image, name its \
         path in a stack file, in a section [device.NAME] with type = \"file\"",
        one_line(&path.display().to_string())
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is no text.
        offset: usize,
    },
    /// The stack is wrong.
    #[error(transparent)]
    Invalid(#[from] Report),
}

/// Reads and checks a stack file and looks at the files it names. Relative paths start from its
/// folder; its stem is the stack's name.
///
/// # Errors
/// See [`LoadError`].
pub fn load(path: &Path) -> Result<StackSpec, LoadError> {
    load_with(path, &LoadOptions::default())
}

/// Options of a stack beside its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The file as which the default export (or the only one) also appears, so that it needs no
    /// other address.
    pub file: Option<PathBuf>,
    /// Every device and every export is read-only, whatever the file says.
    pub read_only: bool,
}

/// As [`load`], with `options` in addition to the file.
///
/// # Errors
/// See [`LoadError`].
pub fn load_with(path: &Path, options: &LoadOptions) -> Result<StackSpec, LoadError> {
    let unreadable = |error| LoadError::Unreadable { path: path.to_owned(), error };
    let bytes = read_bounded(path).map_err(unreadable)?;
    let no_text = |offset| LoadError::NotText { path: path.to_owned(), offset };
    if let Some(offset) = bytes.iter().position(|byte| *byte == 0) {
        return Err(no_text(offset));
    }
    let text =
        String::from_utf8(bytes).map_err(|error| no_text(error.utf8_error().valid_up_to()))?;
    let whole = std::path::absolute(path).map_err(unreadable)?;
    let base = whole.parent().unwrap_or(Path::new("/"));
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
    let file = options.file.as_ref().map(std::path::absolute).transpose().map_err(unreadable)?;
    let source = Source { name: path.display().to_string(), text };
    let mut stack = parse::parse_with_file(&name, source, base, file.as_deref())?;
    if options.read_only {
        stack.make_read_only();
    }
    Ok(check_files(stack)?)
}

/// Checks the embedded default stack with `base` as its folder. Its [`DEFAULT_STACK_FOLDER`] must
/// exist there.
///
/// # Errors A fault of the files that it names.
pub fn load_default(base: &Path) -> Result<StackSpec, Report> {
    let name = "the default stack (drystone serve --print-default)".to_owned();
    let source = Source { name, text: DEFAULT_STACK.to_owned() };
    check(DEFAULT_STACK_NAME, source, base)
}

/// Checks a stack's text, then the files it names.
///
/// # Errors
/// Everything that is wrong, with its place.
pub fn check(name: &str, source: Source, base: &Path) -> Result<StackSpec, Report> {
    check_files(parse::parse(name, source, base)?)
}

fn check_files(mut stack: StackSpec) -> Result<StackSpec, Report> {
    let mut findings = Findings::default();
    let mut seen = files::check(&mut stack, &mut findings);
    front_ends::look(&stack, &mut seen, &mut findings);
    graph::complete_sizes(&mut stack, &arrays::size, &mut findings);
    graph::too_small(&stack, &stack.sizes, &mut findings);
    let refused = findings.errors() > 0;
    let report = findings.into_report(stack.source.clone());
    if refused {
        return Err(report);
    }
    stack.warnings.extend(report.diagnostics);
    Ok(stack)
}

/// The file's bytes, at most one more than a stack file may have, so that the check refuses a
/// longer file.
fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = parse::MAX_TEXT_BYTES as u64 + 1;
    std::fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads any bytes as a dmsetup table of a volume over two devices: for fuzzing. Returns whether
/// the table is valid.
pub fn fuzz_table(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    // A basic string of TOML is one of JSON, but for one character more.
    let table = serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f");
    let device = |name| format!("[device.{name}]\ntype = \"ram\"\nsize = \"1MiB\"\n");
    let stack = format!("{}{}[device.t]\ntable = {table}\n", device("a"), device("b"));
    fuzz_stack_file(stack.as_bytes())
}

/// Reads any bytes as a stack file, and runs all steps that need no file system: for fuzzing.
/// Returns whether the stack is valid.
pub fn fuzz_stack_file(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data).into_owned();
    let source = Source { name: "fuzz.toml".to_owned(), text };
    match parse::parse("fuzz", source, Path::new("/nonexistent")) {
        Ok(stack) => {
            let _ = crate::explain::explain(&stack);
            true
        }
        Err(report) => {
            let _ = report.render(false);
            false
        }
    }
}
