//! Devices that must be members: found in the stack, or opened for it, and closed again.

use std::path::Path;
use std::sync::Arc;

use drystone_core::Device;
use drystone_core::clock::Ns;
use drystone_core::ring::Engine;
use drystone_drivers::file::FileOptions;
use drystone_raid::array::{self, Array, ArrayStatus, DiskState};
use drystone_raid::layout::Level;
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::assemble::Candidate;
use drystone_raid::metadata::foreign::Contents;
use drystone_raid::metadata::superblock::{DevRole, Superblock, level_name};

use super::super::devices::{LiveDevice, State, Taking};
use super::super::volumes::{
    FIRST_PAUSE_NS, LONGEST_PAUSE_NS, check_new, check_stopped, check_unused, no_device, refused,
};
use super::super::{open_device, uses};
use super::arrays::{Arrays, Result, failed, of_array, of_opening};
use crate::diagnostic::shorten;
use crate::md::{Assemble, Named};
use crate::names::MAX_NAME_BYTES;
use crate::runtime::Refused;
use crate::spec::{Create, DeviceKind, DeviceSpec, FileSpec};
use crate::used_files::Identity;

/// The longest wait for contexts to give up a device. They do so when asked, unless they have I/O
/// in flight there.
const GIVE_UP_PATIENCE_NS: Ns = 1_000_000_000;

/// A device that must be a member.
pub(super) struct Found {
    pub(super) live: Arc<LiveDevice>,
}

