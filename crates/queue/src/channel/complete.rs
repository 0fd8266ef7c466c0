//! The end of requests: account them in batches with one clock reading, free the tags, end the
//! bios.

use super::RequestChannel;
use super::in_flight::{InlineRun, Rest};
use super::retry::prepare_retry;
use crate::driver::Driver;
use crate::flush::Next;
use crate::request::Kind;
use crate::scheduler::Scheduler;
use crate::tags::TagBatch;
use drystone_core::clock::Ns;
use drystone_core::mistake;
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

    /// End the request in `slot`, which the driver completed as it was issued. The next request
    /// uses its tag. False if its bios wait to be retried alone.
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

    /// Count I/Os that completed inline.
    #[inline(always)]
    pub(crate) fn count_inline(&mut self, env: &mut Env, run: InlineRun) {
        let iostats = self.setup.config().iostats;
        let now = || env.time.completion_time();
        self.flight.count_inline(run, iostats, now);
    }

    /// Account one bio, with a clock reading of its own.
    pub(crate) fn count_alone(&mut self, env: &mut Env, one: &InlineRun) {
        let now = env.time.now();
        self.flight.count_inline_alone(one, self.setup.config().iostats, now);
        self.no_longer_busy();
        self.setup.shared().stats.busy.update(now, true, self.flight.is_any());
    }

    #[inline]
    pub(crate) fn reuse_tag(&mut self, env: &mut Env, tag: TagBatch) {
        if !self.tags.reuse(tag) {
            self.free_tags(env, tag);
        }
    }

    /// Account everything that completed inline in this call.
    #[inline]
    pub(crate) fn finish_inline(&mut self, env: &mut Env) {
        let now = S::CLOCK.completion_time(env);
        self.no_longer_busy();
        self.flight.publish_inline(now);
        self.sched.publish_ended();
        self.setup.shared().stats.busy.update(now, true, self.flight.is_any());
    }

    /// End one request. Returns its tag, which the caller must free.
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

    /// End a request that failed, has several bios, or is part of a flush sequence. False if its
    /// bios wait to be retried alone.
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

    /// Retry each bio of a request that ended with `status`, if that may help any of them. The bios
    /// keep their submission time.
    #[cold]
    fn retry_each(&mut self, env: &mut Env, bios: &mut BioList, status: Status) -> bool {
        // The context was dropped: no submitter waits for these bios, and no owner would send them
        // again.
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
