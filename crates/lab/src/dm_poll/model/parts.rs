//! The parts that threads of the simulation share: devices that keep time, and poll queues.
//!
//! Invariants:
//! * A request is in one device's `due` or one queue's `arrivals` or `due`, once, until it is
//!   found.
//! * A queue has at most one holder, which is on a core or ready: no thread sleeps with the lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::model::design::Ps;
use crate::model::line::Line;

/// A part of a bio on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The time when the member has done it.
    pub at: Ps,
    /// Its owner, and the number of the owner's bio.
    pub thread: usize,
    pub slot: usize,
    pub member: usize,
    /// The core that it comes from: its thread's, or its finder's.
    pub core: usize,
}

/// A poll queue of a member.
#[derive(Default)]
pub struct Queue {
    /// The line of the lock's word, to which every poll writes.
    pub word: Line,
    /// The lines that the lock protects.
    pub inside: Line,
    /// The line of the arrivals' end, which submitters write and pollers read.
    pub tail: Line,
    pub holder: Option<usize>,
    /// Threads that wait, on their cores or off them, and threads that sleep.
    pub spinners: Vec<usize>,
    pub sleepers: VecDeque<usize>,
    pub arrivals: Vec<Part>,
    due: BinaryHeap<Reverse<Part>>,
}

impl Queue {
    /// Take in the arrivals. Returns how many parts came from other cores than `core`.
    pub fn take_arrivals(&mut self, core: usize) -> u64 {
        let foreign = self.arrivals.iter().filter(|part| part.core != core).count();
        self.due.extend(self.arrivals.drain(..).map(Reverse));
        foreign as u64
    }

    /// Move the parts that are done at `now` to `found`.
    pub fn take_due(&mut self, now: Ps, found: &mut Vec<Part>) {
        while let Some(Reverse(part)) = self.due.peek().copied().filter(|first| first.0.at <= now) {
            self.due.pop();
            found.push(part);
        }
    }
}

/// A core that keeps members' time and notifies submitters, one after the other.
#[derive(Default)]
pub struct Device {
    due: BinaryHeap<Reverse<Part>>,
    telling: Option<Part>,
    free_at: Ps,
    /// The time when it goes away for other work.
    had_until: Ps,
    /// The time that it spent on notifications.
    pub busy_ps: Ps,
}

impl Device {
    pub fn start(&mut self, part: Part) {
        self.due.push(Reverse(part));
    }

    /// The time of its next event.
    pub fn next_at(&self) -> Option<Ps> {
        match self.telling {
            Some(_) => Some(self.free_at),
            None => self.due.peek().map(|first| first.0.at.max(self.free_at)),
        }
    }

    /// Handles its next event at `now`: ends the notification of a part, or begins one, which takes
    /// `tell_ps`.
    pub fn step(&mut self, now: Ps, tell_ps: Ps) -> Option<Part> {
        let told = self.telling.take();
        if told.is_none() {
            self.telling = self.due.pop().map(|first| first.0);
            self.occupy(now, tell_ps);
        }
        told
    }

    /// True if it must go away at `now`.
    pub fn is_over(&self, now: Ps) -> bool {
        self.telling.is_none() && now >= self.had_until
    }

    /// Makes it go away until `back`, and then stay until `had_until`.
    pub fn go_away(&mut self, back: Ps, had_until: Ps) {
        (self.free_at, self.had_until) = (back, had_until);
    }

    /// Keeps it busy with other work for so long.
    pub fn occupy(&mut self, now: Ps, length: Ps) {
        self.free_at = now + length;
        self.busy_ps += length;
    }
}
