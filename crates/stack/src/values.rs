//! Reads one value by its type.

use crate::allow::parse_allow;
use crate::clients::parse_clients;
use crate::diagnostic::{Span, shorten};
use crate::duration::{Unit, format_duration, parse_duration};
use crate::fields::{Check, Value};
use crate::iomax::{IoMax, IoMaxError, parse_io_max};
use crate::listener::parse_listener;
use crate::nearest::nearest;
use crate::node::{Entry, Node, Raw};
use crate::schema::{LATENCY_DOC, Type};
use crate::size::{format_size, parse_size};
use crate::spec::{Latency, SectorRange};
use crate::table::parse_table;

/// Most items of a list.
const MAX_LIST: usize = 4096;

/// Reads `node` as a value of type `ty`; on an error, reports it and gives nothing. `key_span` is
/// the key, `path` where nested values are noted.
pub fn parse_value(
    check: &mut Check<'_>,
    ty: &'static Type,
    node: &Node,
    key_span: &Span,
    path: &str,
) -> Option<Value> {
    match ty {
        Type::Fields(params) => match &node.value {
            Raw::Table(entries) => {
                Some(Value::Fields(check.table(&[params], entries, path, key_span)))
            }
            _ => refuse(check, node, path, "is not a table", &ty.expected()),
        },
        Type::List(item) => list(check, item, node, key_span, path),
        Type::Latency => latency(check, node, path),
        Type::Table => match node.text() {
            Some(_) => parse_table(check, node).map(Value::Segments),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::Listener => match node.text() {
            Some(_) => parse_listener(check, node).map(Value::Listener),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::Path => match node.text() {
            Some("") => refuse(check, node, path, "is empty", &ty.expected()),
            Some(text) if text.contains('\0') => {
                refuse(check, node, path, "contains a zero byte", &ty.expected())
            }
            Some(text) => Some(Value::Path(check.base.join(text))),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::IoMax => match node.text() {
            Some(line) => io_max(check, node, line).map(Value::IoMax),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::Clients => parse_clients(check, node).map(Value::Clients),
        Type::Allow => parse_allow(check, node).map(Value::Allow),
        simple => match parse_simple(simple, node) {
            Ok(value) => Some(value),
            Err(Refusal { reason, hint }) => refuse(check, node, path, &reason, &hint),
        },
    }
}

/// Why a simple value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong, following the value: "is out of range".
    pub reason: String,
    /// What would be right.
    pub hint: String,
}

fn refusal<T>(ty: &Type, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { reason: reason.into(), hint: ty.expected() })
}

/// Reads a value of a type that needs nothing but the value itself: switches, numbers, choices,
/// times, modes, names, texts and sectors. Attributes are checked by it as well.
///
/// # Errors
/// What is wrong and what would be right.
pub fn parse_simple(ty: &'static Type, node: &Node) -> Result<Value, Refusal> {
    match ty {
        Type::Bool => match (&node.value, node.text()) {
            (Raw::Bool(value), _) => Ok(Value::Bool(*value)),
            (Raw::Word(_), Some("true" | "1")) => Ok(Value::Bool(true)),
            (Raw::Word(_), Some("false" | "0")) => Ok(Value::Bool(false)),
            (Raw::Text(_), Some("true" | "false")) => {
                refusal(ty, "stands in quotes, but true and false stand without")
            }
            _ => refusal(ty, "is neither true nor false"),
        },
        Type::Size { min, max, multiple } => {
            let bytes = size(ty, node)?;
            if bytes < *min {
                return refusal(ty, format!("is too small: the least is {}", format_size(*min)));
            }
            if bytes > *max {
                return refusal(ty, format!("is too large: the most is {}", format_size(*max)));
            }
            if bytes % (*multiple).max(1) != 0 {
                return refusal(ty, format!("is not a multiple of {}", format_size(*multiple)));
            }
            Ok(Value::Number(bytes))
        }
        Type::PowerOfTwo { min, max } => {
            let bytes = size(ty, node)?;
            if !bytes.is_power_of_two() {
                return refusal(ty, "is not a power of two");
            }
            ranged(ty, bytes, *min, *max)
        }
        Type::Integer { min, max } => ranged(ty, integer(ty, node)?, *min, *max),
        Type::Choice(names) => choice(ty, names, node),
        Type::Numbered(names) => match index(node) {
            Some(number) => match usize::try_from(number).ok().and_then(|at| names.get(at)) {
                Some(name) => Ok(Value::Choice(name)),
                None => refusal(ty, "is out of range"),
            },
            None => choice(ty, names, node),
        },
        Type::Duration { unit, min, max } => duration(ty, *unit, *min, *max, node),
        Type::Mode => match node.text().and_then(parse_mode) {
            Some(mode) => Ok(Value::Number(mode.into())),
            None => refusal(ty, "is not an octal file mode"),
        },
        Type::Text { max } => match node.text() {
            Some(text) if text.len() > *max => refusal(ty, format!("has {} bytes", text.len())),
            Some(text) if text.contains(char::is_control) => {
                refusal(ty, "contains a control character")
            }
            Some(text) => Ok(Value::Text(text.to_owned())),
            None => refusal(ty, "is not a text"),
        },
        Type::Group if node.text() == Some("") => refusal(ty, "is empty"),
        Type::Device | Type::Group => match node.text() {
            Some(text) => Ok(Value::Text(text.to_owned())),
            None => refusal(ty, "is not a text"),
        },
        Type::Sectors => match sectors(node) {
            Some(range) => Ok(Value::Sectors(range)),
            None => refusal(ty, "is not a range of sectors"),
        },
        Type::Path
        | Type::Listener
        | Type::Latency
        | Type::Table
        | Type::IoMax
        | Type::Clients
        | Type::Allow
        | Type::Fields(_)
        | Type::List(_) => unreachable!("{ty:?} is read by parse_value"),
    }
}

/// A line of `io.max`, with its device's place in the whole text.
fn io_max(check: &mut Check<'_>, node: &Node, text: &str) -> Option<IoMax> {
    match parse_io_max(text) {
        Ok(line) => Some(IoMax { span: node.part(check.source, line.span), ..line }),
        Err(IoMaxError { part, message, hint }) => {
            // Nothing to point at in an empty line but its quotes.
            let span =
                if part.is_empty() { node.span.clone() } else { node.part(check.source, part) };
            check.findings.error(&span, message, hint);
            None
        }
    }
}

/// An octal file mode of at most 0777.
pub fn parse_mode(text: &str) -> Option<u32> {
    let octal = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(octal.then_some(text)?, 8).ok()?;
    (mode <= 0o777).then_some(mode)
}

/// A decimal number of digits only.
pub fn parse_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reports that the value at `path` is wrong; `reason` follows the value in the sentence.
fn refuse(
    check: &mut Check<'_>,
    node: &Node,
    path: &str,
    reason: &str,
    hint: &str,
) -> Option<Value> {
    let key = path.splitn(3, '/').nth(2).unwrap_or(path).replace('/', ".");
    let written = match &node.value {
        Raw::List(_) | Raw::Table(_) => node.written().to_owned(),
        _ => check.source.word(&node.span),
    };
    let repeated = matches!(&node.value, Raw::List(items)
        if items.iter().all(|item| matches!(item.value, Raw::Word(_))) && !items.is_empty());
    let message = match repeated {
        true => format!("`{}` is given more than once", shorten(&key)),
        false => format!("`{}`: {written} {reason}", shorten(&key)),
    };
    check.findings.error(&node.span, message, format!("write {hint}"));
    None
}

fn list(
    check: &mut Check<'_>,
    item: &'static Type,
    node: &Node,
    key_span: &Span,
    path: &str,
) -> Option<Value> {
    let single = std::slice::from_ref(node);
    let nodes = match &node.value {
        Raw::List(nodes) => nodes.as_slice(),
        _ => single,
    };
    if nodes.is_empty() || nodes.len() > MAX_LIST {
        let reason = format!("has {} entries", nodes.len());
        return refuse(check, node, path, &reason, &format!("1 to {MAX_LIST} entries"));
    }
    let mut values = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        check.places.note(format!("{path}/{index}"), node.span.clone());
        values.push(parse_value(check, item, node, key_span, path));
    }
    values.into_iter().collect::<Option<Vec<Value>>>().map(Value::List)
}

fn size(ty: &Type, node: &Node) -> Result<u64, Refusal> {
    match &node.value {
        Raw::Text(text) | Raw::Word(text) => match parse_size(text) {
            Ok(bytes) => Ok(bytes),
            Err(error) => refusal(ty, error.to_string()),
        },
        Raw::Integer(Some(number)) => match u64::try_from(*number) {
            Ok(bytes) => Ok(bytes),
            Err(_) => refusal(ty, "is out of range"),
        },
        _ => refusal(ty, "is not a size"),
    }
}

fn index(node: &Node) -> Option<i128> {
    match &node.value {
        Raw::Integer(number) => Some(number.unwrap_or(-1)),
        Raw::Word(text) => parse_number(text).map(i128::from),
        _ => None,
    }
}

fn integer(ty: &Type, node: &Node) -> Result<u64, Refusal> {
    let number = match index(node) {
        Some(number) => u64::try_from(number).ok(),
        None if matches!(&node.value, Raw::Text(text) if parse_number(text).is_some()) => {
            return refusal(ty, "stands in quotes, but a number stands without");
        }
        None => return refusal(ty, "is not a whole number"),
    };
    number.map_or_else(|| refusal(ty, "is out of range"), Ok)
}

fn ranged(ty: &Type, number: u64, min: u64, max: u64) -> Result<Value, Refusal> {
    if (min..=max).contains(&number) {
        return Ok(Value::Number(number));
    }
    refusal(ty, "is out of range")
}

fn choice(ty: &Type, names: &'static [&'static str], node: &Node) -> Result<Value, Refusal> {
    let word = match &node.value {
        Raw::Bool(value) => value.to_string(),
        _ => node.text().unwrap_or("").to_owned(),
    };
    if let Some(name) = names.iter().find(|name| **name == word) {
        return Ok(Value::Choice(name));
    }
    let near = nearest(&word, names.iter().copied());
    let near = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    Err(Refusal {
        reason: "is not among the choices".to_owned(),
        hint: format!("{}{near}", ty.expected()),
    })
}

