//! A data thread: its context, its front ends, its loop.
//!
//! Invariants:
//! * Everything here belongs to one thread. The only thing others touch is the [`Inbox`].
//! * Each round does all that has come, submits what came of it as one batch for each device,
//!   and enters the kernel once, in the wait.
//! * Without front ends that have a deadline, the wait has none: an idle server sleeps.
//! * A ring event and a bio find their front end by the tag in the value that they carry
//!   ([`super::front_ends`]).

use super::budget::{Budget, Share};
use super::buffers::Reserve;
use super::front_ends::FrontEnds;
use super::{Inbox, Pool};
use drystone_core::clock::Ns;
use drystone_core::context::PollMode;
use drystone_core::ring::RingEvent;
use drystone_core::sync::LockCounters;
use drystone_core::{Arena, Bio, BioList, Context, DevIndex, Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// How often front ends go on with what they started before others are looked after.
const TURNS_MAX: u32 = 64;
/// Looks of one wait: a bound for clocks that stand still.
const LOOKS_MAX: u32 = 256;

/// What brings requests in, on one worker.
pub(crate) trait FrontEnd {
    /// What comes through the worker's door for it.
    type Arrival;

    /// Nothing is left to be served, and nothing of it is with the context.
    fn is_empty(&self) -> bool;

    /// When it is to be looked at although nothing happened.
    fn deadline(&self) -> Option<Ns> {
        None
    }

    /// Before a wait: for how long to look for what no ring tells of, if that is worth it.
    fn begin_look(&mut self) -> Option<Ns> {
        None
    }

    /// Look once. True if there is something to do.
    fn look(&mut self, _work: &mut Work) -> bool {
        false
    }

    /// That was in vain.
    fn end_look(&mut self) {}

    /// The wait begins: what has come since then must end it.
    fn begin_wait(&mut self, _work: &mut Work) {}

    /// A wait is over, and nothing has been taken in yet.
    fn begin_round(&mut self, work: &mut Work);

    /// Take what came through the door.
    fn admit(&mut self, work: &mut Work, arrival: Self::Arrival);

    /// An operation on the ring has ended.
    fn handle(&mut self, work: &mut Work, event: RingEvent);

    /// A bio came back.
    fn completed(&mut self, bio: Box<Bio>);

    /// Everything that had happened was taken in.
    fn collected(&mut self, _work: &mut Work) {}

    /// There is something that [`FrontEnd::advance`] can do.
    fn has_work(&self) -> bool;

    /// Go on with all that something happened to.
    fn advance(&mut self, work: &mut Work);

    /// Take nothing new, and end when what is there has ended.
    fn begin_stop(&mut self, work: &mut Work);

    /// After that: end as soon as nothing is with the context, whoever still waits for an answer.
    fn abort(&mut self, _work: &mut Work) {}
}

/// What front ends do their work with.
pub(crate) struct Work {
    /// The thread's context.
    pub(crate) cx: Context,
    /// Counts the locks taken outside the context: a visitor of it may take some at the same time.
    pub(crate) locks: Arc<LockCounters>,
    /// The worker's door.
    pub(crate) inbox: Arc<Inbox>,
    /// Where pools of buffers get theirs.
    pub(crate) reserve: Arc<Reserve>,
    /// What all of them may have together.
    pub(crate) budget: Arc<Budget>,
    /// Bios of this round, by device.
    bios: Vec<(DevIndex, BioList)>,
    /// Bios that nobody wants any more; those of this round are submitted first.
    gone: Vec<Range<u64>>,
}

impl Work {
    /// What a worker on `cx` with the door `inbox` has, at first without memory that the ring knows and without a
    /// bound for buffers.
    pub(crate) fn new(cx: Context, inbox: Arc<Inbox>) -> Self {
        let locks = cx.locks().sibling();
        let reserve = Reserve::new(None, locks.clone());
        let (budget, bios, gone) = (Budget::unlimited(), Vec::new(), Vec::new());
        Work { cx, locks, inbox, reserve, budget, bios, gone }
    }

    /// A pool of buffers for a client.
    pub(crate) fn pool(&self) -> Pool {
        let thread = self.cx.handle().clone();
        Pool::new(self.reserve.clone(), Share::new(self.budget.clone(), self.locks.clone(), thread))
    }

    /// Submit `bios` (emptied) with all others of this round.
    #[inline]
    pub(crate) fn queue(&mut self, device: DevIndex, bios: &mut BioList) {
        match self.bios.iter_mut().find(|(d, _)| *d == device) {
            Some((_, list)) => list.append(bios),
            None => self.bios.push((device, bios.take())),
        }
    }

    /// Withdraw the bios with these `user_data`, once those of this round are submitted.
    pub(crate) fn withdraw(&mut self, range: Range<u64>) {
        self.gone.push(range);
    }

    /// What is to be submitted, instead of that.
    #[cfg(test)]
    #[allow(clippy::vec_box)]
    pub(crate) fn take_queued(&mut self) -> Vec<Box<Bio>> {
        let mut queued = Vec::new();
        for (_, mut bios) in self.bios.drain(..) {
            queued.extend(std::iter::from_fn(|| bios.pop()));
        }
        queued
    }

    /// What is to be withdrawn, instead of that.
    #[cfg(test)]
    pub(crate) fn take_withdrawn(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.gone)
    }

    fn submit(&mut self) {
        let mut bios = std::mem::take(&mut self.bios);
        for (device, list) in &mut bios {
            self.cx.submit(*device, list);
        }
        bios.clear();
        self.bios = bios;
        self.gone.drain(..).for_each(|range| self.cx.withdraw(range));
    }
}

