//! Changes of arrays while the stack is served, as mdadm's *manage* and *assemble* modes make them.
//!
//! Invariants:
//! * An array that is changed is claimed, and what it is to get is taken, so that what was checked
//!   before holds until the array's manager has done it.
//! * A device that was opened for an array is closed when no array has it any more: once all
//!   contexts have given it up, or, if one of them has I/O in flight there, when that has ended.

mod members;
mod report;

use std::collections::BTreeSet;
use std::sync::Arc;

use drystone_core::error::ErrorKind;
use drystone_core::{Context, Error};
use drystone_raid::array::{Array, Command};
use drystone_raid::metadata::Uuid;

use super::devices::{Claim, LiveDevice, State, Taking};
use super::volumes::{
    FIRST_PAUSE_NS, LONGEST_PAUSE_NS, check_new, check_stopped, check_unused, claim, no_device,
    refused,
};
use super::{LiveStack, OpenError, SleepFn, raid};
use crate::control::MANAGER_PATIENCE_NS;
use crate::duration::format_duration;
use crate::md::{ArrayChange, ArrayReport, Assemble, Named};
use crate::names::check_name;
use crate::runtime::{ChangeError, Refused};
use crate::spec::{DeviceKind, DeviceSpec, Member, RaidSpec};
use members::Found;

type Result<T> = std::result::Result<T, ChangeError>;

fn failed(message: impl Into<String>) -> ChangeError {
    ChangeError { refused: Refused::Failed, message: message.into() }
}

/// An error of an array or of its manager.
fn of_array(error: Error) -> ChangeError {
    let refused = match error.kind {
        ErrorKind::NotFound => Refused::NotFound,
        ErrorKind::Busy => Refused::Busy,
        ErrorKind::NotSupported => Refused::Unsupported,
        _ => Refused::Failed,
    };
    ChangeError { refused, message: error.message }
}

/// An error of a device that cannot be opened, with what would be right.
fn of_opening(error: OpenError) -> ChangeError {
    match with_switches(&error.hint, &error.device).as_str() {
        "" => failed(error.message),
        hint => failed(format!("{}: {hint}", error.message)),
    }
}

/// A hint on the keys of a stack file, for a command: that has switches instead.
fn with_switches(hint: &str, array: &str) -> String {
    let hint = hint.replace(&format!("`run = true` in [device.{array}]"), "`--run`");
    hint.replace("`run = true`", "`--run`").replace("`force = true`", "`--force`")
}

/// Tells of a stack's arrays, and changes them.
pub(super) struct Arrays<'a> {
    pub(super) stack: &'a LiveStack,
    pub(super) pause: &'a SleepFn,
}

