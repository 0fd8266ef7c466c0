//! Faults of members, as contexts report them.

use super::{ArrayEvent, Failed, Manager, byte_of};
use crate::engine::{Fault, Report};
use crate::layout::STRIPE_SECTORS;
use drystone_core::clock::Ns;

/// The pause before a write for which a member had no room is sent again.
const ROOM_PAUSE_NS: Ns = 1_000_000_000;

impl Manager {
    pub(super) fn take_reports(&mut self) {
        let reports = self.shared.take_reports();
        let (no_room, others): (Vec<Report>, _) =
            reports.into_iter().partition(|report| report.fault == Fault::NoRoom);
        no_room.iter().for_each(|report| self.await_room(report));
        if others.is_empty() {
            return;
        }
        for report in others {
            self.take_report(&report);
        }
        if self.members.is_changed() && !self.read_only {
            self.write_superblocks();
        }
        self.publish();
        // Contexts see at once how far a member is rebuilt. They must see its bad blocks up to
        // there before that.
        self.shared.pass_turns(self.io.ctx.locks());
    }

    fn take_report(&mut self, report: &Report) {
        let Some(position) = self.members.find(report.number) else { return };
        if self.members[position].is_faulty() {
            return;
        }
        match report.fault {
            Fault::Corrected => {
                let corrected = &mut self.members[position].corrected;
                *corrected = corrected.saturating_add(STRIPE_SECTORS as u32);
            }
            Fault::Write => {
                self.members[position].write_error = true;
                self.record_bad_block(position, report);
            }
            Fault::MadeGood => self.note_good_block(position, report.sector),
            Fault::Log => self.members.fail(position, Failed::Log),
            Fault::Flush => self.members.fail(position, Failed::Flush),
            Fault::Gone => self.members.fail(position, Failed::Gone),
            Fault::Lost => self.record_bad_block(position, report),
            Fault::NoRoom => {}
        }
    }

    /// Note that a member has no room: the write is sent again after a pause.
    fn await_room(&mut self, report: &Report) {
        if let Some(position) = self.members.find(report.number) {
            let disk = &mut self.members[position];
            disk.was_full = true;
            // The event is emitted once, however often the write is sent again.
            if !std::mem::replace(&mut disk.lacks_room, true) {
                let member = disk.name.clone();
                self.members.emit(ArrayEvent::NoRoom(member));
            }
            self.room_look.get_or_insert(self.io.ctx.set().clock().now() + ROOM_PAUSE_NS);
        }
    }

    /// Have the writes that wait for room sent again, when the pause is over.
    pub(super) fn look_for_room(&mut self, now: Ns) -> Option<Ns> {
        let at = self.room_look?;
        if now < at {
            return Some(at);
        }
        // A write that fails again is reported before the next call; without a report the member
        // has room.
        for disk in self.members.iter_mut() {
            disk.lacks_room = std::mem::take(&mut disk.was_full);
        }
        let is_any = self.members.iter().any(|disk| disk.lacks_room);
        self.room_look = is_any.then_some(now + ROOM_PAUSE_NS);
        self.publish();
        self.room_look
    }

    /// Put a block that a member could not write or read on its bad block list. If the list cannot
    /// take it, the member fails.
    fn record_bad_block(&mut self, position: usize, report: &Report) {
        if self.read_only {
            // A read-only array records nothing, and the member's other blocks are still readable.
            return;
        }
        let disk = &mut self.members[position];
        let start = disk.superblock.data_offset + report.sector;
        let (is_write, byte) = (report.fault == Fault::Write, byte_of(start));
        let mut list = (*disk.bad_blocks).clone();
        let has_log = disk.bad_block_log().is_some();
        if !has_log || list.add(start..start + STRIPE_SECTORS).is_err() {
            let why = if is_write { Failed::Write(byte) } else { Failed::Read(byte) };
            return self.members.fail(position, why);
        }
        if list == *disk.bad_blocks {
            return;
        }
        disk.bad_blocks = list.into();
        disk.bad_blocks_changed = true;
        let member = disk.name.clone();
        match self.write_superblock_of(position) {
            true => self.members.emit(ArrayEvent::BadBlocks { member, byte, is_write, more: 0 }),
            false => self.members.fail(position, Failed::Superblock),
        }
    }

    /// Take a block off the list of a member that has written it (Linux `R5_MadeGood`). After a
    /// write error of the member nothing is taken off: a later write to this block may have failed,
    /// or may have been left out because of the list.
    fn note_good_block(&mut self, position: usize, sector: u64) {
        let disk = &mut self.members[position];
        let start = disk.superblock.data_offset + sector;
        let mut list = (*disk.bad_blocks).clone();
        let stays = disk.write_error || self.read_only;
        // If the list has no room for the parts of a range that are left, it stays as it is.
        if stays || list.clear(start..start + STRIPE_SECTORS).is_err() {
            return;
        }
        if list == *disk.bad_blocks {
            return;
        }
        disk.bad_blocks = list.into();
        disk.bad_blocks_changed = true;
        if !self.write_superblock_of(position) {
            self.members.fail(position, Failed::Superblock);
        }
    }
}
