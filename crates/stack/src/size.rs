//! Sizes as people write them: `64KiB`, `10G`, `1.5MB`.
//!
//! K, M, G, T, P and KiB, MiB, ... are powers of 1024; KB, MB, ... are powers of 1000; `B` or no
//! unit means bytes. Case does not matter. A fraction is accepted if it gives whole bytes.

/// Unit names with their factor in bytes; the first name of a factor is the one we print.
const UNITS: [(&str, u64); 17] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("P", 1 << 50),
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("", 1),
];

/// The number of [`UNITS`] (from the front) that print a size.
const PRINTED_UNITS: usize = 6;

/// Most digits taken after a decimal point: 10^18 still fits the arithmetic.
const MAX_FRACTION_DIGITS: usize = 18;

/// The reason why a text is not a size. Its `Display` continues a sentence after the text: "has an
/// unknown unit".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No digits where a number must stand, or something between number and unit.
    #[error("is not a size such as \"64KiB\" or \"10G\"")]
    NotANumber,
    /// A unit that is not in the list.
    #[error(
        "has an unknown unit: use B, K, M, G, T, P or KiB, MiB, ... (powers of 1024), or KB, MB, \
         ... (powers of 1000)"
    )]
    UnknownUnit,
    /// More than 2^64 - 1 bytes.
    #[error("is too large: a size is less than 16384PiB")]
    TooLarge,
    /// A fraction that leaves part of a byte.
    #[error("is not a whole number of bytes")]
    NotWhole,
}

/// Reads a size and gives bytes.
///
/// # Errors
/// See [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let (number, unit) = split_number(text.trim());
    let factor = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .ok_or(if number.is_empty() { SizeError::NotANumber } else { SizeError::UnknownUnit })?
        .1;
    scaled(number, factor).map_err(|error| match error {
        ScaleError::NotANumber => SizeError::NotANumber,
        ScaleError::TooLarge => SizeError::TooLarge,
        ScaleError::NotWhole => SizeError::NotWhole,
    })
}

/// Writes a size exactly and as short as that allows: `10GiB`, `1.5GiB`, `1000B`.
///
/// [`parse_size`] gives the same number back.
pub fn format_size(bytes: u64) -> String {
    for (name, factor) in &UNITS[..PRINTED_UNITS] {
        if let Some(number) = exact_decimal(bytes, *factor) {
            return format!("{number}{name}");
        }
    }
    "0B".to_owned()
}

/// Why [`scaled`] refused a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleError {
    NotANumber,
    TooLarge,
    NotWhole,
}

/// Splits `10.5GiB` into `10.5` and `GiB`; blanks between them are dropped.
pub(crate) fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    (number, unit.trim_start())
}

/// `number` (digits, `_` between them, one decimal point) times `factor`, exactly.
pub(crate) fn scaled(number: &str, factor: u64) -> Result<u64, ScaleError> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(ScaleError::NotANumber);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > MAX_FRACTION_DIGITS {
        return Err(ScaleError::NotWhole);
    }
    let whole: u64 = whole.parse().map_err(|_| ScaleError::TooLarge)?;
    let parts = 10u128.pow(fraction.len() as u32);
    let below = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().unwrap_or(0) };
    let below = below * u128::from(factor);
    if below % parts != 0 {
        return Err(ScaleError::NotWhole);
    }
    let total = u128::from(whole) * u128::from(factor) + below / parts;
    u64::try_from(total).map_err(|_| ScaleError::TooLarge)
}

/// `value / factor` as a decimal of at most three places, if it is exactly that and at least 1.
pub(crate) fn exact_decimal(value: u64, factor: u64) -> Option<String> {
    let thousandths = u128::from(value) * 1000;
    if value < factor || thousandths % u128::from(factor) != 0 {
        return None;
    }
    let rest = (thousandths / u128::from(factor)) % 1000;
    if rest == 0 {
        return Some((value / factor).to_string());
    }
    Some(format!("{}.{rest:03}", value / factor).trim_end_matches('0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        let cases = [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("64KiB", 65_536),
            ("64 KiB", 65_536),
            ("64KB", 64_000),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("10gb", 10_000_000_000),
            ("1.5G", 3 << 29),
            ("1_000", 1000),
            ("16383P", 16_383 << 50),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        let cases = [
            ("", SizeError::NotANumber),
            ("GiB", SizeError::NotANumber),
            ("-1", SizeError::NotANumber),
            ("1.2.3K", SizeError::NotANumber),
            ("1.", SizeError::NotANumber),
            ("10X", SizeError::UnknownUnit),
            ("10 G G", SizeError::UnknownUnit),
            ("16384P", SizeError::TooLarge),
            ("18446744073709551616", SizeError::TooLarge),
            ("0.3B", SizeError::NotWhole),
            ("1.0000000000000000001K", SizeError::NotWhole),
        ];
        for (text, error) in cases {
            assert_eq!(parse_size(text), Err(error), "{text}");
        }
    }

    #[test]
    fn prints_short_and_exact() {
        let cases = [
            (0, "0B"),
            (1000, "1000B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (10 << 30, "10GiB"),
            (3 << 29, "1.5GiB"),
            ((1 << 30) + 512, "1048576.5KiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn printed_sizes_read_back(bytes: u64) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn round_sizes_read_back(number in 0u64..1 << 20, shift in 0u32..44) {
            let bytes = number << shift;
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = parse_size(&text);
        }
    }
}
