//! The choice of the next unit: batches, deadlines, classes.

use super::loose::Entry;
use super::{CLASSES, Deadline, Lane, Position, READ, Tunables, WRITE, lane_of};
use crate::unit::Unit;
use drystone_core::PortId;

/// Units are picked whenever they were submitted: also after `now`, which is the reading of one
/// context, when another has read its clock since. A unit may not wait for that.
const ANY_TIME: Option<u64> = Some(u64::MAX);

/// The facts that a choice goes by.
#[derive(Clone, Copy)]
struct Rules<'a> {
    now: u64,
    tunables: &'a Tunables,
}

impl Deadline {
    /// The unit that goes next, with its port; `None` if there is none that may go now.
    /// `now` is in ns on the clock of `start_ns`; `in_flight` says whether a unit of a class was
    /// dispatched and has not ended.
    #[inline]
    pub fn dispatch(
        &mut self,
        position: &mut Position,
        now: u64,
        tunables: &Tunables,
        in_flight: impl FnMut(usize) -> bool,
    ) -> Option<(PortId, Unit)> {
        let mut unit = Unit::default();
        let to = &mut unit;
        let (port, _) = self.dispatch_into(position, now, tunables, in_flight, |_| to)?;
        Some((port, unit))
    }

    /// As [`Deadline::dispatch`], with the unit's lane; the unit is made in the empty one that
    /// `to` gives for its port. This is the quicker way, because units are not copied.
    #[inline]
    pub fn dispatch_into<'u>(
        &mut self,
        position: &mut Position,
        now: u64,
        tunables: &Tunables,
        mut in_flight: impl FnMut(usize) -> bool,
        to: impl FnOnce(PortId) -> &'u mut Unit,
    ) -> Option<(PortId, usize)> {
        if !self.head.is_empty() {
            let (port, unit) = self.dispatch_head(position)?;
            let lane = lane_of(unit.op, unit.priority);
            *to(port) = unit;
            return Some((port, lane));
        }
        let rules = Rules { now, tunables };
        let mut queued = |class: usize| self.count[class] > 0 || in_flight(class);
        if queued(0) || queued(2) {
            let queued = std::array::from_fn(queued);
            let (lane, place) = self.choose(position, rules, queued)?;
            return Some((self.take(lane, place, to), lane));
        }
        let (lane, place) = self.pick(position, 1, ANY_TIME, rules)?;
        Some((self.take(lane, place, to), lane))
    }

    #[inline]
    fn take<'u>(
        &mut self,
        lane: usize,
        place: u32,
        to: impl FnOnce(PortId) -> &'u mut Unit,
    ) -> PortId {
        self.count_out(lane);
        self.lanes[lane].fifo.take(place, to)
    }

    #[cold]
    fn dispatch_head(&mut self, position: &mut Position) -> Option<(PortId, Unit)> {
        let (port, unit) = self.head.pop_front()?;
        let lane = lane_of(unit.op, unit.priority);
        position.pos[lane] = unit.sector.0;
        self.count_out(lane);
        Some((port, unit))
    }

    /// Choose a unit and take it out of the sort order: its lane and its place in the FIFO.
    #[inline(never)]
    fn choose(
        &mut self,
        position: &mut Position,
        rules: Rules,
        queued: [bool; CLASSES],
    ) -> Option<(usize, u32)> {
        if queued.iter().filter(|q| **q).count() >= 2 {
            let aged = rules.now.checked_sub(rules.tunables.prio_aging_expire_ns);
            for class in 1..CLASSES {
                let before = *position;
                if let Some(picked) = self.pick(position, class, aged, rules) {
                    return Some(picked);
                }
                // Units that are too young leave no trace, however many picks there are.
                *position = before;
            }
        }
        let class = queued.iter().position(|q| *q)?;
        self.pick(position, class, ANY_TIME, rules)
    }

    /// The next unit of `class`, if its earliest bio was submitted at `latest` or before.
    #[inline]
    fn pick(
        &mut self,
        position: &mut Position,
        class: usize,
        latest: Option<u64>,
        rules: Rules,
    ) -> Option<(usize, u32)> {
        let lane = 2 * class + usize::from(position.last_dir);
        let next = self.next_in_order(position, lane);
        let (lane, entry) = match next {
            Some(entry) if position.batching < rules.tunables.fifo_batch => (lane, entry),
            _ => self.begin_batch(position, class, rules)?,
        };
        let Lane { sorted, fifo } = &mut self.lanes[lane];
        if Some(fifo.get(entry.place).start_ns) > latest {
            return None;
        }
        position.batching += 1;
        position.pos[lane] = entry.sector;
        sorted.remove_next(entry);
        Some((lane, entry.place))
    }

    /// The first unit of `lane` at or behind its position, with the cursor before it.
    #[inline]
    fn next_in_order(&mut self, position: &Position, lane: usize) -> Option<Entry> {
        self.lanes[lane].sorted.next(position.pos[lane])
    }

    /// Decide for a direction and where to begin in it. The cursor is before the unit.
    fn begin_batch(
        &mut self,
        position: &mut Position,
        class: usize,
        rules: Rules,
    ) -> Option<(usize, Entry)> {
        let direction = self.choose_direction(position, class, rules.tunables)?;
        let lane = 2 * class + direction;
        let next = self.next_in_order(position, lane);
        (position.last_dir, position.batching) = (direction as u8, 0);
        let fifo = &mut self.lanes[lane].fifo;
        let oldest = fifo.first()?;
        match next {
            Some(entry) if fifo.get(oldest).deadline > rules.now => Some((lane, entry)),
            _ => Some((lane, self.lanes[lane].find(oldest))),
        }
    }

    fn choose_direction(
        &mut self,
        position: &mut Position,
        class: usize,
        tunables: &Tunables,
    ) -> Option<usize> {
        let mut waits = |direction: usize| self.lanes[2 * class + direction].fifo.first().is_some();
        if waits(READ) {
            if !waits(WRITE) {
                return Some(READ);
            }
            if position.starved < tunables.writes_starved {
                position.starved += 1;
                return Some(READ);
            }
        } else if !waits(WRITE) {
            return None;
        }
        position.starved = 0;
        Some(WRITE)
    }
}
