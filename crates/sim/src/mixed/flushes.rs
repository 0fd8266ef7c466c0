//! The allowed results of flushes. After a flush has failed none succeeds, until the file is
//! reopened or the stack started again. From then on a flush fails only if its disk has had a fault
//! since.
//!
//! Invariants:
//! * Only flushes of targets on a single disk are judged: for others the failing disk is unknown.
//! * A flush that began before its file was reopened is not judged: the driver may have seen its
//!   end before or after the reopen.

use crate::disk::DiskCounts;
use drystone_core::Status;
use std::collections::BTreeMap;

/// See the module's text.
#[derive(Default)]
pub(super) struct Flushes {
    /// Targets of which a flush has failed, with their disk and the number of I/Os that had begun
    /// by then.
    failed: BTreeMap<usize, (usize, u64)>,
    /// Disks whose file was opened again since the start.
    reopens: BTreeMap<usize, Reopen>,
}

struct Reopen {
    /// I/Os that had begun when the reopen ended.
    begun: u64,
    /// The counts of the disk before the reopen; `None` if failures from before may still show.
    before: Option<DiskCounts>,
}

/// The knowledge of the flushes of one disk.
pub(super) struct Known {
    failed: BTreeMap<usize, (usize, u64)>,
    reopen: Option<Reopen>,
}

/// The outcome of a reopen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The file was reopened, and no earlier failure can show any more.
    Reopened,
    /// The file was reopened, and an earlier failure may still show.
    Doubtful,
    /// The file was not reopened.
    Refused,
}

/// A flush that has ended.
pub(super) struct Flush {
    pub(super) target: usize,
    /// The disk on which the target lies.
    pub(super) disk: usize,
    /// The number of its I/O.
    pub(super) number: u64,
    pub(super) status: Status,
    /// I/Os that have begun by now.
    pub(super) begun: u64,
}

impl Flushes {
    /// A start begins: all earlier flushes are forgotten.
    pub(super) fn start(&mut self) {
        *self = Self::default();
    }

    /// The file of a disk is about to be reopened. Returns the knowledge of its flushes.
    pub(super) fn begin_reopen(&mut self, disk: usize) -> Known {
        let failed = self.failed.extract_if(.., |_, (of, _)| *of == disk).collect();
        Known {
            failed,
            reopen: self.reopens.insert(disk, Reopen { begun: u64::MAX, before: None }),
        }
    }

    /// The reopen was refused: the knowledge from `before` holds again.
    pub(super) fn stays(&mut self, disk: usize, before: Known) {
        self.failed.extend(before.failed);
        match before.reopen {
            Some(reopen) => _ = self.reopens.insert(disk, reopen),
            None => _ = self.reopens.remove(&disk),
        }
    }

    /// The reopen has ended, when `begun` I/Os had begun. `before` has the disk's counts from
    /// before it, or nothing if an earlier failure may still show.
    pub(super) fn reopened(&mut self, disk: usize, begun: u64, before: Option<DiskCounts>) {
        self.reopens.insert(disk, Reopen { begun, before });
    }

    /// Judges a flush. `now` and `start` are the counts of its disk, now and at the start.
    pub(super) fn ended(
        &mut self,
        flush: &Flush,
        [now, start]: [&DiskCounts; 2],
        excuses: &[&str],
    ) -> Result<(), &'static str> {
        let reopen = self.reopens.get(&flush.disk);
        let since = match reopen {
            None => start,
            Some(Reopen { begun, before: Some(before) }) if *begun < flush.number => before,
            Some(_) => return Ok(()),
        };
        let failed = self.failed.get(&flush.target).map(|(_, begun)| *begun);
        let failed_before = failed.is_some_and(|begun| begun < flush.number);
        match flush.status {
            Status::Ok if failed_before => Err("a flush succeeded after one that failed"),
            Status::IoError if grown(now, since, &["flush_errors"]) => {
                self.failed.entry(flush.target).or_insert((flush.disk, flush.begun));
                Ok(())
            }
            Status::IoError if reopen.is_some() && !grown(now, since, excuses) => {
                Err("a flush failed, though its file was opened again and nothing has failed since")
            }
            _ => Ok(()),
        }
    }
}

/// True if one of these counts has grown.
fn grown(now: &DiskCounts, since: &DiskCounts, which: &[&str]) -> bool {
    let mut pairs = now.each().zip(since.each());
    pairs.any(|((name, now), (_, since))| which.contains(&name) && now > since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::{IoError, Ok as Well};

    const EXCUSES: [&str; 2] = ["flush_errors", "write_errors"];

    fn counts(flush_errors: u64, write_errors: u64) -> DiskCounts {
        DiskCounts { flush_errors, write_errors, ..DiskCounts::default() }
    }

    /// True if a flush of the first target may end with `status`, by the counts `now` of its disk.
    fn may(flushes: &mut Flushes, number: u64, status: Status, now: &DiskCounts) -> bool {
        let flush = Flush { target: 0, disk: 3, number, status, begun: number + 2 };
        flushes.ended(&flush, [now, &counts(0, 0)], &EXCUSES).is_ok()
    }

    #[test]
    fn a_failure_lasts_until_the_file_is_reopened() {
        let mut flushes = Flushes::default();
        let failed = counts(1, 0);
        assert!(may(&mut flushes, 1, Well, &counts(0, 0)));
        assert!(may(&mut flushes, 2, IoError, &failed));
        assert!(may(&mut flushes, 4, Well, &failed), "it had begun");
        assert!(!may(&mut flushes, 5, Well, &failed));
        flushes.begin_reopen(3);
        assert!(may(&mut flushes, 6, Well, &failed) && may(&mut flushes, 7, IoError, &failed));
        flushes.reopened(3, 10, Some(failed));
        assert!(may(&mut flushes, 10, IoError, &failed), "it had begun");
        assert!(may(&mut flushes, 11, Well, &failed));
        assert!(!may(&mut flushes, 12, IoError, &failed), "nothing has failed since");
        assert!(may(&mut flushes, 13, IoError, &counts(1, 1)));
        assert!(may(&mut flushes, 14, Well, &counts(1, 1)));
        assert!(may(&mut flushes, 15, IoError, &counts(2, 1)));
        assert!(!may(&mut flushes, 18, Well, &counts(2, 1)), "it lasts again");
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut flushes = Flushes::default();
        let failed = counts(1, 0);
        assert!(may(&mut flushes, 2, IoError, &failed));
        let before = flushes.begin_reopen(3);
        assert!(may(&mut flushes, 5, Well, &failed), "it may be reopened already");
        flushes.stays(3, before);
        assert!(!may(&mut flushes, 6, Well, &failed));
        flushes.begin_reopen(3);
        flushes.reopened(3, 7, Some(failed));
        let before = flushes.begin_reopen(3);
        flushes.stays(3, before);
        assert!(!may(&mut flushes, 8, IoError, &failed), "nothing has failed since");
    }

    #[test]
    fn what_is_not_known_is_not_judged() {
        let mut flushes = Flushes::default();
        flushes.begin_reopen(3);
        flushes.reopened(3, 1, None);
        assert!(may(&mut flushes, 2, IoError, &counts(0, 0)));
        assert!(may(&mut flushes, 5, Well, &counts(1, 0)));
        flushes.start();
        assert!(may(&mut flushes, 6, IoError, &counts(1, 0)));
        flushes.begin_reopen(2);
        assert!(!may(&mut flushes, 9, Well, &counts(1, 0)), "another disk's file");
    }
}