/// A data thread's server. Made for one thread, and run by it.
pub struct Worker {
    // The front ends go first: what the ring has of them comes back before their memory goes.
    front_ends: FrontEnds,
    work: Work,
    events: Vec<RingEvent>,
    done: BioList,
    stopping: bool,
    aborted: bool,
}

impl Worker {
    /// A worker on `cx` that serves what comes through the door `inbox`, which is its own.
    pub fn new(cx: Context, inbox: Arc<Inbox>) -> Self {
        Worker {
            front_ends: FrontEnds::default(),
            work: Work::new(cx, inbox),
            events: Vec::new(),
            done: BioList::new(),
            stopping: false,
            aborted: false,
        }
    }

    /// Let `bytes` bytes of this worker's buffers lie in memory that its ring knows, which saves
    /// the kernel work with direct I/O. Before [`Worker::run`].
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

    /// Let the buffers of NBD clients be taken from `budget`, which workers may share; otherwise only each
    /// connection has its bound. Those of FUSE sessions are bounded by themselves
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
        self.work.inbox.close(&self.work.locks);
    }

    fn round(&mut self) {
        if self.has_work() {
            // What else there is has waited for a while.
            self.begin_round();
            self.collect();
        } else if !self.look() {
            self.wait();
        }
        // What completes at once may bring replies, room for requests, and so more bios.
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

    /// Look for what no ring tells of, and for all else meanwhile. True if there is something to do.
    fn look(&mut self) -> bool {
        if self.work.cx.poll_mode() == PollMode::Interrupt {
            return false;
        }
        let Some(longest) = self.front_ends.begin_look() else { return false };
        let clock = self.work.cx.set().clock().clone();
        let until = clock.now() + longest;
        self.begin_round();
        for _ in 0..LOOKS_MAX {
            if self.front_ends.look(&mut self.work) {
                // The answer comes before another look.
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
        self.front_ends.end_look();
        false
    }

    /// Take in everything that has happened.
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
        for arrival in self.work.inbox.take(&self.work.locks) {
            self.front_ends.admit(&mut self.work, arrival);
        }
        if self.work.inbox.is_stopping() && !self.stopping {
            self.stopping = true;
            self.front_ends.begin_stop(&mut self.work);
        }
        if self.work.inbox.is_aborted() && !self.aborted {
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
