//! Everything that the disks have done since a start and that their users may see as an error.
//!
//! Invariants:
//! * Counts are those since the last start, or since a file was opened again.
//! * An error of a target has a reason only in the disks that it lies on; an array makes up for all
//!   of them.

use super::flushes::{Flush, Flushes, Outcome};
use super::plan::Target;
use super::progress::Progress;
use crate::disk::{Disk, DiskCounts};
use crate::world::World;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

/// The things that a disk does and that its users may see as an error.
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

/// The things that it does only where a sector is bad.
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
    /// Of the disks that the world has, which have done nothing yet.
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

    /// The counts of the disks so far are of former starts from now on.
    pub(super) fn restart_counts(&self) {
        *self.counted.borrow_mut() =
            (0..self.world.disks()).map(|disk| self.counts(disk)).collect();
        self.flushes.borrow_mut().start();
    }

    /// A sector of a disk becomes bad.
    pub(super) fn spoil(&self, disk: usize, sector: u64) {
        self.spoilt.borrow_mut().insert((disk, sector));
    }

    /// True if a failed flush of the disk has dropped blocks since this was asked last.
    pub(super) fn take_dropped(&self, disk: usize) -> bool {
        let dropped = self.counts(disk).dropped_blocks;
        std::mem::replace(&mut self.dropped.borrow_mut()[disk], dropped) != dropped
    }

    /// True if there is a reason for an error of these sectors of a target.
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
        // An operation that has to be durable fails also once another FUA write of the disk has
        // failed, wherever that was.
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

    /// The file of a disk is opened again by `reopen`, which says how that ended.
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
