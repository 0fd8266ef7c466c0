//! The bios that come in, and how many may.
//!
//! A unit may be kept while fewer than `nr_requests` are kept or in flight (Linux: the scheduler's
//! tags), and one that is no read only while fewer than `async_depth` such are. Further bios wait
//! in the [`Admission`](super::super::deadline::Admission); what a kept unit takes in needs no
//! admission.
//!
//! Invariant: `load.units` is at least what is kept or in flight, and is that if `is_exact`. So
//! the tags in use are counted only if there might be no room.

use super::super::Caller;
use super::super::deadline::{Deadline, Inserted, Load};
use super::counts::Counts;

/// The load of this turn.
#[derive(Clone, Copy)]
pub(super) struct Intake {
    load: Load,
    is_exact: bool,
    /// Units kept when the turn ends.
    kept: u32,
}

impl Intake {
    #[inline]
    pub(super) fn new(counts: &mut Counts, trees: &Deadline, caller: &mut Caller<'_>) -> Self {
        let (units, nr_requests) =
            (trees.len() as u32 + caller.most_in_use(), caller.nr_requests());
        let tunables = caller.config().tunables;
        let mut load = Load {
            units,
            others: 0,
            nr_requests,
            async_depth: u32::MAX,
            writes_starved: tunables.writes_starved,
        };
        if tunables.async_depth < caller.config().nr_requests {
            load.async_depth = caller.of_all_queues(tunables.async_depth);
            load.others = trees.writes() + writes_in_flight(counts, caller);
        }
        Intake { load, is_exact: false, kept: 0 }
    }

    /// True if a unit more may be kept. Counts the tags in use if that is not known yet.
    #[inline]
    pub(super) fn find_room(
        &mut self,
        is_read: bool,
        trees: &Deadline,
        caller: &Caller<'_>,
    ) -> bool {
        self.load.has_room(is_read) || !self.is_exact && self.count(trees, caller).has_room(is_read)
    }

    /// The units that are kept or in flight, as far as is known.
    pub(super) fn load(&self) -> &Load {
        &self.load
    }

    /// Count what is kept or in flight, of all operations.
    #[cold]
    pub(super) fn count(&mut self, trees: &Deadline, caller: &Caller<'_>) -> Load {
        (self.load.units, self.is_exact) = (trees.len() as u32 + caller.in_use(), true);
        self.load
    }

    /// The same, and count those that are no reads if they have a limit of their own.
    pub(super) fn count_all(
        &mut self,
        counts: &mut Counts,
        trees: &Deadline,
        caller: &mut Caller<'_>,
    ) {
        self.load.others = match self.load.async_depth {
            u32::MAX => 0,
            _ => trees.writes() + writes_in_flight(counts, caller),
        };
        self.count(trees, caller);
    }

    /// A bio became a unit, or was merged.
    #[inline]
    pub(super) fn inserted(&mut self, inserted: Inserted, is_read: bool) {
        match inserted {
            Inserted::Kept => {
                self.load.units += 1;
                self.load.others += u32::from(!is_read);
            }
            Inserted::Merged => {}
            Inserted::Joined => {
                self.load.units -= 1;
                self.load.others = self.load.others.saturating_sub(u32::from(!is_read));
            }
        }
    }

    /// The turn ends with these.
    pub(super) fn note(&mut self, trees: &Deadline) {
        self.kept = trees.len() as u32;
    }

    /// True if fewer units are kept or in flight than when no more were let in.
    pub(super) fn has_more_room(&self, caller: &Caller<'_>) -> bool {
        self.is_exact && self.kept + caller.in_use() < self.load.units
    }
}

/// Requests in flight that are no reads; none where the driver completes inline.
fn writes_in_flight(counts: &mut Counts, caller: &mut Caller<'_>) -> u32 {
    match caller.out.completes_inline {
        true => 0,
        false => counts.writes_in_flight(&caller.split().0.ports) as u32,
    }
}
