//! A split ring (virtio 1.3, section 2.7): descriptor table, available ring and used ring.
//!
//! ```text
//!   available ring            descriptor table                used ring
//!   +-------------+           +-----------------------+       +--------------+
//!   | flags       |           | address length flags  |       | flags        |
//!   | index       |   head    | ...              next |       | index        |
//!   | heads[size] | --------> |                       |       | (head,       |
//!   | used event  |           +-----------------------+       |  length)[..] |
//!   +-------------+                                           | avail. event |
//!    the driver's                the driver's                 +--------------+ the device's
//! ```
//!
//! Invariants:
//! * A head is in `in_flight` from the time it is taken until it is put back, and only once. A
//!   chain that breaks the ring is not taken.
//! * Chains in flight, and those put back that are not published, are at most `size` together: so
//!   no used element is overwritten before the driver can see it.
//! * `known_available` was the available index, and is at most `size` ahead of `next_available`.
//! * `next_used` is ahead of the index in guest memory by the elements that are not published.
//! * A broken ring takes nothing, and keeps its first reason.
//! * The parts stay mapped where they were last found, also when a new map has them no more: what
//!   is in flight can still be put back.
//! * After `new` nothing is allocated.

use super::super::memory::{Area, GuestMemory};
use super::super::proto::Features;
use super::chain::{Chain, DESCRIPTOR_BYTES, Walk};
use super::error::RingError;
use super::heads::Heads;
use super::notices::{Field, Fields, Notices};
use super::setup::RingSetup;
use drystone_core::primitive::Ordering::{self, *};
use std::sync::Arc;

/// The three parts of a ring, in memory.
#[derive(Debug)]
struct Parts {
    descriptors: Area,
    available: Area,
    used: Area,
    size: u16,
}

impl Parts {
    fn find(memory: &GuestMemory, setup: &RingSetup) -> Result<Self, RingError> {
        let (size, addresses) = (u64::from(setup.size), &setup.addresses);
        let event = if setup.features.contains(Features::RING_EVENT_IDX) { 2 } else { 0 };
        let descriptors_bytes = size * DESCRIPTOR_BYTES as u64;
        Ok(Self {
            descriptors: memory.area(addresses.descriptors, descriptors_bytes, 16)?,
            available: memory.area(addresses.available, 4 + 2 * size + event, 2)?,
            used: memory.area(addresses.used, 4 + 8 * size + event, 4)?,
            size: setup.size,
        })
    }

    /// The part that has a number, and the number's place there.
    #[inline]
    fn place(&self, field: Field) -> (&Area, usize) {
        let size = usize::from(self.size);
        match field {
            Field::AvailableFlags => (&self.available, 0),
            Field::AvailableIndex => (&self.available, 2),
            Field::UsedEvent => (&self.available, 4 + 2 * size),
            Field::UsedFlags => (&self.used, 0),
            Field::UsedIndex => (&self.used, 2),
            Field::AvailableEvent => (&self.used, 4 + 8 * size),
        }
    }

    /// The head that the driver made available at an index.
    #[inline]
    fn head_at(&self, index: u16) -> u16 {
        let slot = usize::from(index & (self.size - 1));
        self.available.load_u16(4 + 2 * slot, Relaxed)
    }

    /// Stores the used element of an index.
    #[inline]
    fn store_used(&self, index: u16, head: u16, bytes: u32) {
        let at = 4 + 8 * usize::from(index & (self.size - 1));
        self.used.store_u32(at, head.into());
        self.used.store_u32(at + 4, bytes);
    }
}

impl Fields for Parts {
    #[inline]
    fn load(&self, field: Field, order: Ordering) -> u16 {
        let (area, at) = self.place(field);
        area.load_u16(at, order)
    }

    #[inline]
    fn store(&self, field: Field, value: u16, order: Ordering) {
        let (area, at) = self.place(field);
        area.store_u16(at, value, order);
    }
}

/// The device's side of a split ring. Belongs to the thread of its queue.
#[derive(Debug)]
pub struct SplitRing {
    setup: RingSetup,
    memory: Arc<GuestMemory>,
    parts: Parts,
    /// True if the parts are in `memory`.
    is_placed: bool,
    next_available: u16,
    /// The head of the chain before `next_available`, if one was taken.
    last_taken: u16,
    known_available: u16,
    next_used: u16,
    published_used: u16,
    in_flight: Heads,
    walk: Walk,
    notices: Notices,
    broken: Option<RingError>,
}

impl SplitRing {
    /// A ring in `memory`. Its used index goes on where the one in memory is.
    ///
    /// # Errors
    /// [`RingError::Area`] when a part of it does not lie in one region, or not aligned.
    ///
    /// # Panics
    /// If the size is no power of two: the session refuses that.
    pub fn new(setup: RingSetup, memory: Arc<GuestMemory>) -> Result<Self, RingError> {
        assert!(setup.size.is_power_of_two() && setup.size <= 1 << 15, "{setup:?}");
        let parts = Parts::find(&memory, &setup)?;
        let used = parts.load(Field::UsedIndex, Acquire);
        let has_tables = setup.features.contains(Features::RING_INDIRECT_DESC);
        Ok(Self {
            is_placed: true,
            next_available: setup.base,
            last_taken: 0,
            known_available: setup.base,
            next_used: used,
            published_used: used,
            in_flight: Heads::none_of(setup.size),
            walk: Walk::new(setup.size, has_tables),
            notices: Notices::new(setup.features.contains(Features::RING_EVENT_IDX)),
            broken: None,
            setup,
            memory,
            parts,
        })
    }

