//! The state of mq-deadline that belongs to the holder of the turn, and what a holder does.
//!
//! Invariants:
//! * A holder that works has the trees in hand, and `trees` is empty. It leaves them here only if
//!   units are kept.
//! * While a bio waits for admission, later ones ask for admission, too.
//! * `arrivals` is empty between turns.

use super::super::deadline::{Admission, Deadline, Inserted, Offered, Position, is_sync_read};
use super::super::{Caller, InsertAt};
use super::counts::Counts;
use super::intake::Intake;
use drystone_core::{Bio, BioList, PortId};

/// State that belongs to the holder of the turn.
#[derive(Default)]
pub(super) struct Turn {
    position: Position,
    pub(super) counts: Counts,
    /// The units, if any are kept.
    pub(super) trees: Option<Box<Deadline>>,
    pub(super) admission: Admission,
    /// Ports of other channels whose published bios were inserted in this turn.
    pub(super) arrivals: Vec<PortId>,
}

/// Why a dispatch came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// No tag was found.
    NoTag,
    /// Nothing is kept, or what is may not go while higher classes are in flight.
    NoUnit,
}

impl Turn {
    /// Take in what came and let go what may, as often as the one makes room for the other.
    #[inline]
    pub(super) fn work(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
    ) -> Stop {
        loop {
            let stop = self.dispatch(trees, caller);
            if self.admission.is_empty() || !self.let_in(trees, caller, intake) {
                return stop;
            }
        }
    }

    /// Grant units while there are tags and units that may go.
    #[inline]
    fn dispatch(&mut self, trees: &mut Deadline, caller: &mut Caller<'_>) -> Stop {
        while !trees.is_empty() {
            if !caller.reserve_tags(trees.len()) {
                return Stop::NoTag;
            }
            let Some((port, lane)) = self.place_next(trees, caller) else { return Stop::NoUnit };
            if let Err(mut unit) = caller.grant_placed() {
                trees.insert_at_head(port, unit.bios.take(), &caller.insertion());
                return Stop::NoTag;
            }
            self.counts.dispatched(lane);
        }
        Stop::NoUnit
    }

    /// Put the unit that goes next where the caller wants it: its port and lane.
    #[inline]
    fn place_next(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
    ) -> Option<(PortId, usize)> {
        let now = caller.now;
        let (config, out) = caller.split();
        let counts = &mut self.counts;
        trees.dispatch_into(
            &mut self.position,
            now,
            &config.tunables,
            |class| counts.in_flight(class, &config.ports),
            |port| out.place(port),
        )
    }

    /// Units and bios that are here.
    pub(super) fn kept(&self, trees: &Deadline) -> u32 {
        let (reads, others) = self.admission.waiting();
        (trees.len() + reads + others) as u32
    }

    /// Take in `bios` (emptied), as far as may be.
    #[inline]
    pub(super) fn take_in(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
        bios: &mut BioList,
        place: InsertAt,
    ) {
        if place == InsertAt::Head {
            return trees.insert_all_at_head(bios, &caller.insertion());
        }
        while let Some(bio) = bios.pop() {
            let is_read = is_sync_read(bio.op);
            if self.admission.is_empty() && intake.find_room(is_read, trees, caller) {
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
        let (group, is_read, port) = (bio.op.group(), is_sync_read(bio.op), bio.port);
        let bio = match trees.merge(port, bio, &caller.insertion()) {
            Ok(inserted) => {
                caller.count_merged(group);
                return intake.inserted(inserted, is_read);
            }
            Err(bio) => bio,
        };
        let load = intake.count(trees, caller);
        match self.admission.offer(port, bio, &load) {
            Offered::Now(bio) => intake.inserted(caller.insert(trees, bio), is_read),
            Offered::Waits => {}
            Offered::Again(bio) => caller.refuse(bio),
        }
    }

    /// Let bios in that wait. True if any went in.
    #[cold]
    fn let_in(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
    ) -> bool {
        intake.count_all(&mut self.counts, trees, caller);
        let mut any = false;
        while let Some((_, bio)) = self.admission.next(intake.load()) {
            let is_read = is_sync_read(bio.op);
            intake.inserted(caller.insert(trees, bio), is_read);
            any = true;
        }
        any
    }
}

impl Caller<'_> {
    /// Insert `bio`, and count it if a unit took it in.
    #[inline]
    pub(super) fn insert(&self, trees: &mut Deadline, bio: Box<Bio>) -> Inserted {
        let group = bio.op.group();
        let inserted = trees.insert(bio.port, bio, &self.insertion());
        if inserted != Inserted::Kept {
            self.count_merged(group);
        }
        inserted
    }
}
