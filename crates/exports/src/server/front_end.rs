//! The interface between a worker and its front ends.
//!
//! Invariants:
//! * A front end sees only [`Work`]: its context and the batch of this round, not the worker or
//!   other front ends.
//! * The worker submits the bios of one round as one batch for each device, and then withdraws
//!   bios.

use super::budget::{Budget, Share};
use super::pool::Pool;
use super::reserve::Reserve;
use drystone_core::clock::Ns;
use drystone_core::ring::RingEvent;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, Context};
use std::ops::Range;
use std::sync::Arc;

/// A front end on one worker: it brings requests in as bios, and answers them when the bios have
/// ended.
///
/// The worker's thread makes all calls.
pub(crate) trait FrontEnd {
    /// An arrival in the worker's inbox for this front end: a listener, a connection, a session.
    type Arrival;

    /// True when nothing is left to serve and the context has none of its operations.
    fn is_empty(&self) -> bool;

    /// The time of its next round if no event comes before.
    fn deadline(&self) -> Option<Ns> {
        None
    }

    /// Called before a wait: returns how long to busy-poll for requests that no ring announces, or
    /// `None`.
    fn begin_busy_poll(&mut self) -> Option<Ns> {
        None
    }

    /// Polls once. True if there is work.
    fn busy_poll(&mut self, _work: &mut Work) -> bool {
        false
    }

    /// Ends a busy poll that found nothing.
    fn end_busy_poll(&mut self) {}

    /// Arms for a wait: an event from now on must end it.
    fn begin_wait(&mut self, _work: &mut Work) {}

    /// Begins a round, before any event of it is handled.
    fn begin_round(&mut self, work: &mut Work);

    /// Takes an arrival out of the inbox.
    fn admit(&mut self, work: &mut Work, arrival: Self::Arrival);

    /// Handles the end of an operation on the ring.
    fn handle(&mut self, work: &mut Work, event: RingEvent);

    /// Takes back a bio that has ended.
    fn completed(&mut self, bio: Box<Bio>);

    /// Ends a round's collection: all events and bios so far have been handled.
    fn collected(&mut self, _work: &mut Work) {}

    /// True when [`FrontEnd::advance`] has something to do.
    fn has_work(&self) -> bool;

    /// Continues the work of everything that had an event.
    fn advance(&mut self, work: &mut Work);

    /// Takes no new work, and ends when the present work has ended.
    fn begin_stop(&mut self, work: &mut Work);

    /// After [`FrontEnd::begin_stop`]: ends as soon as the context has none of its operations,
    /// without answers to clients that still wait.
    fn abort(&mut self, _work: &mut Work) {}
}

/// The worker's state that its front ends use: the context, and the batch of bios of this round.
pub(crate) struct Work {
    /// The thread's context.
    pub(crate) cx: Context,
    /// Counters of locks taken outside the context; the context has its own, because visitors may
    /// take locks at the same time.
    pub(crate) locks: Arc<LockCounters>,
    /// The reserve from which pools take buffers.
    pub(crate) reserve: Arc<Reserve>,
    /// The bound for the buffers of all pools together.
    pub(crate) budget: Arc<Budget>,
    /// Bios of this round, by device.
    bios: Vec<(ChannelId, BioList)>,
    /// `user_data` of bios to withdraw, after those of this round are submitted.
    withdrawn: Vec<Range<u64>>,
}

impl Work {
    /// The work of a context without a batch, without memory that the ring knows, and without a
    /// bound for buffers.
    pub(crate) fn new(cx: Context) -> Self {
        let locks = cx.locks().sibling();
        let reserve = Reserve::new(None, locks.clone());
        let (budget, bios, withdrawn) = (Budget::unlimited(), Vec::new(), Vec::new());
        Work { cx, locks, reserve, budget, bios, withdrawn }
    }

    /// Makes a pool of buffers for a client.
    pub(crate) fn pool(&self) -> Pool {
        let thread = self.cx.handle().clone();
        Pool::new(self.reserve.clone(), Share::new(self.budget.clone(), self.locks.clone(), thread))
    }

    /// Adds `bios` (emptied) to the batch of this round.
    #[inline]
    pub(crate) fn queue(&mut self, device: ChannelId, bios: &mut BioList) {
        match self.bios.iter_mut().find(|(d, _)| *d == device) {
            Some((_, list)) => list.append(bios),
            None => self.bios.push((device, bios.take())),
        }
    }

    /// Withdraws the bios with these `user_data`, after those of this round are submitted.
    pub(crate) fn withdraw(&mut self, range: Range<u64>) {
        self.withdrawn.push(range);
    }

    /// Takes the batch instead of submitting it.
    #[cfg(test)]
    #[allow(clippy::vec_box, reason = "bios are submitted in boxes")]
    pub(crate) fn take_queued(&mut self) -> Vec<Box<Bio>> {
        let mut queued = Vec::new();
        for (_, mut bios) in self.bios.drain(..) {
            queued.extend(std::iter::from_fn(|| bios.pop()));
        }
        queued
    }

    /// Takes the ranges to withdraw instead of withdrawing them.
    #[cfg(test)]
    pub(crate) fn take_withdrawn(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.withdrawn)
    }

    /// Submits the batch, one list for each device, then withdraws.
    pub(super) fn submit(&mut self) {
        let mut bios = std::mem::take(&mut self.bios);
        for (device, list) in &mut bios {
            self.cx.submit(*device, list);
        }
        bios.clear();
        self.bios = bios;
        self.withdrawn.drain(..).for_each(|range| self.cx.withdraw(range));
    }
}
