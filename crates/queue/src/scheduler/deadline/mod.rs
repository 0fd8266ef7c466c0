//! mq-deadline, the algorithm: which of the kept units goes to the driver next.
//!
//! ```text
//!            insert                        insert_at_head
//!               |                                |
//!      class and direction                       |
//!     +---------+---------+                      v
//!     |  Sorted: by sector  --- neighbours   head list
//!     |  FIFO:   by arrival --- deadlines        |
//!     +---------+---------+                      | before everything
//!               v                                v
//!   pick: go on in sector order, or begin a batch  -->  dispatch
//! ```
//!
//! The rules are those of `docs/design/0002-mq-deadline.md`, which follow Linux 6.12
//! (`Documentation/block/deadline-iosched.rst`). This is one thread's data structure: no lock, no
//! clock, no thread. Its users decide which of them has it when.
//!
//! Invariants:
//! * A kept unit is either in the head list, or in the FIFO and in the sort order of its lane,
//!   which is its class and direction. There it is known by its place in the FIFO.
//! * `count` says how many units there are of each class, head list included.
//! * All that must last while nothing is kept is in [`Position`], so one [`Deadline`] that is empty
//!   can take the place of another.

mod admission;
mod batch;
mod dispatch;
mod fifo;
mod lanes;
mod loose;
mod sorted;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod tunables;

pub use admission::{Admission, Load, Offered, is_sync_read};
#[cfg(all(test, not(loom)))]
use batch::BATCH_MAX;
pub use batch::Batch;
pub(crate) use lanes::{BEST_EFFORT, REAL_TIME};
pub use lanes::{CLASSES, LANES, class_of, lane_of};
pub use tunables::{IOSCHED, Tunable, Tunables};

use crate::config::Config;
use crate::unit::Unit;
use drystone_core::{Bio, BioList, Limits, PortId};
use fifo::Fifo;
use lanes::{READ, WRITE};
use loose::{Entry, Extent};
use sorted::Sorted;
use std::collections::VecDeque;

/// The way bios are inserted.
#[derive(Clone, Copy, Debug)]
pub struct Insertion<'a> {
    /// Limits of the device: what a merged unit must keep to.
    pub limits: &'a Limits,
    /// `queue/nomerges`: 0 merges with the neighbours in the sort order, 1 only with the unit
    /// that was inserted last, 2 never.
    pub nomerges: u8,
    /// The tunables in force.
    pub tunables: &'a Tunables,
}

impl<'a> Insertion<'a> {
    /// As `config` wants it.
    #[inline]
    pub(crate) fn of(config: &'a Config) -> Self {
        Insertion { limits: &config.limits, nomerges: config.nomerges, tunables: &config.tunables }
    }
}

/// The outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It is a unit of its own: one more is kept.
    Kept,
    /// A unit took it in: as many are kept as before.
    Merged,
    /// It closed the gap between two units, which are one now: one less is kept.
    Joined,
}

/// The state that lasts while nothing is kept: where the last dispatch was, and the batch it was
/// in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// First sector of the last unit dispatched, by lane.
    pos: [u64; LANES],
    /// Units dispatched in this batch.
    batching: u32,
    /// Batches of reads since writes, which waited meanwhile, had theirs.
    starved: u32,
    /// Direction of this batch.
    last_dir: u8,
}

impl Default for Position {
    fn default() -> Self {
        Position { pos: [0; LANES], batching: 0, starved: 0, last_dir: WRITE as u8 }
    }
}

/// One class and direction: its units in both orders.
struct Lane {
    sorted: Sorted,
    fifo: Fifo,
}

/// The units that are kept, in their orders. Any thread may use it, one at a time. Dropping it
/// drops the bios in it.
///
/// It is large; to be exchanged it wants a box.
pub struct Deadline {
    lanes: [Lane; LANES],
    /// Units kept, by class.
    count: [u32; CLASSES],
    /// Those of all classes that are no reads.
    writes: u32,
    /// The lane of the unit that was inserted last; `LANES` if it is gone.
    newest: usize,
    /// Units that go before all others.
    head: VecDeque<(PortId, Unit)>,
}

impl Default for Deadline {
    fn default() -> Self {
        Self::new()
    }
}

impl Deadline {
    /// One that keeps nothing, and has no memory for it yet.
    pub fn new() -> Self {
        let lane = |_| Lane { sorted: Sorted::default(), fifo: Fifo::default() };
        Deadline {
            lanes: std::array::from_fn(lane),
            count: [0; CLASSES],
            writes: 0,
            newest: 0,
            head: VecDeque::new(),
        }
    }

    /// Number of units kept.
    #[inline]
    pub fn len(&self) -> usize {
        self.count.iter().map(|n| *n as usize).sum()
    }

