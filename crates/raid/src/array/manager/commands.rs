//! Commands of control calls (mdadm's *manage* mode).

use super::safe_mode::{QUIET_PAUSE_NS, Record};
use super::spare_layout::{Needs, placed};
use super::{Failed, Manager, STOP_PATIENCE_NS};
use crate::array::bitmap::check_blocks as check_bitmap;
use crate::array::control::Command;
use crate::array::disk::{Disk, DiskState, LogTodo};
use crate::array::look::{candidate, erase_superblocks};
use crate::engine::SyncAction;
use crate::ids::Role;
use crate::metadata::Uuid;
use crate::metadata::superblock::{DevRole, Features, Superblock};
use drystone_core::clock::Ns;
use drystone_core::error::ErrorKind;
use drystone_core::{Device, Error, Result, SECTOR_SIZE};
use std::sync::Arc;

fn busy(message: String) -> Error {
    Error::new(ErrorKind::Busy, message)
}

impl Manager {
    pub(super) fn take_requests(&mut self) {
        for request in self.requests.take_new() {
            if !request.begin(self.io.ctx.locks()) {
                continue;
            }
            if let Command::Stop = request.command() {
                let deadline = self.now().saturating_add(STOP_PATIENCE_NS);
                self.requests.add_stop(request, deadline);
                continue;
            }
            let outcome = self.execute(request.command());
            self.record_changes();
            let outcome = outcome.and_then(|()| self.check_recorded(request.command()));
            match (request.command(), &outcome) {
                (Command::Remove(_), Ok(())) => {
                    let deadline = self.now().saturating_add(STOP_PATIENCE_NS);
                    self.requests.add_removal(request, deadline);
                }
                _ => self.requests.add_executed(request, outcome),
            }
        }
    }

    /// Check that the superblocks record a device that was added or that will replace a member. The
    /// next start would not know the device otherwise.
    ///
    /// # Errors
    /// The device failed the write of its superblock. A device that was to be added is removed
    /// again: no context has used it yet.
    fn check_recorded(&mut self, command: &Command) -> Result<()> {
        let array = self.shared.name.clone();
        match command {
            Command::Add { name, .. } => {
                let position = self.position_of(name)?;
                if !self.members[position].is_faulty() {
                    return Ok(());
                }
                let disk = self.members.remove(position);
                self.io.release(disk.index);
                self.record_changes();
                Err(Error::invalid(format!(
                    "{name} is not added to {array}: it did not write and flush its superblock and \
                     what else a member keeps; use another device"
                )))
            }
            Command::Replace(name) => {
                let role = self.members[self.position_of(name)?].state.role();
                let is_chosen = |disk: &Disk| match disk.state {
                    DiskState::Replacement(own) => Some(own) == role,
                    _ => false,
                };
                match role.is_none() || self.members.iter().any(is_chosen) {
                    true => Ok(()),
                    false => Err(Error::invalid(format!(
                        "{name} is not replaced: the spare chosen for it did not write and flush \
                         its superblock, and has failed"
                    ))),
                }
            }
            _ => Ok(()),
        }
    }

    /// Report the outcome of each command whose effects can be seen: work that it starts has begun,
    /// work that it ends has ended (Linux `stop_sync_thread`).
    pub(super) fn tell_outcomes(&mut self) {
        let sync = &self.sync;
        let is_over = self.is_over;
        let still_runs = |command: &Command| match command {
            _ if is_over => false,
            Command::Idle => sync.is_asked_for(),
            Command::Freeze(true) => sync.action().is_some(),
            _ => false,
        };
        self.requests.tell_outcomes(still_runs, self.io.ctx.locks());
    }

