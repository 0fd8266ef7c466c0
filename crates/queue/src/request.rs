//! The request: one command for a driver, made of a unit of bios (Linux `struct request`).
//!
//! Invariants:
//! * A request is in the slot of its tag, in the channel that took the tag. While the tag is held,
//!   no other request uses the slot, so a driver can identify a request by its slot alone.
//! * The slot and the tag are freed only after the driver has given the request back; a time-out or
//!   a cancel only marks the request.

use crate::tags::{TagBatch, TagSet};
use crate::unit::Unit;
use drystone_core::{Bio, Status};

/// The stage of a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// Not in use.
    #[default]
    Idle,
    /// Built, but not with the driver.
    Built,
    /// With the driver.
    InFlight,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    /// The bios end with the request.
    #[default]
    Normal,
    /// The request is a flush command of the flush machine; it has no bios.
    Flush,
    /// The request's only bio needs a flush before it ends.
    ThenFlush,
}

/// One command for a driver. Its slot fills whole cache lines, so it shares none with another
/// context's data.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Request {
    /// The operation and its bios.
    pub unit: Unit,
    /// The result; set by the code that ends the request.
    pub status: Status,
    /// Free for the driver's use.
    pub driver_data: u64,
    /// The time at which it was given to the driver, in ns.
    pub(crate) issue_ns: u64,
    pub(crate) slot: u32,
    /// The tag of the slot.
    pub(crate) tag: TagBatch,
    pub(crate) state: State,
    pub(crate) kind: Kind,
    pub(crate) timed_out: bool,
    /// The request was counted as started, so it must be counted as ended.
    pub(crate) counted: bool,
    /// The lane that a shared scheduler counts it for, plus one; 0 if none does.
    pub(crate) sched_lane: u8,
}

impl Request {
    /// The number of the slot, by which the driver identifies the request.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Byte offset on the device.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.unit.sector.bytes()
    }

    /// The bios in order.
    pub fn bios(&self) -> impl Iterator<Item = &Bio> {
        self.unit.bios.iter()
    }

    /// The only bio of the request, when it has just one.
    #[inline]
    pub fn only_bio(&mut self) -> Option<&mut Bio> {
        match self.unit.bios.len() {
            1 => self.unit.bios.front_mut(),
            _ => None,
        }
    }

    /// The only segment of the request, when it has just one.
    #[inline]
    pub fn single_segment(&self) -> Option<drystone_core::buf::Segment> {
        match self.unit.bios.len() {
            1 => self.unit.bios.front().and_then(|b| b.single_segment()),
            _ => None,
        }
    }

    /// Call `f` with each segment of data, in order.
    pub fn each_segment(&self, mut f: impl FnMut(drystone_core::buf::Segment)) {
        self.bios().for_each(|bio| bio.each_segment(&mut f));
    }
}

/// The requests of a channel, by slot.
pub struct Slots {
    requests: Vec<Request>,
}

impl Slots {
    /// An idle request for each tag of `tags`.
    pub fn new(tags: &TagSet) -> Self {
        let request = |slot| Request { slot, tag: tags.batch_of(slot), ..Request::default() };
        Slots { requests: (0..tags.depth()).map(request).collect() }
    }

    /// The request in `slot`.
    #[inline]
    pub fn get(&mut self, slot: u32) -> &mut Request {
        &mut self.requests[slot as usize]
    }

    /// The request in `slot` if the driver has it; for results from outside the program.
    pub fn in_flight(&mut self, slot: u32) -> Option<&mut Request> {
        self.requests.get_mut(slot as usize).filter(|rq| rq.state == State::InFlight)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.requests.iter_mut()
    }
}
