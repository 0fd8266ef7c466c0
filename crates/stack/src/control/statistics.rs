//! The commands that concern the whole server: its counters, its poll mode and its version.

use drystone_core::context::PollMode;
use serde_json::{Value, json};

use super::command::Arguments;
use super::context::Control;
use super::error::ControlError;
use super::wire::PROTOCOL;
use crate::runtime::{LockReport, Snapshot};

type Result<T> = std::result::Result<T, ControlError>;

/// `iostat`.
pub(super) fn iostat(control: &Control<'_>, _: &Arguments) -> Result<Value> {
    let runtime = control.runtime;
    Ok(json!(Snapshot { uptime_ns: runtime.uptime_ns(), devices: runtime.diskstats() }))
}

/// `lockstat`: the figures until now; then the arguments take effect.
pub(super) fn lockstat(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let locks = control.runtime.locks();
    let stats = if given.is_on("reset") { locks.reset() } else { locks.stats() };
    if let Some(on) = given.switch_if("hold") {
        locks.time_holds(on);
    }
    Ok(json!(LockReport::new(locks.times_holds(), &stats)))
}

/// `poll-mode`.
pub(super) fn poll_mode(control: &Control<'_>, given: &Arguments) -> Result<Value> {
    let switch = control.runtime.poll_switch();
    if let Some(mode) = given.text_if("mode").and_then(PollMode::from_name) {
        switch.set(mode);
    }
    Ok(json!({ "mode": switch.mode().name() }))
}

/// `version`.
pub(super) fn version(control: &Control<'_>, _: &Arguments) -> Result<Value> {
    Ok(json!({
        "version": control.server.version,
        "protocol": PROTOCOL,
        "pid": control.server.pid,
        "stack": control.server.stack,
    }))
}