impl Arrays<'_> {
    /// The report of the array `name`, or of all.
    pub(super) fn reports(&self, name: Option<&str>) -> Result<Vec<ArrayReport>> {
        let state = self.stack.devices.lock();
        match name {
            None => Ok(state.list.iter().filter_map(|live| report::report(&state, live)).collect()),
            Some(name) => {
                let (live, _) = find(&state, name)?;
                Ok(report::report(&state, live).into_iter().collect())
            }
        }
    }

    /// Makes a change to the array `name`. The names of the devices that it was about.
    pub(super) fn make(&self, name: &str, change: &ArrayChange<'_>) -> Result<Vec<String>> {
        match change {
            ArrayChange::Add { member, force } => self.add(name, member, *force),
            ArrayChange::Fail(member) => self.each(name, member, Command::Fail, |_| ()),
            ArrayChange::Remove(member) => {
                let close = |name: &String| self.close_all(std::slice::from_ref(name));
                self.each(name, member, Command::Remove, close)
            }
            ArrayChange::Replace(member) => self.each(name, member, Command::Replace, |_| ()),
            ArrayChange::Sync(action) => {
                self.set(name, "md/sync_action", action).map(|_| Vec::new())
            }
            ArrayChange::Stop => self.stop(name),
            ArrayChange::Assemble(how) => self.assemble(name, how),
        }
    }

    /// Has an array's manager set an attribute. False if it takes care of none of that name.
    pub(super) fn set(&self, name: &str, attribute: &str, value: &str) -> Result<bool> {
        let Some(command) = Command::of_attribute(attribute, value) else { return Ok(false) };
        let (live, array) = self.array(name)?;
        self.obtain(&live, &array, command.map_err(of_array)?)?;
        Ok(true)
    }

    fn array(&self, name: &str) -> Result<(Arc<LiveDevice>, Array)> {
        let state = self.stack.devices.lock();
        check_stopped(&state)?;
        find(&state, name).map(|(live, array)| (live.clone(), array.clone()))
    }

    fn claim(&self, name: &str) -> Result<(Arc<LiveDevice>, Array, Claim)> {
        let (live, array) = self.array(name)?;
        let claim = claim(&live)?;
        Ok((live, array, claim))
    }

    fn context(&self) -> Result<Context> {
        self.stack.contexts.open(self.stack.engine).map_err(of_array)
    }

    /// Has the manager do something, and waits until it has.
    pub(super) fn obtain(&self, live: &LiveDevice, array: &Array, command: Command) -> Result<()> {
        self.obtain_with(live, array, command, Vec::new()).map(drop)
    }

    /// The same, with what is kept from others meanwhile, which comes back.
    fn obtain_with(
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
            // The array may wait for I/O that dropped contexts have in flight.
            self.stack.contexts.free_idle_orphans();
            (self.pause)(pause);
            pause = (pause * 2).min(LONGEST_PAUSE_NS);
        }
    }

    /// The manager hangs. If it has begun what it was asked for it may do it at any time, so what
    /// was kept from others for that stays so until the server ends.
    fn given_up(&self, live: &LiveDevice, is_undone: bool, guards: Vec<Taking>) -> ChangeError {
        let what = match is_undone {
            true => "will not do it",
            false => "goes on with it",
        };
        if !is_undone {
            guards.into_iter().for_each(std::mem::forget);
        }
        let within = format_duration(MANAGER_PATIENCE_NS);
        let message = format!(
            "`{}` has not done it within {within}: it waits for its members, and {what}",
            live.name
        );
        ChangeError { refused: Refused::TimedOut, message }
    }

    fn add(&self, name: &str, member: &Named<'_>, force: bool) -> Result<Vec<String>> {
        let (live, array, _claim) = self.claim(name)?;
        let found = self.find_or_open(member, false)?;
        let added = self.add_found(&live, &array, &found, force);
        if added.is_err() {
            self.close_if_unused(&found.live);
        }
        added.map(|()| vec![found.live.name.clone()])
    }

    fn add_found(
        &self,
        live: &LiveDevice,
        array: &Array,
        found: &Found,
        force: bool,
    ) -> Result<()> {
        let taking = self.take_for(live, found)?;
        if let Some(message) = raid::past_file_limit(&*found.live.device) {
            return Err(failed(message));
        }
        if !force {
            self.check_contents(&found.live, array)?;
        }
        let (name, device) = (found.live.name.clone(), found.live.device.clone());
        let uuid = Uuid((self.stack.open_env().platform.random)());
        self.obtain_with(live, array, Command::Add { name, device, uuid }, vec![taking]).map(drop)
    }

    /// Asks for something of each device that `member` means, and does `then` with each.
    fn each(
        &self,
        name: &str,
        member: &Named<'_>,
        command: fn(String) -> Command,
        then: impl Fn(&String),
    ) -> Result<Vec<String>> {
        let (live, array, _claim) = self.claim(name)?;
        let names = self.members_named(&array, member)?;
        for name in &names {
            self.obtain(&live, &array, command(name.clone()))?;
            then(name);
        }
        Ok(names)
    }

    fn stop(&self, name: &str) -> Result<Vec<String>> {
        let (live, array, _claim) = self.claim(name)?;
        let mut state = self.stack.devices.lock();
        check_unused(&state, &self.stack.exports, &live)?;
        let taking = self.stack.devices.take(&mut state, &live, "is being stopped".to_owned());
        drop(state);
        let members = live.members();
        let taking = self.obtain_with(&live, &array, Command::Stop, vec![taking])?;
        self.stack.devices.lock().list.retain(|other| !Arc::ptr_eq(other, &live));
        drop(taking);
        self.stack.groups.detach(name);
        self.close_all(&members);
        Ok(members)
    }

    fn assemble(&self, name: &str, how: &Assemble<'_>) -> Result<Vec<String>> {
        check_name(name).or_else(|message| refused(Refused::BadName, message))?;
        let mut state = self.stack.devices.lock();
        check_stopped(&state).and_then(|()| check_new(&state, name))?;
        let _name = self.stack.devices.take_name(&mut state, name);
        drop(state);
        let found = self.find_or_open_all(how)?;
        let started = self.start(name, how, &found);
        // Those that have no part in the array, too.
        let names: Vec<String> = found.iter().map(|found| found.live.name.clone()).collect();
        self.close_all(&names);
        started
    }

    /// Starts the array that `found` make. The names of those that have a part in it.
    fn start(&self, name: &str, how: &Assemble<'_>, found: &[Found]) -> Result<Vec<String>> {
        let why = format!("is being made a member of `{name}`");
        let _takings = found.iter().map(|one| self.take(one, &why)).collect::<Result<Vec<_>>>()?;
        let spec = self.array_spec(name, how, found)?;
        let DeviceKind::Raid(raid) = &spec.kind else { return Err(failed("it is no array")) };
        let at = self.stack.open_env();
        let find = |name: &str| {
            let found = found.iter().find(|found| found.live.name == name)?;
            Some(found.live.device.clone())
        };
        let opened = raid::open_raid(
            &spec,
            raid,
            (&find, &BTreeSet::new()),
            &|_| false,
            (&at, self.stack.engine),
        );
        let opened = opened.map_err(of_opening)?;
        raid::run(name, opened.manager, &at).map_err(of_opening)?;
        let array = opened.array.clone();
        let live = LiveDevice::of_array(name, opened.array, &self.stack.groups);
        let mut state = self.stack.devices.lock();
        check_stopped(&state).inspect_err(|_| self.stack.groups.detach(name))?;
        state.list.push(live.clone());
        drop(state);
        // This command changes nothing; when it is done, work that begins by itself has begun.
        self.obtain(&live, &array, Command::Speed { min: None, max: None })?;
        Ok(live.members())
    }

    /// The array as a stack file would say it: its level is told by its members.
    fn array_spec(&self, name: &str, how: &Assemble<'_>, found: &[Found]) -> Result<DeviceSpec> {
        let uuid = how.uuid.map(|text| {
            let message = || format!("`{text}` is no array's UUID: write 32 hexadecimal digits");
            Uuid::parse(text).ok_or_else(|| failed(message()))
        });
        let uuid = uuid.transpose()?;
        let level = self.level_of(found, uuid)?;
        let member = |found: &Found| Member {
            device: found.live.name.clone(),
            area_sectors: None,
            span: 0..0,
        };
        let raid = RaidSpec {
            uuid,
            run: how.run,
            force: how.force,
            ..RaidSpec::of_level(level, found.iter().map(member).collect())
        };
        let spec = DeviceSpec::of_kind(name, DeviceKind::Raid(raid));
        Ok(DeviceSpec { read_only: how.read_only, ..spec })
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
            let message = format!("`{name}` is a {} device, no array", live.device.info().kind);
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
