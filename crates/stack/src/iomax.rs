//! Lines of `io.max` and `io.stat` as cgroup v2 has them, with devices by name:
//! `disk rbps=200MiB wiops=3000`.
//!
//! The only parser of such lines, for stack files and for requests of the control socket, so that
//! both report the same faults. Source: `Documentation/admin-guide/cgroup-v2.rst`.

use std::fmt;

use drystone_throttle::{Change, IoStat, Limits};
use serde::{Deserialize, Serialize};

use crate::diagnostic::{Span, shorten};
use crate::nearest::nearest;
use crate::size::{ScaleError, parse_size, scaled, split_number};

/// The keys of a line, in the order in which they are printed.
pub const KEYS: [&str; 4] = ["rbps", "wbps", "riops", "wiops"];

/// An example of a line.
pub const LINE: &str = "\"DEVICE rbps=200MiB wiops=3000\"";

/// A line of `io.max`: a change of a group's limits on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoMax {
    /// The device.
    pub device: String,
    /// The limits that are named, at least one.
    pub change: Change,
    /// The place of the device's name in the source text.
    pub span: Span,
}

/// Why a line was refused. Its `Display` is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {hint}")]
pub struct IoMaxError {
    /// Which bytes of the line are wrong.
    pub part: Span,
    /// The fault.
    pub message: String,
    /// The right form.
    pub hint: String,
}

fn error(part: Span, message: String, hint: impl Into<String>) -> IoMaxError {
    IoMaxError { part, message, hint: hint.into() }
}

/// Parses a line. The caller checks that the device exists.
///
/// # Errors
/// The first fault; a line is accepted as a whole or not at all.
pub fn parse_io_max(line: &str) -> Result<IoMax, IoMaxError> {
    let mut words = words(line);
    let like = || format!("write {LINE}");
    let Some((start, device)) = words.next() else {
        return Err(error(0..line.len(), "the line names no device".to_owned(), like()));
    };
    let span = start..start + device.len();
    if device.contains('=') {
        let message = format!("the line begins with `{}`, not with a device", shorten(device));
        return Err(error(span, message, like()));
    }
    let mut change = Change::default();
    for (start, word) in words {
        limit(start, word, &mut change)?;
    }
    if change == Change::default() {
        let message = format!("`{}` is given no limit", shorten(device));
        return Err(error(span, message, "add rbps=, wbps=, riops= or wiops="));
    }
    Ok(IoMax { device: device.to_owned(), change, span })
}

/// The words of a line, each with where it begins.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let start = |word: &str| word.as_ptr().addr() - line.as_ptr().addr();
    line.split_whitespace().map(move |word| (start(word), word))
}

/// Reads `KEY=VALUE` into `change`.
fn limit(start: usize, word: &str, change: &mut Change) -> Result<(), IoMaxError> {
    let whole = start..start + word.len();
    let Some((key, value)) = word.split_once('=') else {
        let message = format!("`{}` has no `=`", shorten(word));
        return Err(error(whole, message, "write KEY=VALUE, as in rbps=200MiB"));
    };
    let Some(place) = place_of(change, key) else {
        let hint = match nearest(key, KEYS) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", KEYS.join(", ")),
        };
        let part = start..start + key.len();
        return Err(error(part, format!("unknown key `{}`", shorten(key)), hint));
    };
    if place.is_some() {
        return Err(error(whole, format!("`{key}` is given twice"), "give it once"));
    }
    let is_bytes = key.ends_with("bps");
    *place = Some(number(value, is_bytes).map_err(|reason| {
        let part = if value.is_empty() { whole } else { start + key.len() + 1..whole.end };
        let hint = match is_bytes {
            true => "write max, or bytes a second from 1 up, as in 200MiB",
            false => "write max, or I/Os a second from 1 up, as in 3000",
        };
        error(part, format!("`{key}`: `{}` {reason}", shorten(value)), hint)
    })?);
    Ok(())
}

fn place_of<'c>(change: &'c mut Change, key: &str) -> Option<&'c mut Option<Option<u64>>> {
    match key {
        "rbps" => Some(&mut change.rbps),
        "wbps" => Some(&mut change.wbps),
        "riops" => Some(&mut change.riops),
        "wiops" => Some(&mut change.wiops),
        _ => None,
    }
}

/// A limit; `None` is `max`. The reason of an error follows the value.
fn number(value: &str, is_bytes: bool) -> Result<Option<u64>, String> {
    if value == "max" {
        return Ok(None);
    }
    if value.starts_with('-') {
        return Err("is below 1".to_owned());
    }
    let number = match is_bytes {
        true => parse_size(value).map_err(|error| error.to_string())?,
        false => count(value).map_err(str::to_owned)?,
    };
    match number {
        0 => Err("would let nothing pass".to_owned()),
        number => Ok(Some(number)),
    }
}