fn duration(ty: &Type, unit: Unit, min: u64, max: u64, node: &Node) -> Result<Value, Refusal> {
    let nanoseconds = match &node.value {
        Raw::Text(text) | Raw::Word(text) => match parse_duration(text, unit) {
            Ok(nanoseconds) => nanoseconds,
            Err(error) => return refusal(ty, error.to_string()),
        },
        Raw::Integer(number) => {
            let number = number.and_then(|number| u64::try_from(number).ok());
            match number.and_then(|number| number.checked_mul(unit.nanoseconds())) {
                Some(nanoseconds) => nanoseconds,
                None => return refusal(ty, "is out of range"),
            }
        }
        _ => return refusal(ty, "is not a time"),
    };
    ranged(ty, nanoseconds, min, max)
}

fn sectors(node: &Node) -> Option<SectorRange> {
    if let Some(number) = index(node) {
        let first = u64::try_from(number).ok()?;
        return Some(SectorRange { first, last: first });
    }
    let (first, last) = node.text()?.split_once('-')?;
    let range =
        SectorRange { first: parse_number(first.trim())?, last: parse_number(last.trim())? };
    (range.first <= range.last).then_some(range)
}

/// Longest latency of the null driver: an hour.
const MAX_LATENCY: u64 = 3_600_000_000_000;
static LATENCY_TIME: Type = Type::Duration { unit: Unit::Nanoseconds, min: 0, max: MAX_LATENCY };

