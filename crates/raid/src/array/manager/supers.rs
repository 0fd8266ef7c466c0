//! The superblocks.

use super::safe_mode::Record;
use super::{Failed, Manager};
use crate::array::disk::{Disk, DiskState};
use crate::array::io::Ticket;
use crate::array::ppl;
use crate::metadata::superblock::{CLEAN, DevRole, Features, Superblock};
use drystone_core::Bio;
use drystone_core::primitive::Ordering::*;
use std::sync::Arc;

impl Manager {
    /// Put on record what is so now, on all devices that have not failed; durable when this returns. A
    /// device that does not take its superblock has failed, which is then put on record too. True if one has:
    /// then contexts are to hear of it.
    pub(super) fn write_superblocks(&mut self) -> bool {
        let faulty = self.members.faulty();
        self.bring_level();
        let (mut written, mut is_lower) = (self.common.events, false);
        loop {
            // What was written on some is never to be taken for what others have. What was written on none
            // does not count: who has not heard of two updates is a stranger after a crash.
            self.change_common().events = written;
            // What they will say is good has to be durable on all members before any of them says so.
            let (mut failed, mut why) = (self.flush_all(), Failed::Flush);
            if failed.is_empty() {
                let spares_too = self.next_events();
                let events = self.common.events;
                if let Some(bitmap) = &mut self.bitmap {
                    bitmap.note_events(events);
                }
                // The bitmap is never older than the superblocks.
                if !self.write_bitmap() || !self.write_empty_logs() {
                    continue;
                }
                self.update_common();
                (failed, why) = (self.write_all(spares_too), Failed::Superblock);
                // Who has an event that was taken away must not be two behind either: it goes up by one, and
                // by another one when all have that, so that who failed is older than they.
                is_lower |= self.common.events < written && !failed.is_empty();
                written = self.common.events;
            }
            if failed.is_empty() && !std::mem::take(&mut is_lower) {
                break;
            }
            for position in failed {
                self.members.fail(position, why);
            }
        }
        self.members.mark_recorded();
        self.updated_ns = self.now();
        self.members.faulty() > faulty
    }

    /// Members that a crash kept from the last update of another life get it before there is a next one:
    /// a second crash would leave them two behind, which makes them strangers.
    fn bring_level(&mut self) {
        let is_behind = |disk: &Disk| {
            disk.state.role().is_some()
                && !disk.is_faulty()
                && disk.superblock.events < self.common.events
        };
        let behind: Vec<usize> = self
            .members
            .positions()
            .filter(|position| is_behind(&self.members[*position]))
            .collect();
        if behind.is_empty() {
            return;
        }
        // What the update said to be durable may not be on these.
        let failed = self.flush_members();
        failed.iter().for_each(|position| self.members.fail(*position, Failed::Flush));
        let behind = behind.into_iter().filter(|position| !failed.contains(position));
        let started: Vec<_> =
            behind.map(|position| (position, self.start_write(position))).collect();
        for (position, tickets) in started {
            if !self.io.wait_for_all(&tickets) {
                self.members.fail(position, Failed::Superblock);
            }
        }
    }

    /// Count the update. False if spares need not hear of it: it says nothing but that the array is
    /// clean, or dirty, which a change back takes away again (Linux `md_update_sb`).
    fn next_events(&mut self) -> bool {
        let only_record = !self.members.is_changed() && !self.members.is_degraded();
        let is_clean = self.safe_mode.record() == Record::Clean
            && self.shared.fits_below.load(Acquire) == CLEAN;
        if only_record && is_clean && self.can_decrease_events && self.common.events > 1 {
            self.change_common().events -= 1;
            self.can_decrease_events = false;
        } else {
            self.change_common().events += 1;
            self.can_decrease_events = only_record;
        }
        !only_record
    }

    fn change_common(&mut self) -> &mut Superblock {
        Arc::make_mut(&mut self.common)
    }

    fn update_common(&mut self) {
        let fits_below = self.shared.fits_below.load(Acquire);
        let has_logs = self.shared.conf().ppl.is_some();
        let common = Arc::make_mut(&mut self.common);
        // What is being written may not fit, wherever it is.
        common.resync_offset = match self.safe_mode.record() {
            Record::Clean => fits_below,
            // The logs tell what is being written, and nothing of what the resync has yet to put right.
            _ if has_logs && fits_below != CLEAN => ppl::RESYNC_PENDING,
            Record::Dirty | Record::Settling(_) => 0,
        };
        common.utime = (self.wall_clock)();
        let roles = &mut common.roles;
        // Who is not there is no member.
        roles.fill(DevRole::Spare.number());
        for disk in self.members.iter() {
            let number = disk.number().0 as usize;
            if number >= roles.len() {
                roles.resize(number + 1, DevRole::Spare.number());
            }
            roles[number] = match disk.state {
                DiskState::Faulty(_) => DevRole::Faulty.number(),
                DiskState::Spare => DevRole::Spare.number(),
                state => {
                    state.role().map_or(DevRole::Spare, |r| DevRole::Active(r.0 as u16)).number()
                }
            };
        }
    }

