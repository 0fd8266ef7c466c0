//! Bios that go through the scheduler alone: while nobody's are kept, and as far as tags go.
//!
//! Invariant: what is left when tags run out, or the driver is busy, goes the way of all others,
//! into the trees that are shared.

use crate::channel::RequestChannel;
use crate::driver::{Driver, DriverQueue};
use crate::elevate::time_of;
use crate::scheduler::deadline::{BEST_EFFORT, Insertion};
use crate::scheduler::{Alone, Scheduler};
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::{BioList, Env};

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Let `bios` go that need not meet others. What is left in them, or in the outbox, must.
    #[inline]
    pub(crate) fn go_alone(&mut self, env: &mut Env, bios: &mut BioList) {
        let now = time_of(env);
        if !self.may_issue() || self.is_held(now) || self.tags().has_waiters() {
            return;
        }
        let config = &self.config;
        let (limits, tunables) = (&config.limits, &config.tunables);
        let how = Insertion { limits, nomerges: config.nomerges, tunables };
        match self.shared.scheduler.alone(&mut self.local, bios, now, &how) {
            Alone::InOrder => self.issue_in_order(env, bios),
            Alone::AsUnits if self.has_tags_for(env, bios.len()) => self.issue_as_units(env, bios),
            Alone::AsUnits | Alone::No => {}
        }
    }

    /// One request for each bio, in their order.
    #[inline]
    fn issue_in_order(&mut self, env: &mut Env, bios: &mut BioList) {
        let counted = !self.driver.ends_at_once();
        while let Some(bio) = bios.pop() {
            let Some(slot) = self.build(env, bio, bios.len() as u32 + 1) else { break };
            if counted {
                self.port.count_passed();
                self.slots.get(slot).sched_class = BEST_EFFORT as u8 + 1;
            }
            if !self.issue(env, slot) && !self.may_issue() {
                break;
            }
        }
        // What was kept for want of a tag came before those that were not tried.
        self.outbox.append(bios);
        self.give_back(env);
    }

    /// Whether there are tags for that many requests at once; they are taken.
    fn has_tags_for(&mut self, env: &mut Env, requests: usize) -> bool {
        let want = if self.driver.ends_at_once() { 1 } else { requests as u32 };
        if want > PLUG_MAX_BIOS as u32 {
            return false;
        }
        if self.spare.mask.count_ones() < want {
            self.free_spare(env);
            self.spare = self.tags().take(self.hint(), want);
        }
        self.spare.mask.count_ones() >= want
    }

    /// Through trees of this channel's own, which merge what adjoins.
    #[inline(never)]
    fn issue_as_units(&mut self, env: &mut Env, bios: &mut BioList) {
        self.entrusted += bios.len();
        env.entrusted += bios.len();
        let now = time_of(env);
        self.with_scheduler(env, now, false, |scheduler, local, caller| {
            scheduler.run_alone(local, caller, bios);
        });
        self.run_units(env);
        self.issue_granted(env);
    }
}
