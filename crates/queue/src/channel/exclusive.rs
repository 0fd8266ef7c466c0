//! Exclusive dispatch: while the scheduler is empty, a channel dispatches bios without the
//! scheduler's turn, until tags run out.
//!
//! Invariant: bios that are left when tags run out or the driver is busy go to the shared
//! scheduler.

use super::RequestChannel;
use super::sched_client::Dispatch;
use crate::driver::{Driver, INLINE_BYTES_MAX};
use crate::scheduler::Scheduler;
use drystone_core::clock::Ns;
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::{BioFlags, BioList, Env};

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Choose the dispatch of new bios; for exclusive dispatch put them in order. Bios that were
    /// just `submitted` have no time yet.
    #[inline]
    pub(crate) fn dispatch_of(
        &mut self,
        env: &mut Env,
        bios: &mut BioList,
        submitted: Option<Ns>,
    ) -> Dispatch {
        if !self.setup.schedules_all() {
            return Dispatch::Bypass;
        }
        if let Some(now) = submitted {
            bios.stamp(now);
        }
        let now = submitted.unwrap_or_else(|| env.time.recent());
        if bios.is_empty()
            || self.setup.shared().busy.update(now)
            || !self.try_reserve_exclusive(bios.len())
        {
            return Dispatch::Scheduled;
        }
        self.sched.plan(&self.setup, bios, now)
    }

    /// Reserve tags for `bios` bios, unless other bios must go first. True if there is a spare tag.
    #[inline]
    fn try_reserve_exclusive(&mut self, bios: usize) -> bool {
        self.may_issue() && self.try_reserve(bios)
    }

    /// The number of tags that `requests` requests need.
    #[inline]
    fn tags_for(&self, requests: usize) -> u32 {
        if self.setup.completes_inline() { 1 } else { requests.min(PLUG_MAX_BIOS) as u32 }
    }

    /// Reserve as many tags as possible, but no more than `requests` need. True if there is a spare
    /// tag.
    #[inline]
    pub(crate) fn try_reserve(&mut self, requests: usize) -> bool {
        self.tags.reserve(self.tags_for(requests))
    }

    /// Merge the bios that this call noted for the scheduler in trees of the channel's own, and
    /// dispatch them, if there are tags for all.
    #[inline(never)]
    pub(crate) fn dispatch_merged(&mut self, env: &mut Env) {
        let mut bios = self.sched.take_new();
        // With any driver, a polled bio, or one that needs a flush afterwards, may not complete
        // inline.
        let special = BioFlags::POLLED | BioFlags::FUA;
        let enough = bios.len() <= PLUG_MAX_BIOS
            && !bios.iter().any(|bio| bio.flags.intersects(special))
            && bytes_without_data(&bios) <= INLINE_BYTES_MAX
            && self.try_reserve_exclusive(bios.len())
            && self.tags.spare_count() >= self.tags_for(bios.len());
        if !enough {
            return self.sched.put_new(&mut bios);
        }
        let (sched, parts) = self.split();
        sched.run_exclusive(parts, env, &mut bios);
        self.issue_scheduled(env);
        self.requeue(env);
    }
}

/// The length of the unit if all of `bios` without data merge: a long one may not complete inline.
fn bytes_without_data(bios: &BioList) -> u64 {
    let bytes = bios.iter().filter(|bio| !bio.op.has_data()).map(|bio| bio.bytes);
    bytes.fold(0, u64::saturating_add)
}