impl Arrays<'_> {
    /// The device that `named` means; a file or block device is opened if no device stands on it.
    pub(super) fn find_or_open(&self, named: &Named<'_>, read_only: bool) -> Result<Found> {
        if let Some(live) = self.known(named) {
            return Ok(Found { live });
        }
        match named.path {
            Some(path) if Path::new(path).exists() => self.open(path, read_only),
            Some(path) => {
                let message = match named.word == path {
                    true => format!("there is no file {}", shorten(path)),
                    false => format!(
                        "there is no device `{}`, and no file {}",
                        shorten(named.word),
                        shorten(path)
                    ),
                };
                refused(Refused::NotFound, message)
            }
            None => self.unknown(named.word),
        }
    }

    fn unknown<T>(&self, word: &str) -> Result<T> {
        let devices = self.stack.devices.all();
        refused(Refused::NotFound, no_device(word, devices.iter().map(|live| live.name.as_str())))
    }

    /// A device of the stack, by its name or by the path of its file.
    fn known(&self, named: &Named<'_>) -> Option<Arc<LiveDevice>> {
        if !named.word.contains('/')
            && let Some(live) = self.stack.devices.find(named.word)
        {
            return Some(live);
        }
        let wanted = Identity::of(Path::new(named.path?));
        let is_it = |live: &Arc<LiveDevice>| {
            let path = live.device.attribute("path");
            path.is_some_and(|path| Identity::of(Path::new(&path)).same(&wanted))
        };
        self.stack.devices.all().into_iter().find(is_it)
    }

    /// All members of an array that must be started.
    pub(super) fn find_or_open_all(&self, how: &Assemble<'_>) -> Result<Vec<Found>> {
        let mut found: Vec<Found> = Vec::new();
        for word in how.members.lines().filter(|word| !word.is_empty()) {
            let path = word.starts_with('/').then_some(word);
            let next = self.find_or_open(&Named { word, path }, how.read_only);
            let next = next.and_then(|next| {
                match found.iter().any(|other| Arc::ptr_eq(&other.live, &next.live)) {
                    true => Err(failed(format!("`{}` is named twice", next.live.name))),
                    false => Ok(next),
                }
            });
            match next {
                Ok(next) => found.push(next),
                Err(error) => {
                    found.iter().for_each(|found| self.close_if_unused(&found.live));
                    return Err(error);
                }
            }
        }
        if found.is_empty() {
            return Err(failed("name the devices that the array is on"));
        }
        Ok(found)
    }

    fn open(&self, path: &str, read_only: bool) -> Result<Found> {
        if !self.stack.has_files {
            return refused(Refused::Unsupported, "this server opens no files");
        }
        let mut state = self.stack.devices.lock();
        check_stopped(&state)?;
        let name = free_name(&state, path);
        check_new(&state, &name)?;
        let _name = self.stack.devices.take_name(&mut state, &name);
        drop(state);
        let options =
            FileOptions { path: path.into(), mode: Some(0o600), ..FileOptions::default() };
        let file = FileSpec { options, create: Create::Never, engine: Engine::Auto };
        let mut spec = DeviceSpec::of_kind(&name, DeviceKind::File(file));
        if read_only {
            spec.make_read_only();
        }
        let device = open_device(&spec, &self.stack.open_env()).map_err(of_opening)?;
        let live = LiveDevice::by_path(&name, path, device);
        let mut state = self.stack.devices.lock();
        check_stopped(&state).inspect_err(|_| self.stack.groups.detach(&name))?;
        state.list.push(live.clone());
        Ok(Found { live })
    }

    /// Keeps all others from a device that is not in use. `why`: the fate of the device.
    pub(super) fn take(&self, found: &Found, why: &str) -> Result<Taking> {
        self.take_checked(found, why, |_| Ok(()))
    }

    /// The same for a device that `array` is to get.
    pub(super) fn take_for(&self, array: &LiveDevice, found: &Found) -> Result<Taking> {
        let why = format!("is being made a member of `{}`", array.name);
        self.take_checked(found, &why, |state| {
            uses::check_member(state, array, &found.live)
                .or_else(|message| refused(Refused::InUse, message))
        })
    }

    fn take_checked(
        &self,
        found: &Found,
        why: &str,
        check: impl FnOnce(&State) -> Result<()>,
    ) -> Result<Taking> {
        let mut state = self.stack.devices.lock();
        check_stopped(&state)?;
        if let Some(taken) = state.taken(&found.live.device) {
            return refused(Refused::Busy, taken);
        }
        check_unused(&state, &self.stack.exports, &found.live)?;
        check(&state)?;
        Ok(self.stack.devices.take(&mut state, &found.live, why.to_owned()))
    }

    /// Refuses a device that holds something, unless it was a member of `array`.
    pub(super) fn check_contents(&self, live: &LiveDevice, array: &Array) -> Result<()> {
        let contents = array::contents(self.context()?, &live.device).map_err(of_array)?;
        let Contents::Known(what) = contents else { return Ok(()) };
        let own = self.superblock(&live.device)?;
        let status = array.status();
        let is_journal = own.as_ref().is_some_and(|own| own.role() == DevRole::Journal);
        let what = if is_journal { "the journal of an md array" } else { what };
        let of = match own {
            Some(own) if own.set_uuid == status.superblock.set_uuid => {
                return check_no_copy(live, &own, &status);
            }
            Some(own) => format!(" ({})", own.called()),
            None => String::new(),
        };
        let message = format!(
            "`{}` appears to contain {what}{of}: --force adds it anyway and destroys its contents",
            live.name
        );
        refused(Refused::InUse, message)
    }

    fn superblock(&self, device: &Arc<dyn Device>) -> Result<Option<Superblock>> {
        let candidates = self.candidates(std::slice::from_ref(device))?;
        let found = candidates.into_iter().find_map(|candidate| candidate.found.ok());
        Ok(found.map(|(_, superblock)| superblock))
    }

    fn candidates(&self, devices: &[Arc<dyn Device>]) -> Result<Vec<Candidate>> {
        let (_, candidates) = array::find(self.context()?, devices).map_err(of_array)?;
        Ok(candidates)
    }

    /// The level of the array that the devices are of.
    pub(super) fn level_of(&self, found: &[Found], uuid: Option<Uuid>) -> Result<Level> {
        let devices: Vec<_> = found.iter().map(|found| found.live.device.clone()).collect();
        let candidates = self.candidates(&devices)?;
        let is_wanted = |own: &Superblock| uuid.is_none_or(|uuid| own.set_uuid == uuid);
        let mut owns =
            candidates.iter().filter_map(|candidate| Some(&candidate.found.as_ref().ok()?.1));
        if let Some(own) = owns.find(|own| is_wanted(own)) {
            let text = || {
                let level = level_name(own.level);
                format!("{} is a {level} array: raid4, raid5 and raid6 can be started", own.name())
            };
            return Level::from_number(own.level).ok_or_else(|| failed(text()));
        }
        let none = candidates.iter().find_map(|candidate| {
            Some(format!("`{}`: {}", candidate.name, candidate.found.as_ref().err()?))
        });
        let other = || "no device is of the array with that UUID".to_owned();
        Err(failed(none.unwrap_or_else(other)))
    }

    /// The devices of `array` that `named` means.
    pub(super) fn members_named(&self, array: &Array, named: &Named<'_>) -> Result<Vec<String>> {
        let status = array.status();
        let is_failed = |state| matches!(state, DiskState::Faulty(_));
        let all = status.disks.iter();
        let names = |is_one: &dyn Fn(&array::DiskStatus) -> bool| {
            all.clone().filter(|disk| is_one(disk)).map(|disk| disk.name.to_string()).collect()
        };
        if status.disks.iter().any(|disk| *disk.name == *named.word) {
            return Ok(vec![named.word.to_owned()]);
        }
        match named.word {
            "failed" | "faulty" => Ok(names(&|disk| is_failed(disk.state))),
            "detached" => Ok(names(&|disk| self.is_detached(&disk.name))),
            word => match self.known(named) {
                Some(live) => Ok(vec![live.name.clone()]),
                None => self.unknown(word),
            },
        }
    }

    /// True if the file or disk of the device has vanished.
    fn is_detached(&self, name: &str) -> bool {
        let live = self.stack.devices.find(name);
        let path = live.and_then(|live| live.device.attribute("path"));
        path.is_some_and(|path| !Path::new(&path).exists())
    }

    /// Closes those of the devices that were opened for an array, if no array has them any more.
    pub(super) fn close_all(&self, names: &[String]) {
        for live in names.iter().filter_map(|name| self.stack.devices.find(name)) {
            self.close_if_unused(&live);
        }
    }

    /// The same of one device.
    pub(super) fn close_if_unused(&self, live: &Arc<LiveDevice>) {
        let mut state = self.stack.devices.lock();
        let is_used = state.taken(&live.device).is_some()
            || !uses::users(&state, &self.stack.exports, live).is_empty();
        if !live.comes_by_path || is_used {
            return;
        }
        state.list.retain(|other| !Arc::ptr_eq(other, live));
        drop(state);
        self.stack.groups.detach(&live.name);
        self.retire(&live.device);
    }

    /// Makes all contexts give up a device.
    fn retire(&self, device: &Arc<dyn Device>) {
        let deadline = self.stack.clock.now().saturating_add(GIVE_UP_PATIENCE_NS);
        let mut pause = FIRST_PAUSE_NS;
        loop {
            device.retire();
            self.stack.contexts.free_idle_orphans();
            // The last reference is ours.
            if Arc::strong_count(device) == 1 || self.stack.clock.now() >= deadline {
                return;
            }
            (self.pause)(pause);
            pause = (pause * 2).min(LONGEST_PAUSE_NS);
        }
    }
}

/// Refuses a device whose superblock claims the identity of another device of the array: a copy of
/// that, or an old image.
fn check_no_copy(live: &LiveDevice, own: &Superblock, status: &ArrayStatus) -> Result<()> {
    match status.disks.iter().find(|disk| disk.uuid == own.device_uuid) {
        Some(disk) => {
            let message = format!(
                "`{}` is a copy of `{}`, which the array has already: both have the device UUID \
                 {}; --force adds it anyway and overwrites its contents",
                live.name, disk.name, own.device_uuid
            );
            refused(Refused::InUse, message)
        }
        None => Ok(()),
    }
}

/// A free name for the device on `path`: that of the file, as far as its characters are permitted.
fn free_name(state: &State, path: &str) -> String {
    let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
    let letter = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let stem: String = stem.chars().map(letter).take(MAX_NAME_BYTES - 8).collect();
    let stem = if stem.is_empty() || stem == ".." { "disk".to_owned() } else { stem };
    let names = std::iter::once(stem.clone()).chain((2..).map(|n| format!("{stem}-{n}")));
    names.into_iter().find(|name| state.is_free(name)).unwrap_or(stem)
}
