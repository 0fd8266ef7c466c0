//! The units of one class and direction by arrival. The place of a unit, a number that counts up,
//! names it everywhere else.
//!
//! ```text
//!            head                      tail
//!   [ ..  ..  7   8   -  10   -  12  13  ..  .. ]     a ring; - was dispatched before its turn
//! ```
//!
//! Invariants:
//! * The ring has a power of two slots, or none yet. The place `p` is in slot `p` modulo that.
//! * Units are at places from `head` to before `tail`, which are no further apart than there are
//!   slots.
//! * A slot that `is_live` holds a unit, any other nothing.
//! * A unit of one bio may be that bio alone, in `bio`. Otherwise it is in `unit`.
//! * Slots are never given back: keeping as many units as were kept before allocates nothing.

use crate::unit::Unit;
use drystone_core::{Bio, Limits, PortId};
use std::mem;

/// The smallest ring: what a small batch needs.
const RING_MIN: usize = 16;

/// A slot, and the facts on its unit that need no access to it.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Slot {
    bio: Option<Box<Bio>>,
    /// First sector behind it.
    pub end: u64,
    /// When its earliest bio was submitted, ns.
    pub start_ns: u64,
    /// When it should have been dispatched, ns.
    pub deadline: u64,
    /// The port of its bios.
    pub port: PortId,
    is_live: bool,
    /// Its place after the compaction under way.
    moves_to: u32,
    unit: Unit,
}

impl Slot {
    /// First sector of the unit.
    pub fn sector(&self) -> u64 {
        self.bio.as_ref().map_or(self.unit.sector.0, |bio| bio.sector.0)
    }

    /// The unit, to change it; [`Slot::changed`] must follow.
    fn unit(&mut self) -> &mut Unit {
        if let Some(bio) = self.bio.take() {
            self.unit.set(bio);
        }
        &mut self.unit
    }

    fn changed(&mut self, deadline: u64) {
        (self.end, self.start_ns) = (self.unit.end_sector().0, self.unit.start_ns);
        self.deadline = self.deadline.min(deadline);
    }
}

/// The ring.
#[derive(Default)]
pub(super) struct Fifo {
    slots: Vec<Slot>,
    head: u32,
    tail: u32,
}

impl Fifo {
    #[inline]
    fn index(&self, place: u32) -> usize {
        place as usize & self.slots.len().wrapping_sub(1)
    }

    /// The unit at `place`, and what is known of it.
    #[inline]
    pub fn get(&self, place: u32) -> &Slot {
        &self.slots[self.index(place)]
    }

    #[inline]
    fn get_mut(&mut self, place: u32) -> &mut Slot {
        let index = self.index(place);
        &mut self.slots[index]
    }

    /// The place of the first unit.
    pub fn first(&mut self) -> Option<u32> {
        while self.head != self.tail && !self.get(self.head).is_live {
            self.head = self.head.wrapping_add(1);
        }
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
            return None;
        }
        Some(self.head)
    }

    /// The place before the next unit's.
    pub fn newest(&self) -> u32 {
        self.tail.wrapping_sub(1)
    }

    /// True if there is a unit at that place.
    pub fn has_newest(&self) -> bool {
        self.head != self.tail && self.get(self.newest()).is_live
    }

    /// True if the next [`Fifo::push`] needs [`Fifo::make_room`] first.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.tail.wrapping_sub(self.head) as usize == self.slots.len()
    }

    /// Keep `bio` as a unit of its own at the end; returns its place.
    #[inline]
    pub fn push(&mut self, port: PortId, bio: Box<Bio>, deadline: u64) -> u32 {
        let place = self.tail;
        let slot = self.get_mut(place);
        (slot.end, slot.start_ns) = (bio.end_sector().0, bio.start_ns);
        (slot.port, slot.deadline, slot.is_live) = (port, deadline, true);
        slot.bio = Some(bio);
        self.tail = place.wrapping_add(1);
        place
    }

    /// Make room for another unit. If places of units change, `moved` is told all of them: it
    /// gets a function from the old place to the new.
    #[cold]
    pub fn make_room(&mut self, moved: impl FnOnce(&dyn Fn(u32) -> u32)) {
        let live = self.slots.iter().filter(|slot| slot.is_live).count();
        match live > self.slots.len() / 2 || self.slots.is_empty() {
            true => self.grow(),
            false => self.compact(moved),
        }
    }

    fn grow(&mut self) {
        let size = (2 * self.slots.len()).max(RING_MIN);
        assert!(size <= 1 << 31, "places would be ambiguous");
        let mut slots: Vec<Slot> = (0..size).map(|_| Slot::default()).collect();
        self.places().for_each(|place| {
            mem::swap(&mut slots[place as usize & (size - 1)], self.get_mut(place));
        });
        self.slots = slots;
    }

    fn places(&self) -> impl Iterator<Item = u32> + use<> {
        let head = self.head;
        (0..self.tail.wrapping_sub(head)).map(move |n| head.wrapping_add(n))
    }

    /// Close up the units, in their order.
    fn compact(&mut self, moved: impl FnOnce(&dyn Fn(u32) -> u32)) {
        let mut end = self.head;
        for place in self.places() {
            let slot = self.get_mut(place);
            if slot.is_live {
                slot.moves_to = end;
                end = end.wrapping_add(1);
            }
        }
        moved(&|place| self.get(place).moves_to);
        for place in self.places() {
            let slot = self.get(place);
            if slot.is_live && slot.moves_to != place {
                let (from, to) = (self.index(place), self.index(slot.moves_to));
                self.slots.swap(from, to);
            }
        }
        self.tail = end;
    }

    /// Take the unit at `place` out, to where `to` says for its port.
    #[inline]
    pub fn take<'u>(&mut self, place: u32, to: impl FnOnce(PortId) -> &'u mut Unit) -> PortId {
        let slot = self.get_mut(place);
        slot.is_live = false;
        let port = slot.port;
        match slot.bio.take() {
            Some(bio) => to(port).set(bio),
            None => *to(port) = slot.unit.take(),
        }
        port
    }

    /// Let the unit at `place` take `bio` in. It keeps its place, and gets the earlier deadline.
    pub fn merge(
        &mut self,
        place: u32,
        bio: Box<Bio>,
        deadline: u64,
        limits: &Limits,
    ) -> Result<(), Box<Bio>> {
        let slot = self.get_mut(place);
        slot.unit().try_merge(bio, limits)?;
        slot.changed(deadline);
        Ok(())
    }

    /// Append the unit at `upper` to the one at `lower`, which it adjoins, if both are of one port
    /// and the rules of merging allow it. Both become one, at the place of the one with the
    /// earlier deadline, of `lower` if they are equal. Returns that place.
    pub fn join(&mut self, lower: u32, upper: u32, limits: &Limits) -> Option<u32> {
        let indices = [self.index(lower), self.index(upper)];
        let [low, up] = self.slots.get_disjoint_mut(indices).expect("two slots");
        if low.port != up.port || !low.unit().try_append(up.unit(), limits) {
            return None;
        }
        let (stays, slot, goes) = match up.deadline < low.deadline {
            true => {
                mem::swap(&mut low.unit, &mut up.unit);
                (upper, up, lower)
            }
            false => (lower, low, upper),
        };
        slot.changed(u64::MAX);
        self.get_mut(goes).is_live = false;
        Some(stays)
    }

    /// Units that there is memory for.
    #[cfg(all(test, not(loom)))]
    pub fn memory(&self) -> usize {
        self.slots.len()
    }
}
