//! The records of an array on its members: superblocks, the write-intent bitmap, empty partial
//! parity logs.
//!
//! Invariants:
//! * Superblocks are never newer than the state that they rely on: before they are written, members
//!   are flushed, and the bitmap and the logs are written.
//! * A member that fails a write is marked as failed, and the others record that before the call
//!   returns.
//! * No member is left two events behind: an assembly after a crash would not accept it.

use super::members::Members;
use super::safe_mode::Record;
use crate::array::bitmap::BitmapStorage;
use crate::array::disk::{Disk, DiskState};
use crate::array::event::Failed;
use crate::array::io::{Io, Ticket};
use crate::array::options::WallClock;
use crate::array::ppl;
use crate::engine::Shared;
use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::superblock::{CLEAN, DevRole, Features, Superblock};
use drystone_core::Bio;
use drystone_core::clock::Ns;
use drystone_core::primitive::Ordering::*;
use std::sync::Arc;

/// The devices that records are written to, and the state that is recorded.
pub(super) struct Target<'a> {
    pub(super) io: &'a mut Io,
    pub(super) members: &'a mut Members,
    pub(super) shared: &'a Shared,
    pub(super) record: Record,
}

/// See the module's text.
pub(super) struct Records {
    /// The fields that all superblocks share.
    common: Arc<Superblock>,
    bitmap: Option<BitmapStorage>,
    /// The last update only recorded the array as dirty, so the count of events may go back by one
    /// (`can_decrease_events`).
    can_decrease_events: bool,
    wall_clock: WallClock,
    /// The time of the last update.
    updated_ns: Ns,
}

impl Records {
    pub(super) fn new(
        common: Superblock,
        bitmap: Option<BitmapStorage>,
        wall_clock: WallClock,
    ) -> Self {
        let common = Arc::new(common);
        Records { common, bitmap, can_decrease_events: false, wall_clock, updated_ns: 0 }
    }

    /// The fields that all superblocks share.
    pub(super) fn common(&self) -> &Arc<Superblock> {
        &self.common
    }

    pub(super) fn bitmap(&self) -> Option<&BitmapStorage> {
        self.bitmap.as_ref()
    }

    pub(super) fn bitmap_mut(&mut self) -> Option<&mut BitmapStorage> {
        self.bitmap.as_mut()
    }

    pub(super) fn bitmap_header(&self) -> Option<&BitmapHeader> {
        self.bitmap.as_ref().map(BitmapStorage::header)
    }

    /// The time of the last update.
    pub(super) fn updated_ns(&self) -> Ns {
        self.updated_ns
    }

    /// Record the present state on all devices that have not failed; durable when this returns. A
    /// device that fails the write is marked as failed, which is recorded too. True if one failed:
    /// then a configuration without it must be published.
    pub(super) fn write(&mut self, to: &mut Target<'_>) -> bool {
        let faulty = to.members.faulty();
        self.bring_level(to);
        let (mut written, mut is_lower) = (self.common.events, false);
        loop {
            // If some member has got an update that failed on another, the next update gets a new
            // count of events. If no member has got it, the count is used again: after a crash, a
            // member that is two events behind is not accepted.
            self.change_common().events = written;
            // Data must be durable on all members before the superblock of any member calls it
            // good.
            let (mut failed, mut why) = (to.flush_if_better(), Failed::Flush);
            if failed.is_empty() {
                let spares_too = self.next_events(to);
                let events = self.common.events;
                if let Some(bitmap) = &mut self.bitmap {
                    bitmap.note_events(events);
                }
                // The bitmap must not be older than the superblocks.
                if !self.write_bitmap(to) || !to.write_empty_logs() {
                    continue;
                }
                self.update_common(to);
                (failed, why) = (self.write_all(to, spares_too), Failed::Superblock);
                // The count may have gone back by one, and some member may keep the higher count.
                // Then the count goes up by one, and once more after all members have it. So a
                // member that failed is older than the others, and none is two behind.
                is_lower |= self.common.events < written && !failed.is_empty();
                written = self.common.events;
            }
            if failed.is_empty() && !std::mem::take(&mut is_lower) {
                break;
            }
            for position in failed {
                to.members.fail(position, why);
            }
        }
        to.members.mark_recorded();
        self.updated_ns = to.io.ctx.set().clock().now();
        to.members.faulty() > faulty
    }

    /// Write the last update to members that a crash kept from it, before the next update. After a
    /// second crash they would be two events behind, and would not be accepted.
    fn bring_level(&mut self, to: &mut Target<'_>) {
        let is_behind = |disk: &Disk| {
            disk.state.role().is_some()
                && !disk.is_faulty()
                && disk.superblock.events < self.common.events
        };
        let behind: Vec<usize> =
            to.members.positions().filter(|position| is_behind(&to.members[*position])).collect();
        if behind.is_empty() {
            return;
        }
        // Data that this update calls durable may not be durable on these members.
        let failed = to.flush_members();
        failed.iter().for_each(|position| to.members.fail(*position, Failed::Flush));
        let behind = behind.into_iter().filter(|position| !failed.contains(position));
        let started: Vec<_> =
            behind.map(|position| (position, self.start_write(to, position))).collect();
        for (position, tickets) in started {
            if !to.io.wait_for_all(&tickets) {
                to.members.fail(position, Failed::Superblock);
            }
        }
    }

