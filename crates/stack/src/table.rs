//! dmsetup's table syntax: one line for each segment, `START LENGTH TARGET ARGUMENTS...`, in
//! sectors of 512 bytes.
//!
//! Source: `Documentation/admin-guide/device-mapper/` (linear, striped, zero) and the table rules
//! of dmsetup(8). Empty lines and lines that begin with `#` are left out.

use std::ops::Range;
use std::path::Path;

use crate::diagnostic::{Findings, Source, shorten};
use crate::fields::Check;
use crate::nearest::nearest;
use crate::node::{Node, Raw};
use crate::schema::Type;
use crate::spec::{Area, Places, Segment, Target};
use crate::values::parse_number;

/// Targets that are parsed.
const TARGETS: [&str; 4] = ["linear", "striped", "zero", "error"];
/// Most lines of a table.
const MAX_LINES: usize = 4096;
/// Last sector that a 63-bit byte offset reaches.
const MAX_SECTOR: u64 = i64::MAX as u64 / 512;

/// Reads all lines of `node`'s text; reports what is wrong at the word that is wrong.
pub fn parse_table(check: &mut Check<'_>, node: &Node) -> Option<Vec<Segment>> {
    let text = node.text()?;
    let errors = check.findings.errors();
    let mut segments = Vec::new();
    for (number, line) in lines(text).enumerate() {
        if number == MAX_LINES {
            let span = node.part(check.source, line[0].part.clone());
            let message = format!("the table has more than {MAX_LINES} lines");
            check.findings.error(&span, message, "make volumes of its parts");
            break;
        }
        match segment(check, node, &line) {
            Ok(segment) => segments.push(segment),
            Err(wrong) => {
                let span = node.part(check.source, wrong.part);
                check.findings.error(&span, wrong.message, wrong.hint);
            }
        }
    }
    if segments.is_empty() && check.findings.errors() == errors {
        check.findings.error(&node.span, "the table is empty", Type::Table.expected());
    }
    (check.findings.errors() == errors).then_some(segments)
}

/// Reports gaps and overlaps between the lines of a whole table.
pub fn check_order(check: &mut Check<'_>, segments: &[Segment]) {
    let mut expected = 0;
    for segment in segments {
        let start = segment.start_sector;
        if start != expected {
            let what = if start > expected { "gap" } else { "overlap" };
            check.findings.error(
                &segment.start_span,
                format!("{what} in the table: this line starts at sector {start}"),
                format!("start it at sector {expected}"),
            );
        }
        expected = segment.end_sector();
    }
}

/// Reads a whole table that comes by itself.
///
/// # Errors
/// One sentence on the first thing that is wrong, with its line.
pub fn read_table(text: &str) -> Result<Vec<Segment>, String> {
    let source = Source { name: "the table".to_owned(), text: text.to_owned() };
    let (mut findings, mut places) = (Findings::default(), Places::default());
    let base = Path::new("");
    let mut check = Check { source: &source, base, findings: &mut findings, places: &mut places };
    let node = Node { span: 0..text.len(), value: Raw::Word(text.to_owned()) };
    let segments = parse_table(&mut check, &node).unwrap_or_default();
    check_order(&mut check, &segments);
    match findings.into_report(source).diagnostics.first() {
        None => Ok(segments),
        Some(found) => {
            Err(format!("line {} of the table: {}: {}", found.line, found.message, found.hint))
        }
    }
}

/// A word with its place in the text.
#[derive(Debug, Clone)]
struct Word<'a> {
    text: &'a str,
    part: Range<usize>,
}

struct Wrong {
    part: Range<usize>,
    message: String,
    hint: String,
}

impl Word<'_> {
    fn wrong<T>(&self, message: &str, hint: impl Into<String>) -> Result<T, Wrong> {
        let message = format!("`{}` {message}", shorten(self.text));
        Err(Wrong { part: self.part.clone(), message, hint: hint.into() })
    }

    fn number(&self, what: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, Wrong> {
        match parse_number(self.text).filter(|number| range.contains(number)) {
            Some(number) => Ok(number),
            None => self.wrong(
                &format!("is not {what}"),
                format!("a whole number from {} to {}", range.start(), range.end()),
            ),
        }
    }
}

