//! A data thread: its context, its front ends, its loop.
//!
//! Invariants:
//! * Everything here belongs to one thread. Other threads touch only its [`Inbox`].
//! * Each round handles all events, submits the resulting bios as one batch for each device, and
//!   enters the kernel once, in the wait.
//! * The wait has a deadline only if a front end has one: an idle server sleeps.
//! * A ring event and a bio find their front end by the tag in the value that they carry
//!   ([`super::tag`]).

use super::Inbox;
use super::budget::Budget;
use super::front_end::{FrontEnd, Work};
use super::front_ends::FrontEnds;
use super::reserve::Reserve;
use drystone_core::context::PollMode;
use drystone_core::ring::RingEvent;
use drystone_core::{Arena, BioList, Context, Error, Result};
use std::sync::Arc;

/// The most turns of the front ends in a round, before new events are collected.
const TURNS_MAX: u32 = 64;
/// Most polls before one wait: a bound for clocks that stand still.
const POLLS_MAX: u32 = 256;

/// A data thread's server. Any thread may make it; one thread runs it.
pub struct Worker {
    // Dropped first: the ring gives the front ends' operations back before their memory is freed.
    front_ends: FrontEnds,
    work: Work,
    inbox: Arc<Inbox>,
    events: Vec<RingEvent>,
    done: BioList,
    stopping: bool,
    aborted: bool,
}

impl Worker {
    /// A worker on `cx` that serves what arrives in `inbox`, which is its own.
    pub fn new(cx: Context, inbox: Arc<Inbox>) -> Self {
        Worker {
            front_ends: FrontEnds::default(),
            work: Work::new(cx),
            inbox,
            events: Vec::new(),
            done: BioList::new(),
            stopping: false,
            aborted: false,
        }
    }

    /// Put `bytes` bytes of this worker's buffers into memory registered with its ring, which saves
    /// the kernel work in direct I/O. Before [`Worker::run`].
    ///
    /// # Errors
    /// When memory is short or the kernel refuses; everything works as before.
    pub fn register_memory(&mut self, bytes: usize) -> Result<()> {
        let arena = Arena::new(bytes);
        let arena = arena.ok_or_else(|| Error::invalid(format!("no memory for {bytes} bytes")))?;
        self.work.cx.register_memory(arena.clone())?;
        self.work.reserve = Reserve::new(Some(arena), self.work.locks.clone());
        Ok(())
    }

    /// Let the buffers of NBD clients be taken from `budget`, which workers may share; otherwise
    /// only each connection has its bound. Those of FUSE sessions are bounded by themselves
    /// ([`crate::fuse::server`]). Before [`Worker::run`].
    pub fn share_budget(&mut self, budget: Arc<Budget>) {
        self.work.budget = budget;
    }

    /// Serve until [`Inbox::stop`], then finish what is in flight, close every connection, and
    /// answer FUSE sessions until their mounts are gone (or [`Inbox::abort`]).
    pub fn run(&mut self) {
        while !(self.stopping && self.front_ends.is_empty()) {
            self.round();
        }
        self.inbox.close(&self.work.locks);
    }

    fn round(&mut self) {
        if self.has_work() {
            // New events have come meanwhile.
            self.begin_round();
            self.collect();
        } else if !self.busy_poll() {
            self.wait();
        }
        // A bio that completes inline may lead to replies, to room for requests, and so to more
        // bios.
        for _ in 0..TURNS_MAX {
            if !self.has_work() {
                return;
            }
            self.front_ends.advance(&mut self.work);
            self.submit();
        }
    }

    fn has_work(&self) -> bool {
        self.front_ends.has_work()
    }

    fn submit(&mut self) {
        self.work.submit();
        self.reap();
    }

    fn wait(&mut self) {
        self.front_ends.begin_wait(&mut self.work);
        self.work.cx.wait(self.front_ends.deadline());
        self.begin_round();
        self.collect();
    }

    fn begin_round(&mut self) {
        self.front_ends.begin_round(&mut self.work);
    }

    /// Busy-polls for requests that no ring announces, and collects events meanwhile. True if there
    /// is work.
    fn busy_poll(&mut self) -> bool {
        if self.work.cx.poll_mode() == PollMode::Interrupt {
            return false;
        }
        let Some(longest) = self.front_ends.begin_busy_poll() else { return false };
        let clock = self.work.cx.set().clock().clone();
        let until = clock.now() + longest;
        self.begin_round();
        for _ in 0..POLLS_MAX {
            if self.front_ends.busy_poll(&mut self.work) {
                // Sends the answer before another poll.
                self.submit();
                return true;
            }
            self.collect();
            if self.has_work() {
                return true;
            }
            if clock.now() >= until {
                break;
            }
        }
        self.front_ends.end_busy_poll();
        false
    }

    /// Handles everything that has happened.
    fn collect(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.reap();
        self.work.cx.take_events(&mut events);
        for event in events.drain(..) {
            self.front_ends.handle(&mut self.work, event);
        }
        self.events = events;
        self.take_arrivals();
        self.front_ends.collected(&mut self.work);
    }

    fn take_arrivals(&mut self) {
        for arrival in self.inbox.take(&self.work.locks) {
            self.front_ends.admit(&mut self.work, arrival);
        }
        if self.inbox.is_stopping() && !self.stopping {
            self.stopping = true;
            self.front_ends.begin_stop(&mut self.work);
        }
        if self.inbox.is_aborted() && !self.aborted {
            self.aborted = true;
            self.front_ends.abort(&mut self.work);
        }
    }

    fn reap(&mut self) {
        self.work.cx.reap(&mut self.done);
        while let Some(bio) = self.done.pop() {
            self.front_ends.completed(bio);
        }
    }
}
