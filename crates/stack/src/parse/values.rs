//! Reads values of simple types.

use super::fields::Value;
use super::node::{Node, Raw};
use crate::duration::{Unit, parse_duration};
use crate::nearest::nearest;
use crate::schema::Type;
use crate::size::{format_size, parse_size};

/// Why a simple value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The fault, following the value: "is out of range".
    pub reason: String,
    /// The right form.
    pub hint: String,
}

fn refusal<T>(ty: &Type, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { reason: reason.into(), hint: ty.expected() })
}

/// Reads a value of a type that needs no context: switches, numbers, choices, times, modes, names,
/// texts and sectors. Attributes are checked by this function, too.
///
/// # Errors The fault, and what would be right.
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
        | Type::List(_) => unreachable!("{ty:?} is read by the check of a table"),
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

fn sectors(node: &Node) -> Option<(u64, u64)> {
    if let Some(number) = index(node) {
        let first = u64::try_from(number).ok()?;
        return Some((first, first));
    }
    let (first, last) = node.text()?.split_once('-')?;
    let (first, last) = (parse_number(first.trim())?, parse_number(last.trim())?);
    (first <= last).then_some((first, last))
}