/// The words of each line that has any.
fn lines(text: &str) -> impl Iterator<Item = Vec<Word<'_>>> {
    let mut start = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let words = words(line, start);
        start += line.len();
        words.first().is_some_and(|word| !word.text.starts_with('#')).then_some(words)
    })
}

fn words(line: &str, line_start: usize) -> Vec<Word<'_>> {
    let place = |text: &str| text.as_ptr() as usize - line.as_ptr() as usize + line_start;
    line.split_ascii_whitespace()
        .map(|text| Word { text, part: place(text)..place(text) + text.len() })
        .collect()
}

fn segment(check: &Check<'_>, node: &Node, line: &[Word<'_>]) -> Result<Segment, Wrong> {
    let [start, length, target, arguments @ ..] = line else {
        let last = &line[line.len() - 1];
        return last.wrong("ends the line too early", Type::Table.expected());
    };
    let start_sector = start.number("a start in sectors", 0..=MAX_SECTOR)?;
    let length_sectors = length.number("a length in sectors", 1..=MAX_SECTOR - start_sector)?;
    let parsed = match target.text {
        "linear" => linear(check, node, target, arguments)?,
        "striped" => striped(check, node, target, arguments, length, length_sectors)?,
        "zero" => nothing(target, arguments, Target::Zero)?,
        "error" => nothing(target, arguments, Target::Error)?,
        other => {
            let near = nearest(other, TARGETS).map(|near| format!("; did you mean `{near}`?"));
            let hint = format!("use {}{}", TARGETS.join(", "), near.unwrap_or_default());
            return target.wrong("is not a target", hint);
        }
    };
    let target_span = node.part(check.source, target.part.clone());
    let start_span = node.part(check.source, start.part.clone());
    Ok(Segment { start_sector, length_sectors, target: parsed, start_span, target_span })
}

fn nothing(target: &Word<'_>, arguments: &[Word<'_>], parsed: Target) -> Result<Target, Wrong> {
    match arguments.first() {
        None => Ok(parsed),
        Some(word) => word.wrong("is too much", format!("{} has no arguments", target.text)),
    }
}

fn linear(
    check: &Check<'_>,
    node: &Node,
    target: &Word<'_>,
    arguments: &[Word<'_>],
) -> Result<Target, Wrong> {
    match arguments {
        [device, offset] => Ok(Target::Linear(area(check, node, device, offset)?)),
        [_, _, more, ..] => more.wrong("is too much", "write linear DEVICE OFFSET"),
        _ => target.wrong("has too few arguments", "write linear DEVICE OFFSET"),
    }
}

fn striped(
    check: &Check<'_>,
    node: &Node,
    target: &Word<'_>,
    arguments: &[Word<'_>],
    length: &Word<'_>,
    length_sectors: u64,
) -> Result<Target, Wrong> {
    const HINT: &str = "write striped COUNT CHUNK DEVICE OFFSET DEVICE OFFSET ...";
    let [count, chunk, pairs @ ..] = arguments else {
        return target.wrong("has too few arguments", HINT);
    };
    let stripes = count.number("a number of stripes", 1..=u32::MAX.into())?;
    let chunk_sectors = chunk.number("a chunk in sectors", 1..=u32::MAX.into())?;
    if pairs.len() as u64 != stripes * 2 {
        let given = format!("means {} words, but {} follow", stripes * 2, pairs.len());
        return count.wrong(&given, HINT);
    }
    if !length_sectors.is_multiple_of(stripes)
        || !(length_sectors / stripes).is_multiple_of(chunk_sectors)
    {
        let hint = format!("a multiple of {stripes} stripes times {chunk_sectors} sectors");
        return length.wrong("sectors do not divide into whole chunks", hint);
    }
    let areas = pairs.chunks(2).map(|pair| area(check, node, &pair[0], &pair[1]));
    let stripes = areas.collect::<Result<Vec<Area>, Wrong>>()?;
    let chunk_sectors = chunk_sectors as u32; // at most u32::MAX, checked above
    Ok(Target::Striped { chunk_sectors, stripes })
}

fn area(
    check: &Check<'_>,
    node: &Node,
    device: &Word<'_>,
    offset: &Word<'_>,
) -> Result<Area, Wrong> {
    let offset_sectors = offset.number("an offset in sectors", 0..=MAX_SECTOR)?;
    let span = node.part(check.source, device.part.clone());
    Ok(Area { device: device.text.to_owned(), offset_sectors, span })
}
