//! dmsetup's table syntax: one line for each segment, `START LENGTH TARGET ARGUMENTS...`, in
//! sectors of 512 bytes.
//!
//! Source: `Documentation/admin-guide/device-mapper/` (linear, striped, zero, delay, dm-flakey,
//! log-writes) and the table rules of dmsetup(8). Text behind a `#` is left out, and so are lines
//! without a word.

use std::ops::Range;
use std::path::Path;

use crate::diagnostic::{Findings, Source, shorten};
use crate::nearest::nearest;
use crate::parse::fields::Check;
use crate::parse::node::{Node, Raw};
use crate::parse::values::parse_number;
use crate::schema::Type;
use crate::spec::{Area, Delayed, Places, Segment, Target};
use drystone_targets::{CorruptByte, Faults, Writes};

/// Targets that are parsed.
const TARGETS: [&str; 7] = ["linear", "striped", "zero", "error", "delay", "flakey", "log-writes"];
/// Most lines of a table.
const MAX_LINES: usize = 4096;
/// Last sector that a 63-bit byte offset reaches.
const MAX_SECTOR: u64 = i64::MAX as u64 / 512;

/// Reads all lines of `node`'s text; reports a fault at the word that has it.
pub fn parse_table(check: &mut Check<'_>, node: &Node) -> Option<Vec<Segment>> {
    let text = node.text()?;
    let errors = check.findings.errors();
    let mut segments = Vec::new();
    // This check comes first, because parsing so many lines takes long.
    if let Some(line) = lines(text).nth(MAX_LINES) {
        let span = node.part(check.source, line[0].part.clone());
        let message = format!("the table has more than {MAX_LINES} lines");
        check.findings.error(&span, message, "make volumes of its parts");
        return None;
    }
    for line in lines(text) {
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

/// Reads a whole table outside a stack file.
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

    fn number_u32(&self, what: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, Wrong> {
        let number = self.number(what, (*range.start()).into()..=(*range.end()).into())?;
        Ok(number as u32) // at most the end, which is one
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
        let words = words(line.split('#').next().unwrap_or_default(), start);
        start += line.len();
        (!words.is_empty()).then_some(words)
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
        "delay" => delay(check, node, target, arguments)?,
        "flakey" => flakey(check, node, target, arguments)?,
        "log-writes" => log_writes(check, node, target, arguments, start_sector)?,
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
    let chunk_sectors = chunk.number_u32("a chunk in sectors", 1..=u32::MAX)?;
    if pairs.len() as u64 != stripes * 2 {
        let given = format!("means {} words, but {} follow", stripes * 2, pairs.len());
        return count.wrong(&given, HINT);
    }
    if !length_sectors.is_multiple_of(stripes)
        || !(length_sectors / stripes).is_multiple_of(chunk_sectors.into())
    {
        let hint = format!("a multiple of {stripes} stripes times {chunk_sectors} sectors");
        return length.wrong("sectors do not divide into whole chunks", hint);
    }
    let areas = pairs.chunks(2).map(|pair| area(check, node, &pair[0], &pair[1]));
    let stripes = areas.collect::<Result<Vec<Area>, Wrong>>()?;
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

fn delay(
    check: &Check<'_>,
    node: &Node,
    target: &Word<'_>,
    arguments: &[Word<'_>],
) -> Result<Target, Wrong> {
    const HINT: &str = "write delay DEVICE OFFSET MILLISECONDS, once for all, twice for reads and \
                        writes, or three times for reads, writes and flushes";
    let (classes, rest) = arguments.as_chunks::<3>();
    match (classes, rest) {
        ([], _) => return target.wrong("has too few arguments", HINT),
        ([_, _, _, [more, ..], ..], _) | ([_, _, _], [more, ..]) => {
            return more.wrong("is too much", HINT);
        }
        (_, [first, ..]) => {
            let words = rest.len();
            return first.wrong(&format!("begins a delay with {words} of its 3 words"), HINT);
        }
        (_, []) => {}
    }
    let class = |[device, offset, delay]: &[Word<'_>; 3]| {
        let place = area(check, node, device, offset)?;
        let delay_ms = delay.number_u32("a delay in milliseconds", 0..=u32::MAX)?;
        Ok(Delayed { place, delay_ms })
    };
    Ok(Target::Delay(classes.iter().map(class).collect::<Result<_, Wrong>>()?))
}

fn flakey(
    check: &Check<'_>,
    node: &Node,
    target: &Word<'_>,
    arguments: &[Word<'_>],
) -> Result<Target, Wrong> {
    const HINT: &str =
        "write flakey DEVICE OFFSET UP DOWN, and perhaps a number of words and those";
    let [device, offset, up, down, features @ ..] = arguments else {
        return target.wrong("has too few arguments", HINT);
    };
    let place = area(check, node, device, offset)?;
    let up_seconds = up.number_u32("a time in seconds", 0..=u32::MAX)?;
    let down_seconds = down.number_u32("a time in seconds", 0..=u32::MAX)?;
    if up_seconds == 0 && down_seconds == 0 {
        return down.wrong("seconds down after 0 up is no time at all", "at least 1 of either");
    }
    if up_seconds.checked_add(down_seconds).is_none() {
        let most = u32::MAX - up_seconds;
        return down
            .wrong("seconds down are too long", format!("at most {most} after {up_seconds} up"));
    }
    let faults = match features {
        [] => Faults::default(),
        [count, words @ ..] => faults(count, words)?,
    };
    Ok(Target::Flakey { place, up_seconds, down_seconds, faults })
}

fn log_writes(
    check: &Check<'_>,
    node: &Node,
    target: &Word<'_>,
    arguments: &[Word<'_>],
    start_sector: u64,
) -> Result<Target, Wrong> {
    const HINT: &str = "write log-writes DEVICE LOGDEVICE; it has no offsets";
    let (device, log) = match arguments {
        [device, log] => (device, log),
        [_, _, more, ..] => return more.wrong("is too much", HINT),
        _ => return target.wrong("has too few arguments", HINT),
    };
    if log.text == device.text {
        return log.wrong("cannot hold a log of itself", "name another device for the log");
    }
    let span = |word: &Word<'_>| node.part(check.source, word.part.clone());
    let area = |word: &Word<'_>, offset_sectors| Area {
        device: word.text.to_owned(),
        offset_sectors,
        span: span(word),
    };
    Ok(Target::LogWrites { place: area(device, start_sector), log: area(log, 0) })
}

/// The features of `flakey`.
fn faults(count: &Word<'_>, words: &[Word<'_>]) -> Result<Faults, Wrong> {
    let number = count.number("a number of feature words", 0..=u32::MAX.into())?;
    if number != words.len() as u64 {
        let given = format!("means {number} words, but {} follow", words.len());
        return count.wrong(&given, "give the number of all words that follow it");
    }
    let (mut faults, mut rest, mut given) = (Faults::default(), words, Vec::new());
    while let [name, following @ ..] = rest {
        if given.contains(&name.text) {
            return name.wrong("is given twice", "give each feature once");
        }
        let taken = feature(name, following, &mut faults)?;
        if let Some(conflict) = faults.conflict() {
            return name.wrong("contradicts a feature before it", conflict);
        }
        given.push(name.text);
        rest = &following[taken..];
    }
    Ok(faults)
}

/// Reads a feature. Returns how many of the words after its name it takes.
fn feature(name: &Word<'_>, following: &[Word<'_>], faults: &mut Faults) -> Result<usize, Wrong> {
    const FEATURES: [&str; 6] = [
        "error_reads",
        "drop_writes",
        "error_writes",
        "corrupt_bio_byte",
        "random_read_corrupt",
        "random_write_corrupt",
    ];
    match name.text {
        "error_reads" => faults.error_reads = true,
        "drop_writes" | "error_writes" if faults.writes != Writes::Pass => {
            return name.wrong("contradicts a feature before it", "writes are dropped or fail");
        }
        "drop_writes" => faults.writes = Writes::Drop,
        "error_writes" => faults.writes = Writes::Fail,
        "corrupt_bio_byte" => {
            faults.corrupt_byte = Some(corrupt_byte(name, following)?);
            return Ok(4);
        }
        "random_read_corrupt" => {
            faults.random_read_corrupt = probability(name, following)?;
            return Ok(1);
        }
        "random_write_corrupt" => {
            faults.random_write_corrupt = probability(name, following)?;
            return Ok(1);
        }
        other => {
            let near = nearest(other, FEATURES).map(|near| format!("; did you mean `{near}`?"));
            let hint = format!("use {}{}", FEATURES.join(", "), near.unwrap_or_default());
            return name.wrong("is not a feature of flakey", hint);
        }
    }
    Ok(0)
}

fn corrupt_byte(name: &Word<'_>, following: &[Word<'_>]) -> Result<CorruptByte, Wrong> {
    let [nth, direction, value, flags, ..] = following else {
        return name.wrong("has too few words", "write corrupt_bio_byte BYTE r|w VALUE 0");
    };
    let nth = nth.number_u32("the number of a byte", 1..=u32::MAX)?;
    let in_writes = match direction.text {
        "r" => false,
        "w" => true,
        _ => return direction.wrong("is not a direction", "r for reads or w for writes"),
    };
    let value = value.number_u32("the value of a byte", 0..=u8::MAX.into())? as u8;
    match flags.number_u32("a mask of flags", 0..=u32::MAX)? {
        0 => Ok(CorruptByte { nth, in_writes, value }),
        _ => flags.wrong("is a mask of Linux's own flags, unknown here", "write 0, for all bios"),
    }
}

fn probability(name: &Word<'_>, following: &[Word<'_>]) -> Result<u32, Wrong> {
    match following {
        [parts, ..] => parts.number_u32("a probability in parts of 10^9", 0..=Faults::CERTAIN),
        [] => name.wrong("has too few words", format!("write {} PROBABILITY", name.text)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::diagnostic::{Findings, Source};
    use crate::parse::node::Raw;
    use crate::spec::Places;
    use std::path::Path;

    /// The segments of a valid table.
    pub(crate) fn segments(text: &str) -> Vec<Segment> {
        let source = Source { name: "t".to_owned(), text: text.to_owned() };
        let (mut findings, mut places) = (Findings::default(), Places::default());
        let (base, findings, places) = (Path::new(""), &mut findings, &mut places);
        let mut check = Check { source: &source, base, findings, places };
        let node = Node { span: 0..text.len(), value: Raw::Word(text.to_owned()) };
        let segments = parse_table(&mut check, &node).unwrap_or_default();
        check_order(&mut check, &segments);
        assert_eq!(check.findings.errors(), 0, "{text}");
        segments
    }

    fn target(arguments: &str) -> Target {
        segments(&format!("0 8 {arguments}")).remove(0).target
    }

    #[test]
    fn classes_of_delays() {
        for (arguments, expected) in [
            ("a 1 50", vec![("a", 1, 50)]),
            ("a 1 0 b 2 400", vec![("a", 1, 0), ("b", 2, 400)]),
            ("a 1 50 b 2 100 a 3 333", vec![("a", 1, 50), ("b", 2, 100), ("a", 3, 333)]),
        ] {
            let Target::Delay(classes) = target(&format!("delay {arguments}")) else { panic!() };
            let found: Vec<_> = classes
                .iter()
                .map(|class| {
                    (class.place.device.as_str(), class.place.offset_sectors, class.delay_ms)
                })
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn features_of_flakey() {
        let faults = |words: &str| {
            let Target::Flakey { place, up_seconds, down_seconds, faults } =
                target(&format!("flakey a 7 2 3{words}"))
            else {
                panic!()
            };
            assert_eq!((place.offset_sectors, up_seconds, down_seconds), (7, 2, 3));
            faults
        };
        let byte = |nth, in_writes, value| Some(CorruptByte { nth, in_writes, value });
        let none = Faults::default();
        for (words, expected) in [
            ("", none),
            (" 0", none),
            (" 1 error_reads", Faults { error_reads: true, ..none }),
            (" 1 drop_writes", Faults { writes: Writes::Drop, ..none }),
            (" 1 error_writes", Faults { writes: Writes::Fail, ..none }),
            (
                " 2 error_writes error_reads",
                Faults { error_reads: true, writes: Writes::Fail, ..none },
            ),
            (" 5 corrupt_bio_byte 32 r 1 0", Faults { corrupt_byte: byte(32, false, 1), ..none }),
            (
                " 9 corrupt_bio_byte 4294967295 w 255 0 random_read_corrupt 0 \
                 random_write_corrupt 1000000000",
                Faults {
                    corrupt_byte: byte(u32::MAX, true, 255),
                    random_write_corrupt: Faults::CERTAIN,
                    ..none
                },
            ),
        ] {
            assert_eq!(faults(words), expected, "{words}");
        }
    }
}
