//! The arrays of a stack, and commands to their managers.
//!
//! Invariant: while a manager carries out a command, the devices that it must make members stay
//! taken; if it hangs, until the server ends. Other commands may then still come to the same array.

use std::sync::Arc;

use drystone_core::error::ErrorKind;
use drystone_core::{Context, Error};
use drystone_raid::array::{Array, Command};

use super::super::devices::{Claim, LiveDevice, State, Taking};
use super::super::volumes::{
    FIRST_PAUSE_NS, LONGEST_PAUSE_NS, check_stopped, claim, no_device, refused,
};
use super::super::{LiveStack, OpenError, SleepFn};
use super::report;
use crate::control::MANAGER_PATIENCE_NS;
use crate::duration::format_duration;
use crate::md::ArrayReport;
use crate::runtime::{ChangeError, Refused};

pub(super) type Result<T> = std::result::Result<T, ChangeError>;

pub(super) fn failed(message: impl Into<String>) -> ChangeError {
    ChangeError { refused: Refused::Failed, message: message.into() }
}

/// An error of an array or of its manager.
pub(super) fn of_array(error: Error) -> ChangeError {
    let refused = match error.kind {
        ErrorKind::NotFound => Refused::NotFound,
        ErrorKind::Busy => Refused::Busy,
        ErrorKind::NotSupported => Refused::Unsupported,
        _ => Refused::Failed,
    };
    ChangeError { refused, message: error.message }
}

/// An error of a device that cannot be opened, with what would be right.
pub(super) fn of_opening(error: OpenError) -> ChangeError {
    match with_switches(&error.hint, &error.device).as_str() {
        "" => failed(error.message),
        hint => failed(format!("{}: {hint}", error.message)),
    }
}

/// A hint for a command: it names switches instead of the keys of a stack file.
fn with_switches(hint: &str, array: &str) -> String {
    let hint = hint.replace(&format!("`run = true` in [device.{array}]"), "`--run`");
    hint.replace("`run = true`", "`--run`").replace("`force = true`", "`--force`")
}

/// Reports a stack's arrays, and changes them.
pub(in super::super) struct Arrays<'a> {
    pub(in super::super) stack: &'a LiveStack,
    pub(in super::super) pause: &'a SleepFn,
}

impl Arrays<'_> {
    /// The report of the array `name`, or of all.
    pub(in super::super) fn reports(&self, name: Option<&str>) -> Result<Vec<ArrayReport>> {
        let state = self.stack.devices.lock();
        match name {
            None => Ok(state.list.iter().filter_map(|live| report::report(&state, live)).collect()),
            Some(name) => {
                let (live, _) = find(&state, name)?;
                Ok(report::report(&state, live).into_iter().collect())
            }
        }
    }

    pub(super) fn array(&self, name: &str) -> Result<(Arc<LiveDevice>, Array)> {
        let state = self.stack.devices.lock();
        check_stopped(&state)?;
        find(&state, name).map(|(live, array)| (live.clone(), array.clone()))
    }

    pub(super) fn claim(&self, name: &str) -> Result<(Arc<LiveDevice>, Array, Claim)> {
        let (live, array) = self.array(name)?;
        let claim = claim(&live)?;
        Ok((live, array, claim))
    }

    pub(super) fn context(&self) -> Result<Context> {
        self.stack.contexts.open(self.stack.engine).map_err(of_array)
    }

    /// Gives the manager a command, and waits until it is done.
    pub(super) fn obtain(&self, live: &LiveDevice, array: &Array, command: Command) -> Result<()> {
        self.obtain_with(live, array, command, Vec::new()).map(drop)
    }

    /// The same, while `guards` keep devices from other users. Returns the guards.
    pub(super) fn obtain_with(
        &self,
        live: &LiveDevice,
        array: &Array,
        command: Command,
        guards: Vec<Taking>,
    ) -> Result<Vec<Taking>> {
        let request = array.request(command);
        let locks = self.stack.locks.counters();
        let deadline = self.stack.clock.now().saturating_add(MANAGER_PATIENCE_NS);
        let mut pause = FIRST_PAUSE_NS;
        loop {
            if let Some(outcome) = request.outcome(&locks) {
                return outcome.map(|()| guards).map_err(of_array);
            }
            if self.stack.clock.now() >= deadline {
                return Err(self.given_up(live, request.give_up(&locks), guards));
            }
            // The array may wait for I/O of dropped contexts.
            self.stack.contexts.free_idle_orphans();
            (self.pause)(pause);
            pause = (pause * 2).min(LONGEST_PAUSE_NS);
        }
    }

    /// Gives up a manager that hangs. If it has begun the command, it may finish it at any time. So
    /// the guards stay until the server ends.
    fn given_up(&self, live: &LiveDevice, is_undone: bool, guards: Vec<Taking>) -> ChangeError {
        let what = match is_undone {
            true => "the change will not be made",
            false => "the change is still under way",
        };
        if !is_undone {
            guards.into_iter().for_each(std::mem::forget);
        }
        let within = format_duration(MANAGER_PATIENCE_NS);
        let message = format!(
            "`{}` has not answered within {within}, because it waits for its members; {what}",
            live.name
        );
        ChangeError { refused: Refused::TimedOut, message }
    }
}

/// The array of that name.
fn find<'s>(state: &'s State, name: &str) -> Result<(&'s Arc<LiveDevice>, &'s Array)> {
    let Some(live) = state.find(name) else {
        let names = state.list.iter().map(|live| live.name.as_str());
        return refused(Refused::NotFound, no_device(name, names));
    };
    match &live.array {
        Some(array) => Ok((live, array)),
        None => {
            let message = format!("`{name}` is a {} device, not an array", live.device.info().kind);
            refused(Refused::Unsupported, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_of_commands_name_switches() {
        for (hint, expected) in [
            (
                "`run = true` in [device.a] starts the array degraded",
                "`--run` starts the array degraded",
            ),
            ("only if it is lost, set `run = true`", "only if it is lost, set `--run`"),
            ("`force = true` starts it", "`--force` starts it"),
        ] {
            assert_eq!(with_switches(hint, "a"), expected);
        }
    }
}
