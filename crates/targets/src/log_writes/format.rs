//! The format of a write log: one sector with the super block, then the entries one after another.
//! An entry is a sector with its header, followed by as many sectors of data as the header says. A
//! sector is a logical block of the device whose writes are logged.
//!
//! ```text
//! | super | header | data ... | header | header | data ... | ...
//! ```
//!
//! Discards have a number of sectors but no data. The text of a mark follows the header in the same
//! sector. All numbers are little-endian.
//!
//! Source: the format that the kernel's `dm-log-writes` writes and xfstests' `replay-log` reads.

use std::ops::BitOr;

/// The first eight bytes of a log.
pub const LOG_MAGIC: u64 = 0x006a_7366_7773_6872;
/// The version of the format that this module writes and reads.
pub const LOG_VERSION: u64 = 1;
/// The used bytes of an entry's header; a mark's text begins behind them.
pub const LOG_HEADER_BYTES: usize = 32;
/// The text of the mark that ends every log.
pub const LOG_END_MARK: &str = "dm-log-writes-end";

/// The used bytes of the super block.
const SUPER_BYTES: usize = 28;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFlags(pub u64);

impl LogFlags {
    /// A flush: all entries before it were durable when it ended.
    pub const FLUSH: LogFlags = LogFlags(1 << 0);
    /// A write that was durable when it ended.
    pub const FUA: LogFlags = LogFlags(1 << 1);
    /// A discard.
    pub const DISCARD: LogFlags = LogFlags(1 << 2);
    /// A mark: a text, no I/O.
    pub const MARK: LogFlags = LogFlags(1 << 3);
    /// A write of a file system's own data. This module never writes the flag, because bios do not
    /// have it.
    pub const METADATA: LogFlags = LogFlags(1 << 4);

    const NAMES: [(LogFlags, &str); 5] = [
        (LogFlags::FLUSH, "FLUSH"),
        (LogFlags::FUA, "FUA"),
        (LogFlags::DISCARD, "DISCARD"),
        (LogFlags::MARK, "MARK"),
        (LogFlags::METADATA, "METADATA"),
    ];

    /// True if any of `flags` is set.
    pub fn has(self, flags: LogFlags) -> bool {
        self.0 & flags.0 != 0
    }
}

impl BitOr for LogFlags {
    type Output = LogFlags;

    fn bitor(self, other: LogFlags) -> LogFlags {
        LogFlags(self.0 | other.0)
    }
}

/// The names as `replay-log` prints them: `FLUSH|FUA`, `NONE`.
impl std::fmt::Display for LogFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = Self::NAMES.iter().filter(|(flag, _)| self.has(*flag));
        let mut words: Vec<String> = known.map(|(_, name)| (*name).to_owned()).collect();
        let rest = Self::NAMES.iter().fold(self.0, |rest, (flag, _)| rest & !flag.0);
        if rest != 0 {
            words.push(format!("UNKNOWN.{rest:#x}"));
        }
        f.write_str(if words.is_empty() { "NONE" } else { "" })?;
        f.write_str(&words.join("|"))
    }
}

/// The contents of a log's first sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSuper {
    /// The number of entries that follow.
    pub entries: u64,
    /// Bytes of a sector of the log.
    pub sector_bytes: u32,
}

impl LogSuper {
    /// Write the super block to the beginning of `sector`.
    pub(crate) fn encode(&self, sector: &mut [u8]) {
        let words = [LOG_MAGIC, LOG_VERSION, self.entries];
        put(sector, &words);
        sector[24..SUPER_BYTES].copy_from_slice(&self.sector_bytes.to_le_bytes());
    }

    /// Read the super block from the beginning of a log.
    ///
    /// # Errors
    /// The bytes are not a log that can be read; the message is one sentence.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some(bytes) = bytes.get(..SUPER_BYTES) else {
            return Err(format!("a log has {SUPER_BYTES} bytes at least, not {}", bytes.len()));
        };
        let [magic, version, entries] = take(bytes);
        if magic != LOG_MAGIC {
            return Err("it does not begin as a write log does".to_owned());
        }
        if version != LOG_VERSION {
            return Err(format!("it is a log of version {version}: only {LOG_VERSION} is known"));
        }
        let mut sector_bytes = [0; 4];
        sector_bytes.copy_from_slice(&bytes[24..]);
        let sector_bytes = u32::from_le_bytes(sector_bytes);
        match sector_bytes.is_power_of_two() && (512..=1 << 20).contains(&sector_bytes) {
            true => Ok(LogSuper { entries, sector_bytes }),
            false => {
                Err(format!("sectors of {sector_bytes} bytes: a power of two from 512 is due"))
            }
        }
    }
}

/// The header of an entry, with sectors of the log's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogEntry {
    /// The first sector, on the device whose writes are logged.
    pub sector: u64,
    /// The number of sectors; 0 for flushes and marks.
    pub sectors: u64,
    /// Its kind.
    pub flags: LogFlags,
    /// Bytes of a mark's text.
    pub text_bytes: u64,
}

impl LogEntry {
    /// Write the header to the beginning of `sector`.
    pub(crate) fn encode(&self, sector: &mut [u8]) {
        put(sector, &[self.sector, self.sectors, self.flags.0, self.text_bytes]);
    }

