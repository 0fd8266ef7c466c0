//! `drystone log-writes`: shows a write log, and replays it, with the words of xfstests'
//! `replay-log`. Needs no server.
//!
//! A log may be anybody's: whatever it says, at worst one sentence says what is wrong with it.

mod reader;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use drystone_core::error::ErrorKind;
use drystone_drivers::file::OfflineFile;
use drystone_targets::LogFlags;
use serde_json::json;

use self::reader::{Found, LogReader};
use crate::failure::Failure;
use crate::output;
use crate::paths::identity;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// The time that a target that is in use after a check is asked for again.
const OPEN_PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `drystone log-writes`.
#[derive(Debug, Args)]
pub struct LogWritesArgs {
    /// The file or block device that holds the log
    log: PathBuf,
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// List the entries
    List {
        #[command(flatten)]
        range: Range,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Repeat the writes of the log on a copy of what the device held when the log began
    Replay {
        /// The file or block device to write to
        #[arg(long, value_name = "PATH")]
        to: PathBuf,
        #[command(flatten)]
        range: Range,
        /// Take only entries that touch this sector, in the log's sectors, or a later one
        #[arg(long, value_name = "SECTOR", default_value_t = 0)]
        start_sector: u64,
        /// Take only entries that touch this sector or an earlier one
        #[arg(long, value_name = "SECTOR", default_value_t = u64::MAX, hide_default_value = true)]
        end_sector: u64,
        /// Leave discards out
        #[arg(long)]
        no_discard: bool,
        /// A shell command that must succeed after each entry that --check names
        #[arg(long, value_name = "COMMAND", requires = "check")]
        fsck: Option<String>,
        /// Run it after each flush, each fua, or each N-th entry
        #[arg(long, value_name = "flush|fua|N", requires = "fsck", value_parser = check)]
        check: Option<Check>,
    },
}

/// Which entries.
#[derive(Debug, Clone, Args)]
struct Range {
    /// Begin with this entry; the first is 0
    #[arg(long, value_name = "N", conflicts_with = "start_mark")]
    start_entry: Option<u64>,
    /// Begin behind this mark
    #[arg(long, value_name = "NAME")]
    start_mark: Option<String>,
    /// End with this mark
    #[arg(long, value_name = "NAME")]
    end_mark: Option<String>,
    /// End with the next flush
    #[arg(long)]
    next_flush: bool,
    /// End with the next write with FUA
    #[arg(long)]
    next_fua: bool,
    /// End after so many entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

/// When a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Flag(LogFlags),
    Each(u64),
}

fn check(text: &str) -> Result<Check, String> {
    match text {
        "flush" => Ok(Check::Flag(LogFlags::FLUSH)),
        "fua" => Ok(Check::Flag(LogFlags::FUA)),
        number => match number.parse() {
            Ok(number @ 1..) => Ok(Check::Each(number)),
            _ => Err("write flush, fua or a number from 1".to_owned()),
        },
    }
}

/// `drystone log-writes`.
pub fn run(args: &LogWritesArgs) -> Result<(), Failure> {
    let mut log = LogReader::open(&args.log)?;
    match &args.command {
        LogCommand::List { range, json: true } => list_json(&mut log, range),
        LogCommand::List { range, json: false } => list(&mut log, range),
        LogCommand::Replay { to, range, start_sector, end_sector, no_discard, fsck, check } => {
            let mut target = Target {
                opened: Some(target(&args.log, to)?),
                path: to,
                sectors: (*start_sector, *end_sector),
                no_discard: *no_discard,
            };
            let check = fsck.as_deref().zip(*check);
            replay(&mut log, range, &mut target, check)
        }
    }
}

/// Walks over the entries of a range.
fn each(
    log: &mut LogReader,
    range: &Range,
    mut visit: impl FnMut(&mut LogReader, &Found) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (start, marks) = ends(log, range)?;
    log.rewind();
    while log.number() < start {
        log.next()?;
    }
    let mut count = 0;
    while let Some(found) = log.next()? {
        count += 1;
        visit(log, &found)?;
        let flags = found.entry.flags;
        let ends = marks.is_some_and(|end| found.number == end)
            || range.next_flush && flags.has(LogFlags::FLUSH)
            || range.next_fua && flags.has(LogFlags::FUA)
            || range.limit == Some(count);
        if ends {
            break;
        }
    }
    Ok(())
}

/// The first entry of a range, and the mark that ends it if there is one: found before anything is
/// done.
fn ends(log: &mut LogReader, range: &Range) -> Result<(u64, Option<u64>), Failure> {
    let entries = log.entries();
    let start = match (&range.start_mark, range.start_entry) {
        (Some(mark), _) => log.find_mark(mark, 0)? + 1,
        (None, Some(start)) if start >= entries => {
            return Err(Failure::Refused(format!(
                "there is no entry {start}: the log has {entries}"
            )));
        }
        (None, start) => start.unwrap_or(0),
    };
    let end = range.end_mark.as_ref().map(|mark| log.find_mark(mark, start)).transpose()?;
    Ok((start, end))
}

fn list(log: &mut LogReader, range: &Range) -> Result<(), Failure> {
    let (entries, sector) = (log.entries(), log.sector_bytes());
    output::print(&format!("{entries} entries, sectors of {sector} bytes\n"))?;
    let mut rows =
        vec![["ENTRY", "SECTOR", "SECTORS", "FLAGS", "MARK"].map(str::to_owned).to_vec()];
    each(log, range, |_, Found { number, entry, text }| {
        let mark = String::from_utf8_lossy(text).escape_default().to_string();
        let numbers = [*number, entry.sector, entry.sectors].map(|number| number.to_string());
        rows.push(numbers.into_iter().chain([entry.flags.to_string(), mark]).collect());
        Ok(())
    })?;
    output::print(&output::columns(&rows))?;
    Ok(())
}

fn list_json(log: &mut LogReader, range: &Range) -> Result<(), Failure> {
    let mut entries = Vec::new();
    each(log, range, |_, Found { number, entry, text }| {
        let is_mark = entry.flags.has(LogFlags::MARK);
        entries.push(json!({
            "entry": number,
            "sector": entry.sector,
            "sectors": entry.sectors,
            "flags": entry.flags.to_string(),
            "mark": is_mark.then(|| String::from_utf8_lossy(text)),
        }));
        Ok(())
    })?;
    let sector_bytes = log.sector_bytes();
    output::print_json(&json!({ "sector_bytes": sector_bytes, "entries": entries })).map(drop)
}

/// The target that a log is replayed to: locked as a served file is, so that no other process
/// writes it meanwhile.
struct Target<'a> {
    /// `None` only while a command checks it, which may lock it.
    opened: Option<OfflineFile>,
    path: &'a Path,
    /// First and last sector of interest.
    sectors: (u64, u64),
    no_discard: bool,
}