    /// Flush all members at once, unless nothing gets better. Who could not.
    fn flush_all(&mut self) -> Vec<usize> {
        if !self.members.is_changed() && self.safe_mode.record() == Record::Dirty {
            return Vec::new();
        }
        self.flush_members()
    }

    /// Flush all members at once. Who could not.
    pub(super) fn flush_members(&mut self) -> Vec<usize> {
        let is_used = |disk: &Disk| disk.state.role().is_some();
        let positions: Vec<_> =
            self.members.positions().filter(|position| is_used(&self.members[*position])).collect();
        let start = |position: &usize| self.io.start(self.members[*position].index, Bio::flush());
        let tickets: Vec<_> = positions.iter().map(start).collect();
        let flushed = tickets.into_iter().map(|ticket| self.io.wait_for(ticket).status.is_ok());
        positions.iter().zip(flushed).filter(|(_, ok)| !ok).map(|(position, _)| *position).collect()
    }

    /// Give new members a partial parity log, and all members an empty one at the start; durable when
    /// this returns. False if a device did not take it, which has failed then.
    fn write_empty_logs(&mut self) -> bool {
        let Some(conf) = self.shared.conf().ppl else { return true };
        let mut started: Vec<(usize, Vec<Ticket>)> = Vec::new();
        for (position, disk) in self.members.iter_mut().enumerate() {
            if disk.state.role().is_some() {
                started.push((position, disk.start_log(&mut self.io, &conf)));
            }
        }
        let io = &mut self.io;
        let failed: Vec<usize> = started
            .into_iter()
            .filter_map(|(position, tickets)| (!io.wait_for_all(&tickets)).then_some(position))
            .collect();
        failed.iter().for_each(|position| self.members.fail(*position, Failed::Log));
        failed.is_empty()
    }

    /// Write all superblocks at once. Who did not take it.
    fn write_all(&mut self, spares_too: bool) -> Vec<usize> {
        let mut started: Vec<(usize, Vec<Ticket>)> = Vec::new();
        for position in self.members.positions() {
            let disk = &self.members[position];
            let is_told = spares_too || disk.state != DiskState::Spare;
            if !disk.is_faulty() && is_told {
                let tickets = self.start_write(position);
                started.push((position, tickets));
            }
        }
        let mut failed = Vec::new();
        for (position, tickets) in started {
            match self.io.wait_for_all(&tickets) {
                true => self.members[position].bad_blocks_changed = false,
                false => failed.push(position),
            }
        }
        failed
    }

    fn start_write(&mut self, position: usize) -> Vec<Ticket> {
        let common = &self.common;
        let disk = &mut self.members[position];
        disk.take_common(common);
        let log = disk.bad_block_log().filter(|_| disk.bad_blocks_changed);
        let mut tickets = Vec::new();
        if let Some(sector) = log {
            let bytes = disk.whole_blocks(disk.bad_blocks.to_bytes().to_vec());
            tickets.push(self.io.start_write(disk.index, sector, &bytes));
        }
        let bytes = disk.whole_blocks(disk.superblock.to_bytes());
        let sector = disk.superblock.super_offset;
        tickets.push(self.io.start_write(disk.index, sector, &bytes));
        tickets
    }

    /// Write the superblock of one device, whose list of bad blocks has changed. False if it did not
    /// take it.
    pub(super) fn write_superblock_of(&mut self, position: usize) -> bool {
        let tickets = self.start_write(position);
        let is_written = self.io.wait_for_all(&tickets);
        self.members[position].bad_blocks_changed &= !is_written;
        is_written
    }
}

impl Disk {
    /// Bring the superblock up to date, with what all members share.
    fn take_common(&mut self, common: &Superblock) {
        self.update_superblock();
        let own = &mut self.superblock;
        (own.events, own.utime, own.resync_offset) =
            (common.events, common.utime, common.resync_offset);
        (own.raid_disks, own.size) = (common.raid_disks, common.size);
        own.roles.clone_from(&common.roles);
        let of_array = common.feature_map & Features::OF_ARRAY;
        own.feature_map = own.feature_map.difference(Features::OF_ARRAY) | of_array;
    }
}
