//! All disk faults since a start that users of the disks may see as errors.
//!
//! Invariants:
//! * Counts begin at the last start, or when a file was reopened.
//! * Only a fault of a disk that a target lies on can explain an error of the target; no fault
//!   explains an error of an array.

use super::flushes::{Flush, Flushes, Outcome};
use super::plan::Target;
use super::progress::Progress;
use crate::disk::{Disk, DiskCounts};
use crate::world::World;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

/// The counts of faults that a user may see as an error of any sector.
const HARD: [&str; 12] = [
    "cancelled",
    "cancels_refused",
    "read_errors",
    "write_errors",
    "partial_writes",
    "flush_errors",
    "device_read_errors",
    "device_write_errors",
    "no_space",
    "no_device",
    "vanishes",
    "cuts",
];

/// The counts of faults that only a bad sector causes.
const BAD: [&str; 2] = ["bad_reads", "bad_writes"];

/// See the module's text.
pub(super) struct DiskFaults {
    world: World,
    /// Blocks that failed flushes have dropped, by disk.
    dropped: RefCell<Vec<u64>>,
    /// The counts of the disks when the stack was started.
    counted: RefCell<Vec<DiskCounts>>,
    flushes: RefCell<Flushes>,
    /// Sectors of disks that have been bad.
    spoilt: RefCell<BTreeSet<(usize, u64)>>,
}

impl DiskFaults {
    /// A record of the world's disks, which have no faults yet.
    pub(super) fn new(world: World) -> Self {
        let disks = world.disks();
        DiskFaults {
            world,
            dropped: RefCell::new(vec![0; disks]),
            counted: RefCell::new(vec![DiskCounts::default(); disks]),
            flushes: RefCell::default(),
            spoilt: RefCell::default(),
        }
    }

    /// A start begins: the counts so far belong to earlier starts.
    pub(super) fn restart_counts(&self) {
        *self.counted.borrow_mut() =
            (0..self.world.disks()).map(|disk| self.counts(disk)).collect();
        self.flushes.borrow_mut().start();
    }

    /// A sector of a disk becomes bad.
    pub(super) fn spoil(&self, disk: usize, sector: u64) {
        self.spoilt.borrow_mut().insert((disk, sector));
    }

    /// True if a failed flush of the disk has dropped blocks since the last call.
    pub(super) fn take_dropped(&self, disk: usize) -> bool {
        let dropped = self.counts(disk).dropped_blocks;
        std::mem::replace(&mut self.dropped.borrow_mut()[disk], dropped) != dropped
    }

    /// True if a fault explains an error of these sectors of a target.
    pub(super) fn may_fail(&self, target: &Target, range: Range<u64>) -> bool {
        let is_bad = || self.faults_of(target, &BAD) > 0 && self.has_been_bad(target, range);
        target.redundancy.is_none() && (self.faults_of(target, &HARD) > 0 || is_bad())
    }

    /// The number of times that the disks of a target have done one of `which` since this start.
    fn faults_of(&self, target: &Target, which: &[&str]) -> u64 {
        let before = self.counted.borrow();
        let since = |disk: usize| {
            let counts = self.counts(disk);
            let counts = counts.each().zip(before[disk].each());
            let counts = counts.filter(|((name, _), _)| which.contains(name));
            counts.map(|((_, now), (_, before))| now - before).sum::<u64>()
        };
        target.disks.iter().map(|disk| since(*disk)).sum()
    }

    /// True if one of these sectors of a target has been bad, or may have been.
    fn has_been_bad(&self, target: &Target, range: Range<u64>) -> bool {
        let Some((disk, at)) = target.lies_at else { return true };
        // A durable operation also fails once another FUA write of the disk has failed, at any
        // sector.
        let is_durable = range.end == u64::MAX;
        let from = (disk, if is_durable { 0 } else { at.saturating_add(range.start) });
        let to = (disk, at.saturating_add(range.end));
        self.spoilt.borrow().range(from..to).next().is_some()
    }

