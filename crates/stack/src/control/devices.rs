//! The commands that concern devices.

use serde_json::{Value, json};

use super::command::Arguments;
use super::context::Control;
use super::error::{ControlError, refusal};
use crate::attributes::{Mode, SIZE, attribute};
use crate::diagnostic::shorten;
use crate::runtime::SetError;
use crate::schema::queue::IO_TIMEOUT;
use crate::size::format_size;

type Result<T> = std::result::Result<T, ControlError>;

/// `list`.
pub(super) fn list(control: &Control<'_>, _: &Arguments) -> Result<Value> {
    Ok(json!({ "devices": control.runtime.devices(), "exports": control.runtime.exports() }))
}

/// `show`.
pub(super) fn show(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let name = given.text("device");
    match control.runtime.device(name) {
        Some(mut device) => {
            let modes = device.modes();
            for (name, value) in &mut device.attributes {
                *value = in_unit_that_it_takes(name, std::mem::take(value));
            }
            let mut shown = json!(device);
            shown["modes"] = json!(modes);
            Ok(shown)
        }
        None => Err(control.no_device(name)),
    }
}

/// `set`.
pub(super) fn set(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let (device, name, text) = (given.text("device"), given.text("attribute"), given.text("value"));
    if control.runtime.device(device).is_none() {
        return Err(control.no_device(device));
    }
    let attribute = attribute(name).map_err(|error| ControlError::new("not-found", error))?;
    let code = match attribute.mode {
        Mode::ReadOnly => "unsupported",
        Mode::ReadWrite => "out-of-range",
    };
    let value = attribute.parse(text).map_err(|error| ControlError::new(code, error))?;
    control.runtime.set(device, attribute, &value).map_err(|error| {
        let code = match error {
            SetError::NoSuchDevice => return control.no_device(device),
            SetError::OutOfRange { .. } => "out-of-range",
            SetError::Unsupported { .. } => "unsupported",
            SetError::Failed { .. } => "failed",
        };
        let value = shorten(text);
        ControlError::new(code, format!("`{name}` of `{device}`: `{value}` {error}"))
    })?;
    let now = control
        .runtime
        .device(device)
        .and_then(|device| device.attributes.get(attribute.name).cloned());
    let now = now.map_or_else(|| text.to_owned(), |now| in_unit_that_it_takes(name, now));
    let warning = match attribute.name {
        name if name == IO_TIMEOUT.attribute => control.timeout_warning(&[device.to_owned()]),
        SIZE => size_warning(control, device, &now),
        _ => None,
    };
    Ok(json!({ "device": device, "attribute": attribute.name, "value": now, "warning": warning }))
}

/// `reopen`.
pub(super) fn reopen(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let (device, replaced) = (given.text("device"), given.is_on("replaced"));
    let has_ended = control.runtime.reopen(device, replaced).map_err(refusal)?;
    let warning = (!has_ended).then_some(
        "I/O that was under way has not ended yet; until it has, the old file stays open",
    );
    Ok(json!({ "device": device, "warning": warning }))
}

/// A warning of a size that differs from the stack file: a file system that was grown does not fit
/// after the next start. A file without a size in the stack file keeps its own.
fn size_warning(control: &Control<'_>, device: &str, now: &str) -> Option<String> {
    let now = now.parse().ok()?;
    let configured = control.runtime.configured_size(device)?;
    (configured != now).then(|| {
        format!(
            "`{device}` has this size until the server stops; to keep it, write size = \"{}\" into \
             the stack file",
            format_size(now)
        )
    })
}

/// A shown value in the unit that `set` takes: a size in bytes, where sysfs and the device have
/// sectors.
pub(super) fn in_unit_that_it_takes(attribute: &str, shown: String) -> String {
    match shown.trim().parse::<u64>() {
        Ok(sectors) if attribute == SIZE => sectors.saturating_mul(512).to_string(),
        _ => shown,
    }
}