    /// The map that the next chain is looked up in.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Takes a new map, for chains that are taken from now on. After a map that did not have the
    /// ring, the caller looks for chains once: a kick may have come when none could be taken.
    ///
    /// # Errors
    /// [`RingError::Area`] when the ring itself is not in the map. It is not broken by that, but
    /// nothing is taken until another map has it.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        let found = Parts::find(&memory, &self.setup);
        self.is_placed = found.is_ok();
        self.memory = memory;
        self.parts = found?;
        Ok(())
    }

    /// The most pieces that a chain can have.
    pub fn pieces_max(&self) -> usize {
        self.walk.pieces_max()
    }

    /// The index of the next chain to take, for `GET_VRING_BASE`.
    pub fn base(&self) -> u16 {
        self.next_available
    }

    /// The number of chains that were taken and not put back.
    pub fn in_flight(&self) -> u16 {
        self.in_flight.len()
    }

    /// The reason why the ring is broken.
    pub fn broken(&self) -> Option<RingError> {
        self.broken
    }

    /// Breaks the ring because of what the chain holds that was taken last. The chain is then not
    /// in flight any more, and [`SplitRing::base`] is its index again.
    ///
    /// # Panics
    /// If it was not taken last, or is not in flight: a mistake of the caller.
    pub fn refuse(&mut self, head: u16, reason: RingError) {
        assert_eq!(head, self.last_taken, "another chain was taken last");
        assert!(self.in_flight.remove(head), "chain {head} is not in flight");
        self.next_available = self.next_available.wrapping_sub(1);
        self.broken.get_or_insert(reason);
    }

    /// Takes the next chain that the driver made available; `None` if there is none.
    ///
    /// A driver that makes heads available which it cannot have seen as used gets no more until
    /// [`SplitRing::publish`]: a round that takes all there is ends. It can still be long, as a
    /// chain costs what [`Chain::descriptors`] and its pieces say: a server that has other work
    /// ends it by that.
    ///
    /// # Errors
    /// The reason why the ring is broken, from now on at each call.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Chain<'_>>, RingError> {
        if let Some(reason) = self.broken {
            return Err(reason);
        }
        match self.take_next() {
            Ok(None) => Ok(None),
            Ok(Some(head)) => Ok(Some(Chain::new(head, &self.memory, &self.walk))),
            Err(reason) => {
                self.broken = Some(reason);
                Err(reason)
            }
        }
    }

    #[inline]
    fn take_next(&mut self) -> Result<Option<u16>, RingError> {
        if !self.is_placed || self.must_publish() || self.available()? == 0 {
            return Ok(None);
        }
        let (head, size) = (self.parts.head_at(self.next_available), self.setup.size);
        if head >= size {
            return Err(RingError::HeadOutside { head, size });
        }
        if self.in_flight.contains(head) {
            return Err(RingError::HeadTwice(head));
        }
        self.walk.walk(&self.memory, (&self.parts.descriptors, size), head)?;
        self.in_flight.insert(head);
        self.next_available = self.next_available.wrapping_add(1);
        self.last_taken = head;
        Ok(Some(head))
    }

    /// True if as many chains are in flight, or put back unseen, as the ring has entries. When all
    /// are in flight it is false: another head then breaks the ring.
    #[inline]
    fn must_publish(&self) -> bool {
        let unseen = self.next_used.wrapping_sub(self.published_used);
        unseen > 0 && unseen + self.in_flight.len() >= self.setup.size
    }

    /// How many chains can be taken, as far as is known. Looks at the index if that is none.
    #[inline]
    fn available(&mut self) -> Result<u16, RingError> {
        let known = self.known_available.wrapping_sub(self.next_available);
        if known > 0 {
            return Ok(known);
        }
        let (index, size) = (self.notices.available(&self.parts), self.setup.size);
        let ahead = index.wrapping_sub(self.next_available);
        if ahead > size {
            return Err(RingError::IndexAhead { ahead, size });
        }
        self.known_available = index;
        Ok(ahead)
    }

    /// Puts a chain back, of which the device wrote the first `bytes` writable bytes at least. The
    /// driver sees it after [`SplitRing::publish`].
    ///
    /// # Panics
    /// If no such chain is in flight: a mistake of the caller.
    #[inline]
    pub fn put(&mut self, head: u16, bytes: u32) {
        assert!(self.in_flight.remove(head), "chain {head} is not in flight");
        self.parts.store_used(self.next_used, head, bytes);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows all chains that were put back to the driver, by one store of the used index. True if
    /// the driver wants a call.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next_used == self.published_used {
            return false;
        }
        self.published_used = self.next_used;
        self.notices.publish(&self.parts, self.next_used)
    }

    /// Asks the driver for a kick when it makes the next chain available. True if one came
    /// meanwhile: the caller then takes it instead of going to sleep. Called after
    /// [`SplitRing::publish`], without which it may not be able to.
    #[inline]
    pub fn enable_notifications(&self) -> bool {
        let can_take = self.is_placed && self.broken.is_none();
        self.notices.enable(&self.parts, self.next_available) && can_take
    }

    /// Asks the driver for no kicks, while the caller looks for chains by itself. A driver may kick
    /// all the same.
    #[inline]
    pub fn disable_notifications(&self) {
        self.notices.disable(&self.parts);
    }
}
