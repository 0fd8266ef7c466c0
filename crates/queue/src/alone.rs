//! Bios that go through the scheduler alone: while nobody's are kept, and as far as tags go.
//!
//! Invariant: what is left when tags run out, or the driver is busy, goes the way of all others,
//! into the trees that are shared.

use crate::channel::{RequestChannel, Way};
use crate::driver::{AT_ONCE_BYTES_MAX, Driver};
use crate::scheduler::{Alone, Scheduler};
use drystone_core::clock::Ns;
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::{BioFlags, BioList, Env};

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// The way of bios that come now, which are put in order if they go alone. Those that were
    /// `submitted` just now have no time yet.
    #[inline]
    pub(crate) fn way_of(
        &mut self,
        env: &mut Env,
        bios: &mut BioList,
        submitted: Option<Ns>,
    ) -> Way {
        if !self.setup.schedules_all() {
            return Way::Straight;
        }
        if let Some(now) = submitted {
            bios.stamp(now);
        }
        let now = submitted.unwrap_or_else(|| env.time.recent());
        if bios.is_empty() || self.setup.shared().busy.update(now) || !self.may_go_alone(bios.len())
        {
            return Way::Elevated;
        }
        match self.setup.scheduler().alone(&mut self.local, bios, now, self.setup.config()) {
            Alone::InOrder => Way::Alone,
            Alone::AsUnits => Way::AsUnits,
            Alone::No => Way::Elevated,
        }
    }

    /// Whether nobody's bios are kept, and there are tags.
    #[inline]
    fn may_go_alone(&mut self, bios: usize) -> bool {
        self.may_issue() && self.has_tags(bios)
    }

    /// How many tags that many requests need.
    #[inline]
    fn tags_for(&self, requests: usize) -> u32 {
        if self.setup.completes_inline() { 1 } else { requests.min(PLUG_MAX_BIOS) as u32 }
    }

    /// Whether there are tags; as many as may be, but no more than needed, are taken.
    #[inline]
    pub(crate) fn has_tags(&mut self, requests: usize) -> bool {
        self.tags.reserve(self.tags_for(requests))
    }

    /// Let what the call noted go through trees of this channel's own, which merge what adjoins, if
    /// there are tags for all: then none waits for another.
    #[inline(never)]
    pub(crate) fn go_as_units(&mut self, env: &mut Env) {
        let mut bios = self.outbox.take();
        // One that is polled or needs a flush afterwards may stay with any driver.
        let special = BioFlags::POLLED | BioFlags::FUA;
        let enough = bios.len() <= PLUG_MAX_BIOS
            && !bios.iter().any(|bio| bio.flags.intersects(special))
            && bytes_without_data(&bios) <= AT_ONCE_BYTES_MAX
            && self.may_go_alone(bios.len())
            && self.tags.spare_count() >= self.tags_for(bios.len());
        if !enough {
            return self.outbox.append(&mut bios);
        }
        self.entrusted += bios.len();
        env.entrusted += bios.len();
        let now = env.time.recent();
        self.with_scheduler(env, now, false, |scheduler, local, caller| {
            scheduler.run_alone(local, caller, &mut bios);
        });
        self.run_units(env);
        self.issue_granted(env);
        self.give_back(env);
    }
}

/// How long a unit without data may become if all of `bios` merge: a long one may stay with any driver.
fn bytes_without_data(bios: &BioList) -> u64 {
    let bytes = bios.iter().filter(|bio| !bio.op.has_data()).map(|bio| bio.bytes);
    bytes.fold(0, u64::saturating_add)
}
