//! Changes of arrays while the stack is served, as mdadm's *manage* and *assemble* modes make them.
//!
//! Invariants:
//! * An array that is being changed is claimed, and its new devices are taken. So the checks before
//!   a change hold until the array's manager has done it.
//! * A device that was opened for an array is closed when no array has it any more and all contexts
//!   have given it up. A context with I/O in flight there does so when the I/O has ended.

mod arrays;
mod members;
mod report;

use std::collections::BTreeSet;
use std::sync::Arc;

use drystone_raid::array::{Array, Command};
use drystone_raid::metadata::Uuid;

use super::devices::LiveDevice;
use super::raid;
use super::volumes::{check_new, check_stopped, check_unused, refused};
use crate::attributes::SYNC_ACTION;
use crate::md::{ArrayChange, Assemble, Named};
use crate::names::check_name;
use crate::runtime::Refused;
use crate::spec::{DeviceKind, DeviceSpec, Member, RaidSpec};
pub(super) use arrays::Arrays;
use arrays::{Result, failed, of_array, of_opening};
use members::Found;

impl Arrays<'_> {
    /// Makes a change to the array `name`. Returns the names of the devices concerned.
    pub(super) fn make(&self, name: &str, change: &ArrayChange<'_>) -> Result<Vec<String>> {
        match change {
            ArrayChange::Add { member, force } => self.add(name, member, *force),
            ArrayChange::Fail(member) => self.each(name, member, Command::Fail, |_| ()),
            ArrayChange::Remove(member) => {
                let close = |name: &String| self.close_all(std::slice::from_ref(name));
                self.each(name, member, Command::Remove, close)
            }
            ArrayChange::Replace(member) => self.each(name, member, Command::Replace, |_| ()),
            ArrayChange::Sync(action) => self.set(name, SYNC_ACTION, action).map(|_| Vec::new()),
            ArrayChange::Stop => self.stop(name),
            ArrayChange::Assemble(how) => self.assemble(name, how),
        }
    }

    /// Lets an array's manager set an attribute. False if the manager does not handle it.
    pub(super) fn set(&self, name: &str, attribute: &str, value: &str) -> Result<bool> {
        let Some(command) = Command::of_attribute(attribute, value) else { return Ok(false) };
        let (live, array) = self.array(name)?;
        self.obtain(&live, &array, command.map_err(of_array)?)?;
        Ok(true)
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

    /// Gives the manager a command for each device that `member` means, and calls `then` with each.
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
        // These include devices without a role in the array.
        let names: Vec<String> = found.iter().map(|found| found.live.name.clone()).collect();
        self.close_all(&names);
        started
    }

    /// Starts the array on the devices `found`. Returns the names of those that take part.
    fn start(&self, name: &str, how: &Assemble<'_>, found: &[Found]) -> Result<Vec<String>> {
        let why = format!("is being made a member of `{name}`");
        let _takings = found.iter().map(|one| self.take(one, &why)).collect::<Result<Vec<_>>>()?;
        let spec = self.array_spec(name, how, found)?;
        let DeviceKind::Raid(raid) = &spec.kind else { return Err(failed("it is not an array")) };
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

    /// The array as a stack file would describe it; its members give the level.
    fn array_spec(&self, name: &str, how: &Assemble<'_>, found: &[Found]) -> Result<DeviceSpec> {
        let uuid = how.uuid.map(|text| {
            let message =
                || format!("`{text}` is not the UUID of an array: write 32 hexadecimal digits");
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
        let mut spec = DeviceSpec::of_kind(name, DeviceKind::Raid(raid));
        if how.read_only {
            spec.make_read_only();
        }
        Ok(spec)
    }
}
