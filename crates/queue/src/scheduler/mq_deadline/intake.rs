//! What comes in, and how much may.
//!
//! A unit may be kept while fewer than `nr_requests` are kept or in flight (Linux: the scheduler's
//! tags), and one that is no read only while fewer than `async_depth` such are. What is over waits
//! in the [`Admission`]; what a kept unit takes in needs no admission.
//!
//! Invariant: `load.units` is at least what is kept or in flight, and is that if `is_exact`. So
//! the tags in use are counted only if there might be no room.

use super::super::deadline::{Deadline, Home, Inserted, Load, Offered, is_sync_read};
use super::super::{Caller, Place};
use super::Turn;
use super::counts::Counts;
use drystone_core::{Bio, BioList};

/// How much is here in this turn.
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

    /// Whether a unit more may be kept.
    #[inline]
    fn has_room(&mut self, is_read: bool, trees: &Deadline, caller: &Caller<'_>) -> bool {
        self.load.has_room(is_read) || !self.is_exact && self.count(trees, caller).has_room(is_read)
    }

    #[cold]
    fn count(&mut self, trees: &Deadline, caller: &Caller<'_>) -> Load {
        (self.load.units, self.is_exact) = (trees.len() as u32 + caller.in_use(), true);
        self.load
    }

    /// A bio became a unit, or was merged.
    #[inline]
    fn inserted(&mut self, inserted: Inserted, is_read: bool) {
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

    /// Whether fewer units are kept or in flight than when no more were let in.
    pub(super) fn has_more_room(&self, caller: &Caller<'_>) -> bool {
        self.is_exact && self.kept + caller.in_use() < self.load.units
    }
}

/// At once ended what the driver takes so.
fn writes_in_flight(counts: &mut Counts, caller: &mut Caller<'_>) -> u32 {
    match caller.out.completes_inline {
        true => 0,
        false => counts.writes_in_flight(&caller.split().0.ports) as u32,
    }
}

impl Caller<'_> {
    /// Insert `bio`, and count it if a unit took it in.
    #[inline]
    pub(super) fn insert(&self, trees: &mut Deadline, bio: Box<Bio>) -> Inserted {
        let group = bio.op.group();
        let inserted = trees.insert(Home(bio.home), bio, &self.insertion());
        if inserted != Inserted::Kept {
            self.count_merged(group);
        }
        inserted
    }
}

impl Turn {
    /// Take in `bios` (emptied), as far as may be.
    #[inline]
    pub(super) fn take_in(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
        bios: &mut BioList,
        place: Place,
    ) {
        if place == Place::Head {
            return trees.insert_all_at_head(bios, &caller.insertion());
        }
        while let Some(bio) = bios.pop() {
            let is_read = is_sync_read(bio.op);
            if self.admission.is_empty() && intake.has_room(is_read, trees, caller) {
                intake.inserted(caller.insert(trees, bio), is_read);
            } else {
                self.ask(trees, caller, intake, bio);
            }
        }
    }

    /// A bio that a unit may take in, or that has to wait.
    #[cold]
    fn ask(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
        bio: Box<Bio>,
    ) {
        let (group, is_read, home) = (bio.op.group(), is_sync_read(bio.op), Home(bio.home));
        let bio = match trees.merge(home, bio, &caller.insertion()) {
            Ok(inserted) => {
                caller.count_merged(group);
                return intake.inserted(inserted, is_read);
            }
            Err(bio) => bio,
        };
        let load = intake.count(trees, caller);
        match self.admission.offer(home, bio, &load) {
            Offered::Now(bio) => intake.inserted(caller.insert(trees, bio), is_read),
            Offered::Waits => {}
            Offered::Again(bio) => caller.refuse(bio),
        }
    }

    /// Let bios in that wait. True if any went in.
    #[cold]
    pub(super) fn let_in(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
    ) -> bool {
        intake.load.others = match intake.load.async_depth {
            u32::MAX => 0,
            _ => trees.writes() + writes_in_flight(&mut self.counts, caller),
        };
        let mut any = false;
        intake.count(trees, caller);
        while let Some((_, bio)) = self.admission.next(&intake.load) {
            let is_read = is_sync_read(bio.op);
            intake.inserted(caller.insert(trees, bio), is_read);
            any = true;
        }
        any
    }
}
