//! When driver and device tell each other of news (virtio 1.3, sections 2.7.7 to 2.7.10).
//!
//! Each side publishes its index and then looks whether the other one wants to be told. Each side
//! says that it wants to be told, and then looks at the other's index once more. Between the two
//! steps there is a full fence on both sides, so that at least one of them sees what the other one
//! stored: Linux does the same in `vhost_enable_notify` and `vhost_notify`.
//!
//! ```text
//!   driver                                   device that is about to sleep
//!   available index = n + 1  (Release)       available event = n, or flags = 0
//!   fence                                    fence
//!   event or flags: must it kick?            available index: did something come?
//!
//!   device                                   driver that is about to sleep
//!   used index = n + 1  (Release)            used event = n, or flags = 0
//!   fence                                    fence
//!   event or flags: does it want a call?     used index: did something come?
//! ```
//!
//! Invariants:
//! * The used index is stored after the used elements before it (Release), and the ring's entries
//!   are loaded after the available index (Acquire).
//! * With events, the first used index that is published has a call: what the driver saw of the
//!   ring before it was started here is not known.

use drystone_core::mutated;
use drystone_core::primitive::{
    Ordering::{self, *},
    fence,
};

/// The flag by which a side asks for no notification (`VIRTQ_USED_F_NO_NOTIFY`,
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`).
const NONE_WANTED: u16 = 1;

/// A number in guest memory that both sides use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Of the driver: whether it wants calls.
    AvailableFlags,
    /// Of the driver: how many chains it made available, in all.
    AvailableIndex,
    /// Of the driver: the used index at which it wants a call.
    UsedEvent,
    /// Of the device: whether it wants kicks.
    UsedFlags,
    /// Of the device: how many chains it used, in all.
    UsedIndex,
    /// Of the device: the available index at which it wants a kick.
    AvailableEvent,
}

/// The numbers that both sides use: in guest memory, or in the memory of a model.
pub(super) trait Fields {
    /// Loads a number.
    fn load(&self, field: Field, order: Ordering) -> u16;
    /// Stores a number of the device.
    fn store(&self, field: Field, value: u16, order: Ordering);
}

/// Says when to notify. Belongs to the thread of its queue.
#[derive(Debug)]
pub(super) struct Notices {
    /// Each side says at which index it wants to be told; else it says whether.
    event_idx: bool,
    /// The used index that was published last; `None` before the first.
    published: Option<u16>,
}

impl Notices {
    pub(super) fn new(event_idx: bool) -> Self {
        Self { event_idx, published: None }
    }

    /// The available index. What the driver stored before it is seen from now on.
    #[inline]
    pub(super) fn available(&self, fields: &impl Fields) -> u16 {
        let order = if mutated!("ring_available_order") { Relaxed } else { Acquire };
        fields.load(Field::AvailableIndex, order)
    }

    /// Asks for a kick when the available index leaves `next`; true if it has done so already.
    #[inline]
    pub(super) fn enable(&self, fields: &impl Fields, next: u16) -> bool {
        let early = mutated!("ring_enable_look_first").then(|| self.available(fields));
        match self.event_idx {
            true => fields.store(Field::AvailableEvent, next, Relaxed),
            false => fields.store(Field::UsedFlags, 0, Relaxed),
        }
        if !mutated!("ring_enable_fence") {
            fence(SeqCst);
        }
        early.unwrap_or_else(|| self.available(fields)) != next
    }

    /// Asks for no kicks. With events, there is one when the index passes the last event again,
    /// after 2^16 chains.
    #[inline]
    pub(super) fn disable(&self, fields: &impl Fields) {
        if !self.event_idx {
            fields.store(Field::UsedFlags, NONE_WANTED, Relaxed);
        }
    }

    /// Publishes all used elements before `used`; true if the driver wants a call.
    #[inline]
    pub(super) fn publish(&mut self, fields: &impl Fields, used: u16) -> bool {
        let early = mutated!("ring_publish_look_first").then(|| self.is_call_wanted(fields, used));
        let order = if mutated!("ring_used_order") { Relaxed } else { Release };
        fields.store(Field::UsedIndex, used, order);
        if !mutated!("ring_publish_fence") {
            fence(SeqCst);
        }
        let is_wanted = early.unwrap_or_else(|| self.is_call_wanted(fields, used));
        self.published = Some(used);
        is_wanted
    }

    #[inline]
    fn is_call_wanted(&self, fields: &impl Fields, used: u16) -> bool {
        if !self.event_idx {
            return fields.load(Field::AvailableFlags, Relaxed) & NONE_WANTED == 0;
        }
        let event = fields.load(Field::UsedEvent, Relaxed);
        self.published.is_none_or(|before| passes(before, used, event))
    }
}

/// True if an index that goes from `before` to `after` leaves the value `event`.
#[inline]
pub(super) fn passes(before: u16, after: u16, event: u16) -> bool {
    after.wrapping_sub(event).wrapping_sub(1) < after.wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks from one index to the next, as slowly as can be.
    fn passes_slowly(before: u16, after: u16, event: u16) -> bool {
        let mut index = before;
        while index != after {
            if index == event {
                return true;
            }
            index = index.wrapping_add(1);
        }
        false
    }

    #[test]
    fn an_index_passes_an_event_or_not() {
        for before in [0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            for step in [0, 1, 2, 7] {
                for away in -9i16..9 {
                    let event = u16::wrapping_add_signed(before, away);
                    let after = before.wrapping_add(step);
                    let expected = passes_slowly(before, after, event);
                    assert_eq!(passes(before, after, event), expected, "{before} {step} {away}");
                }
            }
        }
    }
}
