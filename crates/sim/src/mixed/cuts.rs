//! Truncation of the files of disks while a stack uses them.
//!
//! Invariants:
//! * A disk's file is cut off at most once between two starts.
//! * A member is cut off only if the array makes up for its loss; the member counts as hurt from
//!   before the cut.
//! * No file is cut when a start opens it: [`Run::replace_cut_off`] gives each its full length.

use super::array::Admin;
use super::control::Control;
use super::life::Life;
use super::run::Run;
use crate::disk::UNIT;
use drystone_core::clock::Ns;
use drystone_raid::array::{Command, DiskState};
use fastrand::Rng;

/// The longest wait for the array to notice a cut member.
const LOOK_NS: Ns = 200_000_000;
const SECTOR: u64 = 512;
/// Sectors at the beginning of a disk that hold all its used parts.
const USED_SECTORS: u64 = 600;

impl Run {
    /// Truncate a disk's file at a random unit below so many sectors. False if it is cut already.
    fn cut_off(&self, disk: usize, sectors: u64, rng: &mut Rng) -> bool {
        self.world.disk(disk, |disk| {
            if disk.cut_at().is_some() {
                return false;
            }
            let units = (sectors * SECTOR).min(disk.size()) / UNIT;
            disk.cut_off(rng.u64(1..units) * UNIT);
            true
        })
    }

    /// Repairs a disk whose file was cut off, before a start. A member of an array is replaced by
    /// an empty disk of the same size. Another file gets its length back, with zeroes behind the
    /// cut.
    pub(super) fn replace_cut_off(&self, disk: usize) {
        let Some(end) = self.world.disk(disk, |disk| disk.cut_at()) else { return };
        self.world.disk(disk, |disk| disk.restore_length());
        if self.has_array() {
            let size = self.world.disk(disk, |disk| disk.size());
            self.world.disk(disk, |disk| disk.poke(0, &vec![0; size as usize]));
            self.health.wipe(disk);
            // The other superblocks may not say yet that the member has failed.
            return self.health.begin_adding();
        }
        let mut oracles = self.oracles.borrow_mut();
        for (oracle, target) in oracles.iter_mut().zip(&self.plan.targets) {
            if let Some((of, at)) = target.lies_at
                && of == disk
            {
                let first = (end / SECTOR).saturating_sub(at);
                oracle.permit_anything(first, oracle.sectors());
            }
        }
    }
}

impl Life {
    /// Cuts a member's file off. The member fails when the array uses it; if the array does not
    /// meanwhile, this function fails it.
    pub(super) fn cut_off(&mut self) {
        let disk = self.disk();
        let in_sync = |admin: &Admin| {
            let status = admin.status();
            let is_member =
                matches!(Admin::state(&status, disk), Some((DiskState::InSync(_), false)));
            is_member && status.sync.is_none()
        };
        if !in_sync(&self.admin) || !self.admin.hurt_if_spared(disk) {
            return;
        }
        let sectors = self.run.world.disk(disk, |disk| disk.size()) / SECTOR;
        if !self.run.cut_off(disk, sectors, &mut self.rng) {
            return self.admin.heal(disk);
        }
        self.run.world.note(|| format!("the file of disk {disk} is cut off"));
        self.run.counts.borrow_mut().add("array: a member's file is cut off", 1);
        let ns = self.rng.u64(0..LOOK_NS);
        self.run.world.sleep(ns);
        let state = Admin::state(&self.admin.status(), disk);
        let has_failed = matches!(state, Some((DiskState::Faulty(_), _)));
        let mut counts = self.run.counts.borrow_mut();
        counts.add("array: a member failed that was cut off", u64::from(has_failed));
        drop(counts);
        if !has_failed {
            self.order("fail", Command::Fail(Admin::name(disk)));
        }
    }
}

impl Control {
    /// Cuts a disk's file off; I/O behind the cut fails from now on.
    pub(super) fn cut_off(&mut self) {
        let disk = self.disk();
        let run = self.run.clone();
        if run.cut_off(disk, USED_SECTORS, self.rng()) {
            self.count("a file is cut off");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DISK_BYTES, SECTORS, array, run_of, two_disks};
    use super::*;

    const ONES: [u8; 512] = [1; 512];

    fn cut_at(run: &Run, disk: usize) -> Option<u64> {
        run.world.disk(disk, |disk| disk.cut_at())
    }

    /// Whether a sector of a target may hold anything.
    fn is_spoilt(run: &Run, target: usize, sector: u64) -> bool {
        let mut oracle = run.oracles.borrow()[target].clone();
        let id = oracle.read_begins(sector..sector + 1);
        oracle.read_ends_ok(id, &ONES).is_ok()
    }

    #[test]
    fn a_file_is_cut_off_once_and_within_what_is_used() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..20 {
            let run = run_of(two_disks());
            assert!(run.cut_off(1, USED_SECTORS, &mut rng));
            let cut = cut_at(&run, 1).expect("it is");
            assert!(cut > 0 && cut < USED_SECTORS * SECTOR, "{cut}");
            assert!(!run.cut_off(1, USED_SECTORS, &mut rng));
            assert_eq!((cut_at(&run, 0), cut_at(&run, 1)), (None, Some(cut)));
        }
    }

    #[test]
    fn a_file_has_its_length_again_and_what_was_cut_is_not_known() {
        let run = run_of(two_disks());
        let cut = SECTORS / 2 * SECTOR;
        run.world.disk(1, |disk| disk.cut_off(cut));
        run.replace_cut_off(0);
        run.replace_cut_off(1);
        assert_eq!(run.world.disk(1, |disk| disk.size()), DISK_BYTES);
        assert!(is_spoilt(&run, 1, SECTORS / 2) && !is_spoilt(&run, 1, SECTORS / 2 - 1));
        assert!(!is_spoilt(&run, 0, SECTORS - 1), "a target of another disk");
    }

    #[test]
    fn another_disk_takes_the_place_of_a_member() {
        let run = run_of(array());
        run.world.disk(2, |disk| {
            disk.poke(0, &ONES);
            disk.cut_off(4096);
        });
        run.replace_cut_off(2);
        assert!(run.world.disk(2, |disk| disk.is_blank() && disk.size() == DISK_BYTES));
        assert_eq!(run.health.retain_wiped(|_| false), [2]);
        assert!(run.health.is_adding() && !is_spoilt(&run, 0, SECTORS - 1));
    }
}
