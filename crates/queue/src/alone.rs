//! Bios that go through the scheduler alone: while nobody's are kept, and as far as tags go.
//!
//! Invariant: what is left when tags run out, or the driver is busy, goes the way of all others,
//! into the trees that are shared.

use crate::channel::RequestChannel;
use crate::driver::{Driver, DriverQueue};
use crate::scheduler::deadline::lane_of;
use crate::scheduler::{Alone, Scheduler};
use drystone_core::clock::Ns;
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::{BioList, Env};

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Let `bios` go at `now` that need not meet others. What is left in them, or in the outbox, must.
    #[inline]
    pub(crate) fn go_alone(&mut self, env: &mut Env, bios: &mut BioList, now: Ns) {
        if !self.may_issue() || self.is_held(now) || !self.has_tags(bios.len()) {
            return;
        }
        match self.shared.scheduler.alone(&mut self.local, bios, now, &self.config) {
            Alone::InOrder => self.issue_in_order(env, bios),
            Alone::AsUnits if self.has_tags_for(bios.len()) => self.issue_as_units(env, bios, now),
            Alone::AsUnits | Alone::No => {}
        }
    }

    /// How many tags that many requests need.
    #[inline]
    fn tags_for(&self, requests: usize) -> u32 {
        if self.driver.ends_at_once() { 1 } else { requests.min(PLUG_MAX_BIOS) as u32 }
    }

    /// Whether there are tags; as many as may be, but no more than needed, are taken.
    #[inline]
    fn has_tags(&mut self, requests: usize) -> bool {
        if self.spare.mask == 0 && !self.tags().has_waiters() {
            self.spare = self.tags().take(self.hint(), self.tags_for(requests));
        }
        self.spare.mask != 0
    }

    /// Whether those that were taken are enough, if none of the requests waits for another.
    fn has_tags_for(&self, requests: usize) -> bool {
        requests <= PLUG_MAX_BIOS && self.spare.mask.count_ones() >= self.tags_for(requests)
    }

    /// One request for each bio, in their order.
    #[inline]
    fn issue_in_order(&mut self, env: &mut Env, bios: &mut BioList) {
        let counted = !self.driver.ends_at_once();
        while let Some(bio) = bios.pop() {
            let Some(slot) = self.build(env, bio, bios.len() as u32 + 1) else { break };
            if counted {
                self.count_passed(slot);
            }
            if !self.issue(env, slot) && !self.may_issue() {
                break;
            }
        }
        // What was kept for want of a tag came before those that were not tried.
        self.outbox.append(bios);
        self.give_back(env);
    }

    #[inline]
    fn count_passed(&mut self, slot: u32) {
        let rq = self.slots.get(slot);
        let lane = lane_of(rq.unit.op, rq.unit.priority);
        rq.sched_lane = lane as u8 + 1;
        self.port.count_passed(lane);
    }

    /// Through trees of this channel's own, which merge what adjoins.
    #[inline(never)]
    fn issue_as_units(&mut self, env: &mut Env, bios: &mut BioList, now: Ns) {
        self.entrusted += bios.len();
        env.entrusted += bios.len();
        self.with_scheduler(env, now, false, |scheduler, local, caller| {
            scheduler.run_alone(local, caller, bios);
        });
        self.run_units(env);
        self.issue_granted(env);
    }
}