    /// Count the update. False if the spares need not get it: it only records the array as clean or
    /// dirty, and the change back will undo the count (Linux `md_update_sb`).
    fn next_events(&mut self, to: &Target<'_>) -> bool {
        let only_record = !to.members.is_changed() && !to.members.is_degraded();
        let is_clean = to.record == Record::Clean && to.shared.fits_below.load(Acquire) == CLEAN;
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

    fn update_common(&mut self, to: &Target<'_>) {
        let fits_below = to.shared.fits_below.load(Acquire);
        let has_logs = to.shared.conf().ppl.is_some();
        let common = Arc::make_mut(&mut self.common);
        // Any stripe may be under write, so parity may not fit anywhere.
        common.resync_offset = match to.record {
            Record::Clean => fits_below,
            // The logs cover the stripes that are being written, but not those that the resync has
            // yet to correct.
            _ if has_logs && fits_below != CLEAN => ppl::RESYNC_PENDING,
            Record::Dirty | Record::Settling(_) => 0,
        };
        common.utime = (self.wall_clock)();
        let roles = &mut common.roles;
        // A missing device is recorded as no member.
        roles.fill(DevRole::Spare.number());
        for disk in to.members.iter() {
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

    /// Write all superblocks at once. Returns the positions of the devices that failed the write.
    fn write_all(&mut self, to: &mut Target<'_>, spares_too: bool) -> Vec<usize> {
        let mut started: Vec<(usize, Vec<Ticket>)> = Vec::new();
        for position in to.members.positions() {
            let disk = &to.members[position];
            let is_told = spares_too || disk.state != DiskState::Spare;
            if !disk.is_faulty() && is_told {
                let tickets = self.start_write(to, position);
                started.push((position, tickets));
            }
        }
        let mut failed = Vec::new();
        for (position, tickets) in started {
            match to.io.wait_for_all(&tickets) {
                true => to.members[position].bad_blocks_changed = false,
                false => failed.push(position),
            }
        }
        failed
    }

    fn start_write(&mut self, to: &mut Target<'_>, position: usize) -> Vec<Ticket> {
        let common = &self.common;
        let disk = &mut to.members[position];
        disk.take_common(common);
        let log = disk.bad_block_log().filter(|_| disk.bad_blocks_changed);
        let mut tickets = Vec::new();
        if let Some(sector) = log {
            let bytes = disk.whole_blocks(disk.bad_blocks.to_bytes().to_vec());
            tickets.push(to.io.start_write(disk.index, sector, &bytes));
        }
        let bytes = disk.whole_blocks(disk.superblock.to_bytes());
        let sector = disk.superblock.super_offset;
        tickets.push(to.io.start_write(disk.index, sector, &bytes));
        tickets
    }

    /// Write the superblock of one device, whose bad block list has changed. False if the write
    /// failed.
    pub(super) fn write_one(&mut self, to: &mut Target<'_>, position: usize) -> bool {
        let tickets = self.start_write(to, position);
        let is_written = to.io.wait_for_all(&tickets);
        to.members[position].bad_blocks_changed &= !is_written;
        is_written
    }

    /// Write the changed pages of the bitmap to all devices with a role; durable when this returns.
    /// False if a device failed the write, and is marked as failed.
    pub(super) fn write_bitmap(&mut self, to: &mut Target<'_>) -> bool {
        let mut failed = Vec::new();
        for round in 0..2 {
            let started = self.start_bitmap_writes(to, round, &failed);
            for (position, tickets) in started {
                if !to.io.wait_for_all(&tickets) {
                    failed.push(position);
                }
            }
        }
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.set_written();
        }
        to.members.iter_mut().for_each(|disk| disk.wants_bitmap = false);
        failed.iter().for_each(|position| to.members.fail(*position, Failed::Bitmap));
        failed.is_empty()
    }

    fn start_bitmap_writes(
        &mut self,
        to: &mut Target<'_>,
        round: usize,
        failed: &[usize],
    ) -> Vec<(usize, Vec<Ticket>)> {
        let mut started = Vec::new();
        let Some(bitmap) = &mut self.bitmap else { return started };
        let disks = to.members.iter().enumerate();
        let disks =
            disks.filter(|(position, disk)| !disk.is_faulty() && !failed.contains(position));
        for (position, disk) in disks {
            let Some(sector) = disk.bitmap_sector() else { continue };
            if disk.state == DiskState::Spare && !disk.wants_bitmap {
                continue;
            }
            let runs = &bitmap.rounds(disk.wants_bitmap)[round];
            let write =
                |run| to.io.start_write_at(disk.index, sector, run, bitmap.bytes(disk, run));
            started.push((position, runs.iter().map(write).collect()));
        }
        started
    }
}

impl Target<'_> {
    /// Flush all members at once, unless the update only records a worse state. Returns the
    /// positions of those that failed.
    fn flush_if_better(&mut self) -> Vec<usize> {
        if !self.members.is_changed() && self.record == Record::Dirty {
            return Vec::new();
        }
        self.flush_members()
    }

    /// Flush all members at once. Returns the positions of those that failed.
    pub(super) fn flush_members(&mut self) -> Vec<usize> {
        let is_used = |disk: &Disk| disk.state.role().is_some();
        let positions: Vec<_> =
            self.members.positions().filter(|position| is_used(&self.members[*position])).collect();
        let start = |position: &usize| self.io.start(self.members[*position].index, Bio::flush());
        let tickets: Vec<_> = positions.iter().map(start).collect();
        let flushed = tickets.into_iter().map(|ticket| self.io.wait_for(ticket).status.is_ok());
        positions.iter().zip(flushed).filter(|(_, ok)| !ok).map(|(position, _)| *position).collect()
    }

    /// Write an empty partial parity log to new members, and at the start to all; durable when this
    /// returns. False if a device failed the write, and is marked as failed.
    fn write_empty_logs(&mut self) -> bool {
        let Some(conf) = self.shared.conf().ppl else { return true };
        let mut started: Vec<(usize, Vec<Ticket>)> = Vec::new();
        for (position, disk) in self.members.iter_mut().enumerate() {
            if disk.state.role().is_some() {
                started.push((position, disk.start_log(self.io, &conf)));
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
}

impl Disk {
    /// Update the superblock, with the fields that all members share.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::array::tests::stand::Stand;
    use crate::engine::IN_SYNC;
    use crate::ids::Role;
    use crate::layout::Level;
    use drystone_core::primitive::Ordering::Relaxed;

    /// Two members of a RAID-5 array, with their records.
    struct Bench {
        stand: Stand,
        io: Io,
        members: Members,
        shared: Arc<Shared>,
        records: Records,
    }

    impl Bench {
        fn new() -> Self {
            let mut stand = Stand::new(2);
            stand.create(Level::Raid5, true);
            let (ctx, candidates, assembly) = stand.look();
            let locks = ctx.locks().clone();
            let mut io = Io::new(ctx);
            let disks = (0..2).map(|number: usize| {
                let Ok((_, superblock)) = &candidates[number].found else { panic!("none") };
                let state = (DiskState::InSync(Role(number as u32)), IN_SYNC);
                Disk::open(&mut io, &stand.devices[number], superblock, state, None).unwrap()
            });
            let disks: Vec<_> = disks.collect();
            let shared = Shared::new("a", crate::engine::testing::conf(2), &locks);
            let layout = shared.conf().layout;
            let members = Members::new(disks, layout, Arc::new(|_| ()), false);
            let records = Records::new(assembly.unwrap().fresh, None, Arc::new(|| 9));
            Bench { stand, io, members, shared, records }
        }

        /// Write superblocks. True if a device failed by that.
        fn write(&mut self, record: Record) -> bool {
            let (io, members) = (&mut self.io, &mut self.members);
            self.records.write(&mut Target { io, members, shared: &self.shared, record })
        }

        fn events(&self) -> [u64; 2] {
            [0, 1].map(|number: usize| self.stand.memories[number].superblock().events)
        }
    }

    #[test]
    fn a_change_of_the_record_alone_is_taken_back() {
        let mut bench = Bench::new();
        let [before, _] = bench.events();
        bench.members.mark_changed();
        assert!(!bench.write(Record::Clean) && !bench.members.is_changed());
        assert_eq!(bench.events(), [before + 1; 2], "a change counts");
        assert!(!bench.write(Record::Dirty));
        let dirty = bench.stand.memories[1].superblock();
        assert_eq!((bench.events(), dirty.resync_offset, dirty.utime), ([before + 2; 2], 0, 9));
        assert!(!bench.write(Record::Clean));
        let clean = bench.stand.memories[1].superblock();
        assert_eq!((bench.events(), clean.resync_offset), ([before + 1; 2], CLEAN));
    }

    #[test]
    fn a_device_that_takes_no_superblock_has_failed_on_all_others() {
        let mut bench = Bench::new();
        let [before, _] = bench.events();
        bench.stand.memories[1].is_dead.store(true, Relaxed);
        assert!(bench.write(Record::Dirty), "a device has failed by that");
        assert!(bench.members[1].is_faulty() && !bench.members.is_changed());
        let left = bench.stand.memories[0].superblock();
        assert_eq!(left.role_of(bench.members[1].number().0), DevRole::Faulty);
        assert!(left.events > before && bench.events()[1] == before);
        assert!(!bench.write(Record::Dirty), "once");
    }
}
