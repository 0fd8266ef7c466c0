//! The throttle groups of an open stack: made from the stack file, changed over the control socket.
//!
//! Invariant: the group of an export stays as long as the stack, since [`remove`] refuses it.

use drystone_throttle::{Change, GroupError, GroupReport, Groups, IoStat, IoStats, Setting};

use crate::diagnostic::Findings;
use crate::group::{nearest_group, parent};
use crate::iomax::{IoMax, MaxLine, StatLine};
use crate::runtime::{ChangeError, DiskStats, GroupStat, GroupSummary, Refused};
use crate::spec::{ExportSpec, GroupSpec, SECTOR_BYTES, StackSpec};

/// Makes the groups of the stack file. Called before the devices are opened: each device then
/// learns of all groups at once.
pub(super) fn make(stack: &StackSpec, groups: &Groups, findings: &mut Findings) {
    // By path, so that each comes after the one above it.
    let mut paths: Vec<&str> = stack.groups.iter().map(|group| group.path.as_str()).collect();
    paths.sort_unstable();
    for path in paths {
        if let Err(error) = groups.create(path) {
            findings.error(&stack.places.group(path, ""), error.to_string(), "");
        }
    }
}

/// Sets the limits of the stack file's groups. The devices must be open.
pub(super) fn limit(stack: &StackSpec, groups: &Groups, findings: &mut Findings) {
    let lines =
        stack.groups.iter().flat_map(|group| group.io_max.iter().map(move |it| (group, it)));
    let setting = |(group, line): (&GroupSpec, &IoMax)| Setting {
        path: group.path.clone(),
        device: line.device.clone(),
        change: line.change,
    };
    if let Err(error) = groups.set_all(&lines.map(setting).collect::<Vec<_>>()) {
        findings.error(&(0..0), error.to_string(), "");
    }
}

/// Lifts all limits.
pub(super) fn lift(groups: &Groups) {
    let change =
        Change { rbps: Some(None), wbps: Some(None), riops: Some(None), wiops: Some(None) };
    let lifted = |report: GroupReport| {
        let devices = report.io_max.into_iter().map(|(device, _)| device);
        devices
            .map(|device| Setting { path: report.path.clone(), device, change })
            .collect::<Vec<_>>()
    };
    let all: Vec<Setting> = groups.list().into_iter().flat_map(lifted).collect();
    if groups.set_all(&all).is_err() {
        // A device was just removed: lift each limit by itself.
        all.iter().for_each(|it| _ = groups.set_max(&it.path, &it.device, &it.change));
    }
}

/// The groups, the root first, each before those below it.
pub(super) fn list(groups: &Groups) -> Vec<GroupSummary> {
    let summary = |report: GroupReport| GroupSummary {
        io_max: report.io_max.iter().map(|(name, limits)| MaxLine::new(name, limits)).collect(),
        members: report.members as u64,
        path: report.path,
    };
    groups.list().into_iter().map(summary).collect()
}

/// Makes a group whose path was checked.
pub(super) fn create(groups: &Groups, path: &str) -> Result<(), ChangeError> {
    groups.create(path).map(drop).map_err(|error| unmade(groups, parent(path), error))
}

/// Removes a group that nobody uses.
pub(super) fn remove(
    groups: &Groups,
    exports: &[ExportSpec],
    path: &str,
) -> Result<(), ChangeError> {
    if let Some(export) = exports.iter().find(|export| export.group == path) {
        let message = format!("group `{path}` is the group of export `{}`", export.name);
        return Err(ChangeError { refused: Refused::InUse, message });
    }
    groups.remove(path).map_err(|error| match error {
        GroupError::InUse(_) => in_use(groups, exports, path, &error),
        error => refusal(groups, path, error),
    })
}

/// Names the users of a group: one below it, or the exports whose clients are in it.
fn in_use(groups: &Groups, exports: &[ExportSpec], path: &str, error: &GroupError) -> ChangeError {
    let below = format!("{path}/");
    let reports = groups.list();
    let child = reports.iter().find(|report| report.path.starts_with(&below));
    let members = reports.iter().find(|report| report.path == path).map_or(0, |own| own.members);
    let uses = |export: &&ExportSpec| export.clients.iter().any(|client| client.group == path);
    let users: Vec<String> =
        exports.iter().filter(uses).map(|export| format!("`{}`", export.name)).collect();
    let message = match child {
        Some(child) => format!("group `{path}` has `{}` below it", child.path),
        None if members > 0 && !users.is_empty() => {
            let clients = if members == 1 { "a client" } else { "clients" };
            format!("group `{path}` has {clients} of export {}", users.join(" or "))
        }
        None => error.to_string(),
    };
    ChangeError { refused: Refused::InUse, message }
}