/// A count, whose units are powers of 1000: `3000`, `3k`, `1.5M`.
fn count(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = split_number(text);
    let factor = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "M" => 1_000_000,
        _ => return Err("is no number of I/Os"),
    };
    scaled(number, factor).map_err(|error| match error {
        ScaleError::NotANumber => "is no number of I/Os",
        ScaleError::NotWhole => "is no whole number of I/Os",
        ScaleError::TooLarge => "is too large: a limit is less than 2^64",
    })
}

/// The limits of a group on a device; `None` is `max`. Its `Display` is the kernel's line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxLine {
    /// The device.
    pub device: String,
    /// Bytes read a second.
    pub rbps: Option<u64>,
    /// Bytes written a second.
    pub wbps: Option<u64>,
    /// Reads a second.
    pub riops: Option<u64>,
    /// Writes a second.
    pub wiops: Option<u64>,
}

impl MaxLine {
    /// The line of `device`.
    pub fn new(device: &str, limits: &Limits) -> Self {
        let Limits { rbps, wbps, riops, wiops } = *limits;
        MaxLine { device: device.to_owned(), rbps, wbps, riops, wiops }
    }
}

impl fmt::Display for MaxLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        for (key, value) in KEYS.into_iter().zip([self.rbps, self.wbps, self.riops, self.wiops]) {
            match value {
                Some(value) => write!(f, " {key}={value}")?,
                None => write!(f, " {key}=max")?,
            }
        }
        Ok(())
    }
}

/// The sums of a group's I/O on a device. Its `Display` is the kernel's line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatLine {
    /// The device.
    pub device: String,
    /// Bytes read.
    pub rbytes: u64,
    /// Bytes written.
    pub wbytes: u64,
    /// Reads.
    pub rios: u64,
    /// Writes.
    pub wios: u64,
    /// Bytes discarded.
    pub dbytes: u64,
    /// Discards.
    pub dios: u64,
}

impl StatLine {
    /// The line of `device`, if it has one: the kernel prints it only when one of the first four
    /// numbers is not zero.
    pub fn new(device: &str, stat: &IoStat) -> Option<Self> {
        let IoStat { rbytes, wbytes, rios, wios, dbytes, dios } = *stat;
        let shown = [rbytes, wbytes, rios, wios].iter().any(|count| *count > 0);
        let device = device.to_owned();
        shown.then_some(StatLine { device, rbytes, wbytes, rios, wios, dbytes, dios })
    }
}

impl fmt::Display for StatLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatLine { device, rbytes, wbytes, rios, wios, dbytes, dios } = self;
        write!(f, "{device} rbytes={rbytes} wbytes={wbytes} rios={rios} wios={wios} ")?;
        write!(f, "dbytes={dbytes} dios={dios}")
    }
}

