//! Requests that the scheduler has dispatched and that have not ended.
//!
//! Invariants:
//! * A lane has `dispatched` in the turn, plus `exclusive` without it, minus `ended` requests in
//!   flight.
//! * Ended requests are summed over the channels only when the answer is not known: never while
//!   best effort alone is in use. Lanes that were summed since [`Counts::forget`] are `watched`.

use super::super::deadline::{BEST_EFFORT, CLASSES, LANES, REAL_TIME};
use super::super::{Caller, Port, Ports, port};

/// By lane. Each sum has the requests of channels that are closed.
#[derive(Default)]
pub(super) struct Counts {
    dispatched: [u64; LANES],
    /// The requests that had ended at the last sum.
    ended: [u64; LANES],
    /// Of these, how many were of channels that are closed.
    ended_closed: [u64; LANES],
    /// Requests that were dispatched exclusively, of channels that are closed.
    exclusive_closed: [u64; LANES],
    watched: [bool; LANES],
}

/// The requests that had ended at a check, to see whether more have since.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    ended: [u64; LANES],
    closed: [u64; LANES],
    watched: [bool; LANES],
}

impl Counts {
    /// A new check begins.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.watched = [false; LANES];
    }

    /// A unit of `lane` goes.
    #[inline]
    pub(super) fn dispatched(&mut self, lane: usize) {
        self.dispatched[lane] += 1;
    }

    /// True if requests of `class` are in flight.
    #[inline]
    pub(super) fn in_flight(&mut self, class: usize, ports: &Ports) -> bool {
        let lanes = [2 * class, 2 * class + 1];
        let all_ended = lanes.iter().all(|lane| self.dispatched[*lane] == self.ended[*lane]);
        if class != BEST_EFFORT && all_ended {
            return false;
        }
        lanes.map(|lane| self.sum(lane, ports)) != [0; 2]
    }

    /// Requests in flight that are no reads.
    pub(super) fn writes_in_flight(&mut self, ports: &Ports) -> u64 {
        (0..CLASSES).map(|class| self.sum(2 * class + 1, ports)).sum()
    }

    /// Requests of `lane` in flight. The ended ones are read first, so that none of them is missing
    /// in `exclusive`. So the sum may be too high, and then one of them ends later.
    #[cold]
    fn sum(&mut self, lane: usize, ports: &Ports) -> u64 {
        self.watched[lane] = true;
        self.ended[lane] = self.ended_closed[lane] + port::ended_of_all(ports, lane);
        let exclusive = self.exclusive_closed[lane] + port::exclusive_of_all(ports, lane);
        let sent = self.dispatched[lane] + exclusive;
        debug_assert!(self.ended[lane] <= sent, "a request ends after its dispatch");
        sent - self.ended[lane]
    }

    /// True if real-time requests are in flight, as far as is known.
    #[inline]
    pub(super) fn knows_real_time(&self) -> bool {
        let lanes = 2 * REAL_TIME..2 * REAL_TIME + 2;
        self.dispatched[lanes.clone()] != self.ended[lanes]
    }

    /// The channel of `port` is closed.
    pub(super) fn closed(&mut self, port: &Port) {
        for lane in 0..LANES {
            self.ended_closed[lane] += port.ended(lane);
            self.exclusive_closed[lane] += port.exclusive(lane);
        }
    }

    /// The requests that ended, as far as is known.
    #[inline]
    pub(super) fn seen(&self) -> Seen {
        Seen { ended: self.ended, closed: self.ended_closed, watched: self.watched }
    }
}

impl Seen {
    /// True if requests that were waited for have ended since.
    pub(super) fn is_old(&self, caller: &mut Caller<'_>) -> bool {
        let watched = (0..LANES).filter(|lane| self.watched[*lane]);
        let old = |lane: usize| self.closed[lane] + caller.ended(lane) != self.ended[lane];
        watched.into_iter().any(old)
    }
}
