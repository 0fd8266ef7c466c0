//! A connection's windows for requests in flight, one for each direction. So requests that wait for
//! a limit of one direction take no room from the other.
//!
//! Invariants:
//! * A request takes its part of its direction's window before a buffer for its data is taken, and
//!   gives it back when its reply was sent.
//! * A request that finds its window empty always fits.
//!
//! A socket delivers requests in order, so a request that finds its window full holds up all later
//! ones.

use crate::nbd::proto::Command;
use crate::nbd::request::Request;
use crate::server::Flow;

/// The most bytes that a request without data counts for: it never has more memory.
pub(super) const BARE_BYTES: u64 = 1 << 20;

/// The directions of throttle groups: a request that changes the device is a write, and so is a
/// flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// A request's part of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    direction: Direction,
    bytes: u64,
}

impl Cost {
    /// The cost of a refused request: one request without bytes, because its reply has to be sent.
    pub(super) const REFUSAL: Cost = Cost { direction: Direction::Read, bytes: 0 };

    pub(super) fn of(request: &Request) -> Cost {
        let (length, bare) = (request.length, request.length.min(BARE_BYTES));
        let (direction, bytes) = match request.command {
            Command::Read => (Direction::Read, length),
            Command::Cache | Command::BlockStatus => (Direction::Read, bare),
            Command::Write => (Direction::Write, length),
            Command::Flush | Command::Trim | Command::WriteZeroes | Command::Disc => {
                (Direction::Write, bare)
            }
        };
        Cost { direction, bytes }
    }
}

/// The cost of several requests of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requests: u32,
    bytes: u64,
}

/// The cost of several requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    reads: Sum,
    writes: Sum,
}

impl Costs {
    /// Bytes of both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.reads.bytes + self.writes.bytes
    }
}

impl std::ops::AddAssign<Cost> for Costs {
    #[inline]
    fn add_assign(&mut self, cost: Cost) {
        let sum = match cost.direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        };
        sum.requests += 1;
        sum.bytes += cost.bytes;
    }
}

impl std::ops::AddAssign for Costs {
    fn add_assign(&mut self, other: Self) {
        self.reads.requests += other.reads.requests;
        self.reads.bytes += other.reads.bytes;
        self.writes.requests += other.writes.requests;
        self.writes.bytes += other.writes.bytes;
    }
}

/// The windows of a connection.
#[derive(Debug)]
pub(super) struct Windows {
    reads: Flow,
    writes: Flow,
}

impl Windows {
    /// Empty windows. Each direction allows so many requests, of so many bytes in all.
    pub(super) fn new(requests_max: u32, bytes_max: u64) -> Self {
        let flow = || Flow::new(requests_max, bytes_max);
        Windows { reads: flow(), writes: flow() }
    }

    /// True if there is room for one more request.
    #[inline]
    pub(super) fn has_room(&self, cost: Cost) -> bool {
        match cost.direction {
            Direction::Read => self.reads.has_room(cost.bytes),
            Direction::Write => self.writes.has_room(cost.bytes),
        }
    }

    /// Counts a request that was taken.
    #[inline]
    pub(super) fn begin(&mut self, cost: Cost) {
        match cost.direction {
            Direction::Read => self.reads.begin(cost.bytes),
            Direction::Write => self.writes.begin(cost.bytes),
        }
    }

    /// Counts requests that were answered.
    #[inline]
    pub(super) fn end(&mut self, costs: Costs) {
        self.reads.end(costs.reads.requests, costs.reads.bytes);
        self.writes.end(costs.writes.requests, costs.writes.bytes);
    }

    /// True when nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_idle() && self.writes.is_idle()
    }

    /// Bytes in flight.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.reads.bytes() + self.writes.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Cost = Cost { direction: Direction::Read, bytes: 60 };
    const WRITE: Cost = Cost { direction: Direction::Write, bytes: 60 };

    #[test]
    fn the_directions_take_nothing_from_each_other() {
        let mut windows = Windows::new(2, 100);
        windows.begin(WRITE);
        assert!(!windows.has_room(WRITE), "60 more bytes of 100");
        assert!(windows.has_room(READ));
        windows.begin(READ);
        assert!(!windows.has_room(READ) && windows.has_room(Cost::REFUSAL));
        assert_eq!(windows.bytes(), 120);
        let mut costs = Costs::default();
        costs += WRITE;
        windows.end(costs);
        assert!(windows.has_room(WRITE) && !windows.has_room(READ) && !windows.is_idle());
    }

    #[test]
    fn one_request_of_any_length_has_room() {
        let windows = Windows::new(0, 1);
        assert!(windows.has_room(READ) && windows.has_room(WRITE));
    }
}