/// The limits of a device that had none before `change`.
pub fn limits_of(change: &Change) -> Limits {
    Limits {
        rbps: change.rbps.flatten(),
        wbps: change.wbps.flatten(),
        riops: change.riops.flatten(),
        wiops: change.wiops.flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change(line: &str) -> Change {
        parse_io_max(line).unwrap_or_else(|error| panic!("{line}: {error}")).change
    }

    #[test]
    fn reads_what_people_write() {
        let all = Change {
            rbps: Some(Some(200 << 20)),
            wbps: Some(None),
            riops: Some(Some(1)),
            wiops: Some(Some(3000)),
        };
        for line in [
            "disk rbps=200MiB wbps=max riops=1 wiops=3000",
            "  disk\twiops=3k riops=1  wbps=max rbps=209715200 ",
            "disk rbps=0.1953125G riops=0.001k wiops=3_000 wbps=max",
        ] {
            let read = parse_io_max(line).unwrap();
            assert_eq!((read.device.as_str(), read.change), ("disk", all), "{line}");
            assert_eq!(&line[read.span], "disk");
        }
        assert_eq!(change("d rbps=1"), Change { rbps: Some(Some(1)), ..Change::default() });
        let most = "d wiops=18446744073709551615 wbps=18446744073709551615";
        assert_eq!(change(most).wiops, Some(Some(u64::MAX)));
        assert_eq!(change(most).wbps, Some(Some(u64::MAX)));
        assert_eq!(change("d riops=2M").riops, Some(Some(2_000_000)), "counts go by 1000");
        assert_eq!(change("d rbps=2M").rbps, Some(Some(2 << 20)), "bytes by 1024");
    }

    #[test]
    fn says_what_is_wrong_with_a_line_and_where() {
        let cases = [
            ("", "", "names no device", "write \"DEVICE"),
            ("  ", "  ", "names no device", "write \"DEVICE"),
            ("rbps=1", "rbps=1", "begins with `rbps=1`, not with a device", "write \"DEVICE"),
            ("disk", "disk", "`disk` is given no limit", "add rbps="),
            ("d rbps", "rbps", "`rbps` has no `=`", "as in rbps=200MiB"),
            ("d rbps = 1", "rbps", "`rbps` has no `=`", "as in rbps=200MiB"),
            ("d rbps=200 MiB", "MiB", "`MiB` has no `=`", "KEY=VALUE"),
            ("d rbsp=1", "rbsp", "unknown key `rbsp`", "did you mean `rbps`?"),
            ("d latency=1", "latency", "unknown key", "known here: rbps, wbps, riops, wiops"),
            ("d =1", "", "unknown key ``", "known here"),
            ("d rbps=1 wbps=2 rbps=1", "rbps=1", "`rbps` is given twice", "once"),
            ("d rbps=", "rbps=", "`rbps`: `` is not a size", "write max, or bytes a second"),
            ("d rbps=0", "0", "`rbps`: `0` would let nothing pass", "write max, or bytes"),
            ("d wiops=0k", "0k", "`wiops`: `0k` would let nothing pass", "write max, or I/Os"),
            ("d rbps=-1", "-1", "`rbps`: `-1` is below 1", "from 1 up"),
            ("d riops=-1", "-1", "`riops`: `-1` is below 1", "from 1 up"),
            ("d rbps=18446744073709551616", "18446744073709551616", "is too large", "write max"),
            ("d wiops=18446744073709551616", "18446744073709551616", "is too large", "2^64"),
            ("d wbps=5X", "5X", "`5X` has an unknown unit", "write max"),
            ("d wbps=1.0001K", "1.0001K", "is not a whole number of bytes", "write max"),
            ("d wiops=3KiB", "3KiB", "`3KiB` is no number of I/Os", "as in 3000"),
            ("d wiops=0.5", "0.5", "`0.5` is no whole number of I/Os", "as in 3000"),
            ("d wiops=MAX", "MAX", "`MAX` is no number of I/Os", "write max"),
            ("d rbps=max wiops=x", "x", "`wiops`: `x` is no number", "write max"),
        ];
        for (line, part, message, hint) in cases {
            let error = parse_io_max(line).expect_err(line);
            assert_eq!(line.get(error.part.clone()), Some(part), "{line}: {error:?}");
            let sentence = error.to_string();
            assert!(sentence.contains(message), "{line}: no {message:?} in {sentence}");
            assert!(sentence.contains(hint), "{line}: no {hint:?} in {sentence}");
        }
    }

    #[test]
    fn lines_are_printed_as_the_kernel_does() {
        let limits = Limits { rbps: Some(2_097_152), wiops: Some(120), ..Limits::default() };
        let line = MaxLine::new("disk", &limits).to_string();
        assert_eq!(line, "disk rbps=2097152 wbps=max riops=max wiops=120");
        let stat = IoStat {
            rbytes: 1_459_200,
            wbytes: 314_773_504,
            rios: 192,
            wios: 353,
            ..IoStat::default()
        };
        let line = StatLine::new("disk", &stat).map(|line| line.to_string());
        let kernel = "disk rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0";
        assert_eq!(line.as_deref(), Some(kernel));
    }

    #[test]
    fn a_device_that_was_only_discarded_has_no_line() {
        assert_eq!(StatLine::new("d", &IoStat { dbytes: 1, dios: 1, ..IoStat::default() }), None);
        assert!(StatLine::new("d", &IoStat { wios: 1, ..IoStat::default() }).is_some());
    }

    proptest! {
        #[test]
        fn printed_lines_read_back(
            rbps: Option<u64>,
            wbps: Option<u64>,
            riops: Option<u64>,
            wiops: Option<u64>,
        ) {
            let some = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
            let limits = Limits {
                rbps: some(rbps), wbps: some(wbps), riops: some(riops), wiops: some(wiops),
            };
            prop_assert_eq!(limits_of(&change(&MaxLine::new("d", &limits).to_string())), limits);
        }

        #[test]
        fn any_text_is_read_or_refused_at_a_place_in_it(text: String) {
            if let Err(error) = parse_io_max(&text) {
                prop_assert!(text.get(error.part.clone()).is_some(), "{:?}", error);
            }
        }
    }
}