    fn execute(&mut self, command: &Command) -> Result<()> {
        if self.requests.is_stopping() {
            return Err(busy(format!("{} is being stopped", self.shared.name)));
        }
        match command {
            Command::Speed { min, max } => {
                self.sync.set_speed(*min, *max);
                return Ok(());
            }
            Command::Stop => return Ok(()),
            _ if self.read_only => {
                let text = format!("{} is read-only: nothing of it is changed", self.shared.name);
                return Err(Error::new(ErrorKind::NotSupported, text));
            }
            _ => {}
        }
        match command {
            Command::Add { name, device, uuid } => self.add(name, device, *uuid),
            Command::Fail(name) => self.fail(name),
            Command::Remove(name) => self.removable(name).map(|_| ()),
            Command::Replace(name) => self.replace(name),
            Command::Sync(action) => self.ask_for_sync(*action),
            Command::Idle => {
                self.sync.end_asked();
                Ok(())
            }
            Command::Freeze(on) => {
                self.sync.freeze(*on);
                Ok(())
            }
            Command::Speed { .. } | Command::Stop => Ok(()),
        }
    }

    fn position_of(&self, name: &str) -> Result<usize> {
        self.members.position_of(name).ok_or_else(|| {
            let text = format!("{name} is no device of {}", self.shared.name);
            Error::new(ErrorKind::NotFound, text)
        })
    }

    fn add(&mut self, name: &str, device: &Arc<dyn Device>, uuid: Uuid) -> Result<()> {
        if self.members.position_of(name).is_some() {
            return Err(busy(format!("{name} is a device of {} already", self.shared.name)));
        }
        let added = self.take_in(name, device, uuid);
        if added.is_err()
            && let Ok(index) = self.io.open(device)
        {
            self.io.release(index);
        }
        added
    }

    fn take_in(&mut self, name: &str, device: &Arc<dyn Device>, uuid: Uuid) -> Result<()> {
        self.check_blocks(name, device)?;
        let found = candidate(&mut self.io, device)?;
        let own = found.found.ok().map(|(_, own)| own);
        self.check_not_needed(name, own.as_ref())?;
        // Damaged metadata does not count: it is replaced.
        let own = own.filter(|_| found.damage.is_none());
        let (superblock, state) = match own.and_then(|own| Some((self.role_again(&own)?, own))) {
            Some((role, own)) => (own, DiskState::Rebuilding(role)),
            None => (self.superblock_for(name, device, uuid)?, DiskState::Spare),
        };
        let header = self.records.bitmap_header();
        let mut added = Disk::open(&mut self.io, device, &superblock, (state, 0), header)?;
        check_bitmap(&added)?;
        if state == DiskState::Spare {
            self.erase_others(name, device, superblock.super_offset)?;
        }
        (added.by_bitmap, added.wants_bitmap) = (state != DiskState::Spare, true);
        added.log_todo = LogTodo::All;
        self.members.add(added);
        Ok(())
    }

    /// Check that the device can be used with the array's block size, which does not change while
    /// the array is in use.
    fn check_blocks(&self, name: &str, device: &Arc<dyn Device>) -> Result<()> {
        let (limits, own) = (device.info().limits, self.shared.conf().limits.logical_block_size);
        if limits.read_only {
            return Err(Error::invalid(format!("{name} is read-only")));
        }
        match limits.logical_block_size > own {
            true => Err(Error::invalid(format!(
                "{name} has blocks of {} bytes, and {} has been started with blocks of {own}",
                limits.logical_block_size, self.shared.name
            ))),
            false => Ok(()),
        }
    }

