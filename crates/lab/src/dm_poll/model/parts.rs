//! The parts that threads of the simulation meet: devices that keep time, and poll queues.
//!
//! Invariants:
//! * A request is in one device's `due` or one queue's `arrivals` or `due`, once, until it is
//!   found.
//! * A queue has at most one holder, which is on a core, or ready: nobody sleeps with the lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::model::design::Ps;
use crate::model::line::Line;

/// A part of a bio on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// When the member has done it.
    pub at: Ps,
    /// Its owner, and which of the owner's bios.
    pub thread: usize,
    pub slot: usize,
    pub member: usize,
    /// The core that it comes from: its thread's, or its finder's.
    pub core: usize,
}

/// A poll queue of a member.
#[derive(Default)]
pub struct Queue {
    /// Of the lock's word, which every look writes to.
    pub word: Line,
    /// The lines that the lock protects.
    pub inside: Line,
    /// Of the end of the arrivals, which submitters write to and pollers read.
    pub tail: Line,
    pub holder: Option<usize>,
    /// Threads that wait, on their cores or off them, and threads that sleep.
    pub spinners: Vec<usize>,
    pub sleepers: VecDeque<usize>,
    pub arrivals: Vec<Part>,
    due: BinaryHeap<Reverse<Part>>,
}

impl Queue {
    /// Take in what has come; how many parts came from other cores than `core`.
    pub fn take_arrivals(&mut self, core: usize) -> u64 {
        let foreign = self.arrivals.iter().filter(|part| part.core != core).count();
        self.due.extend(self.arrivals.drain(..).map(Reverse));
        foreign as u64
    }

    /// Move to `found` what is done at `now`.
    pub fn take_due(&mut self, now: Ps, found: &mut Vec<Part>) {
        while let Some(Reverse(part)) = self.due.peek().copied().filter(|first| first.0.at <= now) {
            self.due.pop();
            found.push(part);
        }
    }
}

/// A core that keeps members' time and tells submitters, one after the other.
#[derive(Default)]
pub struct Device {
    due: BinaryHeap<Reverse<Part>>,
    telling: Option<Part>,
    free_at: Ps,
    /// When it goes away for others' work.
    had_until: Ps,
    /// Time that it told.
    pub busy_ps: Ps,
}

impl Device {
    pub fn start(&mut self, part: Part) {
        self.due.push(Reverse(part));
    }

    /// When something happens here next.
    pub fn next_at(&self) -> Option<Ps> {
        match self.telling {
            Some(_) => Some(self.free_at),
            None => self.due.peek().map(|first| first.0.at.max(self.free_at)),
        }
    }

    /// That happens, at `now`: a part is told of, or begins to be, which takes `tell_ps`.
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

    /// It is away until `back`, and then had until `had_until`.
    pub fn go_away(&mut self, back: Ps, had_until: Ps) {
        (self.free_at, self.had_until) = (back, had_until);
    }

    /// It has something else to do for so long.
    pub fn occupy(&mut self, now: Ps, length: Ps) {
        self.free_at = now + length;
        self.busy_ps += length;
    }
}
