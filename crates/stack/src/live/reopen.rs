//! Reopens the file of a device while the stack is in use.

use drystone_core::clock::Ns;
use drystone_core::error::ErrorKind;

use super::volumes::{check_stopped, claim, no_device, refused};
use super::{LiveDevice, LiveStack, SleepFn};
use crate::runtime::{ChangeError, Refused};

/// The longest wait of the command for I/O on the previous file, which may never end.
const PATIENCE_NS: Ns = 10_000_000_000;
/// The pause between two checks.
const PAUSE_NS: Ns = 1_000_000;

/// Opens the file of `name` again, and waits by `pause` until I/O on the previous file has ended.
/// Returns whether it has.
pub(super) fn reopen(
    stack: &LiveStack,
    pause: &SleepFn,
    (name, replaced): (&str, bool),
) -> Result<bool, ChangeError> {
    let (live, _claim) = {
        let state = stack.devices.lock();
        check_stopped(&state)?;
        let Some(live) = state.find(name) else {
            let names = state.list.iter().map(|live| live.name.as_str());
            return refused(Refused::NotFound, no_device(name, names));
        };
        (live.clone(), claim(live)?)
    };
    let kind = live.device.info().kind;
    if kind != "file" {
        return refused(Refused::Unsupported, no_file(&live, kind));
    }
    let how = if replaced { "replaced" } else { "" };
    live.device.set_attribute("reopen", how).map_err(|error| ChangeError {
        refused: if error.kind == ErrorKind::Busy { Refused::Busy } else { Refused::Failed },
        message: format!("`{name}`: {}", error.message),
    })?;
    let until = stack.clock.now().saturating_add(PATIENCE_NS);
    while is_reopening(&live) && stack.clock.now() < until {
        pause(PAUSE_NS);
    }
    Ok(!is_reopening(&live))
}

fn is_reopening(live: &LiveDevice) -> bool {
    live.device.attribute("reopening").is_some_and(|value| value == "1")
}

fn no_file(live: &LiveDevice, kind: &str) -> String {
    let members = live.members();
    let hint = match members.is_empty() {
        true => String::new(),
        false => format!(": it stands on {}", members.join(", ")),
    };
    format!("`{}` is a {kind} device, and only files are opened again{hint}", live.name)
}
