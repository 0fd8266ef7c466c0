//! Durations of parameters: `10us`, `5ms`, `30s`, held in nanoseconds.
//!
//! A number without a unit is in the unit of the parameter's name (`completion_nsec`:
//! nanoseconds, `io_timeout`: milliseconds), which the schema names as a [`Unit`].

use crate::size::{ScaleError, exact_decimal, scaled, split_number};

/// The unit that a plain number of a parameter is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// Nanoseconds in one of this unit.
    pub const fn nanoseconds(self) -> u64 {
        match self {
            Unit::Nanoseconds => 1,
            Unit::Milliseconds => 1_000_000,
            Unit::Seconds => 1_000_000_000,
        }
    }

    /// The unit's short name.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Milliseconds => "ms",
            Unit::Seconds => "s",
        }
    }
}

/// Names with nanoseconds, largest first; `µs` is taken beside `us`.
const UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("µs", 1_000),
];

/// The reason why a text is not a duration. Its `Display` continues a sentence after the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No digits where a number must stand.
    #[error("is not a time such as \"10us\" or \"30s\"")]
    NotANumber,
    /// A unit that is not in the list.
    #[error("has an unknown unit: use ns, us, ms, s, m or h")]
    UnknownUnit,
    /// More than 2^64 - 1 nanoseconds (584 years).
    #[error("is too long")]
    TooLong,
    /// A fraction that leaves part of a nanosecond.
    #[error("is not a whole number of nanoseconds")]
    NotWhole,
}

/// Reads a duration and gives nanoseconds; `plain` is the unit of a number without one.
///
/// # Errors
/// See [`DurationError`].
pub fn parse_duration(text: &str, plain: Unit) -> Result<u64, DurationError> {
    let (number, unit) = split_number(text.trim());
    if number.is_empty() {
        return Err(DurationError::NotANumber);
    }
    let factor = match unit {
        "" => plain.nanoseconds(),
        unit => {
            let known = UNITS.iter().find(|(name, _)| *name == unit);
            known.ok_or(DurationError::UnknownUnit)?.1
        }
    };
    scaled(number, factor).map_err(|error| match error {
        ScaleError::NotANumber => DurationError::NotANumber,
        ScaleError::TooLarge => DurationError::TooLong,
        ScaleError::NotWhole => DurationError::NotWhole,
    })
}

/// Writes nanoseconds exactly: `10us`, `1.5s`. [`parse_duration`] gives the same number back.
pub fn format_duration(nanoseconds: u64) -> String {
    for (name, factor) in &UNITS[..6] {
        if let Some(number) = exact_decimal(nanoseconds, *factor) {
            return format!("{number}{name}");
        }
    }
    "0s".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_and_plain_numbers() {
        assert_eq!(parse_duration("10us", Unit::Seconds), Ok(10_000));
        assert_eq!(parse_duration("10µs", Unit::Seconds), Ok(10_000));
        assert_eq!(parse_duration("1.5ms", Unit::Seconds), Ok(1_500_000));
        assert_eq!(parse_duration("30", Unit::Seconds), Ok(30_000_000_000));
        assert_eq!(parse_duration("30", Unit::Milliseconds), Ok(30_000_000));
        assert_eq!(parse_duration("10000", Unit::Nanoseconds), Ok(10_000));
        assert_eq!(parse_duration("s", Unit::Seconds), Err(DurationError::NotANumber));
        assert_eq!(parse_duration("5 days", Unit::Seconds), Err(DurationError::UnknownUnit));
        assert_eq!(parse_duration("0.1ns", Unit::Seconds), Err(DurationError::NotWhole));
        assert_eq!(parse_duration("9999999h", Unit::Seconds), Err(DurationError::TooLong));
    }

    proptest! {
        #[test]
        fn printed_durations_read_back(nanoseconds: u64) {
            let text = format_duration(nanoseconds);
            prop_assert_eq!(parse_duration(&text, Unit::Seconds), Ok(nanoseconds));
        }
    }
}