/// Opens what a log is replayed to.
fn target(log: &Path, to: &Path) -> Result<OfflineFile, Failure> {
    if identity(log) == identity(to) {
        return Err(Failure::Refused(format!(
            "{} is the log itself: name the device to write to",
            to.display()
        )));
    }
    OfflineFile::open(to, false).map_err(|error| match error.kind {
        ErrorKind::NotFound => {
            Failure::Refused(format!("{error}: make it first, as long as the device was"))
        }
        _ => Failure::Refused(error.to_string()),
    })
}

fn replay(
    log: &mut LogReader,
    range: &Range,
    target: &mut Target<'_>,
    check: Option<(&str, Check)>,
) -> Result<(), Failure> {
    // Before anything is written.
    each(log, range, |log, found| target.place(log.sector_bytes(), found).map(drop))?;
    let mut count = 0;
    each(log, range, |log, found| {
        count += 1;
        target.take(log, found)?;
        let Some((command, check)) = check else { return Ok(()) };
        let due = match check {
            Check::Flag(flag) => found.entry.flags.has(flag),
            Check::Each(number) => count % number == 0,
        };
        if due { target.fsck(command, found.number) } else { Ok(()) }
    })?;
    target.sync()?;
    output::print(&format!("{count} entries replayed\n"))?;
    Ok(())
}

