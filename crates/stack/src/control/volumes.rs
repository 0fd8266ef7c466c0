//! The commands that concern volumes, with dmsetup's words.

use drystone_core::clock::Ns;
use serde_json::{Value, json};

use super::command::Arguments;
use super::context::Control;
use super::error::{ControlError, refusal};
use crate::diagnostic::shorten;
use crate::runtime::{Change, TableReport, VolumeReport};

/// The default time that a change waits until a volume is quiet: as long as a request may take
/// before it counts as lost.
pub const DEFAULT_TIMEOUT_NS: Ns = 30_000_000_000;

type Result<T> = std::result::Result<T, ControlError>;

/// `create`.
pub(super) fn create(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let (table, read_only) = (given.text_if("table"), given.is_on("read_only"));
    change(control, given, &Change::Create { table, read_only, force: given.is_on("force") })
}

/// `table`.
pub(super) fn table(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let is_inactive = given.is_on("inactive");
    each(control, given, |volume| {
        let table = if is_inactive { volume.inactive } else { volume.live };
        json!({ "name": volume.name, "table": table.map(|table| table.text) })
    })
}

/// `status`.
pub(super) fn status(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    each(control, given, |volume| {
        let status = volume.live.map(|table| table.status);
        json!({ "name": volume.name, "status": status })
    })
}

/// `info`.
pub(super) fn infos(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    each(control, given, |volume| info(&volume))
}

/// `reload`.
pub(super) fn reload(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let resume_within = given.is_on("now").then(|| within(given));
    let (table, force) = (given.text("table"), given.is_on("force"));
    change(control, given, &Change::Reload { table, force, resume_within })
}

/// `clear`.
pub(super) fn clear(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &Change::Clear)
}

/// `suspend`.
pub(super) fn suspend(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let within = (!given.is_on("noflush")).then(|| within(given));
    change(control, given, &Change::Suspend { within })
}

/// `resume`.
pub(super) fn resume(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &Change::Resume { within: within(given) })
}

/// `message`.
pub(super) fn message(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let (sector, text) = (given.number("sector"), given.text("text"));
    change(control, given, &Change::Message { sector, text })
}

/// `remove`.
pub(super) fn remove(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let name = given.text("device");
    control.runtime.change(name, &Change::Remove).map_err(refusal)?;
    Ok(json!({ "name": name }))
}

/// An answer for the volume that is named, or for all.
fn each(
    control: &Control<'_>,
    given: &Arguments,
    answer: impl Fn(VolumeReport) -> Value,
) -> Result<Value> {
    let volumes = match given.text_if("device") {
        None => control.runtime.volumes(),
        Some(name) => vec![volume(control, name)?],
    };
    Ok(json!({ "volumes": volumes.into_iter().map(answer).collect::<Vec<_>>() }))
}

fn volume(control: &Control<'_>, name: &str) -> Result<VolumeReport> {
    if let Some(volume) = control.runtime.volume(name) {
        return Ok(volume);
    }
    Err(match control.runtime.device(name) {
        None => control.no_device(name),
        Some(device) => {
            let (name, kind) = (shorten(name), device.kind);
            let message = format!("`{name}` is a {kind} device: only volumes have tables");
            ControlError::new("unsupported", message)
        }
    })
}

/// Changes the named volume. Returns its new state.
fn change(control: &Control<'_>, given: &Arguments, change: &Change<'_>) -> Result<Value> {
    let name = given.text("device");
    control.runtime.change(name, change).map_err(refusal)?;
    volume(control, name).map(|volume| info(&volume))
}

/// The time to wait until the volume is quiesced.
fn within(given: &Arguments) -> Ns {
    given.number_if("timeout").unwrap_or(DEFAULT_TIMEOUT_NS)
}

fn info(volume: &VolumeReport) -> Value {
    let tables = match (&volume.live, &volume.inactive) {
        (Some(_), Some(_)) => "LIVE & INACTIVE",
        (Some(_), None) => "LIVE",
        (None, Some(_)) => "INACTIVE",
        (None, None) => "None",
    };
    let lines = |table: &TableReport| table.text.lines().count();
    json!({
        "name": volume.name,
        "state": if volume.suspended { "SUSPENDED" } else { "ACTIVE" },
        "read_only": volume.read_only,
        "tables_present": tables,
        "open_count": volume.open_count,
        "targets": volume.live.as_ref().map_or(0, lines),
    })
}
