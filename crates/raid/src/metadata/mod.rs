//! The metadata of Linux md, version 1.x, as bytes and as decisions. This module does no I/O.
//!
//! ```text
//! 1.1, 1.2: | superblock | bitmap or PPL | bad block log | room | data ...        |
//! 1.0:      | data ...        | room | bitmap or PPL | bad block log | superblock |
//! ```
//!
//! All numbers on disk are little-endian (Linux `include/uapi/linux/raid/md_p.h`). This module
//! parses bytes from unknown sources, so it must not panic on any input.

use std::fmt;

pub mod assemble;
pub mod bad_blocks;
pub mod bitmap;
pub mod create;
pub mod examine;
pub mod foreign;
pub mod journal;
pub mod partitions;
pub mod places;
pub mod ppl;
mod raw;
pub mod room;
pub mod superblock;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;

/// The upper limit of counts on disk that rise while an array is used: half of the field's range.
/// So no array can overflow the field, and no array that was really used reaches the limit.
pub const COUNT_MAX: u64 = u64::MAX / 2;

/// Why metadata was refused. `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataError {
    /// No metadata is at this place: the magic number differs.
    Absent(String),
    /// The metadata is damaged, or contradicts itself or the device.
    Invalid(String),
    /// The metadata is valid, but has something that this program does not support.
    Unknown(String),
}

impl MetadataError {
    /// The sentence.
    pub fn message(&self) -> &str {
        match self {
            MetadataError::Absent(text)
            | MetadataError::Invalid(text)
            | MetadataError::Unknown(text) => text,
        }
    }
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for MetadataError {}

/// `MetadataError::Invalid`, short.
fn invalid(text: impl Into<String>) -> MetadataError {
    MetadataError::Invalid(text.into())
}

/// Checks that a count leaves room to rise.
///
/// # Errors
/// The count is above [`COUNT_MAX`]; `what` names the field.
fn check_count(what: &str, count: u64) -> Result<(), MetadataError> {
    match count {
        0..=COUNT_MAX => Ok(()),
        _ => Err(invalid(format!("{what} is {count}, expected up to {COUNT_MAX}"))),
    }
}

/// The 16 bytes by which md identifies arrays and devices.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Parses mdadm's notation (four groups of eight hex digits) or the usual one; only the digits
    /// count.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.chars().filter(|c| !matches!(c, ':' | '-'));
        let digits = digits.map(|c| c.to_digit(16)).collect::<Option<Vec<u32>>>()?;
        let bytes: Vec<u8> = digits.chunks(2).map(|d| (d[0] << 4 | d[d.len() - 1]) as u8).collect();
        (digits.len() == 32).then(|| Uuid(at(&bytes, 0)))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index > 0 && index % 4 == 0 { ":" } else { "" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `N` bytes from `offset` on; zeroes replace missing bytes.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    let there = bytes.get(offset..).unwrap_or(&[]);
    let len = there.len().min(N);
    out[..len].copy_from_slice(&there[..len]);
    out
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(at(bytes, offset))
}

/// Copies bytes to an offset of a buffer that is long enough.
fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_mdadm_does() {
        let text = "0a0b0c0d:11223344:55667788:0000001c";
        assert_eq!(Uuid::parse(text).unwrap().to_string(), text);
        assert_eq!(Uuid::parse("0a0b0c0d-1122-3344-5566-77880000001c").unwrap().to_string(), text);
        assert_eq!(Uuid::parse("0a0b"), None);
        assert_eq!(Uuid::parse("0g0b0c0d:11223344:55667788:0000001c"), None);
    }
}
