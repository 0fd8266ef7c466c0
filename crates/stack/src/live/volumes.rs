//! Changes of volumes while the stack is served, as dmsetup makes them.
//!
//! Invariants:
//! * A refused change has no effect. A suspension that takes too long is undone.
//! * A wait polls [`Volume::is_quiesced`] with pauses. It holds no lock meanwhile, only the claim
//!   on the volume.

use std::sync::Arc;

use drystone_core::Device;
use drystone_core::clock::Ns;
use drystone_core::op::OpGroup;
use drystone_targets::{Line, Table, Volume, VolumeOptions};

use super::devices::{Claim, LiveDevice, State};
use super::{Find, LiveStack, SleepFn, logs, table, uses};
use crate::control::DEFAULT_TIMEOUT_NS;
use crate::diagnostic::shorten;
use crate::duration::format_duration;
use crate::names::check_name;
use crate::nearest::nearest;
use crate::parse::table::read_table;
use crate::runtime::{Change, ChangeError, Refused};
use crate::spec::{ExportSpec, Segment};

/// The first pause between two checks of a volume that drains: I/O in memory ends within it.
pub(super) const FIRST_PAUSE_NS: Ns = 50_000;
/// The longest pause: far below what people notice, and short against the I/O of a slow disk.
pub(super) const LONGEST_PAUSE_NS: Ns = 5_000_000;
/// Most devices of a stack, those that come later included: far below the 60 000 channels that
/// a context may open.
const MAX_DEVICES: usize = 32_768;

type Result<T> = std::result::Result<T, ChangeError>;

pub(super) fn refused<T>(refused: Refused, message: impl Into<String>) -> Result<T> {
    Err(ChangeError { refused, message: message.into() })
}

/// An error of the volume itself, which has changed nothing.
fn failed(error: drystone_core::Error) -> ChangeError {
    ChangeError { refused: Refused::Failed, message: error.message }
}

/// The right to change a device, unless somebody else has it.
pub(super) fn claim(live: &Arc<LiveDevice>) -> Result<Claim> {
    let message = || format!("`{}` is being changed by another client: try again", live.name);
    live.claim().ok_or_else(|| ChangeError { refused: Refused::Busy, message: message() })
}

/// Makes changes to a stack's volumes.
pub(super) struct Changes<'a> {
    pub(super) stack: &'a LiveStack,
    pub(super) pause: &'a SleepFn,
}

