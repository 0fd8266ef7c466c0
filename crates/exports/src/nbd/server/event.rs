//! The values of the NBD server's operations on the ring: their kind, and their listener or
//! connection.
//!
//! Invariant: [`Event::of`] returns what [`Event::value`] was given, for each listener and
//! connection.

use crate::server::{NBD, Tag};

/// The kind stands from this bit on; the number of the listener or connection is below.
const KIND_SHIFT: u32 = 40;

/// An operation on the ring that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The accept of a listener.
    Accept,
    /// The pause of a listener, for which there were no descriptors.
    AcceptAgain,
    /// A receive.
    Receive,
    /// A receive into the data of a write.
    Payload,
    /// A send.
    Send,
    /// The query for the ranges that hold data.
    Extents,
}

impl Event {
    const ALL: [Event; 6] = [
        Event::Accept,
        Event::AcceptAgain,
        Event::Receive,
        Event::Payload,
        Event::Send,
        Event::Extents,
    ];

    /// The value for listener or connection `number`.
    pub(super) fn value(self, number: u32) -> u64 {
        NBD.event() | (self as u64) << KIND_SHIFT | u64::from(number)
    }

    /// The event of a value, and the number of its listener or connection.
    #[inline]
    pub(super) fn of(value: u64) -> (Event, u32) {
        let value = Tag::rest_of_event(value);
        let number = (value & ((1 << KIND_SHIFT) - 1)) as u32;
        (Event::ALL[(value >> KIND_SHIFT) as usize], number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_one_meaning() {
        for event in Event::ALL {
            for number in [0, 1, u32::MAX] {
                assert_eq!(Event::of(event.value(number)), (event, number));
            }
        }
    }
}
