//! The bios that a channel holds back: in its plug, in its list of units without a tag, and in its
//! flush machine.
//!
//! Invariants:
//! * A plugged bio has no tag, so an open plug takes no tags from other contexts.
//! * Units leave the list in their order of arrival, except that a unit that the driver refused
//!   goes first. A flush command goes before all of them.
//! * No unit leaves while the driver is busy: until the next completion if `busy_until` is the
//!   greatest time, until `busy_until` if it is another time; 0 means not busy.

use crate::flush::{FlushMachine, Next, Start};
use crate::scheduler::NoneScheduler;
use crate::unit::Unit;
use drystone_core::clock::Ns;
use drystone_core::context::{PLUG_MAX_BIOS, PLUG_MAX_BYTES};
use drystone_core::{Bio, BioList, Limits, Op, Status};

/// See the module's text.
#[derive(Default)]
pub(crate) struct Held {
    /// No unit goes to the driver before this time.
    busy_until: Ns,
    units: NoneScheduler,
    flush: FlushMachine,
    plug: BioList,
    plug_bytes: u64,
}

impl Held {
    /// Add `bios` to the plug. True if it is full.
    pub(crate) fn plug(&mut self, bios: &mut BioList) -> bool {
        self.plug_bytes += bios.iter().map(|bio| bio.bytes).sum::<u64>();
        self.plug.append(bios);
        self.plug.len() >= PLUG_MAX_BIOS || self.plug_bytes >= PLUG_MAX_BYTES
    }

    /// True if a bio is plugged.
    pub(crate) fn is_plugged(&self) -> bool {
        !self.plug.is_empty()
    }

    /// Take all plugged bios, in their order.
    pub(crate) fn unplug(&mut self) -> BioList {
        self.plug_bytes = 0;
        self.plug.take()
    }

    /// True if new bios may go to the driver before the held ones.
    #[inline]
    pub(crate) fn may_pass(&self) -> bool {
        !self.units.has_work() && self.busy_until == 0
    }

    /// Hold `bio` back as a unit of its own.
    pub(crate) fn push(&mut self, bio: Box<Bio>) {
        self.units.insert(Unit::new(bio), false);
    }

    /// Hold `bio` back, merged into a held unit if possible. True if it was merged.
    pub(crate) fn merge_or_push(&mut self, bio: Box<Bio>, limits: &Limits) -> bool {
        match self.units.try_merge(bio, limits) {
            Ok(()) => true,
            Err(bio) => {
                self.push(bio);
                false
            }
        }
    }

    /// Hold `unit` back, which the driver refused: it goes first once the driver is not busy any
    /// more, at `until`.
    pub(crate) fn requeue(&mut self, unit: Unit, until: Ns) {
        self.busy_until = until;
        if unit.op == Op::Flush {
            // The flush machine still has its bios, and sends another flush command.
            self.flush.flush_refused();
        } else {
            self.units.insert(unit, true);
        }
    }