    /// True while nothing is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == [0; CLASSES]
    }

    /// Number of units of `class` kept.
    ///
    /// # Panics
    /// If there is no such class.
    #[inline]
    pub fn kept(&self, class: usize) -> u32 {
        self.count[class]
    }

    /// Number of units kept that are no reads.
    #[inline]
    pub fn writes(&self) -> u32 {
        self.writes
    }

    /// Insert `bio`, which came through `port` and has been checked and cut to the device's limits.
    /// Only bios of one port merge. Its deadline is its `start_ns` plus the time that the tunables
    /// now give its direction.
    #[inline]
    pub fn insert(&mut self, port: PortId, bio: Box<Bio>, how: &Insertion) -> Inserted {
        let lane = lane_of(bio.op, bio.priority);
        let deadline = bio.start_ns.saturating_add(how.tunables.expire_ns(bio.op));
        if self.lanes[lane].fifo.is_full() {
            self.make_room(lane);
        }
        let Lane { sorted, fifo } = &mut self.lanes[lane];
        let (sector, extent) = (bio.sector.0, Extent::of(&bio));
        match sorted.loose() {
            Some(loose) if how.nomerges == 2 || !loose.adjoins(&extent) => {
                let place = fifo.push(port, bio, deadline);
                loose.push(Entry { sector, place }, &extent);
                self.count_in(lane)
            }
            _ => self.insert_in_order(lane, port, bio, deadline, how),
        }
    }

    #[cold]
    fn make_room(&mut self, lane: usize) {
        let Lane { sorted, fifo } = &mut self.lanes[lane];
        if self.newest == lane && !fifo.has_newest() {
            self.newest = LANES;
        }
        fifo.make_room(|place| sorted.renumber(place));
    }

    #[inline]
    fn count_in(&mut self, lane: usize) -> Inserted {
        self.count[lane / 2] += 1;
        self.writes += (lane % 2) as u32;
        self.newest = lane;
        Inserted::Kept
    }

    #[inline]
    fn count_out(&mut self, lane: usize) {
        self.count[lane / 2] -= 1;
        self.writes -= (lane % 2) as u32;
    }

    #[inline(never)]
    fn insert_in_order(
        &mut self,
        lane: usize,
        port: PortId,
        mut bio: Box<Bio>,
        deadline: u64,
        how: &Insertion,
    ) -> Inserted {
        let sector = bio.sector.0;
        let index = self.lanes[lane].sorted.index_for(sector);
        if how.nomerges < 2 {
            match self.try_merge(lane, index, port, bio, deadline, how) {
                Ok(inserted) => return inserted,
                Err(back) => bio = back,
            }
        }
        let Lane { sorted, fifo } = &mut self.lanes[lane];
        let place = fifo.push(port, bio, deadline);
        sorted.insert(index, Entry { sector, place });
        self.count_in(lane)
    }

    /// Let a kept unit take `bio` in by the rules of [`Deadline::insert`]; it is never kept as a
    /// unit of its own.
    ///
    /// # Errors
    /// The bio, if nothing took it.
    pub fn merge(
        &mut self,
        port: PortId,
        bio: Box<Bio>,
        how: &Insertion,
    ) -> Result<Inserted, Box<Bio>> {
        let lane = lane_of(bio.op, bio.priority);
        let deadline = bio.start_ns.saturating_add(how.tunables.expire_ns(bio.op));
        let (sector, extent) = (bio.sector.0, Extent::of(&bio));
        let sorted = &mut self.lanes[lane].sorted;
        if how.nomerges == 2 || sorted.loose().is_some_and(|loose| !loose.adjoins(&extent)) {
            return Err(bio);
        }
        let index = sorted.index_for(sector);
        self.try_merge(lane, index, port, bio, deadline, how)
    }

    /// Let a neighbour take `bio` in, which belongs at `index` of the lane's sort order.
    fn try_merge(
        &mut self,
        lane: usize,
        index: usize,
        port: PortId,
        mut bio: Box<Bio>,
        deadline: u64,
        how: &Insertion,
    ) -> Result<Inserted, Box<Bio>> {
        let (start, end) = (bio.sector.0, bio.end_sector().0);
        let (lower, upper) = self.lanes[lane].sorted.around(index);
        let may_take = |e: &Entry| self.may_take(lane, e.place, port, how);
        let ends_here = |e: &Entry| self.lanes[lane].fifo.get(e.place).end == start;
        let below = lower.filter(ends_here).filter(may_take);
        let above = upper.filter(|e| e.sector == end && how.tunables.front_merges);
        let above = above.filter(may_take);
        let Lane { sorted, fifo } = &mut self.lanes[lane];
        if let Some(lower) = below {
            match fifo.merge(lower.place, bio, deadline, how.limits) {
                Ok(()) => return Ok(self.close_gap(lane, lower, upper, how)),
                Err(back) => bio = back,
            }
        }
        let Some(Entry { sector, place }) = above else { return Err(bio) };
        fifo.merge(place, bio, deadline, how.limits)?;
        let old = *sorted.find(sector, place);
        sorted.remove_next(old);
        let index = sorted.index_for(start);
        sorted.insert(index, Entry { sector: start, place });
        Ok(Inserted::Merged)
    }

    fn may_take(&self, lane: usize, place: u32, port: PortId, how: &Insertion) -> bool {
        let fifo = &self.lanes[lane].fifo;
        let is_newest = self.newest == lane && fifo.newest() == place;
        fifo.get(place).port == port && (how.nomerges == 0 || is_newest)
    }

    /// `lower` has grown at its end: make it and its neighbour `upper` one if they adjoin now.
    fn close_gap(
        &mut self,
        lane: usize,
        lower: Entry,
        upper: Option<Entry>,
        how: &Insertion,
    ) -> Inserted {
        let Lane { sorted, fifo } = &mut self.lanes[lane];
        let end = fifo.get(lower.place).end;
        let Some(upper) = upper.filter(|e| e.sector == end && how.nomerges == 0) else {
            return Inserted::Merged;
        };
        let Some(joined) = fifo.join(lower.place, upper.place, how.limits) else {
            return Inserted::Merged;
        };
        sorted.find(upper.sector, upper.place);
        sorted.remove_next(upper);
        sorted.find(lower.sector, lower.place).place = joined;
        self.count_out(lane);
        Inserted::Joined
    }

    /// Insert `list` before everything that is kept, whatever its class, in its own order. Units
    /// there take nothing in, but for one another: a bio that begins where the one before it in
    /// the list ends goes into its unit, as far as limits and `nomerges` (below 2) allow. So a
    /// unit whose bios come back becomes one again. Returns how many units more are kept.
    pub fn insert_at_head(&mut self, port: PortId, mut list: BioList, how: &Insertion) -> u32 {
        let mut units = 0;
        while let Some(mut bio) = list.pop() {
            if units > 0 && how.nomerges < 2 {
                match self.merge_behind(bio, how) {
                    Ok(()) => continue,
                    Err(back) => bio = back,
                }
            }
            let lane = lane_of(bio.op, bio.priority);
            self.count[lane / 2] += 1;
            self.writes += (lane % 2) as u32;
            self.head.push_back((port, Unit::new(bio)));
            units += 1;
        }
        self.head.rotate_right(units);
        units as u32
    }

    /// The same with bios of several channels, each by its `port`: in the order of `list`.
    #[cold]
    pub fn insert_all_at_head(&mut self, list: &mut BioList, how: &Insertion) {
        let mut runs: Vec<(PortId, BioList)> = Vec::new();
        while let Some(bio) = list.pop() {
            let port = bio.port;
            if runs.last().is_none_or(|(last, _)| *last != port) {
                runs.push((port, BioList::new()));
            }
            runs.last_mut().expect("one was pushed").1.push(bio);
        }
        while let Some((port, run)) = runs.pop() {
            self.insert_at_head(port, run, how);
        }
    }

    /// Let the unit that was appended to the head list take `bio` in, at its end.
    fn merge_behind(&mut self, bio: Box<Bio>, how: &Insertion) -> Result<(), Box<Bio>> {
        match self.head.back_mut() {
            Some((_, unit)) if unit.end_sector() == bio.sector => unit.try_merge(bio, how.limits),
            _ => Err(bio),
        }
    }

    /// Take out the head list, in its order.
    pub fn take_head(&mut self, mut each: impl FnMut(PortId, Unit)) {
        while let Some((port, unit)) = self.head.pop_front() {
            self.count_out(lane_of(unit.op, unit.priority));
            each(port, unit);
        }
    }

    /// Take out everything, for another scheduler: first the head list in its order, then always
    /// the unit with the earliest submission among the first of the FIFOs; of equal ones that of
    /// the stronger class, reads before writes.
    pub fn take_all(&mut self, mut each: impl FnMut(PortId, Unit)) {
        self.take_head(&mut each);
        while let Some((lane, oldest)) = self.oldest() {
            let lane = &mut self.lanes[lane];
            let entry = lane.find(oldest);
            lane.sorted.remove_next(entry);
            let mut unit = Unit::default();
            let place = &mut unit;
            each(lane.fifo.take(oldest, |_| place), unit);
        }
        (self.count, self.writes) = ([0; CLASSES], 0);
    }

    /// The lane and place of the unit that has been kept longest.
    fn oldest(&mut self) -> Option<(usize, u32)> {
        let firsts = self.lanes.iter_mut().enumerate().filter_map(|(lane, Lane { fifo, .. })| {
            let first = fifo.first()?;
            Some((fifo.get(first).start_ns, lane, first))
        });
        firsts.min().map(|(_, lane, first)| (lane, first))
    }
}

#[cfg(all(test, not(loom)))]
impl Deadline {
    /// Units and entries that there is memory for, of each lane.
    fn memory(&self) -> [(usize, usize); LANES] {
        std::array::from_fn(|l| (self.lanes[l].fifo.memory(), self.lanes[l].sorted.memory()))
    }
}

impl Lane {
    /// Find the unit at `place` of the FIFO in the sort order.
    fn find(&mut self, place: u32) -> Entry {
        let sector = self.fifo.get(place).sector();
        *self.sorted.find(sector, place)
    }
}
