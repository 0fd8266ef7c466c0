//! What becomes of members that do not do what they should.

use super::Manager;
use crate::array::disk::DiskState;
use crate::engine::{Fault, Report};
use crate::layout::STRIPE_SECTORS;

impl Manager {
    pub(super) fn take_reports(&mut self) {
        let reports = self.shared.take_reports();
        if reports.is_empty() {
            return;
        }
        for report in reports {
            self.take_report(&report);
        }
        if self.changed && !self.read_only {
            self.write_superblocks();
        }
        self.publish();
    }

    fn take_report(&mut self, report: &Report) {
        let Some(place) = self.disk_of(report.number) else { return };
        if self.disks[place].is_faulty() {
            return;
        }
        match report.fault {
            Fault::Corrected => self.disks[place].corrected += STRIPE_SECTORS as u32,
            Fault::Write => {
                self.disks[place].write_error = true;
                self.write_faults.insert((report.number, report.sector), report.serial);
                self.record_bad_block(place, report.sector);
            }
            Fault::MadeGood => self.note_good_block(place, report),
            Fault::Log => self.fail_disk(place),
            Fault::Lost => self.record_bad_block(place, report.sector),
        }
    }

    /// Put a block that a member does not take, or give, on its list; without one the member fails.
    fn record_bad_block(&mut self, place: usize, sector: u64) {
        if self.read_only {
            // There is no record to be kept, and the member's other blocks can still be had.
            return;
        }
        let disk = &mut self.disks[place];
        let start = disk.superblock.data_offset + sector;
        let mut list = (*disk.bad_blocks).clone();
        let has_log = disk.bad_block_log().is_some();
        if !has_log || list.add(start..start + STRIPE_SECTORS).is_err() {
            return self.fail_disk(place);
        }
        if list == *disk.bad_blocks {
            return;
        }
        disk.bad_blocks = list.into();
        disk.bad_blocks_changed = true;
        if !self.write_superblock_of(place) {
            self.fail_disk(place);
        }
    }

    /// A member has taken a block that is on its list (Linux `R5_MadeGood`). What is older than a write
    /// that failed there says nothing any more.
    fn note_good_block(&mut self, place: usize, report: &Report) {
        let failed = self.write_faults.get(&(report.number, report.sector));
        let disk = &mut self.disks[place];
        let start = disk.superblock.data_offset + report.sector;
        let mut list = (*disk.bad_blocks).clone();
        let is_old = failed.is_some_and(|serial| *serial > report.serial);
        // A list with no room for what is left of a range stays as it is.
        if is_old || self.read_only || list.clear(start..start + STRIPE_SECTORS).is_err() {
            return;
        }
        if list == *disk.bad_blocks {
            return;
        }
        disk.bad_blocks = list.into();
        disk.bad_blocks_changed = true;
        if !self.write_superblock_of(place) {
            self.fail_disk(place);
        }
    }

    /// The device is used no longer. It is on record only when the superblocks have been written.
    pub(super) fn fail_disk(&mut self, place: usize) {
        let disk = &mut self.disks[place];
        let before = disk.state;
        disk.state = DiskState::Faulty(before.role());
        if let DiskState::InSync(role) | DiskState::Rebuilding(role) = before {
            // Whoever was to take its place has it now.
            let mut others = self.disks.iter_mut();
            let next = others.find(|disk| disk.state == DiskState::Replacement(role));
            next.into_iter().for_each(|disk| disk.state = DiskState::Rebuilding(role));
        }
        self.changed = true;
        // Who is left to be rebuilt is seen anew.
        self.interrupt_rebuild();
    }
}
