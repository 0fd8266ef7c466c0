//! The metadata of Linux md, version 1.x, as bytes and as decisions: nothing here does I/O.
//!
//! ```text
//! 1.1, 1.2: | superblock | bitmap or PPL | bad block log | room | data ...        |
//! 1.0:      | data ...        | room | bitmap or PPL | bad block log | superblock |
//! ```
//!
//! All numbers on disk are little-endian (Linux `include/uapi/linux/raid/md_p.h`). Foreign
//! input is parsed here, so nothing here panics on any bytes.

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

/// Most that a count on disk may be which rises while an array is used: half of what its field
/// holds, so that no array counts beyond the field, and none that was ever used has counted so far.
pub const COUNT_MAX: u64 = u64::MAX / 2;

/// Why metadata was not taken. `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataError {
    /// There is none at this place: the magic number is another.
    Absent(String),
    /// There is some, and it is damaged or contradicts itself or the device.
    Invalid(String),
    /// It is in order, and says something that this program does not know.
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

/// A count that leaves room to go on from it.
///
/// # Errors
/// It is beyond [`COUNT_MAX`]; `what` names it.
fn check_count(what: &str, count: u64) -> Result<(), MetadataError> {
    match count {
        0..=COUNT_MAX => Ok(()),
        _ => Err(invalid(format!("{what} is {count}, expected up to {COUNT_MAX}"))),
    }
}

/// The 16 bytes by which md tells arrays and devices apart.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// From mdadm's way of writing it (four groups of eight hex digits) or the usual one; only the
    /// digits count.
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

/// `N` bytes from `offset` on; zeroes where the bytes end.
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

/// Puts bytes at an offset of a buffer that is known to be long enough.
fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

#[cfg(test)]
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