    /// Read a header from the beginning of its sector.
    ///
    /// # Errors
    /// The bytes are not a header; the message is one sentence.
    pub fn decode(sector: &[u8]) -> Result<Self, String> {
        let Some(bytes) = sector.get(..LOG_HEADER_BYTES) else {
            return Err("the log ends in a header".to_owned());
        };
        let [first, sectors, flags, text_bytes] = take(bytes);
        let entry = LogEntry { sector: first, sectors, flags: LogFlags(flags), text_bytes };
        if entry.flags == LogFlags::default() && sectors == 0 {
            return Err("an entry of nothing".to_owned());
        }
        let is_mark = entry.flags.has(LogFlags::MARK);
        if is_mark && text_bytes > (sector.len() - LOG_HEADER_BYTES) as u64 {
            return Err(format!("a text of {text_bytes} bytes, more than its sector has"));
        }
        Ok(entry)
    }

    /// Sectors of data that follow the header.
    pub fn data_sectors(&self) -> u64 {
        if self.flags.has(LogFlags::DISCARD) { 0 } else { self.sectors }
    }

    /// The text of a mark in its sector.
    pub fn text<'a>(&self, sector: &'a [u8]) -> &'a [u8] {
        let end = LOG_HEADER_BYTES.saturating_add(self.text_bytes as usize);
        sector.get(LOG_HEADER_BYTES..end).unwrap_or_default()
    }

    /// True if the two entries have a sector in common.
    pub(crate) fn overlaps(&self, other: &LogEntry) -> bool {
        self.sector < other.sector.saturating_add(other.sectors)
            && other.sector < self.sector.saturating_add(self.sectors)
    }
}

/// Reads any bytes as a write log, up to the first damage, for fuzzing. Returns the number of
/// entries.
pub fn fuzz_write_log(bytes: &[u8]) -> u64 {
    let Ok(log) = LogSuper::decode(bytes) else { return 0 };
    let mut again = [0; SUPER_BYTES];
    log.encode(&mut again);
    assert_eq!(LogSuper::decode(&again), Ok(log));
    let block = log.sector_bytes as usize;
    let (mut at, mut number, mut last) = (block, 0, LogEntry::default());
    while number < log.entries {
        let sector = bytes.get(at..).unwrap_or_default();
        let sector = &sector[..sector.len().min(block)];
        let Ok(entry) = LogEntry::decode(sector) else { break };
        let mut again = [0; LOG_HEADER_BYTES];
        entry.encode(&mut again);
        assert_eq!(again, sector[..LOG_HEADER_BYTES]);
        assert!(entry.text(sector).len() + LOG_HEADER_BYTES <= sector.len());
        assert_eq!(entry.overlaps(&last), last.overlaps(&entry));
        assert!(!entry.flags.to_string().is_empty());
        let data =
            usize::try_from(entry.data_sectors()).ok().and_then(|data| data.checked_mul(block));
        let end = data.and_then(|data| at.checked_add(block)?.checked_add(data));
        let Some(end) = end else { break };
        (at, last, number) = (end, entry, number + 1);
    }
    number
}

fn put(to: &mut [u8], words: &[u64]) {
    for (to, word) in to.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

fn take<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact bytes, as the kernel's target writes and `replay-log` reads them.
    #[test]
    fn bytes_of_a_log() {
        let mut sector = [0; 512];
        LogSuper { entries: 0x0102, sector_bytes: 4096 }.encode(&mut sector);
        let expected = [
            0x72, 0x68, 0x73, 0x77, 0x66, 0x73, 0x6a, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0,
            0, 0, 0, 0x10, 0, 0,
        ];
        assert_eq!((&sector[..28], &sector[28..]), (&expected[..], &[0; 484][..]));
        let read = LogSuper::decode(&sector);
        assert_eq!(read, Ok(LogSuper { entries: 0x0102, sector_bytes: 4096 }));

        let flags = LogFlags::FLUSH | LogFlags::FUA;
        let entry = LogEntry { sector: 0x0a0b, sectors: 8, flags, text_bytes: 3 };
        let mut sector = [0; 512];
        entry.encode(&mut sector);
        sector[32..35].copy_from_slice(b"abc");
        assert_eq!(sector[..4], [0x0b, 0x0a, 0, 0]);
        assert_eq!((sector[8], sector[16], sector[24]), (8, 3, 3));
        assert_eq!(LogEntry::decode(&sector), Ok(entry));
        assert_eq!(entry.text(&sector), b"abc");
    }

    #[test]
    fn what_is_no_log() {
        let mut sector = [0; 512];
        let super_block = LogSuper { entries: 1, sector_bytes: 512 };
        super_block.encode(&mut sector);
        let with = |at: usize, byte: u8| {
            let mut bytes = sector;
            bytes[at] = byte;
            LogSuper::decode(&bytes).unwrap_err()
        };
        assert!(with(0, 0).contains("does not begin"));
        assert!(with(8, 2).contains("version 2"));
        assert!(with(25, 3).contains("768 bytes"));
        assert!(LogSuper::decode(&sector[..27]).unwrap_err().contains("28 bytes"));

        assert!(LogEntry::decode(&[0; 512]).unwrap_err().contains("nothing"));
        let mut sector = [0; 512];
        LogEntry { flags: LogFlags::MARK, text_bytes: 481, ..LogEntry::default() }
            .encode(&mut sector);
        assert!(LogEntry::decode(&sector).unwrap_err().contains("481"));
        assert!(LogEntry::decode(&sector[..31]).unwrap_err().contains("ends"));
    }

    #[test]
    fn names_of_flags() {
        let shown = [0, 1, 3, 4, 8, 18, 0x60].map(|flags| LogFlags(flags).to_string());
        let expected =
            ["NONE", "FLUSH", "FLUSH|FUA", "DISCARD", "MARK", "FUA|METADATA", "UNKNOWN.0x60"];
        assert_eq!(shown, expected);
    }
}