    /// True if a unit is held, or a flush command must be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.units.has_work() || self.flush.wants_flush()
    }

    /// True if the driver refused a unit and may not be asked yet.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy_until != 0
    }

    /// Take the next unit: a flush command, with the time that `now` reads as its start, or the
    /// first unit of the list.
    pub(crate) fn next_unit(&mut self, now: impl FnOnce() -> Ns) -> Option<Unit> {
        if !self.flush.wants_flush() {
            return self.units.dispatch();
        }
        self.flush.flush_sent();
        Some(Unit { op: Op::Flush, start_ns: now(), ..Unit::default() })
    }

    /// Note that a request completed: the driver may be asked again, unless it named a time.
    #[inline]
    pub(crate) fn completed(&mut self) {
        if self.busy_until == Ns::MAX {
            self.busy_until = 0;
        }
    }

    /// Note the time `now`: the driver may be asked again if it named an earlier time.
    pub(crate) fn tick(&mut self, now: Ns) {
        if self.busy_until != Ns::MAX && self.busy_until <= now {
            self.busy_until = 0;
        }
    }

    /// The time at which the driver may be asked again, if it named one.
    pub(crate) fn deadline(&self) -> Option<Ns> {
        (self.busy_until != 0 && self.busy_until != Ns::MAX).then_some(self.busy_until)
    }

    /// Begin the flush sequence of `bio`.
    pub(crate) fn start_flush(&mut self, bio: Box<Bio>, limits: &Limits) -> Start {
        self.flush.start(bio, limits)
    }

    /// Have a flush sent for `bio` before it ends, because its data has been written.
    pub(crate) fn flush_after(&mut self, bio: Box<Bio>) {
        self.flush.data_done(bio);
    }

    /// The flush command ended with `status`. Calls `next` for each bio that it served.
    pub(crate) fn flush_ended(&mut self, status: Status, next: impl FnMut(Next)) {
        self.flush.flush_ended(status, next);
    }

    /// True if no bio is plugged, held or in the flush machine.
    pub(crate) fn is_empty(&self) -> bool {
        self.plug.is_empty() && !self.units.has_work() && self.flush.len() == 0
    }

    /// Take all held bios, except those that a flush command in flight serves.
    pub(crate) fn take_all(&mut self) -> BioList {
        let mut bios = self.unplug();
        bios.append(&mut self.flush.take_pending());
        while let Some(mut unit) = self.units.dispatch() {
            bios.append(&mut unit.bios);
        }
        bios
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::{IoBuf, Sector};

    fn read(sector: u64) -> Box<Bio> {
        Bio::read(Sector(sector), IoBuf::zeroed(512))
    }

    fn list(bios: impl IntoIterator<Item = Box<Bio>>) -> BioList {
        let mut list = BioList::new();
        list.extend(bios);
        list
    }

    fn next(held: &mut Held) -> Option<(Op, u64)> {
        held.next_unit(|| 7).map(|unit| (unit.op, unit.sector.0))
    }

    #[test]
    fn the_plug_is_full_by_number_or_by_bytes() {
        let mut held = Held::default();
        assert!(!held.plug(&mut list((1..PLUG_MAX_BIOS as u64).map(read))));
        assert!(held.plug(&mut list([read(0)])));
        assert_eq!(held.unplug().len(), PLUG_MAX_BIOS);
        let long = |bytes| Bio::without_data(Op::Discard, Sector(0), bytes);
        assert!(!held.plug(&mut list([long(PLUG_MAX_BYTES - 512)])), "the count began again");
        assert!(held.plug(&mut list([long(512)])) && held.is_plugged() && !held.has_work());
    }

    #[test]
    fn a_flush_goes_first_and_refused_units_before_others() {
        let limits = Limits { write_cache: true, ..Limits::default() };
        let mut held = Held::default();
        held.push(read(8));
        assert!(held.merge_or_push(read(9), &limits) && !held.merge_or_push(read(20), &limits));
        assert!(matches!(held.start_flush(Bio::flush(), &limits), Start::Queued));
        assert_eq!(next(&mut held), Some((Op::Flush, 0)));
        assert_eq!(next(&mut held), Some((Op::Read, 8)));
        held.requeue(Unit::new(read(8)), 100);
        held.requeue(Unit { op: Op::Flush, ..Unit::default() }, Ns::MAX);
        assert!(held.has_work() && held.is_busy() && !held.may_pass());
        assert_eq!(next(&mut held), Some((Op::Flush, 0)), "the same bio, another command");
        assert_eq!(next(&mut held), Some((Op::Read, 8)));
        assert_eq!(next(&mut held), Some((Op::Read, 20)));
        assert!(next(&mut held).is_none() && !held.is_empty(), "a command serves a bio");
        let mut ended = 0;
        held.flush_ended(Status::Ok, |_| ended += 1);
        assert!(ended == 1 && held.is_empty());
    }

    #[test]
    fn a_busy_driver_is_asked_after_a_completion_or_at_its_time() {
        let mut held = Held::default();
        held.requeue(Unit::new(read(0)), Ns::MAX);
        held.tick(Ns::MAX - 1);
        assert!(held.is_busy() && held.deadline().is_none());
        held.completed();
        assert!(!held.is_busy());
        let first = held.next_unit(|| 0).expect("it waits");
        held.requeue(first, 100);
        held.completed();
        held.tick(99);
        assert!(held.is_busy() && held.deadline() == Some(100));
        held.tick(100);
        assert!(!held.is_busy() && held.has_work() && !held.may_pass());
        assert_eq!(held.take_all().len(), 1);
        assert!(held.may_pass() && held.is_empty());
    }
}
