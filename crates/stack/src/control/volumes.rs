//! The commands that concern volumes, with dmsetup's words.

use drystone_core::clock::Ns;
use serde_json::{Value, json};

use super::{Control, ControlError};
use crate::diagnostic::shorten;
use crate::runtime::{Change, ChangeError, TableReport, VolumeReport};

/// How long a change waits until a volume is quiet if nothing is said: as long as a request may
/// take before it counts as lost.
pub const DEFAULT_TIMEOUT_NS: Ns = 30_000_000_000;

type Result<T> = std::result::Result<T, ControlError>;

impl Control<'_> {
    /// Answers one of the commands here; `None` if it is none of them.
    pub(super) fn volumes(&self, command: &str, texts: &[Option<&str>]) -> Option<Result<Value>> {
        let is = |switch: &Option<&str>| *switch == Some("true");
        Some(match (command, texts) {
            ("table", [name, inactive]) => self.each(*name, |volume| {
                let table = if is(inactive) { volume.inactive } else { volume.live };
                json!({ "name": volume.name, "table": table.map(|table| table.text) })
            }),
            ("status", [name]) => self.each(*name, |volume| {
                let status = volume.live.map(|table| table.status);
                json!({ "name": volume.name, "status": status })
            }),
            ("info", [name]) => self.each(*name, |volume| info(&volume)),
            ("remove", [Some(name)]) => self
                .runtime
                .change(name, &Change::Remove)
                .map(|()| json!({ "name": name }))
                .map_err(error),
            (_, [Some(name), rest @ ..]) => {
                return change(command, rest).map(|change| self.change(name, &change));
            }
            _ => return None,
        })
    }

    /// An answer for the volume of that name, or for all.
    fn each(&self, name: Option<&str>, answer: impl Fn(VolumeReport) -> Value) -> Result<Value> {
        let volumes = match name {
            None => self.runtime.volumes(),
            Some(name) => vec![self.volume(name)?],
        };
        Ok(json!({ "volumes": volumes.into_iter().map(answer).collect::<Vec<_>>() }))
    }

    fn volume(&self, name: &str) -> Result<VolumeReport> {
        if let Some(volume) = self.runtime.volume(name) {
            return Ok(volume);
        }
        Err(match self.runtime.device(name) {
            None => self.no_device(name),
            Some(device) => {
                let (name, kind) = (shorten(name), device.kind);
                let message = format!("`{name}` is a {kind} device: only volumes have tables");
                ControlError::new("unsupported", message)
            }
        })
    }

    fn change(&self, name: &str, change: &Change<'_>) -> Result<Value> {
        self.runtime.change(name, change).map_err(error)?;
        self.volume(name).map(|volume| info(&volume))
    }
}

/// The change that a command means; `rest` are its arguments after the name.
fn change<'a>(command: &str, rest: &[Option<&'a str>]) -> Option<Change<'a>> {
    let is = |switch: Option<&str>| switch == Some("true");
    // It was checked to be a number.
    let number = |text: &str| text.parse().unwrap_or_default();
    let within = |timeout: Option<&str>| timeout.map_or(DEFAULT_TIMEOUT_NS, number);
    Some(match (command, rest) {
        ("create", &[table, read_only, force]) => {
            Change::Create { table, read_only: is(read_only), force: is(force) }
        }
        ("reload", &[Some(table), now, timeout, force]) => {
            let resume_within = is(now).then(|| within(timeout));
            Change::Reload { table, force: is(force), resume_within }
        }
        ("clear", &[]) => Change::Clear,
        ("suspend", &[noflush, timeout]) => {
            Change::Suspend { within: (!is(noflush)).then(|| within(timeout)) }
        }
        ("resume", &[timeout]) => Change::Resume { within: within(timeout) },
        ("message", &[Some(sector), Some(text)]) => {
            Change::Message { sector: number(sector), text }
        }
        _ => return None,
    })
}

/// A refusal as it goes into a response.
pub(super) fn error(error: ChangeError) -> ControlError {
    ControlError::new(error.refused.code(), error.message)
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