    /// Refuse to overwrite a former member while more members are lost than parity makes up for:
    /// the array may be assembled from it again (`assemble --force`).
    fn check_not_needed(&self, name: &str, own: Option<&Superblock>) -> Result<()> {
        let is_broken = self.members.lost() > self.members.tolerated();
        match own {
            Some(own) if is_broken && own.set_uuid == self.records.common().set_uuid => {
                let array = &self.shared.name;
                Err(busy(format!(
                    "{array} has lost more members than it may, and adding {name} would destroy \
                     what it held: stop {array}, and assemble it with --force"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Erase superblocks of older arrays on a new spare, all except its own.
    fn erase_others(&mut self, name: &str, device: &Arc<dyn Device>, own: u64) -> Result<()> {
        let index = self.io.open(device)?;
        let erased = erase_superblocks(&mut self.io, index, &device.info(), own);
        erased.map_err(|status| {
            let text = format!("an older superblock on {name} cannot be erased: {status}");
            Error::invalid(text)
        })
    }

    /// The role of a former member that has missed only the chunks that the bitmap marks.
    fn role_again(&self, own: &Superblock) -> Option<Role> {
        let cleared = self.records.bitmap_header()?.events_cleared;
        let DevRole::Active(role) = own.role() else { return None };
        let role = Role(role.into());
        let common = self.records.common();
        let geometry = |s: &Superblock| (s.level, s.layout, s.chunk_sectors, s.raid_disks);
        let shape = |s: &Superblock| (s.set_uuid, geometry(s), s.size);
        let is_whole =
            !own.feature_map.intersects(Features::RECOVERY_OFFSET | Features::REPLACEMENT);
        let is_of_age = (cleared..=common.events).contains(&own.events);
        let is_free = self
            .members
            .iter()
            .all(|disk| disk.number().0 != own.dev_number && disk.state.role() != Some(role));
        // A device that records a present member as failed has seen another history.
        let mut in_use = self.members.iter().filter(|d| matches!(d.state, DiskState::InSync(_)));
        let is_ours = in_use.all(|disk| matches!(own.role_of(disk.number().0), DevRole::Active(_)));
        let fits = shape(own) == shape(common)
            && own.data_size >= self.used
            && own.bitmap_offset().is_some()
            && role.0 < common.raid_disks;
        // The blocks on its bad block list may be damaged; the bitmap does not mark these.
        let is_sound = !own.has_error_flag(own.dev_number);
        (fits && is_sound && is_whole && is_of_age && is_free && is_ours).then_some(role)
    }

    /// The superblock of a new spare: laid out as that of a member.
    fn superblock_for(
        &self,
        name: &str,
        device: &Arc<dyn Device>,
        uuid: Uuid,
    ) -> Result<Superblock> {
        // A present member is more likely to have the right layout than a failed one.
        let mut models: Vec<_> = self.members.iter().collect();
        models.sort_by_key(|disk| disk.is_faulty());
        let models: Vec<&Superblock> = models.into_iter().map(|disk| &disk.superblock).collect();
        let sectors = device.info().size_bytes / SECTOR_SIZE;
        // The size in superblocks may exceed the used size by part of a chunk.
        let size = self.records.common().size;
        let bitmap = self.records.bitmap_header();
        let block_sectors = u64::from(device.info().limits.logical_block_size) / SECTOR_SIZE;
        let needs = Needs { used: size, bitmap, block_sectors };
        let own = placed(&models, sectors, needs).map_err(|needed| {
            Error::invalid(format!(
                "{name} is not large enough to join {}: it has {} KiB, {} KiB are needed",
                self.shared.name,
                sectors / 2,
                needed.div_ceil(2)
            ))
        })?;
        let mut own = Superblock { device_uuid: uuid, ..own };
        own.feature_map -= Features::BAD_BLOCKS | Features::RECOVERY_OFFSET | Features::REPLACEMENT;
        let full = || {
            let text = format!(
                "{} has {} devices, which is most",
                self.shared.name,
                self.records.common().roles_max()
            );
            Error::invalid(text)
        };
        // The lower numbers belong to the first members of the array.
        let numbers = self.records.common().raid_disks..self.records.common().roles_max() as u32;
        own.dev_number = self.members.free_number(numbers).ok_or_else(full)?;
        (own.recovery_offset, own.cnt_corrected_read, own.devflags) = (0, 0, 0);
        Ok(own)
    }

    fn fail(&mut self, name: &str) -> Result<()> {
        let position = self.position_of(name)?;
        let lost = self.members.lost();
        let is_in_sync = matches!(self.members[position].state, DiskState::InSync(_));
        if is_in_sync && lost >= self.members.tolerated() {
            return Err(busy(format!(
                "{name} cannot be failed: {} would be broken, with {} of {} members lost",
                self.shared.name,
                lost + 1,
                self.records.common().raid_disks
            )));
        }
        self.members.fail(position, Failed::Asked);
        Ok(())
    }

    /// The position of a device that may be removed.
    fn removable(&self, name: &str) -> Result<usize> {
        let position = self.position_of(name)?;
        match self.members[position].state {
            DiskState::Faulty(_) | DiskState::Spare => Ok(position),
            _ => Err(busy(format!("{name} is in use: fail it before it is removed"))),
        }
    }

    /// Remove the devices that commands ask for, once no write to them is in flight: it could
    /// overwrite the data of the device's next user (Linux `nr_pending`).
    pub(super) fn remove_asked(&mut self, now: Ns) -> Option<Ns> {
        for (request, deadline) in self.requests.take_removals() {
            let Command::Remove(name) = request.command() else { continue };
            match self.remove(name, now >= deadline) {
                Some(outcome) => self.requests.add_executed(request, outcome),
                None => self.requests.add_removal(request, deadline),
            }
        }
        self.record_changes();
        self.requests.has_removals().then_some(now + QUIET_PAUSE_NS)
    }

    /// Remove one device; `None` while writes to it are in flight.
    fn remove(&mut self, name: &str, is_late: bool) -> Option<Result<()>> {
        if self.requests.is_stopping() {
            return Some(Err(busy(format!("{} is being stopped", self.shared.name))));
        }
        let position = match self.removable(name) {
            Ok(position) => position,
            refused => return Some(refused.map(|_| ())),
        };
        let number = self.members[position].number();
        if !self.shared.writes_have_ended(Some(number), self.io.ctx.locks()) {
            let text = || format!("{name} has writes in flight that do not end");
            return is_late.then(|| Err(busy(text())));
        }
        let disk = self.members.remove(position);
        self.io.release(disk.index);
        Some(Ok(()))
    }

    fn replace(&mut self, name: &str) -> Result<()> {
        let position = self.position_of(name)?;
        let DiskState::InSync(role) = self.members[position].state else {
            return Err(Error::invalid(format!("{name} is no member that could be replaced")));
        };
        if self.members.iter().any(|disk| disk.state == DiskState::Replacement(role)) {
            return Err(busy(format!("{name} is being replaced already")));
        }
        match self.members.begin_replacement(role) {
            true => Ok(()),
            false => Err(Error::invalid("there is no spare: add one first".to_owned())),
        }
    }

    fn ask_for_sync(&mut self, action: SyncAction) -> Result<()> {
        if !matches!(action, SyncAction::Check | SyncAction::Repair) {
            return Err(Error::invalid("check and repair can be asked for".to_owned()));
        }
        if self.sync.is_busy() {
            let text = format!("{} is being synchronised already", self.shared.name);
            return Err(busy(text));
        }
        let lost = self.members.lost();
        if lost >= self.members.tolerated() {
            let text = format!(
                "{} lacks {lost} of {} members: without them there is nothing that parity could be \
                 compared with",
                self.shared.name,
                self.records.common().raid_disks
            );
            return Err(Error::invalid(text));
        }
        self.sync.ask(action);
        Ok(())
    }

    /// Stop the array once no I/O is in flight.
    pub(super) fn stop_if_asked(&mut self, now: Ns) -> Option<Ns> {
        let deadline = self.requests.stop_deadline()?;
        self.sync.interrupt();
        let epoch = self.shared.suspend();
        let is_quiesced = self.sync.action().is_none()
            && self.shared.is_quiesced_since(epoch)
            // Rewrites of blocks that could not be read go on after the bios that found the error
            // have ended.
            && self.shared.writes_have_ended(None, self.io.ctx.locks());
        if !is_quiesced && now < deadline {
            return Some(now + QUIET_PAUSE_NS);
        }
        if !is_quiesced {
            self.shared.publish(|conf| conf.is_suspended = false);
            let text = format!("{} has I/O in flight that does not end", self.shared.name);
            self.requests.refuse_stops(|| busy(text.clone()));
            return Some(now);
        }
        self.close();
        self.requests.accept_stops();
        None
    }

    fn close(&mut self) {
        if !self.read_only {
            self.clear_all_bits();
        }
        if !self.read_only
            && (self.members.is_changed() || self.safe_mode.record() != Record::Clean)
        {
            self.safe_mode.set_clean();
            self.write_superblocks();
        }
        self.shared.publish(|conf| {
            (conf.is_closed, conf.is_suspended) = (true, false);
            // The members belong to others from now on.
            conf.role_slots = super::role_slots(&[], conf.layout.disks());
        });
        self.is_over = true;
        self.tell_status();
    }
}
