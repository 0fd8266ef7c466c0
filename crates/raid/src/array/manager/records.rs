//! The records of an array on its members: superblocks, the write-intent bitmap, empty partial
//! parity logs.
//!
//! Invariants:
//! * Superblocks are never newer than what they rely on: members are flushed before them, the
//!   bitmap and the logs are written before them.
//! * A member that does not take a write has failed, and that is put on record on the others before
//!   a write here returns.
//! * No member is left two events behind: it would be a stranger after a crash.

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

/// The devices that records are written to, and what the records follow.
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
    /// The last change of the superblocks only said that the array is dirty, so that the count of
    /// events may go back (`can_decrease_events`).
    can_decrease_events: bool,
    wall_clock: WallClock,
    /// When the superblocks were written last.
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

    /// When the superblocks were written last.
    pub(super) fn updated_ns(&self) -> Ns {
        self.updated_ns
    }

    /// Put on record what is so now, on all devices that have not failed; durable when this
    /// returns. A device that does not take its superblock has failed, which is then put on record
    /// too. True if one has: then contexts must hear of it.
    pub(super) fn write(&mut self, to: &mut Target<'_>) -> bool {
        let faulty = to.members.faulty();
        self.bring_level(to);
        let (mut written, mut is_lower) = (self.common.events, false);
        loop {
            // An update that some members have gets a count that no other update has. One that no
            // member has does not count: a member two events behind is not taken in again after a
            // crash.
            self.change_common().events = written;
            // Data that superblocks call good has to be durable on all members before any of them
            // says so.
            let (mut failed, mut why) = (to.flush_if_better(), Failed::Flush);
            if failed.is_empty() {
                let spares_too = self.next_events(to);
                let events = self.common.events;
                if let Some(bitmap) = &mut self.bitmap {
                    bitmap.note_events(events);
                }
                // The bitmap is never older than the superblocks.
                if !self.write_bitmap(to) || !to.write_empty_logs() {
                    continue;
                }
                self.update_common(to);
                (failed, why) = (self.write_all(to, spares_too), Failed::Superblock);
                // A member with an event that was taken away must not be two behind either: the
                // count goes up by one, and by another one when all have that, so that a member
                // that failed is older than they.
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

    /// Members that a crash kept from the last update of another life get it before there is a next
    /// one: a second crash would leave them two behind, which makes them strangers.
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
        // Data that the update called durable may not be on these.
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

    /// Count the update. False if spares need not hear of it: it says nothing but that the array is
    /// clean, or dirty, which a change back takes away again (Linux `md_update_sb`).
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
        // Stripes that are being written may not fit, wherever they are.
        common.resync_offset = match to.record {
            Record::Clean => fits_below,
            // The logs tell what is being written, and nothing of what the resync has yet to put
            // right.
            _ if has_logs && fits_below != CLEAN => ppl::RESYNC_PENDING,
            Record::Dirty | Record::Settling(_) => 0,
        };
        common.utime = (self.wall_clock)();
        let roles = &mut common.roles;
        // A device that is not there is no member.
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

    /// Write all superblocks at once. The positions of the devices that did not take theirs.
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

    /// Write the superblock of one device, whose list of bad blocks has changed. False if it did
    /// not take it.
    pub(super) fn write_one(&mut self, to: &mut Target<'_>, position: usize) -> bool {
        let tickets = self.start_write(to, position);
        let is_written = to.io.wait_for_all(&tickets);
        to.members[position].bad_blocks_changed &= !is_written;
        is_written
    }

    /// Write what has changed of the bitmap to all devices with a role; durable when this returns.
    /// False if a device did not take it, which has failed then.
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
    /// Flush all members at once, unless nothing gets better. The positions of those that could
    /// not.
    fn flush_if_better(&mut self) -> Vec<usize> {
        if !self.members.is_changed() && self.record == Record::Dirty {
            return Vec::new();
        }
        self.flush_members()
    }

    /// Flush all members at once. The positions of those that could not.
    pub(super) fn flush_members(&mut self) -> Vec<usize> {
        let is_used = |disk: &Disk| disk.state.role().is_some();
        let positions: Vec<_> =
            self.members.positions().filter(|position| is_used(&self.members[*position])).collect();
        let start = |position: &usize| self.io.start(self.members[*position].index, Bio::flush());
        let tickets: Vec<_> = positions.iter().map(start).collect();
        let flushed = tickets.into_iter().map(|ticket| self.io.wait_for(ticket).status.is_ok());
        positions.iter().zip(flushed).filter(|(_, ok)| !ok).map(|(position, _)| *position).collect()
    }

    /// Give new members a partial parity log, and all members an empty one at the start; durable
    /// when this returns. False if a device did not take it, which has failed then.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::tests::stand::Stand;
    use crate::engine::IN_SYNC;
    use crate::ids::Role;
    use crate::layout::Level;
    use drystone_core::primitive::Ordering::Relaxed;

    /// Two members of an array of RAID-5, and how they are written.
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

        /// Writes superblocks. True if a device has failed by that.
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