fn latency(check: &mut Check<'_>, node: &Node, path: &str) -> Option<Value> {
    let Raw::Table(entries) = &node.value else {
        return refuse(check, node, path, "is not a table", LATENCY_DOC);
    };
    if entries.is_empty() {
        return refuse(check, node, path, "is empty", LATENCY_DOC);
    }
    let mut points: Vec<(u32, u64, &Entry)> = Vec::new();
    for entry in entries {
        let (ppm, time) = (percentile(check, entry), latency_time(check, entry));
        points.extend(ppm.zip(time).map(|(ppm, time)| (ppm, time, entry)));
    }
    if points.len() < entries.len() {
        return None;
    }
    points.sort_by_key(|(ppm, ..)| *ppm);
    for pair in points.windows(2) {
        if pair[1].1 < pair[0].1 {
            let message = format!(
                "`{}` is shorter than `{}` ({})",
                pair[1].2.key,
                pair[0].2.key,
                format_duration(pair[0].1)
            );
            check.findings.error(&pair[1].2.node.span, message, "percentiles rise");
            return None;
        }
        if pair[1].0 == pair[0].0 {
            let message = format!("`{}` and `{}` are the same", pair[0].2.key, pair[1].2.key);
            check.findings.error(&pair[1].2.key_span, message, "give each percentile once");
            return None;
        }
    }
    let points = points.into_iter().map(|(ppm, time, _)| (ppm, time)).collect();
    Some(Value::Latency(Latency { points }))
}

/// Parts per million of `min`, `p50`, `p99.9`, `max`.
fn percentile(check: &mut Check<'_>, entry: &Entry) -> Option<u32> {
    let ppm = match entry.key.as_str() {
        "min" => Some(0),
        "max" => Some(1_000_000),
        key => key.strip_prefix('p').and_then(|number| {
            let ppm = crate::size::scaled(number, 10_000).ok()?;
            u32::try_from(ppm).ok().filter(|ppm| (1..1_000_000).contains(ppm))
        }),
    };
    if ppm.is_none() {
        let message = format!("`{}` is not a percentile", shorten(&entry.key));
        check.findings.error(&entry.key_span, message, "use min, p50, p99, \"p99.9\" or max");
    }
    ppm
}

fn latency_time(check: &mut Check<'_>, entry: &Entry) -> Option<u64> {
    if matches!(entry.node.value, Raw::Table(_)) {
        let message = format!("`{}` is not a time", shorten(&entry.key));
        let hint = "a percentile with a point stands in quotes, as in \"p99.9\"";
        check.findings.error(&entry.key_span, message, hint);
        return None;
    }
    match parse_simple(&LATENCY_TIME, &entry.node) {
        Ok(Value::Number(nanoseconds)) => Some(nanoseconds),
        Ok(other) => unreachable!("a duration is a number, not {other:?}"),
        Err(Refusal { reason, hint }) => {
            refuse(check, &entry.node, &entry.key, &reason, &hint);
            None
        }
    }
}
