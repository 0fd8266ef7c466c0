//! The commands that concern arrays, with mdadm's words.

use drystone_core::clock::Ns;
use serde_json::{Value, json};

use super::command::Arguments;
use super::context::Control;
use super::error::{ControlError, refusal};
use crate::md::{ArrayChange, Assemble, Named};

/// The longest wait for an array's manager: longer than the manager itself waits for I/O that must
/// end before a stop.
pub const MANAGER_PATIENCE_NS: Ns = 40_000_000_000;

type Result<T> = std::result::Result<T, ControlError>;

/// `md-detail`.
pub(super) fn detail(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let arrays = control.runtime.arrays(given.text_if("device")).map_err(refusal)?;
    Ok(json!({ "arrays": arrays }))
}

/// `md-add`.
pub(super) fn add(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Add { member: member(given), force: given.is_on("force") })
}

/// `md-fail`.
pub(super) fn fail(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Fail(member(given)))
}

/// `md-remove`.
pub(super) fn remove(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Remove(member(given)))
}

/// `md-replace`.
pub(super) fn replace(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Replace(member(given)))
}

/// `md-check`.
pub(super) fn check(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Sync("check"))
}

/// `md-repair`.
pub(super) fn repair(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Sync("repair"))
}

/// `md-stop`.
pub(super) fn stop(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    change(control, given, &ArrayChange::Stop)
}

/// `md-assemble`.
pub(super) fn assemble(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let wanted = Assemble {
        members: given.text("members"),
        uuid: given.text_if("uuid"),
        run: given.is_on("run"),
        force: given.is_on("force"),
        read_only: given.is_on("read_only"),
    };
    change(control, given, &ArrayChange::Assemble(wanted))
}

fn change(control: &Control<'_>, given: &Arguments, change: &ArrayChange<'_>) -> Result<Value> {
    let name = given.text("device");
    let members = control.runtime.manage(name, change).map_err(refusal)?;
    let takes_in = matches!(change, ArrayChange::Add { .. } | ArrayChange::Assemble(_));
    let warning = if takes_in { control.timeout_warning(&members) } else { None };
    Ok(json!({ "device": name, "members": members, "warning": warning }))
}

/// The member that a request names: a word that begins with `/` is a path.
fn member(given: &Arguments) -> Named<'_> {
    let word = given.text("member");
    Named { word, path: given.text_if("path").or(word.starts_with('/').then_some(word)) }
}
