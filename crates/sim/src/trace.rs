//! Selects the lines of a trace that belong to one I/O: its own, those of other I/Os to the same
//! sectors of the same device, the disk operations for them, and every change of the stack
//! meanwhile.

use crate::outcome::Line;
use std::collections::BTreeSet;
use std::ops::Range;

/// The number after the first `before` in a line.
fn number(line: &str, before: &str) -> Option<u64> {
    let rest = &line[line.find(before)? + before.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// The device and sectors in a line that reports the begin of an I/O.
fn place(line: &str) -> Option<(&str, Range<u64>)> {
    let (_, rest) = line.split_once(" of ")?;
    let (device, rest) = rest.split_once(", sectors ")?;
    let (first, rest) = rest.split_once("..")?;
    Some((device, first.parse().ok()?..number(rest, "")?))
}

/// The name of the disk operation in a line.
fn operation(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("disk ")?;
    Some(rest.split_once(": operation ")?.1.split([' ', ':']).next().unwrap_or_default())
}

/// The lines that belong to I/O `number`, in their order.
pub fn way_of(io: u64, lines: &[Line]) -> Vec<&Line> {
    let begins =
        || lines.iter().filter_map(|line| Some((number(&line.2, "I/O ")?, place(&line.2)?)));
    let own = begins().find(|(number, _)| *number == io);
    let touches = |(device, range): &(&str, Range<u64>)| {
        own.as_ref().is_some_and(|(_, (own_device, own))| {
            device == own_device && range.start < own.end && own.start < range.end
        })
    };
    let mut related: BTreeSet<u64> =
        begins().filter(|(_, place)| touches(place)).map(|(number, _)| number).collect();
    related.insert(io);
    let mut operations = BTreeSet::new();
    let mut way = Vec::new();
    for line in lines {
        let concerns = match (operation(&line.2), number(&line.2, "I/O ")) {
            (Some(operation), Some(of)) => related.contains(&of) && operations.insert(operation),
            (Some(operation), None) => operations.remove(operation),
            (None, Some(of)) => related.contains(&of),
            (None, None) => true,
        };
        if concerns {
            way.push(line);
        }
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_an_io_is_what_concerns_its_sectors() {
        let texts = [
            "the stack is started",
            "I/O 1: context 0: Write of v0, sectors 0..8, BioFlags(0x0)",
            "disk 0: operation 0.1: write at 0, 4096 bytes, for I/O 1",
            "I/O 2: context 0: Write of v0, sectors 8..16, BioFlags(0x0)",
            "disk 0: operation 1.1: write at 4096, 4096 bytes, for I/O 2",
            "disk 0: operation 0.1 ends with 4096",
            "disk 0: operation 1.1 ends with 4096",
            "I/O 1: ends: Ok",
            "I/O 2: ends: Ok",
            "I/O 30: context 1: Read of v0, sectors 4..6, BioFlags(0x0)",
            "I/O 31: context 1: Read of v1, sectors 4..6, BioFlags(0x0)",
            "I/O 30: ends: Ok",
        ];
        let lines: Vec<Line> = texts.map(|text| (0, String::new(), text.to_owned())).into();
        let way: Vec<&str> = way_of(30, &lines).iter().map(|line| &*line.2).collect();
        let expected = [0, 1, 2, 5, 7, 9, 11].map(|n| texts[n]);
        assert_eq!(way, expected);
    }
}
