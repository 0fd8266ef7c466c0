//! The commands that concern throttle groups. The root is `/` here.

use serde_json::{Value, json};

use super::command::Arguments;
use super::context::Control;
use super::error::{ControlError, refusal};
use crate::group::{check_path, from_shown, shown};
use crate::iomax::parse_io_max;

type Result<T> = std::result::Result<T, ControlError>;

/// `group-create`.
pub(super) fn create(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let path = path_of(given.text("path"))?;
    control.runtime.create_group(path).map_err(refusal)?;
    Ok(json!({ "path": path }))
}

/// `group-remove`.
pub(super) fn remove(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let path = path_of(given.text("path"))?;
    control.runtime.remove_group(path).map_err(refusal)?;
    Ok(json!({ "path": path }))
}

/// `group-set`.
pub(super) fn set(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let path = path_of(given.text("path"))?;
    let line = parse_io_max(given.text("line"))
        .map_err(|error| ControlError::new("bad-request", error.to_string()))?;
    if control.runtime.device(&line.device).is_none() {
        return Err(control.no_device(&line.device));
    }
    let now = control.runtime.set_group(path, &line).map_err(refusal)?;
    Ok(json!({ "path": path, "io_max": now }))
}

/// `group-list`.
pub(super) fn list(control: &Control<'_>, _: &Arguments) -> Result<Value> {
    let mut groups = control.runtime.groups();
    groups.iter_mut().for_each(|group| group.path = shown(&group.path).to_owned());
    Ok(json!({ "groups": groups }))
}

/// `group-stat`.
pub(super) fn stat(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let path = given.text_if("path").map(from_shown);
    let groups = control.runtime.group_stats(path, given.is_on("reset"));
    let mut groups = groups.map_err(refusal)?;
    groups.iter_mut().for_each(|group| group.path = shown(&group.path).to_owned());
    Ok(json!({ "groups": groups }))
}

/// The path of a group that is made, removed or limited.
fn path_of(path: &str) -> Result<&str> {
    match check_path(path) {
        Ok(()) => Ok(path),
        Err((message, hint)) => Err(ControlError::new("bad-request", format!("{message}: {hint}"))),
    }
}
