//! Reads a write log from the beginning on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use drystone_targets::{LogEntry, LogFlags, LogSuper};

use crate::failure::Failure;

/// A log, at one of its entries.
pub(super) struct LogReader {
    file: File,
    path: PathBuf,
    log: LogSuper,
    /// The next entry, and where its header begins.
    number: u64,
    at: u64,
    /// Where the data of the last entry began, and how many bytes they were.
    data: (u64, u64),
}

/// An entry.
pub(super) struct Found {
    /// The first is 0.
    pub(super) number: u64,
    pub(super) entry: LogEntry,
    /// A mark's text.
    pub(super) text: Vec<u8>,
}

impl LogReader {
    /// Opens a log and reads its super block.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let refused = |what: String| Failure::Refused(format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|error| refused(error.to_string()))?;
        let mut bytes = [0; 512];
        file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => refused("it is too short for a log".to_owned()),
            _ => refused(error.to_string()),
        })?;
        let log = LogSuper::decode(&bytes).map_err(refused)?;
        let at = u64::from(log.sector_bytes);
        Ok(LogReader { file, path: path.to_owned(), log, number: 0, at, data: (0, 0) })
    }

    /// The number of entries that it has.
    pub(super) fn entries(&self) -> u64 {
        self.log.entries
    }

    /// Bytes of its sectors.
    pub(super) fn sector_bytes(&self) -> u32 {
        self.log.sector_bytes
    }

    /// The number of the next entry.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Go back to the first entry.
    pub(super) fn rewind(&mut self) {
        (self.number, self.at) = (0, u64::from(self.log.sector_bytes));
    }

    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<Found>, Failure> {
        if self.number >= self.log.entries {
            return Ok(None);
        }
        let block = u64::from(self.log.sector_bytes);
        let mut header = vec![0; block as usize];
        self.read(&mut header, self.at)?;
        let entry = LogEntry::decode(&header).map_err(|what| self.wrong(&what))?;
        let data = entry.data_sectors().checked_mul(block);
        let end = data.and_then(|data| self.at.checked_add(block)?.checked_add(data));
        let (Some(data), Some(end)) = (data, end) else {
            return Err(self.wrong("more data than any device holds"));
        };
        self.data = (self.at + block, data);
        let text = entry.text(&header).to_vec();
        let found = Found { number: self.number, entry, text };
        (self.number, self.at) = (self.number + 1, end);
        Ok(Some(found))
    }

    /// The number of the first mark `name` from entry `start` on.
    pub(super) fn find_mark(&mut self, name: &str, start: u64) -> Result<u64, Failure> {
        self.rewind();
        while let Some(Found { number, entry, text }) = self.next()? {
            if number >= start && entry.flags.has(LogFlags::MARK) && text == name.as_bytes() {
                return Ok(number);
            }
        }
        let behind = if start > 0 { format!(" behind entry {}", start - 1) } else { String::new() };
        let path = self.path.display();
        Err(Failure::Refused(format!("{path}: there is no mark `{name}`{behind}")))
    }

    /// The `bytes` bytes of data of the entry that was read last, in pieces of at most `piece` with
    /// how many bytes came before.
    pub(super) fn data(
        &self,
        bytes: u64,
        piece: usize,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (from, length) = self.data;
        let bytes = bytes.min(length);
        let mut buf = vec![0; piece.min(bytes as usize)];
        let mut at = 0;
        while at < bytes {
            let now = (bytes - at).min(buf.len() as u64) as usize;
            self.read(&mut buf[..now], from + at)?;
            take(at, &buf[..now])?;
            at += now as u64;
        }
        Ok(())
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<(), Failure> {
        self.file.read_exact_at(buf, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.wrong("the log ends before it"),
            _ => Failure::Refused(format!("{}: {error}", self.path.display())),
        })
    }

    fn wrong(&self, what: &str) -> Failure {
        let (path, number) = (self.path.display(), self.number);
        Failure::Refused(format!("{path}: entry {number} of {}: {what}", self.log.entries))
    }
}
