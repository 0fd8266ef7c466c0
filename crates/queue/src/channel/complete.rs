//! The end of requests: accounting in batches with one clock reading, then tags, then bios.

use super::RequestChannel;
use super::in_flight::Rest;
use super::retry::prepare_retry;
use crate::driver::Driver;
use crate::flush::Next;
use crate::request::Kind;
use crate::scheduler::Scheduler;
use crate::tags::TagBatch;
use drystone_core::clock::Ns;
use drystone_core::mistake;
use drystone_core::op::OpGroup;
use drystone_core::{Bio, BioFlags, BioList, Env, Status};

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// End every request in `done`.
    #[inline]
    pub(crate) fn complete_done(&mut self, env: &mut Env) {
        let now = env.time.completion_time();
        self.no_longer_busy();
        let mut done = self.flight.take_done();
        if mistake!("completion_lost") && done.len() > 2 {
            done.pop();
        }
        let mut freed = TagBatch::default();
        for slot in done.drain(..) {
            let tag = self.complete(env, slot, now);
            if freed.base != tag.base && freed.mask != 0 {
                self.free_tags(env, std::mem::take(&mut freed));
            }
            freed = TagBatch { base: tag.base, mask: freed.mask | tag.mask };
        }
        self.flight.all_ended(done);
        self.sched.publish_ended();
        self.setup.shared().stats.busy.update(now, true, self.flight.is_any());
        self.free_tags(env, freed);
    }

    /// The driver has ended the request in `slot` as it was issued: its tag serves the next one.
    /// False if its bios wait to go apart.
    #[inline(always)]
    pub(crate) fn ended_inline(&mut self, env: &mut Env, slot: u32, status: Status) -> bool {
        let iostats = self.setup.config().iostats;
        let ended = self.flight.end_inline(slot, status, iostats, || env.time.completion_time());
        self.sched.count_ended(ended.sched_lane);
        let over = match ended.only {
            Some(bio) if ended.is_plain => {
                env.end_with(bio, Status::Ok);
                true
            }
            only => self.complete_other(env, slot, only),
        };
        self.reuse_tag(env, ended.tag);
        over
    }

    /// Count a request, or a bio that did without one, among those that ended inline.
    #[inline(always)]
    pub(crate) fn count_inline(&mut self, env: &mut Env, group: OpGroup, start_ns: Ns, bytes: u64) {
        let iostats = self.setup.config().iostats;
        let now = || env.time.completion_time();
        self.flight.count_inline((group, start_ns, bytes), iostats, now);
    }

    /// Account a bio by itself, with a reading of its own.
    pub(crate) fn count_alone(&mut self, env: &mut Env, group: OpGroup, start_ns: Ns, bytes: u64) {
        let now = env.time.now();
        self.flight.count_inline_alone((group, start_ns, bytes), self.setup.config().iostats, now);
        self.no_longer_busy();
        self.setup.shared().stats.busy.update(now, true, self.flight.is_any());
    }

    #[inline]
    pub(crate) fn reuse_tag(&mut self, env: &mut Env, tag: TagBatch) {
        if !self.tags.reuse(tag) {
            self.free_tags(env, tag);
        }
    }

    /// Account what ended inline in this call.
    #[inline]
    pub(crate) fn finish_inline(&mut self, env: &mut Env) {
        let now = S::CLOCK.completion_time(env);
        self.no_longer_busy();
        self.flight.publish_inline(now);
        self.sched.publish_ended();
        self.setup.shared().stats.busy.update(now, true, self.flight.is_any());
    }

    /// End one request; its tag is free for the caller to give back.
    #[inline(always)]
    fn complete(&mut self, env: &mut Env, slot: u32, now: Ns) -> TagBatch {
        let ended = self.flight.end(slot, now);
        self.sched.count_ended(ended.sched_lane);
        match ended.only {
            Some(bio) if ended.is_plain => env.end_with(bio, Status::Ok),
            only => _ = self.complete_other(env, slot, only),
        }
        ended.tag
    }

    /// A request that failed, has several bios, or concerns the flush machine. False if its bios
    /// wait to go apart.
    #[cold]
    fn complete_other(&mut self, env: &mut Env, slot: u32, only: Option<Box<Bio>>) -> bool {
        let Rest { kind, failure, mut bios } = self.flight.take_rest(slot, only);
        let status = failure.status;
        if kind == Kind::Normal && !status.is_ok() && self.retry_each(env, &mut bios, status) {
            return false;
        }
        self.setup.note(&failure);
        if kind == Kind::Flush {
            self.flush_ended(env, status);
        }
        while let Some(bio) = bios.pop() {
            match kind == Kind::ThenFlush && status.is_ok() {
                true => self.held.flush_after(bio),
                false => env.end_with(bio, status),
            }
        }
        true
    }

    /// Retry the bios of a request that ended with `status`, if that may help any of them. They
    /// keep their time of submission.
    #[cold]
    fn retry_each(&mut self, env: &mut Env, bios: &mut BioList, status: Status) -> bool {
        // An orphaned context has no submitter that waits, and no owner that would send them.
        if env.is_draining() || !prepare_retry(bios, status) {
            return false;
        }
        while let Some(bio) = bios.pop() {
            self.enqueue(bio);
        }
        true
    }

    fn flush_ended(&mut self, env: &mut Env, status: Status) {
        let mut data = BioList::new();
        self.held.flush_ended(status, |next| match next {
            Next::End(bio, status) => env.end_with(bio, status),
            Next::Data(bio) => data.push(bio),
        });
        while let Some(mut bio) = data.pop() {
            bio.flags.insert(BioFlags::NOMERGE);
            if let Some(bio) = self.cut(env, bio, &mut data) {
                self.enqueue(bio);
            }
        }
    }
}