/// Changes a group's limits on a device.
pub(super) fn set(groups: &Groups, path: &str, line: &IoMax) -> Result<MaxLine, ChangeError> {
    let refused = |error| unmade(groups, path, error);
    groups.set_max(path, &line.device, &line.change).map_err(refused)?;
    let all = groups.io_max(path).map_err(refused)?;
    let limits = all.into_iter().find(|(device, _)| *device == line.device);
    Ok(MaxLine::new(&line.device, &limits.map(|(_, limits)| limits).unwrap_or_default()))
}

/// The counts of I/O of a group below the root, or of each of them; resets them then if asked to.
pub(super) fn stat(
    groups: &Groups,
    path: Option<&str>,
    reset: bool,
) -> Result<Vec<GroupStat>, ChangeError> {
    if reset {
        let all = groups.reset_stat(path.unwrap_or_default());
        let all = all.map_err(|error| refusal(groups, path.unwrap_or_default(), error))?;
        let wanted = all.iter().filter(|(of, _)| path.map_or(!of.is_empty(), |path| of == path));
        return Ok(wanted.map(|(path, stat)| one_stat(path, stat)).collect());
    }
    if let Some(path) = path {
        let stat = groups.io_stat(path).map_err(|error| refusal(groups, path, error))?;
        return Ok(vec![one_stat(path, &stat)]);
    }
    let below = groups.list().into_iter().filter(|report| !report.path.is_empty());
    // One of them may have been removed meanwhile.
    let stat = |path: String| groups.io_stat(&path).ok().map(|stat| one_stat(&path, &stat));
    Ok(below.filter_map(|report| stat(report.path)).collect())
}

fn one_stat(path: &str, stat: &IoStats) -> GroupStat {
    let io_stat = stat.iter().filter_map(|(device, stat)| StatLine::new(device, stat)).collect();
    GroupStat { path: path.to_owned(), io_stat }
}

/// The counts of all I/O, the root's own included: the devices' own counts, as in the kernel.
pub(super) fn root_stat(devices: &[DiskStats]) -> GroupStat {
    let stat = |device: &DiskStats| IoStat {
        rbytes: device.sectors_read * SECTOR_BYTES,
        wbytes: device.sectors_written * SECTOR_BYTES,
        rios: device.reads,
        wios: device.writes,
        dbytes: device.sectors_discarded * SECTOR_BYTES,
        dios: device.discards,
    };
    let io_stat = devices.iter().filter_map(|device| StatLine::new(&device.device, &stat(device)));
    GroupStat { path: String::new(), io_stat: io_stat.collect() }
}

/// A refusal. If the group `path` does not exist, it names the command that makes it.
fn unmade(groups: &Groups, path: &str, error: GroupError) -> ChangeError {
    let is_missing = matches!(error, GroupError::NotFound(_));
    let mut refusal = refusal(groups, path, error);
    if is_missing {
        let mark = if refusal.message.ends_with('?') { "" } else { ":" };
        refusal.message += &format!("{mark} `drystone group create {path}` makes it");
    }
    refusal
}

/// A refusal by the groups. If the group `path` does not exist, it names the nearest known path.
fn refusal(groups: &Groups, path: &str, error: GroupError) -> ChangeError {
    let refused = match &error {
        GroupError::NotFound(_) | GroupError::NoDevice(_) => Refused::NotFound,
        GroupError::Exists(_) => Refused::Exists,
        GroupError::InUse(_) => Refused::InUse,
        GroupError::Invalid(_) => Refused::BadName,
    };
    let mut message = error.to_string();
    if matches!(error, GroupError::NotFound(_)) {
        let paths: Vec<String> = groups.list().into_iter().map(|report| report.path).collect();
        let near = nearest_group(path, paths.iter().map(String::as_str));
        message.extend(near.map(|near| format!(": did you mean `{near}`?")));
    }
    ChangeError { refused, message }
}