impl Changes<'_> {
    /// Makes a change to the volume `name`.
    pub(super) fn make(&self, name: &str, change: &Change<'_>) -> Result<()> {
        match *change {
            Change::Create { table, read_only, force } => {
                self.create(name, table, read_only, force)
            }
            Change::Reload { table, force, resume_within } => {
                self.reload(name, table, force, resume_within)
            }
            Change::Clear => {
                let (_, volume, _claim) = self.claim(name)?;
                volume.clear();
                Ok(())
            }
            Change::Suspend { within } => self.suspend(name, within),
            Change::Resume { within } => {
                let (live, volume, _claim) = self.claim(name)?;
                self.resume(&live, &volume, within)
            }
            Change::Message { sector, text } => self.message(name, sector, text),
            Change::Remove => self.remove(name),
        }
    }

    fn create(&self, name: &str, table: Option<&str>, read_only: bool, force: bool) -> Result<()> {
        check_name(name).or_else(|message| refused(Refused::BadName, message))?;
        let segments = table.map(read).transpose()?;
        let mut state = self.stack.devices.lock();
        check_stopped(&state)?;
        check_new(&state, name)?;
        let options = VolumeOptions { read_only, no_iostats: false };
        let volume = Volume::new(name, options, self.stack.locks.counters());
        let live = LiveDevice::of_volume(name, volume.clone(), &self.stack.groups);
        if let Some(segments) = segments {
            let detach = || self.stack.groups.detach(name);
            let table = self.checked(&state, &live, &segments, force).inspect_err(|_| detach())?;
            volume.load(table);
            volume.resume().map_err(failed).inspect_err(|_| detach())?;
        }
        state.list.push(live);
        Ok(())
    }

    fn reload(
        &self,
        name: &str,
        table: &str,
        force: bool,
        resume_within: Option<Ns>,
    ) -> Result<()> {
        let segments = read(table)?;
        let (live, volume, _claim) = self.claim(name)?;
        let state = self.stack.devices.lock();
        check_stopped(&state)?;
        volume.load(self.checked(&state, &live, &segments, force)?);
        drop(state);
        resume_within.map_or(Ok(()), |within| self.resume(&live, &volume, within))
    }

    fn suspend(&self, name: &str, within: Option<Ns>) -> Result<()> {
        let (live, volume, _claim) = self.claim(name)?;
        let before = self.start_suspend(&volume)?;
        let Some(within) = within else { return Ok(()) };
        let patience =
            Patience { deadline: self.stack.clock.now().saturating_add(within), within, before };
        self.until_quiet(&live, &volume, &patience).inspect_err(|_| {
            if !before {
                volume.cancel_suspend();
            }
        })
    }

    /// Let I/O go on, by the inactive table if there is one.
    fn resume(&self, live: &LiveDevice, volume: &Volume, within: Ns) -> Result<()> {
        let swaps = volume.inactive_table().is_some() && volume.table().is_some();
        let before = if swaps { self.start_suspend(volume)? } else { volume.is_suspended() };
        let patience =
            Patience { deadline: self.stack.clock.now().saturating_add(within), within, before };
        let resumed = loop {
            let quiet = if swaps { self.until_quiet(live, volume, &patience) } else { Ok(()) };
            if swaps && quiet.is_ok() {
                // The next table may have its log at the same place.
                let _ = self.end_logs(volume, within);
            }
            match quiet.and_then(|()| self.resume_now(live, volume)) {
                // A context was opened, or a member changed: every context must confirm once more.
                Ok(false) => continue,
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        resumed.inspect_err(|_| {
            if !before {
                volume.cancel_suspend();
            }
        })
    }

    /// False if it is not quiet enough for a new table.
    fn resume_now(&self, live: &LiveDevice, volume: &Volume) -> Result<bool> {
        let state = self.stack.devices.lock();
        check_stopped(&state)?;
        let next = volume.inactive_table();
        if let Some(table) = &next {
            // Tables over it may have come since this one was loaded, or a member has changed.
            let again = Table::new(table.lines().to_vec()).map_err(|error| error.message);
            let fits = again.and_then(|table| uses::check_above(&state, live, &table));
            fits.or_else(|message| refused(Refused::BadTable, message))?;
        }
        let swaps = next.is_some() && volume.table().is_some();
        match volume.resume() {
            Ok(()) => Ok(true),
            Err(_) if swaps => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Sends a message to the target at `sector`. Only `log-writes` accepts messages.
    fn message(&self, name: &str, sector: u64, text: &str) -> Result<()> {
        let (_, volume, _claim) = self.claim(name)?;
        let table = volume.table();
        let mut lines = table.iter().flat_map(|table| table.lines());
        let inside = |line: &&Line| (line.start..line.start + line.length).contains(&sector);
        let Some(line) = lines.find(inside) else {
            return refused(Refused::BadTable, format!("`{name}` has no sector {sector}"));
        };
        let target = line.target.name();
        let Some(log) = table.as_ref().and_then(|table| table.log_at(sector)) else {
            let message =
                format!("target `{target}` at sector {sector} of `{name}` takes no messages");
            return refused(Refused::Unsupported, message);
        };
        let mark = mark(text, log.text_bytes_max());
        let mark = mark.or_else(|what| refused(Refused::Unsupported, what))?;
        let marked = logs::mark(self.stack, log, mark, (DEFAULT_TIMEOUT_NS, self.pause));
        marked.or_else(|why| {
            refused(Refused::Failed, format!("no mark in the log of `{name}`: {why}"))
        })
    }

    /// Ends the logs of a volume that is quiet.
    fn end_logs(&self, volume: &Volume, within: Ns) -> Result<()> {
        let table = volume.table();
        let ended =
            table.map_or(Ok(()), |table| logs::end(self.stack, &table, (within, self.pause)));
        ended.or_else(|why| {
            refused(Refused::Failed, format!("the end of a log cannot be written: {why}"))
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let (live, volume, _claim) = self.claim(name)?;
        check_unused(&self.stack.devices.lock(), &self.stack.exports, &live)?;
        let before = volume.is_suspended();
        self.end_logs_of_removed(&live, &volume, before)?;
        let mut state = self.stack.devices.lock();
        let unused =
            check_stopped(&state).and_then(|()| check_unused(&state, &self.stack.exports, &live));
        unused.inspect_err(|_| {
            if !before {
                volume.cancel_suspend();
            }
        })?;
        state.list.retain(|other| !Arc::ptr_eq(other, &live));
        drop(state);
        // Contexts may keep the volume as long as they live, but no other device through it.
        volume.close();
        self.stack.groups.detach(name);
        Ok(())
    }

    /// Ends the logs of a volume that is being removed. No entry may follow the end of a log, so a
    /// volume with logs is suspended first. `before`: it was suspended already.
    fn end_logs_of_removed(&self, live: &LiveDevice, volume: &Volume, before: bool) -> Result<()> {
        if volume.table().is_none_or(|table| table.logs().next().is_none()) {
            return Ok(());
        }
        self.start_suspend(volume)?;
        let within = DEFAULT_TIMEOUT_NS;
        let patience =
            Patience { deadline: self.stack.clock.now().saturating_add(within), within, before };
        let quiet = self.until_quiet(live, volume, &patience).inspect_err(|_| {
            if !before {
                volume.cancel_suspend();
            }
        });
        // A log that cannot be ended does not prevent the removal.
        quiet.map(|()| _ = self.end_logs(volume, within))
    }

    /// The volume of that name, and the right to change it.
    fn claim(&self, name: &str) -> Result<(Arc<LiveDevice>, Volume, Claim)> {
        let state = self.stack.devices.lock();
        check_stopped(&state)?;
        let Some(live) = state.find(name) else {
            let names = state.list.iter().map(|live| live.name.as_str());
            return refused(Refused::NotFound, no_device(name, names));
        };
        let Some(volume) = &live.volume else {
            return refused(Refused::Unsupported, not_a_volume(name, live.device.info().kind));
        };
        Ok((live.clone(), volume.clone(), claim(live)?))
    }

    /// Checks a table for `live` against the devices and their users.
    fn checked(
        &self,
        state: &State,
        live: &LiveDevice,
        segments: &[Segment],
        force: bool,
    ) -> Result<Table> {
        let find = |name: &str| match name == live.name {
            true => Some(live.device.clone()),
            false => Some(state.find(name)?.device.clone()),
        };
        let known = state.list.iter().map(|live| live.name.as_str());
        let check = || {
            exist(segments, &find, known)?;
            let itself = segments.iter().flat_map(Segment::members);
            if itself.into_iter().any(|member| member.device == live.name) {
                return Err(format!("`{}` stands on itself", live.name));
            }
            let table = table::table(segments, &find, self.stack.clock.now())?;
            uses::check_levels(state, live, &table)?;
            uses::check_above(state, live, &table)?;
            if !force {
                uses::check_shares(state, &self.stack.exports, live, &table).map_err(|shared| {
                    format!(
                        "{shared}; --force takes the table anyway, but one user may then overwrite \
                         the other's data"
                    )
                })?;
            }
            Ok(table)
        };
        check().or_else(|message: String| refused(Refused::BadTable, message))
    }

    /// Suspends the volume. Returns whether it was suspended before.
    fn start_suspend(&self, volume: &Volume) -> Result<bool> {
        let state = self.stack.devices.lock();
        check_stopped(&state)?;
        let before = volume.is_suspended();
        volume.start_suspend();
        Ok(before)
    }

    /// Polls with growing pauses until all I/O in flight has ended.
    fn until_quiet(&self, live: &LiveDevice, volume: &Volume, patience: &Patience) -> Result<()> {
        let mut pause = FIRST_PAUSE_NS;
        while !volume.is_quiesced() {
            if !volume.is_suspended() {
                return refused(Refused::Failed, "the server is stopping");
            }
            let now = self.stack.clock.now();
            if now >= patience.deadline {
                let message = format!(
                    "I/O of `{}` has not ended within {}: {} in flight; the volume {}",
                    live.name,
                    format_duration(patience.within),
                    in_flight(volume),
                    if patience.before { "stays suspended" } else { "goes on as before" }
                );
                return refused(Refused::TimedOut, message);
            }
            (self.pause)(pause.min(patience.deadline - now));
            pause = (pause * 2).min(LONGEST_PAUSE_NS);
        }
        Ok(())
    }
}

/// The time that a change waits.
struct Patience {
    deadline: Ns,
    within: Ns,
    /// True if the volume was suspended before the change: it stays so if the change is given up.
    before: bool,
}

/// The text of the mark that a message asks for, in the kernel's words.
fn mark(text: &str, bytes_max: usize) -> std::result::Result<&str, String> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words[..] {
        [word, mark] if word.eq_ignore_ascii_case("mark") && mark.len() <= bytes_max => Ok(mark),
        [word, mark] if word.eq_ignore_ascii_case("mark") => {
            Err(format!("a mark of {} bytes: at most {bytes_max}", mark.len()))
        }
        _ => Err(format!(
            "`{}` is not a message of log-writes: write mark NAME, where NAME is one word",
            shorten(text)
        )),
    }
}

pub(super) fn check_stopped(state: &State) -> Result<()> {
    match state.stopped {
        true => refused(Refused::Failed, "the server is stopping"),
        false => Ok(()),
    }
}

/// Checks that one more device may be added under that name.
pub(super) fn check_new(state: &State, name: &str) -> Result<()> {
    if !state.is_free(name) {
        return refused(Refused::Exists, format!("there is a device `{name}` already"));
    }
    if state.list.len() >= MAX_DEVICES {
        let message = format!("there are {MAX_DEVICES} devices, the most there can be");
        return refused(Refused::Failed, message);
    }
    Ok(())
}

/// Refuses a device that something uses.
pub(super) fn check_unused(state: &State, exports: &[ExportSpec], live: &LiveDevice) -> Result<()> {
    let mut users = uses::users(state, exports, live);
    users.dedup();
    match users.is_empty() {
        true => Ok(()),
        false => {
            let message = format!("`{}` is in use by {}", live.name, users.join(", "));
            refused(Refused::InUse, message)
        }
    }
}

fn read(table: &str) -> Result<Vec<Segment>> {
    read_table(table).or_else(|message| refused(Refused::BadTable, message))
}

/// Refuses names of devices that do not exist.
fn exist<'a>(
    segments: &[Segment],
    find: Find<'_>,
    known: impl Iterator<Item = &'a str> + Clone,
) -> std::result::Result<(), String> {
    for (index, segment) in segments.iter().enumerate() {
        let members = segment.members();
        if let Some(member) = members.iter().find(|member| find(&member.device).is_none()) {
            let what = no_device(&member.device, known);
            return Err(format!("line {} of the table: {what}", index + 1));
        }
    }
    Ok(())
}

/// The error sentence for a device that does not exist.
pub(super) fn no_device<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = nearest(name, known);
    let hint = near.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default();
    format!("there is no device `{}`{hint}", shorten(name))
}

fn not_a_volume(name: &str, kind: &str) -> String {
    format!("`{name}` is a {kind} device: only volumes have tables")
}

/// The I/O that a volume has in flight: "3 reads and 1 write are".
fn in_flight(volume: &Volume) -> String {
    let stats = volume.stats();
    let words = [
        (OpGroup::Read, "read"),
        (OpGroup::Write, "write"),
        (OpGroup::Discard, "discard"),
        (OpGroup::Flush, "flush"),
    ];
    let count = |group| {
        let group = stats.group(group);
        group.started.saturating_sub(group.completed)
    };
    let counts = words.into_iter().map(|(group, word)| (count(group), word));
    let parts: Vec<String> = counts
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| match (count, word) {
            (1, word) => format!("1 {word}"),
            (count, "flush") => format!("{count} flushes"),
            (count, word) => format!("{count} {word}s"),
        })
        .collect();
    match parts.split_last() {
        // Without iostats the I/O is not counted.
        None => "I/O is".to_owned(),
        Some((last, [])) if last.starts_with("1 ") => format!("{last} is"),
        Some((last, [])) => format!("{last} are"),
        Some((last, rest)) => format!("{} and {last} are", rest.join(", ")),
    }
}