impl Target<'_> {
    fn failed(&self, error: &io::Error) -> Failure {
        Failure::Refused(format!("{}: {error}", self.path.display()))
    }

    fn opened(&self) -> &OfflineFile {
        self.opened.as_ref().expect("it is open but for commands that check it")
    }

    fn file(&self) -> &File {
        self.opened().file()
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file().sync_all().map_err(|error| self.failed(&error))
    }

    /// Where an entry's sectors are, in bytes; `None` if nobody asked for them.
    fn place(&self, block: u32, found: &Found) -> Result<Option<(u64, u64)>, Failure> {
        let (Found { entry, number, .. }, block) = (found, u64::from(block));
        let size = self.opened().size_bytes();
        let (first, last) = (entry.sector, entry.sector.saturating_add(entry.sectors));
        if entry.sectors == 0 || last <= self.sectors.0 || first > self.sectors.1 {
            return Ok(None);
        }
        let range = first.checked_mul(block).zip(entry.sectors.checked_mul(block));
        let is_inside = |end: Option<u64>| end.is_some_and(|end| end <= size);
        let range = range.filter(|(from, bytes)| is_inside(from.checked_add(*bytes)));
        if range.is_some() {
            return Ok(range);
        }
        Err(Failure::Refused(format!(
            "{}: entry {number} of the log (from sector {first} on, {} sectors of {block} bytes) \
             goes beyond its end at {size} bytes: make it as long as the device that was logged, \
             or leave out later sectors with --end-sector",
            self.path.display(),
            entry.sectors
        )))
    }

    /// Do what an entry did.
    fn take(&self, log: &LogReader, found: &Found) -> Result<(), Failure> {
        let Some((from, bytes)) = self.place(log.sector_bytes(), found)? else { return Ok(()) };
        match found.entry.flags.has(LogFlags::DISCARD) {
            true if self.no_discard => Ok(()),
            true => self.discard(from, bytes),
            false => log.data(bytes, COPY_BYTES, |at, data| {
                self.file().write_all_at(data, from + at).map_err(|error| self.failed(&error))
            }),
        }
    }

    /// Discarded sectors are zeroes: holes where the file can have them.
    fn discard(&self, from: u64, bytes: u64) -> Result<(), Failure> {
        use rustix::fs::{FallocateFlags, fallocate};
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = fallocate(self.file(), hole, from, bytes);
        zero(self.file(), from, bytes, punched).map_err(|error| self.failed(&error))
    }

    /// Run a command that checks what is there after entry `number`.
    fn fsck(&mut self, command: &str, number: u64) -> Result<(), Failure> {
        self.sync()?;
        // Such a command opens it for itself alone where it can: e2fsck a block device, qemu-img a
        // file.
        let before = self.opened.take().map(|file| file.size_bytes());
        match Command::new("sh").arg("-c").arg(command).status() {
            Ok(status) if status.success() => {}
            Ok(status) => {
                return Err(Failure::Refused(format!(
                    "the check failed after entry {number}: {status}"
                )));
            }
            Err(error) => return Err(Failure::Refused(format!("sh: {error}"))),
        }
        let opened = open_again(self.path)?;
        if Some(opened.size_bytes()) != before {
            return Err(Failure::Refused(format!(
                "{}: the check after entry {number} has changed its size: it must stay as long as \
                 the device was",
                self.path.display()
            )));
        }
        self.opened = Some(opened);
        Ok(())
    }
}

/// Open the target after a check, which may have left a loop device that goes in a moment.
fn open_again(path: &Path) -> Result<OfflineFile, Failure> {
    let end = Instant::now() + OPEN_PATIENCE;
    loop {
        match OfflineFile::open(path, false) {
            Err(error) if error.kind == ErrorKind::Busy && Instant::now() < end => {
                thread::sleep(Duration::from_millis(50));
            }
            opened => return opened.map_err(|error| Failure::Refused(error.to_string())),
        }
    }
}

/// Make zeroes of a range in which a hole was `punched`, or could not be.
fn zero(file: &File, from: u64, bytes: u64, punched: rustix::io::Result<()>) -> io::Result<()> {
    match punched {
        Ok(()) => return Ok(()),
        // It has no holes, or larger blocks than what was logged.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let zeroes = vec![0; COPY_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let now = (bytes - at).min(zeroes.len() as u64);
        file.write_all_at(&zeroes[..now as usize], from + at)?;
        at += now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// A disk without room would be filled by zeroes, and one with an error is not written on.
    #[test]
    fn zeroes_are_written_only_where_there_can_be_no_hole() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let zeroed = |punched| {
            std::fs::write(&path, [7; 4096]).unwrap();
            let outcome = zero(path.as_file(), 512, 1024, punched);
            let after = std::fs::read(&path).unwrap();
            (outcome.map_err(|error| error.raw_os_error()), after)
        };
        let untouched = vec![7; 4096];
        let zeroes = [vec![7; 512], vec![0; 1024], vec![7; 2560]].concat();
        for error in [Errno::IO, Errno::NOSPC, Errno::PERM, Errno::FBIG] {
            let refused = Err(Some(error.raw_os_error()));
            assert_eq!(zeroed(Err(error)), (refused, untouched.clone()), "{error}");
        }
        for error in [Errno::OPNOTSUPP, Errno::INVAL] {
            assert_eq!(zeroed(Err(error)), (Ok(()), zeroes.clone()), "{error}");
        }
        assert_eq!(zeroed(Ok(())), (Ok(()), untouched), "the hole is there already");
    }
}
