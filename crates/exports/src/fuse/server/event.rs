//! The values of the FUSE server's operations on the ring: their kind, and their session.
//!
//! Invariant: [`Event::of`] returns what [`Event::value`] was given, for each session and
//! operation.

use crate::server::{FUSE, OpId, SessionId, Tag};

/// A query about an operation or an asker.
const QUERY: u64 = 1 << 42;
/// Alone: a poll of a session's ring. With [`QUERY`]: a query about an asker.
const RING_POLL: u64 = 1 << 43;
/// The operation's number stands from this bit on; the session's place is below.
const OP_SHIFT: u32 = 22;

/// An operation on the ring that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The poll of the descriptor.
    Poll,
    /// The poll of the session's own ring.
    RingPoll,
    /// The query for the extents that an operation asks for.
    Extents(OpId),
    /// The query about an asker: is it being killed?
    Asker,
}

impl Event {
    /// The value for a session of the worker.
    pub(super) fn value(self, session: SessionId) -> u64 {
        debug_assert!(session.0 < 1 << OP_SHIFT);
        let kind = match self {
            Event::Poll => 0,
            Event::RingPoll => RING_POLL,
            Event::Extents(op) => QUERY | u64::from(op.0) << OP_SHIFT,
            Event::Asker => QUERY | RING_POLL,
        };
        FUSE.event() | kind | u64::from(session.0)
    }

    /// The session and the event of a value.
    pub(super) fn of(value: u64) -> (SessionId, Event) {
        let value = Tag::rest_of_event(value);
        let rest = value & (QUERY - 1);
        let event = match (value & QUERY != 0, value & RING_POLL != 0) {
            (false, false) => Event::Poll,
            (false, true) => Event::RingPoll,
            (true, false) => Event::Extents(OpId((rest >> OP_SHIFT) as u32)),
            (true, true) => Event::Asker,
        };
        (SessionId((rest & ((1 << OP_SHIFT) - 1)) as u32), event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::server::IN_FLIGHT_MAX;

    #[test]
    fn each_value_has_one_meaning() {
        let ops = [0, 1, IN_FLIGHT_MAX - 1].map(|op| Event::Extents(OpId(op)));
        let mut values = Vec::new();
        for session in [0, 1, (1 << OP_SHIFT) - 1].map(SessionId) {
            for event in ops.into_iter().chain([Event::Poll, Event::RingPoll, Event::Asker]) {
                let value = event.value(session);
                assert_eq!(Event::of(value), (session, event));
                assert!(!values.contains(&value));
                values.push(value);
            }
        }
    }
}