    /// Judges a flush that has ended.
    pub(super) fn judge_flush(&self, flush: &Flush) -> Result<(), &'static str> {
        let now = self.counts(flush.disk);
        let counted = self.counted.borrow();
        let excuses = [&HARD[..], &BAD].concat();
        self.flushes.borrow_mut().ended(flush, [&now, &counted[flush.disk]], &excuses)
    }

    /// Reopens the file of a disk by `reopen`, which returns the outcome.
    pub(super) fn reopen(
        &self,
        disk: usize,
        progress: &Progress,
        reopen: impl FnOnce() -> Outcome,
    ) {
        let counted = self.counts(disk);
        let known = self.flushes.borrow_mut().begin_reopen(disk);
        let outcome = reopen();
        let mut flushes = self.flushes.borrow_mut();
        match outcome {
            Outcome::Reopened => flushes.reopened(disk, progress.begun(), Some(counted)),
            Outcome::Doubtful => flushes.reopened(disk, progress.begun(), None),
            Outcome::Refused => flushes.stays(disk, known),
        }
    }

    fn counts(&self, disk: usize) -> DiskCounts {
        self.world.disk(disk, |disk: &mut Disk| *disk.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::super::redundancy::Redundancy;
    use super::super::testing::{operate, target, world};
    use super::*;
    use crate::disk::{DiskOp, EIO};
    use drystone_core::Status;

    fn faults() -> DiskFaults {
        DiskFaults::new(world(2))
    }

    impl DiskFaults {
        fn set(&self, disk: usize, change: impl FnOnce(&mut crate::disk::Faults)) {
            self.world.disk(disk, |disk| change(disk.faults()));
        }

        /// The disk fails to read a sector.
        fn fail_read(&self, disk: usize, sector: u64) {
            let read = DiskOp::Read { offset: sector * 512, length: 512 };
            assert_eq!(operate(&self.world, disk, read), -EIO);
        }

        /// The disk fails to flush.
        fn fail_flush(&self, disk: usize) {
            self.set(disk, |faults| faults.flush_error_ppm = 1_000_000);
            assert_eq!(operate(&self.world, disk, DiskOp::Flush), -EIO);
        }

        fn may_fail_anywhere(&self, disks: &[usize]) -> bool {
            self.may_fail(&target("d", disks), 0..64)
        }

        /// True if a flush of disk 0 may end with `status` as I/O `number`, the last so far.
        fn may_end(&self, number: u64, status: Status) -> bool {
            let flush = Flush { target: 0, disk: 0, number, status, begun: number };
            self.judge_flush(&flush).is_ok()
        }
    }

    #[test]
    fn an_error_has_a_reason_in_the_disks_of_its_target_only() {
        let faults = faults();
        faults.set(1, |faults| faults.reads_fail = true);
        assert!(!faults.may_fail_anywhere(&[1]), "it has done nothing yet");
        faults.fail_read(1, 0);
        assert!(faults.may_fail_anywhere(&[1]) && faults.may_fail_anywhere(&[0, 1]));
        assert!(!faults.may_fail_anywhere(&[0]));
    }

    #[test]
    fn an_array_makes_up_for_its_disks() {
        let faults = faults();
        faults.set(0, |faults| faults.reads_fail = true);
        faults.fail_read(0, 0);
        let redundancy = Some(Redundancy { parity: 1, data: 1, chunk: 8, logged: false });
        let array = Target { redundancy, ..target("a", &[0, 1]) };
        assert!(faults.may_fail_anywhere(&[0, 1]) && !faults.may_fail(&array, 0..64));
    }

    #[test]
    fn errors_from_before_a_start_are_no_reason() {
        let faults = faults();
        faults.set(0, |faults| faults.reads_fail = true);
        faults.fail_read(0, 0);
        faults.restart_counts();
        assert!(!faults.may_fail_anywhere(&[0]));
        faults.fail_read(0, 0);
        assert!(faults.may_fail_anywhere(&[0]));
    }

    #[test]
    fn a_bad_sector_is_a_reason_where_it_is() {
        let faults = faults();
        let at_16 = Target { lies_at: Some((0, 16)), ..target("v", &[0]) };
        faults.set(0, |faults| faults.bad_reads.extend([3, 20]));
        faults.spoil(0, 20);
        assert!(!faults.may_fail(&at_16, 4..5), "the disk has not met it");
        faults.fail_read(0, 20);
        assert!(faults.may_fail(&at_16, 4..5) && faults.may_fail(&at_16, 0..8));
        assert!(!faults.may_fail(&at_16, 0..4) && !faults.may_fail(&at_16, 5..8));
        let elsewhere = Target { lies_at: None, ..target("v", &[0]) };
        assert!(faults.may_fail(&elsewhere, 0..1), "nobody knows where it is");
    }

    /// A bad sector of the disk before the target: another FUA write may have met it.
    #[test]
    fn a_durable_write_fails_by_any_bad_sector_of_its_disk() {
        let faults = faults();
        let at_16 = Target { lies_at: Some((0, 16)), ..target("v", &[0]) };
        faults.set(0, |faults| _ = faults.bad_reads.insert(3));
        faults.spoil(0, 3);
        faults.fail_read(0, 3);
        assert!(faults.may_fail(&at_16, 0..u64::MAX) && !faults.may_fail(&at_16, 0..1000));
    }

    #[test]
    fn dropped_blocks_are_told_once_and_of_their_disk() {
        let faults = faults();
        faults.set(1, |faults| faults.flush_error_drops = true);
        let write = || DiskOp::Write { offset: 0, data: vec![1; 4096], fua: false };
        for round in 0..2 {
            operate(&faults.world, 1, write());
            faults.fail_flush(1);
            assert!(!faults.take_dropped(0) && faults.take_dropped(1), "round {round}");
            assert!(!faults.take_dropped(1), "round {round}");
        }
    }

    #[test]
    fn a_failed_flush_lasts_until_its_file_is_reopened() {
        let (faults, progress) = (faults(), Progress::new(World::new(false), None));
        faults.fail_flush(0);
        assert!(faults.may_end(1, Status::IoError) && !faults.may_end(2, Status::Ok));
        faults.reopen(0, &progress, || Outcome::Refused);
        assert!(!faults.may_end(3, Status::Ok));
        faults.reopen(0, &progress, || Outcome::Reopened);
        assert!(faults.may_end(4, Status::Ok));
        assert!(!faults.may_end(5, Status::IoError), "nothing has failed since");
    }

    /// The file may be open again before the call that reopens it returns.
    #[test]
    fn an_error_while_a_file_is_reopened_counts_as_since() {
        let (faults, progress) = (faults(), Progress::new(World::new(false), None));
        faults.reopen(0, &progress, || {
            faults.fail_flush(0);
            Outcome::Reopened
        });
        assert!(faults.may_end(1, Status::IoError));
    }

    #[test]
    fn a_start_forgets_failed_flushes() {
        let faults = faults();
        faults.fail_flush(0);
        assert!(faults.may_end(1, Status::IoError) && !faults.may_end(2, Status::Ok));
        faults.restart_counts();
        assert!(faults.may_end(3, Status::Ok));
    }
}
